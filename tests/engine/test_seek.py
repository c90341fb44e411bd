"""Seek: authoritative, for lanes met or not, in queues that exist or not; it drops leases."""

import psycopg
import pytest

from tests.engine.verbs import ack, broken, call, configure, drain, lag, pass_time, pop, push, push_to, refused, take


def seek(connection: psycopg.Connection, position: str, queue: str = "q", group: str = "g", **lane: str) -> int:
    return call(connection, "seek", group_name=group, queue=queue, position=position, **lane)[0][0]


def minute_by_minute(connection: psycopg.Connection, lanes: list[str]) -> list[str]:
    """Four messages a minute apart in each lane; return a time before each of them."""
    for number in range(4):
        push_to(connection, [("q", lane, number) for lane in lanes])
        pass_time(connection, 60)
    times = connection.execute("SELECT DISTINCT (created_at - interval '1 s')::text FROM skep.messages ORDER BY 1")
    return [time for (time,) in times.fetchall()]


def drained(connection: psycopg.Connection, group: str = "g") -> dict[str, list]:
    """What comes, by partition."""
    found: dict[str, list] = {}
    for delivery in drain(connection, "q", group):
        found.setdefault(delivery.partition, []).append(delivery.payload)
    return found


@pytest.mark.parametrize("met", ["all", "none", "half"])
@pytest.mark.parametrize(("position", "first"), [("beginning", 0), ("end", 4), ("2", 2), ("time", 3), ("Beginning", 0)])
def test_seek_moves_every_lane(mq: psycopg.Connection, position: str, first: int, met: str):
    """S7: a group that has drained, met half of, or never seen the lanes: all of them start at the place."""
    times = minute_by_minute(mq, ["a", "b"])
    if met == "all":
        drain(mq, "q")
    elif met == "half":
        take(mq, "q", partition="a")
    assert seek(mq, times[3] if position == "time" else position) == 2
    assert lag(mq) == {"a": 4 - first, "b": 4 - first}
    push_to(mq, [("q", lane, "next") for lane in "abc"])
    rest = [*range(first, 4), "next"]
    later = {} if position == "2" else {"c": ["next"]}  # offset 2 of the new lane is still to come
    assert drained(mq) == {"a": rest, "b": rest, **later}
    assert broken(mq) == {}


def test_an_offset_counts_in_lanes_born_later_too(mq: psycopg.Connection):
    """S7: seek to offset 2 holds for every lane of the queue, also one that does not exist yet."""
    seek(mq, "2")
    push(mq, "q", *range(4), partition="later")
    assert drained(mq) == {"later": [2, 3]}


@pytest.mark.parametrize(("position", "expected"), [("beginning", ["a", "b"]), ("end", ["a", "b"]), ("1", ["b"])])
def test_a_queue_that_does_not_exist(mq: psycopg.Connection, position: str, expected: list):
    """S7: the seek is kept for the queue, as a subscription is; "end" of nothing is before the first message."""
    assert seek(mq, position) == 0
    pass_time(mq, 600)
    push(mq, "q", "a", "b")
    pass_time(mq, 600)
    assert take(mq, "q") == expected


def test_a_partition_that_does_not_exist(mq: psycopg.Connection):
    push(mq, "q", "x", partition="other")
    assert seek(mq, "1", partition="p") == 0
    push(mq, "q", *range(3), partition="p")
    assert drained(mq) == {"p": [1, 2], "other": ["x"]}


@pytest.mark.parametrize("mode", ["new", "all"])
def test_a_stored_mode_does_not_undo_a_seek(mq: psycopg.Connection, mode: str):
    """S7: neither the subscription the group was born with nor the mode that its consumers go on to send."""
    minute_by_minute(mq, ["a", "b"])
    take(mq, "q", partition="a", subscription_mode=mode)
    take(mq, "q", subscription_mode=mode, batch=1)
    seek(mq, "1")
    push(mq, "q", "x", "y", partition="c")
    found = {}
    while deliveries := pop(mq, "q", subscription_mode=mode):
        ack(mq, deliveries)
        found[deliveries[0].partition] = [delivery.payload for delivery in deliveries]
    assert found == {"a": [1, 2, 3], "b": [1, 2, 3], "c": ["y"]}


def test_a_namespace_subscription_does_not_undo_a_seek(mq: psycopg.Connection):
    """S6, S7: the seek of a queue is more specific than the group's namespace."""
    push(mq, "ns.q", *range(4))
    push(mq, "ns.other", "other")
    pass_time(mq, 3600)
    assert take(mq, None, namespace="ns", subscription_mode="new") == []
    seek(mq, "beginning", queue="ns.q")
    assert take(mq, None, namespace="ns") == [0, 1, 2, 3]
    assert take(mq, None, namespace="ns") == []


