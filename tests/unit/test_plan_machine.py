"""A consumer's plan under any order of events that Hypothesis generates.

The driver works as the real one, without its calls: it performs one action after the other and receives reports only
while it waits. Its calls take time, fail, or find that the lease is lost.
"""

from collections.abc import Callable
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skep.client.plan import Ack, Action, Done, Extend, Plan, Pop, Release, Start, StoreAcks, Wait

LEASES = [2.4, 30.0]  # the short one is extended before a waiting batch is released
MOST_FAULTS = 3  # in a row
LONGEST_WAIT = 300.0

lucks = st.sampled_from(["good", "good", "good", "none", "fault"])
turns = st.lists(st.tuples(lucks, st.floats(0, 0.01), st.floats(0, 1)), min_size=1, max_size=8)


class Consumer(RuleBasedStateMachine):
    """The state of the database and of the handlers, to compare with the plan."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.popped: list[UUID] = []
        self.ready: list[UUID] = []
        self.busy: list[UUID] = []
        self.ended: dict[UUID, str] = {}
        self.deadlines: dict[UUID, float] = {}
        self.excused: set[UUID] = set()  # leased while the database failed to extend
        self.lost: set[UUID] = set()
        self.given: list[Ack] = []  # by handlers, as far as reported to the driver
        self.stored: list[Ack] = []
        self.inbox: list[Callable[[], None]] = []
        self.faults = 0
        self.stopping = self.done = False

    @initialize(
        concurrency=st.integers(1, 3),
        fetch_ahead=st.integers(0, 2),
        lease_time=st.sampled_from(LEASES),
        idle_timeout=st.none() | st.floats(0.05, 5),
    )
    def begin(self, concurrency: int, fetch_ahead: int, lease_time: float, idle_timeout: float | None) -> None:
        self.plan = Plan(concurrency, fetch_ahead, lease_time, poll_interval=1, idle_timeout=idle_timeout)

    @precondition(lambda self: not self.done)
    @rule(turns=turns)
    def the_driver_acts(self, turns: list[tuple[str, float, float]]) -> None:
        for luck, took, waited in turns:
            if not self.done:
                self.act(luck, took, waited)
                self.no_more_is_handled_than_allowed()
                self.no_lease_runs_out()

    def act(self, luck: str, took: float, waited: float) -> None:
        action = self.plan.next(self.now)
        match action:
            case Done():
                self.end()
            case Start(lease):
                self.start(lease)
            case Wait(seconds):
                self.wait(seconds, waited)
            case _:
                if luck == "fault" and self.faults < MOST_FAULTS:
                    self.fault(action, took)
                else:
                    self.faults = 0
                    self.call(action, luck, took)

    def start(self, lease: UUID) -> None:
        assert lease == self.ready[0]
        assert self.now < self.deadlines[lease]
        assert not self.stopping
        self.ready.remove(lease)
        self.busy.append(lease)
        self.plan.started(lease)

    def wait(self, seconds: float, part: float) -> None:
        """Wait until something is reported, or the time is over."""
        assert 0 < seconds <= LONGEST_WAIT
        if not self.inbox:
            self.now += seconds if part > 0.5 else seconds * part
        reports, self.inbox = self.inbox, []
        for report in reports:
            report()

    def fault(self, action: Action, took: float) -> None:
        self.faults += 1
        self.now += took
        if isinstance(action, Extend):
            self.excused |= {*self.ready, *self.busy}
        self.plan.failed(self.now)

    def call(self, action: Action, luck: str, took: float) -> None:
        asked_at = self.now
        self.now += took
        match action:
            case Pop():
                self.pop(asked_at, found=luck == "good")
            case StoreAcks(acks):
                assert [*self.stored, *acks] == self.given[: len(self.stored) + len(acks)]
                self.stored += acks
                self.plan.stored(acks)
            case Release(lease):
                self.ready.remove(lease)
                self.finish_with(lease, "released")
                self.plan.released(lease)
            case Extend(lease):
                self.extend(lease, asked_at)

    def pop(self, asked_at: float, *, found: bool) -> None:
        assert not self.stopping
        assert len(self.ready) + len(self.busy) < self.plan.concurrency + self.plan.fetch_ahead
        assert len(self.given) == len(self.stored)  # acks are stored first
        lease = UUID(int=len(self.popped)) if found else None
        if lease is not None:
            self.popped.append(lease)
            self.ready.append(lease)
            self.deadlines[lease] = asked_at + self.plan.lease_time
        self.plan.popped(asked_at, self.now, lease)

    def extend(self, lease: UUID, asked_at: float) -> None:
        if lease in self.lost:
            self.plan.lost(lease)
            if lease in self.ready:
                self.ready.remove(lease)
                self.finish_with(lease, "lost")
        else:
            self.plan.extended(asked_at, lease)
            self.deadlines[lease] = asked_at + self.plan.lease_time
            self.excused.discard(lease)

    def end(self) -> None:
        assert self.stopping or self.plan.idle_timeout is not None
        assert not self.ready
        assert not self.busy
        assert self.given == self.stored
        self.done = True

    def finish_with(self, lease: UUID, how: str) -> None:
        assert lease not in self.ended
        self.ended[lease] = how

    @precondition(lambda self: self.working())
    @rule(data=st.data())
    def a_handler_acks(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.working()))
        ack = Ack(lease, UUID(int=len(self.given) + len(self.inbox)), "completed")
        self.inbox.append(lambda: self.receive([ack]))

    @precondition(lambda self: self.working())
    @rule(data=st.data())
    def a_handler_ends(self, data: st.DataObject) -> None:
        self.handler_ends(data.draw(st.sampled_from(self.working())))

    def working(self) -> list[UUID]:
        """Return the leases whose handlers have not finished."""
        return [lease for lease in self.busy if lease not in self.ended]

    def handler_ends(self, lease: UUID) -> None:
        self.finish_with(lease, "finished")

        def report() -> None:
            self.receive([Ack(lease, None, "completed")])
            self.busy.remove(lease)
            self.plan.finished(lease)

        self.inbox.append(report)

    def receive(self, acks: list[Ack]) -> None:
        self.given += acks
        self.plan.acked(acks)

    @precondition(lambda self: self.ready or self.working())
    @rule(data=st.data())
    def a_lease_is_lost(self, data: st.DataObject) -> None:
        """For example by a seek of the group."""
        self.lost.add(data.draw(st.sampled_from(self.ready + self.working())))

    @rule()
    def a_message_is_pushed(self) -> None:
        self.inbox.append(self.plan.woken)

    @precondition(lambda self: not self.stopping)
    @rule(chance=st.integers(0, 9))
    def the_consumer_is_stopped(self, chance: int) -> None:
        def report() -> None:
            self.stopping = True
            self.plan.stop()

        if chance == 0:
            self.inbox.append(report)

    @invariant()
    def no_more_is_handled_than_allowed(self) -> None:
        assert len(self.busy) <= self.plan.concurrency

    @invariant()
    def no_lease_runs_out(self) -> None:
        live = {lease for lease in self.ready + self.busy if lease not in self.lost | self.excused}
        assert all(self.now < self.deadlines[lease] for lease in live)

    def teardown(self) -> None:
        """After a stop it ends, and every popped batch has ended in exactly one way."""
        if not hasattr(self, "plan"):
            return
        self.plan.stop()
        self.stopping = True
        for lease in self.working():
            self.handler_ends(lease)
        for _ in range(100):
            if not self.done:
                self.act("good", 0.01, 1)
        assert self.done
        assert set(self.ended) == set(self.popped)


TestConsumer = Consumer.TestCase
TestConsumer.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
