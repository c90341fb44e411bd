"""Everything at once, by a seeded plan: at the end every message is accounted for, and every invariant holds.

SKEP_TEST_SEED repeats a plan; SKEP_TEST_LOAD_SECONDS makes the run longer.
"""

import os
import random
import time
from typing import Any

import psycopg
import pytest

from tests.engine import verbs
from tests.engine.verbs import broken
from tests.isolation import load
from tests.isolation.account import Account, Ack, Delivery

SECONDS = float(os.environ.get("SKEP_TEST_LOAD_SECONDS", "10"))
SEED = int(os.environ.get("SKEP_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)


# Messages at or after the cursor of a group: only deleted ones, which a cursor passes with the next message.
LEFT = """
    SELECT g.group_name, q.name, p.name, p.id, c.cursor, m."offset", s.mode, s.status
    FROM skep.partition_consumers c
    JOIN skep.messages m ON m.partition_id = c.partition_id AND m."offset" >= c.cursor AND m.payload IS NOT NULL
    JOIN skep.partitions p ON p.id = c.partition_id
    JOIN skep.queues q ON q.id = p.queue_id
    JOIN skep.group_queues g ON g.id = c.group_queue_id
    LEFT JOIN skep.subscriptions s ON s.group_name = g.group_name AND s.queue = q.name
"""


def drain(mq: psycopg.Connection, account: Account, group: str, queue: str) -> None:
    """Pop and acknowledge the rest, as a consumer after the load would."""
    scope: dict[str, Any] = {"namespace": "ns"} if group == "wide" else {}
    while True:
        began = time.time()
        rows = verbs.pop(mq, None if scope else queue, group, partitions=100, **scope)
        if not rows:
            return
        now = time.time()
        for row in rows:
            key, expires = (row.partition_id, row.offset), row.lease_expires_at.timestamp()
            account.deliveries.append(Delivery(group, row.queue, key, str(row.lease), began, now, expires))
        began = time.time()
        verbs.ack(mq, rows)
        now = time.time()
        account.acks.extend(Ack(group, (row.partition_id, row.offset), began, now, str(row.lease)) for row in rows)


@pytest.mark.timeout(120 + 3 * SECONDS)
def test_every_message_is_accounted_for(database_url: str):
    print(f"repeat with SKEP_TEST_SEED={SEED}")
    with psycopg.connect(database_url, autocommit=True) as mq:
        load.prepare(mq)
        account = load.run(database_url, SEED, SECONDS)
        assert len(account.acks) > 20 * SECONDS, "hardly anything happened"
        groups = [(group, queue) for queue, names in load.GROUPS.items() for group in names]
        mq.execute(
            "UPDATE skep.subscriptions SET status = 'ACTIVE', last_heartbeat_at = now() WHERE status <> 'ACTIVE'"
        )
        meanwhile = broken(mq)
        verbs.pass_time(mq, 3600)
        for group, queue in groups:
            drain(mq, account, group, queue)
        problems = account.check(mq, groups)
        assert (problems[:5], len(problems)) == ([], 0)
        assert (meanwhile, broken(mq)) == ({}, {})
        assert mq.execute(LEFT).fetchall() == []
        assert mq.execute("SELECT count(*) FROM skep.leases").fetchall() == [(0,)]
