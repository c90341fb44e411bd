"""`skep demo`: the shop has a story to show, ends when it is told to, and can be removed."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, LiteralString

import psycopg
import pytest

from skep import Skep
from skep.cli import shop
from tests.cli.conftest import Cli, Result
from tests.cli.process import Terminal, wait_until

Connect = Callable[..., psycopg.Connection]
OF_QUEUE = "partition_id IN (SELECT partition_id FROM skep.partition_list WHERE queue = %s)"
ORDERS = """
    FROM skep.messages
    JOIN (SELECT partition_id, partition AS lane FROM skep.partition_list WHERE queue = 'demo-orders') l
    USING (partition_id) WHERE true
"""


def test_the_story(cli: Cli, mq: Skep, connect: Connect, monkeypatch: pytest.MonkeyPatch):
    """A day of 15 seconds, in which everything happens early, beside a queue of somebody else."""
    monkeypatch.setattr(import_module("skep.cli.demo"), "CHAPTER", 2)
    monkeypatch.setattr(shop, "MOST_LETTERS", 10)
    monkeypatch.setattr(shop, "SLOWNESS", 8)  # also where everybody else is slow
    mq.queue("orders").push(1)
    played = cli("demo", "--seconds", "15", "--rate", "40", "--json")
    assert (played.code, played.stderr) == (0, "")
    assert {queue.name for queue in mq.queues()} == {*shop.QUEUES, "orders"}
    check_groups(mq)
    check_billing(connect())
    check_support(mq)
    check_what_it_tells(played)
    mq.queue("demo-mine").push(1)
    assert cli("demo", "--clean").stdout == f"{len(shop.QUEUES)} queues removed\n"
    assert {queue.name for queue in mq.queues()} == {"orders", "demo-mine"}
    assert (mq.groups(), mq.subscriptions(), mq.dead_letters()) == ([], [], [])
    assert cli("demo", "--clean", "--json").json == {"removed": 0}


def check_groups(mq: Skep) -> None:
    groups = {group.group: group for group in mq.groups()}
    assert set(groups) == set(shop.GROUPS)
    assert groups[shop.MAILER].lag > 10  # slow
    assert groups[shop.BANK].dead_letters > 0  # failing
    assert groups[shop.LATE].processed > groups[shop.BILLING].processed / 2  # late, from the beginning
    assert (groups[shop.WAREHOUSE].status, groups[shop.WAREHOUSE].lag > 0) == ("PAUSED", True)
    assert groups[shop.REMINDER].lag > 0  # delayed
    assert sum(group.leased for group in groups.values()) == 0
    lanes = {lane.partition: lane.messages for lane in mq.queue(shop.ORDERS).partitions()}
    assert max(lanes, key=lambda name: lanes[name]) == shop.HOT


def check_billing(db: psycopg.Connection) -> None:
    """Each order that is billed has one payment, with its trace id, and no other has one."""
    paid = column(db, "SELECT trace_id FROM skep.messages WHERE headers IS NULL AND " + OF_QUEUE, shop.PAYMENTS)
    below = " AND \"offset\" < (SELECT cursor FROM skep.lag('demo-billing', 'demo-orders') l WHERE l.partition = lane)"
    billed = column(db, "SELECT trace_id " + ORDERS + below)
    assert sorted(billed) == sorted(paid)
    assert len(billed) == len(set(billed)) > 100
    assert "demo-checkout" in column(db, "SELECT name FROM skep.traced_names")


def check_support(mq: Skep) -> None:
    audit = {(entry.action, entry.queue, entry.done_by) for entry in mq.dead_letter_audit(1000)}
    assert audit == {("redriven", shop.PAYMENTS, "demo-support")}
    assert len({letter.error for letter in mq.dead_letters(shop.PAYMENTS, limit=1000)}) >= 2


def check_what_it_tells(played: Result) -> None:
    events = played.json_lines
    texts = " ".join(event["text"] for event in events)
    assert all(name in texts for name in (*shop.GROUPS[:4], shop.LATE, "paused", "dead letters"))
    last = [event for event in events if "ordered" in event][-1]
    assert last["ordered"] >= last["billed"] > last["mailed"] > 0
    assert last["failed"] > 0


def test_until_it_is_stopped(database_url: str, connect: Connect):
    db = connect()
    with Terminal("demo", "--database-url", database_url) as terminal:
        assert "orders come in at demo-orders" in terminal.wait_for("delivers after 15 s")
        wait_until(db, "SELECT coalesce(sum(processed), 0) > 50 FROM skep.group_status('demo-bank')")
        terminal.type("\x03")
        said = terminal.wait_for("removes them.")
        assert terminal.process.wait(30) == 0
        assert "Traceback" not in said
    assert column(db, "SELECT count(*) FROM skep.leases") == [0]


def column(db: psycopg.Connection, query: LiteralString, *arguments: str) -> list[Any]:
    return [value for (value,) in db.execute(query, arguments).fetchall()]
