"""Commands wait 5 seconds at most for a transaction that somebody has forgotten, and then change nothing."""

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.verbs import broken, call, pop, push, refused

Connect = Callable[..., psycopg.Connection]
GROUP = {"group_name": "g", "queue": "q"}


def acknowledge(held: psycopg.Connection) -> None:
    (leased,) = held.execute("SELECT lease_id FROM skep.runs").fetchall()
    call(held, "ack", lease=leased[0])


def pause(held: psycopg.Connection) -> None:
    call(held, "pause", **GROUP)


def clear(held: psycopg.Connection) -> None:
    call(held, "clear_queue", queue="q")


def subscribe(held: psycopg.Connection) -> None:
    call(held, "subscribe", group_name="new", queue="q")


@pytest.mark.parametrize(
    ("forgotten", "command", "arguments"),
    [
        (pause, "pause", GROUP),
        (acknowledge, "cancel", GROUP),
        (acknowledge, "cancel_group", GROUP),
        (pause, "resume", GROUP),
        (pause, "heartbeat", GROUP),
        (pause, "configure_group", {**GROUP, "options": Jsonb({"retry_limit": 1})}),
        (subscribe, "subscribe", {**GROUP, "group_name": "new"}),
        (clear, "delete_message", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_command_does_not_wait_without_bound(
    connect: Connect, forgotten: Callable[[psycopg.Connection], None], command: str, arguments: dict[str, Any]
):
    mq, held = connect(), connect(autocommit=False)
    pushed = push(mq, "q", 1, 2)[1]
    call(mq, "subscribe", **GROUP)
    assert len(pop(mq, "q", batch=1)) == 1
    forgotten(held)
    if command == "delete_message":
        row = mq.execute("SELECT skep.message_id(%s, %s) AS id", [pushed.partition_id, pushed.offset]).fetchall()[0]
        arguments = {"id": row[0]}
    mq.execute("SET statement_timeout = '12s'")
    begin = time.monotonic()
    with refused("55P03", "is locked by another transaction"):
        call(mq, command, **arguments)
    assert 4 < time.monotonic() - begin < 10
    held.rollback()
    call(mq, command, **arguments)
    assert broken(mq) == {}
