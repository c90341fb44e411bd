"""`skep tail`."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import psycopg
import pytest

from skep import NewMessage, Skep
from tests.cli.conftest import Cli
from tests.cli.process import SKEP, environment


@contextmanager
def following(database_url: str, mq: Skep, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """Run `skep tail orders`, and continue once its group exists."""
    command = [SKEP, "tail", "orders", *arguments, "--database-url", database_url]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_for_group(mq)
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def wait_for_group(mq: Skep) -> None:
    deadline = time.monotonic() + 30
    while not tails(mq):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def tails(mq: Skep) -> list[str]:
    return [group.group for group in mq.groups() if group.group.startswith("tail-")]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_follows_until_it_is_stopped(database_url: str, mq: Skep, stop: signal.Signals):
    with following(database_url, mq) as process:
        assert process.stdout is not None
        for number in range(3):
            mq.queue("orders").push({"id": number})
            assert process.stdout.readline().rstrip().endswith(f'{{"id": {number}}}')
        process.send_signal(stop)
        process.send_signal(stop)
        stdout, stderr = process.communicate(timeout=30)
        assert (process.returncode, stdout, stderr) == (0, "", "")
    assert tails(mq) == []


def test_new_skips_old_messages(database_url: str, mq: Skep, connect: Callable[..., psycopg.Connection]):
    mq.queue("orders").push("old")
    connection = connect()
    connection.execute("UPDATE skep.messages SET created_at = created_at - interval '1 hour'")
    with following(database_url, mq, "--limit", "1") as process:
        mq.queue("orders").push("young")
        stdout, _ = process.communicate(timeout=30)
    assert '"young"' in stdout
    assert '"old"' not in stdout


def test_from_the_beginning(cli: Cli, mq: Skep):
    mq.queue("orders").push_many([NewMessage(number, partition=f"p{number % 3}") for number in range(300)])
    done = cli("tail", "orders", "--from", "beginning", "--limit", "300", "--json")
    assert (done.code, done.stderr) == (0, "")
    assert sorted(line["payload"] for line in done.json_lines) == list(range(300))
    assert [line["payload"] for line in done.json_lines if line["partition"] == "p1"] == list(range(1, 300, 3))
    assert tails(mq) == []


def test_limit(cli: Cli, mq: Skep):
    mq.queue("orders").push_many(range(10))
    assert len(cli("tail", "orders", "--from", "beginning", "--limit", "4").lines) == 4


def test_from_an_offset_a_time_and_in_one_partition(cli: Cli, mq: Skep):
    receipts = mq.queue("orders").push_many([NewMessage(number, partition="p") for number in range(5)])
    mq.queue("orders").push("other")
    options = ["--partition", "p", "--json", "--limit", "1", "--from"]
    assert cli("tail", "orders", *options, "3").json["payload"] == 3
    assert cli("tail", "orders", *options, receipts[0].created_at.isoformat()).json["payload"] == 0
    assert tails(mq) == []


@pytest.mark.parametrize("start", ["sometime", "2026-13-01", "-1"])
def test_an_invalid_start(cli: Cli, mq: Skep, start: str):
    done = cli("tail", "orders", "--from", start)
    assert (done.code, done.stdout) == (1, "")
    assert f'got "{start}"' in done.stderr
    assert tails(mq) == []


def test_no_group_misses_a_message(cli: Cli, mq: Skep):
    queue = mq.queue("orders")
    queue.push_many(range(10))
    queue.pop(group="billing", batch=3).ack()
    cli("tail", "orders", "--from", "beginning", "--limit", "10")
    assert [each.lag for each in queue.lag("billing")] == [7]
    assert [message.payload for message in queue.pop(batch=20)] == list(range(10))
    assert mq.dead_letters() == []


def test_a_queue_whose_groups_share_a_cursor_is_refused(cli: Cli, mq: Skep):
    mq.queue("orders").configure(semantics="queue")
    mq.queue("orders").push(1)
    done = cli("tail", "orders", "--from", "beginning", "--limit", "1")
    assert done.code == 1
    assert "skep pop" in done.stderr
    assert [message.payload for message in mq.queue("orders").pop()] == [1]


@pytest.mark.parametrize("output", [[], ["--json"]])
def test_ends_when_the_output_is_closed(database_url: str, mq: Skep, output: list[str]):
    mq.queue("orders").push_many(range(10))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [SKEP, "tail", "orders", "--from", "beginning", *output],
        env=environment(SKEP_DATABASE_URL=database_url),
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
    assert tails(mq) == []


def test_continues_after_broken_connections(database_url: str, mq: Skep, connect: Callable[..., psycopg.Connection]):
    with following(database_url, mq, "--json", "--limit", "2") as process:
        assert process.stdout is not None
        mq.queue("orders").push(1)
        assert json.loads(process.stdout.readline())["payload"] == 1
        connection = connect()
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("SELECT * FROM skep.push('orders', '2')")
        assert json.loads(process.stdout.readline())["payload"] == 2
        process.wait(30)
    groups = connect().execute("SELECT count(*) FROM skep.subscriptions WHERE group_name LIKE 'tail-%'")
    assert groups.fetchone() == (0,)
