"""Forgets what nobody needs any more: old journal rows, samples, traces and leases, batches never published."""

from skep.client import AsyncSkep

LEASES = 50_000  # in one transaction


async def prune(mq: AsyncSkep) -> str | None:
    journal, samples, traces = await mq.prune_journal(), await mq.prune_samples(), await mq.prune_traces()
    leases = last = await mq.prune_lease_log(LEASES)
    while last == LEASES:  # there may be more
        last = await mq.prune_lease_log(LEASES)
        leases += last
    await mq.prune_sinks()
    if not (journal or samples or traces or leases):
        return None
    return f"pruned {journal:,} journal rows, {samples:,} samples, {traces:,} traces and the log of {leases:,} leases"
