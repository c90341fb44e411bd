"""Every pair of a client's step and a deletion, in both orders, while the first of the two is still open.

A session takes its step and leaves its transaction open; a second session takes the other step, and waits or not; then
the first one commits. Upkeep must not wait. At the end every message is accounted for: each group has completed it, or
it is among its dead letters or its missed messages, or it was deleted on request; none was delivered after its ack.
"""

import itertools
import time
import uuid
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine import verbs
from tests.engine.threads import until
from tests.engine.verbs import Row, broken, call
from tests.isolation.account import Account, Ack, Delivery, Move, Push
from tests.isolation.load import FLOORS
from tests.isolation.steps import BLOCKED

OPTIONS = {
    "completed_retention_seconds": 0, "max_size": 50, "drop_idle_seconds": 0.000001, "dead_group_grace_seconds": 0,
    "retry_delay": 0, "retry_limit": 0,
}  # fmt: skip
GROUP, LATE, SILENT = "reader", "late", "silent"
DELAYED = "delayed"
Connections = tuple[psycopg.Connection, psycopg.Connection, psycopg.Connection]
_numbers = itertools.count(1)


@dataclass
class Pair:
    """A queue of its own, two sessions, and the account of what happens."""

    queue: str
    one: psycopg.Connection
    two: psycopg.Connection
    observer: psycopg.Connection
    account: Account = field(default_factory=Account)
    leased: list[Row] = field(default_factory=list)  # the messages that the group has leased
    groups: set[str] = field(default_factory=lambda: {GROUP, SILENT})
    delayed: set[tuple[str, int, int]] = field(default_factory=set)  # where it was delivered

    def push(self, mq: psycopg.Connection, *partitions: str, number: int = 1) -> None:
        began = time.time()
        for _ in range(3):
            try:
                rows = verbs.push_to(mq, [(self.queue, name, n) for name in partitions for n in range(number)])
                break
            except psycopg.errors.SerializationFailure:  # the partition was deleted meanwhile: clients try again
                assert mq.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        self.account.pushes.extend(Push((row.partition_id, row.offset), self.queue, began, time.time()) for row in rows)

    def pop(self, mq: psycopg.Connection, group: str, **options: Any) -> list[Row]:
        began = time.time()
        rows = verbs.pop(mq, self.queue, group, **options)
        self.delayed |= {(group, row.partition_id, row.offset) for row in rows if row.payload == DELAYED}
        for row in rows:
            key, expires = (row.partition_id, row.offset), row.lease_expires_at.timestamp()
            self.account.deliveries.append(Delivery(group, row.queue, key, str(row.lease), began, time.time(), expires))
        return rows

    def ack(self, mq: psycopg.Connection, group: str, rows: list[Row]) -> None:
        began = time.time()
        leases = sorted({row.lease for row in rows})
        results = call(mq, "ack_many", leases=leases, ids=None, statuses=["completed"] * len(leases))
        applied = {leases[result.ord - 1] for result in results if result.applied}
        self.account.acks.extend(
            Ack(group, (row.partition_id, row.offset), began, time.time(), str(row.lease))
            for row in rows
            if row.lease in applied
        )

    def move(self, kind: str, group: str | None) -> None:
        self.account.moves.append(Move(kind, group, self.queue, time.time(), time.time() + 60))

    def drain(self, group: str) -> None:
        while rows := self.pop(self.observer, group, partitions=100):
            self.ack(self.observer, group, rows)


def prepare(pair: Pair) -> None:
    """Partition x has messages that groups have read in part, with a dead letter; partition y is read and emptied."""
    mq = pair.observer
    verbs.configure(mq, pair.queue, **OPTIONS)
    for group in (GROUP, SILENT):
        call(
            mq, "subscribe", group_name=group, queue=pair.queue, mode="all", heartbeat_interval=10, heartbeat_timeout=20
        )
    pair.push(mq, "y", number=2)
    pair.push(mq, "x", number=6)
    for group in (GROUP, SILENT):
        pair.ack(mq, group, pair.pop(mq, group, partition="y"))
        pair.ack(mq, group, pair.pop(mq, group, partition="x", batch=1))
    call(mq, "dead_letter", lease=pair.pop(mq, GROUP, batch=1)[0].lease, error="no")
    call(mq, "retain")
    pair.leased = pair.pop(mq, GROUP, batch=2)
    assert [row.offset for row in pair.leased] == [2, 3]


def fall_silent(pair: Pair) -> None:
    pair.observer.execute(
        "UPDATE skep.subscriptions SET last_heartbeat_at = now() - interval '1 day'"
        " WHERE queue = %s AND group_name = %s",
        [pair.queue, SILENT],
    )


def let_leases_expire(pair: Pair) -> None:
    pair.move("pause", None)
    pair.observer.execute("UPDATE skep.runs SET expires_at = now(), ready_at = now() WHERE lease_id IS NOT NULL")


def _push(pair: Pair, mq: psycopg.Connection) -> None:
    pair.push(mq, "x", "y")


