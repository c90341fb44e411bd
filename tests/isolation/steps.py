"""Sessions that take their steps in every possible order.

A program is what one session does, a list of steps; a step may block until another session commits. `every_order` runs
all interleavings of some programs, each on a queue of its own, and checks the result of each:

    every_order(stage, A=[begin + push("a"), commit], B=[take(), take()])

After a step is started the next one waits until every session is idle or blocked by another. The later steps of a
blocked session wait behind it. A step that must never wait for an open transaction is `bounded`: if it does, the story
fails.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.engine.verbs import Row, broken, drain, pass_time

BOUND = 2.0  # seconds that a bounded step may take, whatever other sessions do
PATIENCE = 20.0  # seconds that a step may take once no session blocks it
_moments = itertools.count()
BLOCKED = "SELECT cardinality(pg_blocking_pids(%s)) > 0"


@dataclass(frozen=True)
class Step:
    """Something one session does; steps are joined with + to be taken at once."""

    name: str
    do: Callable[["Session"], None]
    bounded: bool = False

    def __add__(self, later: "Step") -> "Step":
        def both(session: Session) -> None:
            self.do(session)
            later.do(session)

        return Step(f"{self.name}+{later.name}", both, self.bounded or later.bounded)


@dataclass(frozen=True)
class Event:
    """Something that became visible to everyone, because its transaction committed (or needed none)."""

    kind: str  # pushed, popped, acked, refused, and others that the programs of a test add
    what: Any
    ended: int  # when its statement ended: a statement that waited for a lock has a later number

    def __str__(self) -> str:
        deliveries = self.what if isinstance(self.what, list) else [self.what]
        return f"{self.kind} {[getattr(delivery, 'payload', delivery) for delivery in deliveries]}"


@dataclass
class Session:
    """One connection and the thread that uses it."""

    name: str
    connection: psycopg.Connection
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    queue: str = ""
    leased: list[Row] = field(default_factory=list)  # the deliveries of the last pop
    uncommitted: list[Event] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)  # shared by the sessions of a story
    running: list[Future] = field(default_factory=list)

    def happened(self, kind: str, what: Any) -> None:
        """Record what this step did; it becomes an event of the story at commit."""
        open_transaction = self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
        (self.uncommitted if open_transaction else self.events).append(Event(kind, what, next(_moments)))

    def end_transaction(self, *, committed: bool) -> None:
        if committed:
            self.events.extend(self.uncommitted)
        self.uncommitted.clear()

    def start(self, step: Step) -> None:
        self.running.append(self.thread.submit(step.do, self))

    def busy(self) -> bool:
        """Return true if a step is running; raise the error of a finished step."""
        while self.running and self.running[0].done():
            self.running.pop(0).result()
        return bool(self.running)


class Stage:
    """The database and the sessions, which are used by one story after the other."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._url = url
        self._stack = stack
        self._sessions: dict[str, Session] = {}
        self._stories = 0
        self.observer = self._open()

    def _open(self) -> psycopg.Connection:
        connection = psycopg.connect(self._url, autocommit=True)
        self._stack.callback(connection.close)
        return connection

    def _close(self, session: Session) -> None:
        """End a session that a failed story has left blocked, so that its thread ends."""
        if any(not future.done() for future in session.running):
            self.observer.execute("SELECT pg_terminate_backend(%s)", [session.connection.info.backend_pid])
        session.thread.shutdown(cancel_futures=True)

    def begin_story(self, names: list[str]) -> "Story":
        for name in names:
            if name not in self._sessions:
                self._sessions[name] = Session(name, self._open())
                self._stack.callback(self._close, self._sessions[name])
        self._stories += 1
        story = Story(f"q{self._stories}", self.observer, {name: self._sessions[name] for name in names})
        for session in story.sessions.values():
            session.queue, session.leased, session.events = story.queue, [], story.events
        return story


