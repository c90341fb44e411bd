"""`skep top`: watch rates, lags and dead letters of all queues and groups."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from skep.cli.connect import connect_async, database_name
from skep.cli.options import DatabaseUrl, DataDir
from skep.cli.show import compact, one_line, say, show_json, show_table
from skep.cli.signals import run_until_stopped
from skep.config import Config
from skep.errors import SkepError

if TYPE_CHECKING:
    from skep import AsyncSkep
    from skep.cli.output import Output
    from skep.cli.snapshot import Snapshot

TRENDS = 100  # more groups than a terminal has lines
TIMEOUT = 5.0  # seconds until a database that does not respond is reported
MIN_SAMPLE_AGE = 1.0  # seconds; several processes share a sample that is younger


def top(
    once: Annotated[bool, typer.Option("--once", help="Show one snapshot and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two snapshots.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per snapshot and line.")] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Watch rates, lags and dead letters of all queues and groups."""
    from skep.cli.output import Output

    config = Config.load_client(database_url, data_dir)
    output = Output()
    if as_json and not once:
        run_until_stopped(_print_lines(config, interval))
    elif once or not output.is_terminal:
        _show(asyncio.run(_snapshot_once(config)), as_json=as_json)
    else:
        run_until_stopped(_draw(config, interval, output))


async def _snapshot_once(config: Config) -> "Snapshot":
    async with connect_async(config) as mq:
        return await _snapshot(mq, MIN_SAMPLE_AGE)


def _show(snapshot: "Snapshot", *, as_json: bool) -> None:
    from skep.cli.snapshot import GROUP_HEADERS, QUEUE_HEADERS, group_cells, overview, queue_cells, to_json

    if as_json:
        show_json(to_json(snapshot))
        return
    say(overview(snapshot))
    show_table(QUEUE_HEADERS, map(queue_cells, snapshot.queues))
    show_table(GROUP_HEADERS, map(group_cells, snapshot.groups))


async def _snapshot(mq: "AsyncSkep", interval: float) -> "Snapshot":
    from skep.cli.snapshot import summarize

    fresh = timedelta(seconds=max(interval * 0.9, MIN_SAMPLE_AGE))
    return summarize(await mq.current_progress(trends=TRENDS, not_within=fresh), await mq.oldest_transaction())


async def _print_lines(config: Config, interval: float) -> None:
    from skep.cli.snapshot import to_json

    async with connect_async(config) as mq:
        while True:
            print(compact(to_json(await _snapshot(mq, interval))), flush=True)
            await asyncio.sleep(interval)


async def _draw(config: Config, interval: float, output: "Output") -> None:
    """Draw until Ctrl-C or q. If the database does not respond, try again."""
    from skep.cli.full_screen import FullScreen
    from skep.cli.snapshot import TopScreen

    this = asyncio.current_task()
    async with connect_async(config, timeout_s=TIMEOUT) as mq:
        snapshot, problem = await _snapshot(mq, interval), None
        with FullScreen(output, this.cancel if this else lambda: None) as screen:
            while True:
                time = f"{datetime.now(UTC).astimezone():%H:%M:%S}"
                title = f"skep top  {one_line(database_name(config))}  {time}  q quits"
                screen.draw(TopScreen(snapshot, title, problem))
                await asyncio.sleep(interval)
                try:
                    snapshot, problem = await _snapshot(mq, interval), None
                except SkepError as error:
                    if not error.retryable:
                        raise
                    problem = f"the database does not respond, trying again: {error}"
