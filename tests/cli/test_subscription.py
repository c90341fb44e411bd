"""`skep group subscribe`, `pause` and the other commands on subscriptions."""

import pytest

from skep import Skep
from tests.cli.conftest import Cli

CANCELLED = 'error: the subscription of group "billing" is cancelled\n'


@pytest.fixture
def orders(mq: Skep) -> Skep:
    mq.queue("orders").push_many(range(10))
    mq.queue("mail").configure(namespace="shop")
    return mq


def test_subscribe(cli: Cli, orders: Skep):
    heartbeats = ["--heartbeat-interval", "30s", "--heartbeat-timeout", "5m", "--miss-threshold", "1"]
    done = cli("group", "subscribe", "billing", "orders", "--from", "4", "--no-backfill", *heartbeats)
    says = "ACTIVE, starts at offset 4, without backfill, heartbeat every 30 s, dead after 300 s and 1 missed heartbeat"
    assert done.stdout == f"group billing on orders: {says}\n"
    (stored,) = orders.subscriptions("billing")
    assert (stored.start_offset, stored.backfill, stored.heartbeat_interval) == (4, False, 30)


def test_the_retry_policy(cli: Cli, orders: Skep):
    options = ["--retry-limit", "8", "--retry-delay", "1s", "--max-retry-delay", "1m", "--retry-jitter", "0.1"]
    done = cli("group", "subscribe", "billing", "orders", *options)
    assert done.stdout.endswith("retry limit 8, retry delay 1 s, max retry delay 60 s, retry jitter 0.1\n")
    done = cli("group", "configure", "billing", "retry_limit=2", "retry_delay=null", "--queue", "orders")
    assert done.stdout.endswith("3 missed heartbeats, retry limit 2, max retry delay 60 s, retry jitter 0.1\n")
    (shown,) = cli("group", "configure", "billing", "retry_limit=3", "--json").json
    (stored,) = orders.subscriptions("billing")
    assert (shown["retry_limit"], stored.retry_limit, stored.retry_delay) == (3, 3, None)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("retry_limit=-1", "retry_limit must be at least 0, got -1"),
        ("lease_time=5", 'unknown group option "lease_time"'),
        ("namespace=5", 'unknown group option "namespace"'),
        ("often", '"often" is not an option'),
    ],
)
def test_an_invalid_retry_policy(cli: Cli, orders: Skep, option: str, says: str):
    orders.subscribe("billing", "orders")
    done = cli("group", "configure", "billing", option)
    assert (done.code, done.stdout) == (1, "")
    assert says in done.stderr.splitlines()[0]


def test_explain(cli: Cli, orders: Skep):
    says = "group billing on orders/Default: "
    assert cli("group", "explain", "billing", "orders").lines == [
        f"{says}not subscribed yet; the first pop stores a subscription",
    ]
    orders.subscribe("billing", "orders", start_from=4)
    decided, start = cli("group", "explain", "billing", "orders").lines
    assert decided.startswith(f"{says}decided by the subscription to the queue, stored ")
    assert decided.endswith("mode offset 4")
    assert start == "it will start at offset 4"
    orders.queue("orders").pop(group="billing").ack()
    assert cli("group", "explain", "billing", "orders").lines[1] == "it started at offset 4"
    assert cli("group", "explain", "billing", "orders", "p").lines[1] == "the partition does not exist yet"
    found = cli("group", "explain", "billing", "orders", "--json").json
    assert (found["partition"], found["scope"], found["asked_offset"]) == ("Default", "queue", 4)


def test_subscribe_does_not_change_a_stored_subscription(cli: Cli, orders: Skep):
    first = cli("group", "subscribe", "billing", "orders", "--mode", "new", "--json").json
    assert (first["mode"], first["status"], first["backfill"]) == ("new", "ACTIVE", False)
    assert cli("group", "subscribe", "billing", "orders", "--mode", "all", "--backfill", "--json").json == first


def test_subscribe_to_a_namespace_a_task_or_a_partition(cli: Cli, orders: Skep):
    assert cli("group", "subscribe", "a", "--namespace", "shop").stdout.startswith("group a on shop.*: ")
    assert cli("group", "subscribe", "a", "--task", "mail").stdout.startswith("group a on *.mail: ")
    assert cli("group", "subscribe", "a", "orders", "--partition", "p").stdout.startswith("group a on orders/p: ")
    assert [group["queue"] for group in cli("group", "list", "--json").json] == ["mail", "orders"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--mode", "sometimes"], 'unknown subscription mode "sometimes"'),
        (["--heartbeat-interval", "often"], '"often" is not a duration'),
        (["--miss-threshold", "0"], "miss_threshold is out of range"),
    ],
)
def test_invalid_subscriptions(cli: Cli, orders: Skep, options: list[str], says: str):
    done = cli("group", "subscribe", "billing", "orders", *options)
    assert (done.code, done.stdout) == (1, "")
    assert says in done.stderr.splitlines()[0]
    assert orders.subscriptions() == []


