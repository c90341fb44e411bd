"""A plan and somebody who does what it says, at a time that the test sets."""

from uuid import UUID

from skep.client.plan import Action, Answer, Done, Plan, Pop, Start, Status, Store, Wait

LEASE = 30.0
POLL = 1.0


def uuid(number: int) -> UUID:
    return UUID(int=number)


def word(number: int, status: Status = "completed") -> Answer:
    """The answer for all of a batch."""
    return Answer(uuid(number), None, status)


def seconds(action: Action) -> float:
    assert isinstance(action, Wait), action
    return action.seconds


class Play:
    """Does what a driver does, at a time that the test sets. Leases are numbers."""

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
        """Wait as long as it says; return how long that was."""
        waited = seconds(self.next())
        self.now += waited
        return waited

    def pop(self, *numbers: int) -> None:
        """Every pop brings the next of these batches."""
        for number in numbers:
            assert self.next() == Pop()
            self.plan.popped(self.now, self.now, uuid(number))
            if self.next() == Start(uuid(number)):
                self.plan.started(uuid(number))

    def pop_nothing(self) -> None:
        assert self.next() == Pop()
        self.plan.popped(self.now, self.now, None)

    def finish(self, number: int, *answers: Answer) -> None:
        self.plan.answered(answers)
        self.plan.finished(uuid(number))

    def store(self, *answers: Answer) -> None:
        assert self.next() == Store(answers)
        self.plan.stored(answers)

    def fail(self) -> None:
        """The database does not do what is asked of it now."""
        assert not isinstance(self.next(), Wait | Start | Done)
        self.plan.failed(self.now)
