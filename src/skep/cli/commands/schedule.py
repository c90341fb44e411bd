"""`skep schedule`: its commands."""

from typing import Annotated, Literal

import typer

from skep.cli.options import DatabaseUrl, DataDir, Json, Queue, SomeQueue
from skep.config import Config
from skep.message import DEFAULT_PARTITION

schedule_app = typer.Typer(help="Schedules: messages that are pushed periodically.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The name of the schedule.", show_default=False)]


@schedule_app.command("list")
def schedule_list(
    queue: SomeQueue = None, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None
) -> None:
    """List schedules."""
    from skep.cli.schedule import list_schedules

    list_schedules(Config.load_client(database_url, data_dir), queue, as_json=as_json)


@schedule_app.command("set")
def schedule_set(
    name: Name,
    cron: Annotated[str, typer.Argument(help="'*/5 * * * *', '0 9 * * mon-fri', @daily", show_default=False)],
    queue: Queue,
    payload: Annotated[str, typer.Argument(help="The payload of its messages, as JSON.")] = "null",
    partition: Annotated[str, typer.Option(help="The partition of its messages.")] = DEFAULT_PARTITION,
    header: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A header; may be repeated.", show_default=False)
    ] = None,
    time_zone: Annotated[str, typer.Option(help="The time zone of the cron expression.")] = "UTC",
    missed: Annotated[
        Literal["skip", "one", "all"], typer.Option(help="Ticks to push that nobody pushed in time.")
    ] = "one",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Create a schedule, or change the one with this name."""
    from skep.cli.schedule import Wanted, set_schedule

    wanted = Wanted(name, cron, queue, payload, partition, header or [], time_zone, missed)
    set_schedule(Config.load_client(database_url, data_dir), wanted, as_json=as_json)


@schedule_app.command("pause")
def schedule_pause(
    name: Name, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None
) -> None:
    """Stop a schedule until it is resumed."""
    from skep.cli.schedule import pause

    pause(Config.load_client(database_url, data_dir), name, as_json=as_json)


@schedule_app.command("resume")
def schedule_resume(
    name: Name, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None
) -> None:
    """Let a paused schedule go on with its next tick."""
    from skep.cli.schedule import resume

    resume(Config.load_client(database_url, data_dir), name, as_json=as_json)


@schedule_app.command("delete")
def schedule_delete(
    name: Name, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None
) -> None:
    """Delete a schedule."""
    from skep.cli.schedule import delete

    delete(Config.load_client(database_url, data_dir), name, as_json=as_json)
