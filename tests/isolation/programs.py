"""The steps that programs are made of: one call of a producer or consumer each."""

from typing import Any, LiteralString

import psycopg

from tests.engine import verbs
from tests.isolation.steps import Session, Step


def _begin(session: Session) -> None:
    session.connection.execute("BEGIN")


def _commit(session: Session) -> None:
    ended = session.connection.execute("COMMIT").statusmessage
    session.end_transaction(committed=ended == "COMMIT")  # COMMIT of a failed transaction returns ROLLBACK


def _rollback(session: Session) -> None:
    session.connection.execute("ROLLBACK")
    session.end_transaction(committed=False)


def _ack(session: Session) -> None:
    """Acknowledge the last pop; if the lease is stale, the ack is refused, and the story records it."""
    deliveries, session.leased = session.leased, []
    if not deliveries:
        return
    try:
        verbs.ack(session.connection, deliveries)
    except psycopg.Error as error:
        if error.sqlstate != "SK003":
            raise
        session.happened("refused", deliveries)
    else:
        for delivery in deliveries:
            session.happened("acked", delivery)


begin = Step("begin", _begin)
commit = Step("commit", _commit)
rollback = Step("rollback", _rollback)
ack = Step("ack", _ack)


def push(payload: str, *partitions: str, queue: str | None = None) -> Step:
    """Push to one or more partitions in one call; the payload names the partition."""

    def do(session: Session) -> None:
        names = partitions or ("Default",)
        verbs.push_to(
            session.connection, [(queue or session.queue, partition, f"{payload} {partition}") for partition in names]
        )
        for partition in names if queue is None else ():
            session.happened("pushed", f"{payload} {partition}")

    return Step(f"push {payload}", do)


def insert(payload: str, *partitions: str) -> Step:
    """Insert into the outbox, which never waits."""

    def do(session: Session) -> None:
        for partition in partitions or ("Default",):
            session.connection.execute(
                "INSERT INTO skep.outbox (queue, partition, payload) VALUES (%s, %s, to_jsonb(%s::text))",
                [session.queue, partition, f"{payload} {partition}"],
            )
            session.happened("pushed", f"{payload} {partition}")

    return Step(f"insert {payload}", do, bounded=True)


def pop(partition: str | None = None, **options: Any) -> Step:
    """Pop from the queue, or from one partition of it: waits for others, but not long."""

    def do(session: Session) -> None:
        session.leased = verbs.pop(session.connection, session.queue, partition=partition, **options)
        session.happened("popped", session.leased)

    return Step(f"pop {partition or ''}".strip(), do, bounded=True)


def take(partition: str | None = None, **options: Any) -> Step:
    """Pop and acknowledge."""
    both = pop(partition, **options) + ack
    return Step(f"take {partition or ''}".strip(), both.do, bounded=True)


def run(name: str, query: LiteralString, *, bounded: bool = False) -> Step:
    """Run a statement; the story records it by its name once it is committed."""

    def do(session: Session) -> None:
        result = session.connection.execute(query, {"queue": session.queue})
        session.happened(name, result.fetchall() if result.description else None)

    return Step(name, do, bounded)


def patient(step: Step) -> Step:
    """Allow a step to wait for an open transaction as long as it takes."""
    return Step(step.name, step.do)


def _ack_first(session: Session) -> None:
    """Acknowledge the first message of the last pop only."""
    first, session.leased = session.leased[0], session.leased[1:]
    try:
        verbs.call(session.connection, "ack", lease=first.lease, id=first.id)
    except psycopg.Error as error:
        if error.sqlstate != "SK003":
            raise
        session.happened("refused", [first])
    else:
        session.happened("acked", first)


def _extend(session: Session) -> None:
    """Extend the lease of the last pop by a minute."""
    try:
        verbs.call(session.connection, "extend", lease=session.leased[0].lease, seconds=60)
    except psycopg.Error as error:
        if error.sqlstate != "SK003":
            raise
        session.happened("refused", session.leased)
    else:
        session.happened("extended", session.leased)


def _expire(session: Session) -> None:
    """Wait until the lease that the session got has expired."""
    session.connection.execute("SELECT pg_sleep_until(%s)", [session.leased[0].lease_expires_at])


ack_first = Step("ack first", _ack_first)
extend = Step("extend", _extend)
expire = Step("expire", _expire)
