"""The effect of retention on pushes, whether it keeps up, and scenarios with groups, a backlog and a busy queue."""

import time
from statistics import median, quantiles
from typing import Any

import psycopg

from bench.background import POP, consume, in_background, push, push_batch, run_upkeep
from bench.fill import Connection, fill
from bench.report import Row, progress
from bench.workers import BATCH, Crew, Session, crew

ROUNDS = 4
PER_PARTITION = 1_000  # of the queue with max_size
BACKLOG = 500_000
KEPT = "SELECT coalesce(sum(messages), 0), coalesce(sum(first_offset), 0) FROM skep.partition_list WHERE queue = %s"
MATRIX_RATE = 500  # messages per second, each read by every group
# The tables have few rows, so a share of dead rows says little: their size shows whether dead rows are removed.
STATE = "SELECT sum(pg_total_relation_size('skep.' || name)) FROM unnest(%s::text[]) AS name"
STATE_TABLES = ["runs", "starts", "partition_floors", "group_queues", "subscriptions"]


def p95(times: list[float]) -> float:
    return quantiles(times, n=20)[-1] * 1e3


def _size(connection: Connection, queue: str) -> tuple[int, int]:
    """Return the number of messages kept, and deleted so far."""
    kept, deleted = connection.execute(KEPT, (queue,)).fetchone() or (0, 0)
    return int(str(kept)), int(str(deleted))


def push_done(session: Session) -> int:
    return push_batch(session, "done")


def push_sized(session: Session) -> int:
    return push_batch(session, "sized")


def _finish(connection: Connection) -> None:
    """Consume and delete the messages of the measurement before."""
    while connection.execute(POP, ("done", "g", 100_000)).fetchone() != (0,):
        progress("draining")
    while connection.execute("SELECT count(*) FROM skep.retain(max_messages => 100000)").fetchone() != (0,):
        progress("deleting")


def _measure(
    url: str, connection: Connection, eight: Crew, queue: str, seconds: float, *, upkeep: bool
) -> tuple[float, float]:
    """Return the pushes per second, and the share of the pushed messages that is kept at the end."""
    _finish(connection)
    jobs: list[tuple[Any, ...]] = [(consume, "done", ["g"], 10_000)] if queue == "done" else []
    before = sum(_size(connection, queue))
    with in_background(url, *jobs, *([(run_upkeep, url)] if upkeep else [])):
        rate = eight.rate(push_done if queue == "done" else push_sized, seconds)
        kept, deleted = _size(connection, queue)
    return rate, kept / max(kept + deleted - before, 1)


def _pushes(url: str, connection: Connection, seconds: float) -> list[Row]:
    """Measure each kind of retention off and on, in turn, with the same queue and consumer."""
    rows = []
    for queue, label in (("done", "completed_retention_seconds = 0"), ("sized", f"max_size = {PER_PARTITION:,}")):
        pairs = []
        with crew(url) as eight:
            for number in range(ROUNDS + 1):
                progress(f"pushes during retention, {label}: round {number + 1} of {ROUNDS + 1}")
                pairs.append(
                    [_measure(url, connection, eight, queue, seconds, upkeep=upkeep) for upkeep in (False, True)]
                )
        without, during = ([pair[n][0] for pair in pairs[1:]] for n in (0, 1))
        kept = median(pair[1][1] for pair in pairs[1:])
        ratio = median(a / b for a, b in zip(during, without, strict=True))
        rows += [
            Row(f"push 100, {label}, retention off", median(without), "msg/s"),
            Row(f"push 100, {label}, retention on", median(during), "msg/s", "off", ratio, at_least=0.85),
            Row(f"kept at the end of {seconds:g} s, {label}", 100 * kept, "%", "pushed", kept, at_most=0.5),
        ]
    return rows


def _groups(url: str, connection: Connection, number: int, seconds: float) -> tuple[list[float], int, int, float]:
    """Run a producer, groups on two connections, and retention. Return pop times, pushed, deleted, growth of state."""
    queue = f"matrix-{number}"
    connection.execute("SELECT skep.configure_queue(%s, '{\"completed_retention_seconds\": 0}')", (queue,))
    groups = [f"group {n}" for n in range(number)]
    for group in groups:
        connection.execute("SELECT skep.subscribe(%s, %s)", (group, queue))
    readers = [(consume, queue, groups[n::2], BATCH) for n in range(2)]
    with in_background(url, (push, queue, MATRIX_RATE), (run_upkeep, url), *readers) as (producer, _, *consumers):
        time.sleep(seconds / 2)
        half = _state(connection)
        time.sleep(seconds / 2)
        _, deleted = _size(connection, queue)
        growth = _state(connection) / half
    times = [elapsed for helper in consumers for elapsed in helper.result[1]]
    return times, producer.result, deleted, growth


def _state(connection: Connection) -> float:
    return float(str((connection.execute(STATE, (STATE_TABLES,)).fetchone() or (0,))[0]))


