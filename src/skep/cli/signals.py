"""Signals that stop commands which run until they are stopped."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run until the first stop signal. Later signals do not interrupt the clean-up."""
    asyncio.run(_until_stopped(work))


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)

    def stop() -> None:
        if not task.cancelling():
            task.cancel()

    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
