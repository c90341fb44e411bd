"""The Parquet files of an archive: one row for each message, sorted by runs. Paths are relative to its location."""

import hashlib
import importlib
import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from skep.errors import ConfigError
from skep.spark.arrow import RecordBatch, pa
from skep.spark.runs import Run

pc: Any = importlib.import_module("pyarrow.compute")
fs: Any = importlib.import_module("pyarrow.fs")
pq: Any = importlib.import_module("pyarrow.parquet")

SCHEMA = pa.schema(
    [
        ("queue", pa.string()),
        ("partition", pa.string()),
        ("partition_id", pa.int64()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("value", pa.string()),  # JSON; null: the message was deleted
        ("headers", pa.string()),  # JSON
        ("transaction_id", pa.string()),
        ("trace_id", pa.string()),
        ("producer", pa.string()),
    ]
)
DIGESTED = ("partition_id", "offset", "timestamp", "value", "headers", "transaction_id", "trace_id", "producer")
ROW_GROUP = 25_000  # rows; a reader of a part of a file reads whole row groups
LONGEST_NAME = 200
encode = json.JSONEncoder(ensure_ascii=False).encode  # as json_build_array writes it


@dataclass(frozen=True, slots=True)
class ArchiveStore:
    """The directory of an archive: a local path, or a URI that Arrow supports (s3://, gs://, hdfs://)."""

    location: str

    @classmethod
    def at(cls, location: str) -> "ArchiveStore":
        """Return the store at a location; a local path becomes absolute."""
        if not location.strip():
            raise ConfigError("the location of the archive is empty")
        return cls(location.rstrip("/") if "://" in location else str(Path(location).expanduser().absolute()))

    @property
    def is_local(self) -> bool:
        return "://" not in self.location

    def _open(self) -> tuple[Any, str]:
        if self.is_local:
            return fs.LocalFileSystem(), self.location
        try:
            found, root = fs.FileSystem.from_uri(self.location)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConfigError(f"the location of the archive, {self.location}, is invalid: {error}") from None
        return found, root

    def write(self, path: str, batches: Iterable[RecordBatch]) -> int:
        """Write a file durably, and return its size in bytes."""
        files, root = self._open()
        full = f"{root}/{path}"
        files.create_dir(full.rpartition("/")[0], recursive=True)
        with files.open_output_stream(full) as sink, pq.ParquetWriter(sink, SCHEMA, compression="zstd") as writer:
            for table in _groups(batches):
                writer.write_table(table, row_group_size=ROW_GROUP)
        if self.is_local:
            # Retention deletes archived messages: the file and its name must survive a power failure.
            _sync(Path(full), *Path(full).parents[:2], Path(self.location))
        return int(files.get_file_info(full).size)

    def batches(self, path: str) -> Iterator[RecordBatch]:
        """Yield the rows of a file."""
        files, root = self._open()
        with files.open_input_file(f"{root}/{path}") as source, pq.ParquetFile(source) as file:
            yield from file.iter_batches(batch_size=10_000)

    def runs(self, path: str, runs: Sequence[Run]) -> Any:  # noqa: ANN401
        """Return the rows of a file that belong to these runs, in the order of the file.

        Two runs of one partition are treated as one, together with everything between them.
        """
        files, root = self._open()
        wanted = RunFilter(runs)
        with files.open_input_file(f"{root}/{path}") as source, pq.ParquetFile(source) as file:
            numbers = range(file.num_row_groups)
            groups = [number for number in numbers if wanted.may_match(file.metadata.row_group(number))]
            tables = [wanted.filter(file.read_row_group(number)) for number in groups]
        return pa.concat_tables(tables) if tables else SCHEMA.empty_table()

    def names(self, directory: str) -> list[str]:
        """Return the paths of the files in a directory."""
        files, root = self._open()
        found = files.get_file_info(fs.FileSelector(f"{root}/{directory}", allow_not_found=True))
        return [f"{directory}/{info.base_name}" for info in found if info.type == fs.FileType.File]

    def delete(self, path: str) -> None:
        files, root = self._open()
        files.delete_file(f"{root}/{path}")
        if self.is_local:  # otherwise a power failure could bring the file back, and the manifest would not have it
            _sync(Path(root, path).parent)


class RunFilter:
    """Finds runs in a file. There may be thousands of partitions, too many for a filter expression of Arrow."""

    def __init__(self, runs: Sequence[Run]) -> None:
        bounds: dict[int, tuple[int, int]] = {}
        for id_, first, end in runs:
            before = bounds.get(id_, (first, end))
            bounds[id_] = min(first, before[0]), max(end, before[1])
        self._bounds, self._ids = bounds, sorted(bounds)
        self._firsts = pa.array([bounds[id_][0] for id_ in self._ids], pa.int64())
        self._ends = pa.array([bounds[id_][1] for id_ in self._ids], pa.int64())

    def may_match(self, group: Any) -> bool:  # noqa: ANN401
        """Return whether a row group can have rows of the runs, according to its statistics."""
        ids, offset = (group.column(SCHEMA.get_field_index(name)).statistics for name in ("partition_id", "offset"))
        found = self._ids[bisect_left(self._ids, ids.min) : bisect_right(self._ids, ids.max)]
        return any(self._bounds[id_][0] <= offset.max and self._bounds[id_][1] > offset.min for id_ in found)

    def filter(self, table: Any) -> Any:  # noqa: ANN401
        """Return the rows of a table that belong to the runs."""
        index = pc.index_in(table["partition_id"], pa.array(self._ids, pa.int64()))
        from_first = pc.greater_equal(table["offset"], self._firsts.take(index))
        before_end = pc.less(table["offset"], self._ends.take(index))
        return table.filter(pc.and_(from_first, before_end))  # null, for a partition without a run, filters the row out


def directory(queue: str, day: object) -> str:
    """Return the directory of the files of a queue and a day. It is named as Hive names partitions, for other tools."""
    name = quote(queue, safe="")
    if len(name) > LONGEST_NAME:
        name = f"{name[:150]}~{hashlib.sha256(queue.encode()).hexdigest()[:16]}"
    return f"queue={name}/day={day}"


def digest(batches: Iterable[RecordBatch]) -> tuple[int, bytes]:
    """Return the number of messages, and the same digest as `skep._digest`."""
    count, total = 0, hashlib.sha256()
    for batch in batches:
        total.update(digests(batch))
        count += batch.num_rows
    return count, total.digest()


def digests(batch: RecordBatch) -> bytes:
    """Return the digests of the messages, concatenated."""
    columns = [_plain(batch.column(batch.schema.get_field_index(name))).to_pylist() for name in DIGESTED]
    return b"".join(hashlib.sha256(encode(row).encode()).digest() for row in zip(*columns, strict=True))


def _plain(column: Any) -> Any:  # noqa: ANN401
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _groups(batches: Iterable[RecordBatch]) -> Iterator[Any]:
    collected, rows = list[RecordBatch](), 0
    for batch in batches:
        collected.append(batch)
        rows += batch.num_rows
        if rows >= ROW_GROUP:
            yield pa.Table.from_batches(collected)
            collected, rows = [], 0
    if collected:
        yield pa.Table.from_batches(collected)


def _sync(*paths: Path) -> None:
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
