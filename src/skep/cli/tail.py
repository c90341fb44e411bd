"""`skep tail`: follow a queue with a temporary group, so that no other group misses a message."""

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from skep.cli.connect import connect_async
from skep.cli.options import DatabaseUrl, DataDir, JsonLines, Partition, Queue, choose
from skep.cli.show import as_dict, clock, compact, error_console, message_line, note, say
from skep.cli.signals import run_until_stopped
from skep.config import Config
from skep.errors import InvalidArgument, SkepError
from skep.message import Message

if TYPE_CHECKING:
    from skep import AsyncSkep

MODES = {"beginning": "all", "new": "new", "now": "new"}
LEASE_TIME = 86400  # a pager may block the output for long, and the group has no other consumer


@dataclass(frozen=True, slots=True)
class TailOptions:
    """The options of `skep tail`."""

    queue: str
    partition: str | None
    start: str
    limit: int | None
    as_json: bool


def tail(
    queue: Queue,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="new|beginning|TIME|OFFSET",
            help="Start position.",
            autocompletion=choose("new", "beginning"),
        ),
    ] = "new",
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after this number of messages. Default: at Ctrl-C.", show_default=False),
    ] = None,
    partition: Partition = None,
    as_json: JsonLines = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Follow a queue without consuming it."""
    config = Config.load_client(database_url, data_dir)
    run_until_stopped(_tail(config, TailOptions(queue, partition, start, limit, as_json)))


async def _tail(config: Config, options: TailOptions) -> None:
    group = f"tail-{uuid4().hex}"
    async with connect_async(config) as mq:
        await _check_semantics(mq, options.queue)
        try:
            await _subscribe(mq, group, options)
            await _follow(mq, group, options)
        finally:
            await _delete(mq, group)


async def _check_semantics(mq: "AsyncSkep", queue: str) -> None:
    status = await mq.queues(queue)
    if status and status[0].options["semantics"] == "queue":
        message = f'cannot follow queue "{queue}": with the semantics "queue", reading a message consumes it'
        raise InvalidArgument(message, hint="use `skep pop`")
    if error_console().is_terminal:
        unknown = "" if status else ", which does not exist yet"
        note(f"Following {queue}{unknown}. Ctrl-C stops.")


async def _subscribe(mq: "AsyncSkep", group: str, options: TailOptions) -> None:
    mode = MODES.get(options.start.lower())
    start_from = None if mode else options.start
    await mq.subscribe(group, options.queue, partition=options.partition, mode=mode, start_from=start_from)


async def _delete(mq: "AsyncSkep", group: str) -> None:
    try:
        await mq.delete_group(group)
    except SkepError as error:
        error.hint = f"the temporary group still exists; delete it later with: skep group delete {group}"
        raise


async def _follow(mq: "AsyncSkep", group: str, options: TailOptions) -> None:
    left = options.limit
    messages = mq.queue(options.queue).consume(group=group, partition=options.partition, lease_time=LEASE_TIME)
    async with aclosing(messages) as batches:
        async for batch in batches:
            for message in batch[:left]:
                _show(message, as_json=options.as_json)
            if left is not None:
                left -= min(left, len(batch))
                if left == 0:
                    return


def _show(message: Message, *, as_json: bool) -> None:
    if as_json:
        print(compact(as_dict(message)), flush=True)
    else:
        say(message_line(message, clock(message.created_at)))
