"""Who may do what: each role exactly what it should, PUBLIC nothing, and nobody smuggles code into the functions."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from skep.engine.install import verify
from tests.engine.verbs import call, drain, pop, push, refused

PRODUCER = {
    "push", "push_many", "push_to_outbox", "move_committed_outbox", "append_delayed", "cancel_delayed", "notify",
    "_push_messages", "_hold_push",
    "_open_sink", "_stage_messages", "_publish_batch", "_clear_sink", "_drop_sink",
}  # fmt: skip
CONSUMER = {
    "pop", "ack", "ack_many", "fail", "dead_letter", "release", "extend", "subscribe", "heartbeat", "ack_all",
    "fail_all", "dead_letter_all", "release_all", "extend_all", "lag", "transaction", "_queen_pop", "_queen_ack",
    "_queen_ack_lease", "_pop_messages", "configure_group",
    "_has_work", "_queen_transaction", "_queen_extend", "_queen_conflation", "_queen_find_leases", "_queen_release",
    "_queen_lease_queues", "_queen_stream_register", "_queen_stream_state", "_queen_stream_step",
    "_queen_stream_cycle", "_read_snapshot", "_read_window", "_read", "_read_packed", "_partition_names", "_offsets_at",
    "_times", "_group_exists", "_move_group", "_journal_mark", "_has_journal_mark", "_archived_runs",
    "_archived_partitions", "_offsets_between", "_archived_files", "archive_status",
}  # fmt: skip
ADMIN = {
    "_queen_configure", "configure_queue", "configure_defaults", "delete_queue", "delete_partition",
    "delete_message", "delete_group", "seek", "peek", "find_message", "_stale_partitions",
    "resync_partition_lookup", "check_consistency", "prune_journal", "repair_restored", "queue_status",
    "group_status", "list_dead_letters", "pause", "resume", "cancel", "cancel_group", "detect_dead_groups",
    "message_groups", "message_status", "pending_groups", "_group_progress", "_fanout", "explain_start",
    "force_complete", "retain", "_partitions_to_retain", "_partitions_due", "_mark_archived", "drop_idle_partitions",
    "expire_leases", "redrive", "purge_dead_letters", "count_dead_letters", "sample", "_prune_samples", "history",
    "_current_progress", "create_api_key", "revoke_api_key", "list_api_keys", "_find_api_key", "_open_archive",
    "move_archive", "_lock_archive", "_plan_archive", "_begin_files", "_digest", "_store_file", "_unsettled_files",
    "_settle_files", "_archive_progress", "_find_archive", "_small_files", "_begin_compaction", "_source_files",
    "_swap_files", "_expired_files", "_forget_files", "clear_queue", "_prune_traces", "_queue_names",
    "_queen_messages", "_queen_message", "_queen_delete_message", "_queen_dead_letter", "_queen_dead_letters",
    "_queen_dead_letters_of", "_queen_fetch", "_queen_safe_time", "_queen_changed", "_queen_trace",
    "_queen_traces_of", "_queen_traces_named", "_queen_trace_names", "_queen_groups", "_queen_lagging",
    "_queen_group", "_queen_depth", "_queen_resubscribe", "_queen_seek_partition", "_queen_queues", "_queen_queue",
    "_queen_partition_list", "_queen_queue_status", "_queen_namespaces", "_queen_tasks", "_queen_overview",
    "_queen_status", "_queen_pushed", "_queen_worker_metrics", "_queen_queue_lag", "_queen_queue_ops",
    "_queen_retention", "_queen_postgres", "_queen_refresh", "maintenance_mode", "set_maintenance_mode",
    "outbox_status", "_drain_held_pushes", "_metrics", "_replace_options", "_dashboard_overview",
    "_dashboard_trend", "_dashboard_queue_trend", "_dashboard_queues", "_dashboard_groups", "_dashboard_partitions",
    "_dashboard_holders", "_dashboard_seek", "_dashboard_database", "_dashboard_leases", "_dashboard_pipelines",
    "_prune_sinks", "_prune_lease_log", "list_delayed",
    "create_schedule", "delete_schedule", "pause_schedule", "resume_schedule", "list_schedules", "run_schedules",
}  # fmt: skip
# These touch no table.
HARMLESS = {"message_id", "partition_of", "offset_of", "_refuse", "_queen_time"}
OF_VIEWS = {"_head_of"}  # runs with the rights of whoever reads the view
ROLES = {
    "skep_producer": PRODUCER | HARMLESS,
    "skep_consumer": CONSUMER | HARMLESS,
    "skep_admin": PRODUCER | CONSUMER | ADMIN | HARMLESS | OF_VIEWS,
}
FUNCTIONS = "SELECT oid, proname::text FROM pg_proc WHERE pronamespace = 'skep'::regnamespace"


@contextmanager
def as_role(connection: psycopg.Connection, *roles: str) -> Generator[psycopg.Connection]:
    """Be a user with these roles and no other rights, until the end of the block."""
    granted = sql.SQL(", ").join(map(sql.Identifier, roles))
    connection.execute("DROP ROLE IF EXISTS somebody; CREATE ROLE somebody")
    if roles:
        connection.execute(sql.SQL("GRANT {} TO somebody").format(granted))
    connection.execute("SET ROLE somebody")
    try:
        yield connection
    finally:
        connection.execute("RESET ROLE")
        connection.execute("DROP OWNED BY somebody; DROP ROLE somebody")


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_call_exactly_its_functions(mq: psycopg.Connection, role: str):
    may = f"SELECT DISTINCT proname::text FROM ({FUNCTIONS}) f WHERE has_function_privilege(%s, oid, 'EXECUTE')"
    assert {name for (name,) in mq.execute(may, [role]).fetchall()} == ROLES[role]


def test_public_may_call_nothing(mq: psycopg.Connection):
    """New functions are executable by everybody until that is revoked."""
    with as_role(mq):
        may = mq.execute(f"SELECT proname FROM ({FUNCTIONS}) f WHERE has_function_privilege(oid, 'EXECUTE')").fetchall()
        assert may == []
        for attempt in (
            "SELECT skep.push('q', '1')",
            "SELECT * FROM skep.queues",
            "INSERT INTO skep.outbox DEFAULT VALUES",
        ):
            with refused("42501"):
                mq.execute(attempt)


def test_public_has_no_rights_on_tables_and_sequences(mq: psycopg.Connection):
    """But for the two that the start-up check reads, and those only for who may use the schema."""
    granted = """
        SELECT c.relname::text FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault(
            CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, c.relowner))) a
        WHERE c.relnamespace = 'skep'::regnamespace AND a.grantee = 0
    """
    assert {name for (name,) in mq.execute(granted).fetchall()} == {"migrations", "schema_info"}
    with as_role(mq):
        usage = mq.execute(
            "SELECT has_schema_privilege('skep', 'USAGE'), has_schema_privilege('skep', 'CREATE')"
        ).fetchall()
        assert usage == [(False, False)]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_its_rights_on_tables_and_no_more(mq: psycopg.Connection, role: str):
    """Producers insert into the outbox, administrators read everything, nobody writes past functions."""
    rights = """
        SELECT c.relname::text, privilege FROM pg_class c,
            unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS privilege
        WHERE c.relnamespace = 'skep'::regnamespace AND c.relkind IN ('r', 'v')
          AND c.relname NOT IN ('migrations', 'schema_info')
          AND (has_table_privilege(%(role)s, c.oid, privilege)
               OR privilege IN ('SELECT', 'INSERT', 'UPDATE') AND has_any_column_privilege(%(role)s, c.oid, privilege))
    """
    found = set(mq.execute(rights, {"role": role}).fetchall())
    readable = {name for name, privilege in found if privilege == "SELECT"}
    writable = {("outbox", "INSERT")} if role != "skep_consumer" else set()
    assert found - {(name, "SELECT") for name in readable} == writable
    relations = "SELECT relname::text FROM pg_class WHERE relnamespace = 'skep'::regnamespace AND relkind IN ('r', 'v')"
    everything = {name for (name,) in mq.execute(relations).fetchall()} - {"migrations", "schema_info"}
    assert readable == (everything if role == "skep_admin" else set())


@pytest.mark.parametrize("role", ROLES)
def test_who_inserts_into_the_outbox_forges_neither_transaction_nor_order(mq: psycopg.Connection, role: str):
    columns = """
        SELECT attname::text FROM pg_attribute
        WHERE attrelid = 'skep.outbox'::regclass AND attnum > 0 AND has_column_privilege(%s, attrelid, attnum, 'INSERT')
    """
    free = {"queue", "partition", "payload", "headers", "transaction_id", "trace_id", "producer", "delay", "deliver_at"}
    insertable = {name for (name,) in mq.execute(columns, [role]).fetchall()}
    assert insertable == (set() if role == "skep_consumer" else free)


def test_search_path_is_pinned(mq: psycopg.Connection):
    """On every public plpgsql function, and every one with the installer's rights; temporary objects come last.

    A private function runs under the settings of its caller, which is a public one.
    """
    loose = """
        SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
        WHERE p.pronamespace = 'skep'::regnamespace AND (l.lanname = 'plpgsql' AND p.proname !~ '^_' OR p.prosecdef)
          AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)
    """
    assert mq.execute(loose).fetchall() == []


def test_only_public_functions_run_with_the_installers_rights(mq: psycopg.Connection):
    """Inner functions have no need to; those that push and answer must not, or a consumer could push through them."""
    definers = {name for (_, name) in mq.execute(f"{FUNCTIONS} AND prosecdef").fetchall()}
    both = {"transaction", "_queen_transaction", "_queen_stream_cycle"}
    assert definers == (PRODUCER | CONSUMER | ADMIN | {"_record_outbox_transaction", "_move_outbox"}) - both


@pytest.mark.parametrize("role", ROLES)
def test_every_role_may_run_the_start_up_check(mq: psycopg.Connection, role: str):
    """The client and the server ask what is installed before anything else, as whoever they are."""
    with as_role(mq, role):
        verify(mq)


def test_a_producer_produces(mq: psycopg.Connection):
    with as_role(mq, "skep_producer"):
        push(mq, "q", 1, 2, transaction_ids=["a", "b"])
        call(mq, "push", queue="q", payload=Jsonb(3))
        call(mq, "push", messages=Jsonb([{"queue": "q", "payload": 4}]))
        mq.execute("INSERT INTO skep.outbox (queue, payload) VALUES ('q', '5')")
        with refused("SK001", "item 0"):
            push(mq, "q", 1, transaction_ids=["x" * 300])
        for forbidden in ("pop(NULL)", "lag(NULL)", "ack(NULL::uuid)"):
            with refused("42501"):
                mq.execute(f"SELECT skep.{forbidden}")
    assert [delivery.payload for delivery in drain(mq, "q")] == [1, 2, 3, 4, 5]


def test_a_consumer_consumes(mq: psycopg.Connection):
    push(mq, "q", *range(6))
    with as_role(mq, "skep_consumer"):
        call(mq, "subscribe", group_name="g", queue="q")
        (held,) = pop(mq, "q", batch=1)
        call(mq, "extend", lease=held.lease)
        call(mq, "ack", lease=held.lease, id=held.id)
        (held,) = pop(mq, "q", batch=1)
        call(mq, "fail", lease=held.lease, error="oops")
        (held,) = pop(mq, "q", "other", batch=1)
        call(mq, "dead_letter", lease=held.lease, error="oops")
        (held,) = pop(mq, "q", "other", batch=1)
        call(mq, "release", lease=held.lease)
        (held,) = pop(mq, "q", "other", batch=1)
        assert call(mq, "ack_many", leases=[held.lease], ids=[held.id], statuses=["completed"]) == [(1, True)]
        assert call(mq, "lag", group_name="other")[0].lag == 4
        with refused("SK003"):
            call(mq, "ack", lease=held.lease)
        for forbidden in (
            "push('q', '1')",
            "seek('g', 'q', 'end')",
            "delete_queue('q')",
            "configure_queue('q')",
            "_discover(1, 1, false, 1)",
        ):
            with refused("42501"):
                mq.execute(f"SELECT skep.{forbidden}")


def operations(connection: psycopg.Connection) -> list[dict[str, Any]]:
    held = pop(connection, "q", batch=1)[0]
    return [{"push": {"queue": "next", "payload": 1}}, {"ack": {"lease": str(held.lease)}}]


def test_a_transaction_needs_the_rights_of_its_parts(mq: psycopg.Connection):
    """A consumer acknowledges through it but cannot push; with both roles it may; a producer alone may not call it."""
    push(mq, "q", 1, 2, 3)
    with as_role(mq, "skep_consumer"):
        mixed = operations(mq)
        with refused("42501"):
            call(mq, "transaction", operations=Jsonb(mixed))
        assert call(mq, "transaction", operations=Jsonb(mixed[1:])) == []
    with as_role(mq, "skep_consumer", "skep_producer"):
        assert len(call(mq, "transaction", operations=Jsonb(operations(mq)))) == 1
    with as_role(mq, "skep_producer"), refused("42501"):
        call(mq, "transaction", operations=Jsonb([]))
    assert [delivery.payload for delivery in drain(mq, "next")] == [1]


def test_an_administrator_administers(mq: psycopg.Connection):
    """Reads every table and view, runs every function, but writes to no table."""
    push(mq, "q", 1)
    with as_role(mq, "skep_admin"):
        relations = {"partition_list", "fanout", "messages", "subscriptions", "settings", "dead_letters"}
        for relation in relations | {"partition_consumers", "leases", "partition_lookup"}:
            mq.execute(f"SELECT * FROM skep.{relation}".encode()).fetchall()
        call(mq, "configure_queue", queue="q", options=Jsonb({"priority": 3}))
        call(mq, "configure_defaults", max_poll_interval=3)
        assert [d.payload for d in drain(mq, "q")] == [1]
        assert call(mq, "seek", group_name="g", queue="q", position="beginning") == [(1, 0, 1)]
        assert {row.broken for row in call(mq, "check_consistency")} == {0}
        assert call(mq, "resync_partition_lookup") == [(0,)]
        call(mq, "prune_journal")
        call(mq, "delete_group", group_name="g")
        with refused("42501"):
            mq.execute("UPDATE skep.queues SET priority = 4")
        with refused("42501"):
            mq.execute("TRUNCATE skep.messages")
        assert call(mq, "delete_queue", queue="q") == [(True,)]


HOSTILE = """
    CREATE SCHEMA evil;
    CREATE TABLE evil.stolen (what text);
    CREATE FUNCTION evil.steal(text) RETURNS text LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO evil.stolen VALUES ($1); RETURN $1; END $$;
    CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
        $$ SELECT evil.steal('clock'); SELECT pg_catalog.now() $$;
    CREATE FUNCTION evil.cardinality(text[]) RETURNS integer LANGUAGE sql AS
        $$ SELECT evil.steal('cardinality'); SELECT 1 $$;
    CREATE FUNCTION evil.pg_column_size(jsonb) RETURNS integer LANGUAGE sql AS
        $$ SELECT evil.steal('size'); SELECT 1 $$;
    CREATE FUNCTION evil.format(text, text) RETURNS text LANGUAGE sql AS $$ SELECT evil.steal('format') $$;
    CREATE FUNCTION evil.gen_random_uuid() RETURNS uuid LANGUAGE sql AS
        $$ SELECT evil.steal('uuid'); SELECT '00000000-0000-0000-0000-000000000000'::uuid $$;
    CREATE FUNCTION evil.equal(text, text) RETURNS boolean LANGUAGE sql AS
        $$ SELECT evil.steal('=') IS NOT NULL $$;
    CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.equal);
    CREATE FUNCTION evil.plus(bigint, bigint) RETURNS bigint LANGUAGE sql AS
        $$ SELECT evil.steal('+'); SELECT 0::bigint $$;
    CREATE OPERATOR evil.+ (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.plus);
    CREATE TEMP TABLE queues (id integer, name text);
    CREATE TEMP TABLE messages (id integer);
    CREATE TEMP TABLE settings (x integer);
    CREATE TEMP TABLE pg_class (oid oid);
    CREATE TEMP VIEW pg_attribute AS SELECT evil.steal('catalog') AS attname;
