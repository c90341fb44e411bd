"""Compact: small files of the archive become large ones, and no reader ever sees a message twice or not at all.

A task merges the files of a queue and a day, checks that each has what it had when it was archived, reads the result
again, and swaps it for them in the manifest: one transaction. The old files stay for a while, for those who asked
for them before. A job may die anywhere: what it had swapped stays, and the next one clears the rest.
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
from skep.pipelines.archiving import clear
from skep.spark.arrow import RecordBatch, pa
from skep.spark.database import database
from skep.spark.options import Selection
from skep.spark.parquet import Store, digest, digests, directory
from skep.spark.window import Run

MOST = 100  # files that a task has open at once; what is more comes in the next round
Watch = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Piece:
    """What a task merges: small files of a queue and a day."""

    queue: str
    day: object
    sources: tuple[int, ...]
    messages: int
    bytes: int
    number: int = 0  # of the file to be


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a job has done: files that were replaced, and by how many; and old ones that it deleted."""

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
    selection: Selection | None = None,
    *,
    file_messages: int = 1_000_000,
    grace: timedelta = timedelta(days=1),
    watch: Watch | None = None,
) -> Compacted:
    """Merge files of less than half of `file_messages`. Those that are replaced may be read for `grace`."""
    if grace < timedelta():
        raise InvalidArgument("the grace is negative")
    store = Store.at(location)
    (archive,) = database(url).one(manifest.FIND, location=store.location)
    if archive is None:
        raise NotFound(f"there is no archive at {store.location}")
    done = Compacted(store.location)
    with manifest.locked(url, archive):
        done = replace(done, deleted=clear(url, store, archive))
        while pieces := _plan(url, archive, selection or Selection(), file_messages):
            done = _round(spark, url, store, archive, pieces, grace, done, watch)
    return done


def _round(
    spark: SparkSession, url: str, store: Store, archive: int, pieces: Sequence[Piece], grace: timedelta,
    done: Compacted, watch: Watch | None,
) -> Compacted:  # fmt: skip
    job, total = uuid4(), done.messages + sum(piece.messages for piece in pieces)
    sources = json.dumps([piece.sources for piece in pieces])
    (numbers,) = database(url).one(manifest.BEGIN_COMPACTION, archive=archive, job=job, sources=sources)
    numbered = [replace(piece, number=number) for piece, number in zip(pieces, numbers, strict=True)]

    def look() -> None:
        if watch:
            watch(done.messages + manifest.progress(url, job).stored_messages, total)

    failed = tasks.run(spark, partial(merge_files, url, store, job, grace), numbered, look if watch else None)
    stored, deleted = manifest.progress(url, job), clear(url, store, archive)
    for error in failed:
        if error is not None:
            raise Conflict(
                error, hint="The archive is as it was. A file that is damaged has to come from a copy of it."
            )
    return replace(
        done,
        replaced=done.replaced + sum(len(piece.sources) for piece in pieces),
        files=done.files + stored.stored_files,
        messages=done.messages + stored.stored_messages,
        bytes_before=done.bytes_before + sum(piece.bytes for piece in pieces),
        bytes=done.bytes + stored.stored_bytes,
        deleted=done.deleted + deleted,
    )


def _plan(url: str, archive: int, selection: Selection, file_messages: int) -> list[Piece]:
    """Put together what fits into a file; what is alone stays."""
    rows = database(url).rows(manifest.SMALL, archive=archive, below=file_messages // 2 + 1, **selection.arguments())
    pieces: list[Piece] = []
    for (queue, day), files in groupby(rows, key=lambda row: row[:2]):
        for some in fitting([row[2:] for row in files], file_messages):
            sources, messages, sizes = zip(*some, strict=True)
            pieces.append(Piece(queue, day, sources, sum(messages), sum(sizes)))
    return pieces


def fitting(files: Sequence[tuple[int, int, int]], most: int) -> list[list[tuple[int, int, int]]]:
    """Share files (number, messages, bytes) out to groups that are not too large; return those of two and more."""
    groups: list[list[tuple[int, int, int]]] = [[]]
    room = most
    for file in files:
        if file[1] > room or len(groups[-1]) == MOST:
            groups.append([])
            room = most
        groups[-1].append(file)
        room -= file[1]
    return [group for group in groups if len(group) > 1]


def merge_files(url: str, store: Store, job: UUID, grace: timedelta, piece: Piece) -> str | None:
    """Merge files, read the result again, and swap it for them. Return what is wrong if it must not be."""
    path = f"{directory(piece.queue, piece.day)}/{piece.number}-{uuid4()}.parquet"
    rows = database(url).rows(manifest.SOURCES, files=list(piece.sources))
    merge = Merge([OldFile(store, *row) for row in rows])
    try:
        size = store.write(path, merge.batches())
        found = digest(store.batches(path))
        merge.verify(path, found)
        (swapped,) = database(url).one(
            manifest.SWAP, file=piece.number, job=job, sources=list(piece.sources), path=path, bytes=size,
            messages=found[0], digest=found[1], grace=grace,
        )  # fmt: skip
    except Conflict as error:
        store.delete(path)
        return error.message
    if not swapped:  # but by another attempt at the same task
        store.delete(path)
    return None


class OldFile:
    """A file to be merged, read from its beginning to its end; knows in the end whether it is what was archived."""

    def __init__(
        self, store: Store, path: str, digest: bytes, lanes: list[int], firsts: list[int], ends: list[int]
    ) -> None:
        self.path, self.digest = path, digest
        self.runs = [Run(*run) for run in zip(lanes, firsts, ends, strict=True)]
        self.seen = hashlib.sha256()
        self._batches = self._read(store)
        self._left: Any = None

    def _read(self, store: Store) -> Iterator[RecordBatch]:
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
                return  # the digest tells
            some = self._left.slice(0, rows)
            self._left = self._left.slice(some.num_rows)
            rows -= some.num_rows
            yield some

    def verify(self) -> None:
        if self._left or next(self._batches, None) or self.seen.digest() != self.digest:
            raise Conflict(f"{self.path} does not have what was archived in it")


class Merge:
    """Files as one, run of a lane after run, and the digest of that."""

    def __init__(self, sources: Sequence[OldFile]) -> None:
        self._sources = sources
        self._count, self._seen = 0, hashlib.sha256()

    def batches(self) -> Iterator[RecordBatch]:
        numbered = ([(run, number) for run in source.runs] for number, source in enumerate(self._sources))
        for run, number in heapq.merge(*numbered):
            for batch in self._sources[number].take(run.end - run.first):
                hashes = digests(batch)
                self._sources[number].seen.update(hashes)
                self._seen.update(hashes)
                self._count += batch.num_rows
                yield batch

    def verify(self, path: str, found: tuple[int, bytes]) -> None:
        """See that the files had what was archived, and that what was read again from the new one is the same."""
        for source in self._sources:
            source.verify()
        if found != (self._count, self._seen.digest()):
            raise Conflict(f"{path} does not have what was written to it")
