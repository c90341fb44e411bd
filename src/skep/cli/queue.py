"""`skep queue`: queues, their options and sizes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from skep import Skep
from skep.cli.ask import confirm
from skep.cli.connect import connect
from skep.cli.show import SHOWN_LANES, Cell, age, as_dict, compact, counted, one_line, say, show_json, show_table
from skep.config import Config
from skep.errors import InvalidArgument, NotFound
from skep.message import MessageStatus, Partition, QueueStatus

LABELS = ("namespace", "task")


def list_queues(config: Config, *, as_json: bool) -> None:
    with connect(config) as mq:
        queues = mq.queues()
    if as_json:
        show_json(queues)
        return
    headers = ("queue", "partitions", "messages", "delayed", "last push", "groups", "dead letters")
    show_table(headers, (_row(queue) for queue in queues))


def _row(queue: QueueStatus) -> tuple[Any, ...]:
    sizes = queue.name, queue.partitions, queue.messages, queue.delayed
    return *sizes, queue.last_created_at, queue.groups, queue.dead_letters


def show(config: Config, name: str, *, limit: int | None, as_json: bool) -> None:
    with connect(config) as mq:
        queue = mq.queue(name).status()
        lanes = mq.queue(name).partitions(limit=limit or (None if as_json else SHOWN_LANES))
    if as_json:
        show_json(as_dict(queue) | {"lanes": lanes})
        return
    _show_status(queue)
    _show_lanes(queue, lanes)


def _show_status(queue: QueueStatus) -> None:
    labels = {label: getattr(queue, label) for label in LABELS if getattr(queue, label)}
    say(f"queue {one_line(queue.name)}, made {age(queue.created_at)} ago")
    sizes = {"partition": queue.partitions, "message": queue.messages, "group": queue.groups}
    sizes |= {"dead letter": queue.dead_letters} | ({"delayed message": queue.delayed} if queue.delayed else {})
    say(", ".join(counted(number, noun) for noun, number in sizes.items()))
    show_table(("option", "value"), ((key, _text(value)) for key, value in (labels | queue.options).items()))


def _text(value: object) -> str | None:
    return value if isinstance(value, str | None) else compact(value)


def _show_lanes(queue: QueueStatus, lanes: Sequence[Partition]) -> None:
    headers = ("partition", "messages", "offsets", "last push")
    show_table(headers, ((lane.partition, lane.messages, _offsets(lane), lane.last_created_at) for lane in lanes))
    if len(lanes) < queue.partitions:
        say(f"and {counted(queue.partitions - len(lanes), 'more partition')}; --limit {queue.partitions} shows all")


def _offsets(lane: Partition) -> str | None:
    return f"{lane.first_offset} to {lane.last_offset}" if lane.messages else None


def configure(config: Config, name: str, settings: Sequence[str], *, as_json: bool) -> None:
    options = parse_options(settings)
    labels = {label: options.pop(label) for label in LABELS if label in options}
    with connect(config) as mq:
        mq.configure_queue(name, options, **{key: str(value) for key, value in labels.items()})
        queue = mq.queue(name).status()
    if as_json:
        show_json(queue)
    else:
        say(f"queue {one_line(name)}: {_changes(labels | options) or 'nothing changed'}")


def parse_options(settings: Sequence[str]) -> dict[str, Any]:
    """Read KEY=VALUE; a value is JSON if it can be read as such (60, null), else a text (retry)."""
    options: dict[str, Any] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not (key and separator):
            raise InvalidArgument(
                f'"{one_line(setting)}" is not an option', hint="options are KEY=VALUE: lease_time=60"
            )
        options[key] = _value(value) if key not in LABELS else value
    return options


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _changes(options: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={one_line(_text(value) or 'null')}" for key, value in options.items())


def fanout(config: Config, name: str, partition: str | None, *, start: int, limit: int, as_json: bool) -> None:
    """Show for each message who requires it and who still owes it; lane by lane, up to the limit."""
    found: list[tuple[str, MessageStatus]] = []
    with connect(config) as mq:
        for lane in _partitions(mq, name, partition):
            statuses = mq.message_status(name, lane, start, limit - len(found))
            found.extend((lane, status) for status in statuses)
            if len(found) == limit:
                break
    if as_json:
        show_json([{"partition": lane} | as_dict(status) for lane, status in found])
        return
    headers = ("partition", "offset", "pushed", "required", "completed", "owed by")
    show_table(headers, (_fanout_row(lane, status) for lane, status in found))


def _partitions(mq: Skep, name: str, partition: str | None) -> list[str]:
    mq.queue(name).status()  # raises if there is none
    names = [lane.partition for lane in mq.partitions(name)]
    if partition is not None and partition not in names:
        hint = f"`skep queue show {name}` shows all"
        raise NotFound(f'there is no partition "{one_line(partition)}" in queue "{name}"', hint=hint)
    return names if partition is None else [partition]


def _fanout_row(lane: str, status: MessageStatus) -> tuple[Cell, ...]:
    numbers = (status.required_consumer_groups, status.completed_consumer_groups)
    return lane, str(status.offset), status.created_at, *numbers, ", ".join(status.pending_groups) or None


def delete(config: Config, name: str, partition: str | None, *, yes: bool, as_json: bool) -> None:
    with connect(config) as mq:
        what, size = _described(mq, name, partition)
        if not yes:
            confirm(f"Delete {what} with {size}?")
        deleted = mq.delete_queue(name) if partition is None else mq.delete_partition(name, partition)
    if as_json:
        show_json({"queue": name, "partition": partition, "deleted": deleted})
    else:
        say(f"{what} deleted")


def clear(config: Config, name: str, partition: str | None, *, yes: bool, as_json: bool) -> None:
    with connect(config) as mq:
        what, size = _described(mq, name, partition)
        if not yes:
            confirm(f"Delete all messages of {what}, {size}?")
        cleared = mq.clear_queue(name, partition)
    if as_json:
        show_json({"queue": name, "partition": partition, "cleared": cleared})
    else:
        say(f"{what} cleared, {counted(cleared, 'message')} deleted")


def _described(mq: Skep, name: str, partition: str | None) -> tuple[str, str]:
    """Say what it is, and how much is in it."""
    if partition is None:
        queue = mq.queue(name).status()
        lanes = counted(queue.partitions, "partition")
        return one_line(f"queue {name}"), f"{counted(queue.messages, 'message')} in {lanes}"
    _partitions(mq, name, partition)
    messages = next(lane.messages for lane in mq.partitions(name) if lane.partition == partition)
    return one_line(f"partition {name}/{partition}"), counted(messages, "message")
