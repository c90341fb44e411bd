"""The start of a group: the tests and edge cases of subscriptions, and what follows from them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.engine.verbs import call, configure, drain, lag, pass_time, pop, push, push_to, take


def stored(connection: psycopg.Connection, group: str = "g") -> list[tuple]:
    """Return the subscriptions of a group, scope and mode, in the order of their creation."""
    return connection.execute(
        "SELECT queue, partition, namespace, task, mode FROM skep.subscriptions WHERE group_name = %s ORDER BY id",
        [group],
    ).fetchall()


def start_and_clock(connection: psycopg.Connection, group: str = "g") -> tuple:
    """Return when the group's only subscription starts, and the time of the database."""
    found = connection.execute(
        "SELECT start_at, clock_timestamp() FROM skep.subscriptions WHERE group_name = %s", [group]
    )
    (only,) = found.fetchall()
    return only


def old(connection: psycopg.Connection, *payloads: object, **partition: str) -> None:
    """Push messages of an hour ago."""
    push(connection, "q", *payloads, **partition)
    pass_time(connection, 3600)


def test_new_mode_on_one_partition(mq: psycopg.Connection):
    """The group gets the message that is there at its start, and later ones (scenario S1)."""
    push(mq, "q", "M1", partition="p1")
    assert take(mq, "q", partition="p1", subscription_mode="new") == ["M1"]
    push(mq, "q", "M2", partition="p1")
    assert take(mq, "q", partition="p1", subscription_mode="new") == ["M2"]
    assert stored(mq) == [("q", "p1", None, None, "new")]


@pytest.mark.parametrize("known", [True, False], ids=["group_has_met_p1", "group_has_met_nothing"])
def test_a_partition_created_ten_minutes_later(mq: psycopg.Connection, *, known: bool):
    """The start is that of the group, not the moment when it discovers the partition (scenarios S1, S4)."""
    if known:
        push(mq, "q", "M1", partition="p1")
    assert take(mq, "q", subscription_mode="new") == (["M1"] if known else [])
    pass_time(mq, 600)
    push(mq, "q", "M2", "M3", "M4", partition="p2")
    pass_time(mq, 300)
    assert take(mq, "q", subscription_mode="new") == ["M2", "M3", "M4"]


def test_a_partition_with_history_discovered_later_starts_at_the_start_of_the_group(mq: psycopg.Connection):
    """In a partition older than the group, everything before its start is skipped and everything after it is delivered.

    Scenario s4.
    """
    old(mq, "history 1", "history 2", partition="p2")
    assert take(mq, "q", subscription_mode="new") == []
    pass_time(mq, 600)
    push(mq, "q", "late 1", partition="p2")
    pass_time(mq, 600)
    push(mq, "q", "late 2", partition="p2")
    assert [delivery.payload for delivery in drain(mq, "q", batch=1)] == ["late 1", "late 2"]


@pytest.mark.parametrize(("started", "later"), [({"queue": "ns.q"}, {"queue": "ns.q", "partition": "p"}),
                                             ({"queue": None, "namespace": "ns"}, {"queue": "ns.q"})])  # fmt: skip
def test_a_pop_without_a_mode_keeps_the_start(mq: psycopg.Connection, started: dict, later: dict):
    """The default mode is for groups without a subscription.

    It does not override an older, wider one (scenarios S4, S6).
    """
    push(mq, "ns.q", "history", partition="p")
    pass_time(mq, 3600)
    assert take(mq, **started, subscription_mode="new") == []
    push(mq, "ns.q", "late", partition="p")
    pass_time(mq, 600)
    assert take(mq, **later) == ["late"]


WIDE_AND_NARROW: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"queue": "ns.q"}, {"queue": "ns.q", "partition": "p"}),
    ({"queue": None, "namespace": "ns"}, {"queue": "ns.q"}),
    ({"queue": None, "namespace": "ns"}, {"queue": "ns.q", "partition": "p"}),
    ({"queue": None, "task": "q"}, {"queue": None, "namespace": "ns", "task": "q"}),
]


