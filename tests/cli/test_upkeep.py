"""`skep upkeep`."""

import json
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic

import psycopg
import pytest

from skep import Skep
from tests.cli.conftest import Cli
from tests.cli.process import SKEP, environment, wait_until

Connect = Callable[..., psycopg.Connection]

SAMPLING = "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '%skep.sample()%' AND wait_event_type = 'Lock'"


@pytest.fixture
def orders(mq: Skep) -> Skep:
    mq.queue("orders").configure(max_size=1)
    mq.queue("orders").push_many(range(5))
    return mq


@contextmanager
def running(database_url: str, *options: str) -> Generator[subprocess.Popen[str]]:
    command = [SKEP, "upkeep", *options, "--database-url", database_url]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def test_once(cli: Cli, orders: Skep):
    done = cli("upkeep", "--once")
    assert (done.code, done.stderr) == (0, "")
    did = {line.split()[0]: " ".join(line.split()[3:]) for line in done.lines[1:]}
    jobs = {
        "lease_expiry",
        "detection",
        "retention",
        "sampling",
        "pruning",
        "held_push",
        "outbox",
        "delayed",
        "schedule",
    }
    assert set(did) == jobs
    assert did["retention"].startswith("deleted 4 messages")
    assert did["detection"] == "nothing to do"
    assert [row["did"] for row in cli("upkeep", "--once", "--json").json] == [None] * len(jobs)
    assert orders.queue("orders").status().messages == 1


def test_intervals(cli: Cli, orders: Skep, monkeypatch: pytest.MonkeyPatch):
    """A flag overrides the environment, which overrides the default."""
    monkeypatch.setenv("SKEP_SAMPLING_INTERVAL", "30")
    monkeypatch.setenv("SKEP_DETECTION_INTERVAL", "40")
    rows = cli("upkeep", "--once", "--json", "--detection-interval", "2.5").json
    every = {row["job"]: row["every"] for row in rows}
    assert (every["detection"], every["sampling"], every["retention"]) == (2.5, 30, 10)
    (line,) = (line for line in cli("upkeep", "--once").lines if line.startswith("sampling"))
    assert line.split()[1] == "30"


@pytest.mark.parametrize("value", ["0", "86401", "often"])
def test_an_invalid_interval(cli: Cli, orders: Skep, monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("SKEP_RETENTION_INTERVAL", value)
    done = cli("upkeep", "--once")
    assert done.code != 0
    assert done.stderr.startswith("error: SKEP_RETENTION_INTERVAL must be ")
    assert f'got "{value}' in done.stderr


def test_a_job_runs_at_its_interval(database_url: str, orders: Skep):
    """Every 0.1 s instead of every 10 s."""
    with running(database_url, "--retention-interval", "0.1") as process:
        assert process.stdout is not None
        assert "retention: deleted 4 messages" in process.stdout.readline()
        orders.queue("orders").push_many(range(3))
        begun = monotonic()
        assert "retention: deleted" in process.stdout.readline()
        assert monotonic() - begun < 8
        process.terminate()
        assert process.wait(30) == 0


def test_once_with_a_failure(cli: Cli, orders: Skep, connect: Connect, caplog: pytest.LogCaptureFixture):
    connect().execute("DROP FUNCTION skep.detect_dead_groups()")
    done = cli("upkeep", "--once", "--json")
    assert done.code == 1
    failed = [row["job"] for row in done.json if row["error"]]
    assert failed == ["detection"]
    assert orders.queue("orders").status().messages == 1
    assert "failed: function skep.detect_dead_groups() does not exist" in cli("upkeep", "--once").stdout


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_runs_until_it_is_stopped(database_url: str, orders: Skep, stop: signal.Signals):
    with running(database_url) as process:
        assert process.stdout is not None
        assert "retention: deleted 4 messages" in process.stdout.readline()
        process.send_signal(stop)
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout, stderr) == (0, "", "")


def test_the_run_in_progress_is_finished(database_url: str, orders: Skep, connect: Connect):
    locker = connect()
    with running(database_url) as process:
        with locker.transaction():
            locker.execute("LOCK TABLE skep.samples")
            wait_until(connect(), SAMPLING)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
        assert process.wait(30) == 0
    assert orders.history("orders") != []


def test_the_second_signal_ends_it_at_once(database_url: str, orders: Skep, connect: Connect):
    locker = connect()
    with running(database_url) as process, locker.transaction():
        locker.execute("LOCK TABLE skep.samples")
        wait_until(connect(), SAMPLING)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_failures_are_printed_and_stop_nothing(database_url: str, orders: Skep, connect: Connect):
    connect().execute("DROP FUNCTION skep.expire_leases()")
    with running(database_url, "--json") as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert process.poll() is None
        process.terminate()
        assert process.wait(30) == 0
    found = {line["job"]: line for line in lines}
    assert found["lease_expiry"]["error"].startswith("function skep.expire_leases() does not exist")
    assert found["retention"]["did"].startswith("deleted 4 messages")
