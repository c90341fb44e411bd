"""Retention amid pushes, pops, acks, seeks, new groups and open transactions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine import verbs
from tests.engine.verbs import broken, call, configure
from tests.isolation.programs import ack, begin, commit, patient, pop, push, run, take
from tests.isolation.steps import Session, Stage, Step, Story, every_order

RETAIN = run("retain", "SELECT missed FROM skep.retain()")
SEEK = run("seek", "SELECT skep.seek('g', %(queue)s, 'beginning')")
JOIN = run("join", "SELECT skep.subscribe('late', %(queue)s, mode => 'all')")
DROP = run("drop", "SELECT skep.drop_idle_partitions()", bounded=True)
CLEAR = run("clear", "SELECT skep.clear_queue(%(queue)s)")
DELETE_QUEUE = run("delete queue", "SELECT skep.delete_queue(%(queue)s)")
DELETE_GROUP = run("delete group", "SELECT skep.delete_group('g', %(queue)s)")
DELETE_PARTITION = run("delete partition", "SELECT skep.delete_partition(%(queue)s, 'x')")
REVIVE = run("revive", "SELECT skep.heartbeat('g', %(queue)s)")

# Writing to a table waits for these locks, reading does not: retention stops between its decision and its writes.
HOLD_DELETE = begin + run("hold delete", "LOCK TABLE skep.messages IN SHARE MODE")
HOLD_MISSED = begin + run("hold missed", "LOCK TABLE skep.missed_messages IN SHARE MODE")
WAIT_LONGER = "ALTER FUNCTION skep.retain(bigint[], integer, boolean) SET lock_timeout = '20s'"


def three_messages(story: Story, **options: object) -> None:
    """Push three messages, of which the group completes one."""
    for payload in "abc":
        push(payload, "x").do(story.sessions["A"])
    take(batch=1).do(story.sessions["A"])
    configure(story.sessions["A"].connection, story.sessions["A"].queue, **options)


def missed(connection: psycopg.Connection, queue: str, group: str = "g") -> int:
    query = "SELECT coalesce(sum(messages), 0)::int FROM skep.missed_messages WHERE queue = %s AND group_name = %s"
    ((number,),) = connection.execute(query, [queue, group]).fetchall()
    return number


def test_a_hard_limit_beside_a_consumer(stage: Stage):
    """Every message of the group is either completed by it or counted as missed, and none is both (scenario 89)."""

    def check(story: Story) -> None:
        session = story.sessions["A"]
        done = [*story.of_kind("acked"), *story.drain()]
        assert len({delivery.offset for delivery in done}) == len(done)
        assert len(done) + missed(session.connection, session.queue) == 4
        assert broken(session.connection) == {}

    def prepare(story: Story) -> None:
        three_messages(story, max_size=1)

    every_order(stage, prepare, check, A=[pop(batch=1), ack], R=[begin + RETAIN, commit], B=[push("d", "x")])


def test_deletion_of_completed_messages_beside_a_seek_back(stage: Stage):
    """A seek comes before the deletion or after it; in both cases the group continues in order."""

    def check(story: Story) -> None:
        session = story.sessions["A"]
        offsets = [delivery.offset for delivery in story.drain()]
        assert offsets == sorted(offsets)
        assert {1, 2} <= {delivery.offset for delivery in story.of_kind("acked")} | {*offsets}
        assert broken(session.connection) == {}

    def prepare(story: Story) -> None:
        three_messages(story, completed_retention_seconds=0)

    every_order(stage, prepare, check, A=[take(batch=1)], R=[begin + RETAIN, commit], S=[begin + patient(SEEK), commit])


def test_deletion_of_completed_messages_beside_a_new_group(stage: Stage):
    """A group that joins gets the messages that are left, without an error and without a gap (scenario 86)."""

    def check(story: Story) -> None:
        session = story.sessions["A"]
        rows = call(session.connection, "pop", queue=session.queue, group_name="late", batch=10)
        offsets = [row.offset for row in rows]
        assert offsets in ([0, 1, 2], [1, 2], [2], [])
        first = call(session.connection, "queue_status", queue=session.queue)[0]
        assert len(offsets) == first.messages
        assert broken(session.connection) == {}

    def prepare(story: Story) -> None:
        three_messages(story, completed_retention_seconds=0)

    every_order(stage, prepare, check, A=[take(batch=1)], R=[begin + RETAIN, commit], N=[begin + JOIN, commit])


@dataclass(frozen=True)
class Change:
    """Something a group does while retention runs: its steps, the step that takes effect, and the preparation."""

    group: str
    steps: list[Step]
    counts_from: int
    prepare: Callable[[psycopg.Connection, str], None]


def read_all(mq: psycopg.Connection, queue: str) -> None:
    verbs.drain(mq, queue, "g")


def read_by_another(mq: psycopg.Connection, queue: str) -> None:
    verbs.drain(mq, queue, "other")


def fall_silent(mq: psycopg.Connection, queue: str) -> None:
    """Another group has read everything; this one has read one message, and is dead."""
    verbs.drain(mq, queue, "other")
    verbs.take(mq, queue, "g", batch=1)
    mq.execute("UPDATE skep.subscriptions SET last_heartbeat_at = now() - interval '1 day' WHERE group_name = 'g'")
    assert [row.group_name for row in call(mq, "detect_dead_groups") if row.died] == ["g"]


def pop_by(group: str) -> Step:
    """Pop two messages; the lease has no others."""

    def do(session: Session) -> None:
        session.leased = verbs.pop(session.connection, session.queue, group, batch=2)
        query = "SELECT coalesce(sum(leased_to - first_offset), 0) FROM skep.leases WHERE lease_id = ANY (%s)"
        leased = session.connection.execute(query, [[row.lease for row in session.leased]]).fetchall()
        assert leased == [(len(session.leased),)]
        session.happened("popped", session.leased)

    return Step(f"pop by {group}", do, bounded=True)


def _ack_messages(session: Session) -> None:
    """Acknowledge the popped messages, which still exist."""
    query = 'SELECT count(*) FROM skep.messages WHERE partition_id = %s AND "offset" = ANY (%s)'
    offsets = [row.offset for row in session.leased]
    for partition in {row.partition_id for row in session.leased}:
        assert session.connection.execute(query, [partition, offsets]).fetchall() == [(len(offsets),)]
    ack.do(session)


ack_messages = Step("ack", _ack_messages)

CHANGES = {
    "first pop": Change("late", [begin + pop_by("late"), commit, ack_messages], 1, read_by_another),
    "subscribe and pop": Change("late", [JOIN, pop_by("late"), ack_messages], 0, read_by_another),
    "seek back": Change("g", [begin + patient(SEEK), commit, pop_by("g"), ack_messages], 1, read_all),
    "revive": Change("g", [REVIVE, pop_by("g"), ack_messages], 0, fall_silent),
    "revive by a pop": Change("g", [begin + pop_by("g"), commit, ack_messages], 1, fall_silent),
}


def check_account(story: Story, change: Change) -> None:
    """Each message of the group was delivered once, or is recorded as missed, and none is both.

    The messages of a group are those from its start on. A group from before retention began has lost nothing else.
    """
    session = story.sessions["X"]
    popped = [delivery for batch in story.of_kind("popped") for delivery in batch]
    assert story.of_kind("acked") == popped
    got = [delivery.offset for delivery in [*popped, *story.drain(change.group)]]
    query = "SELECT first_offset, end_offset, messages FROM skep.missed_messages WHERE queue = %s AND group_name = %s"
    rows = session.connection.execute(query, [session.queue, change.group]).fetchall()
    lost = {offset for first, end, _ in rows for offset in range(first, end)} - {*got}
    assert sum(messages for _, _, messages in rows) == len(lost)
    assert len({*got}) == len(got)
    retained = next(n for n, step in enumerate(story.steps_taken) if step.startswith("R:") and step.endswith("retain"))
    known = [n for n, step in enumerate(story.steps_taken) if step.startswith("X:")][change.counts_from]
    first = 1 if change.prepare is fall_silent else 0 if known < retained else min({*got, *lost, 4})
    assert sorted({*got, *lost}) == list(range(first, 4))
    assert broken(session.connection) == {}


COMPLETED, MAX_SIZE = {"completed_retention_seconds": 0}, {"max_size": 1}
RULES: dict[str, tuple[dict[str, int], Step | None]] = {
    "completed": (COMPLETED, None),
    "max_size": (MAX_SIZE, None),
    "completed, held before the delete": (COMPLETED, HOLD_DELETE),
    "max_size, held before the delete": (MAX_SIZE, HOLD_DELETE),
    "max_size, held before groups are moved": (MAX_SIZE, HOLD_MISSED),
}


def retains_while_held(order: list[str]) -> bool:
    """Return true if retention starts while it is held; all other orders are those without a hold."""
    return [name for name in order if name in "HR"] == ["H", "R", "H"]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("rule", "hold"), RULES.values(), ids=RULES)
def test_a_group_that_joins_or_moves(stage: Stage, change: str, rule: dict[str, Any], hold: Step | None):
    """It never holds a message that retention deletes, and nothing is lost without a record.

    In every order, also between the decision of retention and its deletion, and while either transaction is open.
    """
    stage.observer.execute(WAIT_LONGER)

    def prepare(story: Story) -> None:
        session = story.sessions["X"]
        for payload in "abcd":
            push(payload, "x").do(session)
        configure(session.connection, session.queue, **rule, dead_group_grace_seconds=0)
        CHANGES[change].prepare(session.connection, session.queue)

    def check(story: Story) -> None:
        check_account(story, CHANGES[change])

    steps = CHANGES[change].steps
    if hold is None:
        every_order(stage, prepare, check, X=steps, R=[begin + RETAIN, commit])
    else:
        every_order(stage, prepare, check, retains_while_held, X=steps, H=[hold, commit], R=[RETAIN])


def test_an_idle_partition_and_a_push(stage: Stage):
    """No message is lost if its partition is dropped at the same time."""

    def check(story: Story) -> None:
        assert [delivery.payload for delivery in story.drain()] == ["d x"]
        assert broken(story.sessions["A"].connection) == {}

    every_order(stage, idle, check, A=[begin + push("d", "x"), commit], D=[begin + DROP, commit])


def idle(story: Story) -> None:
    """Push to a partition, read it and empty it."""
    three_messages(story, completed_retention_seconds=0, drop_idle_seconds=0.000001)
    session = story.sessions["A"]
    take(batch=10).do(session)
    call(session.connection, "retain")


def push_again(payload: str, *partitions: str) -> Step:
    """Push, and push again after a retryable error, as clients do; a deadlock is not accepted."""
    once = push(payload, *partitions)

    def do(session: Session) -> None:
        for _ in range(3):
            try:
                return once.do(session)
            except psycopg.errors.SerializationFailure:
                pass
        raise TimeoutError(once.name)

    return Step(once.name, do)


def test_two_pushes_to_a_partition_that_is_dropped(stage: Stage):
    """Both push to it and to another one: both are stored."""

    def prepare(story: Story) -> None:
        push("c", "w").do(story.sessions["A"])
        idle(story)
        push("c", "w").do(story.sessions["A"])  # not idle

    def check(story: Story) -> None:
        delivered = sorted(delivery.payload for delivery in story.drain())
        assert delivered == ["c w", "d w", "d x", "e w", "e x"]
        assert broken(story.sessions["A"].connection) == {}

    pushes = {name: [push_again(payload, "w", "x")] for name, payload in (("A", "d"), ("B", "e"))}
    every_order(stage, prepare, check, A=pushes["A"], B=pushes["B"], D=[begin + DROP, commit])


def test_an_idle_partition_and_a_group(stage: Stage):
    """A group that joins, or seeks back, while its partition is dropped gets later messages."""

    def check(story: Story) -> None:
        push("d", "x").do(story.sessions["A"])
        for group in ("g", "late"):
            assert [delivery.payload for delivery in story.drain(group)][-1] == "d x"
        assert broken(story.sessions["A"].connection) == {}

    late, moved = [begin + pop_by("late"), commit], [begin + patient(SEEK), commit]
    every_order(stage, idle, check, A=late, S=moved, D=[begin + DROP, commit])


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (CLEAR, RETAIN), (CLEAR, DELETE_GROUP), (CLEAR, DELETE_QUEUE), (CLEAR, SEEK), (CLEAR, CLEAR), (CLEAR, DROP),
        (DELETE_QUEUE, DELETE_GROUP), (DELETE_QUEUE, RETAIN), (DELETE_QUEUE, SEEK), (DELETE_QUEUE, DROP),
        (DELETE_PARTITION, RETAIN), (DELETE_PARTITION, DELETE_GROUP), (DELETE_PARTITION, DROP),
        (DELETE_PARTITION, SEEK),
    ],
    ids=lambda step: step.name,
)  # fmt: skip
def test_two_deletions(stage: Stage, one: Step, two: Step):
    """They wait for each other or skip what is locked; there is no deadlock."""

    def prepare(story: Story) -> None:
        session = story.sessions["A"]
        for payload in "abcd":
            push(payload, "x", "y").do(session)
        configure(session.connection, session.queue, max_size=1, drop_idle_seconds=0.000001, concurrency=2)
        pop_by("late").do(session)
        take(batch=1).do(session)

    def check(story: Story) -> None:
        assert broken(story.observer) == {}

    programs = {name: [begin + unless_gone(step), commit] for name, step in (("A", one), ("B", two))}
    every_order(stage, prepare, check, A=programs["A"], B=programs["B"], C=[take(batch=2)])


def unless_gone(step: Step) -> Step:
    """Take a step that may be refused if the queue was deleted before it."""

    def do(session: Session) -> None:
        try:
            step.do(session)
        except psycopg.Error as error:
            if error.sqlstate != "SK002":
                raise

    return Step(step.name, do)


FORGOTTEN: dict[str, tuple[LiteralString, dict[str, Any]]] = {
    "push": ("push_many", {"queues": ["q"], "partitions": ["x"], "payloads": ["{}"]}),
    "pop": ("pop", {"queue": "q", "group_name": "slow", "partition": "x"}),
    "first pop": ("pop", {"queue": "q", "group_name": "new", "partition": "x"}),
    "seek": ("seek", {"group_name": "slow", "queue": "q", "position": "beginning", "partition": "x"}),
    "delete a message": ("delete_message", {}),
    "delete a partition": ("delete_partition", {"queue": "q", "partition": "x"}),
    "clear": ("clear_queue", {"queue": "q", "partition": "x"}),
    "retain": ("retain", {}),
    "archive": ("_mark_archived", {"end_offset": 1}),
}


def leave_open(mq: psycopg.Connection, forgotten: str) -> None:
    """Do something to partition x, in a transaction that is never ended."""
    function, arguments = FORGOTTEN[forgotten]
    ((x,),) = mq.execute(
        "SELECT partition_id FROM skep.partition_list WHERE queue = 'q' AND partition = 'x'"
    ).fetchall()
    if function == "delete_message":
        ((arguments["id"],),) = mq.execute("SELECT skep.message_id(%s, 0)", [x]).fetchall()
    elif function == "_mark_archived":
        arguments["partition_id"] = x
    call(mq, function, **arguments)


@pytest.fixture
def sessions(stage: Stage) -> list[psycopg.Connection]:
    """Three sessions: one that leaves its transaction open, upkeep, which must not wait, and another user."""
    story = stage.begin_story(["F", "U", "C"])
    for session in story.sessions.values():
        session.connection.execute("SET statement_timeout = '900ms'")
    return [session.connection for session in story.sessions.values()]


def fill(mq: psycopg.Connection, **options: Any) -> None:
    """Two partitions: one group has read all of them, another nothing of x and all of y."""
    configure(mq, "q", **options)
    for partition in "xy":
        verbs.push(mq, "q", *range(4), partition=partition)
        configure(mq, "elsewhere", **options)
        verbs.push(mq, "elsewhere", *range(4), partition=partition)
    verbs.drain(mq, "q", "fast")
    verbs.drain(mq, "q", "slow", partition="y")
    verbs.take(mq, "q", "slow", partition="x", batch=1)
    mq.execute("SELECT skep._mark_archived(partition_id, 0) FROM skep.partition_list")


@pytest.mark.parametrize("forgotten", FORGOTTEN)
def test_an_open_transaction_and_retention(sessions: list[psycopg.Connection], forgotten: str):
    """Retention skips what the transaction has locked, deletes elsewhere, and makes no other session wait."""
    forgetful, upkeep, user = sessions
    fill(user, max_size=2)
    with forgetful.transaction(force_rollback=True):
        leave_open(forgetful, forgotten)
        with upkeep.transaction():
            done = {(row.queue, row.partition) for row in call(upkeep, "retain")}
            assert forgotten == "retain" or done >= {("q", "y"), ("elsewhere", "x"), ("elsewhere", "y")}
            verbs.push(user, "q", "more", partition="y")
            verbs.push(user, "elsewhere", "more", partition="x")
            assert verbs.take(user, "elsewhere", "late", partition="y") in ([], [0, 1, 2, 3])
    call(upkeep, "retain")
    assert {row.end_offset for row in call(user, "retain", dry_run=True)} == set()
    assert broken(user) == {}


@pytest.mark.parametrize("forgotten", FORGOTTEN)
def test_an_open_transaction_and_idle_partitions(sessions: list[psycopg.Connection], forgotten: str):
    """A partition that it has locked is not dropped; the others are, and no session waits."""
    forgetful, upkeep, user = sessions
    fill(user, completed_retention_seconds=0, zero_subscriber_retention_seconds=0.000001, drop_idle_seconds=0.000001)
    verbs.drain(user, "q", "slow")
    call(user, "retain")
    with forgetful.transaction(force_rollback=True):
        leave_open(forgetful, forgotten)
        with upkeep.transaction():
            call(upkeep, "drop_idle_partitions")
            verbs.push(user, "other", "more", partition="y")
            assert verbs.take(user, "other", "g") == ["more"]
    call(upkeep, "drop_idle_partitions")
    assert user.execute("SELECT count(*) FROM skep.partition_list WHERE queue <> 'other'").fetchall() == [(0,)]
    assert broken(user) == {}


@pytest.mark.parametrize("forgotten", ["pop", "seek", "delete a message", "retain"])
def test_an_open_transaction_and_clear_queue(sessions: list[psycopg.Connection], forgotten: str):
    """A user's command waits for a limited time, fails with a retryable error, and clears nothing."""
    forgetful, user, _ = sessions
    fill(user, max_size=2)
    user.execute("SET statement_timeout = '15s'")
    with forgetful.transaction(force_rollback=True):
        leave_open(forgetful, forgotten)
        with verbs.refused("55P03", '"q" is locked'):
            call(user, "clear_queue", queue="q")
        assert forgotten == "retain" or call(user, "clear_queue", queue="elsewhere", partition="y") == [(4,)]
    assert call(user, "clear_queue", queue="q") == [(8,)]
    assert broken(user) == {}


