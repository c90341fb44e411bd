"""Errors raised in SQL arrive as Skep's own."""

import psycopg
import pytest

from skep import errors
from skep.errors import from_sqlstate
from tests.engine.verbs import call, pop, push, refused


def test_the_words_of_the_server_are_kept(conn: psycopg.Connection):
    raised = "DO $$ BEGIN RAISE 'no queue' USING ERRCODE = 'SK002', DETAIL = 'orders', HINT = 'create it'; END $$"
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(raised)
    error = from_sqlstate(caught.value)
    assert type(error) is errors.NotFound
    assert (error.message, error.detail, error.hint) == ("no queue", "orders", "create it")


def test_an_error_has_no_empty_lines(mq: psycopg.Connection):
    """In psql an empty DETAIL or HINT is a line of its own."""
    with pytest.raises(psycopg.Error) as caught:
        pop(mq, "q", batch=0)
    assert caught.value.diag.message_primary == "batch must be between 1 and 100000, got 0"
    assert (caught.value.diag.message_detail, caught.value.diag.message_hint) == (None, None)


def test_a_wrong_position_is_told_what_a_position_is(mq: psycopg.Connection):
    push(mq, "q", 1)
    with pytest.raises(psycopg.Error) as caught:
        call(mq, "seek", group_name="g", queue="q", position="start")
    assert caught.value.diag.message_primary == 'invalid position "start"'
    assert all(word in (caught.value.diag.message_hint or "") for word in ("beginning", "end", "time", "offset"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"subscription_mode": "some"}, 'subscription_mode must be all or new, got "some"'),
        ({"max_poll_interval": -1}, "max_poll_interval must be above 0 and at most 86400 seconds, got -1"),
    ],
)
def test_wrong_defaults_are_refused_by_name(mq: psycopg.Connection, arguments: dict, words: str):
    with refused("SK001", words):
        call(mq, "configure_defaults", **arguments)


def test_a_cancelled_subscription_is_named(mq: psycopg.Connection):
    push(mq, "q", 1)
    call(mq, "subscribe", group_name="g", queue="q")
    call(mq, "cancel", group_name="g", queue="q")
    with refused("SK007", 'the subscription of group "g" to queue "q" is cancelled'):
        call(mq, "cancel_group", group_name="g", queue="q")
    with refused("SK007", 'the subscription of group "g" is cancelled'):
        call(mq, "heartbeat", group_name="g")


def test_a_group_without_subscription_is_named_without_a_queue(mq: psycopg.Connection):
    with pytest.raises(psycopg.Error) as caught:
        call(mq, "pause", group_name="nobody")
    assert caught.value.diag.message_primary == 'group "nobody" has no subscription'
