"""`skep schedule`: messages that are pushed periodically."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from skep.cli.connect import connect
from skep.cli.push import parse_headers, parse_payload
from skep.cli.show import Cell, one_line, say, show_json, show_table
from skep.config import Config
from skep.errors import NotFound
from skep.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Wanted:
    """A schedule as it is given on the command line."""

    name: str
    cron: str
    queue: str
    payload: str
    partition: str
    headers: Sequence[str]
    time_zone: str
    missed: Literal["skip", "one", "all"]


def list_schedules(config: Config, queue: str | None, *, as_json: bool) -> None:
    with connect(config) as mq:
        found = mq.schedules(queue)
    if as_json:
        show_json(found)
        return
    headers = ("schedule", "cron", "time zone", "queue", "partition", "next", "last", "state")
    show_table(headers, (_row(schedule) for schedule in found))


def _row(schedule: Schedule) -> tuple[Cell, ...]:
    state = "paused" if schedule.paused else f"refused: {schedule.error}" if schedule.error else "active"
    place = schedule.name, schedule.cron, schedule.time_zone, schedule.queue, schedule.partition
    return *place, None if schedule.paused else _clock(schedule.next_at), _clock(schedule.last_at), state


def _clock(instant: datetime | None) -> str | None:
    return None if instant is None else f"{instant.astimezone():%Y-%m-%d %H:%M:%S}"


def set_schedule(config: Config, wanted: Wanted, *, as_json: bool) -> None:
    payload = parse_payload("the payload", wanted.payload)
    with connect(config) as mq:
        made = mq.schedule(
            wanted.name,
            wanted.cron,
            wanted.queue,
            payload,
            partition=wanted.partition,
            headers=parse_headers(wanted.headers),
            time_zone=wanted.time_zone,
            missed=wanted.missed,
        )
    _show(made, as_json=as_json)


def pause(config: Config, name: str, *, as_json: bool) -> None:
    with connect(config) as mq:
        changed = mq.pause_schedule(name)
    _show(changed, as_json=as_json)


def resume(config: Config, name: str, *, as_json: bool) -> None:
    with connect(config) as mq:
        changed = mq.resume_schedule(name)
    _show(changed, as_json=as_json)


def _show(schedule: Schedule, *, as_json: bool) -> None:
    if as_json:
        show_json(schedule)
    elif schedule.paused:
        say(f"{one_line(schedule.name)} is paused")
    else:
        say(f"{one_line(schedule.name)}: next message to {one_line(schedule.queue)} at {_clock(schedule.next_at)}")


def delete(config: Config, name: str, *, as_json: bool) -> None:
    with connect(config) as mq:
        deleted = mq.delete_schedule(name)
    if as_json:
        show_json({"name": name, "deleted": deleted})
    elif not deleted:
        raise NotFound(f'there is no schedule "{name}"', hint="`skep schedule list` shows those that exist")
    else:
        say(f"{one_line(name)} deleted")
