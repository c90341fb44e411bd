"""A message that crashes its consumer is dead-lettered alone."""

import math

import psycopg
import pytest

from tests.engine.acks import ack_one, dead_letters
from tests.engine.verbs import Row, ack, broken, configure, lag, pass_time, pop, push

Q = "orders"
LEASE_SECONDS = 300
MESSAGES = 100


class Consumers:
    """Consumers that crash on some payloads, and new ones that replace them."""

    def __init__(self, connection: psycopg.Connection, poison: set[int], *, ack_at_once: bool) -> None:
        self.connection = connection
        self.poison = poison
        self.ack_at_once = ack_at_once
        self.completed: list[int] = []
        self.sizes_at_death: list[int] = []

    def work(self) -> None:
        for _ in range(40 * len(self.poison)):
            batch = pop(self.connection, Q)
            if not batch:
                return
            if not self._handle(batch):
                self.sizes_at_death.append(len(batch))
                pass_time(self.connection, LEASE_SECONDS + 1)
        pytest.fail("it never ends")

    def _handle(self, batch: list[Row]) -> bool:
        for message in batch:
            if message.payload in self.poison:
                return False
            if self.ack_at_once:
                ack_one(self.connection, message, "c")
                self.completed.append(message.payload)
        if not self.ack_at_once:
            ack(self.connection, batch)
            self.completed += [message.payload for message in batch]
        return True


@pytest.mark.parametrize("ack_at_once", [True, False], ids=["acks one by one", "acks at the end"])
@pytest.mark.parametrize("retry_limit", [0, 3, 12])
@pytest.mark.parametrize("poison", [{0}, {37}, {99}, {36, 37}, {0, 50, 99}], ids=str)
def test_only_the_poisonous_message_dies(
    conn: psycopg.Connection, poison: set[int], retry_limit: int, *, ack_at_once: bool
):
    """The others are completed once each, in order, and the number of crashes is bounded (scenario C7)."""
    configure(conn, Q, retry_limit=retry_limit)
    push(conn, Q, *range(MESSAGES))
    consumers = Consumers(conn, poison, ack_at_once=ack_at_once)
    consumers.work()

    assert [row.payload for row in dead_letters(conn, Q)] == sorted(poison)
    assert {row.error for row in dead_letters(conn, Q)} == {"lease expired"}
    assert all(row.attempts >= retry_limit + 1 for row in dead_letters(conn, Q))
    assert consumers.completed == [number for number in range(MESSAGES) if number not in poison]
    assert lag(conn) == {"Default": 0}
    assert broken(conn) == {}
    worst = max(retry_limit + 1, math.ceil(math.log2(MESSAGES)) + 1)
    assert len(consumers.sizes_at_death) <= worst * len(poison)


def test_runs_get_smaller_with_each_crash(conn: psycopg.Connection):
    """Each crash halves the run that the next consumer gets (scenario C7)."""
    push(conn, Q, *range(MESSAGES))
    consumers = Consumers(conn, {0}, ack_at_once=False)
    consumers.work()
    assert consumers.sizes_at_death == [100, 50, 25, 13, 7, 4, 2, 1]


def test_larger_batches_do_not_retry_a_poisonous_message_without_end(conn: psycopg.Connection):
    """A returned run is never joined with later messages of the partition (scenario C7)."""
    configure(conn, Q, retry_limit=0)
    push(conn, Q, *range(2))
    for size in (2, 1):
        assert len(pop(conn, Q)) == size
        pass_time(conn, LEASE_SECONDS + 1)
    assert [message.payload for message in pop(conn, Q)] == [1]
    assert [row.payload for row in dead_letters(conn, Q)] == [0]
