"""The decisions of a consumer: when it leases, handles, acknowledges, extends, waits and stops. Nothing here sleeps."""

import math
from typing import Any

import pytest

from skep.client.plan import (
    FIRST_PAUSE,
    LONGEST_FAULT_PAUSE,
    READY_TIMEOUT,
    Done,
    Extend,
    Plan,
    Pop,
    Release,
    Start,
    StoreAcks,
    Wait,
)
from skep.errors import InvalidArgument
from tests.unit.play import LEASE, POLL, Play, seconds, uuid, whole


def test_batches_are_started_in_the_order_of_their_pops():
    play = Play(concurrency=1, fetch_ahead=3)
    play.pop(1, 2, 3, 4)
    for number in (1, 2, 3):
        play.finish(number)
        assert play.next() == Start(uuid(number + 1))
        play.plan.started(uuid(number + 1))


def test_a_free_handler_comes_before_everything_else():
    """A handler does not wait for acks, extensions and faults of the database."""
    play = Play(fetch_ahead=1)
    play.pop(1, 2)
    play.finish(1, whole(1))
    play.plan.failed(play.now)
    assert play.later(0.01) == Start(uuid(2))


@pytest.mark.parametrize(("concurrency", "fetch_ahead"), [(1, 0), (1, 1), (1, 4), (3, 0), (3, 2)])
def test_a_consumer_leases_no_more_than_it_has_room_for(concurrency: int, fetch_ahead: int):
    room = concurrency + fetch_ahead
    play = Play(concurrency=concurrency, fetch_ahead=fetch_ahead)
    play.pop(*range(1, room + 1))
    assert isinstance(play.next(), Wait)
    play.plan.woken()
    assert isinstance(play.next(), Wait)
    play.finish(1)
    if fetch_ahead:
        assert play.next() == Start(uuid(concurrency + 1))
        play.plan.started(uuid(concurrency + 1))
    assert play.next() == Pop()


def test_a_batch_that_waits_too_long_for_a_handler_is_released():
    play = Play()
    play.pop(1, 2)
    assert seconds(play.later(READY_TIMEOUT - 0.01)) == pytest.approx(0.01)
    assert play.later(0.02) == Release(uuid(2))
    play.plan.released(uuid(2))
    assert not isinstance(play.next(), Release)


def test_nothing_is_fetched_ahead_after_a_release_until_a_handler_is_free():
    """The partition would otherwise be leased again at once, and wait for the slow handler forever."""
    play = Play()
    play.pop(1, 2)
    assert play.later(READY_TIMEOUT) == Release(uuid(2))
    play.plan.released(uuid(2))
    assert isinstance(play.next(), Wait)
    play.plan.woken()
    assert isinstance(play.later(5), Wait)
    play.finish(1)
    play.pop(3, 4)


@pytest.mark.parametrize("waits", [False, True], ids=["busy", "ready"])
def test_a_lease_is_extended_at_a_third_of_its_time(*, waits: bool):
    play = Play(fetch_ahead=int(waits), lease_time=READY_TIMEOUT)
    play.pop(*([1, 2] if waits else [1]))
    if waits:
        play.plan.extended(play.now + 100, uuid(1))
    number = 2 if waits else 1
    assert seconds(play.next()) == pytest.approx(READY_TIMEOUT / 3)
    assert play.later(READY_TIMEOUT / 3) == Extend(uuid(number))
    play.plan.extended(play.now, uuid(number))
    assert seconds(play.next()) == pytest.approx(READY_TIMEOUT / 3)


def test_the_lease_time_counts_from_before_the_call():
    play = Play(fetch_ahead=0)
    play.plan.popped(play.now - 4, play.now, uuid(1))
    play.plan.started(uuid(1))
    assert play.next() == Wait(LEASE / 3 - 4)
    assert play.later(LEASE / 3 - 4) == Extend(uuid(1))
    play.now += 3
    play.plan.extended(play.now - 3, uuid(1))
    assert play.next() == Wait(LEASE / 3 - 3)


