"""Background duties: each is a function that runs once, safe to run anywhere and any number of times at once.

reaper    gives back what consumers held that died
watch     declares groups dead that give no sign of life
retainer  deletes what retention allows, in small steps
sampler   writes heads and cursors down, for history
pruner    forgets old journal rows, samples, traces and finished leases
drainer   stores what was held during maintenance and left behind
mover     publishes rows of the outbox that were committed under REPEATABLE READ or SERIALIZABLE
delayed   appends delayed messages that are due
scheduler pushes the ticks of schedules that are due
"""

from skep.config import Config
from skep.upkeep.delayed import append
from skep.upkeep.drainer import drain
from skep.upkeep.duty import Duty, Upkeep
from skep.upkeep.mover import move
from skep.upkeep.pruner import prune
from skep.upkeep.reaper import reap
from skep.upkeep.retainer import retain
from skep.upkeep.sampler import sample
from skep.upkeep.scheduler import tick
from skep.upkeep.watch import watch

DUTIES = (
    Duty("reaper", 5, reap, "lease_expiry_interval"),
    Duty("watch", 15, watch, "detection_interval"),
    Duty("retainer", 10, retain, "retention_interval"),
    Duty("sampler", 10, sample, "sampling_interval"),
    Duty("pruner", 60, prune, "pruning_interval"),
    Duty("drainer", 5, drain, "held_push_interval"),
    Duty("mover", 1, move, "outbox_interval"),
    Duty("delayed", 1, append, "delayed_interval"),
    Duty("scheduler", 1, tick, "schedule_interval"),
)


def intervals(config: Config) -> dict[str, float]:
    """Return the seconds between two runs that the settings give each duty, by its name."""
    return {duty.name: getattr(config, duty.setting) for duty in DUTIES if duty.setting is not None}


__all__ = ["DUTIES", "Duty", "Upkeep", "intervals"]
