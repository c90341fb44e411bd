"""The acks of one batch, and the pauses of a waiting pop."""

import math

import pytest

from skep.client.plan import Ack, Backoff, BatchAcks
from tests.unit.play import uuid


def test_acks_are_reported_from_time_to_time():
    acks = BatchAcks(uuid(1), delay=0.5)
    reported = []
    for number, now in enumerate([0, 0.1, 0.6, 0.7, 1.0, 1.1]):
        acks.completed(uuid(100 + number))
        reported.append(len(acks.due(now)))
    assert reported == [0, 0, 3, 0, 0, 3]
    assert acks.remaining() == []


def test_all_acks_are_due_at_the_end_of_the_program():
    """Handled messages are acknowledged, and the others are not."""
    acks = BatchAcks(uuid(1), delay=0.5)
    acks.completed(uuid(2))
    acks.failed(uuid(3), "oops")
    assert [ack.message for ack in acks.due(math.inf)] == [uuid(2), uuid(3)]
    assert acks.remaining() == []


def test_one_ack_completes_all_remaining_messages():
    acks = BatchAcks(uuid(1), delay=0.5)
    for number in (1, 2, 3):
        acks.completed(uuid(number))
    acks.failed(uuid(4), "oops")
    assert acks.remaining() == [Ack(uuid(1), uuid(4), "failed", "oops"), Ack(uuid(1), None, "completed")]


def test_only_failures_are_reported_if_all_messages_failed():
    """An ack for the whole lease would complete them."""
    acks = BatchAcks(uuid(1), delay=0.5)
    for number in (1, 2):
        acks.failed(uuid(number), f"error {number}")
    assert acks.remaining() == [Ack(uuid(1), uuid(number), "failed", f"error {number}") for number in (1, 2)]


def test_the_backoff_doubles_and_does_not_exceed_the_remaining_time():
    backoff = Backoff(0.5)
    assert [backoff.pause(60) for _ in range(7)] == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5])
    assert [backoff.pause(0.1), backoff.pause(-1)] == [0.1, 0.0]
