"""`skep push --delay`, `skep delayed`."""

from datetime import UTC, datetime, timedelta

import pytest

from skep import Skep
from tests.cli.conftest import Cli


def test_push_with_a_delay(cli: Cli, mq: Skep):
    done = cli("push", "orders", "1", "--delay", "2h")
    (waiting,) = mq.list_delayed("orders")
    due = f"{waiting.due_at.astimezone():%Y-%m-%d %H:%M:%S}"
    assert done.lines == [f"delayed orders/Default until {due}, id {waiting.id}"]
    assert timedelta(minutes=119) < waiting.due_at - datetime.now(UTC) < timedelta(minutes=121)


def test_push_at_a_time(cli: Cli):
    (receipt,) = cli("push", "orders", "1", "--deliver-at", "2090-01-31T12:00Z", "--json").json
    assert (receipt["status"], receipt["offset"]) == ("delayed", None)
    assert datetime.fromisoformat(receipt["due_at"]) == datetime(2090, 1, 31, 12, tzinfo=UTC)


def test_lines_with_a_delay(cli: Cli, mq: Skep):
    assert cli("push", "orders", "--delay", "1d", stdin=b"1\n2\n3\n").code == 0
    assert [message.payload for message in mq.list_delayed("orders")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--delay", "soon"], '"soon" is not a duration'),
        (["--deliver-at", "soon"], '"soon" is not a time'),
        (["--delay", "1h", "--deliver-at", "2090-01-01T00:00Z"], "delay and deliver_at are both given"),
    ],
)
def test_a_wrong_delay(cli: Cli, arguments: list[str], words: str):
    done = cli("push", "orders", "1", *arguments)
    assert (done.code, words in done.stderr) == (1, True), done.stderr


def test_list(cli: Cli, mq: Skep):
    q = mq.queue("orders")
    for number in range(3):
        q.push({"n": number}, partition=f"p{number}", delay=60 + number)
    mq.queue("other").push("x", delay=600)
    assert [line.split()[:2] for line in cli("delayed", "list").lines] == [
        ["queue", "partition"],
        ["orders", "p0"],
        ["orders", "p1"],
        ["orders", "p2"],
        ["other", "Default"],
    ]
    found = cli("delayed", "list", "orders", "--partition", "p1", "--json").json
    assert [message["payload"] for message in found] == [{"n": 1}]
    assert len(cli("delayed", "list", "--limit", "2", "--json").json) == 2
    assert "3 delayed messages" in cli("queue", "show", "orders").stdout
    assert [queue["delayed"] for queue in cli("queue", "list", "--json").json] == [3, 1]
    assert cli("delayed", "list", "nowhere").code == 1
    assert "--partition needs a queue" in cli("delayed", "list", "--partition", "p").stderr


def test_cancel(cli: Cli, mq: Skep):
    ids = [str(mq.queue("orders").push(number, delay=60).id) for number in range(2)]
    done = cli("delayed", "cancel", *ids)
    assert (done.code, done.lines) == (0, [f"{id_} cancelled" for id_ in ids])
    again = cli("delayed", "cancel", ids[0], "--json")
    assert (again.code, again.json) == (1, [{"id": ids[0], "cancelled": False}])
    assert mq.list_delayed() == []
