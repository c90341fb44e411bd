"""Options of a queue: every accepted value works; a refused value is named, and nothing changes."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.verbs import call, configure, drain, pop, push, refused, take

OPTIONS = "SELECT * FROM skep.queues"
NUMBERS = [
    "lease_time", "retry_delay", "max_retry_delay", "retry_jitter", "delayed_processing", "window_buffer",
    "dedup_window",
    "retention_seconds", "completed_retention_seconds", "zero_subscriber_retention_seconds", "dead_group_grace_seconds",
    "drop_idle_seconds", "lease_log_seconds",
]  # fmt: skip
WRONG = {
    "semantics": ["topic", "QUEUE", "", 1, None],
    "partial_failure": ["ignore", None],
    "concurrency": [0, -1, 10001, "many", None, 1.5],
    "retry_limit": [-1, None, 1.5, 3_000_000_000],
    "max_payload_bytes": [0, -5, None],
    "max_size": [0, -1],
    "priority": ["high", None, {"a": 1}],
    "lease_time": [0, None, [1]],
}
PAIRS = [(option, value) for option, values in WRONG.items() for value in values]
PAIRS += [(option, value) for option in NUMBERS for value in ("NaN", "Infinity", 1e300, -1, "x")]


@pytest.mark.parametrize(("option", "value"), PAIRS, ids=str)
def test_a_wrong_value_is_refused_by_the_name_of_its_option(mq: psycopg.Connection, option: str, value: object):
    """Neither an existing queue nor a new one changes."""
    configure(mq, "q", priority=7)
    before = mq.execute(OPTIONS).fetchall()
    for queue in ("q", "new"):
        with pytest.raises(psycopg.Error) as caught:
            configure(mq, queue, **{option: value})
        message = f"{caught.value.diag.message_primary} {caught.value.diag.message_hint}"
        assert caught.value.sqlstate == "SK001"
        assert f'"{queue}"' in message
        assert option in message
    assert mq.execute(OPTIONS).fetchall() == before


UNKNOWN = ["lease_tyme", "name", "id", "created_at", "namespace", "LEASE_TIME", "was_shared", "queen_options", ""]


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_an_unknown_option_is_refused(mq: psycopg.Connection, unknown: str):
    with pytest.raises(psycopg.Error) as caught:
        configure(mq, "q", **{"priority": 1, unknown: 1})
    assert caught.value.sqlstate == "SK001"
    assert f'"{unknown}"' in (caught.value.diag.message_primary or "")
    assert "lease_time" in (caught.value.diag.message_hint or "")
    assert mq.execute(OPTIONS).fetchall() == []


@pytest.mark.parametrize("options", [[], [1], "priority", 3, None], ids=str)
def test_options_must_be_an_object(mq: psycopg.Connection, options: object):
    with pytest.raises(psycopg.Error) as caught:
        call(mq, "configure_queue", queue="q", options=Jsonb(options))
    assert caught.value.sqlstate == "SK001"
    assert mq.execute(OPTIONS).fetchall() == []


NAMES = [{"queue": None}, {"queue": ""}, {"queue": "q" * 256}, {"queue": "q", "namespace": "n" * 256},
         {"queue": "q", "task": "t" * 256}]  # fmt: skip


@pytest.mark.parametrize("arguments", NAMES)
def test_wrong_names_are_refused(mq: psycopg.Connection, arguments: dict):
    with pytest.raises(psycopg.Error) as caught:
        call(mq, "configure_queue", **arguments)
    assert caught.value.sqlstate == "SK001"
    assert mq.execute(OPTIONS).fetchall() == []


def test_one_wrong_option_changes_none(mq: psycopg.Connection):
    configure(mq, "q", priority=7)
    with pytest.raises(psycopg.Error):
        configure(mq, "q", priority=8, lease_time=-1)
    assert mq.execute("SELECT priority, lease_time FROM skep.queues").fetchall() == [(7, 300)]


def test_options_that_are_not_given_stay(mq: psycopg.Connection):
    configure(mq, "a.b", priority=7, semantics="pub_sub")
    configure(mq, "a.b", lease_time=5)
    call(mq, "configure_queue", queue="a.b", namespace="n")
    found = mq.execute("SELECT priority, semantics, lease_time, namespace, task FROM skep.queues").fetchall()
    assert found == [(7, "pub_sub", 5, "n", "b")]


OTHER: dict[str, Any] = {
    "semantics": "pub_sub", "lease_time": 5.5, "retry_limit": 7, "retry_delay": 2.5, "max_retry_delay": 60,
    "retry_jitter": 0, "delayed_processing": 1, "window_buffer": 2, "priority": -3, "max_size": 10,
    "max_payload_bytes": 1000, "dedup_window": 60,
    "partial_failure": "retry", "concurrency": 4, "retention_seconds": 86400, "completed_retention_seconds": 0,
    "zero_subscriber_retention_seconds": 3600, "dead_group_grace_seconds": 0, "block_without_subscribers": True,
    "retain_until_archived": True, "drop_idle_seconds": 7200, "encryption_enabled": True, "lease_log_seconds": 30,
}  # fmt: skip


def test_every_option_is_stored(mq: psycopg.Connection):
    """Each option alone and all together, to a value that is not the default, and back."""
    ((known,),) = mq.execute("SELECT skep._queue_options()").fetchall()
    assert set(OTHER) == set(known)
    configure(mq, "q")
    ((defaults,),) = mq.execute("SELECT to_jsonb(q) FROM skep.queues q").fetchall()
    for option, value in OTHER.items():
        assert defaults[option] != value
        for wanted in (value, defaults[option]):
            configure(mq, "q", **{option: wanted})
            ((stored,),) = mq.execute("SELECT to_jsonb(q) FROM skep.queues q").fetchall()
            assert stored == {**defaults, option: wanted, "was_shared": stored["was_shared"]}
    configure(mq, "all", **OTHER)
    ((stored,),) = mq.execute("SELECT to_jsonb(q) FROM skep.queues q WHERE name = 'all'").fetchall()
    assert {option: stored[option] for option in OTHER} == OTHER


RANGES = {
    "lease_time": (-1, "must be above 0 and at most 604800, got -1"),
    "retry_limit": (-1, "must be at least 0, got -1"),
    "retry_jitter": (1.5, "must be between 0 and 1, got 1.5"),
    "max_size": (0, "must be above 0, got 0"),
    "concurrency": (0, "must be between 1 and 10000, got 0"),
    "window_buffer": (86401, "must be between 0 and 86400, got 86401"),
    "semantics": ("topic", "must be one of queue, pub_sub, mixed, got topic"),
    "retention_seconds": ("1 day", 'must be a number, got "1 day"'),
    "priority": (3_000_000_000, "must be a whole number up to 2147483647, got 3000000000"),
    "retain_until_archived": ("maybe", 'must be true or false, got "maybe"'),
}


@pytest.mark.parametrize("option", RANGES)
def test_an_error_says_what_is_allowed(mq: psycopg.Connection, option: str):
    value, words = RANGES[option]
    with refused("SK001", f'queue "q": {option} {words}'):
        configure(mq, "q", **{option: value})


@pytest.mark.parametrize(
    ("before", "options", "concurrency"),
    [
        ({}, {"semantics": "queue"}, 64),
        ({}, {"semantics": "queue", "concurrency": 1}, 1),
        ({"concurrency": 8}, {"semantics": "queue"}, 8),
        ({"semantics": "queue"}, {"priority": 1}, 64),
        ({}, {"semantics": "pub_sub"}, 1),
    ],
)
def test_a_work_queue_is_parallel(mq: psycopg.Connection, before: dict, options: dict, concurrency: int):
    """Four workers on one partition each get messages, unless the queue limits concurrency."""
    push(mq, "q", *range(8))
    configure(mq, "q", **before)
    configure(mq, "q", **options)
    stored = mq.execute("SELECT concurrency, was_shared FROM skep.queues").fetchall()
    assert stored == [(concurrency, concurrency > 1)]
    if "semantics" in {**before, **options}:
        batches = [[row.offset for row in pop(mq, "q", f"worker {n}", batch=2)] for n in range(4)]
        shared = concurrency > 1 and options.get("semantics") != "pub_sub"
        assert not shared or batches == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_leased_partition_is_shared_as_soon_as_concurrency_is_raised(mq: psycopg.Connection):
    """The lease stays valid, and other workers get the messages after it."""
    push(mq, "q", *range(4))
    first = pop(mq, "q", batch=1)
    assert pop(mq, "q") == []
    configure(mq, "q", concurrency=2)
    assert [row.offset for row in pop(mq, "q", batch=2)] == [1, 2]
    assert pop(mq, "q") == []
    call(mq, "ack", lease=first[0].lease)
    assert take(mq, "q") == [3]


def test_a_queue_that_was_once_shared_stays_marked(mq: psycopg.Connection):
    """It may still have runs from the time when it was shared."""
    configure(mq, "q", concurrency=3)
    configure(mq, "q", concurrency=1)
    assert mq.execute("SELECT concurrency, was_shared FROM skep.queues").fetchall() == [(1, True)]


def test_a_queue_that_gets_another_namespace_is_found_there(mq: psycopg.Connection):
    push(mq, "ns.a", "a")
    push(mq, "other", "b")
    assert [row.payload for row in drain(mq, None, namespace="ns")] == ["a"]
    call(mq, "configure_queue", queue="other", namespace="ns")
    assert [row.payload for row in drain(mq, None, namespace="ns")] == ["b"]


def test_a_new_priority_applies_at_once(mq: psycopg.Connection):
    """Also to messages that already wait, for a group that reads several queues."""
    for queue in ("ns.a", "ns.b", "ns.c"):
        push(mq, queue, queue)
    assert len(take(mq, None, namespace="ns", batch=3, partitions=3)) == 3
    for queue in ("ns.a", "ns.b", "ns.c"):
        push(mq, queue, queue)
    configure(mq, "ns.b", priority=5)
    configure(mq, "ns.c", priority=9)
    assert [row.payload for row in drain(mq, None, namespace="ns", batch=1)] == ["ns.c", "ns.b", "ns.a"]


@pytest.mark.parametrize("option", ["delayed_processing", "window_buffer"])
def test_removing_a_delay_delivers_messages_at_once(mq: psycopg.Connection, option: str):
    configure(mq, "q", **{option: 3600})
    push(mq, "q", 1)
    assert pop(mq, "q") == []
    configure(mq, "q", **{option: 0})
    assert take(mq, "q") == [1]


def test_configure_does_not_wait_for_ever(mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]):
    """A consumer left its transaction open: configure fails with a retryable error and changes nothing."""
    push(mq, "ns.q", 1, 2)
    take(mq, None, namespace="ns", batch=1)
    other = connect_module()
    with other.transaction():
        assert len(pop(other, None, namespace="ns")) == 1
        with refused("55P03", '"ns.q" is locked'):
            configure(mq, "ns.q", priority=3)
    assert mq.execute("SELECT priority FROM skep.queues").fetchall() == [(0,)]
    configure(mq, "ns.q", priority=3)


LONGEST = {
    "lease_time": 604800, "retry_delay": 86400, "window_buffer": 86400, "delayed_processing": 31536000,
    "dedup_window": 3e9, "retention_seconds": 3e9, "completed_retention_seconds": 3e9,
    "zero_subscriber_retention_seconds": 3e9, "dead_group_grace_seconds": 3e9, "drop_idle_seconds": 3e9,
    "lease_log_seconds": 3e9,
}  # fmt: skip


@pytest.mark.parametrize("option", LONGEST)
def test_the_longest_times_that_are_accepted_work(mq: psycopg.Connection, option: str):
    """The deduplication window and the retention time may be a century."""
    configure(mq, "q", **{option: LONGEST[option]})
    push(mq, "q", 1, 1, transaction_ids=["t", "t"])
    assert len(drain(mq, "q")) == (0 if option in {"window_buffer", "delayed_processing"} else 1)
