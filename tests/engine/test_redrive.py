"""Dead letters that come back, or go for good."""

import threading
from collections.abc import Callable

import psycopg
import pytest

from tests.engine.verbs import Row, broken, call, configure, drain, lag, pass_time, pop, push, refused, take

Q = "orders"


@pytest.fixture
def letters(mq: psycopg.Connection) -> list[Row]:
    """Two groups have given up messages 0 to 2 of a lane, with two kinds of error."""
    configure(mq, Q, retry_limit=0)
    push(mq, Q, *range(3), partition="p")
    for group in ("a", "b"):
        for message in pop(mq, Q, group):
            call(mq, "fail", lease=message.lease, id=message.id, error=f"Error {message.offset % 2}")
    return call(mq, "list_dead_letters")


def test_to_the_same_group_only(mq: psycopg.Connection, letters: list[Row]):
    """99: in order, with where it comes from; the other group sees nothing of it."""
    driven = call(mq, "redrive", group_name="a")
    assert len(driven) == 3
    assert pop(mq, Q, "b", partitions=10) == []
    assert lag(mq, "b") == {"p": 0}
    again = drain(mq, Q, "a", partitions=10)
    assert [row.payload for row in again] == [0, 1, 2]
    assert [row.id for row in again] == [row.message_id for row in driven]
    assert again[0].headers["skep-redriven"] == {"queue": Q, "partition": "p", "offset": 0, "error": "Error 0"}
    assert {row.group_name for row in call(mq, "list_dead_letters")} == {"b"}
    call(mq, "subscribe", group_name="later", queue=Q)
    assert [row.partition for row in drain(mq, Q, "later", partitions=10)] == ["p"] * 3
    assert broken(mq) == {}


def test_to_a_queue(mq: psycopg.Connection, letters: list[Row]):
    """47: as new messages, for everyone who reads it."""
    call(mq, "redrive", group_name="a", to_queue="second chance")
    assert take(mq, "second chance", "x") == take(mq, "second chance", "y") == [0, 1, 2]


def test_filters_and_dry_run(mq: psycopg.Connection, letters: list[Row]):
    newest = max(row.id for row in letters)
    assert len(call(mq, "redrive", error="error 1", dry_run=True)) == 2
    assert [row.dead_letter_id for row in call(mq, "redrive", ids=[newest], dry_run=True)] == [newest]
    assert len(call(mq, "redrive", max_rows=4, dry_run=True)) == 4
    assert call(mq, "redrive", queue="other", dry_run=True) == []
    assert len(call(mq, "list_dead_letters")) == 6
    pass_time(mq, 100)
    since = mq.execute("SELECT now() - interval '1 minute'").fetchone()
    assert call(mq, "list_dead_letters", failed_after=since and since[0]) == []
    counts = {(row.group_name, row.error): row.letters for row in call(mq, "count_dead_letters")}
    assert counts == {("a", "Error 0"): 2, ("a", "Error 1"): 1, ("b", "Error 0"): 2, ("b", "Error 1"): 1}


