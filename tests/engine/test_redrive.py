"""Dead letters are redriven or purged."""

import threading
from collections.abc import Callable

import psycopg
import pytest

from tests.engine.verbs import Row, broken, call, configure, drain, lag, pass_time, pop, push, refused, take

Q = "orders"


@pytest.fixture
def dead_letters(mq: psycopg.Connection) -> list[Row]:
    """Two groups have dead-lettered messages 0 to 2 of a partition, with two kinds of error."""
    configure(mq, Q, retry_limit=0)
    push(mq, Q, *range(3), partition="p")
    for group in ("a", "b"):
        for message in pop(mq, Q, group):
            call(mq, "fail", lease=message.lease, id=message.id, error=f"Error {message.offset % 2}")
    return call(mq, "list_dead_letters")


def test_redrive_to_the_same_group_only(mq: psycopg.Connection, dead_letters: list[Row]):
    """In order, with the origin; the other group does not receive them (scenario 99)."""
    redriven = call(mq, "redrive", group_name="a")
    assert len(redriven) == 3
    assert pop(mq, Q, "b", partitions=10) == []
    assert lag(mq, "b") == {"p": 0}
    again = drain(mq, Q, "a", partitions=10)
    assert [row.payload for row in again] == [0, 1, 2]
    assert [row.id for row in again] == [row.message_id for row in redriven]
    assert again[0].headers["skep-redriven"] == {"queue": Q, "partition": "p", "offset": 0, "error": "Error 0"}
    assert {row.group_name for row in call(mq, "list_dead_letters")} == {"b"}
    call(mq, "subscribe", group_name="later", queue=Q)
    assert [row.partition for row in drain(mq, Q, "later", partitions=10)] == ["p"] * 3
    assert broken(mq) == {}


def test_redrive_to_a_queue(mq: psycopg.Connection, dead_letters: list[Row]):
    """As new messages, for every group that reads it (scenario 47)."""
    call(mq, "redrive", group_name="a", to_queue="second chance")
    assert take(mq, "second chance", "x") == take(mq, "second chance", "y") == [0, 1, 2]


def test_filters_and_dry_run(mq: psycopg.Connection, dead_letters: list[Row]):
    newest = max(row.id for row in dead_letters)
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


def test_concurrent_redrives_redrive_each_dead_letter_once(
    mq: psycopg.Connection, dead_letters: list[Row], connect_module: Callable[[], psycopg.Connection]
):
    """Eight at once redrive each dead letter once (scenario 47)."""
    redriven: list[int] = []

    def redrive(connection: psycopg.Connection) -> None:
        while rows := call(connection, "redrive", max_rows=1):
            redriven.extend(row.dead_letter_id for row in rows)

    threads = [threading.Thread(target=redrive, args=[connect_module()]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(redriven) == sorted(row.id for row in dead_letters)
    assert len(drain(mq, Q, "a", partitions=10)) == len(drain(mq, Q, "b", partitions=10)) == 3


def test_a_redrive_that_is_rolled_back(mq: psycopg.Connection, dead_letters: list[Row]):
    with mq.transaction(force_rollback=True):
        assert len(call(mq, "redrive")) == 6
    assert call(mq, "list_dead_letters") == dead_letters
    assert pop(mq, Q, "a", partitions=10) == []


def test_purge(mq: psycopg.Connection, dead_letters: list[Row]):
    assert call(mq, "purge_dead_letters", group_name="a", dry_run=True)[0].purge_dead_letters == 3
    assert call(mq, "purge_dead_letters", group_name="a", done_by="ann")[0].purge_dead_letters == 3
    call(mq, "redrive", done_by="bob")
    audit = mq.execute(
        "SELECT action, group_name, done_by, count(*) FROM skep.dead_letter_audit GROUP BY 1, 2, 3"
    ).fetchall()
    assert sorted(audit) == [("purged", "a", "ann", 3), ("redriven", "b", "bob", 3)]
    assert call(mq, "list_dead_letters") == []


def test_an_existing_partition_of_that_name_is_not_used(mq: psycopg.Connection, dead_letters: list[Row]):
    push(mq, Q, "mine", partition="p (redriven for a)")
    with refused("SK007", "in use"):
        call(mq, "redrive", group_name="a")
    assert len(call(mq, "list_dead_letters")) == 6


def test_a_redriven_message_that_fails_again(mq: psycopg.Connection, dead_letters: list[Row]):
    """It is dead-lettered again, and can be redriven again (scenarios 43, 98)."""
    for _ in range(3):
        assert len(call(mq, "redrive", group_name="a")) == 3
        for message in pop(mq, Q, "a", partitions=10):
            call(mq, "fail", lease=message.lease, id=message.id, error="again")
        assert len(call(mq, "list_dead_letters", group_name="a")) == 3
    assert broken(mq) == {}


def test_redrive_with_another_payload(mq: psycopg.Connection, dead_letters: list[Row]):
    """The copy is marked as edited; the seal of the old payload is removed."""
    first, second, *_ = sorted(dead_letters, key=lambda row: row.id)
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
def test_a_new_payload_is_for_one_dead_letter(
    mq: psycopg.Connection, dead_letters: list[Row], named: dict[str, object]
):
    with refused("SK001", "one dead letter"):
        call(mq, "redrive", payload="1", **named)
    assert len(call(mq, "list_dead_letters")) == 6


@pytest.mark.parametrize("start", ["seek", "subscribe"])
def test_a_start_offset_does_not_apply_to_redriven_dead_letters(mq: psycopg.Connection, start: str):
    """A group that starts at offset 2 still receives them (scenario 99)."""
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


def test_a_group_of_one_partition_gets_its_redriven_dead_letters(mq: psycopg.Connection):
    """Also if the group reads nothing but this partition; retention keeps its backlog (scenario 99)."""
    configure(mq, Q, retry_limit=0, zero_subscriber_retention_seconds=1, completed_retention_seconds=1)
    push(mq, Q, 0, partition="p")
    (message,) = pop(mq, Q, "a", partition="p")
    call(mq, "fail", lease=message.lease, id=message.id, error="no")
    for _ in range(2):  # it fails once more, and is redriven in the same partition
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