def test_pause_and_resume(cli: Cli, orders: Skep):
    orders.subscribe("billing", "orders")
    assert cli("group", "pause", "billing", "orders").stdout.startswith("group billing on orders: PAUSED, ")
    assert list(orders.queue("orders").pop(group="billing")) == []
    assert cli("group", "pause", "billing").stdout == "group billing on all its queues: nothing to pause\n"
    (resumed,) = cli("group", "resume", "billing", "--json").json
    assert (resumed["queue"], resumed["status"]) == ("orders", "ACTIVE")
    assert len(orders.queue("orders").pop(group="billing")) == 1


def test_one_queue_of_a_namespace(cli: Cli, orders: Skep):
    orders.subscribe("billing", namespace="shop")
    assert cli("group", "pause", "billing", "mail").stdout.startswith("group billing on mail: PAUSED")
    assert cli("group", "heartbeat", "billing", "--namespace", "shop").stdout.startswith(
        "group billing on shop.*: ACTIVE"
    )


def test_heartbeat(cli: Cli, orders: Skep):
    before = orders.subscribe("billing", "orders").last_heartbeat_at
    assert cli("group", "heartbeat", "billing", "orders").stdout.startswith("group billing on orders: ACTIVE")
    assert orders.subscriptions("billing")[0].last_heartbeat_at > before


def test_cancel(cli: Cli, orders: Skep):
    orders.subscribe("billing", "orders")
    done = cli("group", "cancel", "billing", "orders", stdin=b"n\n")
    assert done.code == 1
    assert done.stderr.startswith(
        "Cancel group billing on orders? No messages will be kept for it. [y/N] error: nothing was"
    )
    assert cli("group", "cancel", "billing", "orders", "--yes").stdout.startswith("group billing on orders: CANCELLED")
    assert cli("group", "cancel", "billing", "--yes", "--json").json == []
    assert cli("group", "heartbeat", "billing").stderr.startswith(CANCELLED + "hint: ")


def test_remove(cli: Cli, orders: Skep):
    orders.subscribe("billing", "orders")
    done = cli("group", "remove", "billing", stdin=b"y\n")
    assert done.stdout == "group billing on all its queues removed, 10 messages released\n"
    assert done.stderr == "Remove group billing on all its queues, with 10 messages pending? [y/N] "
    assert cli("group", "remove", "billing", "--yes").stderr.startswith(CANCELLED)
    orders.subscribe("audit", "orders")
    released = {"group": "audit", "queue": "orders", "released": 10}
    assert cli("group", "remove", "audit", "orders", "--yes", "--json").json == released


def test_force_complete(cli: Cli, orders: Skep):
    orders.subscribe("billing", "orders")
    command = ["group", "force-complete", "billing", "orders", "--older-than"]
    assert cli(*command, "30m", "--yes").stdout == "group billing on orders: 0 messages older than 30m completed\n"
    assert cli(*command, "0s", stdin=b"\n").code == 1
    done = cli(*command, "0s", "--yes", "--json").json
    assert (done["group"], done["older_than"], done["completed"]) == ("billing", 0, 10)
    assert orders.groups("billing")[0].lag == 0


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel --yes", "heartbeat", "remove --yes"])
def test_a_group_that_has_not_subscribed(cli: Cli, orders: Skep, verb: str):
    done = cli("group", *verb.split(), "unknown", "orders")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith('error: group "unknown" has no subscription to queue "orders"\nhint: ')


def test_blocked(cli: Cli, orders: Skep):
    for group in ("fast", "slow"):
        orders.subscribe(group, "orders")
    orders.queue("orders").pop(group="fast", batch=8).ack()
    lines = [line.split() for line in cli("group", "blocked", "orders").lines[1:]]
    assert [line[:6] for line in lines] == [
        ["orders", "Default", "slow", "ACTIVE", "10", "0"],
        ["orders", "Default", "fast", "ACTIVE", "2", "0"],
    ]
    assert [line[-1] for line in lines] == ["yes", "no"]
    assert [(each["group"], each["is_floor"]) for each in cli("group", "blocked", "--json").json] == [
        ("slow", True),
        ("fast", False),
    ]
    assert cli("group", "blocked", "--limit", "1").lines[-1] == "and 1 more with a smaller backlog; --limit 2 shows all"
    assert cli("group", "blocked", "nothing").stderr.startswith('error: there is no queue "nothing"\n')


def test_defaults(cli: Cli, mq: Skep):
    assert cli("group", "defaults").stdout.startswith("default start: all; new starts 4 s before")
    changed = cli("group", "defaults", "--mode", "new", "--json").json
    assert changed == {"subscription_mode": "new", "max_poll_interval": 2}
    assert cli("group", "defaults", "--max-poll-interval", "1m", "--json").json == changed | {"max_poll_interval": 60}
    assert cli("group", "defaults", "--json").json == {"subscription_mode": "new", "max_poll_interval": 60}
    assert mq.subscribe("late", "orders").mode == "new"


def test_invalid_defaults(cli: Cli):
    for options in (("--mode", "timestamp"), ("--max-poll-interval", "0"), ("--max-poll-interval", "soon")):
        done = cli("group", "defaults", *options)
        assert (done.code, done.stdout) == (1, "")
        assert "must be" in done.stderr or "hint: " in done.stderr
    assert cli("group", "defaults", "--json").json == {"subscription_mode": "all", "max_poll_interval": 2}
