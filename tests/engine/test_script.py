"""`skep install --print`: the script does what an install does."""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from skep.embedded import binaries
from skep.engine.install import LOCK, install, verify
from skep.engine.script import script
from skep.engine.sources import Migration, Sources, packaged
from tests.engine.catalog import everything, routines
from tests.engine.tiny import COLOUR, THING, TINY, UPGRADED


def run_with_driver(url: str, text: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(text.encode())


def run_with_psql(url: str, text: str) -> None:
    psql = shutil.which("psql") or binaries.find(None, None).bin_dir / "psql"
    command = [psql, "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", url]
    done = subprocess.run(command, input=text, text=True, check=False, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("run", [run_with_driver, run_with_psql])
@pytest.mark.parametrize("sources", [TINY, UPGRADED, packaged()], ids=["tiny", "upgraded", "packaged"])
def test_the_script_equals_an_install(
    run: Callable[[str, str], None], sources: Sources, new_database: Callable[..., str]
):
    scripted_url, installed_url = new_database(), new_database()
    run(scripted_url, script(sources))
    install(installed_url, sources)
    with psycopg.connect(scripted_url) as scripted, psycopg.connect(installed_url) as installed:
        assert everything(scripted) == everything(installed)
        verify(scripted, sources)


def test_the_script_is_harmless_to_run_again(empty_database_url: str):
    with psycopg.connect(empty_database_url, autocommit=True) as session:
        run_with_psql(empty_database_url, script(TINY))
        before = everything(session)
        session.execute("INSERT INTO skep.thing VALUES (1)")
        run_with_psql(empty_database_url, script(TINY))
        assert everything(session) == before
        assert session.execute("SELECT id FROM skep.thing").fetchall() == [(1,)]


def test_many_run_the_script_at_once(empty_database_url: str):
    barrier = threading.Barrier(6)

    def run(_: int) -> None:
        barrier.wait()
        run_with_driver(empty_database_url, script(UPGRADED))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(6)))
    with psycopg.connect(empty_database_url) as session:
        verify(session, UPGRADED)


def test_the_script_upgrades(empty_database_url: str):
    install(empty_database_url, TINY)
    run_with_psql(empty_database_url, script(UPGRADED))
    with psycopg.connect(empty_database_url) as session:
        verify(session, UPGRADED)
        assert "old_name()" not in routines(session)


@pytest.mark.parametrize("sources", [UPGRADED, replace(TINY, migrations=(*TINY.migrations, COLOUR))])
def test_the_script_gives_up_on_a_lock_and_says_so(empty_database_url: str, sources: Sources):
    """As an install does: users wait half a second at most, nothing is changed, and the hint says to run it again."""
    first = TINY if sources is UPGRADED else replace(TINY, functions=())
    install(empty_database_url, first)
    with psycopg.connect(empty_database_url) as user, psycopg.connect(empty_database_url) as other:
        user.execute("INSERT INTO skep.thing VALUES (1)")
        since = time.monotonic()
        with pytest.raises(psycopg.errors.LockNotAvailable, match="locked by other transactions") as caught:
            run_with_driver(empty_database_url, script(sources))
        assert 0.4 < time.monotonic() - since < 30
        assert "run it again" in (caught.value.diag.message_hint or "")
        verify(other, first)
        user.commit()
    run_with_driver(empty_database_url, script(sources))
    with psycopg.connect(empty_database_url) as session:
        verify(session, sources)


def test_the_script_waits_for_another_install(empty_database_url: str):
    """For longer than the half second that it waits for a table."""
    with ThreadPoolExecutor(1) as pool, psycopg.connect(empty_database_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        done = pool.submit(run_with_driver, empty_database_url, script(TINY))
        with pytest.raises(TimeoutError):
            done.result(1.5)
        other.rollback()
        done.result(30)
        verify(other, TINY)


@pytest.mark.parametrize(
    ("older", "says"),
    [
        (TINY, "newer schema"),
        (
            replace(UPGRADED, migrations=(Migration(THING.name, "SELECT 1"), *UPGRADED.migrations[1:])),
            "0001_create_thing",
        ),
    ],
    ids=["newer", "another"],
)
def test_the_script_refuses_a_database_it_does_not_fit(empty_database_url: str, older: Sources, says: str):
    install(empty_database_url, UPGRADED)
    with pytest.raises(psycopg.Error, match=says) as caught:
        run_with_driver(empty_database_url, script(older))
    assert caught.value.sqlstate == "SK008"
    with psycopg.connect(empty_database_url) as session:
        verify(session, UPGRADED)
