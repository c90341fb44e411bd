"""`skep message`: stored messages."""

import re
from uuid import UUID

import pytest

from skep import NewMessage, Skep
from tests.cli.conftest import Cli


@pytest.fixture
def orders(mq: Skep) -> list[UUID]:
    pushed = [
        NewMessage({"id": 1}, "a", "first", {"source": "shop"}, "00000000-0000-4000-8000-000000000001"),
        NewMessage({"id": 2}, "a"),
        NewMessage(None, "b"),
    ]
    receipts = mq.queue("orders").push_many(pushed)
    mq.queue("orders").pop(group="billing", partition="a").ack()
    return [receipt.id for receipt in receipts]


def test_list(cli: Cli, orders: list[UUID]):
    lines = [line.split() for line in cli("message", "list", "orders").lines]
    assert [(line[0], line[1], line[2]) for line in lines[1:]] == [
        ("a", "0", str(orders[0])),
        ("a", "1", str(orders[1])),
        ("b", "0", str(orders[2])),
    ]
    assert lines[1][-4:] == ['{"id":', "1}", '{"source":', '"shop"}']
    found = cli("message", "list", "orders", "--partition", "a", "--from", "1", "--json").json
    assert [(each["offset"], each["payload"], each["deleted"]) for each in found] == [(1, {"id": 2}, False)]
    assert len(cli("message", "list", "orders", "--limit", "2", "--json").json) == 2


def test_list_does_not_consume(cli: Cli, orders: list[UUID], mq: Skep):
    cli("message", "list", "orders")
    assert [group.group for group in mq.groups()] == ["billing"]
    assert mq.queue("orders").pop(group="billing", partition="a")[0].id == orders[1]


def test_show(cli: Cli, orders: list[UUID]):
    shown = cli("message", "show", str(orders[0]))
    assert shown.lines[0] == "orders/a #0"
    fields = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in shown.lines[2:])
    assert (fields["payload"], fields["headers"]) == ('{"id": 1}', '{"source": "shop"}')
    assert (fields["transaction id"], fields["trace id"]) == ("first", "00000000-0000-4000-8000-000000000001")
    assert fields["billing"].split() == ["ACTIVE", "yes", "completed"]
    found = cli("message", "show", str(orders[1]), "--json").json
    assert (found["payload"], found["groups"][0]["state"]) == ({"id": 2}, "pending")


def test_delete(cli: Cli, orders: list[UUID], mq: Skep):
    asked = cli("message", "delete", str(orders[1]), stdin=b"n\n")
    assert (asked.code, "Delete the content of orders/a #1? [y/N]" in asked.stderr) == (1, True)
    assert cli("message", "delete", str(orders[1]), stdin=b"y\n").stdout == "orders/a #1 deleted\n"
    assert cli("message", "delete", str(orders[1]), "--yes", "--json").json["deleted"] is False
    assert "(deleted)" in cli("message", "list", "orders", "--partition", "a").lines[2]
    assert list(mq.queue("orders").pop(group="billing", partition="a")) == []


def test_messages_and_queues_that_do_not_exist(cli: Cli, orders: list[UUID]):
    for arguments in (["show", "00000000-0000-8001-8000-0000000000ff"], ["list", "nothing"]):
        done = cli("message", *arguments)
        assert (done.code, done.stdout) == (1, "")
        assert done.stderr.startswith("error: there is no ")
        assert "\nhint: " in done.stderr
    assert cli("message", "show", "nonsense").code == 2
    assert cli("message", "list", "orders", "--partition", "c", "--json").json == []
