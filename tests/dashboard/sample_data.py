"""Sample data of a small shop: healthy, slow, failing, paused and dead groups, and an hour of samples."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from skep import NewMessage, Skep

EVIL = "<img src=x onerror=\"window.pwned='name'\">"
EVIL_PAYLOAD = {
    "html": "<script>window.pwned='payload'</script>",
    "exact": 12345678901234567890,
    "nested": {"a": [1, 2]},
}
EVIL_ERROR = "<svg onload=\"window.pwned='error'\"> broke"
EMPTY_QUEUES = 2500
STEP = 15  # seconds between samples
STEPS = 240
DROPPED_TOTAL = 400_000  # messages counted in dropped partitions, so that past totals stay positive

# Spreads the messages over the last forty minutes. Times still increase with offsets.
SPREAD_TIMES = """
    UPDATE skep.messages m SET created_at = clock_timestamp()
        - interval '40 minutes' * (1 - (m."offset" - l.first_offset + 1.0) / (l.last_offset - l.first_offset + 1.001))
    FROM skep.partition_lookup l WHERE l.partition_id = m.partition_id
"""
ADD_DROPPED_TOTALS = """
    INSERT INTO skep.deleted_totals (queue, group_name, total)
    SELECT s.queue, s.group_name, %s FROM skep.samples s WHERE s.lag + s.total > 0 AND s.queue NOT LIKE 'tenant%%'
    ON CONFLICT DO NOTHING
"""

STORE_FILE = """
    SELECT skep._store_file(%s, %s, %s, %s, d.messages, d.digest)
    FROM skep._digest(ARRAY[%s::bigint], ARRAY[%s::bigint], ARRAY[%s::bigint]) d
