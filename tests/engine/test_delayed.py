"""Delayed messages: stored apart, appended once, in order of due time, by whoever comes first."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.plans import FREEZE, assert_indexed, explained
from tests.engine.verbs import (
    Row,
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

HOUR = 3600


def delayed(connection: psycopg.Connection, payload: Any, delay: float = HOUR, queue: str = "q", **more: Any) -> Row:
    """Push one delayed message."""
    return call(connection, "push", queue=queue, payload=Jsonb(payload), delay=delay, **more)[0]


def waiting(connection: psycopg.Connection, queue: str | None = None) -> list[Any]:
    return [row.payload for row in call(connection, "list_delayed", queue=queue)]


def stored(connection: psycopg.Connection, queue: str = "q") -> list[Any]:
    return [row.payload for row in call(connection, "peek", queue=queue)]


def append(connection: psycopg.Connection, **options: Any) -> tuple[int, list[str]]:
    (row,) = call(connection, "append_delayed", **options)
    return row.messages, row.queues


def test_the_answer_has_an_id_and_a_due_time_but_no_offset(mq: psycopg.Connection):
    before = datetime.now(UTC)
    told = delayed(mq, "later", 60)
    assert (told.status, told.offset) == ("delayed", None)
    assert timedelta(seconds=59) < told.due_at - before < timedelta(seconds=70)
    (row,) = call(mq, "list_delayed")
    assert (row.id, row.queue, row.partition, row.due_at) == (told.id, "q", "Default", told.due_at)
    assert told.id.version == 4  # a message has version 8
    assert call(mq, "find_message", message=told.id) == []


def test_nobody_sees_it_before_it_is_due(mq: psycopg.Connection):
    """Neither a group, nor lag, nor the log; the queue counts it."""
    delayed(mq, "later")
    assert (take(mq, "q"), stored(mq), append(mq)) == ([], [], (0, []))
    assert lag(mq) == {"Default": 0}
    (status,) = call(mq, "queue_status", queue="q")
    assert (status.delayed, status.messages) == (1, 0)
    assert broken(mq) == {}


def test_it_is_appended_once_when_it_is_due(mq: psycopg.Connection):
    delayed(mq, "later")
    pass_time(mq, HOUR)
    assert append(mq) == (1, ["q"])
    assert append(mq) == (0, [])
    assert (waiting(mq), take(mq, "q"), take(mq, "q")) == ([], ["later"], [])
    assert (lag(mq), broken(mq)) == ({"Default": 0}, {})


def test_everything_that_was_pushed_is_in_the_message(mq: psycopg.Connection):
    trace = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
    delayed(mq, {"a": [1]}, partition="p", transaction_id="t", headers=Jsonb({"h": 1}), trace_id=trace, producer="shop")
    pass_time(mq, HOUR)
    (message,) = pop(mq, "q")
    assert (message.partition, message.payload, message.transaction_id) == ("p", {"a": [1]}, "t")
    assert (message.headers, str(message.trace_id), message.producer, message.attempt) == ({"h": 1}, trace, "shop", 1)


@pytest.mark.parametrize("appender", ["upkeep", "pop"])
def test_the_order_is_that_of_due_times_then_of_pushes(mq: psycopg.Connection, appender: str):
    """After an outage all that is due is appended in order."""
    at = datetime.now(UTC) + timedelta(minutes=10)
    for payload, minutes in [("d", 3), ("b", 1), ("e", 3), ("a", 0), ("f", 3), ("c", 2)]:
        call(mq, "push", queue="q", payload=Jsonb(payload), deliver_at=at + timedelta(minutes=minutes))
    pass_time(mq, HOUR)
    if appender == "upkeep":
        assert append(mq) == (6, ["q"])
    assert take(mq, "q") == list("abcdef")


def test_a_call_appends_no_more_than_it_is_told(mq: psycopg.Connection):
    """The rest comes in order with the next calls."""
    for number in range(7):
        delayed(mq, number, HOUR + number, partition=f"p{number % 2}")
    pass_time(mq, 2 * HOUR)
    assert [append(mq, max_rows=3)[0] for _ in range(4)] == [3, 3, 1, 0]
    deliveries = drain(mq, "q", partitions=2)
    for lane in ("p0", "p1"):
        payloads = [delivery.payload for delivery in deliveries if delivery.partition == lane]
        assert payloads == sorted(payloads)
    assert (len(deliveries), broken(mq)) == (7, {})


def test_one_queue_or_all(mq: psycopg.Connection):
    for queue in ("a", "b"):
        delayed(mq, queue, queue=queue)
    pass_time(mq, HOUR)
    assert append(mq, queue="b") == (1, ["b"])
    assert append(mq) == (1, ["a"])
    with refused("SK002", '"nowhere"'):
        append(mq, queue="nowhere")
    with refused("SK001", "max_rows must be between 1 and 100000, got 0"):
        append(mq, max_rows=0)


def test_what_is_due_already_is_stored_at_once(mq: psycopg.Connection):
    past = datetime.now(UTC) - timedelta(days=1)
    told = [delayed(mq, 1, 0), call(mq, "push", queue="q", payload=Jsonb(2), deliver_at=past)[0]]
    assert [(row.status, row.offset, row.due_at) for row in told] == [("queued", 0, None), ("queued", 1, None)]


def test_many_in_one_call(mq: psycopg.Connection):
    """Some now, some later, to several partitions and queues; the answers are in the order of the items."""
    at = datetime.now(UTC) + timedelta(hours=1)
    items = [("q", "x", 0), ("q", "x", 1), ("q", "y", 2), ("other", "x", 3)]
    told = push_to(mq, items, deliver_at=[None, at, None, at])
    assert [(row.ord, row.status, row.offset) for row in told] == [
        (1, "queued", 0),
        (2, "delayed", None),
        (3, "queued", 0),
        (4, "delayed", None),
    ]
    assert [row.due_at for row in told] == [None, at, None, at]
    assert (sorted(stored(mq)), waiting(mq, "q"), waiting(mq, "other")) == ([0, 2], [1], [3])


def test_json(mq: psycopg.Connection):
    items = [
        {"queue": "q", "payload": 1},
        {"queue": "q", "payload": 2, "delay": 60},
        {"queue": "q", "payload": 3, "deliver_at": "2090-01-31T12:00:00+02:00"},
        {"queue": "q", "payload": 4, "delay": None, "deliver_at": None},
    ]
    told = call(mq, "push", messages=Jsonb(items))
    assert [row.status for row in told] == ["queued", "delayed", "delayed", "queued"]
    assert told[2].due_at == datetime(2090, 1, 31, 10, tzinfo=UTC)
    assert (stored(mq), waiting(mq)) == ([1, 4], [2, 3])


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"delay": -1}, "delay must be between 0 and 315360000 seconds, got -1"),
        ({"delay": 1e300}, "delay must be between 0 and 315360000 seconds, got 1e+300"),
        ({"delay": "1"}, "delay must be a number of seconds, got a JSON string"),
        ({"deliver_at": "soon"}, 'deliver_at must be a time such as 2030-01-31T12:00:00Z, got "soon"'),
        ({"deliver_at": 7}, "deliver_at must be a string, got a JSON number"),
        ({"deliver_at": "infinity"}, "deliver_at must be a point in time before the year 9999, got infinity"),
        ({"delay": 1, "deliver_at": "2090-01-01"}, "delay and deliver_at are both given"),
    ],
)
@pytest.mark.parametrize("way", ["push", "push_to_outbox"])
def test_a_wrong_delay_is_refused(mq: psycopg.Connection, way: str, item: dict[str, Any], words: str):
    with refused("SK001", f"item 1: {words}"):
        call(mq, way, messages=Jsonb([{"queue": "q"}, {"queue": "q"} | item]))
    assert call(mq, "queue_status") == []


@pytest.mark.parametrize("delay", [-0.001, 315_360_001, float("nan"), float("inf")])
def test_a_single_push_with_a_wrong_delay(mq: psycopg.Connection, delay: float):
    with refused("SK001", "delay must be between"):
        delayed(mq, 1, delay)


def test_payloads_are_checked_at_push(mq: psycopg.Connection):
    configure(mq, "q", max_payload_bytes=100)
    with refused("SK004", "item 1: the payload has 202 bytes"):
        push(mq, "q", 1, "x" * 200, deliver_at=[None, datetime.now(UTC) + timedelta(hours=1)])
    with refused("SK001", "item 0: headers must be a JSON object, got a JSON array"):
        delayed(mq, 1, headers=Jsonb([]))
    configure(mq, "q", semantics="pub_sub", block_without_subscribers=True)
    with refused("SK006", '"q"'):
        delayed(mq, 1)
    assert (waiting(mq), stored(mq)) == ([], [])


def test_a_message_that_was_accepted_is_appended_whatever_the_options_are_now(mq: psycopg.Connection):
    delayed(mq, "x" * 200)
    configure(mq, "q", max_payload_bytes=100, semantics="pub_sub", block_without_subscribers=True)
    pass_time(mq, HOUR)
    assert append(mq) == (1, ["q"])


def test_a_transaction_id_that_waits_is_a_duplicate(mq: psycopg.Connection):
    """Of a delayed push and of another; it answers with the one that waits, and later with the one that is stored."""
    first = delayed(mq, "first", transaction_id="t")
    for again in (delayed(mq, "again", 1, transaction_id="t"), push(mq, "q", "now", transaction_ids=["t"])[0]):
        assert (again.status, again.offset, again.due_at) == ("duplicate", None, first.due_at)
    assert delayed(mq, "again", transaction_id="t").id == first.id
    assert delayed(mq, "elsewhere", partition="p", transaction_id="t").status == "delayed"
    pass_time(mq, HOUR)
    append(mq)
    again = delayed(mq, "again", transaction_id="t")
    assert (again.status, again.offset, again.due_at) == ("duplicate", 0, None)
    assert (stored(mq), waiting(mq)) == (["first", "elsewhere"], [])


def test_a_stored_transaction_id_is_a_duplicate_within_its_window(mq: psycopg.Connection):
    configure(mq, "q", dedup_window=60)
    push(mq, "q", "stored", transaction_ids=["t"])
    assert delayed(mq, "later", transaction_id="t").status == "duplicate"
    pass_time(mq, 61)
    told = delayed(mq, "later", transaction_id="t")
    assert told.status == "delayed"
    again = push(mq, "q", "again", transaction_ids=["t"])[0]
    assert (again.status, again.delayed_id) == ("duplicate", told.id)


def test_twins_in_one_call(mq: psycopg.Connection):
    """The first of them counts, delayed or not."""
    at = datetime.now(UTC) + timedelta(hours=1)
    told = push(mq, "q", *"abcd", transaction_ids=["t", "t", "u", "u"], deliver_at=[at, None, None, at])
    assert [row.status for row in told] == ["delayed", "duplicate", "queued", "duplicate"]
    assert (told[1].delayed_id, told[3].offset) == (told[0].delayed_id, 0)
    assert (stored(mq), waiting(mq)) == (["c"], ["a"])


def test_cancel(mq: psycopg.Connection):
    told, kept = delayed(mq, "cancelled", transaction_id="t"), delayed(mq, "kept")
    assert call(mq, "cancel_delayed", id=told.id) == [(True,)]
    assert call(mq, "cancel_delayed", id=told.id) == [(False,)]
    assert push(mq, "q", "free again", transaction_ids=["t"])[0].status == "queued"
    pass_time(mq, HOUR)
    append(mq)
    assert call(mq, "cancel_delayed", id=kept.id) == [(False,)]
    assert stored(mq) == ["free again", "kept"]


def test_lists(mq: psycopg.Connection):
    for number in range(6):
        delayed(mq, number, HOUR + number, queue=f"q{number % 2}", partition=f"p{number % 3}")
    assert waiting(mq) == list(range(6))
    assert waiting(mq, "q0") == [0, 2, 4]
    assert [row.payload for row in call(mq, "list_delayed", queue="q1", partition="p0")] == [3]
    assert [row.payload for row in call(mq, "list_delayed", queue="q1", max_rows=1)] == [1]
    assert call(mq, "list_delayed", queue="nowhere") == []


def test_clear_and_delete_cover_them(mq: psycopg.Connection):
    def fill() -> None:
        push_to(mq, [("q", "x", 1), ("q", "y", 2)])
        for partition in ("x", "y"):
            delayed(mq, partition, partition=partition)

    fill()
    assert call(mq, "clear_queue", queue="q", partition="x") == [(2,)]
    assert waiting(mq) == ["y"]
    assert call(mq, "clear_queue", queue="q") == [(2,)]
    fill()
    call(mq, "delete_partition", queue="q", partition="x")
    assert waiting(mq) == ["y"]
    call(mq, "delete_queue", queue="q")
    pass_time(mq, HOUR)
    assert (waiting(mq), append(mq), broken(mq)) == ([], (0, []), {})


def test_a_partition_in_which_one_waits_is_not_idle(mq: psycopg.Connection):
    configure(mq, "q", drop_idle_seconds=1, retention_seconds=1)
    told = delayed(mq, "later", 10 * HOUR)
    pass_time(mq, HOUR)
    assert call(mq, "drop_idle_partitions") == [(0,)]
    call(mq, "cancel_delayed", id=told.id)
    assert call(mq, "drop_idle_partitions") == [(1,)]


def test_the_check_finds_one_without_a_partition(mq: psycopg.Connection):
    delayed(mq, "later")
    mq.execute("UPDATE skep.delayed_messages SET partition_id = 99")
    assert broken(mq) == {"delayed messages belong to a partition of their queue": 1}


def test_a_clock_that_is_set_back_loses_and_doubles_nothing(mq: psycopg.Connection):
    """Before and after the append: times in a partition never decrease, and what is due is due later."""
    for payload in "ab":
        delayed(mq, payload)
    pass_time(mq, HOUR)
    push(mq, "q", "now")
    append(mq, max_rows=1)
    pass_time(mq, -HOUR)
    assert (append(mq), waiting(mq)) == ((0, []), ["b"])
    delayed(mq, "c", 10)
    pass_time(mq, HOUR + 10)
    assert append(mq) == (2, ["q"])
    assert (take(mq, "q"), broken(mq)) == (["now", "a", "c", "b"], {})


def test_a_group_that_starts_with_what_is_new(mq: psycopg.Connection):
    """A message is as new as its append."""
    delayed(mq, "later")
    call(mq, "subscribe", group_name="g", queue="q", mode="new")
    pass_time(mq, HOUR)
    append(mq)
    assert take(mq, "q") == ["later"]


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_the_outbox(mq: psycopg.Connection, isolation: str):
    """A delay counts from the publication."""
    with mq.transaction():
        mq.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
        call(mq, "push_to_outbox", messages=Jsonb([{"queue": "q", "payload": 1, "delay": 600}]))
        mq.execute("INSERT INTO skep.outbox (queue, payload, deliver_at) VALUES ('q', '2', now() + interval '1 hour')")
        mq.execute("INSERT INTO skep.outbox (queue, payload) VALUES ('q', '3')")
        assert (waiting(mq), stored(mq)) == ([], [])
    if isolation != "READ COMMITTED":
        assert [(row.messages, row.refused) for row in call(mq, "move_committed_outbox")] == [(3, 0)]
    assert (waiting(mq), stored(mq)) == ([1, 2], [3])


@pytest.mark.parametrize(
    ("columns", "values", "rule"),
    [
        ("delay", "-1", "outbox_delay_check"),
        ("deliver_at", "'infinity'", "outbox_deliver_at_check"),
        ("delay, deliver_at", "1, now()", "outbox_delay_or_deliver_at_check"),
    ],
)
def test_the_outbox_refuses_a_wrong_delay(mq: psycopg.Connection, columns: str, values: str, rule: str):
    with refused("23514", rule):
        mq.execute(f"INSERT INTO skep.outbox (queue, payload, {columns}) VALUES ('q', '1', {values})".encode())


def test_a_transaction_that_cannot_see_what_waits(
    mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]
):
    """Under REPEATABLE READ a repeat that is not visible is a conflict to try again, not a second message."""
    push(mq, "q", "first")
    other = connect_module()
    with refused("40001"), mq.transaction():
        mq.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        stored(mq)
        delayed(other, "other", transaction_id="t")
        delayed(mq, "mine", transaction_id="t")
    assert waiting(mq) == ["other"]
    with refused("SK001", "append_delayed needs READ COMMITTED"), mq.transaction():
        mq.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        append(mq)


POPS: dict[str, dict[str, Any]] = {
    "queue": {"queue": "ns.q"},
    "partition": {"queue": "ns.q", "partition": "p"},
    "namespace": {"queue": None, "namespace": "ns"},
    "two partitions": {"queue": "ns.q", "partitions": 2},
}


@pytest.mark.parametrize("how", POPS)
@pytest.mark.parametrize("known", [True, False])
def test_a_pop_appends_what_is_due(mq: psycopg.Connection, how: str, *, known: bool):
    """Of a group that knows the partition and of one that does not."""
    options = POPS[how]
    if known:
        push(mq, "ns.q", "first", partition="p")
        assert take(mq, **options) == ["first"]
    delayed(mq, "later", queue="ns.q", partition="p")
    assert take(mq, **options) == []
    pass_time(mq, HOUR)
    assert take(mq, **options) == ["later"]
    assert (waiting(mq), broken(mq)) == ([], {})


def test_a_pop_of_shared_partitions_appends_what_is_due(mq: psycopg.Connection):
    configure(mq, "q", semantics="queue")
    delayed(mq, "later")
    pass_time(mq, HOUR)
    assert take(mq, "q") == ["later"]


def test_a_pop_whose_transaction_goes_on_appends_nothing(
    mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]
):
    """It would hold up pushes to the partition until it ends."""
    delayed(mq, "later")
    pass_time(mq, HOUR)
    other = connect_module()
    with other.transaction():
        other.execute("SELECT 1")
        assert pop(other, "q") == []
        assert push(mq, "q", "now")[0].status == "queued"
    assert waiting(mq) == ["later"]


def test_a_pop_from_psql_appends_what_is_due(module_database_url: str, mq: psycopg.Connection):
    """It need not say that its transaction ends: its first statement is taken for the only one."""
    delayed(mq, "later")
    pass_time(mq, HOUR)
    with psycopg.connect(module_database_url, autocommit=True, cursor_factory=psycopg.ClientCursor) as psql:
        assert psql.execute("SELECT payload FROM skep.pop('q')").fetchall() == [("later",)]


def test_the_server_asks_for_queues_in_which_something_is_due(mq: psycopg.Connection):
    delayed(mq, "later")
    assert (take(mq, "q"), take(mq, "q")) == ([], [])
    assert call(mq, "_has_work", queues=["q"], groups=["g"]) == [([False],)]
    pass_time(mq, HOUR)
    mq.execute("UPDATE skep.discoveries SET discovered_at = clock_timestamp()")
    assert call(mq, "_has_work", queues=["q"], groups=["g"]) == [([True],)]


def test_others_are_woken_when_a_pop_appends(mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]):
    listener = connect_module()
    listener.execute("LISTEN skep")
    delayed(mq, "later")
    pass_time(mq, HOUR)
    take(mq, "q")
    assert [note.payload for note in listener.notifies(timeout=5, stop_after=1)] == ['{"origin": "", "queues": ["q"]}']
    take(mq, "q")
    assert [note.payload for note in listener.notifies(timeout=0.1)] == []


@pytest.fixture(scope="module", params=["never_analyzed", "analyzed"])
def big(module_database_url: str, request: pytest.FixtureRequest):
    """Many that wait and some that are due, in many partitions."""
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        connection.execute(FREEZE)
        at = datetime.now(UTC) + timedelta(hours=1)
        items = [("big", f"p{n % 500}", n) for n in range(5_000)]
        ids = [f"{request.param} {n}" for n in range(5_000)]
        push_to(connection, items, deliver_at=[at + timedelta(seconds=n) for n in range(5_000)], transaction_ids=ids)
        if request.param == "analyzed":
            connection.execute("ANALYZE")
        connection.execute("UPDATE skep.delayed_messages SET due_at = due_at - interval '90 minutes' WHERE seq % 5 = 0")
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection


DUE = {"delayed_messages_partition", "partitions_pkey", "messages_pkey", "partition_floors_pkey"}


def test_every_query_goes_by_its_index(big: psycopg.Connection):
    one = lambda: call(big, "append_delayed", queue="big", max_rows=100)  # noqa: E731
    every = lambda: call(big, "append_delayed", max_rows=100)  # noqa: E731
    assert_indexed(explained(big, one), *DUE, "delayed_messages_queue")
    assert_indexed(explained(big, every), *DUE, "delayed_messages_due")
    assert_indexed(explained(big, lambda: take(big, "big", "fresh")), "delayed_messages_queue")
    assert_indexed(explained(big, lambda: call(big, "list_delayed", queue="big")), "delayed_messages_queue")
    (last,) = call(big, "list_delayed", queue="big", max_rows=1)
    assert_indexed(explained(big, lambda: call(big, "cancel_delayed", id=last.id)), "delayed_messages_pkey")
    item = lambda: push(big, "big", 1, transaction_ids=["once"])  # noqa: E731
    assert_indexed(explained(big, item), "delayed_messages_transaction_id", "messages_transaction_id")


def test_a_call_has_the_same_number_of_statements_for_any_number_of_messages(big: psycopg.Connection):
    few = explained(big, lambda: append(big, max_rows=2))
    many = explained(big, lambda: append(big, max_rows=200))
    assert [plan.query for plan in many] == [plan.query for plan in few]
