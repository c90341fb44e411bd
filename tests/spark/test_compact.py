"""Compaction: fewer files, the same messages, and nobody who reads meanwhile notices."""

import itertools
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skep.errors import Conflict, DataLoss, InvalidArgument, NotFound
from skep.pipelines import Selection, compact, compacting, read_archive, replaying
from skep.pipelines.compacting import MOST, Compacted, fitting
from skep.spark.database import database
from skep.spark.log import Log
from skep.spark.parquet import Store
from skep.spark.reader import fetch
from skep.spark.window import Run
from tests.spark.archiver import archive_of, archived, check, files, killed_driver, log, named
from tests.spark.killing import Killer
from tests.spark.work import Work, is_in_order

pytestmark = pytest.mark.timeout(300)
AT_ONCE = timedelta()


def compacted(work: Work, *queues: str, file_messages: int = 60, grace: timedelta = AT_ONCE) -> Compacted:
    selection = Selection(queues) if queues else None
    return compact(
        work.spark, work.url, str(work.home / "archive"), selection, file_messages=file_messages, grace=grace
    )


def small_files(work: Work, number: int = 6, size: int = 12) -> None:
    """Archive a few messages at a time, of three lanes."""
    for _ in range(number):
        work.spread("q", size, 3)
        archive_of(work)


def runs(work: Work) -> list[tuple[int, int, int]]:
    return work.sql("SELECT partition_id, first_offset, end_offset FROM skep.archive_runs ORDER BY 1, 2")


def test_small_files_become_large_ones(work: Work):
    """On a real Spark: lane by lane in order, other queues and days apart, and a second time nothing."""
    small_files(work)
    for partition in ("p0", "new"):
        work.push("other", 1, partition=partition)
        archive_of(work, "other")
    work.sql("UPDATE skep.archive_files SET day = day - 1 WHERE id = (SELECT min(id) FROM skep.archive_files)")
    before, seen = archived(work), list[tuple[int, int]]()
    done = compact(
        work.spark, work.url, str(work.home / "archive"), Selection(("q",)), file_messages=1000, grace=AT_ONCE,
        watch=lambda *progress: seen.append(progress),
    )  # fmt: skip
    assert (done.replaced, done.files, done.messages, done.deleted) == (5, 1, 60, 5)
    assert (seen[-1], done.bytes < done.bytes_before) == ((60, 60), True)
    assert archived(work) == before
    assert len(files(work)) == 4
    assert [run for run in runs(work) if run[1]] == [(lane, 4, 24) for lane in (1, 2, 3)]
    (path,) = work.sql("SELECT path FROM skep._archived_files(ARRAY['q']) WHERE messages = 60")[0]
    lanes = pq.ParquetFile(work.home / "archive" / path).read(["partition_id", "offset"]).to_pylist()
    assert [tuple(row.values()) for row in lanes] == [(lane, n) for lane in (1, 2, 3) for n in range(4, 24)]
    assert compacted(work, "q", file_messages=1000).files == 0
    assert compacted(work, file_messages=1000).replaced == 2
    assert archived(work) == before


def test_killed_at_every_step(work: Work, killer: Killer):
    """At no moment does the manifest name less or more than everything; the next job makes the files right."""
    for number in itertools.count():
        for _ in range(2):
            work.spread("q", 12, 3)
            assert killer.runs("archive")
        ended = killer.runs("compact", number, size=30)
        assert named(work) == log(work)
        if ended:
            break
        assert killer.runs("compact", size=30)
        check(work)
    check(work)
    assert number > 25


def test_a_killed_driver(work: Work):
    """For good, in the middle of its files, with tasks and all; whoever reads then reads everything."""
    work.spread("q", 1000, 20)
    archive_of(work, file_messages=10)
    before = archived(work)
    killed_driver(work, "compact", "SELECT count(*) > 6 FROM skep.archive_files WHERE state = 'replaced'")
    assert work.sql("SELECT count(*) FROM skep.archive_files WHERE state = 'writing'")[0][0] > 0
    assert named(work) == before
    compacted(work, file_messages=40)
    work.sql("UPDATE skep.archive_files SET kept_until = now() WHERE state = 'replaced'")
    compacted(work, file_messages=40)
    check(work)
    assert len(files(work)) == 25


def test_who_began_before_reads_on(alone: Work):
    """The old files are there until their time is up, whatever jobs run; then the next job deletes them."""
    small_files(alone)
    before = sorted((row[2], row[3], row[5]) for row in log(alone))
    frame = read_archive(alone.spark, alone.url)
    assert compacted(alone, grace=timedelta(hours=1)).deleted == 0
    alone.push("q", "later")
    archive_of(alone)
    old = files(alone) - {path for (path,) in alone.sql("SELECT path FROM skep._archived_files()")}
    assert len(old) == 6 - alone.sql("SELECT count(*) FROM skep._archived_files() WHERE messages = 12")[0][0]
    assert sorted((row.partition_id, row.offset, row.value) for row in frame.collect()) == before
    assert named(alone) == log(alone)
    alone.sql("UPDATE skep.archive_files SET kept_until = now() WHERE state = 'replaced'")
    archive_of(alone)
    assert not old & files(alone)
    check(alone)


def deleted_from_the_log(work: Work) -> list[Any]:
    """Leave hardly anything in the log; return everything there was."""
    every = work.log("q")
    work.sql("""SELECT skep.configure_queue('q', '{"retain_until_archived": true, "max_size": 1}')""")
    assert work.sql("SELECT sum(end_offset - first_offset) FROM skep.retain()") == [(len(every) - 3,)]
    return every


