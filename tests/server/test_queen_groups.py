"""Consumer groups, as published Queen clients use them."""

import psycopg
import pytest

from tests.server.conftest import Conversation


@pytest.fixture(scope="module", autouse=True)
def _short_polls(module_database_url: str) -> None:
    """`new` reaches back by twice the interval; the conversation has less patience than the default."""
    with psycopg.connect(module_database_url) as connection:
        connection.execute("SELECT skep.configure_defaults(max_poll_interval => 0.1)")


def test_each_group_has_everything(queen: Conversation):
    seen = queen("groups")
    assert (seen["a"], seen["b while a"], seen["queue mode"]) == ([1, 2], [1, 2], [1, 2])
    assert (seen["named"], seen["a again"]) == ("a", [])


def test_subscription_modes(queen: Conversation):
    seen = queen("groups")
    assert seen["started"] == [[], [], []]
    assert seen["drained"] == {group: ["fresh", "late"] for group in ("new", "now", "new-only")}
    assert seen["everything"] == ["fresh", "late", "old"]


def test_what_is_new_in_an_empty_queue(queen: Conversation):
    seen = queen("groups")
    assert (seen["before"], seen["first"]) == ([], ["first"])


def test_subscription_from_a_time(queen: Conversation):
    assert queen("groups")["from"] == ["after"]


def test_seek(queen: Conversation):
    seen = queen("seek")
    assert seen["at first"] == [1, 2, 3]
    assert (seen["back"]["success"], seen["back"]["partitionsUpdated"]) == (True, 1)
    assert (seen["after back"], seen["from start"]) == ([2, 3], [1])
    assert (seen["end"]["success"], seen["after end"], seen["later"]) == (True, [], [4])


def test_a_deleted_group_is_new_again(queen: Conversation):
    seen = queen("seek")
    assert (seen["known"], seen["as new"], seen["as new again"]) == ([1, 2], [1, 2], [1, 2])
    assert (seen["deleted"]["success"], seen["of queue"]["success"]) == (True, True)
    assert seen["deleted twice"] == [True, True]
    assert seen["moved"] is True
