"""Queues filled inside the database, without a client in the way."""

import psycopg

from bench.report import progress

Connection = psycopg.Connection[tuple[object, ...]]
CHUNK = 100_000
FILL = """
    SELECT count(p.ord)
    FROM (SELECT array_agg(%(queue)s::text) AS queues, array_agg(%(prefix)s || n %% %(lanes)s) AS partitions,
                 array_agg('{}'::jsonb) AS payloads
          FROM generate_series(%(first)s::bigint, %(last)s::bigint) n) item
    CROSS JOIN LATERAL skep.push_many(queues, partitions, payloads) p
"""


def fill(connection: Connection, queue: str, messages: int, *, lanes: int = 1, prefix: str = "lane-") -> None:
    """Messages 0, 1, 2, … dealt to the lanes in turn."""
    for first in range(0, messages, CHUNK):
        last = min(first + CHUNK, messages) - 1
        connection.execute(FILL, {"queue": queue, "prefix": prefix, "lanes": lanes, "first": first, "last": last})
        progress(f"{queue}: {last + 1:,} of {messages:,} messages")
