"""Forgets what nobody needs any more: old journal rows, old samples, rows of batches that were never published."""

from skep.client import AsyncSkep


async def prune(mq: AsyncSkep) -> str | None:
    journal, samples = await mq.prune_journal(), await mq.prune_samples()
    await mq.prune_sinks()
    return f"pruned {journal:,} journal rows and {samples:,} samples" if journal or samples else None
