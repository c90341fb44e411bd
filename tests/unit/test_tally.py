"""The answers of one batch, and the pauses of one who waits."""

import math

import pytest

from skep.client.plan import Answer, Pacing, Tally
from tests.unit.play import uuid


def test_a_tally_tells_now_and_then():
    tally = Tally(uuid(1), delay=0.5)
    told = []
    for number, now in enumerate([0, 0.1, 0.6, 0.7, 1.0, 1.1]):
        tally.completed(uuid(100 + number))
        told.append(len(tally.due(now)))
    assert told == [0, 0, 3, 0, 0, 3]
    assert tally.rest() == []


def test_a_tally_can_tell_all_at_once():
    """When the program is ended: what is done is done, and the rest is not spoken for."""
    tally = Tally(uuid(1), delay=0.5)
    tally.completed(uuid(2))
    tally.failed(uuid(3), "oops")
    assert [answer.message for answer in tally.due(math.inf)] == [uuid(2), uuid(3)]
    assert tally.rest() == []


def test_a_tally_ends_with_one_word_for_all_that_went_well():
    tally = Tally(uuid(1), delay=0.5)
    for number in (1, 2, 3):
        tally.completed(uuid(number))
    tally.failed(uuid(4), "oops")
    assert tally.rest() == [Answer(uuid(1), uuid(4), "failed", "oops"), Answer(uuid(1), None, "completed")]


def test_a_tally_of_failures_has_no_word_of_success():
    """C1: all failed is not some failed, so nothing may be called completed."""
    tally = Tally(uuid(1), delay=0.5)
    for number in (1, 2):
        tally.failed(uuid(number), f"error {number}")
    assert tally.rest() == [Answer(uuid(1), uuid(number), "failed", f"error {number}") for number in (1, 2)]


def test_pacing_looks_less_and_less_often_and_never_beyond_the_end():
    pacing = Pacing(0.5)
    assert [pacing.pause(60) for _ in range(7)] == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5])
    assert [pacing.pause(0.1), pacing.pause(-1)] == [0.1, 0.0]
