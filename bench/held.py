"""Throughput while somebody holds a transaction open: no dead row can be removed, and all have to find past them."""

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

Moved = list[tuple[float, int]]  # when, and how many messages since the last one


def produce(session: Session, ended: Ended) -> Moved:
    """Push to one lane after the other."""
    moved: Moved = []
    while not ended():
        lane = f"lane-{len(moved) % LANES}"
        session.run(PUSH, ["held"] * CALL, [lane] * CALL, [PAYLOAD] * CALL)
        moved.append((time.time(), CALL))
    return moved


def work_off(session: Session, ended: Ended, group: str) -> Moved:
    """Pop and acknowledge, one lease after the other."""
    moved: Moved = []
    while not ended():
        leases = session.run(POP, group, CALL)
        if leases:
            session.run("SELECT skep.ack(%s)", leases[0][0])
            moved.append((time.time(), CALL))
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
    pushes, pops = helpers[:2], helpers[2:]
    rows = []
    for name, group in (("push", pushes), ("pop and ack", pops)):
        moved = [each for helper in group for each in helper.result]
        first = sum(n for at, n in moved if start <= at < start + EDGE) / EDGE
        last = sum(n for at, n in moved if end - EDGE <= at < end) / EDGE
        what = f"{name}, a transaction open for {seconds:.0f} s"
        rows.append(Row(what, last, "msg/s", "at the beginning", last / max(first, 1), at_least=0.7))
    return rows
