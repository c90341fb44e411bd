"""Groups that read a namespace, while its queues are being changed by others."""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.engine.threads import until
from tests.engine.verbs import Row, broken, call, drain, pass_time, pop, push, push_to, refused, take
from tests.isolation.steps import BLOCKED

Connect = Callable[..., psycopg.Connection]
LATER = """
    UPDATE skep.discoveries
    SET discovered_at = discovered_at - interval '2 s', ready_from = ready_from - interval '2 s',
        scan_at = scan_at - interval '2 s'
"""


@pytest.fixture
def threads() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def pop_until_found(mq: psycopg.Connection, namespace: str = "n") -> list[Row]:
    """Pop a few times, over some seconds, until something arrives."""
    for _ in range(3):
        if found := take(mq, None, namespace=namespace):
            return found
        mq.execute(LATER)
    return []


@pytest.mark.parametrize("is_lost", [False, True], ids=["by_the_journal", "by_asking_all"])
def test_a_queue_whose_deletion_is_rolled_back(connect: Connect, *, is_lost: bool):
    """While the queue is locked it cannot be added to the list; its messages are found afterwards."""
    mq, other = connect(), connect()
    push(mq, "n.a", 1)
    assert take(mq, None, namespace="n") == [1]
    push(mq, "n.b", 2)
    if is_lost:
        call(mq, "prune_journal", older_than="0 s")
    with other.transaction(force_rollback=True):
        call(other, "delete_queue", queue="n.b")
        assert pop_until_found(mq) == []
        push(mq, "n.a", 3)
        assert pop_until_found(mq) == [3]  # others are served meanwhile
        assert pop_until_found(mq) == []
    assert (pop_until_found(mq), broken(mq)) == ([2], {})


def test_a_queue_that_joins_the_namespace_during_the_first_pop(connect: Connect, threads: ThreadPoolExecutor):
    """The change waits for the open first pop, because neither transaction sees the other."""
    consumer, mq, observer = connect(), connect(), connect()
    push(mq, "elsewhere.q", 1)
    consumer.execute("BEGIN")
    assert pop(consumer, None, namespace="n") == []
    moved = threads.submit(call, mq, "configure_queue", queue="elsewhere.q", namespace="n")
    until(lambda: moved.done() or observer.execute(BLOCKED, [mq.info.backend_pid]).fetchall() == [(True,)], "it hangs")
    consumer.execute("COMMIT")
    moved.result()
    assert (pop_until_found(mq), broken(mq)) == ([1], {})


def test_a_first_pop_while_a_queue_joins_the_namespace(connect: Connect):
    """The pop does not wait, and finds the queue later."""
    consumer, mq = connect(), connect()
    push(mq, "elsewhere.q", 1)
    consumer.execute("SET statement_timeout = '900ms'")
    with mq.transaction():
        call(mq, "configure_queue", queue="elsewhere.q", namespace="n")
        assert pop(consumer, None, namespace="n") == []
    assert (pop_until_found(consumer), broken(mq)) == ([1], {})


def test_an_open_first_pop_and_a_change_of_namespace(connect: Connect):
    """The change fails after some seconds with a retryable error."""
    consumer, mq = connect(), connect()
    push(mq, "elsewhere.q", 1)
    with consumer.transaction():
        pop(consumer, None, namespace="n")
        with refused("55P03", "locked"):
            call(mq, "configure_queue", queue="elsewhere.q", namespace="n")
    call(mq, "configure_queue", queue="elsewhere.q", namespace="n")
    assert pop_until_found(mq) == [1]


