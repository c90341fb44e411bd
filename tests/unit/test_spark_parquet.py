"""The files of the archive: runs are found in them, without reading other row groups."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from skep.spark import parquet
from skep.spark.arrow import RecordBatch, pa
from skep.spark.parquet import SCHEMA, ArchiveStore, RunFilter, digest
from skep.spark.runs import Run

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def batch(runs: Sequence[Run]) -> RecordBatch:
    rows = [(run.partition_id, offset) for run in runs for offset in range(run.first, run.end)]
    nothing = [None] * len(rows)
    partition_ids, offsets = zip(*rows, strict=True)
    columns = [
        ["q"] * len(rows),
        ["p"] * len(rows),
        partition_ids,
        offsets,
        [NOW] * len(rows),
        ["1"] * len(rows),
        *[nothing] * 4,
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def found(store: ArchiveStore, runs: Sequence[Run]) -> list[tuple[int, int]]:
    table = store.runs("file", runs)
    return list(zip(table["partition_id"].to_pylist(), table["offset"].to_pylist(), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_runs_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int):
    """In any row group; partitions that only the file has, or that only the runs have, are left out."""
    random.seed(seed)
    monkeypatch.setattr(parquet, "ROW_GROUP", random.choice([3, 10, 100]))
    runs = [Run(id_, first := random.randrange(50), first + random.randrange(1, 30)) for id_ in range(0, 60, 2)]
    store = ArchiveStore.at(str(tmp_path))
    store.write("file", [batch([run]) for run in runs])
    wanted = [Run(id_, first := random.randrange(70), first + random.randrange(1, 40)) for id_ in range(0, 60, 3)]
    inside = {(id_, offset) for id_, first, end in wanted for offset in range(first, end)}
    every = [(id_, offset) for id_, first, end in runs for offset in range(first, end)]
    assert found(store, wanted) == [each for each in every if each in inside]
    assert digest(store.batches("file")) == digest([batch(runs)])


def test_only_row_groups_that_may_have_them_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parquet, "ROW_GROUP", 10)
    store, read, real = ArchiveStore.at(str(tmp_path)), list[int](), RunFilter.filter
    store.write("file", [batch([Run(1, 0, 30)]), batch([Run(2, 0, 30)])])
    monkeypatch.setattr(RunFilter, "filter", lambda self, table: read.append(table.num_rows) or real(self, table))
    assert found(store, [Run(1, 12, 14), Run(2, 29, 40)]) == [(1, 12), (1, 13), (2, 29)]
    assert read == [10, 10]
    assert found(store, [Run(3, 0, 9)]) == []


def test_thousands_of_partitions(tmp_path: Path):
    runs = [Run(id_, 0, 1) for id_ in range(20_000)]
    store: Any = ArchiveStore.at(str(tmp_path))
    store.write("file", [batch(runs)])
    assert len(found(store, runs)) == 20_000
    assert found(store, runs[::1000]) == [(id_, 0) for id_ in range(0, 20_000, 1000)]