@pytest.mark.parametrize(("wide", "narrow"), WIDE_AND_NARROW)
@pytest.mark.parametrize("named", [{"mode": "new"}, {"start_from": "now"}, {}], ids=["mode", "now", "nothing"])
@pytest.mark.parametrize("how", ["subscribe", "pop"])
def test_a_narrower_scope_keeps_the_start_of_a_wider_one(
    mq: psycopg.Connection, wide: dict[str, Any], narrow: dict[str, Any], named: dict[str, Any], how: str
):
    """The start of a wide subscription applies to everything it covers, if its mode is repeated or left out."""
    push(mq, "ns.q", "history", partition="p")
    pass_time(mq, 3600)
    call(mq, "subscribe", group_name="g", mode="new", **wide)
    push(mq, "ns.q", "in between", partition="p")
    pass_time(mq, 900)
    if how == "subscribe":
        (stored,) = call(mq, "subscribe", group_name="g", **narrow, **named)
        assert stored.mode == "new"
        assert take(mq, **narrow) == ["in between"]
    else:
        words = {f"subscription_{name.removeprefix('start_')}": word for name, word in named.items()}
        assert take(mq, **narrow, **words) == ["in between"]


@pytest.mark.parametrize("named", [{"mode": "all"}, {"start_from": "2020-01-01"}, {"start_from": "0"}])
def test_another_mode_or_position_starts_elsewhere(mq: psycopg.Connection, named: dict[str, Any]):
    """A narrower subscription that differs from the wider one has its own start."""
    push(mq, "ns.q", "history", partition="p")
    pass_time(mq, 3600)
    call(mq, "subscribe", group_name="g", mode="new", namespace="ns")
    call(mq, "subscribe", group_name="g", queue="ns.q", **named)
    assert take(mq, "ns.q") == ["history"]


def test_a_cancelled_scope_does_not_take_the_start_of_a_wider_one(mq: psycopg.Connection):
    """A group that subscribes again after a cancel starts again: now, if the mode is new."""
    call(mq, "subscribe", group_name="g", mode="new", namespace="ns")
    push(mq, "ns.q", "before", partition="p")
    pass_time(mq, 900)
    call(mq, "cancel", group_name="g", queue="ns.q")
    call(mq, "subscribe", group_name="g", mode="new", queue="ns.q")
    push(mq, "ns.q", "after", partition="p")
    assert take(mq, "ns.q") == ["after"]


@pytest.mark.parametrize(
    "scope", [{"queue": "ns.q"}, {"queue": "ns.q", "partition": "p"}, {"queue": None, "namespace": "ns"}]
)
@pytest.mark.parametrize("known", [True, False], ids=["known_partition", "new_partition"])
@pytest.mark.parametrize("how", ["subscribe", "pop"])
def test_a_message_that_commits_after_the_subscription_is_new(
    mq: psycopg.Connection,
    connect_module: Callable[[], psycopg.Connection],
    scope: dict[str, Any],
    how: str,
    *,
    known: bool,
):
    """It was pushed ten minutes before, in a transaction that stayed open; messages committed before stay history."""
    if known:
        push(mq, "ns.q", "history", partition="p")
        pass_time(mq, 3600)
    slow = connect_module()
    with slow.transaction():
        push(slow, "ns.q", "late commit", partition="p")
        slow.execute("UPDATE skep.messages SET created_at = created_at - interval '10 min'")
        if how == "subscribe":
            call(mq, "subscribe", group_name="g", mode="new", **scope)
        else:
            assert take(mq, **scope, subscription_mode="new") == []
    push(mq, "ns.q", "next", partition="p")
    assert take(mq, **scope) == ["late commit", "next"]
    assert lag(mq) == {"p": 0}


def test_a_namespace_shares_one_start(mq: psycopg.Connection):
    """A queue that joins the namespace later has the same start (scenarios S1, S5)."""
    push(mq, "ns.q1", "M1")
    assert take(mq, None, namespace="ns", subscription_mode="new") == ["M1"]
    started = start_and_clock(mq)[0]
    pass_time(mq, 900)
    push(mq, "ns.q2", "M2")
    pass_time(mq, 900)
    assert take(mq, None, namespace="ns", subscription_mode="new") == ["M2"]
    assert start_and_clock(mq)[0] == started - timedelta(seconds=1800)
    assert stored(mq) == [(None, None, "ns", None, "new")]


