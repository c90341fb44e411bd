"""Create queues with options, change them, delete them."""

from queen import Queen
from talk import data, error_of, name, pop, tell

EVERYTHING = {
    "lease_time": 17,
    "retry_limit": 5,
    "retry_delay": 250,
    "max_size": 1000,
    "ttl": 7200,
    "dead_letter_queue": True,
    "dlq_after_max_retries": True,
    "priority": 3,
    "delayed_processing": 0,
    "window_buffer": 0,
    "retention_seconds": 86400,
    "completed_retention_seconds": 3600,
    "retention_enabled": True,
    "encryption_enabled": False,
    "max_wait_time_seconds": 0,
}


async def conversation(queen: Queen) -> dict:
    plain, full, odd = name("plain"), name("full"), f"{name('odd')} näme 50%"
    seen = {
        "plain": await queen.queue(plain).create(),
        "full": await queen.queue(full).namespace("shop").task("mail").config(EVERYTHING).create(),
        "without a name": await error_of(queen.queue().create()),
    }
    await queen.queue(full).push({"data": 1})
    seen["changed"] = await queen.queue(full).namespace("shop").task("mail").config({"lease_time": 30}).create()
    seen["kept"] = data(await pop(queen, full))
    await queen.queue(odd).push({"data": "odd"})
    seen["odd"] = data(await pop(queen, odd))
    seen["odd deleted"] = await queen.queue(odd).delete()
    seen["deleted"] = await queen.queue(full).delete()
    seen["after"] = await pop(queen, full)
    seen["deleted again"] = await queen.queue(full).delete()
    await queen.queue(full).push({"data": 2})
    seen["recreated"] = data(await pop(queen, full))
    return seen


tell(conversation)
