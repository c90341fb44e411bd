"""Maintenance: what is pushed meanwhile is stored afterwards, once and in order, whoever dies in between."""

import asyncio
import time
from collections.abc import Callable, Generator
from typing import Any

import psycopg
import pytest

from skep import AsyncSkep
from skep.config import Config
from skep.server.http.state import State
from skep.upkeep.drainer import drain
from tests.server.serving import Client, in_thread, quiet, serving, until

__all__ = ["in_thread", "quiet"]
PATH = "/api/v1/system/maintenance"


@pytest.fixture
def server(database_url: str) -> Generator[Client]:
    with serving(database_url) as running:
        yield running


@pytest.fixture
def db(database_url: str) -> Generator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def switch(client: Client, *, on: bool) -> dict[str, Any]:
    answer = client.post(PATH, {"enabled": on})
    assert answer.status == 200, answer.body
    return answer.json


def payloads(client: Client, queue: str = "q", **query: Any) -> list[Any]:
    return [message["data"] for message in client.pop(queue, autoAck="true", batch=10_000, **query)]


def held(db: psycopg.Connection) -> int:
    return db.execute("SELECT coalesce(sum(messages), 0) FROM skep.held_pushes").fetchall()[0][0]


def test_a_push_is_held_and_stored_afterwards(server: Client, db: psycopg.Connection):
    assert switch(server, on=True)["maintenanceMode"] is True
    answers = server.push("q", 1, 2, partition="p", transactionId="a")
    assert answers == [
        {"index": index, "status": "buffered", "queue": "q", "partition": "p", "transactionId": "a"} for index in (0, 1)
    ]
    assert payloads(server) == []
    shown = server.get(PATH).json
    assert (shown["maintenanceMode"], shown["popMaintenanceMode"], shown["bufferedMessages"]) == (True, False, 2)
    assert shown["bufferStats"]["pendingCount"] == 2
    assert switch(server, on=False)["bufferedMessages"] == 0
    assert payloads(server) == [1], "the second has the same transaction id"
    assert held(db) == 0


def test_order_is_kept(server: Client):
    server.push("q", 0)
    switch(server, on=True)
    for number in range(1, 50, 2):
        server.push("q", number, number + 1)
    switch(server, on=False)
    server.push("q", 51)
    assert payloads(server) == list(range(52))


def test_a_long_poll_gets_what_was_held(quiet: Client, in_thread: Callable[..., Any]):
    server = quiet
    switch(server, on=True)
    server.push("q", 1)
    waiting = in_thread(payloads, server, wait="true", timeout=20_000)
    until(server.parked)
    switch(server, on=False)
    assert waiting.result(5) == [1]


def test_what_is_wrong_is_said_at_once(server: Client, db: psycopg.Connection):
    switch(server, on=True)
    for item in ({"queue": "x" * 300}, {"queue": "q", "transactionId": "t" * 300}, {"queue": "q", "payload": "\0"}):
        assert server.post("/api/v1/push", {"items": [item]}).status == 400
    assert held(db) == 0


@pytest.mark.parametrize("body", [None, {}, {"enabled": "yes"}, {"enabled": 1}, []])
def test_a_switch_needs_a_boolean(server: Client, body: object):
    for path in (PATH, f"{PATH}/pop"):
        answer = server.post(path, body)
        assert (answer.status, answer.json["error"]) == (400, "enabled (boolean) is required")


def test_another_server_hears_of_it(server: Client, database_url: str):
    with serving(database_url) as other:
        switch(server, on=True)
        until(lambda: other.push("q", 0)[0]["status"] == "buffered", 5)
        first = len(payloads(server))
        for number in range(10):
            other.push("q", number)
        switch(server, on=False)
        assert other.push("q", "late")[0]["status"] == "queued", "it does not hold what nobody would store"
        stored = payloads(server)
        assert stored[-11:] == [*range(10), "late"]
        assert first + len(stored) >= 11


def test_a_server_that_missed_the_end_stores_first_what_was_held(
    server: Client, database_url: str, db: psycopg.Connection
):
    """The one that was told died before it could drain: nothing new overtakes what is held."""
    switch(server, on=True)
    for number in range(5):
        server.push("q", number)
    db.execute("SELECT skep.set_maintenance_mode(push => false)")
    assert server.push("q", 5)[0]["status"] == "queued"
    assert payloads(server) == list(range(6))


def test_what_is_held_survives_the_server(database_url: str, db: psycopg.Connection):
    with serving(database_url) as first:
        switch(first, on=True)
        first.push("q", 1)
    with serving(database_url) as second:
        assert second.push("q", 2)[0]["status"] == "buffered"
        assert held(db) == 2
        switch(second, on=False)
        assert payloads(second) == [1, 2]


def test_everyone_drains_and_everything_is_stored_once(
    server: Client, database_url: str, in_thread: Callable[..., Any], db: psycopg.Connection
):
    switch(server, on=True)
    for number in range(300):
        server.push("q", number)
    with serving(database_url) as other:
        ends = [in_thread(switch, client, on=False) for client in (server, other) * 4]
        for end in ends:
            end.result(20)
        assert held(db) == 0
        assert payloads(server) == list(range(300))


def test_drains_take_turns(server: Client, db: psycopg.Connection, database_url: str, in_thread: Callable[..., Any]):
    switch(server, on=True)
    for number in range(10):
        server.push("q", number)
    db.execute("SELECT skep.set_maintenance_mode(push => false)")
    drain = "SELECT messages, refused FROM skep._drain_held_pushes(5)"
    with psycopg.connect(database_url) as first:
        assert first.execute(drain).fetchall() == [(5, 0)]
        second = in_thread(lambda: db.execute(drain).fetchall())
        waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s"
        with psycopg.connect(database_url, autocommit=True) as watch:
            until(lambda: watch.execute(waiting, [db.info.backend_pid]).fetchall())
        first.commit()
    assert second.result(5) == [(5, 0)]
    assert payloads(server) == list(range(10))