def test_once_under_concurrency(
    mq: psycopg.Connection, letters: list[Row], connect_module: Callable[[], psycopg.Connection]
):
    """47: eight at once drive each letter once."""
    driven: list[int] = []

    def drive(connection: psycopg.Connection) -> None:
        while rows := call(connection, "redrive", max_rows=1):
            driven.extend(row.dead_letter_id for row in rows)

    threads = [threading.Thread(target=drive, args=[connect_module()]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(driven) == sorted(row.id for row in letters)
    assert len(drain(mq, Q, "a", partitions=10)) == len(drain(mq, Q, "b", partitions=10)) == 3


def test_a_redrive_that_is_rolled_back(mq: psycopg.Connection, letters: list[Row]):
    with mq.transaction(force_rollback=True):
        assert len(call(mq, "redrive")) == 6
    assert call(mq, "list_dead_letters") == letters
    assert pop(mq, Q, "a", partitions=10) == []


def test_purge(mq: psycopg.Connection, letters: list[Row]):
    assert call(mq, "purge_dead_letters", group_name="a", dry_run=True)[0].purge_dead_letters == 3
    assert call(mq, "purge_dead_letters", group_name="a", done_by="ann")[0].purge_dead_letters == 3
    call(mq, "redrive", done_by="bob")
    audit = mq.execute(
        "SELECT action, group_name, done_by, count(*) FROM skep.dead_letter_audit GROUP BY 1, 2, 3"
    ).fetchall()
    assert sorted(audit) == [("purged", "a", "ann", 3), ("redriven", "b", "bob", 3)]
    assert call(mq, "list_dead_letters") == []


def test_a_lane_of_that_name_is_not_taken_over(mq: psycopg.Connection, letters: list[Row]):
    push(mq, Q, "mine", partition="p (redriven for a)")
    with refused("SK007", "in use"):
        call(mq, "redrive", group_name="a")
    assert len(call(mq, "list_dead_letters")) == 6


def test_failing_again(mq: psycopg.Connection, letters: list[Row]):
    """43, 98: it ends in the dead letters again, and can be driven again."""
    for _ in range(3):
        assert len(call(mq, "redrive", group_name="a")) == 3
        for message in pop(mq, Q, "a", partitions=10):
            call(mq, "fail", lease=message.lease, id=message.id, error="again")
        assert len(call(mq, "list_dead_letters", group_name="a")) == 3
    assert broken(mq) == {}


def test_with_another_payload(mq: psycopg.Connection, letters: list[Row]):
    """The copy says that it was edited; the seal of the old payload goes with it."""
    first, second, *_ = sorted(letters, key=lambda row: row.id)
    mq.execute('UPDATE skep.dead_letters SET headers = \'{"kept": 1, "skep-sealed": {}}\'')
    call(mq, "redrive", ids=[first.id], payload='{"n": 12345678901234567890}', headers='{"added": 2}')
    call(mq, "redrive", ids=[second.id])
    edited, untouched = drain(mq, Q, "a", partitions=10)
    assert (edited.payload, edited.headers["kept"], edited.headers["added"]) == ({"n": 12345678901234567890}, 1, 2)
    assert edited.headers["skep-redriven"]["edited"] is True
    assert "skep-sealed" not in edited.headers
    assert (untouched.payload, "edited" in untouched.headers["skep-redriven"]) == (1, False)
    assert "skep-sealed" in untouched.headers


@pytest.mark.parametrize("named", [{}, {"ids": []}, {"ids": [1, 2]}, {"queue": Q}])
def test_a_payload_is_for_one(mq: psycopg.Connection, letters: list[Row], named: dict[str, object]):
    with refused("SK001", "one dead letter"):
        call(mq, "redrive", payload="1", **named)
    assert len(call(mq, "list_dead_letters")) == 6


@pytest.mark.parametrize("start", ["seek", "subscribe"])
def test_an_offset_of_the_queue_is_none_among_letters(mq: psycopg.Connection, start: str):
    """99: whoever was told to start at offset 2 gets dead letters again all the same."""
    configure(mq, Q, retry_limit=0)
    push(mq, Q, *range(4), partition="p")
    if start == "seek":
        call(mq, "seek", group_name="a", queue=Q, position="2")
    else:
        call(mq, "subscribe", group_name="a", queue=Q, start_from="2")
    for message in pop(mq, Q, "a"):
        call(mq, "fail", lease=message.lease, id=message.id, error="no")
    call(mq, "redrive")
    assert [row.payload for row in drain(mq, Q, "a")] == [2, 3]
    call(mq, "seek", group_name="a", queue=Q, position="3")
    assert [row.payload for row in drain(mq, Q, "a")] == [3], "and is not given them once more"


def test_who_pops_one_partition_gets_its_letters(mq: psycopg.Connection):
    """99: also a group that has nothing but this partition; what it is owed is kept for it."""
    configure(mq, Q, retry_limit=0, zero_subscriber_retention_seconds=1, completed_retention_seconds=1)
    push(mq, Q, 0, partition="p")
    (message,) = pop(mq, Q, "a", partition="p")
    call(mq, "fail", lease=message.lease, id=message.id, error="no")
    for _ in range(2):  # it fails once more, and comes again in the same lane
        call(mq, "redrive")
        pass_time(mq, 60)
        call(mq, "retain")
        assert lag(mq, "a")["p (redriven for a)"] == 1
        push(mq, Q, 1, partition="p")
        assert pop(mq, Q, "a", partition="elsewhere") == []
        (again,) = pop(mq, Q, "a", partition="p")
        assert (again.payload, again.partition) == (0, "p (redriven for a)")
        assert take(mq, Q, "a", partition="p") == [1], "one that is out does not hide what is there"
        call(mq, "fail", lease=again.lease, id=again.id, error="no")
    assert broken(mq) == {}
