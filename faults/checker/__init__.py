"""The checker: rules over what everyone was told and what is there at the end. It opens no file and no connection.

A rule says only what it can prove. What nobody was told (`unknown`) may have happened or not, so that a call counts
from the moment it was invoked to the moment it was told; two calls are in order only if one was told before the other
was invoked.
"""

from collections.abc import Callable, Iterable, Iterator

from faults.checker import baseline, crowd, dead_letters, deliveries, leases, log, samples, transactions
from faults.checker.index import Index, Violation
from faults.history import History
from faults.state import Setup, State

Rule = Callable[[Index], Iterator[Violation]]

RULES: dict[str, Rule] = {
    "one value at a place": log.one_value,
    "a message stays as it was pushed": log.unchanged,
    "a value is stored once": log.stored_once,
    "offsets are dense": log.dense,
    "nothing from nowhere": log.from_nowhere,
    "what was accepted is there": log.accepted,
    "every group gets everything": deliveries.complete,
    "lag returns to zero": deliveries.drained,
    "in order": deliveries.in_order,
    "nothing again after its ack": deliveries.not_again,
    "at most once with auto_ack": deliveries.at_most_once,
    "one lease at a time": leases.one_at_a_time,
    "a stale ack is refused": leases.stale_refused,
    "cursors only go forward": samples.forward,
    "retention keeps what a group has to do": samples.pending_is_kept,
    "retention keeps what is leased": samples.leased_is_kept,
    "both or none": transactions.both_or_none,
    "dead letters are accounted for": dead_letters.accounted_for,
    "the log is whole": baseline.whole,
    "a crowd of partitions gets everything": crowd.complete,
    "a crowd of partitions gets nothing twice": crowd.once,
    "a crowd of partitions is in order": crowd.in_order,
    "everything returns to its baseline": baseline.returned,
}
LOSING = {  # rules that hold even where a setting allows to lose the last moments before a crash
    "offsets are dense",
    "lag returns to zero",
    "at most once with auto_ack",
    "a message stays as it was pushed",
    "the log is whole",
    "everything returns to its baseline",
    "what was accepted is there",
}


def check(setup: Setup, history: History, state: State) -> list[Violation]:
    """Return everything that is broken, rule by rule."""
    index = Index(setup, history, state)
    chosen: Iterable[str] = LOSING if setup.loses else RULES
    return [violation.named(name) for name in RULES if name in chosen for violation in RULES[name](index)]


__all__ = ["RULES", "Index", "Violation", "check"]
