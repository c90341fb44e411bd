"""Gives back what consumers held that died, so that it waits for nobody's next pop."""

from skep.client import AsyncSkep


async def reap(mq: AsyncSkep) -> None:
    await mq.reap()
