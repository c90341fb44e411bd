"""The archive: every message in one file, whatever happens; retention that waits for it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skep.errors import Conflict, NotFound
from skep.pipelines import Selection, archiving, manifest, read_archive
from skep.spark.database import Database
from skep.spark.parquet import Store
from tests.spark.archiver import archive_of, archived, check, files, here
from tests.spark.work import Work, until

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def alone(work: Work, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Tasks run in this process, where they can be killed at will."""
    monkeypatch.setattr(archiving, "_write_all", here)
    return work


def age(work: Work, days: int, offsets: str = "true") -> None:
    """Make messages older."""
    work.sql(f"UPDATE skep.messages SET created_at = created_at - interval '{days} days' WHERE {offsets}")


def test_a_log_becomes_files(work: Work):
    """On a real Spark: by queue and day, and a second job has nothing to do; what comes later is added."""
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
    rows = read_archive(work.spark, work.url, Selection(("123",))).collect()
    assert sorted((row.queue, row.offset, row.value) for row in rows) == [("123", n, str(n)) for n in range(5)]
    assert read_archive(work.spark, work.url).count() == 55
    with pytest.raises(NotFound, match="nothing of these queues"):
        read_archive(work.spark, work.url, Selection(("other",)))


class Killed(BaseException):
    """As good as `kill -9`: nothing catches it."""


def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Die before or after the nth thing that is done to the database or to files: 2n is before, 2n + 1 after."""
    left = [-1]

    def dying(owner: type, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def do(*arguments: Any, **named: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            result = real(*arguments, **named)
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return result

        monkeypatch.setattr(owner, name, do)

    def half_a_file(store: Store, path: str, batches: Iterator[Any]) -> int:
        """Die in the middle of a file as well."""
        if left[0] == 0:
            target = Path(store.location, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(b"PAR1 and no more")
            raise Killed
        left[0] -= 1
        return write(store, path, batches)

    write = Store.write
    dying(Database, "rows")
    dying(Store, "delete")
    dying(Store, "batches")
    monkeypatch.setattr(Store, "write", half_a_file)
    return lambda number: left.__setitem__(0, number)


def test_killed_at_every_step(alone: Work, monkeypatch: pytest.MonkeyPatch):
    """A job that dies anywhere: the next one makes everything right."""
    kill_at = steps(monkeypatch)
    deaths = 0
    for number in range(1000):
        alone.spread("q", 60, 3)
        kill_at(number)
        try:
            archive_of(alone)
        except Killed:
            deaths += 1
        else:
            break
        finally:
            kill_at(-1)
        archive_of(alone)
        check(alone)
    check(alone)
    assert deaths > 30


def test_killed_again_and_again(alone: Work, monkeypatch: pytest.MonkeyPatch):
    """No job comes further than one step beyond the last one; in the end everything is there once."""
    kill_at = steps(monkeypatch)
    alone.spread("q", 60, 3)
    for number in range(1000):
        kill_at(number)
        try:
            archive_of(alone)
        except Killed:
            continue
        finally:
            kill_at(-1)
        break
    check(alone)


def test_a_killed_driver(work: Work):
    """For good, in the middle of its files, with tasks and all."""
    work.spread("q", 2000, 10)
    command = [sys.executable, "-m", "tests.spark.archiver", work.url, str(work.home / "archive")]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    stored = "SELECT count(*) FROM skep.archive_files WHERE state = 'stored'"
    until(lambda: work.sql(stored)[0][0] > 3 or process.poll() is not None, "some files")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert work.sql("SELECT count(*) FROM skep.archive_files WHERE state = 'writing'")[0][0] > 0
    archive_of(work)
    check(work)


def test_retention_waits_for_the_archive(alone: Work):
    """And the archive outlives what it deletes, and even the queue."""
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


def test_a_message_that_goes_meanwhile(alone: Work, monkeypatch: pytest.MonkeyPatch):
    """Without retain_until_archived: the file does not match the log any more, and is planned anew."""
    alone.spread("q", 40, 2)
    alone.sql("""SELECT skep.configure_queue('q', '{"max_size": 15}')""")
    real = Store.write

    def write(store: Store, path: str, batches: Iterator[Any]) -> int:
        size = real(store, path, batches)
        alone.sql("SELECT count(*) FROM skep.retain()")
        return size

    monkeypatch.setattr(Store, "write", write)
    assert archive_of(alone).messages == 30
    check(alone)


def test_a_file_that_is_not_what_the_log_has(alone: Work, monkeypatch: pytest.MonkeyPatch):
    """A disk that lies: nothing is stored, nothing may be deleted, nothing is left."""
    alone.spread("q", 10, 1)
    real = Store.batches
    monkeypatch.setattr(Store, "batches", lambda store, path: [b.slice(1) for b in real(store, path)])
    with pytest.raises(Conflict, match="has 9 messages and digest .* the log has 10"):
        archive_of(alone)
    assert files(alone) == set()
    assert alone.sql("SELECT (SELECT count(*) FROM skep.archive_files), count(*) FROM skep.archive_marks") == [(0, 0)]


def test_deleted_messages_keep_their_place(alone: Work):
    alone.spread("q", 3, 1)
    alone.sql("SELECT skep.delete_message(skep.message_id(partition_id, 1)) FROM skep.lanes")
    archive_of(alone)
    check(alone)
    assert [row[5] for row in archived(alone)] == ["0", None, "2"]


def test_one_job_at_a_time_and_one_archive(alone: Work, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manifest, "PATIENCE", 0.1)
    alone.spread("q", 3, 1)
    archive_of(alone)
    with alone.connection.transaction():
        alone.sql("SELECT skep.lock_archive(id) FROM skep.archives")
    with pytest.raises(Conflict, match="another job works on this archive"):
        archive_of(alone)
    alone.sql("SELECT pg_advisory_unlock_all()")
    with pytest.raises(Conflict, match='queue "q" is archived at'):
        archiving.archive(alone.spark, alone.url, str(alone.home / "other"), Selection(("q",)))
    with pytest.raises(NotFound, match='no queue "none"'):
        archive_of(alone, "none")


def test_names_of_all_kinds(alone: Work):
    """Names that no file could have."""
    for queue in ("a/b", "..", "ü" * 255, "day=1"):
        alone.push(queue, 1, partition="x/../y")
    archive_of(alone, "a/b", "..", "ü" * 255, "day=1")
    assert sorted(row[0] for row in archived(alone)) == sorted(["a/b", "..", "ü" * 255, "day=1"])