def _matrix(url: str, connection: Connection, seconds: float) -> list[Row]:
    rows = []
    for number in (4, 16, 64):
        times, pushed, deleted, growth = _groups(url, connection, number, seconds)
        name = f"{number} groups x {seconds:.0f} s x {pushed / seconds:,.0f} msg/s"
        kept = 1 - deleted / max(pushed, 1)
        rows += [
            Row(f"{name}: p95 of pop", p95(times), "ms", "limit of 10 ms", p95(times) / 10, at_most=1.0),
            Row(f"{name}: kept at the end", 100 * kept, "%", "pushed", kept, at_most=0.2),
            Row(f"{name}: state at the end", growth, "times", "at half-time", growth, at_most=1.2),
        ]
    return rows


def _kill_group(url: str, connection: Connection, seconds: float) -> list[Row]:
    """Kill the process of one of three groups, wait until the group is dead, and start it again."""
    queue, killed = "killed", "victim"
    connection.execute("SELECT skep.configure_queue(%s, '{\"completed_retention_seconds\": 0}')", (queue,))
    for group in ("a", "b"):
        connection.execute("SELECT skep.subscribe(%s, %s)", (group, queue))
    connection.execute(
        "SELECT skep.subscribe(%s, %s, heartbeat_interval => 0.5, heartbeat_timeout => 1, miss_threshold => 2)",
        (killed, queue),
    )
    jobs = [
        (push, queue, 1000),
        (run_upkeep, url),
        (consume, queue, ["a", "b"], 1000),
        (consume, queue, [killed], 1000),
    ]
    with in_background(url, *jobs) as (*_, victim):
        time.sleep(seconds)
        before = sum(_size(connection, queue))
        victim.kill()
        start = time.perf_counter()
        while _status(connection, killed) != "DEAD" and time.perf_counter() < start + 60:
            time.sleep(0.02)
        death = time.perf_counter() - start
        time.sleep(seconds)
        kept, deleted = _size(connection, queue)
        with in_background(url, (consume, queue, [killed], 1000)) as (restarted,):
            time.sleep(seconds)
        since = sum(_size(connection, queue)) - deleted  # kept for it, and pushed since
    name = f"3 groups x {3 * seconds:.0f} s, one killed"
    pushed, read = max(kept + deleted - before, 1), restarted.result[0]
    return [
        Row(f"{name}: dead after", death, "s", "its limit of 1.5 s", death / 1.5, at_most=2.0),
        Row(f"{name}: kept while it is dead", kept, "messages", "pushed since", kept / pushed, at_most=0.5),
        Row(f"{name}: read when it is back", read, "messages", "left and new", read / max(since, 1), at_most=1.0),
    ]


def _status(connection: Connection, group: str) -> object:
    query = "SELECT status FROM skep.subscriptions WHERE group_name = %s"
    return (connection.execute(query, (group,)).fetchone() or (None,))[0]


def _trips(connection: Connection, queue: str, seconds: float, every: float) -> list[float]:
    """Push one message and pop it, at an interval. Return the durations."""
    times, end = [], time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        connection.execute("SELECT skep.push(%s, '{}')", (queue,), prepare=True)
        connection.execute("SELECT skep.pop(%s, 'g', auto_ack => true)", (queue,), prepare=True).fetchall()
        times.append(time.perf_counter() - start)
        time.sleep(max(start + every - time.perf_counter(), 0))
    return times


def _backfill(url: str, connection: Connection, seconds: float) -> list[Row]:
    """Let a late group read a backlog while another queue is used."""
    fill(connection, "backlog", BACKLOG, partitions=8)
    alone, during = [], []
    for number in range(ROUNDS):
        alone += _trips(connection, "oltp", seconds / ROUNDS, 0.005)
        with in_background(url, (consume, "backlog", [f"late {number}"], BATCH)) as (late,):
            during += _trips(connection, "oltp", seconds / ROUNDS, 0.005)
    name = f"backlog of {BACKLOG:,}, up to 200 tps at the same time"
    read = late.result[0] / seconds * ROUNDS
    return [
        Row(f"{name}: backfill", read, "msg/s"),
        Row(f"{name}: p95 of push + pop", p95(during), "ms", "no backfill", p95(during) / p95(alone), at_most=2.0),
    ]


def _busy_queue(url: str, connection: Connection, seconds: float) -> list[Row]:
    alone = _trips(connection, "small", seconds, 0.1)
    with in_background(url, (push, "busy"), (consume, "busy", ["g"], 1000), (run_upkeep, url)) as (producer, *_):
        busy = _trips(connection, "small", seconds, 0.1)
    name = f"10 msg/s beside {producer.result / seconds:,.0f} msg/s for {seconds:.0f} s"
    return [
        Row(f"{name}: p95 of push + pop", p95(busy), "ms", "limit of 50 ms", p95(busy) / 50, at_most=1.0),
        Row(f"{name}: p95 alone", p95(alone), "ms"),
    ]


def measure(url: str, seconds: float) -> list[Row]:
    with psycopg.connect(url, autocommit=True) as connection:
        for queue, options in (
            ("done", '{"completed_retention_seconds": 0}'),
            ("sized", f'{{"max_size": {PER_PARTITION}}}'),
        ):
            connection.execute("SELECT skep.configure_queue(%s, %s)", (queue, options))
        return [
            *_pushes(url, connection, seconds),
            *_matrix(url, connection, 10 * seconds),
            *_kill_group(url, connection, 3 * seconds),
            *_backfill(url, connection, 8 * seconds),
            *_busy_queue(url, connection, 5 * seconds),
        ]
