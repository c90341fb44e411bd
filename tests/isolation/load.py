"""Random load: sessions that push, consume, administer, do upkeep and kill, all at once, and record what they do.

The plan of each session follows from the seed alone: its steps, their queues, groups, sizes and pauses. The machine
decides how the steps of different sessions interleave.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from tests.engine import verbs
from tests.engine.verbs import Row, call
from tests.isolation.account import Account, Ack, Delivery, Move, Push

# The options of each queue, and the groups that read it. "early" and "plain" never move; "mover" seeks, "gone" is
# deleted, "silent" dies, "late" joins while the load runs; "wide" reads the namespace ns.
QUEUES: dict[str, dict[str, Any]] = {
    "strict": {},
    "shared": {"concurrency": 4},
    "limited": {"max_size": 20, "dead_group_grace_seconds": 0},
    "completed": {"completed_retention_seconds": 0, "drop_idle_seconds": 0.000001},
    "cleared": {"concurrency": 2},
    "deleted": {"completed_retention_seconds": 0},
    "ns.a": {"priority": 1},
    "ns.b": {},
}
GROUPS: dict[str, tuple[str, ...]] = {
    "strict": ("early", "plain", "mover", "gone", "late", "skipper"),
    "shared": ("early", "mover", "late", "skipper"),
    "limited": ("early", "silent"),
    "completed": ("early", "plain", "mover"),
    "cleared": ("early", "mover"),
    "deleted": ("early", "plain"),
    "ns.a": ("wide", "early"),
    "ns.b": ("wide",),
}
COMMON = {"retry_delay": 0, "retry_limit": 2, "lease_time": 60}
LATE = ("late",)
LEASE_TIMES = (0.02, 0.1, 0.3)

# Retryable errors that a client may get: a stale lease, not found (yet), a lock timeout, deleted meanwhile.
EXPECTED = {"SK002", "SK003", "SK007", "55P03", "40001"}


@dataclass(frozen=True)
class Choice:
    """The random part of one step."""

    kind: str
    queue: str
    group: str
    partitions: tuple[str, ...]
    batch: int
    share: float  # how much of a batch is acknowledged
    ends: str  # how the transaction ends: none, commit, rollback
    pause: float
    by_name: bool
    lease_time: float


ROLES: dict[str, dict[str, int]] = {
    "producer": {"push": 6, "push one": 3, "outbox": 1},
    "consumer": {
        "ack": 8, "ack some": 3, "ack and release": 2, "ack and fail": 2, "fail": 2, "dead letter": 1, "abandon": 2,
        "zombie": 1, "extend": 1, "auto ack": 2, "wide": 2, "transaction": 2,
        "merged": 4,
    },
    "admin": {
        "seek": 4, "skip": 2, "pause": 2, "clear": 2, "delete queue": 1, "delete partition": 1, "delete group": 2,
        "delete message": 2, "subscribe": 2, "cancel": 2, "redrive": 3, "fall silent": 3, "revive": 2, "configure": 1,
    },
    "upkeep": {
        "retain": 6, "drop": 4, "expire": 3, "prune": 2, "detect": 3, "check": 1, "archive": 2, "visit": 3,
    },
    "killer": {"kill": 1},
}  # fmt: skip


def plan(seed: int, name: str, role: str) -> Iterator[Choice]:
    """Return the endless plan of a session."""
    rng = random.Random(f"{seed} {name}")
    kinds = ROLES[role]
    while True:
        queue = rng.choice([*QUEUES])
        yield Choice(
            kind=rng.choices([*kinds], [*kinds.values()])[0],
            queue=queue,
            group=rng.choice(GROUPS[queue]),
            partitions=tuple(rng.sample("abcde", rng.randint(1, 3))),
            batch=rng.choice((1, 1, 2, 5, 20)),
            share=rng.random(),
            ends=rng.choice(("none", "none", "commit", "commit", "rollback")),
            pause=rng.choice((0, 0, 0, 0.002, 0.01, 0.05)),
            by_name=rng.random() < 0.3,
            lease_time=rng.choice(LEASE_TIMES),
        )


@dataclass
class Session:
    """One connection, its plan, and what it has done in its open transaction."""

    name: str
    role: str
    url: str
    account: Account
    pids: dict[str, int]
    connection: psycopg.Connection = field(init=False)
    pending: list[Callable[[float], None]] = field(default_factory=list)
    asked: list[Ack] = field(default_factory=list)  # acks without a result yet
    xid: int | None = None

    def connect(self) -> None:
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.pids[self.name] = self.connection.info.backend_pid

    def done(self, note: Callable[[float], None]) -> None:
        """Record something that is true once the transaction has committed; the record gets the time."""
        if self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            note(time.time())
        else:
            self.pending.append(note)

    @contextmanager
    def transaction(self, choice: Choice) -> Iterator[None]:
        """Run a step by itself, or in a transaction that is held open for a while and then ends as chosen."""
        if choice.ends == "none":
            yield
            return
        self.connection.execute("BEGIN")
        ((self.xid,),) = self.connection.execute("SELECT pg_current_xact_id()::text").fetchall()
        yield
        time.sleep(choice.pause)
        ended = self.connection.execute(choice.ends.encode()).statusmessage
        self.end(is_committed=ended == "COMMIT")

    def end(self, *, is_committed: bool) -> None:
        now = time.time()
        for note in self.pending if is_committed else ():
            note(now)
        self.pending.clear()
        self.asked = []
        self.xid = None

    def recover(self, error: psycopg.Error) -> None:
        """After an error: end the transaction, or connect again and find out whether it had committed."""
        if not self.connection.broken:
            if self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                self.connection.execute("ROLLBACK")
            self.end(is_committed=False)
            if error.sqlstate not in EXPECTED:
                self.account.problems.append(f"{self.name}: {error.sqlstate} {error}")
            return
        xid = self.xid
        self.connect()
        status = (
            self.connection.execute("SELECT pg_xact_status(%s::text::xid8)", [xid]).fetchall()[0][0] if xid else None
        )
        while status == "in progress":
            time.sleep(0.01)
            status = self.connection.execute("SELECT pg_xact_status(%s::text::xid8)", [xid]).fetchall()[0][0]
        self.end(is_committed=status == "committed")

    def work(self, seed: int, until: float) -> None:
        steps = plan(seed, self.name, self.role)
        while time.time() < until:
            choice = next(steps)
            try:
                STEPS[choice.kind](self, choice)
            except psycopg.Error as error:
                self.recover(error)
            except Exception as error:  # noqa: BLE001 - it is reported at the end
                self.account.problems.append(f"{self.name}: {choice} {error!r}")
                self.connection.close()
                self.connect()
                self.end(is_committed=False)
            time.sleep(choice.pause)


def _in_transaction(choice: Choice) -> Choice:
    """Return the choice with a transaction, whose status shows what was done if its connection is killed."""
    return choice if choice.ends != "none" else replace(choice, ends="commit")


def _push(session: Session, choice: Choice) -> None:
    began = time.time()
    with session.transaction(choice):
        items = [(choice.queue, partition, began) for partition in choice.partitions for _ in range(choice.batch)]
        _note_pushes(session, choice.queue, began, verbs.push_to(session.connection, items))


def _note_pushes(session: Session, queue: str, began: float, rows: list[Row]) -> None:
    keys = [(row.partition_id, row.offset) for row in rows]
    session.done(lambda now: session.account.pushes.extend(Push(key, queue, began, now) for key in keys))


def _push_one(session: Session, choice: Choice) -> None:
    began = time.time()
    with session.transaction(choice):
        rows = call(session.connection, "push", queue=choice.queue, payload="1", partition=choice.partitions[0])
        _note_pushes(session, choice.queue, began, rows)


def _outbox(session: Session, choice: Choice) -> None:
    """Insert into the outbox, which returns no offsets: its messages are found by transaction id."""
    began = time.time()
    with session.connection.transaction():
        session.connection.execute(
            "INSERT INTO skep.outbox (queue, partition, payload, producer) SELECT %s, unnest(%s::text[]), '2', %s",
            [choice.queue, [*choice.partitions], f"{session.name} {began}"],
        )
    rows = session.connection.execute(
        'SELECT partition_id, "offset" FROM skep.messages WHERE producer = %s', [f"{session.name} {began}"]
    ).fetchall()
    session.account.pushes.extend(Push((row[0], row[1]), choice.queue, began, time.time()) for row in rows)


def _pop(session: Session, choice: Choice, **options: Any) -> list[Row]:
    began = time.time()
    options = {"lease_time": choice.lease_time, "batch": choice.batch, **options}
    if choice.by_name and "namespace" not in options:
        options["partition"] = choice.partitions[0]
    else:
        options["partitions"] = len(choice.partitions)
    queue = None if "namespace" in options else choice.queue
    group = "wide" if "namespace" in options else choice.group
    if group in LATE:
        session.account.joined.setdefault((group, choice.queue), time.time() + 1e9)  # until the first pop has ended
    rows = verbs.pop(session.connection, queue, group, **options)
    deliveries = [
        (row.queue, (row.partition_id, row.offset), str(row.lease), row.lease_expires_at.timestamp()) for row in rows
    ]

    def note(now: float) -> None:
        for queue, key, lease, expires in deliveries:
            session.account.deliveries.append(Delivery(group, queue, key, lease, began, now, expires))
        if group in LATE and session.account.joined[group, choice.queue] > now:
            session.account.joined[group, choice.queue] = now

    session.done(note)
    return rows


def _note_acks(session: Session, group: str, rows: list[Row], began: float) -> None:
    noted = [((row.partition_id, row.offset), str(row.lease)) for row in rows]

    def note(now: float) -> None:
        session.account.acks.extend(Ack(group, key, began, now, lease) for key, lease in noted)

    session.done(note)


def _group(choice: Choice) -> str:
    return "wide" if choice.kind == "wide" else choice.group


def _ask(session: Session, choice: Choice, rows: list[Row]) -> None:
    """Remember acks before they are sent: if the connection ends before the result, they may or may not be done."""
    began = time.time()
    session.asked = [
        Ack(_group(choice), (row.partition_id, row.offset), began, began, str(row.lease), is_sure=False) for row in rows
    ]


def _ack_rows(session: Session, choice: Choice, rows: list[Row]) -> None:
    """Acknowledge messages one by one in one call; stale acks are not recorded."""
    if not rows:
        return
    began = time.time()
    _ask(session, choice, rows)
    results = call(
        session.connection, "ack_many", leases=[row.lease for row in rows], ids=[row.id for row in rows],
        statuses=["completed"] * len(rows),
    )  # fmt: skip
    applied = {result.ord for result in results if result.applied}
    _note_acks(session, _group(choice), [row for n, row in enumerate(rows, 1) if n in applied], began)


def _ack_leases(session: Session, choice: Choice, rows: list[Row]) -> None:
    began = time.time()
    for lease in sorted({row.lease for row in rows}):
        _ask(session, choice, [row for row in rows if row.lease == lease])
        try:
            call(session.connection, "ack", lease=lease)
        except psycopg.Error as error:
            if error.sqlstate != "SK003" or session.connection.info.transaction_status.name != "IDLE":
                raise
        else:
            _note_acks(session, _group(choice), [row for row in rows if row.lease == lease], began)


def _end_leases(session: Session, rows: list[Row]) -> None:
    now = time.time()
    session.account.ended.update({str(row.lease): now for row in rows})


def _consume(session: Session, choice: Choice) -> None:
    """Pop, and acknowledge all of it, some of it, or nothing, in one of the ways that consumers have."""
    options = {"namespace": "ns"} if choice.kind == "wide" else {}
    began = time.time()
    rows = _pop(session, choice, **options)
    if not rows:
        return
    time.sleep(choice.pause)
    some = [row for n, row in enumerate(rows) if (n * 0.37 + choice.share) % 1 < 0.5]
    if choice.kind in ("ack", "wide", "transaction"):
        (_ack_leases if choice.share < 0.5 else _ack_rows)(session, choice, rows)
        return
    if choice.kind == "zombie":
        time.sleep(max(0.0, rows[0].lease_expires_at.timestamp() - began) * (0.9 + choice.share / 5))
        _ack_rows(session, choice, rows)
        return
    if choice.kind == "extend":
        call(session.connection, "extend", lease=rows[0].lease, seconds=0.5)
        _ack_rows(session, choice, some)
        return
    if choice.kind.startswith("ack"):
        _ack_rows(session, choice, some)
    verb = {"ack and release": "release", "ack and fail": "fail", "fail": "fail", "dead letter": "dead_letter"}.get(
        choice.kind
    )
    if verb:
        _end_leases(session, rows)
        error = {} if verb == "release" else {"error": "no"}
        for lease in sorted({row.lease for row in rows}):
            call(session.connection, verb, lease=lease, **error)


def _auto_ack(session: Session, choice: Choice) -> None:
    with session.transaction(_in_transaction(choice)):
        began = time.time()
        rows = _pop(session, choice, auto_ack=True)
        _note_acks(session, choice.group, rows, began)


@dataclass(frozen=True)
class Message:
    """A message of a pop for many requests, with the columns of a delivery."""

    partition_id: int
    offset: int
    id: str
    lease: Any


def _merged(session: Session, choice: Choice) -> None:
    """Pop as the server does, for three requests at once, and acknowledge some of what each of them got."""
    began = time.time()
    if choice.group in LATE:
        return
    results = call(
        session.connection, "_queen_pop", queue=choice.queue, group_name=choice.group, batches=[choice.batch, 1, 3],
        partitions=[1, 1, 1], names=[*choice.partitions * 3][:3] if choice.by_name else None, namespace=None, task=None,
        lease_time=choice.lease_time, auto_ack=False, subscription_mode=None, subscription_from=None, conflate=False,
    )  # fmt: skip
    now = time.time()
    for result in results:
        ids = [message["id"] for message in json.loads(f"[{result.messages}]")]
        query = "SELECT skep.partition_of(id), skep.offset_of(id), id::text FROM unnest(%s::uuid[]) AS id"
        found = session.connection.execute(query, [ids]).fetchall()
        rows = [Message(partition, offset, text, result.lease) for partition, offset, text in found]
        session.account.deliveries.extend(
            Delivery(choice.group, choice.queue, (row.partition_id, row.offset), str(row.lease), began, now,
                     expires=began + choice.lease_time) for row in rows
        )  # fmt: skip
        time.sleep(choice.pause)
        _ack_rows(session, choice, rows if choice.share < 0.7 else rows[:1])


def _transaction(session: Session, choice: Choice) -> None:
    """Pop, acknowledge and push in one transaction, held open for a while."""
    began = time.time()
    with session.transaction(_in_transaction(choice)):
        rows = _pop(session, choice, lease_time=60)
        time.sleep(choice.pause)
        _ack_rows(session, choice, rows)
        _note_pushes(session, "strict", began, verbs.push_to(session.connection, [("strict", "out", 3)]))


def _move(session: Session, kind: str, group: str | None, queue: str | None, began: float) -> None:
    session.done(lambda now: session.account.moves.append(Move(kind, group, queue, began, now)))


def _seek(session: Session, choice: Choice) -> None:
    group, position = ("skipper", "end") if choice.kind == "skip" else ("mover", "beginning")
    if group not in GROUPS[choice.queue]:
        return
    began = time.time()
    # Recorded before the call too: consumers may receive repeated messages before this session sees its result.
    session.account.moves.append(Move("seek", group, choice.queue, began, time.time() + 30))
    with session.transaction(choice):
        call(session.connection, "seek", group_name=group, queue=choice.queue, position=position)
        if position == "end":
            _move(session, "skip", group, choice.queue, began)


def _pause(session: Session, choice: Choice) -> None:
    session.account.moves.append(Move("pause", choice.group, choice.queue, time.time(), time.time() + 30))
    for verb in ("pause", "resume"):
        with session.transaction(choice):
            call(session.connection, verb, group_name=choice.group, queue=choice.queue)
        time.sleep(choice.pause)


FLOORS = """
    SELECT f.partition_id, f.first_offset FROM skep.partition_floors f JOIN skep.partitions p ON p.id = f.partition_id
    JOIN skep.queues q ON q.id = p.queue_id WHERE q.name = %s
