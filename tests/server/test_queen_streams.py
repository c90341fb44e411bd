"""Streams of published Queen clients: what they keep on the server, and what they push and ack in one step."""

from tests.server.conftest import Conversation


def test_windows_of_event_time(queen: Conversation):
    seen = queen("streams")
    assert seen["early"] == []
    by_sum = sorted((one["sum"], one["count"]) for one in seen["closed"])
    assert by_sum == [(1, 1), (7, 1), (11, 2)], "both windows of a, and the first of b"
    assert seen["errors"] == [None, None, None]


def test_a_changed_stream_is_refused(queen: Conversation):
    assert "config_hash mismatch" in queen("streams")["mismatch"]


def test_windows_of_the_clock(queen: Conversation):
    seen = queen("streams")
    assert (seen["total"], seen["clock error"]) == (5, None)


def test_a_closed_gate_kills_nothing(queen: Conversation):
    seen = queen("streams")
    assert seen["passed"] == [0, 1, 2, 3, 4, 5]
    assert (seen["dead"], seen["gate error"]) == ([], None)


def test_streams_without_state(queen: Conversation):
    seen = queen("streams")
    assert seen["mapped"] == [{"double": 0}, {"double": 4}, {"double": 8}]
    assert seen["effects"] == [0, 4, 8]
