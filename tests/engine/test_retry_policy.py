"""Retry policy of a group over the options of the queue; delays that a consumer asks for."""

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.answers import dead_letters, dead_offsets, one_by_one, runs, say
from tests.engine.test_retry import LONG, seconds_until_retry
from tests.engine.verbs import Row, ack, broken, call, configure, pass_time, pop, push, refused

Q = "orders.mail"
POLICY = ("retry_limit", "retry_delay", "max_retry_delay", "retry_jitter")


def configure_group(connection: psycopg.Connection, group: str = "g", **arguments: Any) -> list[Row]:
    scope = {name: arguments.pop(name) for name in ("queue", "namespace", "task") if name in arguments}
    return call(connection, "configure_group", group_name=group, options=Jsonb(arguments), **scope)


def deliveries_until_dead(connection: psycopg.Connection, group: str = "g", **options: Any) -> int:
    """Fail one message until it is a dead letter; return how often it was delivered."""
    count = 0
    while batch := pop(connection, Q, group, **options):
        one_by_one(connection, batch, "f" * len(batch))
        count += 1
    return count


def test_a_group_has_its_own_limit(mq: psycopg.Connection):
    configure(mq, Q, retry_limit=1, retry_delay=0)
    push(mq, Q, 0)
    call(mq, "subscribe", group_name="patient", queue=Q, retry_limit=4)
    assert deliveries_until_dead(mq, "patient") == 5
    assert deliveries_until_dead(mq, "plain") == 2
    assert [(row.group_name, row.attempts) for row in dead_letters(mq, Q)] == [("patient", 5), ("plain", 2)]


def test_a_group_has_its_own_delay(conn: psycopg.Connection):
    """Doubled up to its own maximum, without jitter if it wants none."""
    configure(conn, Q, retry_delay=LONG, retry_limit=100)
    call(conn, "subscribe", group_name="g", queue=Q, retry_delay=10, max_retry_delay=35, retry_jitter=0)
    push(conn, Q, 0)
    for delay in (10, 20, 35, 35):
        one_by_one(conn, pop(conn, Q), "f")
        assert delay - 0.4 <= seconds_until_retry(conn) <= delay
        pass_time(conn, delay)


def test_the_options_of_the_queue_are_the_default(conn: psycopg.Connection):
    configure(conn, Q, retry_delay=10, max_retry_delay=15, retry_jitter=0)
    call(conn, "subscribe", group_name="g", queue=Q, retry_limit=100)
    push(conn, Q, 0)
    for delay in (10, 15, 15):
        one_by_one(conn, pop(conn, Q), "f")
        assert delay - 0.4 <= seconds_until_retry(conn) <= delay
        pass_time(conn, delay)


def test_jitter_is_a_share_of_the_delay(conn: psycopg.Connection):
    configure(conn, Q, retry_delay=1000, retry_jitter=1)
    for lane in range(60):
        push(conn, Q, lane, partition=f"lane {lane}")
    while batch := pop(conn, Q):
        one_by_one(conn, batch, "f")
    query = "SELECT extract(epoch FROM ready_at - clock_timestamp())::float FROM skep.runs"
    waits = [wait for (wait,) in conn.execute(query).fetchall()]
    assert -5 <= min(waits) < 300  # a quarter would be 750 at least
    assert 1700 < max(waits) <= 2000


def test_the_most_specific_subscription_that_says_so_decides(mq: psycopg.Connection):
    """Option by option: partition, queue, namespace, queue option."""
    configure(mq, Q, retry_limit=9, retry_delay=0)
    call(mq, "subscribe", group_name="g", namespace="orders", retry_limit=3)
    for lane in ("a", "b"):
        push(mq, Q, lane, partition=lane)
    call(mq, "subscribe", group_name="g", queue=Q, partition="a", retry_limit=1)
    assert deliveries_until_dead(mq, partition="a") == 2
    assert deliveries_until_dead(mq, partition="b") == 4
    configure_group(mq, queue=Q, retry_limit=0)
    push(mq, Q, "b", partition="b")
    assert deliveries_until_dead(mq, partition="b") == 1
    configure_group(mq, queue=Q, retry_limit=None)
    configure_group(mq, namespace="orders", retry_limit=2)
    push(mq, Q, "b", partition="b")
    assert deliveries_until_dead(mq, partition="b") == 3


