# Generated from src/skep/client/aio/dead_letters.py by `make format`. Change that file.
"""Dead letters: list, count, redrive and purge them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from skep.client import calls
from skep.client.encode import dumps
from skep.client.sync.database import Database
from skep.message import DeadLetter, DeadLetterAudit, DeadLetterCount, Redriven


class DeadLetterCalls:
    """The client's calls for dead letters. Filters are queue, group, a part of the error, time and ids."""

    _database: Database

    def dead_letters(
        self,
        queue: str | None = None,
        group: str | None = None,
        *,
        error: str | None = None,
        failed_after: datetime | None = None,
        failed_before: datetime | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[DeadLetter]:
        """Return dead letters, newest first. `before` is the id of the last one on the previous page."""
        arguments = {"queue": queue, "group": group, "error": error, "before": before, "limit": limit}
        times = {"failed_after": failed_after, "failed_before": failed_before}
        return self._database.call(calls.DEAD_LETTERS, arguments | times, DeadLetter)

    def count_dead_letters(
        self,
        queue: str | None = None,
        group: str | None = None,
        *,
        failed_after: datetime | None = None,
        failed_before: datetime | None = None,
    ) -> list[DeadLetterCount]:
        """Return the number of dead letters for each error, the most frequent first."""
        arguments = {"queue": queue, "group": group, "failed_after": failed_after, "failed_before": failed_before}
        return self._database.call(calls.COUNT_DEAD_LETTERS, arguments, DeadLetterCount)

    def redrive(
        self,
        queue: str | None = None,
        group: str | None = None,
        *,
        error: str | None = None,
        failed_after: datetime | None = None,
        failed_before: datetime | None = None,
        ids: Sequence[int] | None = None,
        to_queue: str | None = None,
        limit: int = 1000,
        dry_run: bool = False,
        done_by: str | None = None,
        payload: object = ...,
        headers: Mapping[str, Any] | None = None,
    ) -> list[Redriven]:
        """Redrive dead letters, oldest first, at most `limit`: to their own group, or to `to_queue` for all its groups.

        Each is redriven once, even by concurrent calls. `dry_run` only returns the dead letters. With one id, `payload`
        replaces the payload, and `headers` are merged into the headers.
        """
        arguments = {
            "queue": queue,
            "group": group,
            "error": error,
            "failed_after": failed_after,
            "failed_before": failed_before,
            "ids": None if ids is None else list(ids),
            "to_queue": to_queue,
            "limit": limit,
            "dry_run": dry_run,
            "done_by": done_by,
            "payload": None if payload is ... else dumps([payload])[1:-1],
            "headers": None if headers is None else dumps([dict(headers)])[1:-1],
        }
        redriven = self._database.call(calls.REDRIVE, arguments, Redriven)
        if redriven and not dry_run:
            self._wake_consumers({to_queue} if to_queue else {letter.queue for letter in redriven})
        return redriven

    def _wake_consumers(self, queues: set[str]) -> None:
        raise NotImplementedError

    def purge_dead_letters(
        self,
        queue: str | None = None,
        group: str | None = None,
        *,
        error: str | None = None,
        failed_after: datetime | None = None,
        failed_before: datetime | None = None,
        ids: Sequence[int] | None = None,
        limit: int = 1000,
        dry_run: bool = False,
        done_by: str | None = None,
    ) -> int:
        """Delete dead letters, oldest first, at most `limit`. Return how many."""
        arguments = {
            "queue": queue,
            "group": group,
            "error": error,
            "failed_after": failed_after,
            "failed_before": failed_before,
            "ids": None if ids is None else list(ids),
            "limit": limit,
            "dry_run": dry_run,
            "done_by": done_by,
        }
        return self._database.value(calls.PURGE_DEAD_LETTERS, arguments)

    def dead_letter_audit(self, limit: int = 100) -> list[DeadLetterAudit]:
        """Return which dead letters were redriven or purged and by whom, newest first."""
        return self._database.call(calls.DEAD_LETTER_AUDIT, {"limit": limit}, DeadLetterAudit)
