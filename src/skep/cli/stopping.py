"""Commands that run until they are stopped."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Ctrl-C, SIGTERM or the end of the terminal stop it, and nothing but kill -9 disturbs the cleaning up then."""
    asyncio.run(_until_stopped(work))


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)

    def stop() -> None:
        if not task.cancelling():
            task.cancel()

    for number in STOPS:
        asyncio.get_running_loop().add_signal_handler(number, stop)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
