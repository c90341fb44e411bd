"""The fixtures of the pytest plugin: each test here runs pytest."""

import re
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from skep.testing import TemporaryDatabase

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "test_orders.py"
STRICT = ("-W", "error::ResourceWarning", "-W", "error::pytest.PytestUnraisableExceptionWarning")
ASYNC = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")


@pytest.fixture
def run(pytester: pytest.Pytester, postgres_url: str, monkeypatch: pytest.MonkeyPatch):
    """Run these tests on the server of this run, which is faster than starting one."""
    monkeypatch.setenv("SKEP_TEST_DATABASE_URL", postgres_url)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def run(tests: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(tests)
        return pytester.runpytest_subprocess("-s", *STRICT, *ASYNC, *options)

    return run


def test_every_test_starts_with_an_empty_database(run):
    done = run("""
        import pytest

        @pytest.mark.parametrize("number", range(5))
        def test_push(skep, number):
            assert skep.queues() == skep.groups() == []
            receipt = skep.queue("orders").push(number)
            assert (receipt.partition_id, receipt.offset) == (1, 0)
            assert skep.queue("orders").pop(group="billing")[0].payload == number
    """)
    done.assert_outcomes(passed=5)


def test_the_url_is_a_url(run):
    done = run("""
        import psycopg
        from skep import AsyncSkep

        def test_psycopg(skep, skep_url):
            skep.queue("orders").push(1)
            assert skep_url.startswith("postgresql://")
            with psycopg.connect(skep_url) as connection:
                assert connection.execute("SELECT payload FROM skep.messages").fetchall() == [(1,)]

        async def test_async(skep_url):
            async with AsyncSkep(skep_url) as mq:
                assert (await mq.queue("orders").push(1)).offset == 0
    """)
    done.assert_outcomes(passed=2)


def test_all_changes_of_a_test_are_removed(run):
    done = run("""
        import psycopg, pytest

        kept = []

        @pytest.mark.parametrize("harm", [
            "CREATE TABLE mine ()", "DROP SCHEMA skep CASCADE", "DROP FUNCTION skep.extend", "CREATE SCHEMA other",
        ])
        def test_harm(skep, skep_url, harm):
            skep.queue("orders").push(1)
            with psycopg.connect(skep_url) as connection:
                there = connection.execute("SELECT to_regclass('mine'), to_regnamespace('other')")
                assert there.fetchone() == (None, None)
                connection.execute(harm)

        @pytest.mark.parametrize("number", range(2))
        def test_open_transaction(skep, skep_url, number):
            assert skep.queue("orders").push(1).offset == 0
            kept.append(psycopg.connect(skep_url))
            kept[-1].execute("SELECT * FROM skep.push('orders', '2')")

        def test_a_client_left_open(skep_url):
            from skep import Skep
            kept.append(Skep(skep_url))
            kept[-1].queue("orders").push(1)

        def test_a_closed_client(skep):
            skep.close()

        def test_last(skep):
            assert skep.queues() == []
            for one in kept:
                one.close()
    """)
    done.assert_outcomes(passed=9)


def test_databases_are_dropped_at_the_end(run, postgres_url: str):
    done = run("def test_name(skep_url): print('used', skep_url)")
    (name,) = re.findall(r"used .*/(\w+)", done.stdout.str())
    with psycopg.connect(postgres_url) as connection:
        names = [name, name.removesuffix("_copy")]
        left = connection.execute("SELECT datname FROM pg_database WHERE datname = ANY (%s)", [names])
        assert left.fetchall() == []


def test_nothing_is_imported_before_a_test_uses_a_fixture(run):
    done = run("""
        import sys

        def test_modules():
            assert "skep.pytest_plugin" in sys.modules
            assert not {name for name in sys.modules if name.startswith(("psycopg", "skep.client", "skep.e"))}
    """)
    done.assert_outcomes(passed=1)


@pytest.fixture
def temporary(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory to which the user of PostgreSQL has access."""
    data_dir.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(data_dir))
    monkeypatch.delenv("SKEP_TEST_DATABASE_URL", raising=False)
    return data_dir


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_one_server_for_the_run(pytester: pytest.Pytester, temporary: Path, workers: tuple[str, ...]):
    pytester.makepyfile("""
        import pathlib, pytest

        @pytest.mark.parametrize("number", range(4))
        def test_push(skep, skep_url, number):
            assert skep.queue("orders").push(number).offset == 0
            pathlib.Path(f"url{number}").write_text(skep_url)
    """)
    done = pytester.runpytest_subprocess(*STRICT, *ASYNC, *workers, "--basetemp", str(pytester.path / "base"))
    done.assert_outcomes(passed=4)
    urls = {path.read_text() for path in pytester.path.glob("url*")}
    assert len({re.sub(r"/\w+$", "", url) for url in urls}) == 1
    assert len(urls) == len(workers) or 1
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(urls.pop())
    assert list(temporary.glob("skep*")) == []


def test_the_example(run):
    run(EXAMPLE.read_text()).assert_outcomes(passed=3)
    assert EXAMPLE.read_text().strip() in (ROOT / "docs" / "testing.md").read_text()


@pytest.fixture
def database(postgres_url: str) -> Generator[TemporaryDatabase]:
    with TemporaryDatabase(postgres_url) as made:
        yield made


TABLES = """
    SELECT c.oid::regclass::text FROM pg_class c
    WHERE c.relnamespace = 'skep'::regnamespace AND c.relkind = 'r' ORDER BY c.relname
"""
USE = """
    SELECT skep.configure_defaults('new', 5);
    SELECT skep.push('orders', '1');
    INSERT INTO skep.outbox (queue, payload) VALUES ('orders', '2');
    SELECT skep.pop('orders', 'billing', subscription_mode => 'all');
    SELECT skep.dead_letter(lease_id, 'no') FROM skep.leases;
    SELECT skep.pop('orders', 'billing');
    SELECT skep.prune_journal('0 s')
"""


def contents(connection: psycopg.Connection) -> dict[str, list[tuple]]:
    tables = [name for (name,) in connection.execute(TABLES).fetchall()]
    return {name: connection.execute(f"SELECT * FROM {name}".encode()).fetchall() for name in tables}


def test_an_emptied_database_is_like_a_new_one(database: TemporaryDatabase):
    with psycopg.connect(database.url, autocommit=True) as connection:
        new = contents(connection)
        for statement in USE.split(";"):
            connection.execute(statement.encode())
        assert connection.execute("SELECT count(*) FROM skep.dead_letters").fetchone() == (1,)
        database.empty()
        assert contents(connection) == new


def test_many_rows_are_dropped_with_the_database(database: TemporaryDatabase):
    with psycopg.connect(database.url, autocommit=True) as connection:
        for _ in range(9):
            connection.execute("SELECT skep.push('orders', to_jsonb(repeat(md5(random()::text), 30000)))")
    database.empty()
    with psycopg.connect(database.url) as connection:
        assert connection.execute("SELECT count(*) FROM skep.messages").fetchone() == (0,)
