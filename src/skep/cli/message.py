"""`skep message`: messages as they are stored."""

from uuid import UUID

from skep import Skep
from skep.cli.ask import confirm
from skep.cli.connect import connect
from skep.cli.show import Cell, as_dict, compact, one_line, say, show_json, show_table
from skep.config import Config
from skep.errors import NotFound
from skep.message import StoredMessage

DELETED = "(deleted)"


def list_messages(config: Config, queue: str, partition: str | None, *, start: int, limit: int, as_json: bool) -> None:
    with connect(config) as mq:
        found = mq.peek(queue, partition, start, limit)
        if not found:
            mq.queue(queue).status()  # raises if there is none
    if as_json:
        show_json(found)
        return
    headers = ("partition", "offset", "id", "pushed", "payload", "headers")
    show_table(headers, (_row(message) for message in found))


def _row(message: StoredMessage) -> tuple[Cell, ...]:
    payload = DELETED if message.deleted else compact(message.payload)
    headers = compact(message.headers) if message.headers else None
    return message.partition, str(message.offset), str(message.id), message.created_at, payload, headers


def show(config: Config, message_id: UUID, *, as_json: bool) -> None:
    with connect(config) as mq:
        message, groups = _find(mq, message_id), mq.message_groups(message_id)
    if as_json:
        show_json(as_dict(message) | {"groups": groups})
        return
    say(one_line(f"{message.queue}/{message.partition} #{message.offset}"))
    show_table(("field", "value"), _fields(message))
    headers = ("group", "status", "required", "state")
    show_table(headers, ((each.group, each.status, "yes" if each.required else "no", each.state) for each in groups))


def _fields(message: StoredMessage) -> list[tuple[Cell, ...]]:
    given = {
        "pushed": f"{message.created_at.astimezone():%Y-%m-%d %H:%M:%S}",
        "payload": DELETED if message.deleted else compact(message.payload),
        "headers": compact(message.headers) if message.headers else None,
        "transaction id": message.transaction_id,
        "trace id": str(message.trace_id) if message.trace_id else None,
        "producer": message.producer,
    }
    return [(name, text) for name, text in given.items() if text is not None]


def _find(mq: Skep, message_id: UUID) -> StoredMessage:
    found = mq.find(message_id)
    if found is None:
        raise NotFound(f"there is no message {message_id}", hint="`skep message list QUEUE` shows those of a queue")
    return found


def delete(config: Config, message_id: UUID, *, yes: bool, as_json: bool) -> None:
    with connect(config) as mq:
        message = _find(mq, message_id)
        place = one_line(f"{message.queue}/{message.partition} #{message.offset}")
        if not yes:
            confirm(f"Delete the content of {place}?")
        deleted = mq.delete_message(message_id)
    if as_json:
        show_json({"id": message_id, "deleted": deleted})
    else:
        say(f"{place} deleted" if deleted else f"{place} was deleted already")
