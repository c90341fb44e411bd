"""Forgets what nobody needs any more: old journal rows, samples and traces, batches that were never published."""

from skep.client import AsyncSkep


async def prune(mq: AsyncSkep) -> str | None:
    journal, samples, traces = await mq.prune_journal(), await mq.prune_samples(), await mq.prune_traces()
    await mq.prune_sinks()
    if not (journal or samples or traces):
        return None
    return f"pruned {journal:,} journal rows, {samples:,} samples and {traces:,} traces"
