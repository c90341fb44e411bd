"""`skep doctor`: each problem is created in a real PostgreSQL, and found."""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import QueryCanceled

from skep import Skep, embedded
from skep.cli.checks import DATABASE_CHECKS, SKEP_CHECKS, CheckedDatabase, CheckResult, vacuum
from skep.cli.checks import schema as schema_checks
from skep.cli.checks.disk import check_space
from skep.cli.checks.schema import schema
from skep.cli.checks.settings import check_version
from skep.engine.install import install
from tests.cli.conftest import Cli
from tests.cli.process import wait_until
from tests.client.pooler import pgbouncer
from tests.faults.tcp_proxy import tcp_proxy

Connect = Callable[..., psycopg.Connection]
CHECKS = {**DATABASE_CHECKS, **SKEP_CHECKS, "schema": schema}
GIB = 1024**3


def run_check(url: str, check: str, data_dir: Path | None = None) -> CheckResult:
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        return CHECKS[check](CheckedDatabase(connection, data_dir))


def status(url: str, check: str) -> str:
    result = run_check(url, check)
    assert (result.advice is None) == (result.status == "ok")
    return result.status


def alter_database(url: str, setting: LiteralString) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET {}").format(name, sql.SQL(setting)))


@contextmanager
def limited_user(db: psycopg.Connection, url: str, *roles: LiteralString) -> Generator[str]:
    """Yield the URL for a user with these roles and no other rights."""
    name, password = f"limited_user_{os.getpid()}", os.urandom(8).hex()
    db.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(password)))
    for role in roles:
        db.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(name)))
    try:
        yield make_conninfo(url, user=name, password=password)
    finally:
        db.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def own_url() -> Generator[str]:
    """A server with default settings and Skep, which other tests do not use."""
    directory = Path(tempfile.mkdtemp(prefix="skep-test-"))
    settings = {"max_connections": "20", "max_prepared_transactions": "5", "shared_preload_libraries": ""}
    try:
        with embedded.start(directory, settings=settings) as server:
            install(server.url)
            yield server.url
    finally:
        shutil.rmtree(directory)


def test_a_healthy_database(cli: Cli, own_url: str):
    done = cli("doctor", "--database-url", own_url)
    assert (done.code, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.lines[:-1]] == ["ok"] * (len(CHECKS) + 1)
    assert done.lines[-1] == f"{len(CHECKS) + 1} checks: {len(CHECKS) + 1} ok, 0 warnings, 0 failures"
    assert str(conninfo_to_dict(own_url)["password"]) not in done.stdout


def test_a_failure_shows_advice_and_exits_with_1(cli: Cli, database_url: str):
    """The server of the tests runs without fsync."""
    done = cli("doctor")
    assert done.code == 1
    number = next(n for n, line in enumerate(done.lines) if line.startswith("fail"))
    assert done.lines[number].split(maxsplit=2)[1:] == [
        "durability",
        "fsync and full_page_writes off: a crash may destroy the database",
    ]
    assert done.lines[number + 1].strip() == "-> turn fsync and full_page_writes on"
    assert done.lines[-1].endswith("1 failure")


def test_json(cli: Cli, database_url: str, mq: Skep):
    mq.queue("orders").push(1)
    done = cli("doctor", "--json")
    checks = {check["check"]: check for check in done.json["checks"]}
    assert (done.code, done.json["healthy"]) == (1, False)
    assert set(checks) == {"connection", *CHECKS}
    assert checks["durability"]["status"] == "fail"
    assert checks["upkeep"] == {
        "check": "upkeep",
        "status": "warn",
        "found": "no upkeep has ever run",
        "advice": "run `skep serve` or `skep upkeep`: without them nothing is deleted, and no group is declared dead",
    }


def test_no_database(cli: Cli):
    done = cli("doctor", "--json", "--database-url", "postgresql://ann:secret@127.0.0.1:1/shop")
    (check,) = done.json["checks"]
    assert (done.code, check["check"], check["status"]) == (1, "connection", "fail")
    assert check["found"].startswith("cannot connect to postgresql://ann@127.0.0.1:1/shop: ")
    assert "secret" not in done.stdout


