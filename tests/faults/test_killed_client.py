"""Client processes are killed: acks stay, and messages without an ack are delivered again."""

import random
from collections.abc import Callable

import psycopg
import pytest

from skep import Skep
from tests.engine.verbs import broken, configure
from tests.faults.ledger import assert_everything_once, count, push_numbers, wait_for
from tests.faults.processes import Start
from tests.faults.worker import BATCH, LEDGER, Face

Q = "orders"
FACES: list[Face] = ["sync", "async"]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("acked", [0, 7])
def test_killed_in_the_middle_of_a_batch(database_url: str, start: Start, mq: Skep, face: Face, acked: int) -> None:
    """Messages without an ack are delivered again after the lease, acknowledged ones are not."""
    mq.queue(Q).push_many(range(BATCH + 5))
    victim = start(face, "some", database_url, Q, "g", str(acked))
    output = [victim.read() for _ in range(acked)]
    assert (output, victim.read()) == ([str(n) for n in range(acked)], "pausing")
    victim.kill()
    came: list[tuple[int, int]] = []
    while len(came) < BATCH + 5 - acked:
        with mq.queue(Q).pop(group="g", batch=BATCH, wait=10) as batch:
            came += [(message.offset, message.attempt) for message in batch]
    assert came == [*[(n, 2) for n in range(acked, BATCH)], *[(n, 1) for n in range(BATCH, BATCH + 5)]]
    assert [partition.lag for partition in mq.queue(Q).lag("g")] == [0]


def test_killed_at_random_times(
    database_url: str, start: Start, connect: Callable[..., psycopg.Connection], mq: Skep
) -> None:
    """Four consumers of two groups are killed and replaced repeatedly: every message is processed once."""
    observer = connect()
    observer.execute(LEDGER)
    configure(observer, Q, retry_limit=1000, retry_delay=0.001)
    rng = random.Random(6)
    groups: dict[str, Face] = {"of threads": "sync", "of tasks": "async"}
    alive = [(group, start(groups[group], "ledger", database_url, Q, group)) for group in [*groups, *groups]]
    produced = {f"p{n}": 0 for n in range(6)}
    for _ in range(6):
        push_numbers(mq, Q, produced, 40)
        group, victim = alive.pop(rng.randrange(len(alive)))
        seen, enough = count(observer, group), rng.randrange(200)
        wait_for(observer, group, min(seen + enough, sum(produced.values())))
        victim.kill()
        alive.append((group, start(groups[group], "ledger", database_url, Q, group)))
    push_numbers(mq, Q, produced, 10)
    assert_everything_once(observer, Q, groups, produced)


@pytest.mark.parametrize("face", FACES)
def test_a_killed_producer(
    database_url: str, start: Start, connect: Callable[..., psycopg.Connection], mq: Skep, face: Face
) -> None:
    """Messages that flush() has confirmed are stored, and all before them, once."""
    victim = start(face, "produce", database_url, Q, "partition")
    for _ in range(5):
        confirmed = int(victim.read())
    confirmed = max([confirmed, *map(int, victim.kill())])
    (status,) = mq.queues(Q)
    batch = mq.queue(Q).pop(batch=100_000)
    assert [message.payload for message in batch] == list(range(status.messages))
    assert status.messages >= confirmed >= 125
    assert broken(connect()) == {}