@pytest.mark.parametrize("forgotten", ["push", "pop", "retain", "delete a queue", "prune"])
def test_an_open_transaction_and_the_other_jobs(sessions: list[psycopg.Connection], forgotten: str):
    """Leases end, groups die and the journal is pruned, except where something is locked; no session waits."""
    forgetful, upkeep, user = sessions
    fill(user)
    verbs.pop(user, "elsewhere", "late", lease_time=0.001)
    user.execute("UPDATE skep.subscriptions SET last_heartbeat_at = now() - interval '1 day' WHERE queue = 'q'")
    with forgetful.transaction(force_rollback=True):
        if forgotten == "delete a queue":
            call(forgetful, "delete_queue", queue="q")
        elif forgotten == "prune":
            call(forgetful, "prune_journal", older_than="0 s")
        else:
            leave_open(forgetful, forgotten)
        call(upkeep, "expire_leases")
        assert upkeep.execute("SELECT count(*) FROM skep.leases l WHERE l.expires_at < now()").fetchall() == [(0,)]
        died = {row.group_name for row in call(upkeep, "detect_dead_groups") if row.died}
        assert died == {"pop": {"fast"}, "delete a queue": set()}.get(forgotten, {"slow", "fast"})
        call(upkeep, "prune_journal", older_than="0 s")
        verbs.push(user, "elsewhere", "more", partition="y")
    call(upkeep, "prune_journal", older_than="0 s")
    assert broken(user) == {}


