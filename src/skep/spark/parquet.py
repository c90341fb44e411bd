"""The files of the archive: Parquet, a message a row, run of a lane after run. Paths are below its location."""

import hashlib
import importlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from skep.errors import ConfigError
from skep.spark.arrow import RecordBatch, pa
from skep.spark.window import Run

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
ROW_GROUP = 25_000  # a reader that wants a part of a file reads whole groups
LONGEST_NAME = 200
encode = json.JSONEncoder(ensure_ascii=False).encode  # as json_build_array writes it


@dataclass(frozen=True, slots=True)
class Store:
    """A directory: on this machine, or wherever Arrow reaches by a URI (s3://, gs://, hdfs://)."""

    location: str

    @classmethod
    def at(cls, location: str) -> "Store":
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
            raise ConfigError(f"the archive cannot be at {self.location}: {error}") from None
        return found, root

    def write(self, path: str, batches: Iterable[RecordBatch]) -> int:
        """Write a file, and have it on the disk; return its size."""
        files, root = self._open()
        full = f"{root}/{path}"
        files.create_dir(full.rpartition("/")[0], recursive=True)
        with files.open_output_stream(full) as sink, pq.ParquetWriter(sink, SCHEMA, compression="zstd") as writer:
            for table in _groups(batches):
                writer.write_table(table, row_group_size=ROW_GROUP)
        if self.is_local:
            # Retention deletes what the archive has: it must be there after a power cut, name and all.
            _sync(Path(full), *Path(full).parents[:2], Path(self.location))
        return int(files.get_file_info(full).size)

    def batches(self, path: str) -> Iterator[RecordBatch]:
        """Yield everything in a file."""
        files, root = self._open()
        with files.open_input_file(f"{root}/{path}") as source, pq.ParquetFile(source) as file:
            yield from file.iter_batches(batch_size=10_000)

    def runs(self, path: str, runs: Sequence[Run]) -> Any:  # noqa: ANN401
        """Return what a file has of these runs, as a table in its order."""
        files, root = self._open()
        wanted = [
            [("partition_id", "==", run.lane), ("offset", ">=", run.first), ("offset", "<", run.end)] for run in runs
        ]
        return pq.read_table(
            f"{root}/{path}", filesystem=files, filters=wanted, schema=SCHEMA, partitioning=None, use_threads=False
        )

    def names(self, directory: str) -> list[str]:
        files, root = self._open()
        found = files.get_file_info(fs.FileSelector(f"{root}/{directory}", allow_not_found=True))
        return [f"{directory}/{info.base_name}" for info in found if info.type == fs.FileType.File]

    def delete(self, path: str) -> None:
        files, root = self._open()
        files.delete_file(f"{root}/{path}")
        if self.is_local:  # or it would be there again after a power cut, and the manifest would not know it
            _sync(Path(root, path).parent)


def directory(queue: str, day: object) -> str:
    """Return where files of a queue and a day are: as Hive would have it, for tools that look for that."""
    name = quote(queue, safe="")
    if len(name) > LONGEST_NAME:
        name = f"{name[:150]}~{hashlib.sha256(queue.encode()).hexdigest()[:16]}"
    return f"queue={name}/day={day}"


def digest(batches: Iterable[RecordBatch]) -> tuple[int, bytes]:
    """Count the messages, and compute what `skep.digest_of` does."""
    count, total = 0, hashlib.sha256()
    for batch in batches:
        total.update(digests(batch))
        count += batch.num_rows
    return count, total.digest()


def digests(batch: RecordBatch) -> bytes:
    """Return the digest of each message, one after the other."""
    columns = [_plain(batch.column(batch.schema.get_field_index(name))).to_pylist() for name in DIGESTED]
    return b"".join(hashlib.sha256(encode(row).encode()).digest() for row in zip(*columns, strict=True))


def _plain(column: Any) -> Any:  # noqa: ANN401
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _groups(batches: Iterable[RecordBatch]) -> Iterator[Any]:
    held, rows = list[RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= ROW_GROUP:
            yield pa.Table.from_batches(held)
            held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _sync(*paths: Path) -> None:
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