"""


@dataclass(frozen=True)
class History:
    """The past of a queue or group: about `rate` messages per second, and a lag that began `lag_minutes` ago."""

    rate: float
    lag_minutes: int = 0


HISTORIES = {
    ("orders", ""): History(42),
    ("orders", "billing"): History(42),
    ("orders", "shipping"): History(38, lag_minutes=37),
    ("orders", "search"): History(41),
    ("orders", "legacy-export"): History(0, lag_minutes=40),
    ("payments", ""): History(12),
    ("payments", "ledger"): History(12),
    ("payments", "fraud"): History(11, lag_minutes=39),
    ("emails", ""): History(6),
    ("emails", "__QUEUE_MODE__"): History(6),
}


def write(url: str) -> None:
    """Write the sample data into an empty database."""
    with Skep(url) as mq:
        _create_queues(mq)
        _create_dead_letters(mq)
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(SPREAD_TIMES)
            db.execute(
                "SELECT skep.configure_queue('tenant.' || lpad(n::text, 4, '0'), '{}') FROM generate_series(1, %s) n",
                [EMPTY_QUEUES],
            )
            db.execute("UPDATE skep.subscriptions SET status = 'DEAD' WHERE group_name = 'legacy-export'")
            db.execute("SELECT skep.sample('0')")
            db.execute(ADD_DROPPED_TOTALS, [DROPPED_TOTAL])
            db.execute("TRUNCATE skep.samples")
            db.execute("SELECT skep.sample('0')")
            _write_past_samples(db)
            _create_archive(db)


def _create_queues(mq: Skep) -> None:
    mq.queue("orders").configure(
        namespace="shop", retention_seconds=604800, completed_retention_seconds=3600, dead_group_grace_seconds=0
    )
    mq.queue("payments").configure(namespace="shop", semantics="pub_sub")
    mq.queue("emails").configure(semantics="queue", max_size=100000)
    for group in ("billing", "shipping", "search", "legacy-export"):
        mq.subscribe(group, "orders")
    for group in ("ledger", "fraud"):
        mq.subscribe(group, "payments")
    customers = [f"customer-{min(n * n % 17, n % 12)}" for n in range(600)]  # uneven partitions
    mq.queue("orders").push_many(
        NewMessage(
            {"order": n, "total": n * 7 % 300, "items": [{"sku": f"A-{n}"}]},
            partition=customer,
            transaction_id=f"order-{n}",
        )
        for n, customer in enumerate(customers)
    )
    mq.queue("payments").push_many(NewMessage({"payment": n}, partition=f"region-{n % 4}") for n in range(200))
    mq.queue("emails").push_many({"to": f"user{n}@example.org"} for n in range(50))
    mq.queue(EVIL).push(EVIL_PAYLOAD, headers={"x": "<b>bold</b>"}, transaction_id="evil")
    process(mq, "orders", "billing", 10_000)
    process(mq, "orders", "shipping", 330)
    process(mq, "payments", "ledger", 10_000)
    process(mq, "payments", "fraud", 60)
    process(mq, "emails", "__QUEUE_MODE__", 10_000)
    mq.queue("orders").pop(group="shipping", batch=5, lease_time=600)
    mq.pause("fraud", "payments")


def process(mq: Skep, queue: str, group: str, messages: int) -> None:
    done = 0
    while done < messages and (batch := mq.queue(queue).pop(group=group, batch=60, partitions=4)):
        done += len(batch)
        batch.ack()


def _create_dead_letters(mq: Skep) -> None:
    errors = ["TimeoutError: index did not answer within 5 s", "ValueError: sku is missing", EVIL_ERROR]
    for n in range(23):
        batch = mq.queue("orders").pop(group="search", batch=1)
        batch.dead_letter(None, errors[0 if n < 14 else 1 if n < 22 else 2])
    process(mq, "orders", "search", 10_000)
    evil = mq.queue(EVIL).pop(group="<i>evil</i>", batch=1)
    evil.dead_letter(None, EVIL_ERROR)


def _write_past_samples(db: psycopg.Connection) -> None:
    """Write samples backwards from the current one."""
    last = db.execute(
        "SELECT at, queue, group_name, total, lag, leased, dead FROM skep.samples WHERE queue NOT LIKE 'tenant%'"
    )
    with (
        db.cursor() as cursor,
        cursor.copy(
            "COPY skep.samples (at, queue, group_name, total, lag, leased, dead, oldest_at) FROM STDIN"
        ) as copy,
    ):
        for at, queue, group, total, lag, leased, dead in last.fetchall():
            for row in _past_samples(at, (queue, group), total, lag, dead):
                copy.write_row((*row[:1], queue, group, *row[1:3], leased, *row[3:]))


def _past_samples(at: datetime, key: tuple[str, str], total: int, lag: int, dead: int) -> list[tuple[Any, ...]]:
    history = HISTORIES.get(key, History(0))
    rows = []
    for n in range(1, STEPS):
        ago = timedelta(seconds=STEP * n)
        wave = (
            1 + 0.3 * math.sin(n / 19 + len(key[0])) + 0.12 * math.sin(n * 2.1) + 0.06 * math.sin(n * 5.3 + len(key[1]))
        )
        total -= round(history.rate * STEP * wave)
        minutes = STEP * n / 60
        behind = minutes < history.lag_minutes
        if not key[1]:
            past_lag = lag
        elif behind:
            past_lag = round(lag * (1 - minutes / history.lag_minutes))
        else:
            past_lag = 3 if history.rate else 0
        oldest_age = timedelta(minutes=history.lag_minutes - minutes) if behind else timedelta(seconds=2)
        oldest_at = at - ago - oldest_age if past_lag else None
        rows.append((at - ago, max(total, 0), past_lag, max(dead - n // 12, 0), oldest_at))
    return rows


def _create_archive(db: psycopg.Connection) -> None:
    """Archive three of the four partitions of payments in two runs. A third run does not finish the last one."""
    db.execute("SELECT skep.configure_queue('payments', '{\"retain_until_archived\": true}')")
    archive = db.execute("SELECT skep._open_archive('/backup/skep', ARRAY['payments'])").fetchall()[0][0]
    runs = db.execute("SELECT * FROM skep._plan_archive(ARRAY['payments']) ORDER BY partition, day").fetchall()
    for number, names in enumerate(({"region-0", "region-1"}, {"region-2"}, {"region-3"})):
        job = UUID(int=number + 1)
        files = [
            {"queue": queue, "day": str(day), "runs": [[partition_id, name, first, end]]}
            for queue, day, partition_id, name, first, end in runs
            if name in names
        ]
        ids = db.execute("SELECT skep._begin_files(%s, %s, %s)", [archive, job, Jsonb(files)]).fetchall()[0][0]
        for id_, file in zip(ids, files, strict=True):
            if number < 2:
                partition_id, _, first, end = file["runs"][0]
                path = f"queue=payments/{id_}.parquet"
                db.execute(STORE_FILE, [id_, job, path, 4096 * id_, partition_id, first, end])
