"""The subscriptions of a group to a queue, single partitions and a namespace live, end and start together."""

from typing import Any

import psycopg
import pytest

from tests.engine.verbs import Row, broken, call, configure, lag, pass_time, pop, push, push_to, take

HOUR = 3600


def status(mq: psycopg.Connection) -> dict[tuple[str, str | None], str]:
    """Return the status of every subscription, by group and partition."""
    rows = mq.execute("SELECT group_name, partition, status FROM skep.subscriptions").fetchall()
    return {(group, partition): state for group, partition, state in rows}


def seek(mq: psycopg.Connection, position: str, partition: str | None = None) -> None:
    call(mq, "seek", group_name="g", queue="q", position=position, partition=partition)


@pytest.mark.parametrize("scope", [{"queue": "q"}, {"namespace": "n"}, {"queue": "q", "partition": "p"}])
def test_any_pop_is_a_heartbeat_for_all_subscriptions_of_the_group(mq: psycopg.Connection, scope: dict[str, Any]):
    """A group that polls and gets nothing is dead in no partition, and keeps its backlog there."""
    call(mq, "configure_queue", queue="q", namespace="n")
    configure(mq, "q", completed_retention_seconds=0.001, zero_subscriber_retention_seconds=0.001)
    call(mq, "subscribe", group_name="g", **scope)
    call(mq, "subscribe", group_name="g", queue="q", partition="other")
    for _ in range(10):
        pass_time(mq, 60)
        call(mq, "pop", group_name="g", **scope)
        call(mq, "detect_dead_groups")
    assert set(status(mq).values()) == {"ACTIVE"}
    push(mq, "q", 1, partition="other")
    pass_time(mq, 1)
    assert call(mq, "retain") == []


def test_a_group_is_revived_in_every_partition(mq: psycopg.Connection):
    push(mq, "q", 1, partition="p")
    take(mq, "q")
    seek(mq, "beginning", "p")
    pass_time(mq, HOUR)
    call(mq, "detect_dead_groups")
    assert status(mq) == {("g", None): "DEAD", ("g", "p"): "DEAD"}
    assert take(mq, "q") == [1]
    assert status(mq) == {("g", None): "ACTIVE", ("g", "p"): "ACTIVE"}


def test_a_new_subscription_starts_in_every_partition(mq: psycopg.Connection):
    """A group is cancelled until it subscribes again, and then starts at the beginning of the new subscription."""
    push_to(mq, [("q", "p", 1), ("q", "other", 2)])
    take(mq, "q", partitions=2)
    seek(mq, "end", "p")
    call(mq, "cancel", group_name="g", queue="q")
    assert set(status(mq).values()) == {"CANCELLED"}
    call(mq, "subscribe", group_name="g", queue="q")
    assert status(mq) == {("g", None): "ACTIVE"}
    assert sorted(take(mq, "q", partitions=2)) == [1, 2]
    assert broken(mq) == {}


@pytest.fixture
def jobs(mq: psycopg.Connection) -> None:
    configure(mq, "jobs", semantics="queue")


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("first", ["subscribe", "pop", "pop with a mode"])
def test_group_names_on_a_work_queue_mean_its_one_group(mq: psycopg.Connection, first: str):
    """Every message goes to exactly one consumer, whatever group name it gives; the same holds for heartbeats."""
    if first == "subscribe":
        call(mq, "subscribe", group_name="workers", queue="jobs")
    else:
        pop(mq, "jobs", "workers", subscription_mode="new" if first == "pop with a mode" else None)
    assert status(mq) == {("__QUEUE_MODE__", None): "ACTIVE"}
    push(mq, "jobs", 1)
    for verb in ("heartbeat", "pause"):
        call(mq, verb, group_name="workers", queue="jobs")
    assert take(mq, "jobs", "workers") == take(mq, "jobs", "others") == []
    call(mq, "resume", group_name="others", queue="jobs")
    assert take(mq, "jobs", "workers") == [1]
    before = ids(mq)
    pop(mq, "jobs", "workers")
    assert ids(mq) == before, "a pop does not subscribe every time"


def ids(mq: psycopg.Connection) -> list[Row]:
    return mq.execute("SELECT last_value FROM skep.subscriptions_id_seq").fetchall()


def test_a_group_from_before_the_queue_became_a_work_queue_does_not_die(mq: psycopg.Connection):
    """No consumer can send a heartbeat in its name any more."""
    call(mq, "subscribe", group_name="workers", queue="jobs")
    configure(mq, "jobs", semantics="queue")
    pass_time(mq, HOUR)
    assert call(mq, "detect_dead_groups") == []


PAUSED = {"heartbeat_interval": 7.0, "heartbeat_timeout": 70.0, "miss_threshold": 5}


@pytest.mark.parametrize("partition", [None, "p"])
def test_a_seek_moves_and_changes_nothing_else(mq: psycopg.Connection, partition: str | None):
    """A paused group stays paused, and keeps its options."""
    push(mq, "q", 1, 2, partition="p")
    call(mq, "subscribe", group_name="g", queue="q", **PAUSED)
    mq.execute("UPDATE skep.subscriptions SET conflation = true")
    call(mq, "pause", group_name="g", queue="q")
    seek(mq, "1", partition)
    options = "status, conflation, heartbeat_interval, heartbeat_timeout, miss_threshold"
    rows = mq.execute(f"SELECT DISTINCT {options} FROM skep.subscriptions").fetchall()
    assert rows == [("PAUSED", True, *PAUSED.values())]
    assert pop(mq, "q") == pop(mq, "q", partition="p") == []
    call(mq, "resume", group_name="g", queue="q")
    assert take(mq, "q") == [2]


def test_messages_after_a_seek_are_pending(mq: psycopg.Connection):
    """Also for a group whose subscription is for new messages."""
    configure(mq, "q", completed_retention_seconds=0.001)
    push(mq, "q", 1, 2)
    pass_time(mq, HOUR)
    call(mq, "subscribe", group_name="g", queue="q", mode="new")
    seek(mq, "beginning")
    assert call(mq, "retain") == []
    assert lag(mq) == {"Default": 2}