def test_a_drain_that_is_killed_half_way_has_done_nothing(server: Client, db: psycopg.Connection, database_url: str):
    switch(server, on=True)
    for number in range(20):
        server.push("q", number)
    db.execute("SELECT skep.set_maintenance_mode(push => false)")
    with psycopg.connect(database_url) as doomed:
        doomed.execute("SELECT * FROM skep._drain_held_pushes(5)")
        db.execute("SELECT pg_terminate_backend(%s)", [doomed.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            doomed.execute("SELECT 1")
    assert db.execute("SELECT messages FROM skep._drain_held_pushes(5)").fetchall() == [(5,)]
    switch(server, on=False)
    assert payloads(server) == list(range(20))


async def test_upkeep_stores_what_is_left(server: Client, db: psycopg.Connection, database_url: str):
    switch(server, on=True)
    server.push("q", 1)
    async with AsyncSkep(database_url) as mq:
        assert await drain(mq) is None, "not while it lasts"
        db.execute("SELECT skep.set_maintenance_mode(push => false)")
        assert await drain(mq) == "stored 1 held messages"
        assert await drain(mq) is None
    assert payloads(server) == [1]


async def test_what_is_refused_stays_and_is_tried_again(server: Client, db: psycopg.Connection, database_url: str):
    switch(server, on=True)
    for payload in ("small", "x" * 5000, "small too"):
        server.push("q", payload)
    db.execute("SELECT skep.configure_queue('q', '{\"max_payload_bytes\": 1000}')")
    ended = switch(server, on=False)
    assert (ended["bufferedMessages"], ended["bufferHealthy"]) == (1, False)
    assert payloads(server) == ["small", "small too"]
    assert server.push("q", "next")[0]["status"] == "queued", "it blocks nobody"
    async with AsyncSkep(database_url) as mq:
        assert await drain(mq) == "stored 0 held messages, 1 requests are still refused"
        db.execute("SELECT skep.configure_queue('q', '{\"max_payload_bytes\": 100000}')")
        assert await drain(mq) == "stored 1 held messages"
    assert payloads(server) == ["next", "x" * 5000]


def test_the_switch_waits_for_holds_under_way_and_no_other_begins(
    server: Client, db: psycopg.Connection, database_url: str, in_thread: Callable[..., Any]
):
    switch(server, on=True)
    with psycopg.connect(database_url) as slow:
        slow.execute("""SELECT skep._hold_push('[{"queue": "q", "partition": "p", "payload": 1}]')""")
        end = in_thread(switch, server, on=False)
        until(lambda: db.execute("SELECT FROM pg_locks WHERE NOT granted AND locktype = 'advisory'").fetchall())
        assert not end.done()
        slow.commit()
    end.result(5)
    assert payloads(server) == [1]
    assert db.execute("SELECT skep._hold_push('[]')").fetchall() == [(False,)]


def test_what_is_held_is_sealed(database_url: str, db: psycopg.Connection):
    with serving(database_url, encryption_keys=f"k1:{'ab' * 32}") as server:
        server.post("/api/v1/configure", {"queue": "q", "options": {"encryptionEnabled": True}})
        switch(server, on=True)
        server.push("q", {"card": "4242 4242 4242 4242"})
        assert "4242 4242" not in str(db.execute("SELECT items FROM skep.held_pushes").fetchall())
        switch(server, on=False)
        assert payloads(server) == [{"card": "4242 4242 4242 4242"}]


def test_paused_pops_are_empty_and_have_no_body(server: Client):
    server.push("q", 1)
    assert server.post(f"{PATH}/pop", {"enabled": True}).json["popMaintenanceMode"] is True
    answer = server.get("/api/v1/pop/queue/q")
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers
    assert server.get("/api/v1/pop", namespace="q").status == 204
    assert server.get("/api/v1/pop/queue/q", conflation="true", consumerGroup="g").json["conflation"] is True
    assert server.get(f"{PATH}/pop").json["popMaintenanceMode"] is True
    assert server.get(PATH).json["popMaintenanceMode"] is True
    assert server.post(f"{PATH}/pop", {"enabled": False}).json["popMaintenanceMode"] is False
    assert payloads(server) == [1]


def test_paused_polls_wait_and_do_not_spin(quiet: Client, in_thread: Callable[..., Any]):
    server = quiet
    server.push("q", 1)
    server.post(f"{PATH}/pop", {"enabled": True})
    start = time.monotonic()
    assert server.get("/api/v1/pop/queue/q", wait="true", timeout=300).status == 204
    assert time.monotonic() - start >= 0.3
    waiting = in_thread(payloads, server, wait="true", timeout=20_000)
    until(server.parked)
    server.post(f"{PATH}/pop", {"enabled": False})
    assert waiting.result(5) == [1]


def test_a_poll_that_was_parked_before_gets_nothing_either(server: Client, in_thread: Callable[..., Any]):
    waiting = in_thread(server.get, "/api/v1/pop/queue/q", wait="true", timeout=1500)
    until(server.parked)
    server.post(f"{PATH}/pop", {"enabled": True})
    server.push("q", 1)
    assert waiting.result(5).status == 204


async def test_a_server_stops_in_whatever_moment_it_is_told_to(database_url: str):
    """It asks what holds from its first moment on; a cancellation that got lost there once kept it alive for ever."""
    for milliseconds in range(60):
        state = State(Config(database_url=database_url), None)
        await state.__aenter__()
        await asyncio.sleep(milliseconds / 1000)
        await asyncio.wait_for(state.__aexit__(), 10)
