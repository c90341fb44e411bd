"""Consumers are killed: acks stay, and messages without an ack are delivered again."""

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.engine.acks import dead_offsets, progress
from tests.engine.threads import until
from tests.engine.verbs import ack, broken, call, configure, lag, pop, push
from tests.faults.consumer import APPLICATION

SCRIPT = Path(__file__).with_name("consumer.py")
Q, OUT = "orders", "outgoing"
LEASE_SECONDS = 1.5
STEPS = 6  # statements of the transaction, BEGIN and COMMIT included


class Victim:
    """A consumer process: reads its output, lets it run steps, kills it."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, str(SCRIPT), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self.process.stdin
        assert self.process.stdout
        self.input, self.output = self.process.stdin, self.process.stdout

    def read(self) -> str:
        word = self.output.readline().strip()
        assert word, "the consumer ended unexpectedly"
        return word

    def step(self) -> None:
        self.input.write("\n")
        self.input.flush()

    def kill(self) -> list[str]:
        """Send SIGKILL, and return the rest of the output."""
        self.process.kill()
        self.process.wait()
        return self.output.read().split()

    def close(self) -> None:
        self.kill()
        self.input.close()
        self.output.close()


@pytest.fixture
def victim(database_url: str) -> Generator[Callable[..., Victim]]:
    with ExitStack() as stack:

        def start(job: str, *arguments: object) -> Victim:
            consumer = Victim(job, database_url, *arguments)
            stack.callback(consumer.close)
            return consumer

        yield start


def wait_until_gone(connection: psycopg.Connection) -> None:
    """Wait until the server has ended the session, and rolled back its transaction."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()"
    until(lambda: connection.execute(query, [APPLICATION]).fetchone() == (0,), "the session of the victim to end")


def consume_rest(connection: psycopg.Connection, count: int) -> dict[int, int]:
    """Pop and ack until this many messages came and no more follow. Return the attempt of each offset."""
    came: dict[int, int] = {}

    def once() -> bool:
        deliveries = pop(connection, Q)
        ack(connection, deliveries)
        came.update({message.offset: message.attempt for message in deliveries})
        return not deliveries and len(came) >= count

    until(once, f"{count} messages to be delivered again")
    return came


@pytest.mark.parametrize("acked", [0, 1, 7, 19])
def test_killed_in_the_middle_of_a_batch(
    connect: Callable[..., psycopg.Connection], victim: Callable[..., Victim], acked: int
):
    """Messages without an ack are delivered again after the lease, acknowledged ones are not."""
    mq = connect()
    configure(mq, Q, lease_time=LEASE_SECONDS)
    push(mq, Q, *range(21))
    consumer = victim("work", Q, 20, acked)
    assert consumer.read() == "popped"
    while consumer.read() != "pausing":
        pass
    consumer.kill()
    wait_until_gone(mq)
    assert lag(mq) == {"Default": 21}
    assert mq.execute("SELECT count(*) FROM skep.leases").fetchone() == (1,)

    came = consume_rest(mq, 21 - acked)
    assert came == {**dict.fromkeys(range(acked, 20), 2), 20: 1}
    assert lag(mq) == {"Default": 0}
    assert dead_offsets(mq, Q) == []
    assert broken(mq) == {}


@pytest.mark.parametrize("heard", [1, 40, 160])
def test_killed_at_full_speed(connect: Callable[..., psycopg.Connection], victim: Callable[..., Victim], heard: int):
    """Killed during an ack: every confirmed ack is durable, and all other messages are delivered again."""
    mq = connect()
    configure(mq, Q, lease_time=LEASE_SECONDS)
    push(mq, Q, *range(1_000))
    consumer = victim("work", Q, 1_000, 1_000)
    assert consumer.read() == "popped"
    output = [consumer.read() for _ in range(heard)]
    output += consumer.kill()
    wait_until_gone(mq)
    known = [int(word) for word in output if word.isdigit()]
    assert known == list(range(len(known)))

    came = consume_rest(mq, 1_000 - len(known) - 1)
    assert min(came) in (len(known), len(known) + 1)  # one ack may have been stored without a response
    assert sorted(came) == list(range(min(came), 1_000))
    assert lag(mq) == {"Default": 0}
    assert broken(mq) == {}


@pytest.mark.parametrize("steps", range(STEPS + 1))
def test_killed_in_a_transaction(connect: Callable[..., psycopg.Connection], victim: Callable[..., Victim], steps: int):
    """Killed after each statement: before COMMIT nothing is stored, after it everything."""
    mq = connect()
    push(mq, Q, *range(3))
    consumer = victim("transact", Q, OUT)
    lease = json.loads(consumer.read())["lease"]
    before = progress(mq)
    for _ in range(steps):
        consumer.step()
        consumer.read()
    consumer.kill()
    wait_until_gone(mq)
    if steps < STEPS:
        assert progress(mq) == before
        assert pop(mq, OUT) == []
        call(mq, "ack", lease=lease)  # the lease is still valid
    else:
        assert [message.payload for message in pop(mq, OUT)] == ["pushed", "outbox"]
        assert dead_offsets(mq, Q) == [2]
    assert lag(mq, queue=Q) == {"Default": 0}


@pytest.mark.parametrize("steps", range(STEPS))
def test_killed_during_a_statement(
    connect: Callable[..., psycopg.Connection], victim: Callable[..., Victim], steps: int
):
    """Killed during each statement, COMMIT included: everything is stored, or nothing."""
    mq = connect()
    push(mq, Q, *range(3))
    consumer = victim("transact", Q, OUT)
    consumer.read()
    for _ in range(steps):
        consumer.step()
        consumer.read()
    consumer.step()
    consumer.kill()
    wait_until_gone(mq)
    seen = (lag(mq, queue=Q)["Default"], [message.payload for message in pop(mq, OUT)], dead_offsets(mq, Q))
    assert seen in ((3, [], []), (0, ["pushed", "outbox"], [2]))
    assert broken(mq) == {}
