"""`skep top`: what everything is doing now, over and over."""

import asyncio
from datetime import UTC, datetime, timedelta

from skep import AsyncSkep
from skep.cli.connect import client, place
from skep.cli.show import Output, compact, one_line, say, show_json, show_table
from skep.cli.standing import (
    GROUP_HEADERS,
    QUEUE_HEADERS,
    Screen,
    Standing,
    as_json,
    group_cells,
    overview,
    queue_cells,
    stand,
)
from skep.cli.stopping import run_until_stopped
from skep.cli.terminal import WholeTerminal
from skep.config import Config
from skep.errors import SkepError

TRENDS = 100  # more groups than a terminal has lines
PATIENCE = 5.0  # seconds before a database that does not answer is said
LEAST_AGE = 1.0  # seconds: several who look at once share a sample


def run(config: Config, *, once: bool, interval: float, json: bool) -> None:
    """Without a terminal there is nothing to draw on: then it is one look."""
    terminal = Output()
    if json and not once:
        run_until_stopped(_print_lines(config, interval))
    elif once or not terminal.is_terminal:
        _show(asyncio.run(_once(config)), json=json)
    else:
        run_until_stopped(_draw(config, interval, terminal))


async def _once(config: Config) -> Standing:
    async with client(config) as mq:
        return await _look(mq, LEAST_AGE)


def _show(standing: Standing, *, json: bool) -> None:
    if json:
        show_json(as_json(standing))
        return
    say(overview(standing))
    show_table(QUEUE_HEADERS, map(queue_cells, standing.queues))
    show_table(GROUP_HEADERS, map(group_cells, standing.groups))


async def _look(mq: AsyncSkep, interval: float) -> Standing:
    fresh = timedelta(seconds=max(interval * 0.9, LEAST_AGE))
    return stand(await mq.current_progress(trends=TRENDS, not_within=fresh), await mq.oldest_transaction())


async def _print_lines(config: Config, interval: float) -> None:
    async with client(config) as mq:
        while True:
            print(compact(as_json(await _look(mq, interval))), flush=True)
            await asyncio.sleep(interval)


async def _draw(config: Config, interval: float, terminal: Output) -> None:
    """Draw until Ctrl-C or q. A database that does not answer is asked again."""
    this = asyncio.current_task()
    async with client(config, patience=PATIENCE) as mq:
        standing, trouble = await _look(mq, interval), None
        with WholeTerminal(terminal, this.cancel if this else lambda: None) as screen:
            while True:
                title = f"skep top  {one_line(place(config))}  {datetime.now(UTC).astimezone():%H:%M:%S}  q quits"
                screen.draw(Screen(standing, title, trouble))
                await asyncio.sleep(interval)
                try:
                    standing, trouble = await _look(mq, interval), None
                except SkepError as error:
                    if not error.retryable:
                        raise
                    trouble = f"no answer from the database, trying again: {error}"
