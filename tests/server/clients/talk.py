"""What every conversation starts with: a client of the installed version, and names that are its own."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

from queen import Queen

NAME, *URLS = sys.argv[1:]
IS_0_15 = version("queen-mq").startswith("0.15.")

Conversation = Callable[[Queen], Awaitable[dict[str, Any]]]


def name(suffix: str) -> str:
    return f"{NAME}-{suffix}"


def tell(conversation: Conversation) -> None:
    """Have the conversation and print what it saw, in one line after all that the client prints."""
    print(json.dumps(asyncio.run(_have(conversation))))


async def _have(conversation: Conversation) -> dict[str, Any]:
    async with Queen(URLS[0]) as queen:
        return await conversation(queen)


async def pop(queen: Queen, queue: str, *, batch: int = 10, group: str | None = None, **options: Any) -> list[Any]:
    """Pop what is there now, from one partition; `options` are named as the builder's methods are."""
    builder = queen.queue(queue).batch(batch).partitions(1).wait(enabled=False)
    for option, value in {"group": group, **options}.items():
        if value is not None:
            builder = getattr(builder, option)(value)
    return await builder.pop()


async def pop_again(queen: Queen, queue: str, batch: int = 10) -> list[Any]:
    """Pop what comes again after a failure: that may take as long as the delay between retries."""
    return await queen.queue(queue).batch(batch).partitions(1).timeout_millis(10_000).pop()


async def take(queen: Queen, queue: str, group: str, **options: Any) -> list[Any]:
    """Pop and ack for a group; return the payloads."""
    messages = await pop(queen, queue, group=group, **options)
    if messages:
        assert (await queen.ack(messages, context={"group": group}))["success"], "the ack is taken"
    return data(messages)


async def push(queen: Queen, queue: str, *payloads: Any) -> None:
    await queen.queue(queue).push([{"data": payload} for payload in payloads])


def data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


async def error_of(operation: Awaitable[Any]) -> str | None:
    """Return the text of what the client raises, or None."""
    try:
        await operation
    except Exception as error:  # noqa: BLE001  the clients raise bare exceptions
        return str(error)
    return None
