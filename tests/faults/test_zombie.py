"""Consumers that are stopped past their lease and then go on: too late, and without harm."""

import random
from collections.abc import Callable

import psycopg
import pytest

from skep import Message, Skep
from tests.engine.threads import until
from tests.engine.verbs import broken, configure
from tests.faults.aftermath import assert_everything_once, count, feed, reach
from tests.faults.processes import Start
from tests.faults.worker import BATCH, LEDGER, Face

Q = "orders"
FACES: list[Face] = ["sync", "async"]


def take(mq: Skep, number: int) -> list[Message]:
    """Wait for so many messages, and complete them."""
    came: list[Message] = []
    while len(came) < number:
        with mq.queue(Q).pop(group="g", batch=BATCH, wait=10) as batch:
            came += batch
    return came


@pytest.mark.parametrize("face", FACES)
def test_late_answers_are_refused(
    database_url: str, start: Start, connect: Callable[..., psycopg.Connection], mq: Skep, face: Face
) -> None:
    """C5: whatever it says, it changes nothing: what another has completed does not come again."""
    mq.queue(Q).push_many(range(BATCH + 5))
    zombie = start(face, "hold", database_url, Q, "g")
    assert zombie.hear() == "holding"
    zombie.stop()
    came = take(mq, BATCH + 5)
    assert [message.payload for message in came] == list(range(BATCH + 5))
    zombie.go_on()
    zombie.tell()
    assert [zombie.hear() for _ in range(6)] == ["StaleLease"] * 6
    assert zombie.hear() == "lost"
    assert [lane.lag for lane in mq.queue(Q).lag("g")] == [0]
    assert (mq.dead_letters(), broken(connect())) == ([], {})
    assert not mq.queue(Q).pop(group="g")


@pytest.mark.parametrize("face", FACES)
def test_late_answers_during_the_lease_of_another_are_refused(
    database_url: str, start: Start, mq: Skep, face: Face
) -> None:
    """C5: the zombie goes on while another holds the same messages; that one's lease is unharmed."""
    mq.queue(Q).push_many(range(BATCH))
    zombie = start(face, "hold", database_url, Q, "g")
    assert zombie.hear() == "holding"
    zombie.stop()
    batch = mq.queue(Q).pop(group="g", batch=BATCH, wait=10)
    assert (batch[0].offset, batch[0].attempt) == (0, 2)
    zombie.go_on()
    zombie.tell()
    assert [zombie.hear() for _ in range(7)] == [*["StaleLease"] * 6, "lost"]
    batch.extend()
    batch.ack()
    assert [message.offset for message in take(mq, BATCH - len(batch))] == list(range(len(batch), BATCH))
    assert mq.dead_letters() == []


def test_late_answers_are_refused_before_anybody_else_came(
    database_url: str, start: Start, connect: Callable[..., psycopg.Connection], mq: Skep
) -> None:
    """C5: a lease is over when its time is, even if nobody has taken its messages yet."""
    mq.queue(Q).push_many(range(BATCH))
    zombie = start("sync", "hold", database_url, Q, "g")
    assert zombie.hear() == "holding"
    zombie.stop()
    observer = connect()
    expired = "SELECT count(*) FROM skep.leases WHERE expires_at <= clock_timestamp()"
    until(lambda: observer.execute(expired).fetchall() == [(1,)], "the lease to be over")
    zombie.go_on()
    zombie.tell()
    assert [zombie.hear() for _ in range(7)] == [*["StaleLease"] * 6, "lost"]
    assert [(message.offset, message.attempt) for message in take(mq, BATCH)] == [(n, 2) for n in range(BATCH)]
    assert (mq.dead_letters(), broken(observer)) == ([], {})


@pytest.mark.parametrize("face", FACES)
def test_a_handler_that_was_stopped(
    database_url: str, start: Start, connect: Callable[..., psycopg.Connection], mq: Skep, face: Face
) -> None:
    """C5: its consumer learns that the lease is over and leaves the rest of the batch to the one who has it now."""
    mq.queue(Q).push_many(range(BATCH))
    zombie = start(face, "handle", database_url, Q, "g")
    assert zombie.hear() == "begin 0"
    zombie.stop()
    assert [message.offset for message in take(mq, BATCH)] == list(range(BATCH))
    zombie.go_on()
    assert "is over" in zombie.hear()
    zombie.tell()
    mq.queue(Q).push("next")
    assert zombie.hear() == f"begin {BATCH}"  # not 1: the batch was given up
    zombie.tell()
    until(lambda: [lane.lag for lane in mq.queue(Q).lag("g")] == [0], "the zombie to be useful again")
    assert (mq.dead_letters(), broken(connect())) == ([], {})


def test_stopped_at_random_times(
    database_url: str, start: Start, connect: Callable[..., psycopg.Connection], mq: Skep
) -> None:
    """C5: consumers of two groups are stopped past their leases, whatever they do: each message has its effect once."""
    observer = connect()
    observer.execute(LEDGER)
    configure(observer, Q, retry_limit=1000, retry_delay=0.001)
    dice = random.Random(5)
    groups: dict[str, Face] = {"of threads": "sync", "of tasks": "async"}
    workers = {
        group: [start(face, "ledger", database_url, Q, group) for _ in range(2)] for group, face in groups.items()
    }
    produced = {f"lane {n}": 0 for n in range(6)}
    for _ in range(3):
        zombies = {group: dice.choice(workers[group]) for group in groups}
        enough = {group: count(observer, group) + dice.randrange(1, 100) for group in groups}
        feed(mq, Q, produced, 100)
        for group, zombie in zombies.items():
            reach(observer, group, enough[group])
            zombie.stop()
        for group in groups:  # what the zombie held comes to the other one
            reach(observer, group, sum(produced.values()))
        feed(mq, Q, produced, 10)
        for zombie in zombies.values():
            zombie.go_on()
    assert_everything_once(observer, Q, groups, produced)
