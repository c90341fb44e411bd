"""Starts in all their forms: queues that do not exist yet, specificity, modes by other names, times and offsets."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.engine.verbs import broken, call, configure, drain, lag, pass_time, pop, push, push_to, refused, take


def modes(connection: psycopg.Connection) -> list[tuple]:
    return connection.execute("SELECT mode, start_at, start_offset FROM skep.subscriptions ORDER BY id").fetchall()


@pytest.mark.parametrize("how", ["pop", "pop_partition", "subscribe"])
def test_a_queue_that_does_not_exist_yet(mq: psycopg.Connection, how: str):
    """S3: the group is born before the queue, and gets the first message pushed, however late."""
    lane = {"partition": "p"} if how == "pop_partition" else {}
    if how == "subscribe":
        call(mq, "subscribe", group_name="g", queue="q", mode="new")
    else:
        assert take(mq, "q", subscription_mode="new", **lane) == []
    assert mq.execute("SELECT count(*) FROM skep.queues").fetchall() == [(0,)]
    pass_time(mq, 600)
    push(mq, "q", "first", partition="p")
    pass_time(mq, 600)
    push(mq, "q", "second", partition="p")
    assert take(mq, "q", **lane) == ["first", "second"]
    assert len(modes(mq)) == 1


def test_a_namespace_without_queues(mq: psycopg.Connection):
    """S3, S5: a wildcard group is born before any queue of its namespace."""
    assert take(mq, None, namespace="ns", subscription_mode="new") == []
    pass_time(mq, 600)
    push(mq, "ns.q", "first")
    pass_time(mq, 600)
    assert take(mq, None, namespace="ns") == ["first"]


def test_a_partition_that_does_not_exist_yet(mq: psycopg.Connection):
    """S3: a pop by name of a partition that is born later; other partitions stay untouched."""
    push(mq, "q", "other", partition="other")
    assert take(mq, "q", partition="p", subscription_mode="new") == []
    pass_time(mq, 600)
    push(mq, "q", "first", partition="p")
    assert take(mq, "q", partition="p") == ["first"]
    assert lag(mq) == {"other": 1, "p": 0}


SCOPES = [
    {"queue": "ns.task", "partition": "p"},
    {"queue": "ns.task"},
    {"namespace": "ns", "task": "task"},
    {"namespace": "ns"},
    {"task": "task"},
]


@pytest.mark.parametrize("specific", range(5), ids=["partition", "queue", "namespace_and_task", "namespace", "task"])
@pytest.mark.parametrize("order", [1, -1], ids=["specific_first", "general_first"])
def test_the_most_specific_subscription_decides(mq: psycopg.Connection, specific: int, order: int):
    """Partition, then queue, then namespace, then task; in whatever order they were stored."""
    push(mq, "ns.task", *range(9), partition="p")
    for rank, scope in list(enumerate(SCOPES[specific:]))[::order]:
        call(mq, "subscribe", group_name="g", mode="offset", start_from=f"{rank + 1}", **scope)
    (told,) = explain(mq, "ns.task", "p")
    named = ["partition", "queue", "namespace and task", "namespace", "task"][specific]
    assert (told.scope, told.mode, told.requested_offset, told.start_offset, told.has_started) == (
        named, "offset", 1, 1, False,
    )  # fmt: skip
    scope: dict[str, Any] = {"queue": "ns.task"} if specific < 2 else {"queue": None, **SCOPES[specific]}
    assert take(mq, **scope) == list(range(1, 9))
    (told,) = explain(mq, "ns.task", "p")
    assert (told.scope, told.start_offset, told.has_started) == (named, 1, True)


def explain(connection: psycopg.Connection, queue: str, partition: str, group: str = "g") -> list[Any]:
    return call(connection, "explain_start", group_name=group, queue=queue, partition=partition)


def test_explaining_a_start(mq: psycopg.Connection):
    """One row in every case: by time, for a queue or partition to come, for a work queue, for an unknown group."""
    push(mq, "ns.q", "history", partition="p")
    pass_time(mq, 3600)
    (stored,) = call(mq, "subscribe", group_name="g", namespace="ns", mode="new")
    push(mq, "ns.q", "new", partition="p")
    (told,) = explain(mq, "ns.q", "p")
    assert (told.subscription_id, told.scope, told.mode, told.start_at, told.requested_offset, told.start_offset) == (
        stored.id, "namespace", "new", stored.start_at, None, 1,
    )  # fmt: skip
    assert (told.subscribed_at, told.has_started) == (stored.created_at, False)
    for queue, partition in (("ns.q", "to come"), ("ns.to come", "p")):
        (told,) = explain(mq, queue, partition)
        assert (told.scope, told.mode, told.start_offset, told.has_started) == ("namespace", "new", None, False)
    assert explain(mq, "ns.q", "p", "nobody") == [(None,) * 7 + (False,)]
    configure(mq, "jobs", semantics="queue")
    push(mq, "jobs", 1)
    take(mq, "jobs", "workers")
    (told,) = explain(mq, "jobs", "Default", "whoever")
    assert (told.scope, told.mode, told.start_offset, told.has_started) == ("queue", "all", 0, True)


@pytest.mark.parametrize("scope", [{"queue": "q"}, {"queue": "q", "partition": "later"}, {"task": ""}])
def test_an_offset_is_for_partitions_that_exist(mq: psycopg.Connection, scope: dict[str, Any]):
    """Partitions that are created later start at their beginning: their first messages are not skipped."""
    push(mq, "q", *range(4), partition="there")
    call(mq, "subscribe", group_name="g", mode="offset", start_from="2", **scope)
    push(mq, "q", *range(4), partition="later")
    assert take(mq, "q", partition="later") == [0, 1, 2, 3]
    if "partition" not in scope:
        assert take(mq, "q", partition="there") == [2, 3]


def test_subscriptions_of_others_do_not_count(mq: psycopg.Connection):
    """S6: another group, another queue, another partition, another namespace."""
    push(mq, "ns.q", *range(4))
    for group, scope in [
        ("other", {"queue": "ns.q"}),
        ("g", {"queue": "ns.q2"}),
        ("g", {"queue": "ns.q", "partition": "other"}),
        ("g", {"namespace": "ns", "task": "other"}),
        ("g", {"namespace": "other"}),
        ("g", {"task": "other"}),
    ]:
        call(mq, "subscribe", group_name=group, mode="offset", start_from="2", **scope)
    assert take(mq, "ns.q") == [0, 1, 2, 3]


def test_a_partition_subscription_beside_the_queue_s(mq: psycopg.Connection):
    """S6: one partition from the beginning, the rest of the queue from now, by wildcard pops."""
    push_to(mq, [("q", name, f"old {name}") for name in "abc"])
    pass_time(mq, 3600)
    call(mq, "subscribe", group_name="g", queue="q", partition="b", mode="all")
    call(mq, "subscribe", group_name="g", queue="q", mode="new")
    push_to(mq, [("q", name, f"new {name}") for name in "abc"])
    assert sorted(d.payload for d in drain(mq, "q")) == ["new a", "new b", "new c", "old b"]


@pytest.mark.parametrize("how", ["subscribe", "pop"])
def test_a_second_wide_subscription(mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection], how: str):
    """Discovery finds the history of its queues, though the group has read another namespace all the time.

    It does not wait for a pop that is discovering in an open transaction, and that one does not hide the queues.
    """
    push_to(mq, [("a.q", "p", "a1"), ("b.q", "p", "b1")])
    assert take(mq, None, namespace="a") == ["a1"]
    push(mq, "a.q", "a2", partition="p")
    pass_time(mq, 600)
    slow = connect_module()
    with slow.transaction():
        assert take(slow, None, namespace="a") == ["a2"]
        if how == "subscribe":
            call(mq, "subscribe", group_name="g", namespace="b")
    assert [delivery.payload for delivery in drain(mq, None, namespace="b")] == ["b1"]


WORDS = {
    "all": "all",
    "from_beginning": "all",
    "All": "all",
    "new": "new",
    "new-only": "new",
    "now": "new",
    "NEW": "new",
}


@pytest.mark.parametrize(("word", "mode"), WORDS.items())
def test_modes_by_other_names(mq: psycopg.Connection, word: str, mode: str):
    assert call(mq, "subscribe", group_name="g", queue="q", mode=word)[0].mode == mode


def test_now_as_a_place_to_start_from(mq: psycopg.Connection):
    """Queen's subscriptionFrom: 'now' is new; a time beside a mode is the more exact wish."""
    assert call(mq, "subscribe", group_name="a", queue="q", start_from="now")[0].mode == "new"
    assert (
        call(mq, "subscribe", group_name="b", queue="q", mode="new", start_from="2026-01-01T00:00:00Z")[0].mode
        == "timestamp"
    )
    assert call(mq, "subscribe", group_name="c", queue="q", mode="all", start_from="")[0].mode == "all"
    assert call(mq, "subscribe", group_name="d", queue="q", start_from="")[0].mode == "all"


