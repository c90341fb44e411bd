"""The steps of a stream: what Queen's clients send and read under /streams/v1. State stays bytes on its way."""

from typing import Any, Literal

import msgspec

from skep.client.aio.database import AsyncDatabase
from skep.errors import SkepError
from skep.server.http.asgi import bad_request, decode, told
from skep.server.work import address, calls, push
from skep.server.work.ack import QUEUE_MODE

STATUSES = {"completed": "completed", "success": "completed", "failed": "dlq", "dlq": "dlq"}
MOST = 2**31 - 1
MISMATCH = "config_hash mismatch: the stream was registered with another configuration; pass reset to begin anew"


class Query(msgspec.Struct):
    """What is posted to register a stream."""

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
    value: msgspec.Raw = msgspec.field(default_factory=lambda: push.NULL)


class CycleAck(msgspec.Struct, rename="camel"):
    """The answer for the `count` messages that end with the named one."""

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
    push_items: list[push.BareItem] = []
    ack: CycleAck | None = None


class AckResult(msgspec.Struct):
    """What became of the answer of a cycle."""

    success: bool
    count: int
    lease_released: bool
    dlq: bool


class CycleResult(msgspec.Struct, rename={"queue_name": "queueName"}, omit_defaults=True):
    """What became of a cycle; with `error` nothing of it happened."""

    success: bool
    query_id: str
    partition_id: str
    error: str | None = None
    queue_name: str = ""
    state_ops_applied: int | None = None
    push_results: list[push.Stored] | None = None
    ack_result: AckResult | msgspec.UnsetType | None = msgspec.UNSET


class StateQuery(msgspec.Struct):
    """Which rows of state are wanted: those with these keys, or all; with this prefix; whose window has ended."""

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


_queries = msgspec.json.Decoder(Query)
_cycles = msgspec.json.Decoder(Cycle)
_state_queries = msgspec.json.Decoder(StateQuery)


def parse_query(body: bytes) -> Query:
    asked = decode(_queries, body, _said)
    for field in ("name", "source_queue", "config_hash"):
        if not getattr(asked, field):
            raise bad_request(f"{field} is required")
    return asked


def parse_cycle(body: bytes) -> Cycle:
    return decode(_cycles, body, _said)


def parse_state_query(body: bytes) -> StateQuery:
    return decode(_state_queries, body, _said)


def _said(error: str) -> str:
    """Say what Queen says of a missing field."""
    if "Expected `object`, got" in error and " - at " not in error:
        return "request body must be a JSON object"
    if "missing required field" in error and " - at " not in error:
        return f"{error.split('`')[1]} is required"
    for field in ("name", "source_queue", "config_hash", "query_id", "partition_id"):
        if error.endswith(f"`$.{field}`"):
            return f"{field} is required"
    return error


async def register(database: AsyncDatabase, asked: Query) -> Registered:
    arguments = msgspec.structs.asdict(asked)
    ((id_, fresh, was_reset, stored),) = await database.call(calls.STREAM_REGISTER, arguments, lambda *row: row)
    same = stored == asked.config_hash
    return Registered(
        success=same,
        query_id=str(id_),
        name=asked.name,
        config_hash=stored,
        fresh=fresh,
        reset=was_reset,
        error=None if same else MISMATCH,
    )


async def cycle(database: AsyncDatabase, asked: Cycle, items: list[push.NewItem]) -> CycleResult:
    """Carry it out; a refusal is an answer, not an error: nothing happened, and it says why."""
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
    places = zip(items, duplicates or (), partition_ids or (), offsets or (), strict=True)
    return CycleResult(
        success=True,
        query_id=asked.query_id,
        partition_id=asked.partition_id,
        queue_name=queue,
        state_ops_applied=len(asked.state_ops),
        push_results=push.all_stored(places, delayed),
        ack_result=asked.ack
        and AckResult(success=True, count=answered, lease_released=released, dlq=STATUSES[asked.ack.status] == "dlq"),
    )


def _refusal(asked: Cycle) -> str | None:
    """Return what is wrong with a cycle that needs no database to be refused."""
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


def _arguments(asked: Cycle, items: list[push.NewItem]) -> dict[str, Any]:
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
        "messages": f"[{push.prepare(items).encoded}]",
        "ack": ack and msgspec.json.encode(ack).decode(),
        "release_lease": released,
    }


async def state(database: AsyncDatabase, asked: StateQuery) -> bytes:
    """Return the rows as JSON; a query or partition that is not there has none."""
    rows = ""
    if address.is_uuid(asked.query_id) and address.is_uuid(asked.partition_id):
        arguments = msgspec.structs.asdict(asked) | {"keys": asked.keys or []}
        rows = await database.value(calls.STREAM_STATE, arguments)
    return b'{"success":true,"rows":[%s]}' % rows.encode()
