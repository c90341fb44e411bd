"""The shape of a duty, and what runs them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

import psycopg

from skep.client import AsyncSkep
from skep.config import LEAST_INTERVAL, LONGEST_INTERVAL
from skep.errors import InvalidArgument, SkepError

log = logging.getLogger("skep.upkeep")


@dataclass(frozen=True, slots=True)
class Duty:
    """`run` does it once and says in a few words what it did, or nothing if there was nothing to do.

    `every`: seconds between two runs. `setting`: the setting of `Config` that changes it.
    """

    name: str
    every: float
    run: Callable[[AsyncSkep], Awaitable[str | None]]
    setting: str | None = None


@dataclass(slots=True)
class Health:
    """How a duty is doing: how often it runs, in seconds; `error` is that of its last run."""

    every: float
    runs: int = 0
    seconds: float = 0
    error: str | None = None


class Upkeep:
    """Runs duties, each at its own pace, until stopped. A run that fails is logged and tried again at its next turn.

    `intervals`: seconds between two runs, by the name of the duty; the others keep theirs.
    """

    def __init__(self, mq: AsyncSkep, duties: Sequence[Duty], intervals: Mapping[str, float] | None = None) -> None:
        intervals = intervals or {}
        _check(intervals, [duty.name for duty in duties])
        self._mq = mq
        self._duties = [replace(duty, every=intervals.get(duty.name, duty.every)) for duty in duties]
        self._stopping = asyncio.Event()
        self.health = {duty.name: Health(duty.every) for duty in self._duties}

    @property
    def healthy(self) -> bool:
        return all(health.error is None for health in self.health.values())

    async def run(self) -> None:
        await asyncio.gather(*(self._repeat(duty) for duty in self._duties))

    def stop(self) -> None:
        """Begin no more runs; `run` returns when those under way have ended."""
        self._stopping.set()

    async def run_once(self) -> dict[str, str | None]:
        """Run every duty once, one after the other; what each did, or the text of its error."""
        return {duty.name: await self._run(duty) for duty in self._duties}

    async def _repeat(self, duty: Duty) -> None:
        while not self._stopping.is_set():
            await self._run(duty)
            try:
                await asyncio.wait_for(self._stopping.wait(), duty.every)
            except TimeoutError:
                continue

    async def _run(self, duty: Duty) -> str | None:
        health, start = self.health[duty.name], monotonic()
        try:
            done, health.error = await duty.run(self._mq), None
        except (SkepError, psycopg.Error) as error:
            done = health.error = str(error)
            log.warning("%s failed: %s", duty.name, error)
        except Exception as error:  # a mistake in one duty is no reason to stop the others
            done = health.error = f"{type(error).__name__}: {error}"
            log.exception("%s failed: %s", duty.name, done)
        else:
            if done:
                log.info("%s: %s", duty.name, done)
        health.runs += 1
        health.seconds = monotonic() - start
        return done


def _check(intervals: Mapping[str, float], known: Sequence[str]) -> None:
    for name, seconds in intervals.items():
        if name not in known:
            raise InvalidArgument(f'there is no job "{name}"', hint=f"jobs: {', '.join(known)}")
        if not LEAST_INTERVAL <= seconds <= LONGEST_INTERVAL:
            allowed = f"between {LEAST_INTERVAL:g} and {LONGEST_INTERVAL:g} seconds"
            raise InvalidArgument(f"the interval of {name} must be {allowed}, got {seconds}")
