"""A small shop with a past: groups that are well, slow, failing, paused and dead, and an hour of samples."""

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
MANY = 2500  # queues nobody writes to
STEP = 15  # seconds between samples
STEPS = 240
BASE = 400_000  # what partitions that are gone had counted, so that rates of the past have room

# Heads and messages get ages that spread over forty minutes; offsets and times still grow together.
AGE = """
    UPDATE skep.messages m SET created_at = clock_timestamp()
        - interval '40 minutes' * (1 - (m."offset" - l.first_offset + 1.0) / (l.last_offset - l.first_offset + 1.001))
    FROM skep.partition_lookup l WHERE l.partition_id = m.partition_id
"""
GONE = """
    INSERT INTO skep.deleted_totals (queue, group_name, total)
    SELECT s.queue, s.group_name, %s FROM skep.samples s WHERE s.lag + s.total > 0 AND s.queue NOT LIKE 'tenant%%'
    ON CONFLICT DO NOTHING
"""


STORE = """
    SELECT skep._store_file(%s, %s, %s, %s, d.messages, d.digest)
    FROM skep._digest(ARRAY[%s::bigint], ARRAY[%s::bigint], ARRAY[%s::bigint]) d
"""


@dataclass(frozen=True)
class Past:
    """How a place was: messages per second around `rate`, and a lag that grew from the minute `since` on."""

    rate: float
    since: int | None = None


PASTS = {
    ("orders", ""): Past(42),
    ("orders", "billing"): Past(42),
    ("orders", "shipping"): Past(38, since=37),
    ("orders", "search"): Past(41),
    ("orders", "legacy-export"): Past(0, since=40),
    ("payments", ""): Past(12),
    ("payments", "ledger"): Past(12),
    ("payments", "fraud"): Past(11, since=39),
    ("emails", ""): Past(6),
    ("emails", "__QUEUE_MODE__"): Past(6),
}


def tell(url: str) -> None:
    """Write the story into an empty database."""
    with Skep(url) as mq:
        _shop(mq)
        _failures(mq)
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(AGE)
            db.execute(
                "SELECT skep.configure_queue('tenant.' || lpad(n::text, 4, '0'), '{}') FROM generate_series(1, %s) n",
                [MANY],
            )
            db.execute("UPDATE skep.subscriptions SET status = 'DEAD' WHERE group_name = 'legacy-export'")
            db.execute("SELECT skep.sample('0')")
            db.execute(GONE, [BASE])
            db.execute("TRUNCATE skep.samples")
            db.execute("SELECT skep.sample('0')")
            _past(db)
            _archive(db)


def _shop(mq: Skep) -> None:
    mq.queue("orders").configure(
        namespace="shop", retention_seconds=604800, completed_retention_seconds=3600, dead_group_grace_seconds=0
    )
    mq.queue("payments").configure(namespace="shop", semantics="pub_sub")
    mq.queue("emails").configure(semantics="queue", max_size=100000)
    for group in ("billing", "shipping", "search", "legacy-export"):
        mq.subscribe(group, "orders")
    for group in ("ledger", "fraud"):
        mq.subscribe(group, "payments")
    customers = [f"customer-{min(n * n % 17, n % 12)}" for n in range(600)]  # some are busier than others
    mq.queue("orders").push_many(
        NewMessage(
            {"order": n, "total": n * 7 % 300, "items": [{"sku": f"A-{n}"}]}, partition=who, transaction_id=f"order-{n}"
        )
        for n, who in enumerate(customers)
    )
    mq.queue("payments").push_many(NewMessage({"payment": n}, partition=f"region-{n % 4}") for n in range(200))
    mq.queue("emails").push_many({"to": f"user{n}@example.org"} for n in range(50))
    mq.queue(EVIL).push(EVIL_PAYLOAD, headers={"x": "<b>bold</b>"}, transaction_id="evil")
    work(mq, "orders", "billing", 10_000)
    work(mq, "orders", "shipping", 330)
    work(mq, "payments", "ledger", 10_000)
    work(mq, "payments", "fraud", 60)
    work(mq, "emails", "__QUEUE_MODE__", 10_000)
    mq.queue("orders").pop(group="shipping", batch=5, lease_time=600)
    mq.pause("fraud", "payments")


def work(mq: Skep, queue: str, group: str, messages: int) -> None:
    done = 0
    while done < messages and (batch := mq.queue(queue).pop(group=group, batch=60, partitions=4)):
        done += len(batch)
        batch.ack()


def _failures(mq: Skep) -> None:
    errors = ["TimeoutError: index did not answer within 5 s", "ValueError: sku is missing", EVIL_ERROR]
    for n in range(23):
        batch = mq.queue("orders").pop(group="search", batch=1)
        batch.dead_letter(None, errors[0 if n < 14 else 1 if n < 22 else 2])
    work(mq, "orders", "search", 10_000)
    evil = mq.queue(EVIL).pop(group="<i>evil</i>", batch=1)
    evil.dead_letter(None, EVIL_ERROR)


def _past(db: psycopg.Connection) -> None:
    """Go back from the sample of now, step by step."""
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
            for row in _steps(at, (queue, group), total, lag, dead):
                copy.write_row((*row[:1], queue, group, *row[1:3], leased, *row[3:]))


def _steps(at: datetime, place: tuple[str, str], total: int, lag: int, dead: int) -> list[tuple[Any, ...]]:
    past = PASTS.get(place, Past(0))
    rows = []
    for n in range(1, STEPS):
        ago = timedelta(seconds=STEP * n)
        wave = (
            1
            + 0.3 * math.sin(n / 19 + len(place[0]))
            + 0.12 * math.sin(n * 2.1)
            + 0.06 * math.sin(n * 5.3 + len(place[1]))
        )
        total -= round(past.rate * STEP * wave)
        minutes = STEP * n / 60
        behind = past.since is not None and minutes < past.since
        was = (
            lag
            if not place[1]
            else round(lag * (1 - minutes / past.since))
            if behind and past.since
            else 3
            if past.rate
            else 0
        )
        waited = timedelta(minutes=(past.since or 0) - minutes) if behind else timedelta(seconds=2)
        rows.append((at - ago, max(total, 0), was, max(dead - n // 12, 0), at - ago - waited if was else None))
    return rows


def _archive(db: psycopg.Connection) -> None:
    """Let two jobs have stored three of the four lanes of payments, and one have begun with the last one."""
    db.execute("SELECT skep.configure_queue('payments', '{\"retain_until_archived\": true}')")
    archive = db.execute("SELECT skep._open_archive('/backup/skep', ARRAY['payments'])").fetchall()[0][0]
    lanes = db.execute("SELECT * FROM skep._plan_archive(ARRAY['payments']) ORDER BY partition, day").fetchall()
    for number, wanted in enumerate(({"region-0", "region-1"}, {"region-2"}, {"region-3"})):
        job = UUID(int=number + 1)
        files = [
            {"queue": queue, "day": str(day), "runs": [[lane, name, first, end]]}
            for queue, day, lane, name, first, end in lanes
            if name in wanted
        ]
        begun = db.execute("SELECT skep._begin_files(%s, %s, %s)", [archive, job, Jsonb(files)]).fetchall()[0][0]
        for id_, file in zip(begun, files, strict=True):
            if number < 2:
                lane, _, first, end = file["runs"][0]
                db.execute(STORE, [id_, job, f"queue=payments/{id_}.parquet", 4096 * id_, lane, first, end])
