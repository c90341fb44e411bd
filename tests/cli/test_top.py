"""`skep top`: its numbers, its JSON, and its full screen."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from skep import Skep
from skep.cli.snapshot import trend
from tests.cli.conftest import Cli
from tests.cli.process import SKEP, Terminal, environment

Connect = Callable[..., psycopg.Connection]
LEAVE = "\x1b[?1049l"  # leaves the alternate screen
SHOW_CURSOR = "\x1b[?25h"


@pytest.fixture
def busy(mq: Skep) -> Skep:
    """Ten orders: one group has completed four, one has leased some, and one has dead-lettered two."""
    mq.queue("orders").configure(retry_limit=0)
    mq.queue("orders").push_many(range(10))
    mq.queue("quiet").push(1)
    mq.queue("orders").pop(group="billing", batch=4).ack()
    mq.queue("orders").pop(group="audit", batch=3)
    mq.queue("orders").pop(group="mail", batch=2).fail(None, "no address")
    mq.subscribe("late", "orders", mode="all")
    mq.pause("late")
    return mq


def test_json(cli: Cli, busy: Skep):
    found = cli("top", "--once", "--json").json
    assert [(queue["queue"], queue["kept"], queue["lag"]) for queue in found["queues"]] == [
        ("orders", 10, 6 + 10 + 8 + 10),
        ("quiet", 1, 0),
    ]
    assert {group["group"]: (group["status"], group["lag"], group["leased"]) for group in found["groups"]} == {
        "audit": ("ACTIVE", 10, 1),
        "late": ("PAUSED", 10, 0),
        "mail": ("ACTIVE", 8, 0),
        "billing": ("ACTIVE", 6, 0),
    }
    assert (found["lag"], found["leased"], found["dead_letters"]) == (34, 1, 2)
    assert found["pushed"] is None  # there is only one sample
    assert found["oldest_seconds"] > 0


def test_rates_and_trends(cli: Cli, busy: Skep, connect: Connect):
    db = connect()
    cli("top", "--once")
    db.execute("UPDATE skep.samples SET at = at - interval '10 seconds'")
    busy.queue("orders").push_many(range(20))
    busy.queue("orders").pop(group="billing", batch=5).ack()
    found = cli("top", "--once", "--json").json
    groups = {group["group"]: group for group in found["groups"]}
    assert 1.5 < found["pushed"] <= 2
    assert 0.3 < found["done"] == groups["billing"]["rate"] <= 0.5
    assert groups["billing"]["trend"] == [6, 21]


def test_dead_and_cancelled_groups_do_not_count(cli: Cli, busy: Skep, connect: Connect):
    busy.cancel("late")
    connect().execute("UPDATE skep.subscriptions SET status = 'DEAD' WHERE group_name = 'mail'")
    found = cli("top", "--once", "--json").json
    assert found["lag"] == 6 + 10
    assert [group["group"] for group in found["groups"]] == ["audit", "mail", "billing"]


def test_the_oldest_transaction(cli: Cli, busy: Skep, connect: Connect):
    assert cli("top", "--once", "--json").json["oldest_transaction_seconds"] is None
    connect(autocommit=False).execute("SELECT 1")
    assert cli("top", "--once", "--json").json["oldest_transaction_seconds"] > 0
    assert "oldest transaction 0 s" in cli("top", "--once").stdout


def test_table(cli: Cli, busy: Skep):
    shown = cli("top")  # one snapshot, because this is not a terminal
    assert (shown.code, shown.stderr) == (0, "")
    assert "lag 34 (oldest " in shown.lines[0]
    assert "dead letters 2" in shown.lines[0]
    assert [line.split()[0] for line in shown.lines[1:]] == [
        *("queue", "orders", "quiet"),
        *("group", "audit", "late", "mail", "billing"),
    ]


def test_no_queues(cli: Cli):
    assert cli("top", "--once").lines[0] == "pushed -  done -  lag 0  leased 0  dead letters 0"
    assert cli("top", "--once", "--json").json["queues"] == []


def test_a_line_for_each_snapshot(database_url: str, busy: Skep):
    command = [SKEP, "top", "--json", "--interval", "0.5", "--database-url", database_url]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["lag"] for _ in range(3)] == [34, 34, 34]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_no_message_is_counted(busy: Skep, connect: Connect):
    """A snapshot costs the same with ten messages or ten million: it reads one message per partition."""
    costs = [cost(connect())]
    busy.queue("orders").push_many(range(5000))
    costs += [cost(connect())]
    assert costs[1] <= costs[0] < 10  # a queue that did not change is not read again


def cost(db: psycopg.Connection) -> int:
    """Return the number of messages that one snapshot reads."""
    with db.transaction():
        db.execute("SELECT skep._current_progress(100, '0 s')")
        reads = "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'messages'"
        return db.execute(reads).fetchall()[0][0]


@pytest.mark.parametrize("end", ["\x03", "q", signal.SIGTERM])
def test_on_a_terminal(database_url: str, busy: Skep, end: str | signal.Signals):
    with Terminal("top", "--interval", "0.5", "--database-url", database_url) as terminal:
        first = terminal.wait_for("billing")
        assert all(name in first for name in ("skep top", "dead letters", "orders", "audit", "late"))
        busy.queue("fresh").push(1)
        terminal.wait_for("fresh")
        if isinstance(end, str):
            terminal.type(end)
        else:
            terminal.process.send_signal(end)
        assert LEAVE in terminal.wait_for(SHOW_CURSOR)
        assert terminal.process.wait(30) == 0
        assert terminal.settings() == terminal.before


def test_resize(database_url: str, busy: Skep):
    busy.push_many((f"queue-{number:02}", number) for number in range(40))
    with Terminal("top", "--interval", "600", "--database-url", database_url, rows=20, columns=120) as terminal:
        terminal.wait_for("and 35 more queues")
        terminal.settle()
        terminal.resize(50, 60)
        drawn = terminal.wait_for("and 6 more queues")
    lines = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", drawn).replace("\r", "").split("\n")
    assert max(map(len, lines)) <= 60
    assert any("queue-34" in line for line in lines)
    assert "dead letters 2" in " ".join(" ".join(lines[:4]).split())
    assert len(lines) <= 51


def test_stopped_and_continued(database_url: str, busy: Skep):
    with Terminal("top", "--interval", "600", "--database-url", database_url) as terminal:
        terminal.wait_for("billing")
        terminal.type("\x1a")
        terminal.wait_for(LEAVE)
        _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert terminal.settings() == terminal.before
        terminal.written = ""
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for("billing")


def test_a_database_that_is_unavailable_for_a_while(database_url: str, postgres_url: str, busy: Skep):
    name = str(conninfo_to_dict(database_url)["dbname"])
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format
    with (
        Terminal("top", "--interval", "0.5", "--database-url", database_url) as terminal,
        psycopg.connect(postgres_url, autocommit=True) as admin,
    ):
        terminal.wait_for("billing")
        admin.execute(allow(sql.Identifier(name), sql.SQL("false")))
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        terminal.wait_for("the database does not respond, trying again")
        admin.execute(allow(sql.Identifier(name), sql.SQL("true")))
        terminal.written = ""
        terminal.wait_for("dead letters")


def test_trend_of_a_lag():
    assert [trend(lags).plain[-1:] for lags in ([1, 2, 9], [9, 5, 1], [5, 5, 5], [0, 0], [])] == ["↑", "↓", "→", "", ""]