def test_every_lease_is_extended():
    play = Play(concurrency=3, fetch_ahead=0)
    play.pop(1, 2, 3)
    play.now += LEASE / 3
    for number in (1, 2, 3):
        assert play.next() == Extend(uuid(number))
        play.plan.extended(play.now, uuid(number))
    assert play.next() == Wait(LEASE / 3)


def test_a_batch_with_an_expired_lease_is_not_started():
    """Another consumer may have leased it, and may be further in the partition."""
    play = Play()
    play.pop(1, 2)
    play.now += LEASE  # the database was away for that long
    play.finish(1)
    assert play.next() == Release(uuid(2))


def test_a_lost_lease_without_a_handler_is_dropped():
    play = Play(lease_time=READY_TIMEOUT)
    play.pop(1, 2)
    assert not play.plan.lost(uuid(2))
    play.finish(1)
    assert play.next() == Pop()


@pytest.mark.parametrize("stopping", [False, True])
def test_a_lost_lease_counts_as_busy_until_its_handler_ends(*, stopping: bool):
    """There is nothing to extend, and nothing to wait for except the handler."""
    play = Play(fetch_ahead=0)
    play.pop(1)
    if stopping:
        play.plan.stop()
    assert play.later(LEASE / 3) == Extend(uuid(1))
    assert play.plan.lost(uuid(1))
    assert 0 < seconds(play.later(10 * LEASE)) < math.inf  # threads cannot wait forever
    play.finish(1)
    assert play.next() == (Done() if stopping else Pop())


def test_acks_are_stored_before_any_other_call():
    play = Play(concurrency=3, fetch_ahead=1, lease_time=READY_TIMEOUT)
    play.pop(1, 2, 3, 4)
    play.plan.acked([whole(1)])
    assert play.later(READY_TIMEOUT) == StoreAcks((whole(1),))  # extensions and a release are due as well
    play.plan.stored((whole(1),))
    assert play.next() == Release(uuid(4))
    play.plan.released(uuid(4))
    assert play.next() == Extend(uuid(1))


def test_acks_that_arrive_during_a_store_are_stored_next():
    play = Play(concurrency=2, fetch_ahead=0)
    play.pop(1, 2)
    play.finish(1, whole(1))
    asked = play.next()
    play.finish(2, whole(2, "failed"))
    assert asked == StoreAcks((whole(1),))
    play.plan.stored((whole(1),))
    play.store(whole(2, "failed"))
    assert play.next() == Pop()


def test_an_idle_consumer_polls_less_and_less_often():
    play = Play()
    pauses = []
    for _ in range(9):
        play.pop_nothing()
        pauses.append(play.wait())
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, POLL, POLL, POLL])


@pytest.mark.parametrize("event", ["woken", "popped and finished"])
def test_an_event_resets_the_pause_of_an_idle_consumer(event: str):
    play = Play()
    for _ in range(9):
        play.pop_nothing()
        play.wait()
    if event == "woken":
        play.pop_nothing()
        play.plan.woken()
    else:
        play.pop(1)
        play.finish(1)
    play.pop_nothing()
    assert play.wait() == pytest.approx(FIRST_PAUSE)


def test_a_consumer_with_one_partition_polls_less_and_less_often_for_others():
    """Each of these pops is useless while its handler works. A push makes it poll soon again."""
    play = Play()
    play.pop(1)
    pauses = []
    for _ in range(8):
        play.pop_nothing()
        pauses.append(play.wait())
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, POLL, POLL])
    play.pop_nothing()
    play.plan.woken()
    assert play.wait() == pytest.approx(FIRST_PAUSE)
    play.pop(2)


def test_a_consumer_polls_at_once_when_a_partition_becomes_free():
    """Even while other handlers are busy."""
    play = Play(concurrency=2, fetch_ahead=1)
    play.pop(1, 2)
    for _ in range(8):
        play.pop_nothing()
        play.wait()
    play.pop_nothing()
    play.finish(1, whole(1))
    play.store(whole(1))
    play.pop(3)


