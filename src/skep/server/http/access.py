"""Rights on what is named by partition or lease: unless the caller may do it everywhere, the queue is looked up."""

from collections.abc import Iterable

from skep.server.http.endpoint import Call
from skep.server.http.grants import Action
from skep.server.work import address, calls


async def require_on_partitions(call: Call, action: Action, partition_ids: Iterable[str]) -> None:
    """Refuse unless the caller may do this on the queues of all these partitions, as far as they exist."""
    if call.identity.allows(action, None):
        return
    known = [id_ for id_ in partition_ids if address.is_uuid(id_)]
    for queue in await call.state.database.call(calls.QUEUES_OF, {"partition_ids": known}, str):
        call.identity.require(action, queue)


async def require_on_lease(call: Call, action: Action, lease: str) -> None:
    """Refuse unless the caller may do this on the queues of the partitions inside the lease id, live or not."""
    if call.identity.allows(action, None):
        return
    for queue in await call.state.database.call(calls.QUEUES_OF_LEASE, {"lease": lease}, str):
        call.identity.require(action, queue)