def spaced(connection: psycopg.Connection) -> list:
    """Six messages a minute apart; return their times."""
    for number in range(6):
        pass_time(connection, 60)
        push(connection, "q", number)
    rows = connection.execute('SELECT created_at FROM skep.messages ORDER BY "offset"').fetchall()
    return [time for (time,) in rows]


@pytest.mark.parametrize("shift", [-1, 0, 1], ids=["just_before", "exactly", "just_after"])
def test_a_timestamp_is_inclusive(mq: psycopg.Connection, shift: int):
    """S7: the first message at or after the time, at every place of the binary search, by wildcard and by name."""
    times = spaced(mq)
    for number, time in enumerate(times):
        start = (time + timedelta(microseconds=shift)).isoformat()
        expected = list(range(number + (shift > 0), 6))
        assert take(mq, "q", f"w{number}", subscription_mode="timestamp", subscription_from=start) == expected
        assert take(mq, "q", f"n{number}", partition="Default", subscription_from=start) == expected
    assert broken(mq) == {}


def test_many_messages_of_one_moment(mq: psycopg.Connection):
    """S7: equal times are not split: the first of them is the start."""
    push(mq, "q", *range(10))
    pass_time(mq, 60)
    answers = push(mq, "q", *range(10, 30))
    push(mq, "q", *range(30, 40))
    start = answers[0].created_at.isoformat()
    assert take(mq, "q", subscription_from=start) == list(range(10, 40))


