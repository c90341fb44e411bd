"""Install, upgrade and verify the schema, with tiny sources and with those of the package."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import DictRow, dict_row

from skep import errors
from skep.engine.install import LOCK, InstallReport, install, uninstall, verify
from skep.engine.script import script
from skep.engine.sources import Migration, Sources, SqlFile, packaged
from tests.engine.catalog import routines
from tests.engine.tiny import NEW_CODE, THING, TINY, UPGRADED
from tests.engine.verbs import push


@pytest.fixture
def url(empty_database_url: str, template: str) -> str:
    """An empty database on a server that has the roles, because `template` has Skep."""
    return empty_database_url


@pytest.fixture
def session(url: str):
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def one(session: psycopg.Connection, query: str) -> object:
    row = session.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_the_package_installs_and_verifies(url: str, session: psycopg.Connection):
    assert install(url).functions
    verify(session)
    assert install(url) == InstallReport(packaged().version)


def test_an_install_reports_what_it_did(url: str, session: psycopg.Connection):
    assert install(url, TINY) == InstallReport(1, ("0001_create_thing",), functions=True)
    assert session.execute("SELECT number, name, checksum FROM skep.migrations").fetchall() == [
        (1, "0001_create_thing", THING.checksum)
    ]
    recorded = session.execute("SELECT version, package, functions_checksum FROM skep.schema_info").fetchall()
    assert recorded == [(1, "1.2.3", TINY.functions_checksum)]


def test_an_install_without_changes_takes_no_lock(url: str, session: psycopg.Connection):
    install(url, TINY)
    session.execute("SELECT pg_advisory_lock(%s)", [LOCK])
    assert install(url, TINY) == InstallReport(1)


def test_empty_sources_install(url: str, session: psycopg.Connection):
    empty = replace(TINY, migrations=(), functions=())
    assert install(url, empty) == InstallReport(0, functions=True)
    verify(session, empty)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_many_install_at_once(url: str, session: psycopg.Connection, isolation: str):
    name = sql.Identifier(session.info.dbname)
    session.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = {}").format(name, isolation))
    barrier = threading.Barrier(8)

    def run(_: int) -> InstallReport:
        barrier.wait()
        return install(url, UPGRADED)

    with ThreadPoolExecutor(8) as pool:
        reports = list(pool.map(run, range(8)))
    assert sum(report.functions for report in reports) == 1
    assert sum(len(report.migrations) for report in reports) == 2
    verify(session, UPGRADED)


def test_an_upgrade_keeps_state_and_replaces_code(url: str, session: psycopg.Connection):
    install(url, TINY)
    session.execute("INSERT INTO skep.thing VALUES (1)")
    assert install(url, UPGRADED) == InstallReport(2, ("0002_add_colour",), functions=True)
    session.execute("INSERT INTO skep.thing VALUES (2)")
    things = session.execute("SELECT id, seen FROM skep.thing ORDER BY id").fetchall()
    assert things == [(1, 1), (2, 1), (7, 0)]  # (7, 0): migrations run after the code was dropped
    assert routines(session) == ["all_things()", "answer()", "forget(integer)", "new_name()", "see()"]
    assert one(session, "SELECT pg_typeof(skep.answer())::text") == "bigint"
    assert one(session, "SELECT count FROM skep.many") == 3
    verify(session, UPGRADED)


def test_only_changed_functions_are_replaced(url: str, session: psycopg.Connection):
    install(url, TINY)
    assert install(url, replace(TINY, functions=(NEW_CODE,))) == InstallReport(1, functions=True)
    assert "new_name()" in routines(session)


@pytest.mark.parametrize(
    ("dependent", "named"),
    [
        ("CREATE VIEW public.mine AS SELECT * FROM skep.things", "view mine"),
        ("CREATE VIEW public.mine AS SELECT skep.answer()", "view mine"),
        (
            "CREATE FUNCTION public.mine(skep.things) RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "function mine(skep.things)",
        ),
        (
            "CREATE FUNCTION public.mine(skep.things[]) RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "function mine(skep.things[])",
        ),
        ("ALTER TABLE skep.thing ADD CHECK (skep.answer() = 1)", "constraint thing_check"),
        ("ALTER TABLE skep.thing ALTER seen SET DEFAULT skep.answer()", "column seen of table skep.thing"),
        (
            "CREATE TABLE public.mine (); CREATE TRIGGER t BEFORE INSERT ON public.mine EXECUTE FUNCTION skep.see()",
            "trigger t on table mine",
        ),
    ],
)
def test_objects_that_depend_on_the_code_are_never_lost(
    url: str, session: psycopg.Connection, dependent: str, named: str
):
    install(url, TINY)
    session.execute(dependent.encode())
    with pytest.raises(errors.Conflict) as caught:
        install(url, UPGRADED)
    assert named in caught.value.message.replace("public.", "")
    assert "create them again" in (caught.value.hint or "")
    verify(session, TINY)


def run_script(url: str, sources: Sources) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(script(sources).encode())


GRANTS = """
    SELECT coalesce(replace(p.oid::regprocedure::text, 'skep.', ''), c.relname || coalesce('.' || a.attname, '')),
           acl.privilege_type, acl.is_grantable
    FROM (SELECT 'pg_proc'::regclass AS class, oid, 0 AS number, proacl AS acl FROM pg_proc
          UNION ALL SELECT 'pg_class'::regclass, oid, 0, relacl FROM pg_class
          UNION ALL SELECT 'pg_class'::regclass, attrelid, attnum, attacl FROM pg_attribute) object
    CROSS JOIN LATERAL aclexplode(object.acl) acl
    LEFT JOIN pg_proc p ON object.class = 'pg_proc'::regclass AND p.oid = object.oid
    LEFT JOIN pg_class c ON object.class = 'pg_class'::regclass AND c.oid = object.oid
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = object.number AND object.number > 0
    WHERE acl.grantee = to_regrole('"Skep test app"') ORDER BY 1, 2
