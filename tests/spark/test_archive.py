"""The archive: every message in one file, also after jobs were killed; retention that waits for it."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from skep.errors import Conflict, NotFound
from skep.pipelines import QueueScope, archiving, manifest, read_archive
from skep.spark.parquet import ArchiveStore
from tests.spark.archiver import archive_of, archived, check, files, killed_driver, log, named
from tests.spark.killing import Killer
from tests.spark.work import Work

pytestmark = pytest.mark.timeout(300)


def age(work: Work, days: int, offsets: str = "true") -> None:
    """Make messages older."""
    work.sql(f"UPDATE skep.messages SET created_at = created_at - interval '{days} days' WHERE {offsets}")


def test_messages_are_archived(work: Work):
    """On a real Spark: by queue and day; a second job adds only new messages."""
    work.spread("q", 100, 3)
    work.sql(
        "SELECT skep.push('q', '{\"a\": \"\\u00fc\\\\n\\\"\"}', 'p0', 't', '{\"h\": [1]}', gen_random_uuid(), 'me')"
    )
    age(work, 1, '"offset" < 10')
    done = archive_of(work)
    assert (done.messages, done.files) == (101, 6)
    check(work)
    assert {path.split("/")[0] for path in files(work)} == {"queue=q"}
    assert len({path.split("/")[1] for path in files(work)}) == 2
    assert archive_of(work).files == 0
    work.spread("q", 10, 5)
    assert archive_of(work).messages == 10
    check(work)


def test_spark_reads_it_again(work: Work):
    work.spread("q", 50, 4)
    work.spread("123", 5, 1)
    archive_of(work, "q", "123")
    rows = read_archive(work.spark, work.url, QueueScope(("123",))).collect()
    assert sorted((row.queue, row.offset, row.value) for row in rows) == [("123", n, str(n)) for n in range(5)]
    assert read_archive(work.spark, work.url).count() == 55
    with pytest.raises(NotFound, match="no archived messages"):
        read_archive(work.spark, work.url, QueueScope(("other",)))


def test_killed_at_every_step(work: Work, killer: Killer):
    """The files of the manifest are correct after each step, and the next job completes the archive."""
    for number in itertools.count():
        work.spread("q", 60, 3)
        ended = killer.runs("archive", number)
        assert set(named(work)) <= set(log(work))
        if ended:
            break
        assert killer.runs("archive")
        check(work)
    check(work)
    assert number > 40


def test_killed_again_and_again(work: Work, killer: Killer):
    """Each job is killed one step later; retention runs after each, and deletes only archived messages."""
    work.sql("""SELECT skep.configure_queue('q', '{"retain_until_archived": true, "max_size": 1}')""")
    work.spread("q", 60, 3)
    every, kills = log(work), 0
    while not killer.runs("archive", kills):
        kills += 1
        work.sql("SELECT count(*) FROM skep.retain()")
        assert set(named(work)) | set(log(work)) == set(every)
    assert kills > 20
    assert named(work) == archived(work) == every
    work.sql("SELECT count(*) FROM skep.retain()")
    assert len(log(work)) == 3


def test_a_killed_driver(work: Work):
    """The driver and its tasks are killed while they write files."""
    work.spread("q", 2000, 10)
    killed_driver(work, "archive", "SELECT count(*) > 3 FROM skep.archive_files WHERE state = 'stored'")
    assert work.sql("SELECT count(*) FROM skep.archive_files WHERE state = 'writing'")[0][0] > 0
    archive_of(work)
    check(work)


def test_retention_waits_for_the_archive(alone: Work):
    """The archive keeps messages after they were deleted, and after the queue was deleted."""
    alone.sql("""SELECT skep.configure_queue('q', '{"retain_until_archived": true, "max_size": 1}')""")
    alone.spread("q", 30, 3)
    assert alone.sql("SELECT * FROM skep.retain()") == []
    archive_of(alone)
    before = archived(alone)
    assert alone.sql("SELECT sum(end_offset - first_offset) FROM skep.retain()") == [(27,)]
    alone.spread("q", 30, 3)
    assert archive_of(alone).messages == 30
    alone.sql("SELECT skep.delete_queue('q')")
    assert archived(alone)[:10] == before[:10]
    assert len(archived(alone)) == 60


def test_messages_that_are_deleted_during_the_job(alone: Work, monkeypatch: pytest.MonkeyPatch):
    """Without retain_until_archived: the file does not match the log, and is planned again."""
    alone.spread("q", 40, 2)
    alone.sql("""SELECT skep.configure_queue('q', '{"max_size": 15}')""")
    real = ArchiveStore.write

    def write(store: ArchiveStore, path: str, batches: Iterator[Any]) -> int:
        size = real(store, path, batches)
        alone.sql("SELECT count(*) FROM skep.retain()")
        return size

    monkeypatch.setattr(ArchiveStore, "write", write)
    assert archive_of(alone).messages == 30
    check(alone)


def test_a_file_that_does_not_match_the_log(alone: Work, monkeypatch: pytest.MonkeyPatch):
    """It is not stored, nothing may be deleted, and no file is left."""
    alone.spread("q", 10, 1)
    real = ArchiveStore.batches
    monkeypatch.setattr(ArchiveStore, "batches", lambda store, path: [b.slice(1) for b in real(store, path)])
    with pytest.raises(Conflict, match="has 9 messages and digest .* the log has 10"):
        archive_of(alone)
    assert files(alone) == set()
    assert alone.sql("SELECT (SELECT count(*) FROM skep.archive_files), count(*) FROM skep.archive_marks") == [(0, 0)]


def test_deleted_messages_keep_their_place(alone: Work):
    alone.spread("q", 3, 1)
    alone.sql("SELECT skep.delete_message(skep.message_id(partition_id, 1)) FROM skep.partition_list")
    archive_of(alone)
    check(alone)
    assert [row[5] for row in archived(alone)] == ["0", None, "2"]


def test_one_job_at_a_time_and_one_archive(alone: Work, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manifest, "PATIENCE", 0.1)
    alone.spread("q", 3, 1)
    archive_of(alone)
    with alone.connection.transaction():
        alone.sql("SELECT skep._lock_archive(id) FROM skep.archives")
    with pytest.raises(Conflict, match="another job is working on this archive"):
        archive_of(alone)
    alone.sql("SELECT pg_advisory_unlock_all()")
    with pytest.raises(Conflict, match='queue "q" is archived at'):
        archiving.archive(alone.spark, alone.url, str(alone.home / "other"), QueueScope(("q",)))
    with pytest.raises(NotFound, match='queue "none" does not exist'):
        archive_of(alone, "none")


def test_names_of_queues(alone: Work):
    """Names that are not valid names of files."""
    for queue in ("a/b", "..", "ü" * 255, "day=1"):
        alone.push(queue, 1, partition="x/../y")
    archive_of(alone, "a/b", "..", "ü" * 255, "day=1")
    assert sorted(row[0] for row in archived(alone)) == sorted(["a/b", "..", "ü" * 255, "day=1"])
