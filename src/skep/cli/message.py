"""`skep message`: stored messages."""

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from skep.cli.confirm import confirm
from skep.cli.connect import connect
from skep.cli.options import DatabaseUrl, DataDir, FirstOffset, Json, MessageLimit, Partition, Queue, Yes
from skep.cli.show import Cell, as_dict, clock, compact, one_line, say, show_json, show_table
from skep.errors import NotFound
from skep.message import StoredMessage

if TYPE_CHECKING:
    from skep import Skep

DELETED = "(deleted)"

message_app = typer.Typer(help="Read and delete stored messages without consuming them.", no_args_is_help=True)

MessageId = Annotated[
    UUID, typer.Argument(metavar="ID", help="Message id, as push, pop and list show it.", show_default=False)
]


@message_app.command("list")
def list_messages(
    queue: Queue,
    partition: Partition = None,
    start: FirstOffset = 0,
    limit: MessageLimit = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List messages by partition without consuming them."""
    with connect(database_url, data_dir) as mq:
        found = mq.peek(queue, partition, start, limit)
        if not found:
            mq.queue(queue).status()  # raises NotFound if the queue does not exist
    if as_json:
        show_json(found)
        return
    headers = ("partition", "offset", "id", "pushed", "payload", "headers")
    show_table(headers, (_row(message) for message in found))


def _row(message: StoredMessage) -> tuple[Cell, ...]:
    payload = DELETED if message.deleted else compact(message.payload)
    headers = compact(message.headers) if message.headers else None
    return message.partition, str(message.offset), str(message.id), message.created_at, payload, headers


@message_app.command()
def show(
    message_id: MessageId, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None
) -> None:
    """Show a message and the groups that have completed it."""
    with connect(database_url, data_dir) as mq:
        message, groups = _find(mq, message_id), mq.message_groups(message_id)
    if as_json:
        show_json(as_dict(message) | {"groups": groups})
        return
    say(_address(message))
    show_table(("field", "value"), _fields(message))
    headers = ("group", "status", "required", "state")
    show_table(headers, ((each.group, each.status, "yes" if each.required else "no", each.state) for each in groups))


def _fields(message: StoredMessage) -> list[tuple[Cell, ...]]:
    texts = {
        "pushed": clock(message.created_at),
        "payload": DELETED if message.deleted else compact(message.payload),
        "headers": compact(message.headers) if message.headers else None,
        "transaction id": message.transaction_id,
        "trace id": str(message.trace_id) if message.trace_id else None,
        "producer": message.producer,
    }
    return [(name, text) for name, text in texts.items() if text is not None]


@message_app.command()
def delete(
    message_id: MessageId,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete the content of a message, so that it is not delivered any more. Its offset stays."""
    with connect(database_url, data_dir) as mq:
        address = _address(_find(mq, message_id))
        if not yes:
            confirm(f"Delete the content of {address}?")
        deleted = mq.delete_message(message_id)
    if as_json:
        show_json({"id": message_id, "deleted": deleted})
    else:
        say(f"{address} deleted" if deleted else f"{address} was already deleted")


def _find(mq: "Skep", message_id: UUID) -> StoredMessage:
    found = mq.find(message_id)
    if found is None:
        raise NotFound(f"there is no message {message_id}", hint="`skep message list QUEUE` shows those of a queue")
    return found


def _address(message: StoredMessage) -> str:
    return one_line(f"{message.queue}/{message.partition} #{message.offset}")
