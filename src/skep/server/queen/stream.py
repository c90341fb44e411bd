"""The cycles of Queen's streams: the bodies and results under /streams/v1. State stays bytes on its way."""

from typing import Any, Literal

import msgspec

from skep.client.aio.database import AsyncDatabase
from skep.errors import SkepError
from skep.message import QUEUE_MODE
from skep.server.http.asgi import bad_request, decode, told
from skep.server.queen import calls
from skep.server.queen.push import NULL, BareItem, Stored, stored
from skep.server.work import address
from skep.server.work.push import Pushed, PushItem, places, prepare

STATUSES = {"completed": "completed", "success": "completed", "failed": "dlq", "dlq": "dlq"}
MOST = 2**31 - 1
MISMATCH = "config_hash mismatch: the stream was registered with another configuration; pass reset to start empty"


class StreamQuery(msgspec.Struct):
    """The body that registers a stream."""

    name: str
    source_queue: str
    config_hash: str
    sink_queue: str | None = None
    reset: bool = False


class Registered(msgspec.Struct, omit_defaults=True):
    """A stream as it is stored; with `error` its configuration is another one."""

    success: bool
    query_id: str
    name: str
    config_hash: str
    fresh: bool
    reset: bool
    error: str | None = None


class StateOp(msgspec.Struct):
    """A change of one key."""

    type: str
    key: str
    value: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)


class CycleAck(msgspec.Struct, rename="camel"):
    """The ack of the `count` messages that end with the named one."""

    transaction_id: str | None = None
    lease_id: str | None = None
    status: str = "completed"
    count: int = 1
    error: str | None = None


class Cycle(msgspec.Struct):
    """One step for one source partition."""

    query_id: str
    partition_id: str
    consumer_group: str | None = None
    release_lease: bool = True
    state_ops: list[StateOp] = []
    push_items: list[BareItem] = []
    ack: CycleAck | None = None


class CycleAckResult(msgspec.Struct):
    """The result of the ack of a cycle."""

    success: bool
    count: int
    lease_released: bool
    dlq: bool


class CycleResult(msgspec.Struct, rename={"queue_name": "queueName"}, omit_defaults=True):
    """The result of a cycle. With `error`, nothing of it happened."""

    success: bool
    query_id: str
    partition_id: str
    error: str | None = None
    queue_name: str = ""
    state_ops_applied: int | None = None
    push_results: list[Stored] | None = None
    ack_result: CycleAckResult | msgspec.UnsetType | None = msgspec.UNSET


class StateQuery(msgspec.Struct):
    """The rows of state to read: by key or all, by prefix, by the end of their window."""

    query_id: str
    partition_id: str
    keys: list[str] | None = None
    key_prefix: str | None = None
    ripe_at_or_before: float | None = None


class StateRow(msgspec.Struct):
    """One key of the state."""

    key: str
    value: Any
    updated_at: str


class StateRows(msgspec.Struct):
    """The rows that were asked for, by key."""

    success: Literal[True]
    rows: list[StateRow]


_queries = msgspec.json.Decoder(StreamQuery)
_cycles = msgspec.json.Decoder(Cycle)
_state_queries = msgspec.json.Decoder(StateQuery)


def parse_query(body: bytes) -> StreamQuery:
    asked = decode(_queries, body, _shape_error)
    for field in ("name", "source_queue", "config_hash"):
        if not getattr(asked, field):
            raise bad_request(f"{field} is required")
    return asked


def parse_cycle(body: bytes) -> Cycle:
    return decode(_cycles, body, _shape_error)


def parse_state_query(body: bytes) -> StateQuery:
    return decode(_state_queries, body, _shape_error)


def _shape_error(error: str) -> str:
    """Return Queen's text for a missing field."""
    if "Expected `object`, got" in error and " - at " not in error:
        return "request body must be a JSON object"
    if "missing required field" in error and " - at " not in error:
        return f"{error.split('`')[1]} is required"
    for field in ("name", "source_queue", "config_hash", "query_id", "partition_id"):
        if error.endswith(f"`$.{field}`"):
            return f"{field} is required"
    return error


