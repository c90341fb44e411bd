"""The engine against the model: thousands of random steps, and what it delivers is always what the design allows."""

import os
import sys
import uuid
from dataclasses import asdict
from itertools import cycle, groupby

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from tests.engine.answers import STATUSES
from tests.engine.model import FAILED, Lane, Lease, Model, Options, Place
from tests.engine.verbs import Row, broken, call, configure, pop, push, refused

NAMESPACE = "n"
QUEUES = [f"{NAMESPACE}.x", f"{NAMESPACE}.y"]
LANES = ["a", "b"]
GROUPS = ["steady", "wanderer"]  # only the wanderer seeks and is deleted
EVERYTHING = bool(os.environ.get("SKEP_TEST_ALL"))

queue_options = st.builds(
    Options,
    concurrency=st.sampled_from([1, 3]),
    partial_failure=st.sampled_from(["dead_letter", "retry"]),
    retry_limit=st.integers(0, 2),
)
queues, lanes, groups = st.sampled_from(QUEUES), st.sampled_from(LANES), st.sampled_from(GROUPS)
recent = st.integers(0, 5)  # counted back from the last one
letters = st.one_of(st.sampled_from(["c", "f", "a", "d"]), st.text("cfad.", min_size=1, max_size=6))
DELAY = 1000  # seconds: longer than the test

FORGET = "; ".join(
    f"DELETE FROM skep.{table}"
    for table in (
        "runs", "starts", "discoveries", "group_queues", "subscriptions", "dead_letters", "journal", "messages",
        "partition_floors", "partitions", "queues",
    )
)  # fmt: skip


def message_id(lane: Lane, offset: int) -> uuid.UUID:
    partition = f"{lane.id:015x}"
    return uuid.UUID(f"{partition[:12]}8{partition[12:]}{offset | 1 << 63:016x}")


