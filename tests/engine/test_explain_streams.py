"""Steps of streams, their state and the sample for Prometheus use their indexes, however many rows there are."""

from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.plans import assert_indexed, explained
from tests.engine.verbs import call, pop, push

OPS = [{"type": "upsert", "key": "key 7", "value": 1}, {"type": "delete", "key": "key 8"}]


@pytest.fixture(params=["never analyzed", "analyzed"])
def query(mq: psycopg.Connection, request: pytest.FixtureRequest) -> UUID:
    """A stream with many rows of state, in a partition with messages."""
    push(mq, "q", *range(10))
    push(mq, "other", *range(10))
    asked = {"name": "s", "source_queue": "q", "sink_queue": None, "config_hash": "h", "reset": False}
    registered = call(mq, "_queen_stream_register", **asked)
    id_ = registered[0].query_id
    mq.execute(
        """INSERT INTO skep.stream_state (query_id, partition_id, key, value)
           SELECT %s, id, 'key ' || n, '1' FROM generate_series(1, 40) AS id, generate_series(1, 100) AS n""",
        [id_],
    )
    mq.execute("INSERT INTO skep.stream_groups SELECT 'g' || n, 'q' FROM generate_series(1, 1000) AS n")
    if request.param == "analyzed":
        mq.execute("ANALYZE")
    return id_


def test_a_step(mq: psycopg.Connection, query: UUID):
    last = pop(mq, "q", "streams.s")[-1]
    ack = {"transaction_id": str(last.id), "lease": str(last.lease), "status": "completed", "count": 10}
    plans = explained(
        mq,
        lambda: call(
            mq,
            "_queen_stream_cycle",
            query_id=query,
            partition_id=last.id,
            group_name="streams.s",
            state_ops=Jsonb(OPS),
            messages=Jsonb([{"queue": "sink", "partition": "p", "payload": 1}]),
            ack=Jsonb(ack),
            release_lease=True,
        ),
    )
    assert_indexed(plans, "stream_state_pkey", "stream_queries_pkey", "runs_pkey", "stream_groups_pkey")


def test_reading_state(mq: psycopg.Connection, query: UUID):
    first = pop(mq, "q", "streams.s")[0].id
    for keys, prefix in (([], None), (["key 7"], None), ([], "key 1")):
        wish = {"keys": keys, "key_prefix": prefix, "ripe_at_or_before": None, "query_id": query, "partition_id": first}
        plans = explained(mq, lambda wish=wish: call(mq, "_queen_stream_state", **wish))
        assert_indexed(plans, "stream_state_pkey")


def test_the_last_sample(mq: psycopg.Connection):
    mq.execute(
        """INSERT INTO skep.samples (at, queue, total, lag, leased, dead)
           SELECT now() - make_interval(secs => n), 'q' || n % 50, 1, 1, 0, 0 FROM generate_series(0, 5000) AS n"""
    )
    assert_indexed(explained(mq, lambda: call(mq, "_metrics")), "samples_at")


def test_the_positions_of_all_groups(mq: psycopg.Connection):
    push(mq, "q", 1)
    mq.execute(
        """INSERT INTO skep.samples (at, queue, group_name, total, lag, leased, dead)
           SELECT now() - make_interval(secs => n / 50), 'q', 'g' || n % 50, 1, 1, 0, 0
           FROM generate_series(0, 5000) AS n"""
    )
    plans = explained(mq, lambda: call(mq, "_current_progress", trends=10))
    assert_indexed(plans, "samples_at", "samples_pkey", "queues_name_key", "subscriptions_scope")
