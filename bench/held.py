"""Throughput and cost while a transaction is held open, so that no dead row can be removed.

Messages per second also fall for other reasons (disk, checkpoints, the rest of the machine), so the CPU of the backends
per message is compared as well.
"""

import time

import psycopg

from bench.beside import Ended, beside
from bench.report import Row
from bench.workers import PAYLOAD, Session

LANES = 8
CALL = 10  # messages
EDGE = 10.0  # seconds at each end that are compared
PUSH = "SELECT count(*) FROM skep.push_many(%s, %s, %s::text[]::jsonb[])"
POP = "SELECT lease FROM skep.pop('held', %s, batch => %s::int) LIMIT 1"

AT_LEAST = 0.7  # of the messages per second at the beginning
Moved = list[tuple[float, int, int]]  # when, how many messages since the last one, CPU of the backend so far in ns


def produce(session: Session, ended: Ended) -> Moved:
    """Push to one lane after the other."""
    moved: Moved = []
    while not ended():
        lane = f"lane-{len(moved) % LANES}"
        session.run(PUSH, ["held"] * CALL, [lane] * CALL, [PAYLOAD] * CALL)
        moved.append((time.time(), CALL, session.cpu()))
    return moved


def work_off(session: Session, ended: Ended, group: str) -> Moved:
    """Pop and acknowledge, one lease after the other."""
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
    jobs = [(produce,), (produce,), (work_off, "a"), (work_off, "a"), (work_off, "b"), (work_off, "b")]
    with psycopg.connect(url) as holder, beside(url, *jobs) as helpers:
        holder.execute("CREATE TEMP TABLE held (x integer)")  # a transaction with an id: nothing younger can be removed
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
    """Return the messages per second in the window of `EDGE` seconds that begins here."""
    return sum(n for moved in results for at, n, _ in moved if since <= at < since + EDGE) / EDGE


def _cost(results: list[Moved], since: float) -> float:
    """Return the backends' microseconds of CPU per message in that window."""
    messages = used = 0
    for moved in results:
        window = [(n, cpu) for at, n, cpu in moved if since <= at < since + EDGE]
        messages += sum(n for n, _ in window[1:])
        used += window[-1][1] - window[0][1] if window else 0
    return used / 1e3 / max(messages, 1)
