"""`skep queue`: queues, their options and sizes. Its commands `retention` and `history` are in those modules."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skep.cli.confirm import confirm
from skep.cli.connect import connect
from skep.cli.options import (
    DatabaseUrl,
    DataDir,
    FirstOffset,
    Json,
    Limit,
    MessageLimit,
    Partition,
    Queue,
    Yes,
)
from skep.cli.show import SHOWN_PARTITIONS, Cell, age, as_dict, compact, counted, one_line, say, show_json, show_table
from skep.errors import InvalidArgument, NotFound
from skep.message import MessageStatus, QueueStatus
from skep.message import Partition as StoredPartition

if TYPE_CHECKING:
    from skep import Skep

LABELS = ("namespace", "task")

queue_app = typer.Typer(help="Manage queues: options, sizes, fan-out and retention.", no_args_is_help=True)


@queue_app.command("list")
def list_queues(as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """List the queues."""
    with connect(database_url, data_dir) as mq:
        queues = mq.queues()
    if as_json:
        show_json(queues)
        return
    headers = ("queue", "partitions", "messages", "delayed", "last push", "groups", "dead letters")
    show_table(headers, (_row(queue) for queue in queues))


def _row(queue: QueueStatus) -> tuple[Cell, ...]:
    sizes = queue.name, queue.partitions, queue.messages, queue.delayed
    return *sizes, queue.last_created_at, queue.groups, queue.dead_letters


@queue_app.command()
def show(
    queue: Queue,
    limit: Limit = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show the options of a queue, and the sizes of its partitions."""
    with connect(database_url, data_dir) as mq:
        status = mq.queue(queue).status()
        partitions = mq.queue(queue).partitions(limit=limit or (None if as_json else SHOWN_PARTITIONS))
    if as_json:
        show_json(as_dict(status) | {"partition_list": partitions})
        return
    _show_status(status)
    _show_partitions(status, partitions)


def _show_status(queue: QueueStatus) -> None:
    labels = {label: getattr(queue, label) for label in LABELS if getattr(queue, label)}
    say(f"queue {one_line(queue.name)}, created {age(queue.created_at)} ago")
    sizes = {"partition": queue.partitions, "message": queue.messages, "group": queue.groups}
    sizes |= {"dead letter": queue.dead_letters} | ({"delayed message": queue.delayed} if queue.delayed else {})
    say(", ".join(counted(number, noun) for noun, number in sizes.items()))
    show_table(("option", "value"), ((key, _text(value)) for key, value in (labels | queue.options).items()))


def _text(value: object) -> str | None:
    return value if isinstance(value, str | None) else compact(value)


def _show_partitions(queue: QueueStatus, partitions: Sequence[StoredPartition]) -> None:
    headers = ("partition", "messages", "offsets", "last push")
    show_table(headers, ((each.partition, each.messages, _offsets(each), each.last_created_at) for each in partitions))
    if len(partitions) < queue.partitions:
        more = counted(queue.partitions - len(partitions), "more partition")
        say(f"and {more}; --limit {queue.partitions} shows all")


def _offsets(partition: StoredPartition) -> str | None:
    return f"{partition.first_offset} to {partition.last_offset}" if partition.messages else None


@queue_app.command()
def configure(
    queue: Queue,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="lease_time=60, namespace=shop, …", show_default=False),
    ] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Create a queue, or change its options. The value null resets an option to its default."""
    options = parse_options(settings or [])
    labels = {label: options.pop(label) for label in LABELS if label in options}
    with connect(database_url, data_dir) as mq:
        mq.configure_queue(queue, options, **{key: str(value) for key, value in labels.items()})
        status = mq.queue(queue).status()
    if as_json:
        show_json(status)
    else:
        say(f"queue {one_line(queue)}: {_changes(labels | options) or 'nothing changed'}")


def parse_options(settings: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE. A value that is valid JSON is read as JSON (60, null), any other one is a string (retry)."""
    options: dict[str, Any] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not (key and separator):
            hint = "write options as KEY=VALUE: lease_time=60"
            raise InvalidArgument(f'"{one_line(setting)}" is not an option', hint=hint)
        options[key] = _value(value) if key not in LABELS else value
    return options


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _changes(options: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={one_line(_text(value) or 'null')}" for key, value in options.items())


@queue_app.command()
def delete(
    queue: Queue,
    partition: Partition = None,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete a queue or one partition of it, with all messages. Its dead letters stay."""
    with connect(database_url, data_dir) as mq:
        what, size = _describe(mq, queue, partition)
        if not yes:
            confirm(f"Delete {what} with {size}?")
        deleted = mq.delete_queue(queue) if partition is None else mq.delete_partition(queue, partition)
    if as_json:
        show_json({"queue": queue, "partition": partition, "deleted": deleted})
    else:
        say(f"{what} deleted")


@queue_app.command()
def clear(
    queue: Queue,
    partition: Partition = None,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete all messages currently in the queue. The queue, its options and its groups stay."""
    with connect(database_url, data_dir) as mq:
        what, size = _describe(mq, queue, partition)
        if not yes:
            confirm(f"Delete all messages of {what}, {size}?")
        cleared = mq.clear_queue(queue, partition)
    if as_json:
        show_json({"queue": queue, "partition": partition, "cleared": cleared})
    else:
        say(f"{what} cleared, {counted(cleared, 'message')} deleted")


def _describe(mq: "Skep", queue: str, partition: str | None) -> tuple[str, str]:
    """Return the name of the queue or partition, and its size."""
    if partition is None:
        status = mq.queue(queue).status()
        size = f"{counted(status.messages, 'message')} in {counted(status.partitions, 'partition')}"
        return one_line(f"queue {queue}"), size
    _partition_names(mq, queue, partition)
    messages = next(each.messages for each in mq.partitions(queue) if each.partition == partition)
    return one_line(f"partition {queue}/{partition}"), counted(messages, "message")


@queue_app.command()
def fanout(
    queue: Queue,
    partition: Partition = None,
    start: FirstOffset = 0,
    limit: MessageLimit = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show for each message how many groups require it, how many have completed it, and which are pending."""
    found: list[tuple[str, MessageStatus]] = []
    with connect(database_url, data_dir) as mq:
        for name in _partition_names(mq, queue, partition):
            statuses = mq.message_status(queue, name, start, limit - len(found))
            found.extend((name, status) for status in statuses)
            if len(found) == limit:
                break
    if as_json:
        show_json([{"partition": name} | as_dict(status) for name, status in found])
        return
    headers = ("partition", "offset", "pushed", "required", "completed", "pending groups")
    show_table(headers, (_fanout_row(name, status) for name, status in found))


def _partition_names(mq: "Skep", queue: str, partition: str | None) -> list[str]:
    mq.queue(queue).status()  # raises NotFound if the queue does not exist
    names = [each.partition for each in mq.partitions(queue)]
    if partition is not None and partition not in names:
        hint = f"`skep queue show {queue}` shows all"
        raise NotFound(f'there is no partition "{one_line(partition)}" in queue "{queue}"', hint=hint)
    return names if partition is None else [partition]


def _fanout_row(partition: str, status: MessageStatus) -> tuple[Cell, ...]:
    numbers = (status.required_consumer_groups, status.completed_consumer_groups)
    return partition, str(status.offset), status.created_at, *numbers, ", ".join(status.pending_groups) or None
