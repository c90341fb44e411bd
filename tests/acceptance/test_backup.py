"""examples/backup.sh and restore.sh move all state to another PostgreSQL, and groups continue there."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psycopg

from skep import Skep, embedded
from skep.embedded import binaries

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(example: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    tools = [str(Path(sys.executable).parent), str(binaries.find(None, None).bin_dir), os.environ["PATH"]]
    return subprocess.run(
        ["sh", "-e", EXAMPLES / example],
        cwd=folder,
        env=os.environ | {"PATH": os.pathsep.join(tools)} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def use_transaction_ids(url: str) -> None:
    """Use up transaction ids, so that those of this cluster are in the future of a new one."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DO $$ BEGIN FOR n IN 1 .. 3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")


def test_groups_continue_in_another_cluster(database_url: str, tmp_path: Path, data_dir: Path):
    use_transaction_ids(database_url)
    with Skep(database_url) as mq:
        orders = mq.queue("orders")
        orders.push_many([{"id": n} for n in range(10)])
        orders.pop(group="billing", batch=4).ack()
        orders.pop(group="mail", batch=10).ack()
        batch = orders.pop(group="claims")
        batch.dead_letter(batch[0], "no such order")
        mq.prune_journal(timedelta(0))
    assert run("backup.sh", tmp_path, SKEP_DATABASE_URL=database_url).returncode == 0
    with embedded.start(data_dir) as other:
        restored = run("restore.sh", tmp_path, NEW_DATABASE_URL=other.url)
        assert restored.returncode == 0, restored.stderr
        with Skep(other.url) as mq, psycopg.connect(other.url, autocommit=True) as connection:
            seen = """
                SELECT w.first_offset, w.end_offset FROM skep._read_snapshot('{orders}') v
                CROSS JOIN LATERAL skep._read_window(v.queue_ids, NULL, v.snapshot) w
            """
            assert connection.execute(seen).fetchall() == [(0, 10)], "Spark sees the restored messages"
            orders = mq.queue("orders")
            assert [message.payload["id"] for message in orders.pop(group="billing", batch=100)] == list(range(4, 10))
            assert not orders.pop(group="mail", batch=100)
            orders.push({"id": 10})
            assert [message.payload["id"] for message in orders.pop(group="mail", batch=100)] == [10]
            floor = connection.execute("SELECT xid < pg_current_xact_id() FROM skep.journal_floor").fetchone()
            assert floor == (True,), "groups need not read every partition"
            assert [dead.payload["id"] for dead in mq.dead_letters("orders")] == [0]
            check = connection.execute("SELECT sum(broken) FROM skep.check_consistency()").fetchone()
            assert check == (0,)