def test_the_policy_of_a_work_queue_is_that_of_its_one_group(mq: psycopg.Connection):
    configure(mq, Q, semantics="queue", retry_limit=9, retry_delay=0)
    call(mq, "subscribe", group_name="anyone", queue=Q, retry_limit=0)
    push(mq, Q, 0)
    assert deliveries_until_dead(mq, "someone else") == 1


def test_a_policy_is_changed_later(mq: psycopg.Connection):
    """Only the options that are given; null is the queue's again."""
    configure(mq, Q, retry_limit=1, retry_delay=0)
    call(mq, "subscribe", group_name="g", queue=Q, retry_limit=7, retry_jitter=0.5)
    (changed,) = configure_group(mq, queue=Q, retry_limit=2, retry_delay=0.5)
    assert [getattr(changed, name) for name in POLICY] == [2, 0.5, None, 0.5]
    configure_group(mq, retry_delay=0)
    push(mq, Q, 0)
    assert deliveries_until_dead(mq) == 3
    (changed,) = configure_group(mq, queue=Q, retry_limit=None)
    assert [getattr(changed, name) for name in POLICY] == [None, 0, None, 0.5]
    push(mq, Q, 1)
    assert deliveries_until_dead(mq) == 2


def test_a_stored_policy_stays(mq: psycopg.Connection):
    """As the start does: by a second subscribe, a pop, a pause and a seek."""
    call(mq, "subscribe", group_name="g", queue=Q, retry_limit=7)
    assert call(mq, "subscribe", group_name="g", queue=Q, retry_limit=1)[0].retry_limit == 7
    push(mq, Q, 0)
    ack(mq, pop(mq, Q))
    call(mq, "pause", group_name="g", queue=Q)
    call(mq, "resume", group_name="g", queue=Q)
    call(mq, "seek", group_name="g", queue=Q, position="beginning")
    assert mq.execute("SELECT retry_limit FROM skep.subscriptions").fetchall() == [(7,)]


@pytest.mark.parametrize("how", ["pause", "seek"])
def test_a_narrower_subscription_follows_the_wider_one(mq: psycopg.Connection, how: str):
    """Pausing or seeking one queue of a namespace stores a subscription for it, which has no policy of its own."""
    configure(mq, Q, retry_delay=0)
    call(mq, "subscribe", group_name="g", namespace="orders", retry_limit=5)
    if how == "pause":
        call(mq, "pause", group_name="g", queue=Q)
        call(mq, "resume", group_name="g", queue=Q)
    else:
        call(mq, "seek", group_name="g", queue=Q, position="beginning")
    configure_group(mq, namespace="orders", retry_limit=1)
    push(mq, Q, 0)
    assert deliveries_until_dead(mq) == 2


@pytest.mark.parametrize(("option", "value", "words"), [
    ("retry_limit", -1, "retry_limit must be at least 0, got -1"),
    ("retry_delay", 86_401, "retry_delay must be between 0 and 86400, got 86401"),
    ("max_retry_delay", 604_801, "max_retry_delay must be between 0 and 604800, got 604801"),
    ("retry_jitter", 1.5, "retry_jitter must be between 0 and 1, got 1.5"),
])  # fmt: skip
def test_a_wrong_policy_is_refused(mq: psycopg.Connection, option: str, value: Any, words: str):
    with refused("SK001", f'group "g": {words}'):
        call(mq, "subscribe", group_name="g", queue=Q, **{option: value})
    call(mq, "subscribe", group_name="g", queue=Q)
    with refused("SK001", f'group "g": {words}'):
        configure_group(mq, queue=Q, **{option: value})
    with refused("SK001", f'group "g": invalid {option}: "many"'):
        configure_group(mq, queue=Q, **{option: "many"})
    stored = mq.execute("SELECT retry_limit, retry_delay, max_retry_delay, retry_jitter FROM skep.subscriptions")
    assert stored.fetchall() == [(None, None, None, None)]


