"""Rights on partitions and leases: unless the caller has the right on every queue, the queue is looked up."""

from collections.abc import Iterable
from typing import LiteralString

from skep.server.http.endpoint import Call
from skep.server.http.grants import Action
from skep.server.work import address, calls


async def require_on_partitions(call: Call, action: Action, partition_ids: Iterable[str]) -> None:
    """Refuse unless the caller may do this on the queues of all these partitions, as far as they exist."""
    known = [id_ for id_ in partition_ids if address.is_uuid(id_)]
    await require_on_queues(call, action, calls.QUEUES_OF, partition_ids=known)


async def require_on_queues(call: Call, action: Action, query: LiteralString, **arguments: object) -> None:
    """Refuse unless the caller may do this on all queues that the query names."""
    if call.identity.allows(action, None):
        return
    for queue in await call.state.database.call(query, arguments, str):
        call.identity.require(action, queue)
