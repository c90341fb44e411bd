"""An archive that can be asked whether it is right; and a driver of its own, to be killed."""

import sys
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from skep.pipelines import Selection, archive
from skep.pipelines.archiving import Archived, Piece, Watch, write_file
from skep.spark import session
from skep.spark.parquet import Store
from tests.spark.work import FAST, Work

COLUMNS = ["queue", "partition", "partition_id", "offset", "timestamp", "value", "headers", "transaction_id"]
LOG = """
    SELECT l.queue, l.partition, m.partition_id, m.offset, m.created_at, m.payload::text,
           m.headers::text, m.transaction_id
    FROM skep.messages m JOIN skep.lanes l USING (partition_id) WHERE l.queue = %s ORDER BY 3, 4
"""


def archive_of(work: Work, *queues: str, file_messages: int = 20) -> Archived:
    return archive(
        work.spark, work.url, str(work.home / "archive"), Selection(queues or ("q",)), file_messages=file_messages
    )


def here(spark: SparkSession, url: str, store: Store, pieces: Sequence[Piece], watch: Watch | None) -> list[str]:
    """Do what the tasks do, in this process."""
    return [error for piece in pieces if (error := write_file(url, store, piece)) is not None]


def files(work: Work) -> set[str]:
    root = work.home / "archive"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def archived(work: Work) -> list[tuple[Any, ...]]:
    """Every row of every file there is, whatever the manifest says."""
    tables = [pq.ParquetFile(work.home / "archive" / path).read(COLUMNS) for path in files(work)]
    rows = [row for table in tables for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
    return sorted(rows, key=lambda row: (row[2], row[3]))


def check(work: Work, queue: str = "q") -> None:
    """Everything is in one file, the files are those of the manifest, and retention may delete all of it."""
    assert archived(work) == work.sql(LOG, queue)
    assert files(work) == {path for (path,) in work.sql("SELECT path FROM skep.archived_files()")}
    assert work.sql("SELECT count(*) FROM skep.archive_files WHERE NOT settled") == [(0,)]
    late = "SELECT l.partition, l.last_offset + 1, a.end_offset FROM skep.lanes l LEFT JOIN skep.archive_marks a "
    late += "USING (partition_id) WHERE a.end_offset IS DISTINCT FROM l.last_offset + 1 AND l.last_offset >= 0"
    assert work.sql(late) == []


def main(url: str, location: str) -> None:
    spark = session("archiver", master="local[2]", config=FAST)
    spark.sparkContext.setLogLevel("OFF")
    archive(spark, url, location, Selection(("q",)), file_messages=20)


if __name__ == "__main__":
    main(*sys.argv[1:])
