"""Run one scenario with both clients. The synchronous one never awaits anything, so it needs no event loop."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


async def settle(result: Any) -> Any:
    """Return the result of a call of either client."""
    return await result if inspect.isawaitable(result) else result


@asynccontextmanager
async def either(context: Any) -> AsyncGenerator[Any]:
    """Enter a context manager of either client."""
    if hasattr(context, "__aenter__"):
        async with context as entered:
            yield entered
    else:
        with context as entered:
            yield entered


async def each(items: Any) -> AsyncGenerator[Any]:
    """Iterate over an iterator of either client."""
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def play(story: Coroutine[Any, Any, None], *, with_loop: bool) -> None:
    """Run a scenario to its end."""
    if with_loop:
        asyncio.run(story)
        return
    try:
        story.send(None)
    except StopIteration:
        return
    raise AssertionError("a synchronous client has waited for an event loop")
