"""`skep demo`: its workload, its end and its clean-up."""

from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
import pytest

from skep import Skep
from skep.cli import demo, demo_workload
from tests.cli.conftest import Cli, Result
from tests.cli.process import Terminal, wait_until

Connect = Callable[..., psycopg.Connection]
OF_QUEUE = "partition_id IN (SELECT partition_id FROM skep.partition_list WHERE queue = %s)"
ORDERS = """
    FROM skep.messages
    JOIN (SELECT partition_id, partition FROM skep.partition_list WHERE queue = 'demo-orders') p
    USING (partition_id) WHERE true
"""


def test_a_run(cli: Cli, mq: Skep, connect: Connect, monkeypatch: pytest.MonkeyPatch):
    """A run of 15 seconds, with early events, next to a queue that is not part of the demo."""
    monkeypatch.setattr(demo, "STEP", 2)
    monkeypatch.setattr(demo_workload, "MAX_DEAD_LETTERS", 10)
    monkeypatch.setattr(demo_workload, "MAIL_SLOWNESS", 8)  # slower than the others even on a slow machine
    mq.queue("orders").push(1)
    played = cli("demo", "--seconds", "15", "--rate", "40", "--json")
    assert (played.code, played.stderr) == (0, "")
    assert {queue.name for queue in mq.queues()} == {*demo_workload.QUEUES, "orders"}
    check_groups(mq)
    check_billing(connect())
    check_redrives(mq)
    check_events(played)
    mq.queue("demo-mine").push(1)
    assert cli("demo", "--clean").stdout == f"{len(demo_workload.QUEUES)} queues deleted\n"
    assert {queue.name for queue in mq.queues()} == {"orders", "demo-mine"}
    assert (mq.groups(), mq.subscriptions(), mq.dead_letters()) == ([], [], [])
    assert cli("demo", "--clean", "--json").json == {"removed": 0}


def check_groups(mq: Skep) -> None:
    groups = {group.group: group for group in mq.groups()}
    assert set(groups) == set(demo_workload.GROUPS)
    assert groups[demo_workload.MAILER].lag > 10  # slow
    assert groups[demo_workload.BANK].dead_letters > 0  # failing
    assert (
        groups[demo_workload.ANALYTICS].processed > groups[demo_workload.BILLING].processed / 2
    )  # late, from the beginning
    assert (groups[demo_workload.WAREHOUSE].status, groups[demo_workload.WAREHOUSE].lag > 0) == ("PAUSED", True)
    assert groups[demo_workload.REMINDER].lag > 0  # delayed
    assert sum(group.leased for group in groups.values()) == 0
    sizes = {each.partition: each.messages for each in mq.queue(demo_workload.ORDERS).partitions()}
    assert max(sizes, key=lambda name: sizes[name]) == demo_workload.HOT_CUSTOMER


def check_billing(db: psycopg.Connection) -> None:
    """Each billed order has exactly one payment with its trace id, and other orders have none."""
    paid = column(
        db, "SELECT trace_id FROM skep.messages WHERE headers IS NULL AND " + OF_QUEUE, demo_workload.PAYMENTS
    )
    cursor = "(SELECT cursor FROM skep.lag('demo-billing', 'demo-orders') l WHERE l.partition = p.partition)"
    billed = column(db, "SELECT trace_id " + ORDERS + ' AND "offset" < ' + cursor)
    assert sorted(billed) == sorted(paid)
    assert len(billed) == len(set(billed)) > 100
    assert "demo-checkout" in column(db, "SELECT name FROM skep.traced_names")


def check_redrives(mq: Skep) -> None:
    audit = {(entry.action, entry.queue, entry.done_by) for entry in mq.dead_letter_audit(1000)}
    assert audit == {("redriven", demo_workload.PAYMENTS, "demo-support")}
    assert len({letter.error for letter in mq.dead_letters(demo_workload.PAYMENTS, limit=1000)}) >= 2


def check_events(played: Result) -> None:
    events = played.json_lines
    texts = " ".join(event["text"] for event in events)
    assert all(name in texts for name in (*demo_workload.GROUPS[:4], demo_workload.ANALYTICS, "paused", "dead letters"))
    last = [event for event in events if "ordered" in event][-1]
    assert last["ordered"] >= last["billed"] > last["mailed"] > 0
    assert last["failed"] > 0


def test_stopped_by_ctrl_c(database_url: str, connect: Connect):
    db = connect()
    with Terminal("demo", "--database-url", database_url) as terminal:
        assert "orders are pushed to demo-orders" in terminal.wait_for("delivers after 15 s")
        wait_until(db, "SELECT coalesce(sum(processed), 0) > 50 FROM skep.group_status('demo-bank')")
        terminal.type("\x03")
        said = terminal.wait_for("deletes them.")
        assert terminal.process.wait(30) == 0
        assert "Traceback" not in said
    assert column(db, "SELECT count(*) FROM skep.leases") == [0]


def column(db: psycopg.Connection, query: LiteralString, *arguments: str) -> list[Any]:
    return [value for (value,) in db.execute(query, arguments).fetchall()]
