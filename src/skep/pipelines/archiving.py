"""Archive: the log as Parquet, each message once.

A job plans files, reserves them in the manifest, and lets tasks write them. A task reads its file again and puts it
into the manifest if it has exactly what the log has; from that commit on it counts. A job may die anywhere: the next
one clears what it left, and plans what is missing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from uuid import UUID, uuid4

from pyspark.sql import DataFrame, SparkSession

from skep.errors import Conflict, NotFound
from skep.pipelines import manifest, tasks
from skep.pipelines.manifest import Planned, Progress
from skep.spark.arrow import RecordBatch, pa
from skep.spark.database import READ, Database, database
from skep.spark.options import Selection
from skep.spark.parquet import SCHEMA, Store, digest, directory
from skep.spark.window import chunks

AT_ONCE = 10_000
ROUNDS = 3  # messages that are deleted meanwhile spoil a file: it is planned anew
Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Piece:
    """What a task writes."""

    number: int
    job: UUID
    file: Planned


@dataclass(frozen=True, slots=True)
class Archived:
    """What a job has done."""

    location: str
    queues: list[str]
    files: int
    messages: int
    bytes: int


def archive(
    spark: SparkSession,
    url: str,
    location: str,
    selection: Selection,
    *,
    file_messages: int = 1_000_000,
    watch: Watch | None = None,
) -> Archived:
    """Store what these queues have and the archive has not. Run it as often as you like."""
    store, queues = Store.at(location), manifest.queues_of(url, selection)
    number = manifest.open_archive(url, store.location, queues)
    done, failed = Progress(), list[str]()
    with manifest.locked(url, number):
        clear(url, store, number)
        for _ in range(ROUNDS):
            files = manifest.plan(url, queues, cores=tasks.cores(spark), file_messages=file_messages)
            if not files:
                break
            job = uuid4()
            numbers = manifest.begin(url, number, job, files)
            pieces = [Piece(each, job, file) for each, file in zip(numbers, files, strict=True)]
            look = partial(_tell, url, job, done, watch) if watch else None
            failed = [error for error in tasks.run(spark, partial(write_file, url, store), pieces, look) if error]
            done = done.plus(_stored(manifest.progress(url, job)))
            clear(url, store, number)
            if not failed:
                break
        else:
            raise Conflict(failed[0], hint="Messages are deleted while they are archived: set retain_until_archived.")
    return Archived(store.location, queues, done.stored_files, done.stored_messages, done.stored_bytes)


def read_archive(
    spark: SparkSession, url: str, selection: Selection | None = None, location: str | None = None
) -> DataFrame:
    """Return what the archive has of these queues, read by Spark itself; `location` is where the files are now."""
    rows = database(url).rows(manifest.FILES, **(selection or Selection()).arguments())
    if not rows:
        raise NotFound("nothing of these queues is archived")
    paths = [f"{Store.at(location).location if location else root}/{path}" for root, path in rows]
    columns = "queue string, partition string, partition_id long, offset long, timestamp timestamp, value string, "
    texts = "headers string, transaction_id string, trace_id string, producer string"
    return spark.read.schema(columns + texts).parquet(*paths)


def clear(url: str, store: Store, archive_number: int) -> int:
    """Delete what failed attempts have left, and files that were replaced long enough ago; return how many of these."""
    rows = database(url).rows(manifest.UNSETTLED, archive=archive_number)
    kept = {path for *_, path in rows}
    numbers = {str(number) for number, *_ in rows}
    for place in sorted({directory(queue, day) for _, queue, day, _ in rows}):
        for path in store.names(place):
            if path not in kept and path.rpartition("/")[2].partition("-")[0] in numbers:
                store.delete(path)
    if rows:
        database(url).rows(manifest.SETTLE, files=[number for number, *_ in rows])
    expired = database(url).rows(manifest.EXPIRED, archive=archive_number)
    for _, path in expired:
        with suppress(FileNotFoundError):  # a job that was killed had come so far
            store.delete(path)
    if expired:
        database(url).rows(manifest.FORGET, files=[number for number, _ in expired])
    return len(expired)


def write_file(url: str, store: Store, piece: Piece) -> str | None:
    """Write one file, read it again, and store it. Return what is wrong if it is not what the log has."""
    file = piece.file
    path = f"{directory(file.queue, file.day)}/{piece.number}-{uuid4()}.parquet"
    size = store.write(path, messages(database(url), file))
    found, content = digest(store.batches(path))
    try:
        (stored,) = database(url).one(
            manifest.STORE, file=piece.number, job=piece.job, path=path, bytes=size, messages=found, digest=content
        )
    except Conflict as error:
        store.delete(path)
        return error.message
    if not stored:  # by another attempt at the same task
        store.delete(path)
    return None


def messages(db: Database, file: Planned) -> Iterator[RecordBatch]:
    names = dict(zip((run.lane for run in file.runs), file.names, strict=True))
    for runs in chunks(file.runs, AT_ONCE):
        rows = db.rows(
            READ, lanes=[run.lane for run in runs], firsts=[run.first for run in runs], ends=[run.end for run in runs],
            payloads=True,
        )  # fmt: skip
        lanes = [runs[int(row[0]) - 1].lane for row in rows]
        _, offsets, times, _, *texts = zip(*rows, strict=True) if rows else ((),) * 9
        whose: list[Sequence[object]] = [[file.queue] * len(rows), [names[lane] for lane in lanes], lanes]
        arrays = [*whose, offsets, times, *texts]
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, field.type) for values, field in zip(arrays, SCHEMA, strict=True)], schema=SCHEMA
        )


def _tell(url: str, job: UUID, done: Progress, watch: Watch) -> None:
    watch(done.plus(manifest.progress(url, job)))


def _stored(progress: Progress) -> Progress:
    return Progress(
        progress.stored_files,
        progress.stored_files,
        progress.stored_messages,
        progress.stored_messages,
        progress.stored_bytes,
    )
