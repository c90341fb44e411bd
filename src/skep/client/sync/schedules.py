# Generated from src/skep/client/aio/schedules.py by `make format`. Change that file.
"""Schedules: periodic messages with cron expressions."""

from collections.abc import Mapping
from typing import Any, Literal

from skep.client import calls
from skep.client.encode import dumps
from skep.client.sync.database import Database
from skep.message import DEFAULT_PARTITION, StoreResult
from skep.schedule import Schedule


class ScheduleCalls:
    """The client's calls for schedules. Each pushes a message to a queue at the times of a cron expression."""

    _database: Database

    def schedule(
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

        Each message has the headers `skep-schedule` and `skep-tick`. `missed` says which ticks are pushed
        late if upkeep did not run: "all", "one" (the last of them) or none ("skip").
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
        (made,) = self._database.call(calls.CREATE_SCHEDULE, arguments, Schedule)
        return made

    def schedules(self, queue: str | None = None) -> list[Schedule]:
        """Return the schedules of a queue, or all of them, sorted by name."""
        return self._database.call(calls.LIST_SCHEDULES, {"queue": queue}, Schedule)

    def pause_schedule(self, name: str) -> Schedule:
        """Pause a schedule until it is resumed."""
        (paused,) = self._database.call(calls.PAUSE_SCHEDULE, {"name": name}, Schedule)
        return paused

    def resume_schedule(self, name: str) -> Schedule:
        """Resume a paused schedule at its next tick. Ticks during the pause are not pushed."""
        (resumed,) = self._database.call(calls.RESUME_SCHEDULE, {"name": name}, Schedule)
        return resumed

    def delete_schedule(self, name: str) -> bool:
        """Delete a schedule. Return False if it does not exist."""
        return self._database.value(calls.DELETE_SCHEDULE, {"name": name})

    def run_schedules(self) -> StoreResult:
        """Push the due ticks of all schedules, as upkeep does once a second."""
        (ran,) = self._database.call(calls.RUN_SCHEDULES, {}, StoreResult)
        if ran.messages:
            self._wake_consumers(set(ran.queues))
        return ran

    def _wake_consumers(self, queues: set[str]) -> None:
        raise NotImplementedError
