"""Periodic messages: schedules with cron expressions."""

from collections.abc import Mapping
from typing import Any, Literal

from skep.client import calls
from skep.client.aio.database import AsyncDatabase
from skep.client.encode import dumps
from skep.message import DEFAULT_PARTITION, Drained
from skep.schedule import Schedule


class AsyncSchedules:
    """Schedules: each pushes a message to a queue at the times of a cron expression."""

    _database: AsyncDatabase

    async def schedule(
        self,
        name: str,
        cron: str,
        queue: str,
        payload: object = None,
        *,
        partition: str = DEFAULT_PARTITION,
        headers: Mapping[str, Any] | None = None,
        time_zone: str = "UTC",
        missed: Literal["skip", "one", "all"] = "one",
    ) -> Schedule:
        """Create a schedule, or change the one with this name.

        Each message has the headers `skep-schedule` and `skep-tick`. `missed` says what becomes of ticks that nobody
        pushed in time: "all", "one" (the last of them) or "skip".
        """
        arguments = {
            "name": name,
            "cron": cron,
            "queue": queue,
            "payload": dumps([payload])[1:-1],
            "partition": partition,
            "headers": None if headers is None else dumps([dict(headers)])[1:-1],
            "time_zone": time_zone,
            "missed": missed,
        }
        (made,) = await self._database.call(calls.CREATE_SCHEDULE, arguments, Schedule)
        return made

    async def schedules(self, queue: str | None = None) -> list[Schedule]:
        """Return the schedules of a queue, or all, by name."""
        return await self._database.call(calls.LIST_SCHEDULES, {"queue": queue}, Schedule)

    async def pause_schedule(self, name: str) -> Schedule:
        """Stop a schedule until it is resumed."""
        (paused,) = await self._database.call(calls.PAUSE_SCHEDULE, {"name": name}, Schedule)
        return paused

    async def resume_schedule(self, name: str) -> Schedule:
        """Let a paused schedule go on with its next tick; those of the pause are not pushed."""
        (resumed,) = await self._database.call(calls.RESUME_SCHEDULE, {"name": name}, Schedule)
        return resumed

    async def delete_schedule(self, name: str) -> bool:
        """Delete a schedule. False if there was none."""
        return await self._database.value(calls.DELETE_SCHEDULE, {"name": name})

    async def run_schedules(self) -> Drained:
        """Push the ticks of schedules that are due, as upkeep does once a second."""
        (ran,) = await self._database.call(calls.RUN_SCHEDULES, {}, Drained)
        if ran.messages:
            self._pushed_again(set(ran.queues))
        return ran

    def _pushed_again(self, queues: set[str]) -> None:
        raise NotImplementedError