def test_a_task_shares_one_start(mq: psycopg.Connection):
    """The same across namespaces, by task; and by both, which is a third subscription (scenario S5)."""
    push_to(mq, [("a.mail", "p", "old"), ("b.mail", "p", "old"), ("b.sms", "p", "old")])
    pass_time(mq, 3600)
    assert take(mq, None, task="mail", subscription_mode="new") == []
    push(mq, "c.mail", "new queue")
    push(mq, "a.mail", "known queue")
    push(mq, "b.sms", "other task", partition="p")
    pass_time(mq, 600)
    assert sorted(d.payload for d in drain(mq, None, task="mail")) == ["known queue", "new queue"]
    assert take(mq, None, namespace="b", task="sms", subscription_mode="all") == ["old", "other task"]
    assert stored(mq) == [(None, None, None, "mail", "new"), (None, None, "b", "sms", "all")]


def test_groups_start_independently(mq: psycopg.Connection):
    """One group is new, the other reads everything; each keeps its own start (scenario S1)."""
    old(mq, "old")
    push(mq, "q", "recent")
    assert take(mq, "q", "cg1", subscription_mode="new") == ["recent"]
    pass_time(mq, 60)
    assert take(mq, "q", "cg2") == ["old", "recent"]
    assert take(mq, "q", "cg3", subscription_mode="new") == []
    assert stored(mq, "cg1") == [("q", None, None, None, "new")]
    assert stored(mq, "cg2") == [("q", None, None, None, "all")]
    assert start_and_clock(mq, "cg3")[0] - start_and_clock(mq, "cg1")[0] >= timedelta(seconds=60)


def test_a_group_without_a_subscription_starts_at_the_beginning(mq: psycopg.Connection):
    """Consumers from before there were subscriptions (scenario S1)."""
    old(mq, "a", "b")
    call(mq, "configure_defaults", subscription_mode="new")
    pop(mq, "empty", "g")
    mq.execute("SELECT skep._ensure_group_queue('g', 'q')")
    mq.execute("DELETE FROM skep.subscriptions")
    assert lag(mq) == {"Default": 2}


def test_each_partition_has_its_own_subscription(mq: psycopg.Connection):
    """Popped by name, p2 does not take the start of p1 (scenario S1)."""
    old(mq, 1, partition="p1")
    assert take(mq, "q", partition="p1", subscription_mode="new") == []
    push(mq, "q", 2, partition="p2")
    pass_time(mq, 600)
    assert take(mq, "q", partition="p2", subscription_mode="new") == []  # starts now, ten minutes after the message
    push(mq, "q", 3, partition="p1")
    push(mq, "q", 4, partition="p2")
    assert take(mq, "q", partition="p1") == [3]
    assert take(mq, "q", partition="p2") == [4]
    assert stored(mq) == [("q", "p1", None, None, "new"), ("q", "p2", None, None, "new")]


def test_each_queue_has_its_own_mode(mq: psycopg.Connection):
    """New on one queue, all on another, in the same group (scenario S1)."""
    push(mq, "q1", "old")
    push(mq, "q2", "old")
    pass_time(mq, 3600)
    assert take(mq, "q1", subscription_mode="new") == []
    assert take(mq, "q2") == ["old"]
    assert stored(mq) == [("q1", None, None, None, "new"), ("q2", None, None, None, "all")]


@pytest.mark.parametrize(("first", "later"), [("new", "all"), ("all", "new"), ("new", None)])
def test_the_first_mode_wins(mq: psycopg.Connection, first: str, later: str | None):
    """Neither pop nor subscribe changes it afterwards (scenario S1)."""
    old(mq, "old")
    call(mq, "subscribe", group_name="g", queue="q", mode=first)
    before = start_and_clock(mq)[0]
    assert take(mq, "q", subscription_mode=later) == (["old"] if first == "all" else [])
    (result,) = call(mq, "subscribe", group_name="g", queue="q", mode=later, start_from="2020-01-01" if later else None)
    assert (result.mode, start_and_clock(mq)[0]) == (first, before)
    old(mq, "older partition", partition="p2")
    assert take(mq, "q") == ["older partition"]  # pushed after the start


