"""`skep delayed`: its commands."""

from typing import Annotated
from uuid import UUID

import typer

from skep.cli.options import DatabaseUrl, DataDir, Json, Partition, SomeQueue
from skep.config import Config

delayed_app = typer.Typer(help="Delayed messages: those that are not due yet.", no_args_is_help=True)


@delayed_app.command("list")
def delayed_list(
    queue: SomeQueue = None,
    partition: Partition = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, the next one first.")] = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List delayed messages that wait, the next one first."""
    from skep.cli.delayed import list_delayed

    list_delayed(Config.load_client(database_url, data_dir), queue, partition, limit=limit, as_json=as_json)


@delayed_app.command("cancel")
def delayed_cancel(
    ids: Annotated[list[UUID], typer.Argument(metavar="ID...", help="As push and list show it.", show_default=False)],
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete delayed messages before they are due; exit code 1 if one is no longer waiting."""
    from skep.cli.delayed import cancel

    if not cancel(Config.load_client(database_url, data_dir), ids, as_json=as_json):
        raise typer.Exit(1)
