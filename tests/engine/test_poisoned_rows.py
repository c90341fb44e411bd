"""A value that one user has stored does not stop upkeep, or a list, for all others."""

from collections.abc import Callable

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.types.json import Jsonb

from skep import Skep
from tests.engine.verbs import call, configure, drain, pass_time, pop, push, refused

TINY = 5e-324  # the smallest double precision: half of it is an error
UPKEEP = (
    "append_delayed", "detect_dead_groups", "drop_idle_partitions", "expire_leases", "group_status",
    "move_committed_outbox", "_partitions_due", "prune_journal", "_prune_lease_log", "retain", "run_schedules",
    "sample",
)  # fmt: skip
SECONDS = """
    SELECT a.attname FROM pg_attribute a
    WHERE a.attrelid = 'skep.queues'::regclass AND a.atttypid = 'double precision'::regtype ORDER BY a.attname
"""


def upkeep(connection: psycopg.Connection) -> None:
    for job in UPKEEP:
        call(connection, job)


def test_no_option_stops_upkeep(mq: psycopg.Connection):
    """Each number option of a queue at its smallest value."""
    for (option,) in mq.execute(SECONDS).fetchall():
        configure(mq, option, **{option: TINY})
        push(mq, option, 1, 2)
        leased = pop(mq, option, batch=2, lease_time=60)
        for message in leased:
            call(mq, "fail", lease=message.lease, id=message.id, error="oops")
        upkeep(mq)
        pass_time(mq, 3600)
        upkeep(mq)


def test_no_retry_policy_stops_upkeep(mq: psycopg.Connection):
    """Half of all random jitters would underflow, so that 30 leases fail."""
    tiny = {"retry_jitter": TINY, "retry_delay": TINY, "max_retry_delay": TINY}
    call(mq, "subscribe", group_name="g", queue="q")
    call(mq, "configure_group", group_name="g", options=Jsonb(tiny))
    for n in range(30):
        push(mq, "q", n, n, partition=str(n))
        leased = pop(mq, "q", batch=2, partition=str(n))
        call(mq, "fail", lease=leased[0].lease, error="oops")
    pass_time(mq, 3600)
    call(mq, "expire_leases")
    upkeep(mq)
    assert mq.execute("SELECT count(*) FROM skep.leases").fetchone() == (0,)


@pytest.mark.parametrize("interval", [TINY, 1e-320, 0.0009, float("nan"), float("inf")])
def test_a_heartbeat_interval_is_a_time(mq: psycopg.Connection, interval: float):
    with refused("SK001", "heartbeat"):
        call(mq, "subscribe", group_name="g", queue="q", heartbeat_interval=interval)


def test_a_group_with_the_shortest_interval_stops_nothing(mq: psycopg.Connection):
    call(mq, "subscribe", group_name="g", queue="q", heartbeat_interval=0.001, heartbeat_timeout=0.002)
    pass_time(mq, 10_000_000)
    assert [row.died for row in call(mq, "detect_dead_groups")] == [True]
    upkeep(mq)


@pytest.mark.parametrize("time", ["infinity", "-infinity", "9999-12-31", "20000-01-01", "0044-03-15 BC"])
def test_every_time_that_is_stored_can_be_read_by_clients(database_url: str, time: str):
    """A list of all subscriptions or delayed messages does not fail because of one of them."""
    with psycopg.connect(database_url, autocommit=True) as connection, Skep(database_url) as skep:
        with refused("SK001"):
            call(connection, "subscribe", group_name="g", queue="q", mode="timestamp", start_from=time)
        if time[0] != "-" and "BC" not in time:
            with refused("SK001", "before the year 9999"):
                call(connection, "push", queue="q", payload=Jsonb(1), deliver_at=time)
            with refused("23514"):
                connection.execute("INSERT INTO skep.outbox (queue, payload, deliver_at) VALUES ('q', '1', %s)", [time])
        connection.execute("SELECT skep.push('q', '1', deliver_at => '9998-12-31')")
        call(connection, "subscribe", group_name="g", queue="q", mode="timestamp", start_from="9998-12-31")
        assert len(skep.subscriptions()) == 1
        assert len(skep.list_delayed()) == 1


def test_large_payloads_do_not_stop_the_outbox(connect: Callable[..., psycopg.Connection]):
    """70 rows of 16 MB, which are small on disk, are more than an array holds; another row is behind them."""
    writer = connect(autocommit=False)
    writer.isolation_level = IsolationLevel.REPEATABLE_READ
    writer.execute("""
        INSERT INTO skep.outbox (queue, payload)
        SELECT 'large', to_jsonb(repeat('a', 16000000)) FROM generate_series(1, 70)
    """)
    writer.commit()
    writer.execute("INSERT INTO skep.outbox (queue, payload) VALUES ('small', '1')")
    writer.commit()
    upkeep_session = connect()
    moved = 0
    for _ in range(71):
        moved += call(upkeep_session, "move_committed_outbox")[0].messages
    assert moved == 71
    assert [message.payload for message in drain(upkeep_session, "small")] == [1]
    large = upkeep_session.execute("""
        SELECT count(*), min("offset"), max("offset") FROM skep.messages m
        JOIN skep.partitions p ON p.id = m.partition_id JOIN skep.queues q ON q.id = p.queue_id WHERE q.name = 'large'
    """)
    assert large.fetchone() == (70, 0, 69)


def test_missed_ticks_with_a_large_payload_are_pushed_in_steps(mq: psycopg.Connection):
    """1,000 ticks of 10 MB would be 10 GB in one statement."""
    call(mq, "create_schedule", name="s", cron="* * * * *", queue="q", payload=Jsonb("a" * 10_000_000), missed="all")
    mq.execute("UPDATE skep.schedules SET next_at = now() - interval '1 day'")
    assert call(mq, "run_schedules")[0].messages == 6


def test_a_cron_expression_is_short(mq: psycopg.Connection):
    with refused("SK001", "1000 characters"):
        call(mq, "create_schedule", name="s", cron="0" + ",0" * 1000 + " * * * *", queue="q")


def test_ids_of_groups_do_not_run_out(mq: psycopg.Connection):
    """A first pop that is rolled back uses up one of 2,097,151 ids; a pop of namespaces takes several."""
    push(mq, "q", 1)
    assert len(pop(mq, "q", group="first")) == 1
    mq.execute("SELECT setval('skep.group_queues_id_seq', 2097151)")
    for group in ("second", "third"):
        assert len(pop(mq, "q", group=group)) == 1
    configure(mq, "q")
    mq.execute("SELECT skep.configure_queue('w', namespace => 'n')")
    push(mq, "w", 1)
    mq.execute("SELECT setval('skep.group_queues_id_seq', 2097151)")
    assert len(mq.execute("SELECT * FROM skep.pop(namespace => 'n', group_name => 'wide')").fetchall()) == 1
    ids = mq.execute("SELECT id FROM skep.group_queues ORDER BY id").fetchall()
    assert len(ids) == 5
    assert max(ids) < (10,)
