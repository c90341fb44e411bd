"""What was given to consumers before the faults, and what is left after them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import psycopg

from skep import Skep
from tests.engine.threads import until
from tests.engine.verbs import broken, lag


def feed(mq: Skep, queue: str, produced: dict[str, int], number: int) -> None:
    """Push so many more numbers to each lane, and note it."""
    with mq.queue(queue).buffer() as buffer:
        for lane, first in produced.items():
            for n in range(first, first + number):
                buffer.push(n, partition=lane)
            produced[lane] = first + number


def count(observer: psycopg.Connection, group: str) -> int:
    ((lines,),) = observer.execute('SELECT count(*) FROM ledger WHERE "group" = %s', [group]).fetchall()
    return lines


def reach(observer: psycopg.Connection, group: str, number: int) -> None:
    """Wait until a group has done so much."""
    until(lambda: count(observer, group) >= number, f"group {group} to do {number} messages")


def ledger(observer: psycopg.Connection, group: str) -> dict[str, list[tuple[int, int]]]:
    """Return the (offset, number) of each line, lane by lane, in the order in which they were written."""
    lines: dict[str, list[tuple[int, int]]] = defaultdict(list)
    query = 'SELECT lane, "offset", n FROM ledger WHERE "group" = %s ORDER BY seq'
    for lane, offset, number in observer.execute(query, [group]).fetchall():
        lines[lane].append((offset, number))
    return lines


def assert_everything_once(
    observer: psycopg.Connection, queue: str, groups: Iterable[str], produced: Mapping[str, int]
) -> None:
    """Wait until each group has done everything; nothing is lost, doubled or out of order, and the log is whole."""
    for group in groups:
        reach(observer, group, sum(produced.values()))
        done = ledger(observer, group)
        assert done == {lane: [(n, n) for n in range(number)] for lane, number in produced.items() if number}
        assert set(lag(observer, group, queue).values()) <= {0}
    assert observer.execute("SELECT * FROM skep.dead_letters").fetchall() == []
    assert broken(observer) == {}