def test_a_consumer_ends_after_its_idle_timeout():
    play = Play(idle_timeout=1.5)
    play.pop(1)
    play.pop_nothing()
    play.finish(1, whole(1))
    play.store(whole(1))
    play.pop_nothing()
    began = play.now
    while not isinstance(play.next(), Done):
        play.wait()
        if play.next() == Pop():
            play.pop_nothing()
    assert play.now - began == pytest.approx(1.5)


def test_a_busy_consumer_is_not_idle():
    """And it never waits 0 seconds, with which the driver would loop without a pause."""
    play = Play(concurrency=2, idle_timeout=1)
    play.pop(1)
    for _ in range(9):
        play.pop_nothing()
        assert play.wait() > 0
    play.finish(1)
    play.pop_nothing()
    assert play.later(0.99) == Pop()
    assert play.later(0.01) == Done()


def test_the_pause_after_a_fault_grows():
    play = Play()
    pauses = []
    for _ in range(11):
        play.fail()
        pauses.append(play.wait())
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, *[LONGEST_FAULT_PAUSE] * 3])


@pytest.mark.parametrize("success", ["popped", "stored", "extended", "released"])
def test_a_success_resets_the_pause_after_a_fault(success: str):
    play = Play()
    play.pop(1, 2)
    for _ in range(5):
        play.plan.failed(play.now)
    play.now += LONGEST_FAULT_PAUSE
    {
        "popped": lambda: play.plan.popped(play.now, play.now, None),
        "stored": lambda: play.plan.stored(()),
        "extended": lambda: play.plan.extended(play.now, uuid(1)),
        "released": lambda: play.plan.released(uuid(2)),
    }[success]()
    play.plan.failed(play.now)
    assert seconds(play.next()) == pytest.approx(FIRST_PAUSE)


def test_a_failed_action_is_repeated():
    play = Play()
    play.pop(1, 2)
    play.plan.acked([whole(1)])
    for expected in (StoreAcks((whole(1),)), Release(uuid(2)), Extend(uuid(1))):
        play.now += LEASE / 3
        assert play.next() == expected
        play.fail()
        play.wait()
        assert play.next() == expected
        match expected:
            case StoreAcks(acks):
                play.plan.stored(acks)
            case Release(lease):
                play.plan.released(lease)
            case Extend(lease):
                play.plan.extended(play.now, lease)


def test_stop_finishes_started_batches_and_releases_the_others():
    play = Play(concurrency=2, fetch_ahead=2)
    play.pop(1, 2, 3, 4)
    play.plan.stop()
    for number in (3, 4):
        assert play.next() == Release(uuid(number))
        play.plan.released(uuid(number))
    assert play.later(LEASE / 3) == Extend(uuid(1))
    play.plan.extended(play.now, uuid(1))
    play.finish(1, whole(1))
    play.store(whole(1))
    assert play.next() == Extend(uuid(2))
    play.plan.extended(play.now, uuid(2))
    play.plan.woken()
    assert isinstance(play.next(), Wait)
    play.finish(2, whole(2, "failed"))
    play.fail()
    play.wait()
    play.store(whole(2, "failed"))
    assert play.next() == Done()


def test_stop_ends_an_idle_consumer():
    play = Play()
    play.pop_nothing()
    play.plan.stop()
    play.plan.stop()
    assert play.next() == Done()


@pytest.mark.parametrize(
    "wrong", [{"concurrency": 0}, {"fetch_ahead": -1}, {"lease_time": 0}, {"lease_time": -1}, {"poll_interval": 0}]
)
def test_invalid_options_are_refused(wrong: dict[str, Any]):
    fine = {"concurrency": 1, "fetch_ahead": 0, "lease_time": 30, "poll_interval": 1}
    with pytest.raises(InvalidArgument, match="concurrency >= 1"):
        Plan(**{**fine, **wrong})
