"""WAL bytes and rows written per message by push, pop and ack."""

from collections import Counter

import psycopg

from bench.report import Row
from bench.workers import PAYLOAD

Connection = psycopg.Connection[tuple[object, ...]]
CALLS = 200
WRITTEN = "SELECT pg_current_wal_insert_lsn() - '0/0', sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables"
PUSH = "SELECT count(*) FROM skep.push_many(%(queues)s, %(partitions)s, %(payloads)s::text[]::jsonb[])"
POP = "SELECT DISTINCT lease FROM skep.pop('wal', 'g', batch => %(batch)s::int)"
ACK = "SELECT skep.ack(%(lease)s)"


def _written(connection: Connection) -> tuple[int, int]:
    connection.execute("SELECT pg_stat_force_next_flush()")
    connection.execute("SELECT pg_stat_clear_snapshot()")
    size, rows = connection.execute(WRITTEN).fetchone() or (0, 0)
    return int(str(size)), int(str(rows))


def _costs(connection: Connection, batch: int) -> list[Row]:
    """Push, pop and ack in turn, and read the counters before and after each call."""
    arguments: dict[str, object] = {
        "batch": batch,
        "queues": ["wal"] * batch,
        "partitions": ["a"] * batch,
        "payloads": [PAYLOAD] * batch,
    }
    sizes: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    for _ in range(CALLS):
        for name, sql in (("push", PUSH), ("pop", POP), ("ack", ACK)):
            before = _written(connection)
            result = connection.execute(sql, arguments).fetchone()  # type: ignore[arg-type]
            after = _written(connection)
            sizes[name] += after[0] - before[0]
            rows[name] += after[1] - before[1]
            if name == "pop" and result:
                arguments["lease"] = result[0]
    messages = CALLS * batch
    return [
        row
        for name in ("push", "pop", "ack")
        for row in (
            Row(f"{name} {batch}: WAL per message", sizes[name] / messages, "bytes"),
            Row(f"{name} {batch}: rows written per message", rows[name] / messages, "rows"),
        )
    ]


def measure(url: str) -> list[Row]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT skep.push('wal', '1', 'a')")
        connection.execute("SELECT skep.pop('wal', 'g', auto_ack => true)")
        connection.execute("CHECKPOINT")
        return _costs(connection, 100) + _costs(connection, 1)
