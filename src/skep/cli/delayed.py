"""`skep delayed`: messages that are not due yet."""

from typing import Annotated
from uuid import UUID

import typer

from skep.cli.connect import connect
from skep.cli.options import DatabaseUrl, DataDir, Json, OptionalQueue, Partition
from skep.cli.show import Cell, clock, compact, say, show_json, show_table
from skep.errors import InvalidArgument
from skep.schedule import DelayedMessage

delayed_app = typer.Typer(help="List and cancel delayed messages.", no_args_is_help=True)


@delayed_app.command("list")
def list_delayed(
    queue: OptionalQueue = None,
    partition: Partition = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of messages to show.")] = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List delayed messages in the order in which they are due."""
    if partition is not None and queue is None:
        raise InvalidArgument("--partition needs a queue", hint="skep delayed list QUEUE --partition PARTITION")
    with connect(database_url, data_dir) as mq:
        found = mq.list_delayed(queue, partition, limit=limit)
        if queue is not None and not found:
            mq.queue(queue).status()  # raises NotFound if the queue does not exist
    if as_json:
        show_json(found)
        return
    show_table(("queue", "partition", "due", "id", "payload", "headers"), (_row(message) for message in found))


def _row(message: DelayedMessage) -> tuple[Cell, ...]:
    headers = compact(message.headers) if message.headers else None
    payload = compact(message.payload)
    return message.queue, message.partition, clock(message.due_at), str(message.id), payload, headers


@delayed_app.command()
def cancel(
    ids: Annotated[
        list[UUID], typer.Argument(metavar="ID...", help="Message ids, as push and list show them.", show_default=False)
    ],
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete delayed messages before they are due. The exit code is 1 if one was not waiting any more."""
    with connect(database_url, data_dir) as mq:
        cancelled = {message_id: mq.cancel_delayed(message_id) for message_id in ids}
    if as_json:
        show_json([{"id": message_id, "cancelled": done} for message_id, done in cancelled.items()])
    else:
        for message_id, done in cancelled.items():
            say(f"{message_id} cancelled" if done else f"{message_id} is not waiting")
    if not all(cancelled.values()):
        raise typer.Exit(1)
