"""Seek: in known and unknown partitions, in existing and future queues; it ends leases, and counts what it skips."""

from collections.abc import Callable

import psycopg
import pytest

from tests.engine.threads import at_once
from tests.engine.verbs import (
    Row,
    ack,
    broken,
    call,
    configure,
    drain,
    lag,
    pass_time,
    pop,
    push,
    push_to,
    refused,
    take,
)


def move(
    connection: psycopg.Connection, position: str, queue: str | None = "q", group: str = "g", **partition: str
) -> Row:
    """Seek, and return (partitions, skipped, again)."""
    (moved,) = call(connection, "seek", group_name=group, queue=queue, position=position, **partition)
    return moved


def seek(connection: psycopg.Connection, position: str, queue: str = "q", group: str = "g", **partition: str) -> int:
    return move(connection, position, queue, group, **partition).partitions


def minute_by_minute(connection: psycopg.Connection, partitions: list[str]) -> list[str]:
    """Push four messages a minute apart to each partition; return a time before each of them."""
    for number in range(4):
        push_to(connection, [("q", partition, number) for partition in partitions])
        pass_time(connection, 60)
    times = connection.execute("SELECT DISTINCT (created_at - interval '1 s')::text FROM skep.messages ORDER BY 1")
    return [time for (time,) in times.fetchall()]


def drained(connection: psycopg.Connection, group: str = "g") -> dict[str, list]:
    """Return the remaining messages, by partition."""
    found: dict[str, list] = {}
    for delivery in drain(connection, "q", group):
        found.setdefault(delivery.partition, []).append(delivery.payload)
    return found


@pytest.mark.parametrize("known", ["all", "none", "half"])
@pytest.mark.parametrize(("position", "first"), [("beginning", 0), ("end", 4), ("2", 2), ("time", 3), ("Beginning", 0)])
def test_seek_moves_every_partition(mq: psycopg.Connection, position: str, first: int, known: str):
    """All partitions start at the position, whether the group has drained or never read them (scenario S7)."""
    times = minute_by_minute(mq, ["a", "b"])
    if known == "all":
        drain(mq, "q")
    elif known == "half":
        take(mq, "q", partition="a")
    assert seek(mq, times[3] if position == "time" else position) == 2
    assert lag(mq) == {"a": 4 - first, "b": 4 - first}
    push_to(mq, [("q", partition, "next") for partition in "abc"])
    rest = [*range(first, 4), "next"]
    assert drained(mq) == {"a": rest, "b": rest, "c": ["next"]}
    assert broken(mq) == {}


def test_partitions_that_are_created_later_start_at_their_beginning(mq: psycopg.Connection):
    """An offset applies to existing partitions: the first messages of a new one are not skipped."""
    push(mq, "q", *range(4), partition="a")
    seek(mq, "2")
    push(mq, "q", *range(4), partition="later")
    assert drained(mq) == {"a": [2, 3], "later": [0, 1, 2, 3]}


@pytest.mark.parametrize("position", ["beginning", "end", "1"])
def test_a_queue_that_does_not_exist(mq: psycopg.Connection, position: str):
    """The seek is stored for the queue, as a subscription is; the end of an empty queue is before its first message."""
    assert move(mq, position) == (0, 0, 0)
    pass_time(mq, 600)
    push(mq, "q", "a", "b")
    pass_time(mq, 600)
    assert take(mq, "q") == ["a", "b"]


@pytest.mark.parametrize("position", ["beginning", "end", "1"])
def test_a_partition_that_does_not_exist(mq: psycopg.Connection, position: str):
    push(mq, "q", "x", partition="other")
    assert seek(mq, position, partition="p") == 0
    push(mq, "q", *range(3), partition="p")
    assert drained(mq) == {"p": [0, 1, 2], "other": ["x"]}


