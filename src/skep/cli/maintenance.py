"""`skep maintenance`: what the servers do while the database is worked on."""

from skep import Skep
from skep.cli.connect import connect
from skep.cli.progress import progress
from skep.cli.show import counted, say, show_json
from skep.config import Config
from skep.message import MaintenanceStatus


def show(config: Config, *, as_json: bool) -> None:
    with connect(config) as mq:
        _show(mq.maintenance(), as_json=as_json)


def switch(config: Config, *, push: bool, pop: bool, on: bool, as_json: bool) -> None:
    """Switch what is named, or both."""
    both = not (push or pop)
    with connect(config) as mq:
        mq.set_maintenance(push=on if push or both else None, pop=on if pop or both else None)
        if not on:
            _store_held(mq)
        _show(mq.maintenance(), as_json=as_json)


def _store_held(mq: Skep) -> None:
    """Servers and upkeep do so too; whoever ends it wants to see it done."""
    with progress("storing what was held", mq.maintenance().held) as advance:
        while messages := mq.drain_held_pushes().messages:
            advance(messages)


def _show(status: MaintenanceStatus, *, as_json: bool) -> None:
    if as_json:
        show_json(status)
        return
    pushes = "hold pushes" if status.push else "store pushes"
    pops = "deliver nothing" if status.pop else "deliver"
    held = f"; {counted(status.held, 'message')} held" if status.held else ""
    refused = f", {counted(status.refused, 'request')} refused" if status.refused else ""
    say(f"servers {pushes} and {pops}{held}{refused}")
