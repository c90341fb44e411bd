"""The verdict on a lease: every row of the table in the design, however the answers come."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.engine.answers import WAYS, as_batch, dead_letters, dead_offsets, runs, say
from tests.engine.verbs import broken, call, configure, lag, pass_time, pop, push

Q = "orders"
LEASE_SECONDS = 300
RETRY = {"partial_failure": "retry"}
NO_RETRY = {"retry_limit": 0}

# letters of the answers, options of the queue, offsets that end as dead letters, offsets that come again
TABLE: list[tuple[str, dict[str, Any], list[int], list[int]]] = [
    # all completed
    ("c", {}, [], []),
    ("ccc", {}, [], []),
    ("ccc", RETRY, [], []),
    # some completed, some failed
    ("cfc", {}, [1], []),
    ("fcc", {}, [0], []),
    ("ccf", {}, [2], []),
    ("cff", {}, [1, 2], []),
    ("cfc", NO_RETRY, [1], []),
    ("cfc", RETRY, [], [1]),
    ("fcf", RETRY, [], [0, 2]),
    ("cfc", RETRY | NO_RETRY, [1], []),
    # all failed
    ("f", {}, [], [0]),
    ("fff", {}, [], [0, 1, 2]),
    ("fff", RETRY, [], [0, 1, 2]),
    ("fff", NO_RETRY, [0, 1, 2], []),
    ("fff", RETRY | NO_RETRY, [0, 1, 2], []),
    # dlq: that message now, the others as if it were not there
    ("d", {}, [0], []),
    ("ddd", {}, [0, 1, 2], []),
    ("cdc", {}, [1], []),
    ("dcf", {}, [0, 2], []),
    ("dff", {}, [0], [1, 2]),
    ("dcf", RETRY, [0], [2]),
    ("dff", NO_RETRY, [0, 1, 2], []),
]

# The same for answers that are not complete (a dot) when the lease expires.
UNANSWERED: list[tuple[str, dict[str, Any], list[int], list[int]]] = [
    ("...", {}, [], [0, 1, 2]),
    ("cc.", {}, [], [2]),
    ("c.c", {}, [], [1]),
    (".cc", {}, [], [0]),
    (".c.", {}, [], [0, 2]),
    (".c.c.c.", {}, [], [0, 2, 4, 6]),
    ("cf.", {}, [1], [2]),
    ("cf.", RETRY, [], [1, 2]),
    ("f..", {}, [], [0, 1, 2]),
    ("df.", {}, [0], [1, 2]),
    ("cd.", {}, [1], [2]),
    ("...", NO_RETRY, [], [0, 1, 2]),  # which of them killed the consumer is not known yet
    ("cc.", NO_RETRY, [2], []),
    (".", NO_RETRY, [0], []),
    ("cf.", NO_RETRY, [1, 2], []),
    ("cf.", RETRY | NO_RETRY, [], [1, 2]),
]


@pytest.mark.parametrize("answer", WAYS)
@pytest.mark.parametrize(("letters", "options", "dead", "again"), TABLE)
def test_all_answered(
    conn: psycopg.Connection,
    answer: Callable[..., None],
    letters: str,
    options: dict[str, Any],
    dead: list[int],
    again: list[int],
):
    """C1: the verdict falls with the last answer, whatever the order and the number of calls."""
    end = len(letters)
    configure(conn, Q, retry_delay=0, **options)
    push(conn, Q, *range(end + 1))
    answer(conn, pop(conn, Q, batch=end), letters)

    assert dead_offsets(conn, Q) == dead
    assert lag(conn) == {"Default": end + 1 - min(again, default=end)}
    assert runs(conn, Q) == ([(again, 2)] if again else []) + [([end], 1)]
    assert dead_offsets(conn, Q) == dead
    assert broken(conn) == {}


@pytest.mark.parametrize("answer", WAYS)
@pytest.mark.parametrize(("letters", "options", "dead", "again"), UNANSWERED)
def test_some_unanswered_when_the_lease_expires(
    conn: psycopg.Connection,
    answer: Callable[..., None],
    letters: str,
    options: dict[str, Any],
    dead: list[int],
    again: list[int],
):
    """C1: what was completed does not come again, what was not comes with attempt + 1, in order, before the rest."""
    end = len(letters)
    configure(conn, Q, retry_delay=0, **options)
    push(conn, Q, *range(end + 1))
    batch = pop(conn, Q, batch=end)
    if letters.strip("."):
        answer(conn, batch, letters)
    assert pop(conn, Q) == []
    pass_time(conn, LEASE_SECONDS + 1)

    came = [(offset, attempt) for offsets, attempt in runs(conn, Q) for offset in offsets]
    assert came == [(offset, 2) for offset in again] + [(end, 1)]
    assert dead_offsets(conn, Q) == dead
    assert lag(conn) == {"Default": 0}
    assert broken(conn) == {}


@pytest.mark.parametrize(("whole", "dead", "again"), [("ack", [1], []), ("fail", [1, 2], [])])
def test_a_whole_lease_is_answered_but_for_what_has_its_answer(
    conn: psycopg.Connection, whole: str, dead: list[int], again: list[int]
):
    """C1: an answer without a message is for everything not answered yet."""
    push(conn, Q, *range(3))
    batch = pop(conn, Q)
    say(conn, batch[0], "c")
    say(conn, batch[1], "f")
    call(conn, whole, lease=batch[0].lease, **({} if whole == "ack" else {"error": "the rest"}))
    assert dead_offsets(conn, Q) == dead
    assert [row.error for row in dead_letters(conn, Q)] == ["error 1", "the rest"][: len(dead)]
    assert lag(conn) == {"Default": 0}


def test_completing_a_rest_of_nothing_is_no_success(conn: psycopg.Connection):
    """C1: every message has its answer beside the word for the rest: one dead, one failed, and that one comes again."""
    configure(conn, Q, retry_delay=0)
    push(conn, Q, *range(2))
    dead, failed = pop(conn, Q)
    call(
        conn,
        "ack_many",
        leases=[dead.lease] * 3,
        ids=[dead.id, failed.id, None],
        statuses=["dead_letter", "failed", "completed"],
    )
    assert dead_offsets(conn, Q) == [0]
    assert runs(conn, Q) == [([1], 2)]


def test_a_whole_lease_fails(conn: psycopg.Connection):
    """C1: all failed by one word: the same batch again."""
    configure(conn, Q, retry_delay=0)
    push(conn, Q, *range(3))
    call(conn, "fail", lease=pop(conn, Q)[0].lease, error="down")
    assert runs(conn, Q) == [([0, 1, 2], 2)]


def test_a_whole_lease_is_dead_lettered(conn: psycopg.Connection):
    """C1: dlq for the lease: everything that is not completed yet, now."""
    push(conn, Q, *range(3))
    batch = pop(conn, Q)
    say(conn, batch[0], "c")
    call(conn, "dead_letter", lease=batch[0].lease, error="hopeless")
    assert [(row.offset, row.error) for row in dead_letters(conn, Q)] == [(1, "hopeless"), (2, "hopeless")]
    assert runs(conn, Q) == []


def test_a_whole_lease_is_dead_lettered_but_for_what_failed(conn: psycopg.Connection):
    """C1: a failed message has its answer: it is retried, the rest is dead."""
    configure(conn, Q, retry_delay=0)
    push(conn, Q, *range(3))
    batch = pop(conn, Q)
    say(conn, batch[0], "f")
    call(conn, "dead_letter", lease=batch[0].lease, error="hopeless")
    assert dead_offsets(conn, Q) == [1, 2]
    assert runs(conn, Q) == [([0], 2)]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_one_failed_of_ten_thousand(conn: psycopg.Connection, *, one_by_one: bool):
    """C2: cursor at the end, one dead letter, the next pop starts after."""
    push(conn, Q, *range(10_001))
    batch = pop(conn, Q, batch=10_000)
    say(conn, batch.pop(4_321), "f")
    slowly = batch[::10] if one_by_one else []  # a tenth: in one transaction each answer leaves a dead row
    as_batch(conn, sorted({*batch} - {*slowly}), "c" * (len(batch) - len(slowly)))
    for message in slowly:
        say(conn, message, "c")
    assert lag(conn) == {"Default": 1}
    assert dead_offsets(conn, Q) == [4_321]
    assert [message.offset for message in pop(conn, Q)] == [10_000]


def test_mixed_answers_in_one_call_lose_nothing(conn: psycopg.Connection):
    """C4: ok / failed / ok in one call, over several leases."""
    configure(conn, Q, retry_delay=0)
    for lane in "ab":
        push(conn, Q, *range(3), partition=lane)
    batches = pop(conn, Q, batch=3) + pop(conn, Q, batch=3)
    as_batch(conn, batches, "cfcfff")
    assert [(row.partition, row.offset) for row in dead_letters(conn, Q)] == [("a", 1)]
    assert [(message.partition, message.offset, message.attempt) for message in pop(conn, Q)] == [
        ("b", 0, 2), ("b", 1, 2), ("b", 2, 2),
    ]  # fmt: skip
    assert lag(conn) == {"a": 0, "b": 3}


@pytest.mark.parametrize("partial_failure", ["dead_letter", "retry"])
@pytest.mark.parametrize(("words", "dead"), [
    ("cf", []),  # a late failure after success is ignored
    ("cd", []),
    ("fc", []),  # success after a failure recovers it
    ("fd", [0]),
    ("df", [0]),
    ("dc", [0]),
    ("dd", [0]),
])  # fmt: skip
def test_a_message_is_answered_twice(conn: psycopg.Connection, partial_failure: str, words: str, dead: list[int]):
    """C5: completed and dead-lettered are final; a failure stands until the verdict. Nothing is counted twice."""
    configure(conn, Q, partial_failure=partial_failure, retry_delay=0)
    push(conn, Q, 0, 1)
    first, second = pop(conn, Q)
    for letter in words:
        say(conn, first, letter)
    say(conn, second, "c")
    assert dead_offsets(conn, Q) == dead
    assert runs(conn, Q) == []
    assert lag(conn) == {"Default": 0}


@pytest.mark.parametrize(("words", "retried"), [
    ("cf", False), ("cd", False), ("fc", False), ("fd", True), ("df", True), ("dc", True), ("dd", True),
])  # fmt: skip
def test_the_answer_that_stands_decides_about_the_others(conn: psycopg.Connection, words: str, *, retried: bool):
    """C1: beside a completed message a failed one is a dead letter, beside a dead one it is retried."""
    configure(conn, Q, retry_delay=0)
    push(conn, Q, 0, 1)
    first, second = pop(conn, Q)
    for letter in words:
        say(conn, first, letter)
    say(conn, second, "f")
    assert runs(conn, Q) == ([([1], 2)] if retried else [])
    assert (1 in dead_offsets(conn, Q)) is not retried


@pytest.mark.parametrize("words", ["cd", "cf"])
def test_contrary_words_in_one_call(conn: psycopg.Connection, words: str):
    """C5: a message that someone completed is completed."""
    configure(conn, Q, retry_delay=0)
    push(conn, Q, 0, 1)
    first, second = pop(conn, Q)
    as_batch(conn, [first, first, second], words + "c")
    assert dead_offsets(conn, Q) == []
    assert runs(conn, Q) == []
