"""`skep group`."""

import pytest

from skep import NewMessage, Skep
from tests.cli.conftest import Cli


@pytest.fixture
def billing(mq: Skep) -> Skep:
    """A group with one message done, one leased and ten to do."""
    mq.queue("orders").push_many([NewMessage(number, partition=f"p{number % 2}") for number in range(12)])
    mq.subscribe("billing", "orders")
    mq.queue("orders").pop(group="billing", partition="p0").ack()
    mq.queue("orders").pop(group="billing", partition="p0")
    return mq


def test_list(cli: Cli, billing: Skep):
    billing.subscribe("audit", "mail", mode="new")
    done = cli("group", "list")
    audit, found = (line.split() for line in done.lines[1:])
    assert found[:6] == ["billing", "orders", "all", "2", "11", "1"]
    assert audit[:7] == ["audit", "mail", "new", "0", "0", "0", "-"]
    assert [group["group"] for group in cli("group", "list", "--queue", "mail", "--json").json] == ["audit"]


def test_show(cli: Cli, billing: Skep):
    lines = [line.split() for line in cli("group", "show", "billing").lines]
    assert ["orders", "p1", "6", "0", "0", "5", "-"] in lines
    assert ["orders", "p0", "5", "1", "1", "5"] in [line[:6] for line in lines]


def test_show_as_json(cli: Cli, billing: Skep):
    found = cli("group", "show", "billing", "--queue", "orders", "--json").json
    assert (found["group"], found["queues"][0]["lag"]) == ("billing", 11)
    assert [(lane["partition"], lane["lag"], lane["leased"]) for lane in found["lanes"]] == [("p1", 6, 0), ("p0", 5, 1)]


def test_show_some_of_many_partitions(cli: Cli, mq: Skep):
    mq.queue("orders").push_many([NewMessage(1, partition=f"p{number:03}") for number in range(150)])
    mq.queue("orders").push(2, partition="p149")
    mq.subscribe("billing", "orders")
    done = cli("group", "show", "billing")
    assert done.lines[-1] == "and 50 more partitions, less behind; --limit 150 shows all"
    assert "p149" in done.stdout
    assert len(cli("group", "show", "billing", "--json").json["lanes"]) == 150


def test_seek(cli: Cli, billing: Skep):
    done = cli("group", "seek", "billing", "orders", "beginning")
    assert done.stdout == "group billing is at beginning of orders: 2 partitions moved\n"
    assert sum(lane.lag for lane in billing.lag("billing")) == 12
    assert cli("group", "seek", "billing", "orders", "4", "--partition", "p1", "--json").json["moved"] == 1
    assert [lane.cursor for lane in billing.lag("billing")] == [0, 4]
    cli("group", "seek", "billing", "orders", "end")
    assert sum(lane.lag for lane in billing.lag("billing")) == 0


def test_seek_to_nowhere(cli: Cli, billing: Skep):
    done = cli("group", "seek", "billing", "orders", "yonder")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith('error: cannot read "yonder"')
    assert sum(lane.lag for lane in billing.lag("billing")) == 11


@pytest.mark.parametrize("command", [["show"], ["delete", "--yes"]])
def test_a_group_that_is_not_there(cli: Cli, billing: Skep, command: list[str]):
    assert cli("group", *command, "nobody").stderr.startswith('error: there is no group "nobody"\nhint: ')
    done = cli("group", *command, "billing", "--queue", "mail")
    assert done.code == 1
    assert done.stderr.startswith('error: there is no group "billing" on queue "mail"')


def test_delete_asks(cli: Cli, billing: Skep):
    done = cli("group", "delete", "billing", stdin=b"n\n")
    assert done.code == 1
    assert done.stderr.startswith("Forget what group billing has done? [y/N] error: nothing was deleted\nhint: ")
    assert billing.groups("billing") != []
    assert "1 partition forgotten" in cli("group", "delete", "billing", stdin=b"y\n").stdout
    assert billing.groups("billing") == []


def test_delete_keeps_the_subscription_if_asked_to(cli: Cli, billing: Skep):
    done = cli("group", "delete", "billing", "--queue", "orders", "--keep-subscription", "--yes", "--json")
    assert done.json == {"group": "billing", "queue": "orders", "forgotten": 1}
    assert [group.lag for group in billing.groups("billing")] == [12]
