"""Publishes rows of the outbox whose COMMIT could not: of transactions under REPEATABLE READ or SERIALIZABLE."""

from skep.client import AsyncSkep


async def move(mq: AsyncSkep) -> str | None:
    moved = await mq.move_committed_outbox()
    messages = moved.messages
    while moved.messages:
        moved = await mq.move_committed_outbox()
        messages += moved.messages
    refused = f"{moved.refused:,} messages of the outbox are refused by their queues" if moved.refused else ""
    published = f"published {messages:,} messages of the outbox" if messages else ""
    return "; ".join(filter(None, (published, refused))) or None
