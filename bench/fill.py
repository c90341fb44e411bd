"""Fill queues inside the database, without the cost of a client."""

import psycopg

from bench.report import progress

Connection = psycopg.Connection[tuple[object, ...]]
CHUNK = 100_000
FILL = """
    SELECT count(p.ord)
    FROM (SELECT array_agg(%(queue)s::text) AS queues, array_agg(%(prefix)s || n %% %(partitions)s) AS partitions,
                 array_agg('{}'::jsonb) AS payloads
          FROM generate_series(%(first)s::bigint, %(last)s::bigint) n) item
    CROSS JOIN LATERAL skep.push_many(queues, partitions, payloads) p
"""


def fill(connection: Connection, queue: str, messages: int, *, partitions: int = 1, prefix: str = "p-") -> None:
    """Push messages 0, 1, 2, … to the partitions, round-robin."""
    for first in range(0, messages, CHUNK):
        last = min(first + CHUNK, messages) - 1
        connection.execute(
            FILL, {"queue": queue, "prefix": prefix, "partitions": partitions, "first": first, "last": last}
        )
        progress(f"{queue}: {last + 1:,} of {messages:,} messages")
