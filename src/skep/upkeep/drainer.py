"""Stores pushes that were held during maintenance and left behind: by a server that died, or refused at first."""

from skep.client import AsyncSkep


async def drain(mq: AsyncSkep) -> str | None:
    stored = 0
    while messages := (await mq.drain_held_pushes()).messages:
        stored += messages
    last = await mq.drain_held_pushes(again=True)
    stored += last.messages
    refused = f", {last.refused:,} requests are still refused" if last.refused else ""
    return f"stored {stored:,} held messages{refused}" if stored or refused else None
