"""Archive: write the log to Parquet files, each message once.

A job plans files, reserves them in the manifest, and lets tasks write them. A task reads its file back, and stores it
in the manifest if it has exactly the messages of the log; the file is valid from that commit on. A job may be killed at
any point: the next one deletes its unfinished files and plans their messages again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from uuid import UUID, uuid4

from pyspark.sql import DataFrame, SparkSession

from skep.errors import Conflict, NotFound
from skep.pipelines import manifest, tasks
from skep.pipelines.manifest import ArchiveProgress, PlannedFile
from skep.spark.arrow import RecordBatch, pa
from skep.spark.database import READ, SparkDatabase, database
from skep.spark.options import QueueScope
from skep.spark.parquet import SCHEMA, ArchiveStore, digest, directory
from skep.spark.runs import as_arguments, chunks

AT_ONCE = 10_000
ROUNDS = 3  # a file is planned again if some of its messages are deleted while it is written
OnProgress = Callable[[ArchiveProgress], None]


@dataclass(frozen=True, slots=True)
class FileTask:
    """The file that a task writes."""

    number: int
    job: UUID
    file: PlannedFile


@dataclass(frozen=True, slots=True)
class Archived:
    """The result of an archive job."""

    location: str
    queues: list[str]
    files: int
    messages: int
    bytes: int


def archive(
    spark: SparkSession,
    url: str,
    location: str,
    scope: QueueScope,
    *,
    file_messages: int = 1_000_000,
    on_progress: OnProgress | None = None,
) -> Archived:
    """Archive the messages of these queues that are not archived yet. It is safe to run this at any time."""
    store, queues = ArchiveStore.at(location), manifest.queues_of(url, scope)
    number = manifest.open_archive(url, store.location, queues)
    done, failed = ArchiveProgress(), list[str]()
    with manifest.locked(url, number):
        delete_leftovers(url, store, number)
        for _ in range(ROUNDS):
            files = manifest.plan(url, queues, cores=tasks.cores(spark), file_messages=file_messages)
            if not files:
                break
            job = uuid4()
            numbers = manifest.begin(url, number, job, files)
            file_tasks = [FileTask(each, job, file) for each, file in zip(numbers, files, strict=True)]
            report = partial(_report, url, job, done, on_progress) if on_progress else None
            errors = tasks.run(spark, partial(write_file, url, store), file_tasks, report)
            failed = [error for error in errors if error]
            done = done.plus(_stored(manifest.progress(url, job)))
            delete_leftovers(url, store, number)
            if not failed:
                break
        else:
            raise Conflict(
                failed[0],
                hint="Messages were deleted during the archive job: set the queue option retain_until_archived.",
            )
    return Archived(store.location, queues, done.stored_files, done.stored_messages, done.stored_bytes)


def read_archive(
    spark: SparkSession, url: str, scope: QueueScope | None = None, location: str | None = None
) -> DataFrame:
    """Return the archived messages of these queues, which Spark reads from the files.

    `location` is the current location of the files, if they were moved.
    """
    rows = database(url).rows(manifest.FILES, **(scope or QueueScope()).arguments())
    if not rows:
        raise NotFound("these queues have no archived messages")
    paths = [f"{ArchiveStore.at(location).location if location else root}/{path}" for root, path in rows]
    columns = "queue string, partition string, partition_id long, offset long, timestamp timestamp, value string, "
    texts = "headers string, transaction_id string, trace_id string, producer string"
    return spark.read.schema(columns + texts).parquet(*paths)


def delete_leftovers(url: str, store: ArchiveStore, archive_number: int) -> int:
    """Delete the files of failed attempts, and replaced files after their grace period. Count the latter."""
    rows = database(url).rows(manifest.UNSETTLED, archive=archive_number)
    kept = {path for *_, path in rows}
    numbers = {str(number) for number, *_ in rows}
    for folder in sorted({directory(queue, day) for _, queue, day, _ in rows}):
        for path in store.names(folder):
            if path not in kept and path.rpartition("/")[2].partition("-")[0] in numbers:
                store.delete(path)
    if rows:
        database(url).rows(manifest.SETTLE, files=[number for number, *_ in rows])
    expired = database(url).rows(manifest.EXPIRED, archive=archive_number)
    for _, path in expired:
        with suppress(FileNotFoundError):  # a job that was killed has deleted it
            store.delete(path)
    if expired:
        database(url).rows(manifest.FORGET, files=[number for number, _ in expired])
    return len(expired)


def write_file(url: str, store: ArchiveStore, task: FileTask) -> str | None:
    """Write a file, read it back, and store it in the manifest. Return an error if it differs from the log."""
    file = task.file
    path = f"{directory(file.queue, file.day)}/{task.number}-{uuid4()}.parquet"
    size = store.write(path, messages(database(url), file))
    found, content = digest(store.batches(path))
    try:
        (stored,) = database(url).one(
            manifest.STORE, file=task.number, job=task.job, path=path, bytes=size, messages=found, digest=content
        )
    except Conflict as error:
        store.delete(path)
        return error.message
    if not stored:  # another attempt at the same task has stored its file
        store.delete(path)
    return None


def messages(db: SparkDatabase, file: PlannedFile) -> Iterator[RecordBatch]:
    """Yield the messages of a file from the log."""
    names = dict(zip((run.partition_id for run in file.runs), file.names, strict=True))
    for runs in chunks(file.runs, AT_ONCE):
        rows = db.rows(READ, **as_arguments(runs), payloads=True)
        ids = [runs[int(row[0]) - 1].partition_id for row in rows]
        _, offsets, times, _, *texts = zip(*rows, strict=True) if rows else ((),) * 9
        owners: list[Sequence[object]] = [[file.queue] * len(rows), [names[id_] for id_ in ids], ids]
        arrays = [*owners, offsets, times, *texts]
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, field.type) for values, field in zip(arrays, SCHEMA, strict=True)], schema=SCHEMA
        )


def _report(url: str, job: UUID, done: ArchiveProgress, on_progress: OnProgress) -> None:
    on_progress(done.plus(manifest.progress(url, job)))


def _stored(progress: ArchiveProgress) -> ArchiveProgress:
    """Return the progress without the files that were not stored."""
    return ArchiveProgress(
        progress.stored_files,
        progress.stored_files,
        progress.stored_messages,
        progress.stored_messages,
        progress.stored_bytes,
    )