class Engine(RuleBasedStateMachine):
    """Does the same to the engine and to the model, and compares them after every step."""

    mq: psycopg.Connection

    def __init__(self) -> None:
        super().__init__()
        self.mq.execute(FORGET)
        self.held: list[list[Lease]] = []
        self.met: set[tuple[str, str]] = set()

    @initialize(x=queue_options, y=queue_options)
    def begin(self, x: Options, y: Options) -> None:
        self.model = Model(dict(zip(QUEUES, (x, y), strict=True)))
        for queue, options in self.model.options.items():
            configure(self.mq, queue, retry_delay=0, **asdict(options))

    @rule(queue=queues, lane=lanes, count=st.integers(1, 9))
    def push(self, queue: str, lane: str, count: int) -> None:
        stored = self.model.lane(queue, lane)
        first = len(stored.payloads)
        payloads = [f"{queue} {lane} {first + number}" for number in range(count)]
        ids = [f"id {first + number}" for number in range(count)]
        answers = push(self.mq, queue, *payloads, partition=lane, transaction_ids=ids)
        assert [(row.status, row.offset) for row in answers] == [("queued", first + number) for number in range(count)]
        stored.payloads += payloads
        stored.id = answers[0].partition_id

    @precondition(lambda self: self.model.lanes)
    @rule(which=recent, offset=st.integers(0, 30))
    def push_duplicate(self, which: int, offset: int) -> None:
        lane = list(self.model.lanes.values())[which % len(self.model.lanes)]
        known = offset % len(lane.payloads)
        (row,) = push(self.mq, lane.queue, "again", partition=lane.name, transaction_ids=[f"id {known}"])
        assert (row.status, row.offset) == ("duplicate", known)

    @rule(group=groups, queue=queues, batch=st.integers(1, 8), partitions=st.integers(1, 3))
    def pop_queue(self, group: str, queue: str, batch: int, partitions: int) -> None:
        self.pop(group, [queue], batch=batch, partitions=partitions)

    @rule(group=groups, queue=queues, lane=lanes, batch=st.integers(1, 8))
    def pop_partition(self, group: str, queue: str, lane: str, batch: int) -> None:
        self.pop(group, [queue], lane, batch=batch)

    @rule(group=groups, batch=st.integers(1, 8), partitions=st.integers(1, 5))
    def pop_namespace(self, group: str, batch: int, partitions: int) -> None:
        self.pop(group, QUEUES, batch=batch, partitions=partitions)

    @rule(group=groups, queue=queues, batch=st.integers(1, 8))
    def pop_and_forget(self, group: str, queue: str, batch: int) -> None:
        self.pop(group, [queue], batch=batch, auto_ack=True)

    def pop(
        self,
        group: str,
        queues: list[str],
        lane: str | None = None,
        *,
        batch: int,
        partitions: int = 1,
        auto_ack: bool = False,
    ) -> list[Row]:
        scope = {"queue": queues[0], "partition": lane} if len(queues) == 1 else {"queue": None, "namespace": NAMESPACE}
        batch_size = {"batch": batch, "partitions": partitions, "auto_ack": auto_ack}
        rows = pop(self.mq, group=group, **scope, **batch_size)
        self.met |= {(group, queue) for queue in queues}
        self.model.subscribe(group, scope["queue"], lane)
        in_scope = [place for queue in queues for place in self.model.places_of(group, queue, lane)]
        self.return_expired(group)
        if not rows:
            assert [lease for place in in_scope for lease in place.leases if lease.expired] == [], "not returned"
            assert [place for place in in_scope if place.has_something_ready()] == [], "nothing, although it was ready"
            return rows
        assert len(rows) <= batch
        self.accept(group, rows, in_scope, partitions, auto_ack=auto_ack)
        return rows

    def return_expired(self, group: str) -> None:
        """Leases that are over end with some pop of the group, at the latest with one that finds nothing else."""
        kept = {lease for (lease,) in self.mq.execute("SELECT lease_id FROM skep.leases").fetchall()}
        for place in (place for queue in QUEUES for place in self.model.places_of(group, queue)):
            for lease in [lease for lease in place.leases if lease.expired and lease.id not in kept]:
                place.judge(lease, "expired")

    def accept(self, group: str, rows: list[Row], in_scope: list[Place], partitions: int, *, auto_ack: bool) -> None:
        leases = []
        for (queue, name), run in groupby(rows, key=lambda row: (row.queue, row.partition)):
            messages = list(run)
            place = self.model.place(group, self.model.lane(queue, name))
            assert place in in_scope
            lease = place.take([row.offset for row in messages], messages[0].attempt)
            assert [row.payload for row in messages] == [place.lane.payloads[row.offset] for row in messages]
            (lease_id,) = {row.lease for row in messages}
            lease.id = lease_id or uuid.uuid4()
            leases.append(lease)
        assert len(leases) <= partitions
        if auto_ack:
            self.complete(leases)
        self.held.append(leases)

    def pick(self, which: int) -> list[Lease]:
        return self.held[-1 - which % len(self.held)]

    @precondition(lambda self: self.held)
    @rule(which=recent, pattern=letters, rest=st.sampled_from([None, None, "c", "f", "d"]), delayed=st.booleans())
    def answer_some(self, which: int, pattern: str, rest: str | None, *, delayed: bool) -> None:
        """One call for some messages of a lease, in any mixture, and perhaps for everything not answered yet."""
        leases = self.pick(which)
        messages = [(lease, offset) for lease in leases for offset in lease.offsets]
        given = {message: STATUSES[letter] for message, letter in zip(messages, cycle(pattern)) if letter != "."}
        if given or rest:
            self.answer(leases, given, STATUSES[rest] if rest else None, delayed=delayed)

    @precondition(lambda self: self.held)
    @rule(which=recent, status=st.sampled_from(["completed", "failed", "failed", "dead_letter"]))
    def answer_the_rest(self, which: int, status: str) -> None:
        self.answer(self.pick(which), {}, status)

    @precondition(lambda self: self.held)
    @rule(which=recent, number=recent, letter=st.sampled_from("cfad"))
    def answer_one(self, which: int, number: int, letter: str) -> None:
        leases = self.pick(which)
        lease = leases[number % len(leases)]
        self.answer(leases, {(lease, lease.offsets[number % len(lease.offsets)]): STATUSES[letter]}, None)

    def answer(
        self, leases: list[Lease], given: dict[tuple[Lease, int], str], rest: str | None, *, delayed: bool = False
    ) -> None:
        whole = leases if rest else []
        statuses = [*given.values(), *([rest] * len(whole))]
        rows = call(
            self.mq, "ack_many",
            leases=[lease.id for lease, _ in given] + [lease.id for lease in whole],
            ids=[message_id(lease.place.lane, offset) for lease, offset in given] + [None] * len(whole),
            statuses=statuses,
            delays=[DELAY if delayed and status in FAILED else None for status in statuses],
        )  # fmt: skip
        assert [row.applied for row in rows] == [lease.live for lease, _ in given] + [lease.live for lease in whole]
        for lease in leases:
            said = {rest} | {status for (of, _), status in given.items() if of is lease}
            lease.retry_after |= delayed and bool(said & {*FAILED})
        if rest:
            unanswered = ((lease, offset) for lease in leases for offset in lease.unanswered())
            given = dict.fromkeys(unanswered, rest) | given
        self.settle({*whole, *(lease for lease, _ in given)}, given)

    def complete(self, leases: list[Lease]) -> None:
        self.settle({*leases}, {(lease, offset): "completed" for lease in leases for offset in lease.offsets})

    def settle(self, answered: set[Lease], given: dict[tuple[Lease, int], str]) -> None:
        for (lease, offset), status in given.items():
            if lease.live:
                lease.answer(offset, status)
        for lease in answered:
            lease.retry_after &= bool(lease.failed())
            if lease.live and "failed_alone" in lease.answers.values():
                lease.place.judge_alone(lease)
            elif lease.live and lease.is_answered:
                lease.place.judge(lease, "answered")

    @precondition(lambda self: self.held)
    @rule(which=recent, delayed=st.booleans())
    def release(self, which: int, *, delayed: bool) -> None:
        leases = self.pick(which)
        live = [lease for lease in leases if lease.live]
        arguments = {"leases": [lease.id for lease in leases], "delay": DELAY if delayed else None}
        if not live:
            with refused("SK003"):
                call(self.mq, "release_all", **arguments)
        else:
            call(self.mq, "release_all", **arguments)
        for lease in live:  # if the last messages without ack were deleted, the verdict was due before
            reason = "answered" if lease.is_answered else "released"
            lease.place.judge(lease, reason, delayed=delayed and reason == "released")

    @rule()
    def pass_time(self) -> None:
        """Every delay is over."""
        self.mq.execute("UPDATE skep.runs SET ready_at = now() WHERE ready_at > now() AND lease_id IS NULL")
        for place in self.model.places.values():
            place.pass_time()

    @precondition(lambda self: self.met)
    @rule(which=recent, limit=st.none() | st.integers(0, 2))
    def configure_group(self, which: int, limit: int | None) -> None:
        group, queue = sorted(self.met)[which % len(self.met)]
        call(self.mq, "configure_group", group_name=group, queue=queue, options=Jsonb({"retry_limit": limit}))
        self.model.configure_group(group, queue, limit)

    @precondition(lambda self: self.held)
    @rule(which=recent)
    def extend(self, which: int) -> None:
        leases = self.pick(which)
        ids = [lease.id for lease in leases]
        if any(lease.live for lease in leases):
            call(self.mq, "extend_all", leases=ids, seconds=100)
        else:
            with refused("SK003"):
                call(self.mq, "extend_all", leases=ids, seconds=100)

    @precondition(lambda self: self.held)
    @rule(which=recent)
    def expire(self, which: int) -> None:
        leases = self.pick(which)
        past = "UPDATE skep.runs SET expires_at = now(), ready_at = now() WHERE lease_id = ANY (%s)"
        self.mq.execute(past, [[lease.id for lease in leases]])
        for lease in leases:
            lease.expired = True

    @rule(queue=queues, lane=st.none() | lanes, offset=st.none() | st.integers(0, 12))
    def seek(self, queue: str, lane: str | None, offset: int | None) -> None:
        position = {None: "end", 0: "beginning"}.get(offset, str(offset))
        call(self.mq, "seek", group_name="wanderer", queue=queue, position=position, partition=lane)
        self.met.add(("wanderer", queue))
        self.model.seek("wanderer", queue, lane, offset)

    @precondition(lambda self: self.model.lanes)
    @rule(which=recent, back=st.integers(0, 12))
    def delete_message(self, which: int, back: int) -> None:
        lane = list(self.model.lanes.values())[which % len(self.model.lanes)]
        offset = max(0, len(lane.payloads) - 1 - back)
        (row,) = call(self.mq, "delete_message", id=message_id(lane, offset))
        assert row.delete_message == (offset not in lane.deleted)
        lane.deleted.add(offset)

    @precondition(lambda self: any(group == "wanderer" for group, _ in self.met))
    @rule(queue=queues, keep=st.booleans())
    def delete_group(self, queue: str, *, keep: bool) -> None:
        call(self.mq, "delete_group", group_name="wanderer", queue=queue, keep_subscription=keep)
        self.met.discard(("wanderer", queue))
        self.model.forget("wanderer", queue)
        if not keep:
            self.model.unsubscribe("wanderer", queue)
            self.model.starts = {scope: at for scope, at in self.model.starts.items() if scope[1] != queue}

    @invariant()
    def agrees(self) -> None:
        assert broken(self.mq) == {}
        dead = 'SELECT group_name, queue, partition, "offset", attempts FROM skep.dead_letters'
        assert sorted(self.mq.execute(dead).fetchall()) == sorted(self.model.dead_letters)
        query = "SELECT g, l.* FROM unnest(%s::text[]) AS g CROSS JOIN LATERAL skep.lag(g) l"
        rows: list[Row] = self.mq.cursor(row_factory=namedtuple_row).execute(query, [GROUPS]).fetchall()
        met = {(group, *lane) for group, queue in self.met for lane in self.model.lanes if lane[0] == queue}
        assert met <= {(row.g, row.queue, row.partition) for row in rows}
        for row in rows:
            place = self.model.place(row.g, self.model.lanes[row.queue, row.partition])
            place.check_cursor(row.cursor)
            assert row.lag == max(0, len(place.lane.payloads) - row.cursor)
            assert row.leased == len([lease for lease in place.leases if not lease.expired])

    def teardown(self) -> None:
        """Every message is completed or a dead letter in the end, once for each group."""
        if sys.exc_info()[0]:
            return
        for which in range(len(self.held)):
            self.expire(which)
        self.pass_time()
        for group in GROUPS:
            while self.pop(group, QUEUES, batch=100, partitions=10):
                leases = self.held[-1]
                call(self.mq, "ack_all", leases=[lease.id for lease in leases])
                self.complete(leases)
            self.agrees()
            for place in (place for queue in QUEUES for place in self.model.places_of(group, queue)):
                assert place.todo() == []
                assert place.lowest_cursor == max(place.start, len(place.lane.payloads))


@pytest.mark.timeout(900)  # finding the smallest example that fails takes up to five minutes
def test_the_engine_follows_the_model(module_database_url: str):
    """C1, C3, C5, C7, C8, C11: deliveries, dead letters and lag agree with the design after every step."""
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        call(connection, "configure_defaults", max_poll_interval=1e-6)  # "end" looks back twice as far

        class Connected(Engine):
            mq = connection

        run_state_machine_as_test(
            Connected,
            settings=settings(
                max_examples=320 if EVERYTHING else 200,
                stateful_step_count=60,
                deadline=None,
                derandomize=not EVERYTHING,
                database=None,
                print_blob=True,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
                phases=[Phase.generate, Phase.shrink],
            ),
        )
