"""`skep pop`."""

import os
import re
import subprocess
import threading
import time
from uuid import UUID

import pytest

from skep import NewMessage, Skep
from tests.cli.conftest import Cli
from tests.cli.process import SKEP, environment


def lag(mq: Skep, group: str = "__QUEUE_MODE__") -> tuple[int, int]:
    partitions = mq.lag(group, "orders")
    return sum(each.lag for each in partitions), sum(each.leased for each in partitions)


def test_printed_messages_are_acked(cli: Cli, mq: Skep):
    mq.queue("orders").push({"id": 1, "näme": "ü"}, headers={"a": "b"})
    done = cli("pop", "orders")
    assert (done.code, done.stderr) == (0, "")
    assert re.fullmatch(r'orders/Default #0  \d+ s ago  {"id": 1, "näme": "ü"}  headers {"a": "b"}\n', done.stdout)
    assert lag(mq) == (0, 0)


def test_no_messages(cli: Cli, mq: Skep):
    done = cli("pop", "orders")
    assert (done.code, done.stdout, done.stderr) == (0, "", "no messages\n")
    done = cli("pop", "orders", "--wait", "0.1", "--json")
    assert (done.code, done.stdout, done.stderr) == (0, "", "no messages in 0.1 s\n")


def test_no_ack(cli: Cli, mq: Skep):
    mq.queue("orders").push(1)
    done = cli("pop", "orders", "--group", "billing", "--no-ack")
    assert lag(mq, "billing") == (1, 1)
    assert re.search(r"^leased until \d{4}-.* SELECT skep\.ack\('[0-9a-f-]{36}'\)$", done.lines[1])
    assert cli("pop", "orders", "--group", "billing").stdout == ""


def test_json(cli: Cli, mq: Skep):
    mq.queue("orders").push_many([{"id": 1}, NewMessage("x", headers={"a": 1})])
    first, second = cli("pop", "orders", "--batch", "10", "--no-ack", "--json").json_lines
    assert (first["payload"], first["offset"], first["queue"]) == ({"id": 1}, 0, "orders")
    assert (second["payload"], second["headers"]) == ("x", {"a": 1})
    assert UUID(first["lease"]) == UUID(second["lease"])
    assert first["lease_expires_at"] > first["created_at"]


def test_all_partitions_or_one(cli: Cli, mq: Skep):
    mq.queue("orders").push_many([NewMessage(number, partition=f"p{number % 5}") for number in range(10)])
    assert [line["payload"] for line in cli("pop", "orders", "--partition", "p3", "--json").json_lines] == [3]
    assert len(cli("pop", "orders", "--batch", "20").lines) == 9


def test_a_namespace_or_a_task(cli: Cli, mq: Skep):
    mq.queue("shop.mail").push(1)
    assert len(cli("pop", "--namespace", "shop", "--group", "a").lines) == 1
    assert len(cli("pop", "--task", "mail", "--group", "b").lines) == 1
    assert len(cli("pop", "--task", "other", "--group", "c").lines) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["orders", "--namespace", "shop"],
        ["--namespace", "shop", "--partition", "p"],
        ["orders", "--batch", "0"],
        ["orders", "--group", ""],
    ],
)
def test_invalid_options(cli: Cli, arguments: list[str]):
    done = cli("pop", *arguments)
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")


def test_waiting(cli: Cli, mq: Skep):
    def push_later() -> None:
        while not mq.groups("waiter"):
            time.sleep(0.01)
        mq.queue("orders").push("late")

    thread = threading.Thread(target=push_later)
    thread.start()
    done = cli("pop", "orders", "--group", "waiter", "--wait", "60")
    thread.join()
    assert '"late"' in done.stdout


def test_a_second_attempt_is_shown(cli: Cli, mq: Skep):
    mq.queue("orders").configure(retry_delay=0)
    mq.queue("orders").push(1)
    mq.queue("orders").pop().fail(None, "no")
    assert cli("pop", "orders").stdout.endswith("attempt 2\n")


def test_output_is_not_cut_and_not_read_as_markup(cli: Cli, mq: Skep):
    payload = {"text": "[red]wörld[/red] :smile: " * 1000}
    mq.queue("orders").push(payload, partition="[b]\x1b[31mevil\nname")
    done = cli("pop", "orders")
    assert len(done.lines) == 1
    assert payload["text"] in done.stdout
    assert r"[b]\x1b[31mevil\nname" in done.stdout


def test_messages_are_released_if_the_output_is_closed(database_url: str, mq: Skep):
    mq.queue("orders").push_many(range(10))
    reader, writer = os.pipe()
    os.close(reader)
    command = [SKEP, "pop", "orders", "--batch", "10"]
    for format_options in ([], ["--json"]):
        done = subprocess.run(
            [*command, *format_options],
            env=environment(SKEP_DATABASE_URL=database_url),
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (1, b"")
        assert lag(mq) == (10, 0)
    os.close(writer)
