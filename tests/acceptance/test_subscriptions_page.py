"""The timeline of docs/subscriptions.md."""

import psycopg

from tests.engine.verbs import pass_time


def test_the_timeline(database_url: str):
    with psycopg.connect(database_url, autocommit=True) as connection:

        def push(partition: str, *payloads: str) -> None:
            for payload in payloads:
                connection.execute(
                    "SELECT skep.push('orders', to_jsonb(%s::text), partition => %s)", (payload, partition)
                )

        def pop(group: str, mode: str | None = None, start: str | None = None) -> list[str]:
            rows = connection.execute(
                "SELECT payload, lease FROM skep.pop('orders', %s, batch => 10, partitions => 10,"
                " subscription_mode => %s, subscription_from => %s)",
                (group, mode, start),
            ).fetchall()
            for lease in {lease for _, lease in rows}:
                connection.execute("SELECT skep.ack(%s)", (lease,))
            return sorted(payload for payload, _ in rows)

        push("p1", "m1")
        pass_time(connection, 297)
        push("p1", "m2")
        pass_time(connection, 3)
        assert pop("cg", "new") == ["m2"]
        pass_time(connection, 600)
        push("p2", "m3", "m4", "m5")
        pass_time(connection, 300)
        explained = "SELECT scope, mode, start_offset, has_started FROM skep.explain_start('cg', 'orders', 'p2')"
        assert connection.execute(explained).fetchall() == [("queue", "new", 0, False)]
        assert pop("cg") == ["m3", "m4", "m5"]
        assert pop("late", "new") == []
        assert pop("audit", "all") == ["m1", "m2", "m3", "m4", "m5"]
        ((since,),) = connection.execute("SELECT created_at FROM skep.messages WHERE payload = '\"m2\"'").fetchall()
        assert pop("since", "timestamp", str(since)) == ["m2", "m3", "m4", "m5"]
        assert pop("cg", "all") == []
        sought = connection.execute("SELECT partitions, replayed FROM skep.seek('cg', 'orders', 'beginning')")
        assert sought.fetchall() == [(2, 5)]
        assert pop("cg") == ["m1", "m2", "m3", "m4", "m5"]
