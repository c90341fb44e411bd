"""`skep queue`."""

import pytest

from skep import NewMessage, Skep
from tests.cli.conftest import Cli


@pytest.fixture
def orders(mq: Skep) -> Skep:
    mq.queue("orders").push_many([NewMessage(number, partition=f"p{number % 3}") for number in range(3000)])
    mq.queue("mail").configure(namespace="shop", lease_time=60)
    return mq


def row(output: str, first: str) -> list[str]:
    (line,) = (line for line in output.splitlines() if line.split()[:1] == [first])
    return line.split()


def test_list(cli: Cli, orders: Skep):
    done = cli("queue", "list")
    assert (done.code, done.stderr) == (0, "")
    assert row(done.stdout, "orders")[:3] == ["orders", "3", "3,000"]
    assert row(done.stdout, "mail")[:5] == ["mail", "0", "0", "0", "-"]


def test_list_as_json(cli: Cli, orders: Skep):
    mail, found = cli("queue", "list", "--json").json
    assert (found["name"], found["partitions"], found["messages"]) == ("orders", 3, 3000)
    assert (mail["namespace"], mail["options"]["lease_time"], mail["last_created_at"]) == ("shop", 60, None)


def test_no_queues(cli: Cli):
    assert cli("queue", "list", "--json").json == []
    assert cli("queue", "list").code == 0


def test_show(cli: Cli, orders: Skep):
    done = cli("queue", "show", "orders")
    assert "3 partitions, 3,000 messages, 0 groups, 0 dead letters" in done.lines
    assert row(done.stdout, "p1")[:5] == ["p1", "1,000", "0", "to", "999"]
    assert row(done.stdout, "lease_time") == ["lease_time", "300"]
    assert row(done.stdout, "partial_failure") == ["partial_failure", "dead_letter"]


def test_show_as_json(cli: Cli, orders: Skep):
    found = cli("queue", "show", "orders", "--json").json
    assert found["messages"] == 3000
    assert [(each["partition"], each["messages"]) for each in found["partition_list"]] == [
        ("p0", 1000),
        ("p1", 1000),
        ("p2", 1000),
    ]


def test_show_some_of_many_partitions(cli: Cli, mq: Skep):
    mq.queue("orders").push_many([NewMessage(1, partition=f"p{number:03}") for number in range(250)])
    table = cli("queue", "show", "orders")
    assert table.lines[-1] == "and 150 more partitions; --limit 250 shows all"
    assert "p249" in cli("queue", "show", "orders", "--limit", "250").stdout
    assert len(cli("queue", "show", "orders", "--json").json["partition_list"]) == 250
    assert len(cli("queue", "show", "orders", "--json", "--limit", "2").json["partition_list"]) == 2


@pytest.mark.parametrize("command", [["show"], ["delete", "--yes"]])
def test_a_queue_that_does_not_exist(cli: Cli, command: list[str]):
    done = cli("queue", *command, "nothing")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith('error: there is no queue "nothing"\nhint: ')


def test_configure(cli: Cli, mq: Skep):
    options = ["lease_time=60", "partial_failure=retry", "max_size=null", "namespace=5", "task=mail"]
    done = cli("queue", "configure", "orders", *options)
    assert done.stdout == "queue orders: namespace=5, task=mail, lease_time=60, partial_failure=retry, max_size=null\n"
    status = mq.queue("orders").status()
    assert (status.namespace, status.task) == ("5", "mail")
    assert (status.options["lease_time"], status.options["partial_failure"]) == (60, "retry")
    assert cli("queue", "configure", "orders", "priority=3", "--json").json["options"]["priority"] == 3


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("lease_tim=5", 'unknown queue option "lease_tim"'),
        ("lease_time=soon", 'lease_time must be a number, got "soon"'),
        ("lease_time=-1", "lease_time must be above 0 and at most 604800, got -1"),
        ("lease_time", "is not an option"),
        ("=5", "is not an option"),
    ],
)
def test_invalid_options(cli: Cli, mq: Skep, option: str, says: str):
    done = cli("queue", "configure", "orders", option)
    assert (done.code, done.stdout) == (1, "")
    assert says in done.stderr.splitlines()[0]
    assert "hint: " in done.stderr or " must be " in done.stderr
    assert mq.queues() == []


def test_delete_asks_for_confirmation(cli: Cli, orders: Skep):
    for reply in (b"n\n", b"\n", b""):
        done = cli("queue", "delete", "orders", stdin=reply)
        assert (done.code, done.stdout) == (1, "")
        assert "Delete queue orders with 3,000 messages in 3 partitions? [y/N]" in done.stderr
        assert "error: nothing was deleted\n" in done.stderr
    assert orders.queues("orders") != []
    assert cli("queue", "delete", "orders", stdin=b"y\n").stdout == "queue orders deleted\n"
    assert orders.queues("orders") == []


def test_delete_without_confirmation(cli: Cli, orders: Skep):
    assert cli("queue", "delete", "orders", "--yes", "--json").json["deleted"] is True
    assert orders.queues("orders") == []


def test_clear(cli: Cli, mq: Skep):
    mq.queue("orders").push_many([NewMessage(1, "a"), NewMessage(2, "a"), NewMessage(3, "b")])
    asked = cli("queue", "clear", "orders", stdin=b"\n")
    assert (asked.code, mq.queue("orders").status().messages) == (1, 3)
    assert "Delete all messages of queue orders, 3 messages in 2 partitions? [y/N]" in asked.stderr
    done = cli("queue", "clear", "orders", "--partition", "a", "--yes")
    assert done.stdout == "partition orders/a cleared, 2 messages deleted\n"
    assert cli("queue", "clear", "orders", "--yes", "--json").json["cleared"] == 1
    assert [each.first_offset for each in mq.queue("orders").partitions()] == [2, 1]


def test_delete_a_partition(cli: Cli, mq: Skep):
    mq.queue("orders").push_many([NewMessage(1, "a"), NewMessage(2, "b")])
    asked = cli("queue", "delete", "orders", "--partition", "a", stdin=b"y\n")
    assert "Delete partition orders/a with 1 message? [y/N]" in asked.stderr
    assert asked.stdout == "partition orders/a deleted\n"
    assert [each.partition for each in mq.queue("orders").partitions()] == ["b"]
    missing = cli("queue", "delete", "orders", "--partition", "c", "--yes")
    assert (missing.code, 'there is no partition "c"' in missing.stderr) == (1, True)
