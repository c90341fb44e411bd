"""Consumers are stopped until their lease has expired, and then continue: their late acks are rejected."""

import random
from collections.abc import Callable

import psycopg
import pytest

from skep import Message, Skep
from tests.engine.threads import until
from tests.engine.verbs import broken, configure
from tests.faults.ledger import assert_everything_once, count, push_numbers, wait_for
from tests.faults.processes import Start
from tests.faults.worker import BATCH, LEDGER, Face

Q = "orders"
FACES: list[Face] = ["sync", "async"]


def consume(mq: Skep, number: int) -> list[Message]:
    """Pop this many messages, and complete them."""
    came: list[Message] = []
    while len(came) < number:
        with mq.queue(Q).pop(group="g", batch=BATCH, wait=10) as batch:
            came += batch
    return came


@pytest.mark.parametrize("face", FACES)
def test_late_acks_are_rejected(
    database_url: str, start: Start, connect: Callable[..., psycopg.Connection], mq: Skep, face: Face
) -> None:
    """No late call changes anything: messages that another consumer completed are not delivered again."""
    mq.queue(Q).push_many(range(BATCH + 5))
    zombie = start(face, "hold", database_url, Q, "g")
    assert zombie.read() == "holding"
    zombie.stop()
    came = consume(mq, BATCH + 5)
    assert [message.payload for message in came] == list(range(BATCH + 5))
    zombie.resume()
    zombie.write()
    assert [zombie.read() for _ in range(6)] == ["StaleLease"] * 6
    assert zombie.read() == "lost"
    assert [partition.lag for partition in mq.queue(Q).lag("g")] == [0]
    assert (mq.dead_letters(), broken(connect())) == ([], {})
    assert not mq.queue(Q).pop(group="g")


@pytest.mark.parametrize("face", FACES)
def test_late_acks_during_another_lease_are_rejected(database_url: str, start: Start, mq: Skep, face: Face) -> None:
    """The zombie continues while another consumer has leased the same messages; that lease stays valid."""
    mq.queue(Q).push_many(range(BATCH))
    zombie = start(face, "hold", database_url, Q, "g")
    assert zombie.read() == "holding"
    zombie.stop()
    batch = mq.queue(Q).pop(group="g", batch=BATCH, wait=10)
    assert (batch[0].offset, batch[0].attempt) == (0, 2)
    zombie.resume()
    zombie.write()
    assert [zombie.read() for _ in range(7)] == [*["StaleLease"] * 6, "lost"]
    batch.extend()
    batch.ack()
    assert [message.offset for message in consume(mq, BATCH - len(batch))] == list(range(len(batch), BATCH))
    assert mq.dead_letters() == []


def test_late_acks_are_rejected_without_another_consumer(
    database_url: str, start: Start, connect: Callable[..., psycopg.Connection], mq: Skep
) -> None:
    """A lease expires even if no other consumer has leased its messages."""
    mq.queue(Q).push_many(range(BATCH))
    zombie = start("sync", "hold", database_url, Q, "g")
    assert zombie.read() == "holding"
    zombie.stop()
    observer = connect()
    expired = "SELECT count(*) FROM skep.leases WHERE expires_at <= clock_timestamp()"
    until(lambda: observer.execute(expired).fetchall() == [(1,)], "the lease to expire")
    zombie.resume()
    zombie.write()
    assert [zombie.read() for _ in range(7)] == [*["StaleLease"] * 6, "lost"]
    assert [(message.offset, message.attempt) for message in consume(mq, BATCH)] == [(n, 2) for n in range(BATCH)]
    assert (mq.dead_letters(), broken(observer)) == ([], {})


@pytest.mark.parametrize("face", FACES)
def test_a_handler_that_was_stopped(
    database_url: str, start: Start, connect: Callable[..., psycopg.Connection], mq: Skep, face: Face
) -> None:
    """Its consumer notices that the lease has expired, and drops the rest of the batch."""
    mq.queue(Q).push_many(range(BATCH))
    zombie = start(face, "handle", database_url, Q, "g")
    assert zombie.read() == "begin 0"
    zombie.stop()
    assert [message.offset for message in consume(mq, BATCH)] == list(range(BATCH))
    zombie.resume()
    assert "has ended" in zombie.read()
    zombie.write()
    mq.queue(Q).push("next")
    assert zombie.read() == f"begin {BATCH}"  # not 1: the rest of the batch was dropped
    zombie.write()
    until(
        lambda: [partition.lag for partition in mq.queue(Q).lag("g")] == [0], "the zombie to process the next message"
    )
    assert (mq.dead_letters(), broken(connect())) == ([], {})


def test_stopped_at_random_times(
    database_url: str, start: Start, connect: Callable[..., psycopg.Connection], mq: Skep
) -> None:
    """Consumers of two groups are stopped at random until their leases expire: each message is processed once."""
    observer = connect()
    observer.execute(LEDGER)
    configure(observer, Q, retry_limit=1000, retry_delay=0.001)
    rng = random.Random(5)
    groups: dict[str, Face] = {"of threads": "sync", "of tasks": "async"}
    workers = {
        group: [start(face, "ledger", database_url, Q, group) for _ in range(2)] for group, face in groups.items()
    }
    produced = {f"p{n}": 0 for n in range(6)}
    for _ in range(3):
        zombies = {group: rng.choice(workers[group]) for group in groups}
        enough = {group: count(observer, group) + rng.randrange(1, 100) for group in groups}
        push_numbers(mq, Q, produced, 100)
        for group, zombie in zombies.items():
            wait_for(observer, group, enough[group])
            zombie.stop()
        for group in groups:  # the other consumer gets the messages of the zombie
            wait_for(observer, group, sum(produced.values()))
        push_numbers(mq, Q, produced, 10)
        for zombie in zombies.values():
            zombie.resume()
    assert_everything_once(observer, Q, groups, produced)