@pytest.mark.parametrize("mode", ["new", "all"])
def test_a_stored_mode_does_not_undo_a_seek(mq: psycopg.Connection, mode: str):
    """Neither the group's first subscription nor the mode that its consumers send later (scenario S7)."""
    minute_by_minute(mq, ["a", "b"])
    take(mq, "q", partition="a", subscription_mode=mode)
    take(mq, "q", subscription_mode=mode, batch=1)
    seek(mq, "1")
    push(mq, "q", "x", "y", partition="c")
    found = {}
    while deliveries := pop(mq, "q", subscription_mode=mode):
        ack(mq, deliveries)
        found[deliveries[0].partition] = [delivery.payload for delivery in deliveries]
    assert found == {"a": [1, 2, 3], "b": [1, 2, 3], "c": ["x", "y"]}


def test_a_namespace_subscription_does_not_undo_a_seek(mq: psycopg.Connection):
    """The seek of a queue is more specific than the group's namespace (scenarios S6, S7)."""
    push(mq, "ns.q", *range(4))
    push(mq, "ns.other", "other")
    pass_time(mq, 3600)
    assert take(mq, None, namespace="ns", subscription_mode="new") == []
    seek(mq, "beginning", queue="ns.q")
    assert take(mq, None, namespace="ns") == [0, 1, 2, 3]
    assert take(mq, None, namespace="ns") == []


def test_one_partition_only(mq: psycopg.Connection):
    """The other partitions of the group, and the other groups, do not move (scenario S7)."""
    minute_by_minute(mq, ["a", "b"])
    drain(mq, "q")
    drain(mq, "q", "other")
    assert seek(mq, "2", partition="b") == 1
    assert (lag(mq), lag(mq, "other")) == ({"a": 0, "b": 2}, {"a": 0, "b": 0})
    assert drained(mq) == {"b": [2, 3]}
    seek(mq, "beginning")
    assert drained(mq) == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3]}  # the queue's seek is later than the partition's


def test_seek_ends_leases(mq: psycopg.Connection):
    """The lease id is stale at once; an ack is refused and changes nothing (scenarios S7, C5)."""
    minute_by_minute(mq, ["a"])
    leased = pop(mq, "q", batch=2)
    failed = pop(mq, "q", "failing", batch=2)
    call(mq, "fail", lease=failed[0].lease, error="oops")
    seek(mq, "1")
    seek(mq, "0", group="failing")
    for stale in ("ack", "release", "extend"):
        with refused("SK003"):
            call(mq, stale, lease=leased[0].lease)
    for stale in ("fail", "dead_letter"):
        with refused("SK003"):
            call(mq, stale, lease=leased[0].lease, error="late")
    assert (lag(mq), broken(mq)) == ({"a": 3}, {})
    again = pop(mq, "q")
    assert [(delivery.payload, delivery.attempt) for delivery in again] == [(1, 1), (2, 1), (3, 1)]
    assert [d.attempt for d in pop(mq, "q", "failing")] == [
        1,
        1,
        1,
        1,
    ]  # returned runs are forgotten too
    assert mq.execute("SELECT count(*) FROM skep.dead_letters").fetchall() == [(0,)]


def test_end_is_the_end_at_the_moment_of_the_seek(mq: psycopg.Connection):
    """By offset, not by clock: also where the partition's time is ahead of the clock (scenario S7)."""
    push(mq, "q", "a", "b")
    pass_time(mq, -3600)
    seek(mq, "end")
    assert lag(mq) == {"Default": 0}
    push(mq, "q", "c")
    assert lag(mq) == {"Default": 1}


@pytest.mark.parametrize("named", [{}, {"partition": "Default"}], ids=["queue", "partition"])
@pytest.mark.parametrize("read", [True, False])
def test_an_offset_beyond_the_end_is_the_end(mq: psycopg.Connection, named: dict[str, str], *, read: bool):
    """Messages that are pushed after the seek are never skipped."""
    push(mq, "q", "a", "b")
    if read:
        take(mq, "q", batch=1)
    call(mq, "subscribe", group_name="g", queue="q")
    assert move(mq, "4", **named) == (1, 1 if read else 2, 0)
    push(mq, "q", "c", "d")
    assert lag(mq) == {"Default": 2}
    assert take(mq, "q") == ["c", "d"]
    assert broken(mq) == {}


def processed(connection: psycopg.Connection) -> int:
    query = "SELECT sum(cursor - start_offset - skipped)::bigint FROM skep.partition_consumers"
    return connection.execute(query).fetchall()[0][0]


