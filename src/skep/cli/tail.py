"""`skep tail`: print messages as they come. A group of its own reads them, so that no other group misses any."""

from contextlib import aclosing
from dataclasses import dataclass
from uuid import uuid4

from skep import AsyncSkep
from skep.cli.connect import client
from skep.cli.report import errors
from skep.cli.show import as_dict, compact, message_line, say
from skep.cli.stopping import run_until_stopped
from skep.config import Config
from skep.errors import InvalidArgument, SkepError
from skep.message import Message

MODES = {"beginning": "all", "new": "new", "now": "new"}
LEASE_TIME = 86400  # a pager may keep us waiting for long, and no other consumer of this group waits for its messages


@dataclass(frozen=True, slots=True)
class Tail:
    """What to follow, and how."""

    queue: str
    partition: str | None
    start: str
    limit: int | None
    as_json: bool


def run(config: Config, tail: Tail) -> None:
    run_until_stopped(_tail(config, tail))


async def _tail(config: Config, tail: Tail) -> None:
    group = f"tail-{uuid4().hex}"
    async with client(config) as mq:
        await _refuse_shared_cursor(mq, tail.queue)
        try:
            await _subscribe(mq, group, tail)
            await _follow(mq, group, tail)
        finally:
            await _delete(mq, group)


async def _refuse_shared_cursor(mq: AsyncSkep, queue: str) -> None:
    status = await mq.queues(queue)
    if status and status[0].options["semantics"] == "queue":
        message = f'queue "{queue}" has the semantics "queue": to read a message is to take it from the others'
        raise InvalidArgument(message, hint="`skep pop` takes messages")
    if errors.is_terminal:
        unknown = "" if status else ", which does not exist yet"
        errors.print(f"Following {queue}{unknown}. Ctrl-C stops.", style="dim", markup=False)


async def _subscribe(mq: AsyncSkep, group: str, tail: Tail) -> None:
    mode = MODES.get(tail.start.lower())
    start_from = None if mode else tail.start
    await mq.subscribe(group, tail.queue, partition=tail.partition, mode=mode, start_from=start_from)


async def _delete(mq: AsyncSkep, group: str) -> None:
    try:
        await mq.delete_group(group)
    except SkepError as error:
        error.hint = f"its group is left behind; when the database is back: skep group delete {group}"
        raise


async def _follow(mq: AsyncSkep, group: str, tail: Tail) -> None:
    left = tail.limit
    messages = mq.queue(tail.queue).consume(group=group, partition=tail.partition, lease_time=LEASE_TIME)
    async with aclosing(messages) as batches:
        async for batch in batches:
            for message in batch[:left]:
                _show(message, as_json=tail.as_json)
            if left is not None:
                left -= min(left, len(batch))
                if left == 0:
                    return


def _show(message: Message, *, as_json: bool) -> None:
    if as_json:
        print(compact(as_dict(message)), flush=True)
    else:
        say(message_line(message, f"{message.created_at.astimezone():%Y-%m-%d %H:%M:%S}"))
