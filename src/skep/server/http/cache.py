"""Responses that many callers share. Every open dashboard asks for the same lists every few seconds.

A request with `Cache-Control: max-age=30` accepts a response of that age. A response is kept for some seconds at least,
and for twenty times as long as it took to make. So one list keeps the database busy for a twentieth of the time at
most, however large it is and however many dashboards show it. A request without that header gets a response of its
own.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

LEAST, MOST = 2.5, 30.0  # seconds that an answer is kept
SHARE = 20  # times the seconds it took
ROOM = 512  # answers
_MAX_AGE = re.compile(r"max-age=(\d{1,6})(?!\d)")


def max_age(cache_control: str | None) -> int:
    """Return how many seconds old a response may be."""
    found = _MAX_AGE.search(cache_control or "")
    return int(found[1]) if found else 0


@dataclass(slots=True)
class _Kept(Generic[T]):
    answer: asyncio.Task[T]
    asked_at: float
    until: float = float("inf")  # it is not there yet

    def serves(self, oldest: float) -> bool:
        now = monotonic()
        return now < self.until and (not self.answer.done() or now - self.asked_at <= oldest)


class ResponseCache(Generic[T]):
    """The last response to each question, while it is fresh. A response that is being made is waited for."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Kept[T]] = {}

    async def share(self, question: Hashable, oldest: float, make: Callable[[], Awaitable[T]]) -> T:
        """Return the stored response, unless it is more than `oldest` seconds old."""
        kept = self._kept.get(question)
        if kept is None or not kept.serves(oldest):
            self._make_room()
            kept = self._kept[question] = _Kept(asyncio.ensure_future(make()), monotonic())
            kept.answer.add_done_callback(lambda answer: self._end(question, answer))
        return await asyncio.shield(kept.answer)  # others may wait for it, so a caller that leaves does not end it

    def _end(self, question: Hashable, answer: asyncio.Task[T]) -> None:
        kept = self._kept.get(question)
        if kept is None or kept.answer is not answer:
            return
        if answer.cancelled() or answer.exception() is not None:
            del self._kept[question]
        else:
            now = monotonic()
            kept.until = now + min(max(SHARE * (now - kept.asked_at), LEAST), MOST)

    def _make_room(self) -> None:
        if len(self._kept) >= ROOM:
            now = monotonic()
            self._kept = {question: kept for question, kept in self._kept.items() if now < kept.until}
        if len(self._kept) >= ROOM:
            self._kept.clear()  # requests that wait for one of them still get it
