"""Forgets what nobody needs any more: old journal rows, samples and traces."""

from skep.client import AsyncSkep


async def prune(mq: AsyncSkep) -> str | None:
    journal, samples, traces = await mq.prune_journal(), await mq.prune_samples(), await mq.prune_traces()
    if not (journal or samples or traces):
        return None
    return f"pruned {journal:,} journal rows, {samples:,} samples and {traces:,} traces"
