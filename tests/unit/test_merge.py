"""Merging: nobody waits when it is idle, many share a call under load, and one bad request is alone with its error."""

import asyncio
from collections.abc import Sequence

import pytest

from skep.errors import DatabaseUnavailable, InvalidArgument
from skep.server.http.asgi import Overloaded
from skep.server.work.merge import Merger


class Database:
    """Doubles numbers, and says how many came in each call. It refuses 13 and waits for `open`."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.calls.append(list(numbers))
        await self.open.wait()
        if self.error is not None:
            raise self.error
        if 13 in numbers:
            raise InvalidArgument("13")
        return [2 * number for number in numbers]


def merger(
    database: Database, *, max_weight: int = 1000, parallel: int = 1, max_pending: int = 1000
) -> Merger[int, int]:
    return Merger(
        database,
        weigh=lambda _: 1,
        max_weight=max_weight,
        parallel=parallel,
        max_pending=max_pending,
        merged=lambda _: None,
    )


async def test_a_request_alone_is_a_call_at_once():
    database = Database()
    assert await merger(database)(1) == 2
    assert database.calls == [[1]]


async def test_requests_of_one_turn_of_the_loop_are_one_call():
    database = Database()
    merged = merger(database)
    assert await asyncio.gather(*(merged(n) for n in range(10))) == [2 * n for n in range(10)]
    assert database.calls == [list(range(10))]


async def test_what_comes_during_a_call_is_the_next_call():
    database = Database()
    database.open.clear()
    merged = merger(database)
    first = asyncio.create_task(merged(0))
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(merged(n)) for n in range(1, 5)]
    await asyncio.sleep(0.01)
    assert database.calls == [[0]]
    database.open.set()
    assert await asyncio.gather(first, *others) == [0, 2, 4, 6, 8]
    assert database.calls == [[0], [1, 2, 3, 4]]


async def test_a_call_has_a_limit():
    database = Database()
    merged = merger(database, max_weight=4)
    await asyncio.gather(*(merged(n) for n in range(10)))
    assert [len(call) for call in database.calls] == [4, 4, 2]


@pytest.mark.parametrize("place", [0, 7, 15])
async def test_one_bad_request_fails_alone(place: int):
    database = Database()
    merged = merger(database)
    numbers = [100 + n for n in range(16)]
    numbers[place] = 13
    answers = await asyncio.gather(*(merged(n) for n in numbers), return_exceptions=True)
    assert isinstance(answers[place], InvalidArgument)
    good = [n for n in numbers if n != 13]
    assert [answer for answer in answers if not isinstance(answer, Exception)] == [2 * n for n in good]
    assert len(database.calls) <= 9  # halved, not one by one


async def test_a_database_that_is_down_fails_all_and_is_not_asked_again_for_each():
    database = Database()
    database.error = DatabaseUnavailable("down")
    merged = merger(database)
    answers = await asyncio.gather(*(merged(n) for n in range(8)), return_exceptions=True)
    assert all(isinstance(answer, DatabaseUnavailable) for answer in answers)
    assert len(database.calls) == 1
    database.error = None
    assert await merged(1) == 2


async def test_more_than_may_wait_is_refused():
    database = Database()
    database.open.clear()
    merged = merger(database, max_pending=3)
    running = [asyncio.create_task(merged(0))]
    await asyncio.sleep(0.01)
    running += [asyncio.create_task(merged(n)) for n in range(1, 4)]
    await asyncio.sleep(0.01)
    with pytest.raises(Overloaded):
        await merged(4)
    database.open.set()
    assert await asyncio.gather(*running) == [0, 2, 4, 6]


async def test_a_client_that_is_gone_disturbs_nobody():
    database = Database()
    database.open.clear()
    merged = merger(database)
    gone, stays = asyncio.create_task(merged(1)), asyncio.create_task(merged(2))
    await asyncio.sleep(0.01)
    gone.cancel()
    database.open.set()
    assert await stays == 4


async def test_drain_waits_for_everything_accepted():
    database = Database()
    merged = merger(database, max_weight=1)
    answers = [asyncio.create_task(merged(n)) for n in range(5)]
    await asyncio.sleep(0)
    await merged.drain()
    assert [answer.done() for answer in answers] == [True] * 5
