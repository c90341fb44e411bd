"""Publishes rows of the outbox whose COMMIT could not: of transactions under REPEATABLE READ or SERIALIZABLE."""

from skep.client import AsyncSkep


async def move(mq: AsyncSkep) -> str | None:
    moved = await mq.move_committed_outbox()
    messages = moved.messages
    while moved.messages:
        moved = await mq.move_committed_outbox()
        messages += moved.messages
    refused = f"; {moved.refused:,} are refused by their queues" if moved.refused else ""
    return f"published {messages:,} messages of the outbox{refused}" if messages else None
