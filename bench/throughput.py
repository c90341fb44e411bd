"""Rates of push and of pop + ack, compared to a bare insert of the same rows."""

from statistics import median

import psycopg

from bench import workers
from bench.fill import fill
from bench.report import Row
from bench.workers import Call, Crew, crew

ROUNDS = 5
GROUPS = 10
BARE = "CREATE TABLE bare (a bigint, b bigint, created_at timestamptz, payload jsonb, PRIMARY KEY (a, b))"


def _prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(BARE)
        fill(connection, "wide", workers.PARTITIONS, partitions=workers.PARTITIONS)
        connection.execute("VACUUM ANALYZE")


def _subscribe_groups(url: str) -> None:
    """Create groups that have discovered every partition and have a lag in all of them."""
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(GROUPS):
            connection.execute("SELECT skep.pop('fanned', %s, partitions => 8, batch => 8)", (f"group-{number}",))


def _rounds(crew: Crew, seconds: float, *calls: Call, rounds: int = ROUNDS) -> list[list[float]]:
    """Return the rates of each call, measured in turn so that a disturbance affects all. The first round warms up."""
    rates = [[crew.rate(call, seconds) for call in calls] for _ in range(rounds + 1)]
    return [list(column) for column in zip(*rates[1:], strict=True)]


def _row(name: str, rates: list[float], reference: str, others: list[float], at_least: float) -> Row:
    ratio = median(rate / other for rate, other in zip(rates, others, strict=True))
    return Row(name, median(rates), "msg/s", reference, ratio, at_least=at_least)


def measure(url: str, seconds: float) -> list[Row]:
    _prepare(url)
    with crew(url) as eight:
        bare, one, many, single = _rounds(
            eight, seconds, workers.bare, workers.push_one_partition, workers.push_many_partitions, workers.push_single
        )
        popped, pushed = _rounds(eight, seconds, workers.pop_ack, workers.push_one_partition)
        eight.rate(workers.push_fanned_out, seconds)
        _subscribe_groups(url)
        grouped, plain = _rounds(
            eight, seconds / 2, workers.push_fanned_out, workers.push_one_partition, rounds=4 * ROUNDS
        )
    return [
        Row("bare INSERT … SELECT of 100", median(bare), "msg/s"),
        _row("push 100 to one partition", one, "bare insert", bare, 0.6),
        _row("push 100 to 100 of 100,000 partitions", many, "bare insert", bare, 0.3),
        Row("push 1", median(single), "msg/s"),
        _row("pop + ack 100", popped, "push 100", pushed, 1.0),
        _row("push 100, ten groups", grouped, "push 100, one group", plain, 0.95),
    ]
