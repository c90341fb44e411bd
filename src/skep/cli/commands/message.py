"""`skep message`: its commands."""

from typing import Annotated
from uuid import UUID

import typer

from skep.cli.options import DatabaseUrl, DataDir, Json, Partition, Queue, Yes
from skep.config import Config

message_app = typer.Typer(help="Messages as they are stored, whoever has consumed them.", no_args_is_help=True)

Id = Annotated[UUID, typer.Argument(metavar="ID", help="As push, pop and list show it.", show_default=False)]


@message_app.command("list")
def message_list(
    queue: Queue,
    partition: Partition = None,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="The first offset.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="How many messages to show.")] = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List messages, partition by partition; nobody is kept from them."""
    from skep.cli.message import list_messages

    config = Config.load_client(database_url, data_dir)
    list_messages(config, queue, partition, start=start, limit=limit, as_json=as_json)


@message_app.command("show")
def message_show(id_: Id, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Show a message, and which groups have completed it."""
    from skep.cli.message import show

    show(Config.load_client(database_url, data_dir), id_, as_json=as_json)


@message_app.command("delete")
def message_delete(
    id_: Id, yes: Yes = False, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None
) -> None:
    """Delete the content of a message: it is not delivered any more, and its offset stays."""
    from skep.cli.message import delete

    delete(Config.load_client(database_url, data_dir), id_, yes=yes, as_json=as_json)
