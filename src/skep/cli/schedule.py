"""`skep schedule`: messages that are pushed periodically."""

from typing import Annotated, Literal

import typer

from skep.cli.connect import connect
from skep.cli.options import DatabaseUrl, DataDir, Headers, Json, OptionalQueue, Queue
from skep.cli.push import parse_headers, parse_payload
from skep.cli.show import Cell, clock, one_line, say, show_json, show_table
from skep.errors import NotFound
from skep.message import DEFAULT_PARTITION
from skep.schedule import Schedule

schedule_app = typer.Typer(help="Manage schedules, which push messages periodically.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The name of the schedule.", show_default=False)]


@schedule_app.command("list")
def list_schedules(
    queue: OptionalQueue = None, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None
) -> None:
    """List schedules."""
    with connect(database_url, data_dir) as mq:
        found = mq.schedules(queue)
    if as_json:
        show_json(found)
        return
    headers = ("schedule", "cron", "time zone", "queue", "partition", "next", "last", "state")
    show_table(headers, (_row(schedule) for schedule in found))


def _row(schedule: Schedule) -> tuple[Cell, ...]:
    state = "paused" if schedule.paused else f"refused: {schedule.error}" if schedule.error else "active"
    next_at = None if schedule.paused else clock(schedule.next_at)
    last_at = None if schedule.last_at is None else clock(schedule.last_at)
    names = schedule.name, schedule.cron, schedule.time_zone, schedule.queue, schedule.partition
    return *names, next_at, last_at, state


@schedule_app.command("set")
def set_schedule(
    name: Name,
    cron: Annotated[str, typer.Argument(help="'*/5 * * * *', '0 9 * * mon-fri', @daily", show_default=False)],
    queue: Queue,
    payload: Annotated[str, typer.Argument(help="The payload of its messages, as JSON.")] = "null",
    partition: Annotated[str, typer.Option(help="The partition of its messages.")] = DEFAULT_PARTITION,
    header: Headers = None,
    time_zone: Annotated[str, typer.Option(help="The time zone of the cron expression.")] = "UTC",
    missed: Annotated[Literal["skip", "one", "all"], typer.Option(help="Which missed ticks to push later.")] = "one",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Create a schedule, or change the one with this name."""
    value = parse_payload("the payload", payload)
    with connect(database_url, data_dir) as mq:
        schedule = mq.schedule(
            name,
            cron,
            queue,
            value,
            partition=partition,
            headers=parse_headers(header or []),
            time_zone=time_zone,
            missed=missed,
        )
    _show(schedule, as_json=as_json)


@schedule_app.command()
def pause(name: Name, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Pause a schedule until it is resumed."""
    with connect(database_url, data_dir) as mq:
        _show(mq.pause_schedule(name), as_json=as_json)


@schedule_app.command()
def resume(name: Name, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Resume a paused schedule at its next tick."""
    with connect(database_url, data_dir) as mq:
        _show(mq.resume_schedule(name), as_json=as_json)


def _show(schedule: Schedule, *, as_json: bool) -> None:
    if as_json:
        show_json(schedule)
    elif schedule.paused:
        say(f"{one_line(schedule.name)} is paused")
    else:
        say(f"{one_line(schedule.name)}: next message to {one_line(schedule.queue)} at {clock(schedule.next_at)}")


@schedule_app.command()
def delete(name: Name, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Delete a schedule."""
    with connect(database_url, data_dir) as mq:
        deleted = mq.delete_schedule(name)
    if as_json:
        show_json({"name": name, "deleted": deleted})
    elif not deleted:
        raise NotFound(f'there is no schedule "{name}"', hint="`skep schedule list` shows all")
    else:
        say(f"{one_line(name)} deleted")