def test_seek_counts_skipped_and_repeated_messages(mq: psycopg.Connection):
    """Pending messages that are skipped, and completed ones that are delivered again; processed is never negative."""
    push(mq, "q", *range(10))
    take(mq, "q", batch=3)
    steps = [("5", (1, 2, 0), 3), ("5", (1, 0, 0), 3), ("9", (1, 4, 0), 3), ("8", (1, 0, 1), 2), ("end", (1, 2, 0), 2),
             ("1", (1, 0, 9), 0), ("beginning", (1, 0, 1), 0), ("end", (1, 10, 0), 0)]  # fmt: skip
    for position, counts, done in steps:
        assert (position, move(mq, position), processed(mq)) == (position, counts, done)
        assert broken(mq) == {}
    push(mq, "q", *range(10, 14))
    assert take(mq, "q", batch=3) == [10, 11, 12]
    assert processed(mq) == 3


def test_seek_counts_for_partitions_that_were_not_read(mq: psycopg.Connection):
    """It counts from the group's start. A new group skips nothing, because it had no position."""
    push_to(mq, [("q", partition, number) for partition in "ab" for number in range(4)])
    pass_time(mq, 3600)
    call(mq, "subscribe", group_name="g", queue="q", mode="new")
    push(mq, "q", 4, partition="a")
    assert move(mq, "3") == (2, 0, 2)  # one message before the start is delivered in each; none has been read
    assert move(mq, "end") == (2, 3, 0)
    assert move(mq, "2", group="fresh") == (2, 0, 0)
    assert processed(mq) == 0


@pytest.mark.parametrize("concurrency", [1, 4])
def test_seek_counts_messages_and_not_offsets(mq: psycopg.Connection, concurrency: int):
    """A completed message above the cursor is not skipped, and is repeated by a seek below it."""
    configure(mq, "q", concurrency=concurrency)
    push(mq, "q", *range(8))
    if concurrency == 1:
        batch = pop(mq, "q", batch=6)
        for message in batch[2:5]:
            call(mq, "ack", lease=message.lease, id=message.id)
    else:
        leases = [pop(mq, "q", batch=2) for _ in range(3)]
        ack(mq, leases[1])
        call(mq, "ack", lease=leases[2][0].lease, id=leases[2][0].id)
    assert move(mq, "6") == (1, 3, 0)
    assert processed(mq) == 3
    assert drained(mq) == {"Default": [6, 7]}
    if concurrency == 1:
        batch = pop(mq, "q", batch=1)
    move(mq, "0")
    batch = pop(mq, "q", batch=6)
    for message in batch[2:5]:
        call(mq, "ack", lease=message.lease, id=message.id)
    assert move(mq, "1") == (1, 1, 3)
    assert drained(mq) == {"Default": [1, 2, 3, 4, 5, 6, 7]}
    assert broken(mq) == {}


def test_closed_runs_are_forgotten(mq: psycopg.Connection):
    """With concurrency above 1, leased and returned runs are deleted with their leases."""
    configure(mq, "q", concurrency=4, retry_delay=3600)
    push(mq, "q", *range(8))
    leased = [pop(mq, "q", batch=2) for _ in range(3)]
    call(mq, "fail", lease=leased[0][0].lease, error="oops")
    assert move(mq, "2") == (1, 2, 0)
    for batch in leased:
        with refused("SK003"):
            call(mq, "ack", lease=batch[0].lease)
    assert mq.execute("SELECT first_offset, end_offset, leases FROM skep.runs").fetchall() == [(2, None, 0)]
    again = [pop(mq, "q", batch=2) for _ in range(4)]
    assert [[(m.payload, m.attempt) for m in batch] for batch in again] == [
        [(2, 1), (3, 1)], [(4, 1), (5, 1)], [(6, 1), (7, 1)], [],
    ]  # fmt: skip
    assert broken(mq) == {}


