"""One story for both faces of the client. The synchronous one never really waits, so it needs no event loop."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


async def settle(answer: Any) -> Any:
    """Return the answer of either face."""
    return await answer if inspect.isawaitable(answer) else answer


@asynccontextmanager
async def either(context: Any) -> AsyncGenerator[Any]:
    """Enter a context manager of either face."""
    if hasattr(context, "__aenter__"):
        async with context as entered:
            yield entered
    else:
        with context as entered:
            yield entered


async def each(items: Any) -> AsyncGenerator[Any]:
    """Iterate over what either face gives."""
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def play(story: Coroutine[Any, Any, None], *, with_loop: bool) -> None:
    """Tell a story to the end."""
    if with_loop:
        asyncio.run(story)
        return
    try:
        story.send(None)
    except StopIteration:
        return
    raise AssertionError("a synchronous client has waited for an event loop")
