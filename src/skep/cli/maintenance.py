"""`skep maintenance`: the maintenance mode of the servers."""

from typing import TYPE_CHECKING, Annotated

import typer

from skep.cli.connect import connect
from skep.cli.options import DatabaseUrl, DataDir, Json
from skep.cli.progress import progress
from skep.cli.show import counted, say, show_json
from skep.message import MaintenanceStatus

if TYPE_CHECKING:
    from skep import Skep

maintenance_app = typer.Typer(
    help="Control maintenance mode: servers hold pushes and deliver nothing. Direct database clients are not affected.",
    no_args_is_help=True,
)

Push = Annotated[bool, typer.Option("--push", help="Only pushes.")]
Pop = Annotated[bool, typer.Option("--pop", help="Only pops.")]


@maintenance_app.command()
def show(as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Show the maintenance mode and the number of held messages."""
    with connect(database_url, data_dir) as mq:
        _show(mq.maintenance(), as_json=as_json)


@maintenance_app.command()
def start(
    push: Push = False,
    pop: Pop = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Start maintenance mode."""
    with connect(database_url, data_dir) as mq:
        _switch(mq, push=push, pop=pop, on=True)
        _show(mq.maintenance(), as_json=as_json)


@maintenance_app.command()
def end(
    push: Push = False,
    pop: Pop = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """End maintenance mode and store the held messages, once and in order."""
    with connect(database_url, data_dir) as mq:
        _switch(mq, push=push, pop=pop, on=False)
        _store_held(mq)
        _show(mq.maintenance(), as_json=as_json)


def _switch(mq: "Skep", *, push: bool, pop: bool, on: bool) -> None:
    """Switch pushes, pops, or both if neither is given."""
    both = not (push or pop)
    mq.set_maintenance(push=on if push or both else None, pop=on if pop or both else None)


def _store_held(mq: "Skep") -> None:
    """Store the held messages. Servers and upkeep do it too; here the user can watch the progress."""
    with progress("storing held messages", mq.maintenance().held) as advance:
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