@pytest.mark.parametrize(("start", "first"), [("0", 0), ("3", 3), ("5", 5), ("6", 6), ("100", 6)])
def test_an_offset_is_inclusive_and_at_most_the_end(mq: psycopg.Connection, start: str, first: int):
    """An offset beyond the end of a partition is its end: what is pushed afterwards is not skipped."""
    push(mq, "q", *range(6))
    assert take(mq, "q", subscription_from=start) == list(range(first, 6))
    push(mq, "q", *range(6, 102))
    assert take(mq, "q", batch=200) == list(range(6, 102))


def id_of(connection: psycopg.Connection, answer: Any) -> str:
    return str(call(connection, "message_id", partition_id=answer.partition_id, offset=answer.offset)[0][0])


def two_lanes(connection: psycopg.Connection) -> str:
    """Two lanes whose offsets differ, and the id of `a3`, which was pushed together with `a2` and `a4`."""
    push(connection, "ns.q", "a0", "a1", partition="a")
    push(connection, "ns.q", *(f"b{n}" for n in range(5)), partition="b")
    pass_time(connection, 60)
    _, third, _ = push(connection, "ns.q", "a2", "a3", "a4", partition="a")
    push(connection, "ns.q", "b5", "b6", partition="b")
    return id_of(connection, third)


FROM_A3 = ["a3", "a4", "b5", "b6"]


@pytest.mark.parametrize("scope", [{"queue": "ns.q"}, {"queue": None, "namespace": "ns"}, {"queue": None, "task": "q"}])
@pytest.mark.parametrize("first", ["subscribe", "pop"])
def test_a_message_id_is_a_place_in_its_lane_and_a_time_in_others(
    mq: psycopg.Connection, scope: dict[str, Any], first: str
):
    """Exact: nothing before it, nothing skipped, also in lanes that are born later."""
    identity = two_lanes(mq)
    if first == "subscribe":
        call(mq, "subscribe", group_name="g", mode="message_id", start_from=identity, **scope)
        assert lag(mq) == {"a": 2, "b": 2}
        start: dict[str, str] = {}
    else:
        start = {"subscription_mode": "message_id", "subscription_from": identity}
    pass_time(mq, 3600)
    push(mq, "ns.q", "c0", "c1", partition="c")
    got = [d.payload for d in drain(mq, group="g", partitions=3, **scope, **start)]
    assert sorted(got) == [*FROM_A3, "c0", "c1"]
    push(mq, "ns.q", "a5", partition="a")
    assert take(mq, group="g", **scope, **start) == ["a5"]
    assert broken(mq) == {}


@pytest.mark.parametrize(("partition", "expected"), [("a", ["a3", "a4"]), ("b", ["b5", "b6"])])
def test_a_message_id_for_one_partition(mq: psycopg.Connection, partition: str, expected: list[str]):
    """Also one of a sister lane."""
    identity = two_lanes(mq)
    call(mq, "subscribe", group_name="g", queue="ns.q", partition=partition, mode="message_id", start_from=identity)
    assert take(mq, "ns.q", partition=partition) == expected


def test_a_message_id_that_is_not_there(mq: psycopg.Connection):
    """Of another queue, of no message, of one that is gone: refused, and nothing is stored."""
    two_lanes(mq)
    (other,) = push(mq, "other", 1)
    (last,) = push(mq, "gone", 1)
    call(mq, "clear_queue", queue="gone")
    ahead = last._replace(partition_id=1, offset=100)
    scopes: list[dict[str, Any]] = [{"queue": "ns.q"}, {"queue": "gone"}, {"queue": None, "namespace": "ns"}]
    for scope in scopes:
        for identity in (id_of(mq, other), id_of(mq, last), id_of(mq, ahead), "6f0e6c0e-0000-4000-8000-000000000000"):
            with refused("SK002", f"no message {identity}"):
                pop(mq, group="g", subscription_mode="message_id", subscription_from=identity, **scope)
            with refused("SK002", f"no message {identity}"):
                call(mq, "subscribe", group_name="g", mode="message_id", start_from=identity, **scope)
    assert modes(mq) == []


