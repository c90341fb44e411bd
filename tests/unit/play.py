"""A plan and a driver for it, at a time that the test sets."""

from uuid import UUID

from skep.client.plan import Ack, Action, Done, Plan, Pop, Start, Status, StoreAcks, Wait

LEASE = 30.0
POLL = 1.0


def uuid(number: int) -> UUID:
    return UUID(int=number)


def whole(number: int, status: Status = "completed") -> Ack:
    """Return the ack for a whole batch."""
    return Ack(uuid(number), None, status)


def seconds(action: Action) -> float:
    assert isinstance(action, Wait), action
    return action.seconds


class Play:
    """Acts as the driver, at a time that the test sets. Leases are numbers."""

    def __init__(
        self,
        *,
        concurrency: int = 1,
        fetch_ahead: int = 1,
        lease_time: float = LEASE,
        poll_interval: float = POLL,
        idle_timeout: float | None = None,
    ) -> None:
        self.plan = Plan(concurrency, fetch_ahead, lease_time, poll_interval, idle_timeout)
        self.now = 1000.0

    def next(self) -> Action:
        return self.plan.next(self.now)

    def later(self, seconds: float) -> Action:
        self.now += seconds
        return self.next()

    def wait(self) -> float:
        """Wait as long as the plan says, and return how long."""
        waited = seconds(self.next())
        self.now += waited
        return waited

    def pop(self, *numbers: int) -> None:
        """Pop these batches, one after the other."""
        for number in numbers:
            assert self.next() == Pop()
            self.plan.popped(self.now, self.now, uuid(number))
            if self.next() == Start(uuid(number)):
                self.plan.started(uuid(number))

    def pop_nothing(self) -> None:
        assert self.next() == Pop()
        self.plan.popped(self.now, self.now, None)

    def finish(self, number: int, *acks: Ack) -> None:
        self.plan.acked(acks)
        self.plan.finished(uuid(number))

    def store(self, *acks: Ack) -> None:
        assert self.next() == StoreAcks(acks)
        self.plan.stored(acks)

    def fail(self) -> None:
        """Report that the database cannot do the next action now."""
        assert not isinstance(self.next(), Wait | Start | Done)
        self.plan.failed(self.now)
