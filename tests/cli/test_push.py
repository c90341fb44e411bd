"""`skep push`."""

import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from skep import Skep
from tests.cli.conftest import Cli
from tests.cli.process import SKEP, environment, read_terminal, run


def payloads(mq: Skep, queue: str = "orders") -> list[object]:
    return [message.payload for message in mq.queue(queue).pop(batch=1000, partitions=100, group="reader")]


def test_payloads_are_json(cli: Cli, mq: Skep):
    done = cli("push", "orders", '{"id": 1}', '"zwei ü"', "[null, 1.5]")
    assert (done.code, done.stderr) == (0, "")
    assert [line.split(", id")[0] for line in done.lines] == [f"queued orders/Default #{n}" for n in range(3)]
    assert payloads(mq) == [{"id": 1}, "zwei ü", [None, 1.5]]


def test_partition_transaction_id_and_headers(cli: Cli, mq: Skep):
    cli("push", "orders", "1", "--partition", "p", "--transaction-id", "t", "--header", "a=b=c", "--header", "d=")
    (message,) = mq.queue("orders").pop(partition="p")
    assert (message.transaction_id, message.headers) == ("t", {"a": "b=c", "d": ""})


def test_a_repeat_is_a_duplicate(cli: Cli):
    first, second = (cli("push", "orders", "1", "--transaction-id", "t") for _ in range(2))
    assert first.stdout.replace("queued", "duplicate") == second.stdout


def test_receipts_as_json(cli: Cli):
    done = cli("push", "orders", "1", "2", "--json")
    assert [(receipt["status"], receipt["offset"]) for receipt in done.json] == [("queued", 0), ("queued", 1)]


def test_a_negative_number(cli: Cli, mq: Skep):
    assert cli("push", "orders", "--", "-5").code == 0
    assert payloads(mq) == [-5]


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_lines_of_standard_input(cli: Cli, mq: Skep, arguments: list[str]):
    done = cli("push", "orders", *arguments, stdin=b'{"id": 1}\n\n"zwei"\r\n  \n3')
    assert (done.code, done.stdout, done.stderr) == (0, "3 messages pushed to orders\n", "")
    assert payloads(mq) == [{"id": 1}, "zwei", 3]


def test_many_lines(cli: Cli, mq: Skep):
    lines = "".join(f"{number}\n" for number in range(2500))
    assert cli("push", "orders", "--partition", "p", stdin=lines.encode()).stdout == "2,500 messages pushed to orders\n"
    assert [message.payload for message in mq.queue("orders").pop(batch=5000)] == list(range(2500))


def test_lines_as_json(cli: Cli):
    assert cli("push", "orders", "--json", stdin=b"1\n2\n").json == {"queue": "orders", "pushed": 2}


def test_no_lines(cli: Cli):
    assert cli("push", "orders").stdout == "0 messages pushed to orders\n"


def test_text(cli: Cli, mq: Skep):
    cli("push", "orders", "--text", "hello", '{"id": 1}')
    cli("push", "orders", "--text", stdin=b"a line\n\n {\n")
    assert payloads(mq) == ["hello", '{"id": 1}', "a line", "", " {"]


@pytest.mark.parametrize("bad", ["{'id': 1}", "hello", "", "NaN", "[1,", '{"a": 1} 2'])
def test_an_argument_that_is_not_json(cli: Cli, mq: Skep, bad: str):
    done = cli("push", "orders", "1", bad)
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: payload 2 is not JSON: ")
    assert "--text" in done.stderr
    assert mq.queues() == []


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"nope", "line 3 is not JSON: Expecting value, character 1"),
        (b"-Infinity", "line 3 is not JSON: -Infinity is not allowed"),
        (b"[" * 100_000, "line 3 is not JSON: "),
        (b"\xff", "line 3 is not UTF-8: "),
        (b'"\\u0000"', "line 3: a string contains a NUL character"),
        (b'"\\ud800"', "line 3: "),
    ],
)
def test_a_line_that_cannot_be_pushed(cli: Cli, mq: Skep, bad: bytes, says: str):
    done = cli("push", "orders", stdin=b"1\n\n" + bad + b"\n2\n")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {says}")
    assert "pushed before it: 1 message" in done.stderr
    assert payloads(mq) == [1]


def test_the_first_line_that_cannot_be_pushed(cli: Cli):
    done = cli("push", "orders", stdin=b'"\\u0000"\n')
    assert done.stderr.startswith("error: line 1: a string contains a NUL character")
    assert "before" not in done.stderr


def test_a_message_that_the_database_refuses(cli: Cli, mq: Skep):
    mq.queue("orders").configure(max_payload_bytes=100)
    done = cli("push", "orders", stdin=b'1\n2\n"' + b"x" * 200 + b'"\n3\n')
    assert done.code == 1
    assert done.stderr.startswith("error: 1 message refused: ")
    assert "hint: " in done.stderr
    assert payloads(mq) == [1, 2, 3]


@pytest.mark.parametrize(
    "arguments",
    [
        ["1", "2", "--transaction-id", "t"],
        ["--transaction-id", "t"],
        ["1", "-"],
        ["1", "--header", "novalue"],
        ["1", "--header", "=x"],
        ["1", "--partition", ""],
    ],
)
def test_invalid_options(cli: Cli, mq: Skep, arguments: list[str]):
    done = cli("push", "orders", *arguments, stdin=b"1\n")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert mq.queues() == []


@pytest.fixture
def reader_url(database_url: str, connect: Callable[..., psycopg.Connection]):
    """The URL for a user who may consume but not push."""
    role = f"skep_reader_{os.getpid()}"
    connection = connect()
    connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'".encode())
    connection.execute(f"GRANT skep_consumer TO {role}".encode())
    yield make_conninfo(database_url, user=role, password="x")
    connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize("arguments", [["1"], []])
def test_a_user_who_may_not_push(cli: Cli, reader_url: str, arguments: list[str]):
    done = cli("push", "orders", *arguments, "--database-url", reader_url, stdin=b"1\n2\n")
    assert done.code == 1
    assert done.stderr.startswith("error: permission denied")
    assert "hint: grant the user" in done.stderr


def test_in_a_pipe(database_url: str, mq: Skep):
    done = run("push", "orders", stdin="1\n2\n", SKEP_DATABASE_URL=database_url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 messages pushed to orders\n", "")
    assert payloads(mq) == [1, 2]


def test_progress_on_a_terminal(database_url: str, tmp_path: Path):
    lines = tmp_path / "lines"
    lines.write_text("1\n" * 3000)
    controller, terminal = pty.openpty()
    with lines.open() as stdin:
        done = subprocess.run(
            [SKEP, "push", "orders"],
            env=environment(SKEP_DATABASE_URL=database_url, TERM="xterm"),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=terminal,
            check=True,
            timeout=60,
        )
    os.close(terminal)
    assert done.stdout == b"3,000 messages pushed to orders\n"
    assert " messages" in read_terminal(controller)
