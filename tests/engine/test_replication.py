"""Skep in a published database: every table can be replicated, and no call fails because of it."""

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from skep.engine.install import install
from tests.engine.servers import server
from tests.engine.verbs import broken, call, configure, drain, pass_time, pop, push
from tests.postgres_binaries import MAJORS

# The columns of the index by which a subscriber finds a row: the primary key, or the index that the table names.
IDENTITIES: LiteralString = """
    SELECT c.relname::text, array_remove(array_agg(a.attname::text), NULL),
           array_remove(array_agg(a.attname::text) FILTER (WHERE a.attgenerated <> ''), NULL)
    FROM pg_class c
    LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisvalid
         AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
    WHERE c.relnamespace = 'skep'::regnamespace AND c.relkind = 'r'
    GROUP BY c.oid ORDER BY 1
"""
MESSAGES: LiteralString = """
    SELECT q.name, m."offset", m.payload FROM skep.messages m
    JOIN skep.partitions p ON p.id = m.partition_id JOIN skep.queues q ON q.id = p.queue_id ORDER BY 1, 2
"""


@dataclass(frozen=True)
class Replicated:
    """Connections to a published database and to its subscriber."""

    url: str
    publisher: psycopg.Connection
    subscriber: psycopg.Connection

    def await_subscriber(self, query: LiteralString) -> list[tuple]:
        """Return the result of the publisher once the subscriber has the same."""
        expected = self.publisher.execute(query).fetchall()
        deadline = time.monotonic() + 60
        while (found := self.subscriber.execute(query).fetchall()) != expected:
            assert time.monotonic() < deadline, (expected, found)
            time.sleep(0.05)
        return expected


@pytest.fixture(scope="module", params=MAJORS)
def server_url(request: pytest.FixtureRequest) -> Generator[str]:
    with server(request.param, {"wal_level": "logical"}) as url:
        yield url


@pytest.fixture
def replicated(server_url: str) -> Generator[Replicated]:
    """Two databases of one server. CREATE SUBSCRIPTION would wait for itself, so the slot is created beforehand."""
    urls = {name: make_conninfo(server_url, dbname=name) for name in ("publisher", "subscriber")}
    with psycopg.connect(server_url, autocommit=True) as admin:
        for name, url in urls.items():
            admin.execute(sql.SQL("CREATE DATABASE {} ENCODING 'UTF8' TEMPLATE template0").format(sql.Identifier(name)))
            install(url)
        with (
            psycopg.connect(urls["publisher"], autocommit=True) as publisher,
            psycopg.connect(urls["subscriber"], autocommit=True) as subscriber,
        ):
            publisher.execute("CREATE PUBLICATION everything FOR ALL TABLES")
            publisher.execute("SELECT pg_create_logical_replication_slot('skep_test', 'pgoutput')")
            # Both databases have the rows of an install.
            options = "create_slot = false, slot_name = 'skep_test', copy_data = false"
            subscribe = f"CREATE SUBSCRIPTION mine CONNECTION {{}} PUBLICATION everything WITH ({options})"
            subscriber.execute(sql.SQL(subscribe).format(sql.Literal(_address(urls["publisher"]))))
            yield Replicated(urls["publisher"], publisher, subscriber)
            subscriber.execute("DROP SUBSCRIPTION mine")
        for name in urls:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _address(url: str) -> str:
    known = conninfo_to_dict(url)
    return make_conninfo("", **{key: known[key] for key in ("host", "port", "user", "password", "dbname")})


def test_every_table_has_a_replica_identity(conn: psycopg.Connection):
    """Without one, a publication refuses every UPDATE and DELETE."""
    assert [table for table, columns, _ in conn.execute(IDENTITIES) if not columns] == []


def test_no_replica_identity_has_a_generated_column(conn: psycopg.Connection):
    """PostgreSQL 18 refuses such a write, older versions send rows that the subscriber cannot find."""
    assert [(table, columns) for table, _, columns in conn.execute(IDENTITIES) if columns] == []


def test_the_subscriber_receives_messages(replicated: Replicated):
    mq = replicated.publisher
    push(mq, "orders", 1, 2, 3)
    with mq.transaction():
        mq.execute("INSERT INTO skep.outbox (queue, payload) VALUES ('orders', '4')")
    received = replicated.await_subscriber(MESSAGES)
    assert [payload for _, _, payload in received] == [1, 2, 3, 4]


def test_everything_works_in_a_published_database(replicated: Replicated):
    mq = replicated.publisher
    configure(mq, "orders", completed_retention_seconds=0, lease_log_seconds=1, retry_limit=0)
    results = push(mq, "orders", *range(1, 601))
    push(mq, "gone", 1)
    assert len(drain(mq, "orders")) == 600
    (leased,) = pop(mq, "orders", "other", batch=1)
    call(mq, "fail", lease=leased.lease, error="oops")
    push(mq, "orders", 601)
    call(mq, "delete_message", id=call(mq, "message_id", partition_id=results[0].partition_id, offset=600)[0][0])
    call(mq, "delete_group", group_name="other")
    pass_time(mq, 3600)
    call(mq, "retain")
    call(mq, "_prune_lease_log")
    call(mq, "prune_journal", older_than="0 s")
    call(mq, "purge_dead_letters")
    call(mq, "delete_queue", queue="gone")
    mq.execute("GRANT EXECUTE ON FUNCTION skep.message_id TO pg_monitor")  # an upgrade keeps it and sends no row of it
    install(replicated.url, again=True)
    push(mq, "orders", 602)
    assert [delivery.payload for delivery in drain(mq, "orders")] == [602]
    assert broken(mq) == {}
    left = replicated.await_subscriber(MESSAGES)
    assert [payload for _, _, payload in left][-1] == 602
    assert len(left) < 601
    assert replicated.await_subscriber("SELECT count(*) FROM skep.lease_log") == [(1,)]  # from the last lease
    assert replicated.await_subscriber("SELECT count(*) FROM skep.dead_letters") == [(0,)]
