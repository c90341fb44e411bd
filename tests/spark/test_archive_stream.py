"""A stream over archive and log, without Spark, while jobs run: each message once, each partition in order."""

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from skep.pipelines import QueueScope, archive, compact, tasks
from tests.spark.test_positions import Stream, _no_pauses, options, push  # noqa: F401  # pyright: ignore[reportPrivateUsage]
from tests.spark.work import is_in_order

WAITING = """SELECT skep.configure_queue('q', '{"retain_until_archived": true, "max_size": 1}')"""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "run", lambda _, task, items, report: [task(item) for item in items])
    monkeypatch.setattr(tasks, "cores", lambda _: 2)


def jobs(mq: psycopg.Connection, url: str, location: str) -> list[Callable[[], object]]:
    nothing: Any = None
    return [
        lambda: archive(nothing, url, location, QueueScope(("q",)), file_messages=random.choice([5, 50])),
        lambda: compact(nothing, url, location, file_messages=random.choice([10, 100]), grace=timedelta()),
        lambda: mq.execute("SELECT count(*) FROM skep.retain()"),
        lambda: mq.execute("SELECT skep.prune_journal('0 s')"),
        lambda: push(mq, f"p{random.randrange(5)}", random.randrange(1, 30)),
    ]


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_while_jobs_run(database_url: str, tmp_path: Path, seed: int):
    random.seed(seed)
    location = str(tmp_path / "archive")
    with psycopg.connect(database_url, autocommit=True) as mq:
        push(mq, "p0", 30)
        mq.execute(WAITING)
        actions = jobs(mq, database_url, location)
        actions[0]()
        stream, late = Stream(options(database_url, archive=location)), Stream(options(database_url, archive=location))
        for _ in range(60):
            random.choice(actions)()
            stream.step(random.choice([None, 1, 7, 25]))
        while stream.step(20):
            pass
        while late.step(random.choice([None, 40])):
            random.choice(actions[:4])()
        query = "SELECT partition, last_offset + 1 FROM skep.partition_list WHERE last_offset >= 0"
        pushed = mq.execute(query).fetchall()
    for each in (stream, late):
        assert is_in_order(each.rows)
        assert len(each.rows) == len(set(each.rows)) == sum(number for _, number in pushed)
