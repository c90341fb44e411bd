"""`skep delayed`: messages that are not due yet."""

from collections.abc import Sequence
from uuid import UUID

from skep.cli.connect import connect
from skep.cli.show import Cell, compact, say, show_json, show_table
from skep.config import Config
from skep.errors import InvalidArgument
from skep.schedule import DelayedMessage


def list_delayed(config: Config, queue: str | None, partition: str | None, *, limit: int, as_json: bool) -> None:
    if partition is not None and queue is None:
        raise InvalidArgument("--partition needs a queue", hint="skep delayed list QUEUE --partition PARTITION")
    with connect(config) as mq:
        found = mq.list_delayed(queue, partition, limit=limit)
        if queue is not None and not found:
            mq.queue(queue).status()  # raises if there is none
    if as_json:
        show_json(found)
        return
    show_table(("queue", "partition", "due", "id", "payload", "headers"), (_row(message) for message in found))


def _row(message: DelayedMessage) -> tuple[Cell, ...]:
    headers = compact(message.headers) if message.headers else None
    payload = compact(message.payload)
    due = f"{message.due_at.astimezone():%Y-%m-%d %H:%M:%S}"
    return message.queue, message.partition, due, str(message.id), payload, headers


def cancel(config: Config, ids: Sequence[UUID], *, as_json: bool) -> bool:
    """Return whether all of them were still waiting."""
    with connect(config) as mq:
        cancelled = {message_id: mq.cancel_delayed(message_id) for message_id in ids}
    if as_json:
        show_json([{"id": message_id, "cancelled": done} for message_id, done in cancelled.items()])
    else:
        for message_id, done in cancelled.items():
            say(f"{message_id} cancelled" if done else f"{message_id} is not waiting")
    return all(cancelled.values())