def test_a_changed_default_does_not_change_a_group(mq: psycopg.Connection):
    """A group created under `all` stays `all`, one created under `new` stays `new` (scenario S1)."""
    old(mq, "old", partition="p1")
    pop(mq, "elsewhere", "g")
    call(mq, "subscribe", group_name="g", queue="q")
    call(mq, "configure_defaults", subscription_mode="new")
    assert take(mq, "q") == ["old"]
    assert take(mq, "q", "young") == []
    call(mq, "configure_defaults", subscription_mode="all")
    assert take(mq, "q", "young") == []
    assert (stored(mq)[1], stored(mq, "young")) == (
        ("q", None, None, None, "all"),
        [("q", None, None, None, "new")],
    )


def test_new_mode_on_an_empty_partition(mq: psycopg.Connection):
    """The first pop is empty; the first message is not skipped (scenario S2)."""
    configure(mq, "q")
    assert take(mq, "q", partition="p1", subscription_mode="new") == []
    push(mq, "q", "M1", partition="p1")
    assert take(mq, "q", partition="p1", subscription_mode="new") == ["M1"]


def test_the_message_that_triggers_the_first_pop_is_not_skipped(mq: psycopg.Connection):
    """It was pushed within two poll intervals before the start (scenario S2)."""
    old(mq, "M1", "M2", "M3")
    push(mq, "q", "M4")
    assert take(mq, "q", subscription_mode="new") == ["M4"]


def test_new_mode_skips_history(mq: psycopg.Connection):
    """Messages older than the lookback are never delivered, new ones are (scenario S2)."""
    old(mq, "M1", "M2", "M3")
    assert take(mq, "q", subscription_mode="new") == []
    push(mq, "q", "M4")
    assert take(mq, "q", subscription_mode="new") == ["M4"]


def test_traditional_mode_gets_everything(mq: psycopg.Connection):
    """A group without a mode starts at the beginning; so does queue mode, whatever mode it names (scenario S2)."""
    old(mq, "M1", "M2")
    assert take(mq, "q", "cg-old") == ["M1", "M2"]
    assert take(mq, "q", "__QUEUE_MODE__", subscription_mode="new") == ["M1", "M2"]


def test_the_default_mode_of_the_server(mq: psycopg.Connection):
    """Consumers that name no mode get the configured one (scenario S2)."""
    call(mq, "configure_defaults", subscription_mode="new")
    old(mq, "M1")
    assert take(mq, "q") == []
    push(mq, "q", "M2")
    assert take(mq, "q") == ["M2"]
    assert take(mq, "q", "explicit", subscription_mode="all") == ["M1", "M2"]


def test_pending_counts_of_a_new_group(mq: psycopg.Connection):
    """History is not pending, before and after the first pop (scenario S2)."""
    old(mq, "M1", "M2", "M3")
    pop(mq, "q", subscription_mode="new")
    assert lag(mq) == {"Default": 0}
    push(mq, "q", "M4")
    assert lag(mq) == {"Default": 1}
    assert take(mq, "q") == ["M4"]
    assert lag(mq) == {"Default": 0}


def test_mixed_consumers(mq: psycopg.Connection):
    """Two groups of different modes on one partition (scenario S2)."""
    old(mq, "M1")
    assert take(mq, "q", "cg-new", subscription_mode="new") == []
    assert take(mq, "q", "cg-all", subscription_mode="from_beginning") == ["M1"]
    push(mq, "q", "M2")
    assert take(mq, "q", "cg-new") == ["M2"]
    assert take(mq, "q", "cg-all") == ["M2"]


@pytest.mark.parametrize(
    ("interval", "age", "comes"), [(2, 3.5, True), (2, 4.5, False), (30, 59, True), (30, 61, False)]
)
def test_the_lookback_is_two_poll_intervals(mq: psycopg.Connection, interval: float, age: float, *, comes: bool):
    """4 s by default, configurable (scenario S2)."""
    call(mq, "configure_defaults", max_poll_interval=interval)
    push(mq, "q", "M")
    pass_time(mq, age)
    assert take(mq, "q", subscription_mode="new") == (["M"] if comes else [])
    start, clock = start_and_clock(mq)
    assert timedelta(seconds=2 * interval) <= clock - start < timedelta(seconds=2 * interval + 5)