def test_one_partition_only(mq: psycopg.Connection):
    """S7: the other lanes of the group, and the other groups, stay where they are."""
    minute_by_minute(mq, ["a", "b"])
    drain(mq, "q")
    drain(mq, "q", "other")
    assert seek(mq, "2", partition="b") == 1
    assert (lag(mq), lag(mq, "other")) == ({"a": 0, "b": 2}, {"a": 0, "b": 0})
    assert drained(mq) == {"b": [2, 3]}
    seek(mq, "beginning")
    assert drained(mq) == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}  # the queue's seek is later than the partition's


def test_seek_drops_leases(mq: psycopg.Connection):
    """S7, C5: the token is stale at once, the answer is refused and changes nothing."""
    minute_by_minute(mq, ["a"])
    held = pop(mq, "q", batch=2)
    failed = pop(mq, "q", "failing", batch=2)
    call(mq, "fail", lease=failed[0].lease, error="oops")
    seek(mq, "1")
    seek(mq, "0", group="failing")
    for stale in ("ack", "release", "extend"):
        with refused("SK003"):
            call(mq, stale, lease=held[0].lease)
    for stale in ("fail", "dead_letter"):
        with refused("SK003"):
            call(mq, stale, lease=held[0].lease, error="late")
    assert (lag(mq), broken(mq)) == ({"a": 3}, {})
    again = pop(mq, "q")
    assert [(delivery.payload, delivery.attempt) for delivery in again] == [(1, 1), (2, 1), (3, 1)]
    assert [d.attempt for d in pop(mq, "q", "failing")] == [
        1,
        1,
        1,
        1,
    ]  # what was returned for a retry is forgotten too
    assert mq.execute("SELECT count(*) FROM skep.dead_letters").fetchall() == [(0,)]


def test_end_is_the_end_of_this_moment(mq: psycopg.Connection):
    """S7: by offset, not by clock: also where the lane's time is ahead of the clock."""
    push(mq, "q", "a", "b")
    pass_time(mq, -3600)
    seek(mq, "end")
    assert lag(mq) == {"Default": 0}
    push(mq, "q", "c")
    assert lag(mq) == {"Default": 1}


def test_beyond_the_end_waits(mq: psycopg.Connection):
    """S7: an offset that does not exist yet."""
    push(mq, "q", "a", "b")
    seek(mq, "4")
    push(mq, "q", "c", "d")
    assert (take(mq, "q"), lag(mq)) == ([], {"Default": 0})
    push(mq, "q", "e")
    assert take(mq, "q") == ["e"]
    assert broken(mq) == {}


def test_seeking_back_and_forth(mq: psycopg.Connection):
    push(mq, "q", *range(10))
    assert take(mq, "q", batch=5) == [0, 1, 2, 3, 4]
    for position, expected in [("8", [8, 9]), ("2", list(range(2, 10))), ("end", []), ("beginning", list(range(10)))]:
        seek(mq, position)
        assert take(mq, "q") == expected
    assert broken(mq) == {}


def test_seek_on_queue_semantics_moves_the_one_cursor(mq: psycopg.Connection):
    """Section 5: whatever group name the seek gives, it is the queue's cursor."""
    configure(mq, "q", semantics="queue")
    push(mq, "q", *range(6))
    seek(mq, "4", group="a")
    assert lag(mq, "b") == {"Default": 2}
    assert take(mq, "q", "b") == [4, 5]
    seek(mq, "end", group="__QUEUE_MODE__")
    seek(mq, "1", group="__QUEUE_MODE__")
    assert take(mq, "q", "c") == [1, 2, 3, 4, 5]


def test_seek_creates_a_group_that_was_never_seen(mq: psycopg.Connection):
    push(mq, "q", "a", "b")
    seek(mq, "1", group="fresh")
    assert lag(mq, "fresh") == {"Default": 1}
    assert take(mq, "q", "fresh") == ["b"]


def test_who_is_cancelled_is_not_moved(mq: psycopg.Connection):
    """Section 5: cancelled is final until subscribed anew."""
    push(mq, "q", 1)
    take(mq, "q")
    call(mq, "cancel", group_name="g", queue="q")
    for lane in ({}, {"partition": "Default"}):
        with refused("SK007", "cancelled"):
            seek(mq, "beginning", **lane)


def test_all_queues_of_a_group(mq: psycopg.Connection):
    """S7: those it has met, is subscribed to, or will find by its namespace; nobody else's, and none that it left."""
    for queue in ("met", "left", "others"):
        push(mq, queue, 0, 1)
    take(mq, "met")
    take(mq, "left")
    take(mq, "others", "h")
    call(mq, "cancel", group_name="g", queue="left")
    call(mq, "subscribe", group_name="g", queue="to come")
    call(mq, "subscribe", group_name="g", namespace="n")
    assert call(mq, "seek", group_name="g", queue=None, position="1")[0][0] == 1
    call(mq, "configure_queue", queue="born", namespace="n")
    for queue in ("to come", "born"):
        push(mq, queue, 0, 1)
    assert [take(mq, queue) for queue in ("met", "to come", "born")] == [[1], [1], [1]]
    assert (lag(mq, "h"), broken(mq)) == ({"Default": 0}, {})
