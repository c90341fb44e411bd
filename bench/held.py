"""Throughput and cost while a transaction is open, so that no dead row can be removed.

Messages per second also depend on the disk, on checkpoints and on other processes, so the CPU of the backends per
message is compared as well.
"""

import time

import psycopg

from bench.background import Ended, in_background
from bench.report import Row
from bench.workers import PAYLOAD, Session

PARTITIONS = 8
CALL = 10  # messages
EDGE = 10.0  # seconds at the beginning and at the end, which are compared
PUSH = "SELECT count(*) FROM skep.push_many(%s, %s, %s::text[]::jsonb[])"
POP = "SELECT lease FROM skep.pop('held', %s, batch => %s::int) LIMIT 1"

AT_LEAST = 0.7  # of the messages per second at the beginning
Moved = list[tuple[float, int, int]]  # time, messages of the call, CPU of the backend so far in ns


def produce(session: Session, ended: Ended) -> Moved:
    """Push to the partitions in turn."""
    moved: Moved = []
    while not ended():
        partition = f"p-{len(moved) % PARTITIONS}"
        session.run(PUSH, ["held"] * CALL, [partition] * CALL, [PAYLOAD] * CALL)
        moved.append((time.time(), CALL, session.cpu()))
    return moved


def pop_and_ack(session: Session, ended: Ended, group: str) -> Moved:
    """Pop and ack, one lease after the other."""
    moved: Moved = []
    while not ended():
        leases = session.run(POP, group, CALL)
        if leases:
            session.run("SELECT skep.ack(%s)", leases[0][0])
            moved.append((time.time(), CALL, session.cpu()))
        else:
            time.sleep(0.001)
    return moved


def measure(url: str, seconds: float) -> list[Row]:
    jobs = [(produce,), (produce,), (pop_and_ack, "a"), (pop_and_ack, "a"), (pop_and_ack, "b"), (pop_and_ack, "b")]
    with psycopg.connect(url) as holder, in_background(url, *jobs) as helpers:
        holder.execute("CREATE TEMP TABLE held (x integer)")  # now it has a transaction id
        start = time.time()
        time.sleep(seconds)
        end = time.time()
    rows = []
    for name, group in (("push", helpers[:2]), ("pop and ack", helpers[2:])):
        results = [helper.result for helper in group]
        first, last = _speed(results, start), _speed(results, end - EDGE)
        what = f"{name}, a transaction open for {seconds:.0f} s"
        rows.append(Row(what, last, "msg/s", "at the beginning", last / max(first, 1), at_least=AT_LEAST))
        first, last = _cost(results, start), _cost(results, end - EDGE)
        rows.append(Row(what, last, "µs of CPU a message", "at the beginning", last / first))
    return rows


def _speed(results: list[Moved], since: float) -> float:
    """Return the messages per second during `EDGE` seconds from `since` on."""
    return sum(n for moved in results for at, n, _ in moved if since <= at < since + EDGE) / EDGE


def _cost(results: list[Moved], since: float) -> float:
    """Return the microseconds of CPU per message of the backends during that time."""
    messages = used = 0
    for moved in results:
        window = [(n, cpu) for at, n, cpu in moved if since <= at < since + EDGE]
        messages += sum(n for n, _ in window[1:])
        used += window[-1][1] - window[0][1] if window else 0
    return used / 1e3 / max(messages, 1)