def _first_pop(pair: Pair, mq: psycopg.Connection) -> None:
    pair.groups.add(LATE)
    pair.account.joined[LATE, pair.queue] = time.time() + 1e9  # it certainly gets these
    pair.leased = pair.pop(mq, LATE, batch=2)


def _subscribe(pair: Pair, mq: psycopg.Connection) -> None:
    pair.groups.add(LATE)
    pair.account.joined[LATE, pair.queue] = time.time() + 1e9
    call(mq, "subscribe", group_name=LATE, queue=pair.queue, mode="all")


def _seek(pair: Pair, mq: psycopg.Connection) -> None:
    pair.move("seek", GROUP)
    call(mq, "seek", group_name=GROUP, queue=pair.queue, position="beginning")


def _revive(pair: Pair, mq: psycopg.Connection) -> None:
    call(mq, "heartbeat", group_name=SILENT, queue=pair.queue)


def _ack(pair: Pair, mq: psycopg.Connection) -> None:
    pair.ack(mq, GROUP, pair.leased)


def _expire(pair: Pair, mq: psycopg.Connection) -> None:
    call(mq, "expire_leases")


def _redrive(pair: Pair, mq: psycopg.Connection) -> None:
    began = time.time()
    query = 'SELECT group_name, partition_id, "offset" FROM skep.dead_letters WHERE queue = %s'
    pair.account.redriven.extend((group, (p, o)) for group, p, o in mq.execute(query, [pair.queue]).fetchall())
    rows = call(mq, "redrive", queue=pair.queue)
    ids = "SELECT skep.partition_of(id), skep.offset_of(id) FROM unnest(%s::uuid[]) AS id"
    made = mq.execute(ids, [[row.message_id for row in rows]]).fetchall()
    pair.account.pushes.extend(Push(key, pair.queue, began, time.time(), only_group=GROUP) for key in made)


def _upkeep(function: str) -> Callable[[Pair, psycopg.Connection], None]:
    def do(pair: Pair, mq: psycopg.Connection) -> None:
        call(mq, function)

    return do


def _clear(pair: Pair, mq: psycopg.Connection) -> None:
    pair.move("clear", None)
    call(mq, "clear_queue", queue=pair.queue)
    pair.account.cleared.extend(mq.execute(FLOORS, [pair.queue]).fetchall())


def _delete_queue(pair: Pair, mq: psycopg.Connection) -> None:
    """Delete the queue; pushes that named a partition which is gone now had it deleted."""
    pair.move("delete queue", None)
    call(mq, "delete_queue", queue=pair.queue)


def _delete_group(pair: Pair, mq: psycopg.Connection) -> None:
    pair.move("delete group", GROUP)
    call(mq, "delete_group", group_name=GROUP, queue=pair.queue)


def _archive(pair: Pair, mq: psycopg.Connection) -> None:
    """Archive as the pipeline does: plan, begin, compare with the log, store."""
    ((archive,),) = call(mq, "_open_archive", location="memory:", queues=[pair.queue])
    planned = call(mq, "_plan_archive", queues=[pair.queue])
    files = [
        {
            "queue": run.queue,
            "day": str(run.day),
            "runs": [[run.partition_id, run.partition, run.first_offset, run.end_offset]],
        }
        for run in planned
    ]
    job = uuid.uuid4()
    ((ids,),) = call(mq, "_begin_files", archive_id=archive, job=job, files=Jsonb(files))
    for file, run in zip(ids, planned, strict=True):
        arrays = {
            "partition_ids": [run.partition_id],
            "first_offsets": [run.first_offset],
            "end_offsets": [run.end_offset],
        }
        ((messages, digest),) = call(mq, "_digest", **arrays)
        call(mq, "_store_file", file_id=file, job=job, path=str(file), bytes=1, messages=messages, digest=digest)
    call(mq, "_settle_files", file_ids=ids)


def _prune(pair: Pair, mq: psycopg.Connection) -> None:
    call(mq, "prune_journal", older_than="0 s")


def _schedule(pair: Pair, mq: psycopg.Connection) -> None:
    """Append messages that are due: delayed ones, and the ticks of schedules."""
    for job in ("append_delayed", "run_schedules"):
        call(mq, job)


Do = Callable[[Pair, psycopg.Connection], None]
CLIENT: dict[str, Do] = {
    "push": _push, "first pop": _first_pop, "subscribe": _subscribe, "seek": _seek, "revive": _revive, "ack": _ack,
    "expire": _expire, "redrive": _redrive,
}  # fmt: skip
DELETES: dict[str, Do] = {
    "retain": _upkeep("retain"), "drop idle": _upkeep("drop_idle_partitions"), "clear": _clear,
    "delete queue": _delete_queue, "delete group": _delete_group, "detect dead": _upkeep("detect_dead_groups"),
    "archive": _archive, "prune": _prune, "schedule": _schedule,
}  # fmt: skip
NEVER_WAIT = {"retain", "drop idle", "detect dead", "prune", "schedule", "expire", "first pop"}
# Steps that may be refused: the queue or the subscription was deleted before, or the lease ended; clients try again.
REFUSED = {("clear", "SK002"), ("revive", "SK002"), ("archive", "SK007")}