def test_a_database_without_skep(cli: Cli, empty_database_url: str):
    done = cli("doctor", "--json", "--database-url", empty_database_url)
    last = done.json["checks"][-1]
    assert (done.code, last["check"], last["status"], last["advice"]) == (1, "schema", "fail", "run `skep install`")


def test_the_embedded_database(cli: Cli, data_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SKEP_DATABASE_URL")
    done = cli("doctor", "--data-dir", str(data_dir), "--json")
    checks = {check["check"]: check for check in done.json["checks"]}
    assert checks["connection"]["found"] == "the embedded PostgreSQL"
    assert str(data_dir) in checks["disk"]["found"]
    assert checks["durability"]["status"] == "ok"


def test_a_user_with_few_rights(database_url: str, cli: Cli, connect: Connect):
    with limited_user(connect(), database_url, "skep_producer") as url:
        done = cli("doctor", "--json", "--database-url", url)
    checks = {check["check"]: check for check in done.json["checks"]}
    assert checks["roles"]["found"].endswith("may push")
    assert checks["upkeep"]["status"] == "warn"
    assert checks["upkeep"]["found"].startswith("this user may not check it: permission denied")


def test_a_slow_round_trip(database_url: str):
    assert status(database_url, "round trip") == "ok"
    with tcp_proxy(database_url) as way:
        way.delay = 0.03
        assert status(way.url, "round trip") == "warn"


def test_a_pooler(database_url: str, postgres_url: str):
    assert status(database_url, "pooler") == "ok"
    with pgbouncer(postgres_url) as url, psycopg.connect(database_url) as connection:
        assert status(make_conninfo(url, dbname=connection.info.dbname), "pooler") == "warn"


def test_a_wrong_clock(empty_database_url: str):
    assert status(empty_database_url, "clock") == "ok"
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA slow")
        connection.execute(
            """CREATE FUNCTION slow.clock_timestamp() RETURNS timestamptz LANGUAGE sql
               AS $$ SELECT pg_catalog.clock_timestamp() - interval '1 hour' $$"""
        )
    alter_database(empty_database_url, "search_path = slow, pg_catalog")
    result = run_check(empty_database_url, "clock")
    assert result.status == "warn"
    assert result.found in (
        "the database is 3,600 s behind this machine",
        "the database is 3,599 s behind this machine",
    )


def test_few_connections_left(own_url: str):
    """17 of 20 are available for ordinary users."""
    assert status(own_url, "connections") == "ok"
    with ExitStack() as stack:
        for _ in range(14):
            stack.enter_context(psycopg.connect(own_url))
        assert status(own_url, "connections") == "warn"
        for _ in range(2):
            stack.enter_context(psycopg.connect(own_url))
        assert status(own_url, "connections") == "fail"


@pytest.mark.parametrize(("number", "expected"), [(130022, "fail"), (140000, "ok"), (180006, "ok"), (190000, "warn")])
def test_versions(number: int, expected: str):
    assert check_version(number).status == expected


def test_this_version(database_url: str):
    assert run_check(database_url, "version").found.startswith("PostgreSQL 1")


def test_a_wrong_encoding(postgres_url: str, empty_database_url: str):
    assert status(empty_database_url, "encoding") == "ok"
    name = sql.Identifier(f"skep_test_ascii_{os.getpid()}")
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        create = "CREATE DATABASE {} ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        admin.execute(sql.SQL(create).format(name))
        try:
            assert status(make_conninfo(postgres_url, dbname=name.as_string(None).strip('"')), "encoding") == "fail"
        finally:
            admin.execute(sql.SQL("DROP DATABASE {}").format(name))


@pytest.mark.parametrize(
    ("check", "setting", "expected"),
    [
        ("writable", "default_transaction_read_only = on", "fail"),
        ("isolation", "default_transaction_isolation = 'repeatable read'", "fail"),
        ("timeouts", "statement_timeout = '5s'", "warn"),
        ("timeouts", "statement_timeout = '60s'", "ok"),
    ],
)
def test_settings_of_the_database(empty_database_url: str, check: str, setting: LiteralString, expected: str):
    assert status(empty_database_url, check) == "ok"
    alter_database(empty_database_url, setting)
    assert status(empty_database_url, check) == expected


def test_a_standby(data_dir: Path):
    with embedded.start(data_dir) as server:
        assert status(server.url, "writable") == "ok"
    (data_dir / "pgdata" / "standby.signal").touch()
    with embedded.start(data_dir) as server:
        assert run_check(server.url, "writable").found == "the server is a standby, which cannot store messages"
        assert status(server.url, "slots") == "ok"


def test_durability(own_url: str):
    assert status(own_url, "durability") == "ok"
    relaxed = make_conninfo(own_url, options="-c synchronous_commit=off")
    assert status(relaxed, "durability") == "warn"
    with set_to(own_url, "full_page_writes", "off"):
        assert status(own_url, "durability") == "fail"


@contextmanager
def set_to(url: str, setting: LiteralString, value: LiteralString) -> Generator[None]:
    with psycopg.connect(url, autocommit=True) as connection:
        query = sql.SQL("SELECT current_setting({})").format(setting)
        for change in ("SET {} = " + value, "RESET {}"):
            connection.execute(sql.SQL("ALTER SYSTEM " + change).format(sql.Identifier(setting)))
            before = connection.execute(query).fetchone()
            connection.execute("SELECT pg_reload_conf()")
            while connection.execute(query).fetchone() == before:
                pass
            if change != "RESET {}":
                yield


def test_no_autovacuum(own_url: str):
    assert status(own_url, "autovacuum") == "ok"
    with set_to(own_url, "autovacuum", "off"):
        assert status(own_url, "autovacuum") == "fail"
    with set_to(own_url, "track_counts", "off"):
        assert run_check(own_url, "autovacuum").advice == "turn track_counts on"


def test_no_autovacuum_of_a_table(database_url: str, connect: Connect):
    connect().execute("ALTER TABLE skep.runs SET (autovacuum_enabled = 0)")
    result = run_check(database_url, "autovacuum")
    assert (result.status, result.found) == ("fail", "off for runs")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test cannot wait a minute."""
    monkeypatch.setattr(vacuum, "IDLE", 0)
    monkeypatch.setattr(vacuum, "LONG", 0)


def test_an_idle_transaction(database_url: str, connect: Connect, impatient: None):
    assert status(database_url, "transactions") == "ok"
    idle = connect(autocommit=False)
    idle.execute("SELECT 1")
    result = run_check(database_url, "transactions")
    assert result.status == "warn"
    assert f"process {idle.info.backend_pid} (" in result.found
    assert "has been idle in transaction for 0 s" in result.found
    assert f"pg_terminate_backend({idle.info.backend_pid})" in (result.advice or "")


def test_a_long_transaction(database_url: str, connect: Connect, impatient: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vacuum, "TOO_LONG", 0)
    busy = connect()

    def sleep() -> None:
        with pytest.raises(QueryCanceled):
            busy.execute("SELECT pg_sleep(600)")

    work = threading.Thread(target=sleep)
    work.start()
    wait_until(connect(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep')")
    result = run_check(database_url, "transactions")
    busy.cancel()
    work.join()
    assert (result.status, "has been active for" in result.found) == ("fail", True)


def test_a_short_transaction_is_fine(database_url: str, connect: Connect):
    connect(autocommit=False).execute("SELECT 1")
    assert status(database_url, "transactions") == "ok"


def test_transactions_of_other_databases(own_url: str, impatient: None):
    """A transaction that only reads in another database does no harm; one that writes holds back the journal."""
    with psycopg.connect(own_url, dbname="postgres") as other:
        other.execute("SELECT 1")
        assert status(own_url, "transactions") == "ok"
        other.execute("SELECT pg_current_xact_id()")
        assert "database postgres" in run_check(own_url, "transactions").found


def test_transactions_of_others_are_hidden(database_url: str, connect: Connect):
    db = connect()
    with limited_user(db, database_url) as url:
        assert run_check(url, "transactions").advice == "GRANT pg_read_all_stats TO the user"
    with limited_user(db, database_url, "pg_read_all_stats") as url:
        assert status(url, "transactions") == "ok"


def test_a_prepared_transaction(own_url: str, impatient: None):
    assert status(own_url, "prepared") == "ok"
    with psycopg.connect(own_url) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute("PREPARE TRANSACTION 'forgotten'")
    try:
        result = run_check(own_url, "prepared")
        assert (result.status, "'forgotten'" in result.found) == ("warn", True)
    finally:
        with psycopg.connect(own_url, autocommit=True) as connection:
            connection.execute("ROLLBACK PREPARED 'forgotten'")


def test_a_slot_without_a_reader(own_url: str, monkeypatch: pytest.MonkeyPatch):
    assert status(own_url, "slots") == "ok"
    with psycopg.connect(own_url, autocommit=True) as connection:
        connection.execute("SELECT pg_create_physical_replication_slot('gone', true)")
        try:
            assert status(own_url, "slots") == "warn"
            connection.execute("SELECT pg_logical_emit_message(false, 'doctor', repeat('x', 100000))")
            monkeypatch.setattr(vacuum, "RETAINED_WAL", 100_000)
            assert status(own_url, "slots") == "fail"
        finally:
            connection.execute("SELECT pg_drop_replication_slot('gone')")


def test_dead_rows(database_url: str, connect: Connect):
    db = connect()
    assert status(database_url, "dead rows") == "ok"
    db.execute("ALTER TABLE skep.samples SET (autovacuum_enabled = off)")
    db.execute(
        """INSERT INTO skep.samples (at, queue, total, lag, leased, dead)
           SELECT now() - make_interval(secs => n), 'q', 1, 1, 0, 0 FROM generate_series(1, 60000) AS n"""
    )
    db.execute("DELETE FROM skep.samples")
    wait_until(db, "SELECT n_dead_tup > 50000 FROM pg_stat_user_tables WHERE relname = 'samples'")
    result = run_check(database_url, "dead rows")
    assert (result.status, result.found) == (
        "warn",
        "skep.samples has 60,000 dead and 0 live rows; last vacuum: never",
    )


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("DELETE FROM skep.migrations", "has schema version 0 of Skep"),
        ("UPDATE skep.schema_info SET functions_checksum = ''", "the functions in database"),
        ("INSERT INTO skep.migrations VALUES (9999, '9999_later', '')", "newer than this package"),
    ],
)
def test_a_wrong_schema(database_url: str, connect: Connect, damage: LiteralString, expected: str):
    assert status(database_url, "schema") == "ok"
    connect().execute(damage)
    result = run_check(database_url, "schema")
    assert (result.status, expected in result.found) == ("fail", True)


def test_rights_of_a_user(database_url: str, connect: Connect):
    db = connect()
    assert run_check(database_url, "roles").found == "postgres may push, pop, administer"
    with limited_user(db, database_url, "skep_consumer") as url:
        assert run_check(url, "roles").found.endswith(" may pop")
    with limited_user(db, database_url) as url:
        assert status(url, "roles") == "fail"


def test_lost_grants_are_restored(database_url: str, connect: Connect, cli: Cli):
    connect().execute("REVOKE USAGE ON SCHEMA skep FROM skep_producer")
    result = run_check(database_url, "roles")
    assert (result.status, result.found) == ("fail", "skep_producer may not use the schema")
    assert result.advice == "run `skep install --again`, which restores the grants"
    assert cli("install").stdout.endswith("up to date\n")
    assert cli("install", "--again").stdout.endswith("functions renewed\n")
    assert status(database_url, "roles") == "ok"


def test_no_upkeep(database_url: str, connect: Connect, mq: Skep, cli: Cli):
    db = connect()
    assert status(database_url, "upkeep") == "ok"
    mq.queue("orders").push(1)
    assert run_check(database_url, "upkeep").found == "no upkeep has ever run"
    assert cli("upkeep", "--once").code == 0
    assert status(database_url, "upkeep") == "ok"
    db.execute("UPDATE skep.samples SET at = at - interval '1 hour'")
    assert run_check(database_url, "upkeep").found == "the last sample is 60 min old"


def test_a_journal_that_is_not_pruned(database_url: str, connect: Connect, mq: Skep):
    mq.queue("orders").push(1)
    mq.sample()
    connect().execute("UPDATE skep.journal SET created_at = created_at - interval '1 hour'")
    assert run_check(database_url, "upkeep").found == "the journal is 60 min old, and should not be older than 10 min"


def test_maintenance(database_url: str, mq: Skep, connect: Connect):
    assert status(database_url, "maintenance") == "ok"
    mq.set_maintenance(push=True)
    assert run_check(database_url, "maintenance").found == "on: servers hold pushes"
    mq.set_maintenance(push=False)
    connect().execute("INSERT INTO skep.held_pushes (items, messages, error) VALUES ('[]', 1, 'too large')")
    assert run_check(database_url, "maintenance").found == "off, but 1 held requests were refused"


def test_keys_of_encrypted_queues(database_url: str, mq: Skep, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SKEP_ENCRYPTION_KEYS", raising=False)
    assert status(database_url, "encryption") == "ok"
    mq.queue("secrets").configure(encryption_enabled=True)
    assert run_check(database_url, "encryption").found == "secrets encrypted, but SKEP_ENCRYPTION_KEYS is not set here"
    monkeypatch.setenv("SKEP_ENCRYPTION_KEYS", "k1:too-short")
    assert status(database_url, "encryption") == "fail"
    monkeypatch.setenv("SKEP_ENCRYPTION_KEYS", f"k1:{'ab' * 32}")
    assert status(database_url, "encryption") == "ok"


def test_outbox_rows_that_are_not_published(database_url: str, connect: Connect, monkeypatch: pytest.MonkeyPatch):
    """Rows of transactions under REPEATABLE READ and SERIALIZABLE wait while no upkeep runs."""
    monkeypatch.setattr(schema_checks, "MAX_OUTBOX_AGE", 0.01)
    assert status(database_url, "outbox") == "ok"
    db = connect(options="-c default_transaction_isolation=serializable")
    db.execute("INSERT INTO skep.outbox (queue, payload) VALUES ('q', '1'), ('q', '2')")
    result = run_check(database_url, "outbox")
    assert (result.status, result.found) == ("warn", "2 committed rows wait to be published")
    db.execute("SELECT skep.move_committed_outbox()")
    assert status(database_url, "outbox") == "ok"


@pytest.mark.parametrize(("free", "expected"), [(100 * GIB, "ok"), (GIB, "warn"), (GIB // 8, "fail")])
def test_disk_space(free: int, expected: str):
    assert check_space(free, "/data").status == expected


def test_an_inconsistent_log(database_url: str, mq: Skep, connect: Connect, cli: Cli):
    mq.queue("orders").push_many(range(3))
    consistent = cli("doctor", "--thorough", "--json").json["checks"][-1]
    assert (consistent["check"], consistent["status"]) == ("log", "ok")
    connect().execute("UPDATE skep.partition_floors SET first_offset = 5")
    broken = cli("doctor", "--thorough", "--json").json["checks"][-1]
    assert broken["status"] == "fail"
    assert "partition_lookup matches the messages: 1 violations" in broken["found"]
    assert "log" not in {check["check"] for check in cli("doctor", "--json").json["checks"]}
