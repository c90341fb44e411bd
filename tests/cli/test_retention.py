"""`skep queue fanout`, `retention` and `history`."""

from collections.abc import Callable

import psycopg
import pytest

from skep import NewMessage, Skep
from tests.cli.conftest import Cli


@pytest.fixture
def orders(mq: Skep) -> Skep:
    """Ten messages, eight of them completed by one group and none by the other."""
    mq.queue("orders").push_many([NewMessage(number, partition="p") for number in range(10)])
    for group in ("fast", "slow"):
        mq.subscribe(group, "orders")
    mq.queue("orders").pop(group="fast", batch=8).ack()
    return mq


def test_fanout(cli: Cli, orders: Skep):
    orders.queue("orders").push("other", partition="q")
    lines = [line.split() for line in cli("queue", "fanout", "orders", "--from", "7").lines[1:]]
    assert [line[:2] + line[-4:] for line in lines] == [
        ["p", "7", "ago", "2", "1", "slow"],
        ["p", "8", "2", "0", "fast,", "slow"],
        ["p", "9", "2", "0", "fast,", "slow"],
    ]
    rows = cli("queue", "fanout", "orders", "--json").json
    assert [(row["partition"], row["offset"]) for row in rows[-2:]] == [("p", 9), ("q", 0)]
    assert len(cli("queue", "fanout", "orders", "--limit", "3").lines) == 4
    (row,) = cli("queue", "fanout", "orders", "--partition", "q", "--json").json
    counts = (row["required_consumer_groups"], row["completed_consumer_groups"])
    assert (*counts, row["pending_groups"]) == (2, 0, ["fast", "slow"])


@pytest.mark.parametrize("verb", ["fanout", "retention", "history"])
def test_a_queue_that_does_not_exist(cli: Cli, verb: str):
    done = cli("queue", verb, "nothing")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith('error: there is no queue "nothing"\nhint: ')


def test_fanout_of_a_partition_that_does_not_exist(cli: Cli, orders: Skep):
    done = cli("queue", "fanout", "orders", "--partition", "x")
    assert done.stderr.startswith('error: there is no partition "x" in queue "orders"\nhint: ')


def test_nothing_is_deleted_by_default(cli: Cli, orders: Skep):
    assert cli("queue", "retention").stdout == "0 messages would be deleted, groups would miss 0\n"
    assert cli("queue", "retention", "orders", "--json").json == []


def test_retention_shows_deletions_and_missed_messages(cli: Cli, orders: Skep):
    orders.queue("orders").configure(max_size=1)
    orders.queue("mail").configure(max_size=5)
    orders.queue("mail").push_many(range(10))
    done = cli("queue", "retention")
    assert " ".join(done.lines[1].split()) == "orders p max_size 9 0 to 8 10 fast, slow"
    assert " ".join(done.lines[2].split()) == "mail Default max_size 5 0 to 4 0 -"
    assert done.lines[3] == "14 messages would be deleted, groups would miss 10"
    (found,) = cli("queue", "retention", "mail", "--json").json
    assert (found["queue"], found["messages"], found["missed"], found["groups"]) == ("mail", 5, 0, [])
    assert (
        "and 1 more partition with fewer messages; --limit 2 shows all"
        in cli("queue", "retention", "--limit", "1").lines
    )
    assert cli("upkeep", "--dry-run").stdout == done.stdout
    assert [each.messages for each in orders.partitions("orders")] == [10]


@pytest.fixture
def samples(orders: Skep, connect: Callable[..., psycopg.Connection]) -> Skep:
    """A sample per minute for an hour. The queue received 120 messages a minute, the group completed 60."""
    connect().execute(
        "INSERT INTO skep.samples (at, queue, group_name, total, lag, leased, dead, oldest_at)"
        " SELECT now() - (59 - n) * interval '1 minute', 'orders', g.name, n * g.rate, n * 50, 0, 3,"
        " now() - interval '1 hour' FROM generate_series(0, 59) n, (VALUES ('', 120), ('slow', 60)) g (name, rate)"
    )
    return orders


def test_history(cli: Cli, samples: Skep):
    done = cli("queue", "history", "orders")
    assert done.lines[0] == f"rate  {'█' * 59}  up to 2.0 messages/s"
    assert done.lines[1].startswith("lag   ▁")
    assert done.lines[1].endswith("█  up to 2,950 messages kept")
    assert done.lines[2].split() == ["until", "messages/s", "messages", "dead", "letters", "oldest"]
    assert (len(done.lines), done.lines[-1].split()[2:]) == (23, ["2.0", "2,950", "3", "60", "min"])


def test_history_of_a_group(cli: Cli, samples: Skep):
    done = cli("queue", "history", "orders", "--group", "slow", "--since", "10m")
    assert "up to 1.0 messages/s" in done.lines[0]
    assert (len(done.lines), done.lines[-1].split()[2:6]) == (13, ["1.0", "2,950", "0", "3"])
    found = cli("queue", "history", "orders", "--group", "slow", "--json").json
    assert (len(found), found[0]["rate"], found[-1]["rate"]) == (60, None, 1)


def test_history_without_samples(cli: Cli, orders: Skep):
    done = cli("queue", "history", "orders")
    assert (done.code, done.stdout) == (0, "")
    assert done.stderr == "no samples of that time; `skep serve` and `skep upkeep` take them\n"
    assert cli("queue", "history", "orders", "--json").json == []
    assert cli("queue", "history", "orders", "--since", "x").stderr.startswith('error: "x" is not a duration\n')