@pytest.mark.parametrize("position", ["end", "1", "5"])
def test_a_push_that_commits_later(
    mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection], position: str
):
    """A message that was pushed before the seek and committed after it is delivered, also in a new partition."""
    push(mq, "q", "a")
    slow = connect_module()
    with slow.transaction():
        push_to(slow, [("q", "Default", "b"), ("q", "new", "c"), ("q", "new", "d")])
        slow.execute("UPDATE skep.messages SET created_at = created_at - interval '1 hour'")
        slow.execute("UPDATE skep.partitions SET created_at = created_at - interval '1 hour'")
        assert move(mq, position) == (1, 0, 0)
    assert drained(mq) == {"Default": ["b"], "new": ["c", "d"]}


def test_a_transaction_that_holds_a_lease(mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]):
    """Seek and delete wait for it, five seconds at most, and then fail with a retryable error."""
    push(mq, "q", *range(4))
    take(mq, "q", batch=1)
    other, slow = connect_module(), connect_module()

    def refuse(connection: psycopg.Connection, verb: str, **arguments: str) -> None:
        with refused("55P03", 'group "g" is locked'):
            call(connection, verb, group_name="g", **arguments)

    with slow.transaction():
        pop(slow, "q", batch=1)
        at_once(lambda: refuse(mq, "seek", queue="q", position="end"), lambda: refuse(other, "delete_group"))
    assert move(mq, "end") == (1, 3, 0)


def test_seeking_back_and_forth(mq: psycopg.Connection):
    push(mq, "q", *range(10))
    assert take(mq, "q", batch=5) == [0, 1, 2, 3, 4]
    for position, expected in [("8", [8, 9]), ("2", [*range(2, 10)]), ("end", []), ("beginning", [*range(10)])]:
        seek(mq, position)
        assert take(mq, "q") == expected
    assert broken(mq) == {}


def test_seek_on_a_work_queue_moves_its_one_cursor(mq: psycopg.Connection):
    """The group name of the call does not matter."""
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


def test_a_cancelled_group_does_not_seek(mq: psycopg.Connection):
    """Cancelled is final until the group subscribes again."""
    push(mq, "q", 1)
    take(mq, "q")
    call(mq, "cancel", group_name="g", queue="q")
    for partition in ({}, {"partition": "Default"}):
        with refused("SK007", "cancelled"):
            seek(mq, "beginning", **partition)


def test_all_queues_of_a_group(mq: psycopg.Connection):
    """Queues that it has read, is subscribed to, or covers by its namespace.

    No queue of others or that it left (scenario S7).
    """
    for queue in ("known", "left", "others"):
        push(mq, queue, 0, 1)
    take(mq, "known")
    take(mq, "left")
    take(mq, "others", "h")
    call(mq, "cancel", group_name="g", queue="left")
    call(mq, "subscribe", group_name="g", queue="to come")
    call(mq, "subscribe", group_name="g", namespace="n")
    assert move(mq, "1", None) == (1, 0, 1)
    call(mq, "configure_queue", queue="created", namespace="n")
    for queue in ("to come", "created"):
        push(mq, queue, 0, 1)
    assert [take(mq, queue) for queue in ("known", "to come", "created")] == [[1], [0, 1], [0, 1]]
    assert (lag(mq, "h"), broken(mq)) == ({"Default": 0}, {})


def test_all_queues_of_a_namespace(mq: psycopg.Connection):
    """The namespace subscription moves, queues that it covers get no subscription of their own.

    "end" covers new ones.
    """
    push_to(mq, [("n.a", "p", 0), ("n.b", "p", 1)])
    assert sorted(take(mq, None, namespace="n", partitions=9)) == [0, 1]
    push_to(mq, [("n.a", "p", 2), ("n.a", "q", 3)])
    assert move(mq, "end", None) == (3, 2, 0)
    assert take(mq, None, namespace="n", partitions=9) == []
    push_to(mq, [("n.a", "p", 4), ("n.c", "p", 5)])
    assert sorted(d.payload for d in drain(mq, None, namespace="n", partitions=9)) == [4, 5]
    assert move(mq, "beginning", None).partitions == 4
    assert sorted(d.payload for d in drain(mq, None, namespace="n", partitions=9)) == [0, 1, 2, 3, 4, 5]
    stored = mq.execute("SELECT queue, namespace, mode FROM skep.subscriptions").fetchall()
    assert (stored, broken(mq)) == ([(None, "n", "all")], {})
