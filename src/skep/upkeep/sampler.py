"""Writes heads and cursors down, so that rates and lags over time can be told."""

from skep.client import AsyncSkep


async def sample(mq: AsyncSkep) -> None:
    await mq.sample()
