"""Which queues are encrypted: nobody goes on before that is known."""

import asyncio
from typing import Any

from skep.server.work.sealed import SealedQueues


class Database:
    def __init__(self) -> None:
        self.names = ["secret"]
        self.asked = 0

    async def call(self, *_: Any) -> list[str]:
        self.asked += 1
        names = list(self.names)
        await asyncio.sleep(0.01)
        return names


async def test_all_wait_for_the_first_answer():
    """Otherwise what comes while a server starts would be stored as it is."""
    database = Database()
    sealed = SealedQueues(database)  # pyright: ignore[reportArgumentType]
    answers = await asyncio.gather(*(sealed.names() for _ in range(10)))
    assert answers == [frozenset({"secret"})] * 10
    assert database.asked == 1
    assert await sealed.names() == {"secret"}
    assert database.asked == 1


async def test_what_is_forgotten_is_asked_for_by_all():
    database = Database()
    sealed = SealedQueues(database)  # pyright: ignore[reportArgumentType]
    late = asyncio.create_task(sealed.names())
    await asyncio.sleep(0)
    database.names.append("new")
    sealed.forget()  # a queue was configured while the question was under way
    assert await sealed.names() == {"secret", "new"}
    await late
    assert await sealed.names() == {"secret", "new"}