def test_a_message_id_whose_message_is_gone_since(mq: psycopg.Connection):
    """The first mode stays: a consumer whose calls name its start can be restarted. A new life needs a message."""
    identity = two_lanes(mq)
    start = {"subscription_mode": "message_id", "subscription_from": identity}
    assert sorted(take(mq, "ns.q", partitions=2, **start)) == FROM_A3
    call(mq, "clear_queue", queue="ns.q")
    push(mq, "ns.q", "a5", partition="a")
    call(mq, "subscribe", group_name="g", queue="ns.q", mode="message_id", start_from=identity)
    assert take(mq, "ns.q", **start) == ["a5"]
    call(mq, "cancel", group_name="g", queue="ns.q")
    with refused("SK002"):
        call(mq, "subscribe", group_name="g", queue="ns.q", mode="message_id", start_from=identity)


def test_a_message_id_after_the_end_of_a_life(mq: psycopg.Connection):
    identity = two_lanes(mq)
    assert len(drain(mq, "ns.q")) == 12
    call(mq, "cancel", group_name="g", queue="ns.q")
    call(mq, "subscribe", group_name="g", queue="ns.q", mode="message_id", start_from=identity)
    assert sorted(d.payload for d in drain(mq, "ns.q")) == FROM_A3
    assert broken(mq) == {}


def test_a_message_id_does_not_move_who_has_started(mq: psycopg.Connection):
    """The first mode wins, and a queue with one cursor for all has no starts of groups."""
    identity = two_lanes(mq)
    assert take(mq, "ns.q", partition="a", batch=1) == ["a0"]
    call(mq, "subscribe", group_name="g", queue="ns.q", mode="message_id", start_from=identity)
    assert take(mq, "ns.q", partition="a") == ["a1", "a2", "a3", "a4"]
    configure(mq, "ns.q", semantics="queue")
    call(mq, "subscribe", group_name="h", queue="ns.q", mode="message_id", start_from=identity)
    assert len(drain(mq, "ns.q", "h")) == 12


def test_a_time_in_the_future_delivers_nothing_yet(mq: psycopg.Connection):
    push(mq, "q", "now")
    (ahead,) = mq.execute("SELECT (clock_timestamp() + interval '1 hour')::text").fetchall()[0]
    assert take(mq, "q", subscription_from=ahead) == []
    push(mq, "q", "too early")
    assert take(mq, "q") == []
    pass_time(mq, 3601)
    push(mq, "q", "late enough")
    assert take(mq, "q") == ["late enough"]


def test_what_retention_has_taken_is_skipped(mq: psycopg.Connection):
    """A start before the first retained offset is that offset, in every mode."""
    times = spaced(mq)
    mq.execute('DELETE FROM skep.messages WHERE "offset" < 4')
    mq.execute("UPDATE skep.partition_floors SET first_offset = 4")
    assert take(mq, "q", "all") == [4, 5]
    assert take(mq, "q", "offset", subscription_from="1") == [4, 5]
    assert take(mq, "q", "time", subscription_from=times[2].isoformat()) == [4, 5]
    assert take(mq, "q", "late", subscription_from=times[5].isoformat()) == [5]


def test_queue_semantics_share_one_cursor(mq: psycopg.Connection):
    """Section 5: every message of a `queue` queue goes to one consumer, whatever group and mode it names."""
    configure(mq, "q", semantics="queue", concurrency=1)
    push(mq, "q", *range(6))
    assert take(mq, "q", "a", batch=2) == [0, 1]
    assert take(mq, "q", "b", batch=2, subscription_mode="new") == [2, 3]
    held = pop(mq, "q", "c", batch=1)
    assert take(mq, "q", "__QUEUE_MODE__") == []  # one lease at a time: the partition is strict
    call(mq, "ack", lease=held[0].lease)
    assert take(mq, "q", "__QUEUE_MODE__") == [5]
    assert lag(mq, "a") == lag(mq, "whoever") == {"Default": 0}


def test_mixed_queues_serve_groups_and_queue_mode_side_by_side(mq: psycopg.Connection):
    push(mq, "q", "m")
    assert [take(mq, "q", group) for group in ("a", "b", "__QUEUE_MODE__")] == [["m"], ["m"], ["m"]]
    assert take(mq, "q", "a") == []