def test_a_second_namespace_during_the_first_pop(connect: Connect, threads: ThreadPoolExecutor):
    """One list serves both namespaces: the first pop of one must not mark the queues of the other as known."""
    consumer, mq, observer = connect(), connect(), connect()
    push(mq, "n.q", 1)
    push(mq, "other.q", 2)
    consumer.execute("BEGIN")
    assert len(pop(consumer, None, namespace="n")) == 1
    subscribed = threads.submit(call, mq, "subscribe", group_name="g", namespace="other", mode="all")
    pid = mq.info.backend_pid
    until(lambda: subscribed.done() or observer.execute(BLOCKED, [pid]).fetchall() == [(True,)], "it hangs")
    consumer.execute("COMMIT")
    subscribed.result()
    assert (pop_until_found(mq, "other"), broken(mq)) == ([2], {})


def crowd_of(mq: psycopg.Connection, namespace: str) -> None:
    """Let the group read two queues, and fill one of them: more ready partitions than a pop looks at."""
    push(mq, f"{namespace}.b", 0)
    push_to(mq, [(f"{namespace}.a", f"p{n}", n) for n in range(40)])
    drain(mq, None, namespace=namespace, partitions=100)
    assert pop_until_found(mq, namespace) == []  # all runs are drained, and leave the list
    push_to(mq, [(f"{namespace}.a", f"p{n}", n) for n in range(40)])
    for lease in {delivery.lease for delivery in pop(mq, None, namespace=namespace, partitions=100)}:
        call(mq, "release", lease=lease)
    pass_time(mq, 5)  # so that they are the first in the list


@pytest.mark.parametrize("change", ["pause", "cancel"])
def test_a_stopped_queue_does_not_hide_the_others(connect: Connect, change: str):
    mq = connect()
    crowd_of(mq, "n")
    call(mq, change, group_name="g", queue="n.a")
    push(mq, "n.b", "wanted")
    assert (pop_until_found(mq), broken(mq)) == (["wanted"], {})


def test_a_queue_that_an_open_pop_has_leased_does_not_hide_the_others(connect: Connect):
    mq, other = connect(), connect()
    crowd_of(mq, "n")
    with other.transaction(force_rollback=True):
        assert len(pop(other, None, namespace="n", partitions=40)) == 40
        push(mq, "n.b", "wanted")
        assert pop_until_found(mq) == ["wanted"]
    assert broken(mq) == {}


def test_a_queue_that_an_open_pop_has_found(connect: Connect):
    """Other pops do not wait for its row: they get messages of other queues, new ones too, and of this one later."""
    mq, other = connect(), connect()
    push(mq, "n.a", 1)
    assert take(mq, None, namespace="n") == [1]
    push(mq, "n.new", 2)
    mq.execute("SET statement_timeout = '2s'")
    with other.transaction(force_rollback=True):
        assert [delivery.payload for delivery in pop(other, None, namespace="n")] == [2]
        push(mq, "n.a", 3)
        push(mq, "n.newer", 4)
        assert sorted(pop_until_found(mq) + pop_until_found(mq)) == [3, 4]
        assert pop_until_found(mq) == []
    assert (pop_until_found(mq), broken(mq)) == ([2], {})


def test_a_queue_that_an_open_pop_has_found_by_its_name(connect: Connect):
    """Pops of the namespace wait for its row for a moment only, and find it later."""
    mq, other = connect(), connect()
    push(mq, "n.a", 1)
    assert take(mq, None, namespace="n") == [1]
    push(mq, "n.new", 2)
    mq.execute("SET statement_timeout = '2s'")
    with other.transaction(force_rollback=True):
        assert [delivery.payload for delivery in pop(other, "n.new")] == [2]
        push(mq, "n.a", 3)
        assert pop_until_found(mq) == [3]
        assert pop_until_found(mq) == []
    assert (pop_until_found(mq), broken(mq)) == ([2], {})


def test_more_new_queues_than_locks(connect: Connect):
    """A discovery of many new queues takes one lock for all of them."""
    mq = connect()
    push(mq, "n.a", -1)
    assert take(mq, None, namespace="n") == [-1]
    push_to(mq, [(f"n.q{n}", "Default", n) for n in range(200)])
    found = [delivery.payload for delivery in drain(mq, None, namespace="n", partitions=50)]
    assert (sorted(found), broken(mq)) == (list(range(200)), {})
