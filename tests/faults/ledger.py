"""The messages that were pushed, and the ledger of the messages that consumers have processed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import psycopg

from skep import Skep
from tests.engine.threads import until
from tests.engine.verbs import broken, lag


def push_numbers(mq: Skep, queue: str, produced: dict[str, int], number: int) -> None:
    """Push this many more numbers to each partition, and record them in `produced`."""
    with mq.queue(queue).buffer() as buffer:
        for partition, first in produced.items():
            for n in range(first, first + number):
                buffer.push(n, partition=partition)
            produced[partition] = first + number


def count(observer: psycopg.Connection, group: str) -> int:
    ((rows,),) = observer.execute('SELECT count(*) FROM ledger WHERE "group" = %s', [group]).fetchall()
    return rows


def wait_for(observer: psycopg.Connection, group: str, number: int) -> None:
    """Wait until a group has processed this many messages."""
    until(lambda: count(observer, group) >= number, f"group {group} to process {number} messages")


def ledger(observer: psycopg.Connection, group: str) -> dict[str, list[tuple[int, int]]]:
    """Return the (offset, number) pairs of each partition, in the order in which they were written."""
    rows: dict[str, list[tuple[int, int]]] = defaultdict(list)
    query = 'SELECT partition, "offset", n FROM ledger WHERE "group" = %s ORDER BY seq'
    for partition, offset, number in observer.execute(query, [group]).fetchall():
        rows[partition].append((offset, number))
    return rows


def assert_everything_once(
    observer: psycopg.Connection, queue: str, groups: Iterable[str], produced: Mapping[str, int]
) -> None:
    """Wait until each group has processed everything; assert that it did so once, in order."""
    for group in groups:
        wait_for(observer, group, sum(produced.values()))
        done = ledger(observer, group)
        assert done == {partition: [(n, n) for n in range(number)] for partition, number in produced.items() if number}
        assert set(lag(observer, group, queue).values()) <= {0}
    assert observer.execute("SELECT * FROM skep.dead_letters").fetchall() == []
    assert broken(observer) == {}