@dataclass
class Story:
    """One interleaving, and its events."""

    queue: str
    observer: psycopg.Connection
    sessions: dict[str, Session]
    events: list[Event] = field(default_factory=list)
    steps_taken: list[str] = field(default_factory=list)

    def take_step(self, name: str, step: Step) -> None:
        """Let a session take a step; return when every session is idle or blocked."""
        self.steps_taken.append(f"{name}:{step.name}")
        session = self.sessions[name]
        waits_behind = session.busy()
        session.start(step)
        self._wait(session if step.bounded and not waits_behind else None)

    def finish(self) -> None:
        """Wait for the sessions that are still blocked: nothing may block them by now."""
        self._wait(None, everybody=True)

    def _wait(self, bounded: Session | None, *, everybody: bool = False) -> None:
        start = time.monotonic()
        while busy := [session for session in self.sessions.values() if session.busy()]:
            waited = time.monotonic() - start
            must_end = everybody or bounded in busy
            if waited > (BOUND if bounded in busy else PATIENCE) and must_end:
                raise TimeoutError(f"{', '.join(session.name for session in busy)} hangs")
            if not must_end and waited > 0.002 and all(self._blocked(session) for session in busy):
                return
            awaited = [session for session in busy if session is bounded] or busy
            wait([session.running[-1] for session in awaited], timeout=0.003)

    def _blocked(self, session: Session) -> bool:
        return self.observer.execute(BLOCKED, [session.connection.info.backend_pid]).fetchall() == [(True,)]

    def of_kind(self, kind: str) -> list:
        return [event.what for event in self.events if event.kind == kind]

    def ended_after(self, kind: str) -> "Story":
        """Return the rest of the story: statements that ended after the one of this kind."""
        last = max(event.ended for event in self.events if event.kind == kind)
        return replace(self, events=[event for event in self.events if event.ended > last])

    def committed_after(self, kind: str) -> "Story":
        """Return the rest of the story: transactions that committed after the one of this kind.

        No two may end in one step.
        """
        last = max(n for n, event in enumerate(self.events) if event.kind == kind)
        return replace(self, events=self.events[last + 1 :])

    def drain(self, group: str = "g") -> list[Row]:
        """Let all leases expire, then take everything that is left, as a later consumer would."""
        pass_time(self.observer, 3600)
        return drain(self.observer, self.queue, group, partitions=100)

    def check_everything_arrives(self) -> None:
        """Check that each message is acknowledged once, in order, with dense offsets, and every invariant holds."""
        acked = [*self.of_kind("acked"), *self.drain()]
        assert sorted(map(str, self.of_kind("pushed"))) == sorted(str(delivery.payload) for delivery in acked)
        for partition in {delivery.partition for delivery in acked}:
            offsets = [delivery.offset for delivery in acked if delivery.partition == partition]
            assert sorted(offsets) == list(range(len(offsets)))
        self.check_order()

    def check_order(self) -> None:
        """Check that each pop delivers a partition in offset order, and that no invariant is broken."""
        for deliveries in self.of_kind("popped"):
            for partition in {delivery.partition for delivery in deliveries}:
                offsets = [delivery.offset for delivery in deliveries if delivery.partition == partition]
                assert offsets == sorted(offsets)
        assert broken(self.observer) == {}


def orders(lengths: dict[str, int]) -> Iterator[list[str]]:
    """Return every sequence of names in which each name occurs as often as its program has steps."""
    if not any(lengths.values()):
        yield []
    for name, left in lengths.items():
        if left:
            for rest in orders({**lengths, name: left - 1}):
                yield [name, *rest]


def every_order(
    stage: Stage,
    prepare: Callable[[Story], None] = lambda story: None,
    check: Callable[[Story], None] = Story.check_everything_arrives,
    only: Callable[[list[str]], bool] = lambda order: True,
    **programs: list[Step],
) -> None:
    """Run and check every interleaving of the programs, or `only` some; a failure reports the whole story."""
    for order in filter(only, orders({name: len(program) for name, program in programs.items()})):
        story = stage.begin_story(list(programs))
        try:
            prepare(story)
            remaining = {name: iter(program) for name, program in programs.items()}
            for name in order:
                story.take_step(name, next(remaining[name]))
            story.finish()
            check(story)
            clear(story)
        except Exception as error:
            error.add_note(
                f"in the order: {', '.join(story.steps_taken)}\nwhat happened: {', '.join(map(str, story.events))}"
            )
            raise


LEFT = """
    SELECT (SELECT count(*) FROM skep.queues) AS queues, (SELECT count(*) FROM skep.partitions) AS partitions,
           (SELECT count(*) FROM skep.partition_floors) AS floors, (SELECT count(*) FROM skep.messages) AS messages,
           (SELECT count(*) FROM skep.journal) AS journal, (SELECT count(*) FROM skep.group_queues) AS group_queues,
           (SELECT count(*) FROM skep.discoveries) AS discoveries, (SELECT count(*) FROM skep.starts) AS starts,
           (SELECT count(*) FROM skep.runs) AS runs, (SELECT count(*) FROM skep.outbox) AS outbox,
           (SELECT count(*) FROM skep.outbox_transactions) AS notes,
           (SELECT count(*) FROM skep.delayed_messages) AS delayed
"""


def clear(story: Story) -> None:
    """Delete everything that the story created, and check that nothing is left, so that the next one starts empty."""
    story.observer.execute("SELECT skep.delete_queue(name) FROM skep.queues")
    story.observer.execute("DELETE FROM skep.subscriptions; DELETE FROM skep.dead_letters")
    (left,) = story.observer.cursor(row_factory=dict_row).execute(LEFT).fetchall()
    assert {name: rows for name, rows in left.items() if rows} == {}
