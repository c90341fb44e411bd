"""Answers that many ask for: made once, kept by what they cost, and never when they went wrong."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from skep.server.http import cache as answers
from skep.server.http.cache import ResponseCache, max_age


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(answers, "monotonic", made)
    return made


def counting(clock: Clock, seconds: float = 0.0) -> Callable[[], Awaitable[int]]:
    made = 0

    async def make() -> int:
        nonlocal made
        made += 1
        clock.now += seconds
        return made

    return make


@pytest.mark.parametrize(
    ("header", "age"),
    [
        (None, 0),
        ("", 0),
        ("no-cache", 0),
        ("max-age=0", 0),
        ("max-age=30", 30),
        ("no-store, max-age=5", 5),
        ("max-age=x", 0),
    ],
)
def test_what_a_request_says(header: str | None, age: int):
    assert max_age(header) == age


async def test_who_asks_meanwhile_waits_for_the_same(clock: Clock):
    shared = ResponseCache[int]()
    make = counting(clock)
    assert await asyncio.gather(*(shared.share("q", 30, make) for _ in range(20))) == [1] * 20
    assert await shared.share("other", 30, make) == 2


async def test_it_is_kept_by_what_it_cost(clock: Clock):
    shared = ResponseCache[int]()
    for cost, kept in ((0.0, 2.5), (0.2, 4.0), (9.0, 30.0)):
        make = counting(clock, cost)
        question = f"cost {cost}"
        assert await shared.share(question, 1000, make) == 1
        clock.now += kept - 0.01
        assert await shared.share(question, 1000, make) == 1
        clock.now += 0.02
        assert await shared.share(question, 1000, make) == 2


async def test_nobody_gets_an_older_one_than_he_wants(clock: Clock):
    shared = ResponseCache[int]()
    make = counting(clock, 1.0)
    assert await shared.share("q", 30, make) == 1
    clock.now += 4
    assert await shared.share("q", 5, make) == 1
    assert await shared.share("q", 4, make) == 2


async def test_a_failure_is_not_kept(clock: Clock):
    shared = ResponseCache[int]()

    async def fail() -> int:
        raise ValueError("down")

    with pytest.raises(ValueError, match="down"):
        await shared.share("q", 30, fail)
    assert await shared.share("q", 30, counting(clock)) == 1


async def test_who_leaves_does_not_end_it(clock: Clock):
    shared, go = ResponseCache[int](), asyncio.Event()

    async def slow() -> int:
        await go.wait()
        return 7

    leaving = asyncio.create_task(shared.share("q", 30, slow))
    staying = asyncio.create_task(shared.share("q", 30, slow))
    await asyncio.sleep(0)
    leaving.cancel()
    go.set()
    assert await staying == 7


async def test_there_is_an_end_of_it(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "ROOM", 10)
    shared = ResponseCache[int]()
    for question in range(100):
        await shared.share(question, 30, counting(clock))
    assert len(shared._kept) <= 10
