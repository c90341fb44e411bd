"""The manifest of an archive: the functions of `archive.sql` and `compact.sql` that jobs call."""

import json
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from typing import LiteralString
from uuid import UUID

import psycopg

from skep.errors import Conflict, NotFound, explained
from skep.spark.database import READ_SNAPSHOT, database
from skep.spark.options import QueueScope
from skep.spark.runs import Run, chunks, count

OPEN: LiteralString = "SELECT skep._open_archive(%(location)s, %(queues)s)"
LOCK: LiteralString = "SELECT skep._lock_archive(%(archive)s)"
UNLOCK: LiteralString = "SELECT pg_advisory_unlock_all()"
PLAN: LiteralString = """
    SELECT queue, day, partition_id, partition, first_offset, end_offset FROM skep._plan_archive(%(queues)s)
"""
BEGIN: LiteralString = "SELECT skep._begin_files(%(archive)s, %(job)s, %(files)s::jsonb)"
STORE: LiteralString = "SELECT skep._store_file(%(file)s, %(job)s, %(path)s, %(bytes)s, %(messages)s, %(digest)s)"
PROGRESS: LiteralString = """
    SELECT files, stored_files, messages, stored_messages, stored_bytes FROM skep._archive_progress(%(job)s)
"""
UNSETTLED: LiteralString = "SELECT file_id, queue, day, path FROM skep._unsettled_files(%(archive)s)"
SETTLE: LiteralString = "SELECT skep._settle_files(%(files)s)"
FIND: LiteralString = "SELECT skep._find_archive(%(location)s)"
SMALL: LiteralString = """
    SELECT queue, day, file_id, messages, bytes
    FROM skep._small_files(%(archive)s, %(below)s, %(queues)s, %(pattern)s, %(namespace)s, %(task)s)
"""
BEGIN_COMPACTION: LiteralString = "SELECT skep._begin_compaction(%(archive)s, %(job)s, %(sources)s::jsonb)"
SOURCES: LiteralString = """
    SELECT path, digest, partition_ids, first_offsets, end_offsets FROM skep._source_files(%(files)s)
"""
SWAP: LiteralString = """
    SELECT skep._swap_files(%(file)s, %(job)s, %(sources)s, %(path)s, %(bytes)s, %(messages)s, %(digest)s, %(grace)s)
"""
EXPIRED: LiteralString = "SELECT file_id, path FROM skep._expired_files(%(archive)s)"
FORGET: LiteralString = "SELECT skep._forget_files(%(files)s)"
FILES: LiteralString = """
    SELECT location, path FROM skep._archived_files(%(queues)s, %(pattern)s, %(namespace)s, %(task)s)
"""
STATUS: LiteralString = """
    SELECT queue, location, files, messages, bytes, first_day, last_day, waiting FROM skep.archive_status(%(queues)s)
"""
PATIENCE = 10.0  # seconds; the session of a job that was killed may still have the lock


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that will be written: runs of a queue, within a day."""

    queue: str
    day: date
    runs: tuple[Run, ...]
    names: tuple[str, ...]  # the partition of each run

    @property
    def messages(self) -> int:
        return count(self.runs)

    def to_json(self) -> dict[str, object]:
        runs = [[run.partition_id, name, run.first, run.end] for run, name in zip(self.runs, self.names, strict=True)]
        return {"queue": self.queue, "day": self.day.isoformat(), "runs": runs}


@dataclass(frozen=True, slots=True)
class ArchiveProgress:
    """The files of a job, and those that are stored."""

    files: int = 0
    stored_files: int = 0
    messages: int = 0
    stored_messages: int = 0
    stored_bytes: int = 0

    def plus(self, other: "ArchiveProgress") -> "ArchiveProgress":
        return ArchiveProgress(
            self.files + other.files,
            self.stored_files + other.stored_files,
            self.messages + other.messages,
            self.stored_messages + other.stored_messages,
            self.stored_bytes + other.stored_bytes,
        )


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """The archived messages of a queue. `waiting`: retention waits for the archive."""

    queue: str
    location: str
    files: int
    messages: int
    bytes: int
    first_day: date
    last_day: date
    waiting: bool


def queues_of(url: str, scope: QueueScope) -> list[str]:
    """Return the queues of a scope. Raise NotFound if a queue that it names does not exist."""
    *_, found = database(url).one(READ_SNAPSHOT, **scope.arguments())
    missing = sorted(set(scope.queues or ()) - set(found))
    if missing:
        raise NotFound(f'queue "{missing[0]}" does not exist')
    if not found:
        raise NotFound("no queue matches")
    return list(found)


@contextmanager
def locked(url: str, archive: int) -> Generator[None]:
    """Lock an archive against other jobs. If the connection is lost, another job may take over; this one then fails."""
    with explained(), psycopg.connect(url, autocommit=True, application_name="skep archive") as connection:
        deadline = time.monotonic() + PATIENCE
        while connection.execute(LOCK, {"archive": archive}).fetchone() != (True,):
            if time.monotonic() > deadline:
                raise Conflict("another job is working on this archive", hint="Wait until it has ended.")
            time.sleep(0.05)
        try:
            yield
        finally:
            with suppress(psycopg.OperationalError):  # the connection was lost, and the lock with it
                connection.execute(UNLOCK)


def open_archive(url: str, location: str, queues: Sequence[str]) -> int:
    return int(database(url).one(OPEN, location=location, queues=list(queues))[0])


def plan(url: str, queues: Sequence[str], *, cores: int, file_messages: int) -> list[PlannedFile]:
    """Return files for all messages that are in no file yet."""
    rows = database(url).rows(PLAN, queues=list(queues))
    names = {partition_id: name for _, _, partition_id, name, _, _ in rows}
    days: dict[tuple[str, date], list[Run]] = {}
    for queue, day, partition_id, _, first, end in rows:
        days.setdefault((queue, day), []).append(Run(partition_id, first, end))
    total = sum(count(runs) for runs in days.values())
    size = max(min(-(-total // cores), file_messages), min(SMALLEST, file_messages))
    return [_planned(queue, day, runs, names) for (queue, day), all_ in days.items() for runs in chunks(all_, size)]


SMALLEST = 50_000  # messages; smaller files are not worth a task of their own


def _planned(queue: str, day: date, runs: Iterable[Run], names: dict[int, str]) -> PlannedFile:
    kept = tuple(runs)
    return PlannedFile(queue, day, kept, tuple(names[run.partition_id] for run in kept))


def begin(url: str, archive: int, job: UUID, files: Sequence[PlannedFile]) -> list[int]:
    """Reserve the files; return their numbers."""
    documents = json.dumps([file.to_json() for file in files])
    return list(database(url).one(BEGIN, archive=archive, job=job, files=documents)[0])


def progress(url: str, job: UUID) -> ArchiveProgress:
    return ArchiveProgress(*database(url).one(PROGRESS, job=job))


def status(url: str, queues: Sequence[str] | None = None) -> list[ArchiveStatus]:
    return [ArchiveStatus(*row) for row in database(url).rows(STATUS, queues=None if queues is None else list(queues))]
