"""The Python client: `Skep` for threads, `AsyncSkep` for asyncio."""

from skep.client.aio.skep import AsyncSkep
from skep.client.sync.skep import Skep

__all__ = ["AsyncSkep", "Skep"]