def test_options_that_no_group_has_are_refused(mq: psycopg.Connection):
    call(mq, "subscribe", group_name="g", queue=Q)
    with refused("SK001", 'unknown group option "lease_time"'):
        configure_group(mq, queue=Q, lease_time=5)
    with refused("SK001", "options must be a JSON object, got a JSON array"):
        call(mq, "configure_group", group_name="g", options=Jsonb([1]))
    with refused("SK002", 'group "nobody" has no subscription'):
        configure_group(mq, "nobody", retry_limit=1)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_release_with_a_delay(mq: psycopg.Connection, concurrency: int):
    """It comes again after the delay, at the same attempt."""
    configure(mq, Q, concurrency=concurrency)
    push(mq, Q, *range(3))
    call(mq, "release", lease=pop(mq, Q)[0].lease, delay=100)
    assert (pop(mq, Q), pop(mq, Q, partition="Default")) == ([], [])
    pass_time(mq, 99)
    assert pop(mq, Q) == []
    pass_time(mq, 2)
    assert runs(mq, Q) == [([0, 1, 2], 1)]
    assert broken(mq) == {}


def test_release_all_with_a_delay(mq: psycopg.Connection):
    for lane in "ab":
        push(mq, Q, lane, partition=lane)
    leases = [message.lease for message in pop(mq, Q, partitions=2)]
    call(mq, "release_all", leases=leases, delay=100)
    assert pop(mq, Q) == []
    pass_time(mq, 101)
    assert len(runs(mq, Q)) == 2


def test_a_message_that_is_pushed_does_not_end_a_delay(mq: psycopg.Connection):
    push(mq, Q, 0)
    call(mq, "release", lease=pop(mq, Q)[0].lease, delay=100)
    push(mq, Q, 1)
    configure(mq, Q, delayed_processing=0.001)
    configure(mq, Q, delayed_processing=0)
    assert pop(mq, Q) == []
    pass_time(mq, 101)
    assert runs(mq, Q) == [([0], 1), ([1], 1)]


def test_a_release_of_nothing_holds_nothing_up(mq: psycopg.Connection):
    """What was leased is deleted meanwhile: messages behind it do not wait."""
    push(mq, Q, *range(2))
    (message,) = pop(mq, Q, batch=1)
    call(mq, "delete_message", id=message.id)
    call(mq, "release", lease=message.lease, delay=100)
    assert runs(mq, Q) == [([1], 1)]


@pytest.mark.parametrize("by_id", [False, True])
def test_fail_with_retry_after(conn: psycopg.Connection, *, by_id: bool):
    """The delay that is asked for, instead of the computed one; the attempt counts."""
    configure(conn, Q, retry_delay=1, retry_limit=1)
    push(conn, Q, 0)
    for attempt in (1, 2):
        (message,) = pop(conn, Q)
        assert message.attempt == attempt
        call(conn, "fail", lease=message.lease, error="busy", id=message.id if by_id else None, retry_after=500)
        if attempt == 1:
            assert 499 < seconds_until_retry(conn) <= 500
        pass_time(conn, 500)
    assert dead_offsets(conn, Q) == [0]


def test_fail_all_with_retry_after(mq: psycopg.Connection):
    for lane in "ab":
        push(mq, Q, lane, partition=lane)
    leases = [message.lease for message in pop(mq, Q, partitions=2)]
    call(mq, "fail_all", leases=leases, error="busy", retry_after=100)
    pass_time(mq, 99)
    assert pop(mq, Q) == []
    pass_time(mq, 2)
    assert [attempt for _, attempt in runs(mq, Q)] == [2, 2]


def test_retry_after_zero_is_at_once(mq: psycopg.Connection):
    configure(mq, Q, retry_delay=LONG)
    push(mq, Q, 0)
    call(mq, "fail", lease=pop(mq, Q)[0].lease, error="busy", retry_after=0)
    assert runs(mq, Q) == [([0], 2)]