@pytest.fixture(scope="module")
def connections(module_database_url: str) -> Generator[Connections]:
    with ExitStack() as stack:
        one, two, three = (stack.enter_context(psycopg.connect(module_database_url, autocommit=True)) for _ in range(3))
        yield one, two, three


@pytest.fixture(scope="module")
def threads() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def take(pair: Pair, name: str, step: Do, mq: psycopg.Connection) -> None:
    try:
        step(pair, mq)
    except psycopg.Error as error:
        if (name, error.sqlstate) not in REFUSED:
            raise


def play(pair: Pair, threads: ThreadPoolExecutor, first: tuple[str, Do], second: tuple[str, Do]) -> None:
    """Leave the first step's transaction open while the second step runs; upkeep must not wait."""
    with pair.one.transaction():
        take(pair, *first, pair.one)
        future = threads.submit(take, pair, *second, pair.two)
        pid = pair.two.info.backend_pid
        if second[0] in NEVER_WAIT:
            until(future.done, f"{second[0]} waits for an open {first[0]}")
        else:
            until(lambda: future.done() or pair.observer.execute(BLOCKED, [pid]).fetchall() == [(True,)], "hangs")
    future.result(20)


PRESENT = """
    SELECT m.partition_id, m."offset", p.only_group FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id
    JOIN skep.messages m ON m.partition_id = p.id WHERE q.name = %s
"""


def check(pair: Pair) -> None:
    """Drain every group, and account for every message."""
    mq = pair.observer
    existing = {row[0] for row in mq.execute("SELECT id FROM skep.partitions").fetchall()}
    if any(move.kind == "delete queue" for move in pair.account.moves):
        pair.account.deleted_partitions.extend({push.key[0] for push in pair.account.pushes} - existing)
    let_leases_expire(pair)
    assert broken(mq) == {}
    present = mq.execute(PRESENT, [pair.queue]).fetchall()
    for group in pair.groups:
        pair.drain(group)
        done = {ack.key for ack in pair.account.acks if ack.group == group}
        dead = {key for owner, key in pair.account._dead_letters(mq) if owner == group}
        lost = {(partition, offset) for partition, offset, only in present if only in (None, group)} - done - dead
        assert lost == set(), f"still there, and not delivered to {group}"
    assert pair.account.check(mq, [(group, pair.queue) for group in pair.groups]) == []
    verbs.configure(mq, pair.queue, **OPTIONS)  # if it was deleted, and created again by a push
    for job in ("retain", "drop_idle_partitions"):
        call(mq, job)
    assert broken(mq) == {}
    left = mq.execute("SELECT count(*) FROM skep.partition_list WHERE queue = %s", [pair.queue]).fetchall()
    assert left == [(0,)], "everything is completed, and not everything is deleted"


@pytest.mark.parametrize("client_first", [True, False], ids=["client first", "deletion first"])
@pytest.mark.parametrize("deletes", DELETES)
@pytest.mark.parametrize("client", CLIENT)
def test_pair(connections: Connections, threads: ThreadPoolExecutor, client: str, deletes: str, *, client_first: bool):
    steps = ((client, CLIENT[client]), (deletes, DELETES[deletes]))
    run_pair(Pair(f"q{next(_numbers)}", *connections), threads, steps if client_first else steps[::-1])


@pytest.mark.parametrize("second", DELETES)
@pytest.mark.parametrize("first", DELETES)
def test_two_deletions(connections: Connections, threads: ThreadPoolExecutor, first: str, second: str):
    steps = ((first, DELETES[first]), (second, DELETES[second]))
    run_pair(Pair(f"q{next(_numbers)}", *connections), threads, steps)


def check_delayed(pair: Pair, *, is_kept: bool) -> None:
    """Check that the delayed message was appended once, and that every group has received it."""
    call(pair.observer, "append_delayed")
    for group in pair.groups:
        pair.drain(group)
    assert len({(partition, offset) for _, partition, offset in pair.delayed}) <= 1
    if is_kept:
        assert {group for group, *_ in pair.delayed} == pair.groups


def run_pair(pair: Pair, threads: ThreadPoolExecutor, steps: tuple[tuple[str, Do], ...]) -> None:
    names = {name for name, _ in steps}
    prepare(pair)
    if names & {"revive", "detect dead"}:
        fall_silent(pair)
        if "detect dead" not in names:
            assert [row.died for row in call(pair.observer, "detect_dead_groups")] == [True]
    if "expire" in names:
        let_leases_expire(pair)
    if "schedule" in names:
        call(pair.observer, "push", queue=pair.queue, payload=Jsonb(DELAYED), partition="x", delay=0.001)
    try:
        play(pair, threads, *steps)
        check(pair)
        if "schedule" in names:
            check_delayed(pair, is_kept=not names & {"clear", "delete queue"})
    finally:
        pair.observer.execute("SELECT skep.delete_queue(%s)", [pair.queue])
        for table in ("dead_letters", "missed_messages", "subscriptions", "archive_files"):
            pair.observer.execute(f"DELETE FROM skep.{table}".encode())
