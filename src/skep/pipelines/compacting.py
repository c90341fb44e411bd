"""Compact: merge small files of an archive into large ones. Readers never see a message twice, and never miss one.

A task merges files of a queue and a day, checks that they are unchanged, reads the result back, and replaces them by it
in the manifest, in one transaction. The old files stay for a grace period, for readers that have already planned to
read them. A job may be killed at any point: replacements that were committed stay, and the next job deletes the rest.
"""

import hashlib
import heapq
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Any
from uuid import UUID, uuid4

from pyspark.sql import SparkSession

from skep.errors import Conflict, InvalidArgument, NotFound
from skep.pipelines import manifest, tasks
from skep.pipelines.archiving import delete_leftovers
from skep.spark.arrow import RecordBatch, pa
from skep.spark.database import database
from skep.spark.options import QueueScope
from skep.spark.parquet import ArchiveStore, digest, digests, directory
from skep.spark.runs import Run

MAX_FILES = 100  # that a task opens at once; further files are merged in the next round
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class MergeTask:
    """The files that a task merges: small files of a queue and a day."""

    queue: str
    day: object
    sources: tuple[int, ...]
    messages: int
    bytes: int
    number: int = 0  # of the new file


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compact job: files that it replaced, files that it wrote, and old files that it deleted."""

    location: str
    replaced: int = 0
    files: int = 0
    messages: int = 0
    bytes_before: int = 0
    bytes: int = 0
    deleted: int = 0


def compact(
    spark: SparkSession,
    url: str,
    location: str,
    scope: QueueScope | None = None,
    *,
    file_messages: int = 1_000_000,
    grace: timedelta = timedelta(days=1),
    on_progress: OnProgress | None = None,
) -> Compacted:
    """Merge files with less than half of `file_messages` messages. Replaced files can be read for `grace` longer."""
    if grace < timedelta():
        raise InvalidArgument(f"grace must not be negative, got {grace}")
    store = ArchiveStore.at(location)
    (archive,) = database(url).one(manifest.FIND, location=store.location)
    if archive is None:
        raise NotFound(f"there is no archive at {store.location}")
    done = Compacted(store.location)
    with manifest.locked(url, archive):
        done = replace(done, deleted=delete_leftovers(url, store, archive))
        while merges := _plan(url, archive, scope or QueueScope(), file_messages):
            done = _round(spark, url, store, archive, merges, grace, done, on_progress)
    return done


def _round(
    spark: SparkSession, url: str, store: ArchiveStore, archive: int, merges: Sequence[MergeTask], grace: timedelta,
    done: Compacted, on_progress: OnProgress | None,
) -> Compacted:  # fmt: skip
    job, total = uuid4(), done.messages + sum(merge.messages for merge in merges)
    sources = json.dumps([merge.sources for merge in merges])
    (numbers,) = database(url).one(manifest.BEGIN_COMPACTION, archive=archive, job=job, sources=sources)
    numbered = [replace(merge, number=number) for merge, number in zip(merges, numbers, strict=True)]

    def report() -> None:
        if on_progress:
            on_progress(done.messages + manifest.progress(url, job).stored_messages, total)

    failed = tasks.run(spark, partial(merge_files, url, store, job, grace), numbered, report if on_progress else None)
    stored, deleted = manifest.progress(url, job), delete_leftovers(url, store, archive)
    for error in failed:
        if error is not None:
            raise Conflict(error, hint="The archive was not changed. Restore the damaged file from a copy.")
    return replace(
        done,
        replaced=done.replaced + sum(len(merge.sources) for merge in merges),
        files=done.files + stored.stored_files,
        messages=done.messages + stored.stored_messages,
        bytes_before=done.bytes_before + sum(merge.bytes for merge in merges),
        bytes=done.bytes + stored.stored_bytes,
        deleted=done.deleted + deleted,
    )


def _plan(url: str, archive: int, scope: QueueScope, file_messages: int) -> list[MergeTask]:
    """Group small files that fit into one new file. A file without others to merge with stays."""
    rows = database(url).rows(manifest.SMALL, archive=archive, below=file_messages // 2 + 1, **scope.arguments())
    merges: list[MergeTask] = []
    for (queue, day), files in groupby(rows, key=lambda row: row[:2]):
        for some in fitting([row[2:] for row in files], file_messages):
            sources, messages, sizes = zip(*some, strict=True)
            merges.append(MergeTask(queue, day, sources, sum(messages), sum(sizes)))
    return merges


def fitting(files: Sequence[tuple[int, int, int]], most: int) -> list[list[tuple[int, int, int]]]:
    """Group files (number, messages, bytes) so that no group has more than `most` messages. Omit groups of one file."""
    groups: list[list[tuple[int, int, int]]] = [[]]
    room = most
    for file in files:
        if file[1] > room or len(groups[-1]) == MAX_FILES:
            groups.append([])
            room = most
        groups[-1].append(file)
        room -= file[1]
    return [group for group in groups if len(group) > 1]


def merge_files(url: str, store: ArchiveStore, job: UUID, grace: timedelta, task: MergeTask) -> str | None:
    """Merge files, read the result back, and replace them by it. Return an error if a check failed."""
    path = f"{directory(task.queue, task.day)}/{task.number}-{uuid4()}.parquet"
    rows = database(url).rows(manifest.SOURCES, files=list(task.sources))
    merge = Merge([SourceFile(store, *row) for row in rows])
    try:
        size = store.write(path, merge.batches())
        found = digest(store.batches(path))
        merge.verify(path, found)
        (swapped,) = database(url).one(
            manifest.SWAP, file=task.number, job=job, sources=list(task.sources), path=path, bytes=size,
            messages=found[0], digest=found[1], grace=grace,
        )  # fmt: skip
    except Conflict as error:
        store.delete(path)
        return error.message
    if not swapped:  # another attempt at the same task has done it
        store.delete(path)
    return None


class SourceFile:
    """A file to merge. It is read once, from beginning to end, and then checked against its digest."""

    def __init__(
        self,
        store: ArchiveStore,
        path: str,
        digest: bytes,
        partition_ids: list[int],
        firsts: list[int],
        ends: list[int],
    ) -> None:
        self.path, self.digest = path, digest
        self.runs = [Run(*run) for run in zip(partition_ids, firsts, ends, strict=True)]
        self.seen = hashlib.sha256()
        self._batches = self._read(store)
        self._left: Any = None

    def _read(self, store: ArchiveStore) -> Iterator[RecordBatch]:
        try:
            yield from store.batches(self.path)
        except (OSError, pa.ArrowException) as error:
            raise Conflict(f"{self.path} cannot be read: {error}") from None

    def take(self, rows: int) -> Iterator[RecordBatch]:
        """Yield the next rows."""
        while rows:
            if not self._left:
                self._left = next(self._batches, None)
            if self._left is None:
                return  # verify() finds that rows are missing
            some = self._left.slice(0, rows)
            self._left = self._left.slice(some.num_rows)
            rows -= some.num_rows
            yield some

    def verify(self) -> None:
        """Raise Conflict unless the file has the messages that were archived in it."""
        if self._left or next(self._batches, None) or self.seen.digest() != self.digest:
            raise Conflict(f"{self.path} does not have the messages that were archived in it")


class Merge:
    """Merges files by their runs, and computes the digest of the result."""

    def __init__(self, sources: Sequence[SourceFile]) -> None:
        self._sources = sources
        self._count, self._seen = 0, hashlib.sha256()

    def batches(self) -> Iterator[RecordBatch]:
        """Yield the rows of all files, in the order of their runs."""
        numbered = ([(run, number) for run in source.runs] for number, source in enumerate(self._sources))
        for run, number in heapq.merge(*numbered):
            for batch in self._sources[number].take(run.end - run.first):
                hashes = digests(batch)
                self._sources[number].seen.update(hashes)
                self._seen.update(hashes)
                self._count += batch.num_rows
                yield batch

    def verify(self, path: str, found: tuple[int, bytes]) -> None:
        """Raise Conflict unless the old files are unchanged and the new one, as read back, has the same messages."""
        for source in self._sources:
            source.verify()
        if found != (self._count, self._seen.digest()):
            raise Conflict(f"{path} does not have the messages that were written to it")