"""


class TestGrantsOfUsers:
    """An upgrade drops and creates functions and views, and keeps the grants that users made on them."""

    @pytest.fixture
    def app(self, session: psycopg.Connection):
        """A role whose name has to be quoted."""
        name = '"Skep test app"'
        session.execute(f"CREATE ROLE {name}".encode())
        yield name
        session.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())

    @pytest.mark.parametrize("run", [install, run_script], ids=["install", "script"])
    def test_they_survive_an_upgrade(self, url: str, session: psycopg.Connection, app: str, run: Callable):
        install(url, TINY)
        session.execute(f"GRANT EXECUTE ON FUNCTION skep.all_things() TO {app}".encode())
        session.execute(f"GRANT EXECUTE ON FUNCTION skep.answer() TO {app} WITH GRANT OPTION".encode())
        session.execute(f"GRANT SELECT ON skep.things TO {app}; GRANT SELECT (count) ON skep.many TO {app}".encode())
        granted = session.execute(GRANTS).fetchall()
        assert granted == [
            ("all_things()", "EXECUTE", False),
            ("answer()", "EXECUTE", True),
            ("many.count", "SELECT", False),
            ("things", "SELECT", False),
        ]
        run(url, UPGRADED)
        assert session.execute(GRANTS).fetchall() == granted
        assert one(session, "SELECT to_regclass('skep.kept_grants')") is None

    def test_a_grant_to_public_survives(self, url: str, session: psycopg.Connection, app: str):
        install(url)
        session.execute("GRANT EXECUTE ON FUNCTION skep.message_id TO PUBLIC")
        install(url, again=True)
        may = "has_function_privilege('Skep test app', p.oid, 'EXECUTE')"
        names = f"SELECT proname FROM pg_proc p WHERE pronamespace = 'skep'::regnamespace AND {may}"
        assert session.execute(names.encode()).fetchall() == [("message_id",)]

    def test_a_grant_on_a_function_that_is_gone_is_named(self, url: str, session: psycopg.Connection, app: str):
        install(url, TINY)
        session.execute(f"GRANT EXECUTE ON FUNCTION skep.old_name() TO {app}".encode())
        assert 'EXECUTE ON ROUTINE skep.old_name() TO "Skep test app"' in install(url, UPGRADED).lost_grants
        assert session.execute(GRANTS).fetchall() == []

    def test_the_roles_of_skep_get_what_the_package_grants(self, url: str, session: psycopg.Connection):
        """A right that a new version takes away from a role is really gone."""
        install(url)
        session.execute("GRANT EXECUTE ON FUNCTION skep.delete_queue TO skep_consumer")
        install(url, again=True)
        may = "SELECT has_function_privilege('skep_consumer', 'skep.delete_queue(text)', 'EXECUTE')"
        assert one(session, may) is False


def await_a_waiting_lock(session: psycopg.Connection) -> None:
    waiting = "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database WHERE NOT granted AND datname = %s"
    deadline = time.monotonic() + 30
    while session.execute(waiting, [session.info.dbname]).fetchone() == (0,):
        assert time.monotonic() < deadline


def test_an_install_waits_for_a_long_transaction_and_lets_others_pass(url: str, session: psycopg.Connection):
    install(url, TINY)
    with ThreadPoolExecutor(1) as pool, psycopg.connect(url) as user:
        user.execute("INSERT INTO skep.thing VALUES (1)")
        report = pool.submit(install, url, UPGRADED)
        await_a_waiting_lock(session)
        session.execute("SET statement_timeout = '20s'")
        assert one(session, "SELECT count(*) FROM skep.things") == 0
        user.commit()
        assert report.result(30).version == 2


def test_a_call_under_way_during_an_upgrade_can_be_made_again(url: str, session: psycopg.Connection):
    """The call fails because its function is gone; it is retryable and succeeds after the upgrade."""
    install(url)
    session.execute("SELECT pg_advisory_lock(7)")
    newer = replace(packaged(), functions=(*packaged().functions, SqlFile("99_more", "-- more\n")))

    def call() -> None:
        with errors.explained(), psycopg.connect(url) as caller:
            caller.execute("SELECT pg_advisory_xact_lock_shared(7), skep.notify('x', ARRAY['q'])")

    with ThreadPoolExecutor() as threads:
        calling = threads.submit(call)
        while one(session, "SELECT count(*) FROM pg_locks WHERE NOT granted AND objid = 7") == 0:
            time.sleep(0.01)
        install(url, newer)
        session.execute("SELECT pg_advisory_unlock(7)")
        with pytest.raises(errors.TransientError, match="cache lookup failed"):
            calling.result(30)
    call()


def test_an_install_gives_up_on_a_transaction_that_never_ends(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("skep.engine.install.ATTEMPTS", 1)
    install(url, TINY)
    with psycopg.connect(url) as user:
        user.execute("INSERT INTO skep.thing VALUES (1)")
        with pytest.raises(errors.TransientError, match="locked") as caught:
            install(url, UPGRADED)
        assert "pg_stat_activity" in (caught.value.hint or "")
        verify(user, TINY)


def test_a_failure_changes_nothing_and_names_the_line(url: str, session: psycopg.Connection):
    install(url, TINY)
    broken = Migration("0002_break_it", "SELECT 1;\nSELECT nonsense;\n")
    with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
        install(url, replace(UPGRADED, migrations=(THING, broken)))
    assert caught.value.__notes__ == ["in 0002_break_it.sql, line 2"]
    verify(session, TINY)
    assert "old_name()" in routines(session)


def try_install(url: str, session: psycopg.Connection, sources: Sources) -> None:
    install(url, sources)


def try_verify(url: str, session: psycopg.Connection, sources: Sources) -> None:
    verify(session, sources)


def try_script(url: str, session: psycopg.Connection, sources: Sources) -> None:
    with errors.explained():
        run_script(url, sources)


FIRST_EDITION = replace(
    TINY, migrations=(Migration("0001_create_log", THING.sql), Migration("0002_add_lifecycle", "SELECT 1"))
)


@pytest.mark.parametrize("attempt", [try_install, try_verify, try_script])
def test_the_first_edition_is_refused_with_instructions(url: str, session: psycopg.Connection, attempt: Callable):
    install(url, FIRST_EDITION)
    with pytest.raises(errors.SchemaMismatch, match="the first edition of Skep.* cannot be upgraded") as caught:
        attempt(url, session, UPGRADED)
    assert all(way in (caught.value.hint or "") for way in ("drain it", "new database", "`skep uninstall`"))
    verify(session, FIRST_EDITION)
    uninstall(url)
    assert install(url, UPGRADED).version == 2


def test_the_first_edition_in_the_embedded_database_is_refused_with_its_folder(url: str):
    install(url, FIRST_EDITION)
    with pytest.raises(
        errors.SchemaMismatch, match="embedded database in /data/skep holds the first edition"
    ) as caught:
        install(url, UPGRADED, data_dir=Path("/data/skep"))
    assert all(way in (caught.value.hint or "") for way in ("drain it", "move the folder", "--data-dir"))


def test_another_build_in_the_embedded_database_is_refused_with_instructions(url: str):
    install(url, TINY)
    changed = replace(TINY, migrations=(Migration(THING.name, THING.sql + "-- changed"),))
    with pytest.raises(errors.SchemaMismatch, match="0001_create_thing") as caught:
        install(url, changed, data_dir=Path("/data/skep"))
    ways = ("skep 1.2.3", "move the folder /data/skep away", "SKEP_DATA_DIR")
    assert all(way in (caught.value.hint or "") for way in ways)


@pytest.mark.parametrize("attempt", [try_install, try_verify])
class TestRefused:
    def test_a_migration_with_another_text(self, url: str, session: psycopg.Connection, attempt: Callable):
        install(url, TINY)
        changed = Migration(THING.name, THING.sql + "-- changed")
        with pytest.raises(errors.SchemaMismatch, match="0001_create_thing") as caught:
            attempt(url, session, replace(UPGRADED, migrations=(changed,)))
        assert "skep 1.2.3" in (caught.value.hint or "")

    def test_a_newer_schema(self, url: str, session: psycopg.Connection, attempt: Callable):
        install(url, UPGRADED)
        with pytest.raises(errors.SchemaMismatch, match="0002_add_colour, newer") as caught:
            attempt(url, session, TINY)
        assert "upgrade the skep package" in (caught.value.hint or "")

    def test_newer_functions(self, url: str, session: psycopg.Connection, attempt: Callable):
        install(url, replace(TINY, package="1.10.0", functions=(NEW_CODE,)))
        with pytest.raises(errors.SchemaMismatch, match=r"1\.10\.0, this is 1\.2\.3") as caught:
            attempt(url, session, TINY)
        assert "upgrade the skep package" in (caught.value.hint or "")


def test_a_database_without_skep_is_refused_at_start(session: psycopg.Connection):
    with pytest.raises(errors.SchemaMismatch, match="not installed") as caught:
        verify(session)
    assert "skep install" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("sources", "message"), [(UPGRADED, "version 1 .* needs 2"), (replace(TINY, functions=(NEW_CODE,)), "functions")]
)
def test_an_older_schema_is_refused_at_start(url: str, session: psycopg.Connection, sources: Sources, message: str):
    install(url, TINY)
    with pytest.raises(errors.SchemaMismatch, match=message) as caught:
        verify(session, sources)
    assert "skep install" in (caught.value.hint or "")


def test_verify_leaves_a_connection_as_it_was(url: str):
    install(url, TINY)
    with psycopg.Connection[DictRow].connect(url, row_factory=dict_row) as connection:
        verify(connection, TINY)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_malformed_url_is_refused():
    with pytest.raises(errors.ConfigError):
        install("postgresql://ann:secret@db:nonsense/shop")


def test_a_database_that_is_down_is_named_without_its_password():
    with pytest.raises(errors.DatabaseUnavailable, match=r"postgresql://ann@127\.0\.0\.1:1/shop") as caught:
        install("postgresql://ann:secret@127.0.0.1:1/shop")
    assert "refused" in (caught.value.detail or "")
    assert "secret" not in repr(vars(caught.value))


def test_a_database_that_does_not_exist_is_named(url: str):
    with pytest.raises(errors.DatabaseUnavailable) as caught:
        install(make_conninfo(url, dbname="nowhere"))
    assert '"nowhere" does not exist' in (caught.value.detail or "")


def test_a_server_that_is_too_old_is_refused(url: str, session: psycopg.Connection):
    future = SqlFile("bootstrap", TINY.bootstrap.sql.replace("140000", "990000"))
    assert future != TINY.bootstrap
    with pytest.raises(errors.UnsupportedDatabase, match="too old"):
        install(url, replace(TINY, bootstrap=future))
    assert one(session, "SELECT to_regnamespace('skep')") is None


def test_an_encoding_other_than_utf8_is_refused(postgres_url: str):
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(
            "CREATE DATABASE skep_test_latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        try:
            with pytest.raises(errors.UnsupportedDatabase, match="LATIN1"):
                install(make_conninfo(postgres_url, dbname="skep_test_latin1"), TINY)
        finally:
            admin.execute("DROP DATABASE skep_test_latin1 WITH (FORCE)")


class TestUninstall:
    def test_it_leaves_nothing_but_the_roles(self, url: str, session: psycopg.Connection):
        install(url)
        push(session, "q", 1)
        uninstall(url)
        assert one(session, "SELECT to_regnamespace('skep')") is None
        assert one(session, "SELECT to_regrole('skep_producer') IS NOT NULL") is True
        assert install(url).migrations

    def test_a_database_without_skep(self, url: str):
        with pytest.raises(errors.SchemaMismatch, match="not installed"):
            uninstall(url)

    @pytest.mark.parametrize(
        ("dependent", "named"),
        [
            ("CREATE VIEW public.mine AS SELECT * FROM skep.things", "view mine"),
            ("CREATE VIEW public.mine AS SELECT * FROM skep.thing", "view mine"),
            ("CREATE TABLE public.mine (thing int REFERENCES skep.thing)", "constraint mine_thing_fkey"),
            ("CREATE TABLE public.mine (colour skep.colour)", "column colour of table mine"),
        ],
    )
    def test_objects_that_depend_on_the_schema_are_never_lost(
        self, url: str, session: psycopg.Connection, dependent: str, named: str
    ):
        sources = replace(TINY, migrations=(THING, Migration("0002_add_type", "CREATE TYPE skep.colour AS ENUM ()")))
        install(url, sources)
        session.execute(dependent.encode())
        with pytest.raises(errors.Conflict) as caught:
            uninstall(url)
        assert named in f"{caught.value.message} {caught.value.detail}".replace("public.", "")
        verify(session, sources)

    def test_it_waits_for_a_long_transaction(self, url: str, session: psycopg.Connection):
        install(url, TINY)
        with ThreadPoolExecutor(1) as pool, psycopg.connect(url) as user:
            user.execute("INSERT INTO skep.thing VALUES (1)")
            done = pool.submit(uninstall, url)
            await_a_waiting_lock(session)
            user.commit()
            done.result(30)
        assert one(session, "SELECT to_regnamespace('skep')") is None


class TestRights:
    ROLE = "skep_test_nobody"

    @pytest.fixture
    def as_nobody(self, url: str, session: psycopg.Connection):
        session.execute("CREATE ROLE skep_test_nobody LOGIN PASSWORD 'nobody'")
        yield make_conninfo(url, user=self.ROLE, password="nobody")
        session.execute("DROP OWNED BY skep_test_nobody CASCADE; DROP ROLE skep_test_nobody")

    def test_installing_needs_create_on_the_database(self, as_nobody: str):
        with pytest.raises(errors.PermissionDenied, match="permission denied for database") as caught:
            install(as_nobody, TINY)
        assert "CREATE on the database" in (caught.value.hint or "")

    def test_a_schema_made_beforehand_is_enough(self, as_nobody: str, session: psycopg.Connection):
        session.execute("CREATE SCHEMA skep AUTHORIZATION skep_test_nobody")
        assert install(as_nobody, TINY).version == 1

    def test_upgrading_needs_the_owner(self, url: str, as_nobody: str, session: psycopg.Connection):
        install(url, TINY)
        session.execute("GRANT USAGE, CREATE ON SCHEMA skep TO skep_test_nobody")
        with pytest.raises(errors.PermissionDenied, match='belongs to "postgres", not to') as caught:
            install(as_nobody, UPGRADED)
        assert 'install as "postgres"' in (caught.value.hint or "")

    def test_verify_works_for_any_role_that_may_use_the_schema(
        self, url: str, as_nobody: str, session: psycopg.Connection
    ):
        install(url, TINY)
        session.execute("GRANT USAGE ON SCHEMA skep TO skep_test_nobody")
        with psycopg.connect(as_nobody) as connection:
            verify(connection, TINY)

    def test_verify_says_which_role_is_missing(self, url: str, as_nobody: str):
        install(url, TINY)
        with psycopg.connect(as_nobody) as connection, pytest.raises(errors.PermissionDenied) as caught:
            verify(connection, TINY)
        assert "skep_consumer" in (caught.value.hint or "")