def rows(frame: Any) -> list[Any]:
    return sorted((row.partition, row.offset, row.value) for row in frame.collect())


def test_who_reads_meanwhile(work: Work, killer: Killer):
    """A real Spark reads again and again, while files are merged, and deleted at once."""
    small_files(work, 24, 6)
    every, location = deleted_from_the_log(work), str(work.home / "archive")
    sizes = (12, 24, 48, 96, 288)
    compactor = Thread(target=lambda: [killer.runs("compact", size=size) for size in sizes])
    assert rows(work.read("q", archive=location)) == every
    compactor.start()
    reads = 0
    while compactor.is_alive() or reads == 0:
        assert rows(work.read("q", archive=location)) == every
        reads += 1
    stream = work.drain("q", archive=location, maxOffsetsPerTrigger="50")
    assert is_in_order(stream.rows)
    assert sorted(stream.rows) == every
    assert len(files(work)) == 1


def read_here(work: Work) -> list[Any]:
    """Read everything as a task does, in this process."""
    options = replaying._options(work.url, "q", str(work.home / "archive"))
    found, names = fetch(database(work.url), options, Log(options).batch(), payloads=True)
    return [(names[row[0] - 1][1], row[1], row[4]) for row in found]


def test_a_file_that_goes_under_the_reader(alone: Work, monkeypatch: pytest.MonkeyPatch):
    """It was compacted, without a grace, after the reader asked and before it read: the reader asks again."""
    small_files(alone)
    every = deleted_from_the_log(alone)
    real, sizes = Store.runs, [24, 48]

    def read(store: Store, path: str, wanted: Sequence[Run]) -> Any:
        if sizes:
            compacted(alone, file_messages=sizes.pop(0))
        return real(store, path, wanted)

    monkeypatch.setattr(Store, "runs", read)
    assert read_here(alone) == every
    assert sizes == []
    path = Path(alone.home, "archive", min(files(alone)))
    table = pq.ParquetFile(path).read()
    pq.write_table(table.slice(1), path)
    with pytest.raises(DataLoss, match="does not have what was archived in it"):
        read_here(alone)
    path.unlink()
    with pytest.raises(DataLoss, match=f"is not there: .*{path.name}"):
        read_here(alone)


@pytest.mark.parametrize("damage", ["changed", "shorter", "longer", "broken", "gone"])
def test_a_file_that_is_not_what_was_archived(alone: Work, damage: str):
    """It is said, and nothing is swapped."""
    small_files(alone, 3)
    before = runs(alone)
    path = Path(alone.home, "archive", min(files(alone)))
    table = pq.ParquetFile(path).read()
    if damage == "changed":
        pq.write_table(table.set_column(5, "value", [["1"] * table.num_rows]), path)
    elif damage in ("shorter", "longer"):
        pq.write_table(table.slice(1) if damage == "shorter" else pa.concat_tables([table, table.slice(0, 1)]), path)
    elif damage == "broken":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.unlink()
    left = files(alone)
    with pytest.raises(Conflict, match=rf"{path.name} (does not have what was archived|cannot be read)"):
        compacted(alone)
    assert (runs(alone), files(alone)) == (before, left)


def test_a_disk_that_lies(alone: Work, monkeypatch: pytest.MonkeyPatch):
    """What was written is read again before it counts."""
    small_files(alone, 3)
    before, real = files(alone), Store.write

    def write(store: Store, path: str, batches: Iterator[Any]) -> int:
        return real(store, path, [batch.slice(1) for batch in batches])

    monkeypatch.setattr(Store, "write", write)
    with pytest.raises(Conflict, match="does not have what was written to it"):
        compacted(alone)
    assert files(alone) == before
    check(alone)


def test_a_job_that_was_given_up_swaps_nothing(alone: Work, monkeypatch: pytest.MonkeyPatch):
    """Another has taken over and cleared what it had begun, or an attempt at the same task was quicker."""
    small_files(alone, 3)
    before, real = named(alone), Store.write

    def settle(store: Store, path: str, batches: Iterator[Any]) -> int:
        size = real(store, path, batches)
        alone.sql("SELECT skep._settle_files(ARRAY(SELECT file_id FROM skep._unsettled_files(1)))")
        return size

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", settle)
        with pytest.raises(Conflict, match="was abandoned: another job has taken over"):
            compacted(alone)
    check(alone)
    merge = compacting.merge_files

    def twice(*arguments: Any) -> str | None:
        assert merge(*arguments) is None
        return merge(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(compacting, "merge_files", twice)
        assert compacted(alone).files == 1
    assert named(alone) == before
    check(alone)


def test_what_fits_together():
    files = [(number, size, 1) for number, size in enumerate([5, 3, 4, 9, 2, 2])]
    assert [[number for number, *_ in group] for group in fitting(files, 10)] == [[0, 1], [4, 5]]
    many = [(number, 1, 1) for number in range(MOST + 1)]
    assert [len(group) for group in fitting(many, 1_000_000)] == [MOST]


def test_what_cannot_be_compacted(alone: Work):
    with pytest.raises(NotFound, match="there is no archive at"):
        compacted(alone)
    with pytest.raises(InvalidArgument, match="negative"):
        compacted(alone, grace=timedelta(seconds=-1))
    small_files(alone, 2)
    alone.sql("SELECT skep.delete_queue('q')")
    assert compacted(alone, "q").files == 1  # the archive outlives the queue