def test_clear_queue_does_not_wait_for_pushes(sessions: list[psycopg.Connection]):
    """A message that commits later is after the cleared ones."""
    producer, user, _ = sessions
    fill(user)
    with producer.transaction():
        verbs.push(producer, "q", "later", partition="x")
        assert call(user, "clear_queue", queue="q") == [(8,)]
    assert [(row.offset, row.payload) for row in verbs.drain(user, "q", "slow")] == [(4, "later")]
    assert broken(user) == {}


def test_an_open_push_and_held_pushes(sessions: list[psycopg.Connection]):
    """They are stored in order, so they wait for the partition, for a limited time, and nothing is lost."""
    forgetful, upkeep, user = sessions
    verbs.push(user, "q", 1)
    call(user, "set_maintenance_mode", push=True)
    held = Jsonb([{"queue": "q", "partition": "Default", "payload": 2}])
    call(user, "_hold_push", messages=held)
    call(user, "set_maintenance_mode", push=False)
    upkeep.execute("SET statement_timeout = '15s'")
    with forgetful.transaction(force_rollback=True):
        verbs.push(forgetful, "q", 3)
        with verbs.refused("55P03"):
            call(upkeep, "_drain_held_pushes")
        call(user, "set_maintenance_mode", push=False)  # the session that ends maintenance mode does not wait
    assert call(upkeep, "_drain_held_pushes")[0].messages == 1
    assert [row.payload for row in verbs.drain(user, "q")] == [1, 2]
