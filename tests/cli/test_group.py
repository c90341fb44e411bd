"""`skep group`."""

from collections.abc import Callable

import psycopg
import pytest

from skep import NewMessage, Skep
from tests.cli.conftest import Cli
from tests.cli.process import on_terminal


@pytest.fixture
def billing(mq: Skep) -> Skep:
    """A group with one message completed, one leased and ten pending."""
    mq.queue("orders").push_many([NewMessage(number, partition=f"p{number % 2}") for number in range(12)])
    mq.subscribe("billing", "orders")
    mq.queue("orders").pop(group="billing", partition="p0").ack()
    mq.queue("orders").pop(group="billing", partition="p0")
    return mq


def test_list(cli: Cli, billing: Skep):
    billing.subscribe("audit", "mail", mode="new")
    done = cli("group", "list")
    found, audit = (line.split() for line in done.lines[1:])
    assert found[:8] == ["billing", "orders", "ACTIVE", "11", "1", "1", "0", "0"]
    assert audit[:8] == ["audit", "mail", "ACTIVE", "0", "0", "0", "0", "0"]
    assert [group["group"] for group in cli("group", "list", "--queue", "mail", "--json").json] == ["audit"]


def test_unhealthy_groups_come_first(cli: Cli, billing: Skep, connect: Callable[..., psycopg.Connection]):
    for group in ("cancelled", "well", "behind", "paused", "failing", "late", "dead"):
        billing.subscribe(group, "orders", mode="all" if group == "behind" else "new")
    silent = "UPDATE skep.subscriptions SET last_heartbeat_at = now() - %s::interval WHERE group_name = %s"
    connect().execute(silent, ("1 day", "dead"))
    billing.detect_dead_groups()
    connect().execute(silent, ("370 s", "late"))
    billing.queue("orders").push("bad", partition="p0")
    billing.queue("orders").pop(group="failing").dead_letter(None, "no")
    billing.queue("orders").pop(group="well").ack()
    billing.pause("paused")
    billing.cancel("cancelled")
    billing.delete_group("billing")
    names = [line.split()[0] for line in cli("group", "list").lines[1:]]
    assert names == ["dead", "late", "failing", "paused", "behind", "well", "cancelled"]
    assert [group["group"] for group in cli("group", "list", "--json").json] == names
    assert cli("group", "list").lines[2].split()[2] == "ACTIVE"


def test_the_status_has_a_colour(database_url: str, billing: Skep):
    billing.pause("billing")
    assert "\x1b[33mPAUSED" in on_terminal("group", "list", "--database-url", database_url)


def test_show(cli: Cli, billing: Skep):
    lines = [line.split() for line in cli("group", "show", "billing").lines]
    assert ["orders", "p1", "6", "0", "0", "5", "-"] in lines
    assert ["orders", "p0", "5", "1", "1", "5"] in [line[:6] for line in lines]
    assert " ".join(lines[0]).startswith(
        "group billing on orders: ACTIVE, starts at all, with backfill, heartbeat every 60 s"
    )


def test_show_a_group_without_a_queue(cli: Cli, mq: Skep):
    mq.subscribe("billing", namespace="shop")
    assert cli("group", "show", "billing").lines[0].startswith("group billing on shop.*: ACTIVE")
    assert cli("group", "delete", "billing", "--yes").code == 0
    assert mq.subscriptions("billing") == []


def test_show_as_json(cli: Cli, billing: Skep):
    found = cli("group", "show", "billing", "--queue", "orders", "--json").json
    assert (found["group"], found["queues"][0]["lag"]) == ("billing", 11)
    assert [(each["partition"], each["lag"], each["leased"]) for each in found["partition_list"]] == [
        ("p1", 6, 0),
        ("p0", 5, 1),
    ]


def test_show_some_of_many_partitions(cli: Cli, mq: Skep):
    mq.queue("orders").push_many([NewMessage(1, partition=f"p{number:03}") for number in range(150)])
    mq.queue("orders").push(2, partition="p149")
    mq.subscribe("billing", "orders")
    done = cli("group", "show", "billing")
    assert done.lines[-1] == "and 50 more partitions with less lag; --limit 150 shows all"
    assert "p149" in done.stdout
    assert len(cli("group", "show", "billing", "--json").json["partition_list"]) == 150


def test_seek(cli: Cli, billing: Skep):
    done = cli("group", "seek", "billing", "orders", "beginning")
    assert done.lines == [
        "group billing is at beginning of orders: 2 partitions moved", "1 completed message will be delivered again",
    ]  # fmt: skip
    assert sum(each.lag for each in billing.lag("billing")) == 12
    done = cli("group", "seek", "billing", "orders", "4", "--partition", "p1", "--json").json
    assert (done["moved"], done["skipped"], done["again"]) == (1, 4, 0)
    assert [each.cursor for each in billing.lag("billing")] == [0, 4]
    assert cli("group", "seek", "billing", "orders", "end").lines[1:] == ["8 messages skipped"]
    assert sum(each.lag for each in billing.lag("billing")) == 0


def test_seek_to_an_invalid_position(cli: Cli, billing: Skep):
    done = cli("group", "seek", "billing", "orders", "yonder")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith('error: invalid position "yonder"')
    assert sum(each.lag for each in billing.lag("billing")) == 11


@pytest.mark.parametrize("command", [["show"], ["delete", "--yes"]])
def test_a_group_that_does_not_exist(cli: Cli, billing: Skep, command: list[str]):
    assert cli("group", *command, "unknown").stderr.startswith('error: there is no group "unknown"\nhint: ')
    done = cli("group", *command, "billing", "--queue", "mail")
    assert done.code == 1
    assert done.stderr.startswith('error: there is no group "billing" on queue "mail"')


def test_delete_asks(cli: Cli, billing: Skep):
    done = cli("group", "delete", "billing", stdin=b"n\n")
    assert done.code == 1
    assert done.stderr.startswith("Delete the progress of group billing? [y/N] error: nothing was deleted\nhint: ")
    assert billing.groups("billing") != []
    assert "progress in 1 partition" in cli("group", "delete", "billing", stdin=b"y\n").stdout
    assert billing.groups("billing") == []


def test_delete_keeps_the_subscription_if_asked_to(cli: Cli, billing: Skep):
    done = cli("group", "delete", "billing", "--queue", "orders", "--keep-subscription", "--yes", "--json")
    assert done.json == {"group": "billing", "queue": "orders", "forgotten": 1}
    assert [group.lag for group in billing.groups("billing")] == [12]
