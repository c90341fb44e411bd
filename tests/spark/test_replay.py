"""Archive and log together: read, replayed, and given to a group that joins late; each message once, in order."""

import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException

from skep import Skep
from skep.errors import Conflict, InvalidArgument
from skep.pipelines import TimeRange, replay, replaying, tasks
from skep.spark.database import SparkDatabase
from skep.spark.log import Log
from skep.spark.runs import count
from skep.spark.window import batch_runs
from tests.spark.archiver import archive_of
from tests.spark.work import Row, Work, is_in_order

pytestmark = pytest.mark.timeout(300)


def past(work: Work, count: int = 90) -> list[Row]:
    """Push, archive, delete most messages, push more; return all messages."""
    work.sql("""SELECT skep.configure_queue('q', '{"retain_until_archived": true}')""")
    work.spread("q", count, 3)
    log = work.log("q")
    archive_of(work, file_messages=max(20, count // 4))
    work.sql("""SELECT skep.configure_queue('q', '{"max_size": 5}')""")
    assert work.sql("SELECT sum(end_offset - first_offset) FROM skep.retain()") == [(len(log) - 15,)]
    work.spread("q", 30, 4)
    return sorted({*log, *work.log("q")})


def location(work: Work) -> str:
    return str(work.home / "archive")


def rows(frame: Any) -> list[Row]:
    return [(row.partition, row.offset, row.value) for row in frame.collect()]


def test_a_batch_over_archive_and_log(work: Work):
    every = past(work)
    found = rows(work.read("q", archive=location(work)))
    assert sorted(found) == every
    assert is_in_order(found)
    assert len(rows(work.read("q"))) == 45


def test_a_stream_over_archive_and_log(work: Work):
    """From the beginning of the archive, in small batches, and then new messages."""
    every = past(work)
    options = {"archive": location(work), "maxOffsetsPerTrigger": "50"}
    run = work.drain("q", **options)
    assert sorted(run.rows) == every
    assert is_in_order(run.rows)
    work.spread("q", 8, 4)
    assert len(work.drain("q", **options).rows) == 8


def test_messages_that_were_deleted_before_they_were_archived(work: Work):
    """The error names them."""
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
    """Once, in order, with the same headers and the origin; deleted partitions before new ones of the same name."""
    work.sql("SELECT skep.push('q', '1', 'p0', 'own', '{\"n\": [1.50]}', NULL, 'me')")
    every = past(work)
    archive_of(work)
    before = [(partition, value) for partition, _, value in every]
    work.sql("SELECT skep.delete_partition('q', 'p1')")
    work.push("q", "new", partition="p1")
    done = replay(work.spark, work.url, "q", "copy", archive=location(work))
    assert (done.read, done.messages) == (len(every) + 1, len(every) + 1)
    p1 = [value for partition, value in content(work, "copy") if partition == "p1"]
    assert p1 == [value for partition, value in before if partition == "p1"] + ['"new"']
    rest = [each for each in content(work, "copy") if each[0] != "p1"]
    assert rest == [each for each in before if each[0] != "p1"]
    (first,) = work.sql(
        "SELECT headers, producer, headers::text FROM skep.messages WHERE transaction_id = 'replay-1-0'"
    )
    assert '"n": [1.50]' in first[2]
    assert (first[0]["skep-origin"]["transaction_id"], first[0]["skep-origin"]["queue"], first[1]) == ("own", "q", "me")
    again = replay(work.spark, work.url, "q", "copy", archive=location(work))
    assert (again.messages, again.duplicates) == (0, len(every) + 1)


START = datetime(2026, 1, 1, tzinfo=UTC)
RICH = """
    SELECT count(*) FROM skep.push((SELECT jsonb_agg(jsonb_build_object(
        'queue', 'q', 'partition', 'p' || n %% 4, 'payload', jsonb_build_object('n', n, 'x', E'\\u00fc\\n"', 'y', 1.50),
        'headers', jsonb_build_object('h', n), 'trace_id', gen_random_uuid(), 'producer', 'me'))
    FROM generate_series(1, 40) n))
"""
DIGEST = """
    SELECT l.partition, count(*), encode(sha256(string_agg(sha256(convert_to(json_build_array(
               m.payload::text, nullif(m.headers - 'skep-origin', '{}')::text, m.trace_id, m.producer)::text, 'UTF8')),
               NULL ORDER BY m."offset")), 'hex')
    FROM skep.messages m JOIN skep.partition_list l USING (partition_id) WHERE l.queue = %s GROUP BY 1 ORDER BY 1
"""


def test_a_copy_has_the_digest_of_the_original(work: Work):
    """Payloads, headers, traces and producers, in order, also of messages that only the archive has."""
    work.spread("q", 120, 4)
    work.sql(RICH)
    original = work.sql(DIGEST, "q")
    work.sql("""SELECT skep.configure_queue('q', '{"retain_until_archived": true, "max_size": 3}')""")
    archive_of(work)
    assert work.sql("SELECT sum(end_offset - first_offset) FROM skep.retain()") == [(160 - 12,)]
    seen: list[tuple[int, int]] = []
    replay(
        work.spark, work.url, "q", "copy", archive=location(work), on_progress=lambda *progress: seen.append(progress)
    )
    assert work.sql(DIGEST, "copy") == original
    assert [count for _, count, _ in original] == [40] * 4
    assert seen[-1] == (160, 160)


def test_a_time_range(work: Work, monkeypatch: pytest.MonkeyPatch):
    """Over archive and log; days of the archive outside the range are not read."""
    work.spread("q", 80, 2)
    hours = "UPDATE skep.messages SET created_at = '2026-01-01Z'::timestamptz + \"offset\" * interval '3 hours'"
    work.sql(f'{hours}, payload = to_jsonb("offset")')
    work.sql("""SELECT skep.configure_queue('q', '{"retain_until_archived": true, "max_size": 15}')""")
    archive_of(work)
    work.sql("SELECT count(*) FROM skep.retain()")
    copies = (f"copy {number}" for number in itertools.count())

    def replayed(since: int | None, until: int | None) -> list[int]:
        times = (at if at is None else START + timedelta(hours=3 * at) for at in (since, until))
        done = replay(
            work.spark, work.url, "q", copy := next(copies), archive=location(work), time_range=TimeRange(*times)
        )
        p0, p1 = (
            [json.loads(value) for partition, _, value in work.log(copy) if partition == name] for name in ("p0", "p1")
        )
        assert (p0, done.messages) == (p1, 2 * len(p0))
        return p0

    assert replayed(22, 30) == list(range(22, 30))
    read = list[int]()

    def run_here(_: object, task: Any, shares: Any, __: object) -> list[Any]:
        read.append(sum(count(share) for share in shares))
        return [task(share) for share in shares]

    monkeypatch.setattr(tasks, "run", run_here)
    assert replayed(17, 23) == list(range(17, 23))
    assert read == [2 * 8]  # a day has eight
    assert replayed(None, 9) == list(range(9))
    assert replayed(35, None) == list(range(35, 40))
    assert replayed(0, 99) == list(range(40))
    with pytest.raises(InvalidArgument, match="into itself"):
        replay(work.spark, work.url, "q", "q")


def test_killed_in_the_middle(work: Work, monkeypatch: pytest.MonkeyPatch):
    every = past(work, 3000)
    options = replaying._options(work.url, "q", location(work))
    real, calls = SparkDatabase.rows, [0]

    def dying(db: SparkDatabase, statement: Any, /, **arguments: Any) -> Any:
        found = real(db, statement, **arguments)
        calls[0] += statement == replaying.PUSH
        if calls[0] == 2:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(SparkDatabase, "rows", dying)
        with pytest.raises(KeyboardInterrupt):
            replaying.copy(options, "copy", TimeRange(), batch_runs(Log(options)))
    assert len(work.log("copy")) == 2000
    done = replay(work.spark, work.url, "q", "copy", archive=location(work))
    assert (done.messages, done.duplicates) == (len(every) - 2000, 2000)
    assert content(work, "copy") == [(partition, value) for partition, _, value in every]


def test_a_group_that_joins_late(work: Work):
    """It reads the replay, then the queue: every message since the beginning, once, in order."""
    every = past(work)
    work.sql("""SELECT skep.configure_defaults('new')""")
    pushed = list[int]()

    def busy(*_: object) -> None:
        work.spread("q", 12, 4)
        work.sql("SELECT count(*) FROM skep.retain()")
        pushed.append(12)

    replay(work.spark, work.url, "q", "q.past", archive=location(work), group="late", on_progress=busy)
    busy()
    later = [row for row in work.log("q") if row not in every]
    assert work.sql("SELECT * FROM skep.check_consistency() WHERE broken > 0") == []
    got: list[tuple[str, str]] = []
    with Skep(work.url) as mq:
        for queue in ("q.past", "q"):
            while batch := mq.queue(queue).pop(group="late", batch=100):
                got += [(message.partition, json.dumps(message.payload)) for message in batch]
                batch.ack()
    expected = [(partition, value) for partition, _, value in sorted([*every, *later])]
    assert len(later) == sum(pushed) > 12
    assert sorted(got, key=lambda each: each[0]) == expected
    with pytest.raises(Conflict, match="already reads queue"):
        replay(work.spark, work.url, "q", "q.past", archive=location(work), group="late")