"""


@pytest.fixture
def hostile(connect: Callable[..., psycopg.Connection]) -> Generator[psycopg.Connection]:
    """A session of an administrator who has laid traps: his own objects by the names that functions use."""
    owner, caller = connect(), connect()
    owner.execute("DROP ROLE IF EXISTS hostile; CREATE ROLE hostile IN ROLE skep_admin")
    owner.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO hostile").format(sql.Identifier(owner.info.dbname)))
    caller.execute("SET ROLE hostile")
    caller.execute(HOSTILE)
    yield caller
    caller.close()
    owner.execute("DROP OWNED BY hostile CASCADE; DROP ROLE hostile")


def test_the_traps_work(hostile: psycopg.Connection):
    hostile.execute("SET search_path = evil, pg_temp, pg_catalog")
    hostile.execute("SELECT clock_timestamp(), 1::bigint + 1::bigint")
    stolen = hostile.execute("SELECT what FROM evil.stolen ORDER BY pg_catalog.length(what)").fetchall()
    assert stolen == [("+",), ("clock",)]


@pytest.mark.parametrize("path", ["evil, pg_temp, pg_catalog", "pg_temp, evil, skep", "''"])
def test_a_hostile_search_path_hijacks_nothing(hostile: psycopg.Connection, path: LiteralString):
    """Functions, operators, tables and views of the caller's with the names of the system's are never used."""
    hostile.execute(sql.SQL("SET search_path = ") + sql.SQL(path))
    use_everything(hostile)
    assert hostile.execute("SELECT * FROM evil.stolen").fetchall() == []


def use_everything(connection: psycopg.Connection) -> None:
    """Each public function once, without an operator of the caller's search_path."""
    run = connection.execute
    run("SELECT skep.configure_queue('q', '{\"priority\": 1}')")
    run("SELECT skep.configure_defaults('all', 2)")
    run("SELECT skep.push('q', '1', transaction_id => 't')")
    run('SELECT skep.push(\'[{"queue": "q", "payload": 2}]\'::jsonb)')
    run("INSERT INTO skep.outbox (queue, payload) VALUES ('q', '3')")
    lease = run("SELECT lease FROM skep.pop('q', 'g', 2)").fetchall()[0][0]
    run("SELECT skep.extend(%s)", [lease])
    run("SELECT skep.ack(%s)", [lease])
    lease = run("SELECT lease FROM skep.pop('q', 'g', 2, partition => 'Default')").fetchall()[0][0]
    run("SELECT skep.fail(%s, 'oops')", [lease])
    run("SELECT skep.pop(namespace => 'q', group_name => 'h', subscription_mode => 'new')")
    run("SELECT skep.subscribe('s', 'q')")
    run("SELECT * FROM skep.lag('g')").fetchall()
    run("SELECT skep.seek('g', 'q', 'beginning')")
    run("SELECT * FROM skep.check_consistency()").fetchall()
    run("SELECT skep.resync_partition_lookup(), skep._stale_partitions(), skep.prune_journal('0 s')")
    run("SELECT skep.delete_group('g'), skep.delete_partition('q', 'Default'), skep.delete_queue('q')")


def test_no_role_writes_into_the_log_past_the_functions(mq: psycopg.Connection):
    push(mq, "q", 1)
    raw = "INSERT INTO skep.messages (partition_id, \"offset\", created_at, payload) VALUES (1, 1, now(), '1')"
    for role in ROLES:
        with as_role(mq, role), refused("42501"):
            mq.execute(raw)