"""


def _clear(session: Session, choice: Choice) -> None:
    session.account.moves.append(Move("clear", None, "cleared", time.time(), time.time() + 30))
    with session.transaction(_in_transaction(choice)):
        call(session.connection, "clear_queue", queue="cleared")
        floors = session.connection.execute(FLOORS, ["cleared"]).fetchall()
        session.done(lambda now: session.account.cleared.extend(floors))


def _delete(session: Session, choice: Choice) -> None:
    """Delete the queue or a partition of it; the deleted partitions are recorded under the lock of the queue."""
    queue, one = "deleted", choice.partitions[0] if choice.kind == "delete partition" else None
    session.account.moves.append(Move(choice.kind, None, queue, time.time(), time.time() + 30))
    with session.transaction(_in_transaction(choice)):
        session.connection.execute("SELECT FROM skep.queues WHERE name = %s FOR UPDATE", [queue])
        ids = session.connection.execute(
            "SELECT p.id FROM skep.partitions p JOIN skep.queues q ON q.id = p.queue_id"
            " WHERE q.name = %s AND p.name = coalesce(%s, p.name)", [queue, one],
        ).fetchall()  # fmt: skip
        if one is None:
            call(session.connection, "delete_queue", queue=queue)
            verbs.configure(session.connection, queue, **COMMON)
        else:
            call(session.connection, "delete_partition", queue=queue, partition=one)
        session.done(lambda now: session.account.deleted_partitions.extend(row[0] for row in ids))


def _delete_group(session: Session, choice: Choice) -> None:
    session.account.moves.append(Move("delete group", "gone", "strict", time.time(), time.time() + 30))
    with session.transaction(choice):
        call(session.connection, "delete_group", group_name="gone", queue="strict", keep_subscription=choice.by_name)


def _delete_message(session: Session, choice: Choice) -> None:
    pushed = session.account.pushes
    if pushed:
        key = pushed[int(choice.share * len(pushed))].key
        with session.transaction(_in_transaction(choice)):
            query = "SELECT skep.delete_message(skep.message_id(%s, %s))"
            if session.connection.execute(query, key).fetchall() == [(True,)]:
                session.done(lambda now: session.account.deleted_messages.append(key))


def _redrive(session: Session, choice: Choice) -> None:
    began = time.time()
    with session.transaction(choice):
        letters = session.connection.execute(
            'SELECT id, group_name, queue, partition_id, "offset" FROM skep.dead_letters'
            " WHERE queue NOT IN ('deleted', 'cleared') ORDER BY id LIMIT 5 FOR UPDATE SKIP LOCKED"
        ).fetchall()
        session.account.redriven.extend((group, (partition, offset)) for _, group, _, partition, offset in letters)
        rows = call(session.connection, "redrive", ids=[letter[0] for letter in letters])
        made = session.connection.execute(
            "SELECT skep.partition_of(id), skep.offset_of(id) FROM unnest(%s::uuid[]) AS id",
            [[row.message_id for row in rows]],
        ).fetchall()
        pushes = [(key, row.from_queue, row.for_group) for key, row in zip(made, rows, strict=True)]
        session.done(
            lambda now: session.account.pushes.extend(
                Push(key, queue, began, now, only_group=group) for key, queue, group in pushes
            )
        )


def _fall_silent(session: Session, choice: Choice) -> None:
    session.connection.execute(
        "UPDATE skep.subscriptions SET last_heartbeat_at = now() - interval '1 day' WHERE group_name = 'silent'"
    )


def _revive(session: Session, choice: Choice) -> None:
    verb = "heartbeat" if choice.by_name else "resume"
    with session.transaction(choice):
        call(session.connection, verb, group_name="silent", queue="limited")


def _subscribe(session: Session, choice: Choice) -> None:
    if "late" in GROUPS[choice.queue]:
        session.account.joined.setdefault(("late", choice.queue), time.time() + 1e9)
        with session.transaction(choice):
            call(session.connection, "subscribe", group_name="late", queue=choice.queue, mode="all")


def _cancel(session: Session, choice: Choice) -> None:
    """Cancel and subscribe again, which sets a new start; a pop in between is refused."""
    if "gone" in GROUPS[choice.queue]:
        session.account.moves.append(Move("delete group", "gone", choice.queue, time.time(), time.time() + 30))
        for verb in ("cancel", "subscribe"):
            with session.transaction(replace(choice, ends="none" if choice.ends == "rollback" else choice.ends)):
                call(session.connection, verb, group_name="gone", queue=choice.queue)


def _configure(session: Session, choice: Choice) -> None:
    options = {"shared": {"concurrency": choice.batch}, "ns.a": {"priority": choice.batch}}.get(
        choice.queue, {"window_buffer": 0}
    )
    with session.transaction(choice):
        verbs.configure(session.connection, choice.queue, **options)


def _upkeep(function: str, **arguments: Any) -> Callable[[Session, Choice], None]:
    """Run a job of upkeep. It never waits for a lock, so an error about one is reported."""

    def do(session: Session, choice: Choice) -> None:
        try:
            with session.transaction(choice):
                call(session.connection, function, **arguments)
        except psycopg.errors.LockNotAvailable as error:
            session.account.problems.append(f"upkeep waited: {function} {error}")
            raise

    return do


def _visit(session: Session, choice: Choice) -> None:
    """Run retention as upkeep does: only where something may have changed."""
    with session.transaction(choice):
        ((due, _),) = call(session.connection, "_partitions_due")
    with session.transaction(choice):
        session.connection.execute("SELECT skep.retain(%s)", [due])


def _check(session: Session, choice: Choice) -> None:
    if broken := verbs.broken(session.connection):
        session.account.problems.append(f"broken meanwhile: {broken}")


def _archive(session: Session, choice: Choice) -> None:
    with session.transaction(choice):
        session.connection.execute(
            "SELECT skep._mark_archived(l.partition_id, l.last_offset + 1) FROM skep.partition_list l"
            " WHERE l.queue = %s AND l.partition = ANY (%s) ORDER BY l.partition_id",
            [choice.queue, [*choice.partitions]],
        )  # fmt: skip


def _kill(session: Session, choice: Choice) -> None:
    time.sleep(0.2 + choice.share)
    others = sorted(name for name in session.pids if name != session.name)
    session.connection.execute(
        "SELECT pg_terminate_backend(%s)", [session.pids[others[int(choice.share * len(others))]]]
    )


STEPS: dict[str, Callable[[Session, Choice], None]] = {
    "push": _push, "push one": _push_one, "outbox": _outbox,
    **dict.fromkeys(ROLES["consumer"], _consume), "auto ack": _auto_ack, "transaction": _transaction,
    "merged": _merged, "visit": _visit,
    "seek": _seek, "skip": _seek, "pause": _pause, "clear": _clear, "delete queue": _delete,
    "delete partition": _delete, "delete group": _delete_group, "delete message": _delete_message,
    "subscribe": _subscribe, "redrive": _redrive,
    "fall silent": _fall_silent, "revive": _revive, "configure": _configure, "cancel": _cancel,
    "retain": _upkeep("retain"), "drop": _upkeep("drop_idle_partitions"), "expire": _upkeep("expire_leases"),
    "prune": _upkeep("prune_journal", older_than="0 s"), "detect": _upkeep("detect_dead_groups"), "check": _check,
    "archive": _archive, "kill": _kill,
}  # fmt: skip

CREW = {
    "producer 1": "producer", "consumer 1": "consumer", "consumer 2": "consumer", "consumer 3": "consumer",
    "admin": "admin", "upkeep 1": "upkeep", "upkeep 2": "upkeep", "killer": "killer",
}  # fmt: skip


def prepare(mq: psycopg.Connection) -> None:
    """Create the queues, and subscribe every group that exists from the beginning."""
    for queue, options in QUEUES.items():
        verbs.configure(mq, queue, **{**COMMON, **options})
        for group in GROUPS[queue]:
            if group == "wide":
                call(mq, "subscribe", group_name=group, namespace="ns", mode="all")
            elif group not in LATE:
                call(mq, "subscribe", group_name=group, queue=queue, mode="all", heartbeat_interval=10)


def run(url: str, seed: int, seconds: float) -> Account:
    """Run the load and return its account, when all sessions have ended."""
    account, pids = Account(), dict[str, int]()
    sessions = [Session(name, role, url, account, pids) for name, role in CREW.items()]
    for session in sessions:
        session.connect()
    until = time.time() + seconds
    threads = [threading.Thread(target=session.work, args=(seed, until)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions:
        session.connection.close()
    return account