async def register(database: AsyncDatabase, asked: StreamQuery) -> Registered:
    arguments = msgspec.structs.asdict(asked)
    ((id_, fresh, was_reset, stored_hash),) = await database.call(calls.STREAM_REGISTER, arguments, lambda *row: row)
    same = stored_hash == asked.config_hash
    return Registered(
        success=same,
        query_id=str(id_),
        name=asked.name,
        config_hash=stored_hash,
        fresh=fresh,
        reset=was_reset,
        error=None if same else MISMATCH,
    )


async def cycle(database: AsyncDatabase, asked: Cycle, items: list[PushItem]) -> CycleResult:
    """Run a cycle. If it is refused, nothing happened, and `error` says why."""
    refused = _refusal(asked)
    if refused is not None:
        return _failed(asked, refused)
    try:
        (row,) = await database.call(calls.STREAM_CYCLE, _arguments(asked, items), lambda *row: row)
    except SkepError as error:
        if error.retryable:
            raise
        return _failed(asked, told(error))
    queue, answered, released, duplicates, partition_ids, offsets, delayed = row
    pushed = Pushed(duplicates or (), partition_ids or (), offsets or (), places(delayed, 0, len(items)))
    return CycleResult(
        success=True,
        query_id=asked.query_id,
        partition_id=asked.partition_id,
        queue_name=queue,
        state_ops_applied=len(asked.state_ops),
        push_results=list(stored(items, pushed)),
        ack_result=asked.ack
        and CycleAckResult(
            success=True, count=answered, lease_released=released, dlq=STATUSES[asked.ack.status] == "dlq"
        ),
    )


def _refusal(asked: Cycle) -> str | None:
    """Return why a cycle is refused, if that can be seen without the database."""
    unknown = next((op.type for op in asked.state_ops if op.type not in ("upsert", "delete")), None)
    checks = [
        ("query_id is unknown", address.is_uuid(asked.query_id)),
        ("partition_id is unknown", address.is_uuid(asked.partition_id)),
        (f"Unknown state_op type: {unknown}", unknown is None),
    ]
    if asked.ack is not None:
        checks += [
            ("ack.transactionId is required", bool(asked.ack.transaction_id)),
            (f"Unknown ack.status: {asked.ack.status}", asked.ack.status in STATUSES),
            ("ack.count is at least 1", 0 < asked.ack.count <= MOST),
            ("Invalid or expired lease", not asked.ack.lease_id or address.is_uuid(asked.ack.lease_id)),
        ]
    return next((error for error, good in checks if not good), None)


def _failed(asked: Cycle, error: str) -> CycleResult:
    return CycleResult(success=False, query_id=asked.query_id, partition_id=asked.partition_id, error=error)


def _arguments(asked: Cycle, items: list[PushItem]) -> dict[str, Any]:
    try:
        ops = msgspec.json.encode(asked.state_ops).decode()
    except UnicodeDecodeError:
        raise bad_request("Invalid JSON: not UTF-8") from None
    ack = asked.ack and {
        "transaction_id": asked.ack.transaction_id,
        "lease": asked.ack.lease_id or None,
        "status": STATUSES[asked.ack.status],
        "count": asked.ack.count,
        "error": asked.ack.error or None,
    }
    released = asked.release_lease or (asked.ack is not None and STATUSES[asked.ack.status] == "dlq")
    return {
        "query_id": asked.query_id,
        "partition_id": asked.partition_id,
        "group": asked.consumer_group or QUEUE_MODE,
        "state_ops": ops,
        "messages": f"[{prepare(items).encoded}]",
        "ack": ack and msgspec.json.encode(ack).decode(),
        "release_lease": released,
    }


async def state(database: AsyncDatabase, asked: StateQuery) -> bytes:
    """Return the rows as JSON. An unknown query or partition has none."""
    rows = ""
    if address.is_uuid(asked.query_id) and address.is_uuid(asked.partition_id):
        arguments = msgspec.structs.asdict(asked) | {"keys": asked.keys or []}
        rows = await database.value(calls.STREAM_STATE, arguments)
    return b'{"success":true,"rows":[%s]}' % rows.encode()
