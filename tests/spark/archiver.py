"""Archive jobs, checks of their files, and a driver in another process that is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pyarrow.parquet as pq

from skep.pipelines import QueueScope, archive, compact
from skep.pipelines.archiving import Archived
from skep.spark import session
from tests.spark.killing import ROOT
from tests.spark.work import FAST, Work, until

Row = tuple[Any, ...]
COLUMNS = ["queue", "partition", "partition_id", "offset", "timestamp", "value", "headers", "transaction_id"]
LOG = """
    SELECT l.queue, l.partition, m.partition_id, m.offset, m.created_at, m.payload::text,
           m.headers::text, m.transaction_id
    FROM skep.messages m JOIN skep.partition_list l USING (partition_id) WHERE l.queue = %s ORDER BY 3, 4
"""


def archive_of(work: Work, *queues: str, file_messages: int = 20) -> Archived:
    return archive(
        work.spark, work.url, str(work.home / "archive"), QueueScope(queues or ("q",)), file_messages=file_messages
    )


def files(work: Work) -> set[str]:
    root = work.home / "archive"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def rows_of(work: Work, paths: Iterable[str]) -> list[Row]:
    """Return the rows of these files, in order."""
    tables = [pq.ParquetFile(work.home / "archive" / path).read(COLUMNS) for path in paths]
    rows = [row for table in tables for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
    return sorted(rows, key=lambda row: (row[2], row[3]))


def archived(work: Work) -> list[Row]:
    """Return the rows of all files, whether or not the manifest has them."""
    return rows_of(work, files(work))


def named(work: Work) -> list[Row]:
    """Return the rows of the files in the manifest."""
    return rows_of(work, [path for (path,) in work.sql("SELECT path FROM skep._archived_files()")])


def log(work: Work, queue: str = "q") -> list[Row]:
    return work.sql(LOG, queue)


def check(work: Work, queue: str = "q") -> None:
    """Assert that each message is in one file, that the manifest has all files, and that retention may delete all."""
    assert archived(work) == log(work, queue)
    assert files(work) == {path for (path,) in work.sql("SELECT path FROM skep._archived_files()")}
    assert work.sql("SELECT count(*) FROM skep.archive_files WHERE NOT settled") == [(0,)]
    late = "SELECT l.partition, l.last_offset + 1, a.end_offset FROM skep.partition_list l "
    late += "LEFT JOIN skep.archive_marks a USING (partition_id) "
    late += "WHERE a.end_offset IS DISTINCT FROM l.last_offset + 1 AND l.last_offset >= 0"
    assert work.sql(late) == []


def killed_driver(work: Work, job: str, far_enough: str) -> None:
    """Start a driver in another process, and kill it with its tasks."""
    command = [sys.executable, "-m", "tests.spark.archiver", job, work.url, str(work.home / "archive")]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    until(lambda: work.sql(far_enough)[0][0] or process.poll() is not None, "some files")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(job: str, url: str, location: str) -> None:
    spark = session("archiver", master="local[2]", config=FAST)
    spark.sparkContext.setLogLevel("OFF")
    if job == "archive":
        archive(spark, url, location, QueueScope(("q",)), file_messages=20)
    else:
        compact(spark, url, location, file_messages=40)


if __name__ == "__main__":
    main(*sys.argv[1:])
