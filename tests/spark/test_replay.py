"""Archive and log as one: read again, replayed, and given to a group that joins late; no gap, no double, in order."""

import json
from typing import Any

import pytest
from pyspark.errors import PySparkException

from skep import Skep
from skep.errors import Conflict, InvalidArgument
from skep.pipelines import Span, replay, replaying
from skep.spark.database import Database
from tests.spark.archiver import archive_of
from tests.spark.work import Row, Work, is_in_order

pytestmark = pytest.mark.timeout(300)


def past(work: Work, count: int = 90) -> list[Row]:
    """Push, archive, delete most of it, push more; return everything there ever was."""
    work.sql("""SELECT skep.configure_queue('q', '{"retain_until_archived": true}')""")
    work.spread("q", count, 3)
    log = work.log("q")
    archive_of(work)
    work.sql("""SELECT skep.configure_queue('q', '{"max_size": 5}')""")
    assert work.sql("SELECT sum(end_offset - first_offset) FROM skep.retain()") == [(len(log) - 15,)]
    work.spread("q", 30, 4)
    return sorted({*log, *work.log("q")})


def location(work: Work) -> str:
    return str(work.home / "archive")


def rows(frame: Any) -> list[Row]:
    return [(row.partition, row.offset, row.value) for row in frame.collect()]


def test_a_batch_over_both(work: Work):
    every = past(work)
    found = rows(work.read("q", archive=location(work)))
    assert sorted(found) == every
    assert is_in_order(found)
    assert len(rows(work.read("q"))) == 45


def test_a_stream_over_both(work: Work):
    """From the beginning of the archive, in small batches, and then what comes."""
    every = past(work)
    options = {"archive": location(work), "maxOffsetsPerTrigger": "17"}
    run = work.drain("q", **options)
    assert sorted(run.rows) == every
    assert is_in_order(run.rows)
    work.spread("q", 8, 4)
    assert len(work.drain("q", **options).rows) == 8


def test_what_is_nowhere_is_said(work: Work):
    """Deleted before it was archived: the error names it."""
    work.spread("q", 10, 1)
    work.sql("""SELECT skep.configure_queue('q', '{"max_size": 4}')""")
    archive_of(work, file_messages=3)
    work.sql("SELECT count(*) FROM skep.retain()")
    work.sql("DELETE FROM skep.archive_runs WHERE first_offset = 3")
    with pytest.raises(PySparkException, match=r"offsets 3 to 5 \(3 messages\)"):
        work.read("q", archive=location(work)).collect()
    found = rows(work.read("q", archive=location(work), failOnDataLoss="false"))
    assert [offset for _, offset, _ in found] == [0, 1, 2, 6, 7, 8, 9]


def content(work: Work, queue: str) -> list[tuple[str, str]]:
    return [(partition, value) for partition, _, value in work.log(queue)]


def test_everything_is_replayed(work: Work):
    """Once, in order, with headers as they were and their origin; partitions that are gone come in their turn."""
    work.sql("SELECT skep.push('q', '1', 'p0', 'own', '{\"n\": [1.50]}', NULL, 'me')")
    every = past(work)
    archive_of(work)
    before = [(partition, value) for partition, _, value in every]
    work.sql("SELECT skep.delete_partition('q', 'p1')")
    work.push("q", "anew", partition="p1")
    done = replay(work.spark, work.url, "q", "copy", archive=location(work))
    assert (done.read, done.messages) == (len(every) + 1, len(every) + 1)
    p1 = [value for partition, value in content(work, "copy") if partition == "p1"]
    assert p1 == [value for partition, value in before if partition == "p1"] + ['"anew"']
    rest = [each for each in content(work, "copy") if each[0] != "p1"]
    assert rest == [each for each in before if each[0] != "p1"]
    (first,) = work.sql(
        "SELECT headers, producer, headers::text FROM skep.messages WHERE transaction_id = 'replay-1-0'"
    )
    assert '"n": [1.50]' in first[2]
    assert (first[0]["skep-origin"]["transaction_id"], first[0]["skep-origin"]["queue"], first[1]) == ("own", "q", "me")
    again = replay(work.spark, work.url, "q", "copy", archive=location(work))
    assert (again.messages, again.duplicates) == (0, len(every) + 1)


def test_a_time_range(work: Work):
    work.spread("q", 20, 1)
    work.sql("UPDATE skep.messages SET created_at = '2026-01-01Z'::timestamptz + \"offset\" * interval '1 hour'")
    (since,), (until,) = work.sql('SELECT created_at FROM skep.messages WHERE "offset" IN (5, 12) ORDER BY 1')
    replay(work.spark, work.url, "q", "copy", span=Span(since, until))
    assert [json.loads(value) for _, _, value in work.log("copy")] == list(range(5, 12))
    with pytest.raises(InvalidArgument, match="into itself"):
        replay(work.spark, work.url, "q", "q")


def test_killed_in_the_middle(work: Work, monkeypatch: pytest.MonkeyPatch):
    every = past(work, 3000)
    options = replaying._options(work.url, "q", location(work))
    real, calls = Database.rows, [0]

    def dying(db: Database, statement: Any, /, **arguments: Any) -> Any:
        found = real(db, statement, **arguments)
        calls[0] += statement == replaying.PUSH
        if calls[0] == 2:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Database, "rows", dying)
        with pytest.raises(KeyboardInterrupt):
            replaying.copy(options, "copy", Span(), replaying.Log(options).batch())
    assert len(work.log("copy")) == 2000
    done = replay(work.spark, work.url, "q", "copy", archive=location(work))
    assert (done.messages, done.duplicates) == (len(every) - 2000, 2000)
    assert content(work, "copy") == [(partition, value) for partition, _, value in every]


def test_a_group_that_joins_late(work: Work):
    """It reads the replay, then the queue: everything since the beginning, each message once, in order."""
    every = past(work)
    replay(work.spark, work.url, "q", "q.past", archive=location(work), group="late")
    work.spread("q", 12, 4)
    later = [row for row in work.log("q") if row not in every]
    work.sql("SELECT count(*) FROM skep.retain()")
    got: list[tuple[str, str]] = []
    with Skep(work.url) as mq:
        for queue in ("q.past", "q"):
            while batch := mq.queue(queue).pop(group="late", batch=100):
                got += [(message.partition, json.dumps(message.payload)) for message in batch]
                batch.ack()
    wanted = [(partition, value) for partition, _, value in sorted([*every, *later])]
    assert len(later) == 12
    assert sorted(got, key=lambda each: each[0]) == wanted
    with pytest.raises(Conflict, match="reads queue"):
        replay(work.spark, work.url, "q", "q.past", archive=location(work), group="late")
