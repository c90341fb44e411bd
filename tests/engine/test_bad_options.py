"""Options of a queue: what is accepted works, what is not is refused by name, and nothing changes."""

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.verbs import call, configure, drain, push

OPTIONS = "SELECT * FROM skep.queues"
NUMBERS = [
    "lease_time", "retry_delay", "delayed_processing", "window_buffer", "dedup_window",
    "retention_seconds", "completed_retention_seconds", "zero_subscriber_retention_seconds",
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
    """For a queue that exists and for one that does not: neither changes."""
    configure(mq, "q", priority=7)
    before = mq.execute(OPTIONS).fetchall()
    for queue in ("q", "new"):
        with pytest.raises(psycopg.Error) as caught:
            configure(mq, queue, **{option: value})
        told = f"{caught.value.diag.message_primary} {caught.value.diag.message_hint}"
        assert caught.value.sqlstate == "SK001"
        assert f'"{queue}"' in told
        assert option in told
    assert mq.execute(OPTIONS).fetchall() == before


@pytest.mark.parametrize("unknown", ["lease_tyme", "name", "id", "created_at", "namespace", "LEASE_TIME", ""])
def test_an_unknown_option_is_refused(mq: psycopg.Connection, unknown: str):
    with pytest.raises(psycopg.Error) as caught:
        configure(mq, "q", **{"priority": 1, unknown: 1})
    assert caught.value.sqlstate == "SK001"
    assert f'"{unknown}"' in (caught.value.diag.message_primary or "")
    assert "lease_time" in (caught.value.diag.message_hint or "")
    assert mq.execute(OPTIONS).fetchall() == []


@pytest.mark.parametrize("options", [[], [1], "priority", 3, None], ids=str)
def test_options_that_are_no_object_are_refused(mq: psycopg.Connection, options: object):
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


LONGEST = {
    "lease_time": 604800, "retry_delay": 86400, "window_buffer": 86400, "delayed_processing": 31536000,
    "dedup_window": 3e9, "retention_seconds": 3e9, "completed_retention_seconds": 3e9,
    "zero_subscriber_retention_seconds": 3e9,
}  # fmt: skip


@pytest.mark.parametrize("option", LONGEST)
def test_the_longest_times_that_are_accepted_work(mq: psycopg.Connection, option: str):
    """A century of deduplication or retention is a wish one may have."""
    configure(mq, "q", **{option: LONGEST[option]})
    push(mq, "q", 1, 1, transaction_ids=["t", "t"])
    assert len(drain(mq, "q")) == (0 if option in {"window_buffer", "delayed_processing"} else 1)