def test_a_failure_with_retry_after_among_completed_ones_is_retried(mq: psycopg.Connection):
    """Whoever says when to retry does not want a dead letter. The longest of several delays counts."""
    configure(mq, Q, retry_delay=LONG)
    push(mq, Q, *range(4))
    batch = pop(mq, Q)
    call(mq, "fail", lease=batch[1].lease, error="busy", id=batch[1].id, retry_after=10)
    call(mq, "fail", lease=batch[2].lease, error="busy", id=batch[2].id, retry_after=100)
    call(mq, "ack", lease=batch[0].lease)
    assert dead_offsets(mq, Q) == []
    pass_time(mq, 99)
    assert pop(mq, Q) == []
    pass_time(mq, 2)
    assert runs(mq, Q) == [([1, 2], 2)]


def test_a_failure_that_was_taken_back_leaves_no_delay(mq: psycopg.Connection):
    configure(mq, Q, retry_delay=0)
    push(mq, Q, *range(2))
    batch = pop(mq, Q)
    call(mq, "fail", lease=batch[0].lease, error="busy", id=batch[0].id, retry_after=100)
    say(mq, batch[0], "c")
    say(mq, batch[1], "f")
    assert dead_offsets(mq, Q) == [1]
    push(mq, Q, 2)
    one_by_one(mq, pop(mq, Q), "f")
    assert runs(mq, Q) == [([2], 2)]
    assert broken(mq) == {}


def test_delays_in_a_transaction(mq: psycopg.Connection):
    push(mq, Q, *range(2))
    batch = pop(mq, Q)
    call(mq, "transaction", operations=Jsonb([
        {"ack": {"lease": str(batch[0].lease), "id": str(batch[0].id)}},
        {"ack": {"lease": str(batch[1].lease), "id": str(batch[1].id), "status": "failed", "delay": 100}},
    ]))  # fmt: skip
    pass_time(mq, 99)
    assert pop(mq, Q) == []
    pass_time(mq, 2)
    assert runs(mq, Q) == [([1], 2)]


@pytest.mark.parametrize("delay", [-1, 31_536_001, "NaN", "Infinity"])
def test_a_wrong_delay_is_refused(mq: psycopg.Connection, delay: object):
    push(mq, Q, 0)
    (message,) = pop(mq, Q)
    told = f"the delay must be between 0 and 31536000 seconds, got {delay}"
    with refused("SK001", told):
        call(mq, "release", lease=message.lease, delay=float(str(delay)))
    with refused("SK001", told):
        call(mq, "fail", lease=message.lease, error="x", retry_after=float(str(delay)))
    ack(mq, [message])


@pytest.mark.parametrize("status", ["completed", "dead_letter"])
def test_only_what_comes_again_has_a_delay(mq: psycopg.Connection, status: str):
    push(mq, Q, 0)
    (message,) = pop(mq, Q)
    with refused("SK001", f'item 0: status "{status}" cannot have a delay'):
        call(mq, "ack_many", leases=[message.lease], ids=[message.id], statuses=[status], delays=[1.0])
    with refused("SK001", "the arrays of ack_many differ in length"):
        call(mq, "ack_many", leases=[message.lease], ids=[message.id], statuses=["release"], delays=[1.0, 2.0])
    assert len(ack(mq, [message]) or []) == 0
    assert pop(mq, Q) == []


def test_completed_leases_do_not_look_at_the_policy(mq: psycopg.Connection):
    """The policy is looked up for failures only: an ack of any kind works without it."""
    configure(mq, Q, lease_log_seconds=60)
    push(mq, Q, *range(3))
    with mq.transaction(force_rollback=True):
        mq.execute("DROP FUNCTION skep._retry_policy")
        first, *others = pop(mq, Q)
        say(mq, first, "c")
        ack(mq, others)
        push(mq, Q, 3)
        call(mq, "release", lease=pop(mq, Q)[0].lease)
        assert runs(mq, Q) == [([3], 1)]
        push(mq, Q, 4)
        with pytest.raises(psycopg.errors.UndefinedFunction):
            call(mq, "fail", lease=pop(mq, Q)[0].lease, error="x")
