"""The real FastAPI with the real uvicorn, and clients that read the event stream."""

import asyncio
import contextlib
import http.client
import itertools
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import uvicorn
from fastapi import FastAPI, Request

from skep import AsyncSkep, Message, NewMessage, Skep
from skep.errors import SkepError
from skep.integrations.fastapi import EventStream, Mq, lifespan
from skep.message import Lag

EXAMPLES = Path(__file__).parents[2] / "examples"


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def serving(app: FastAPI) -> Generator[int]:
    """Run an application until the end of the block, and yield its port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


class Listener:
    """An EventSource: reads events as the standard says, and keeps the id of the last one."""

    def __init__(self, port: int, path: str = "/events", last_id: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._connection.request("GET", path, headers={"Last-Event-ID": last_id} if last_id else {})
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.read()
        assert self._response.headers["content-type"].startswith("text/event-stream")
        self._text = ""
        self.last_id = last_id
        self.comments: list[str] = []

    def _line(self) -> str:
        while not (found := re.search("\r\n|\r(?!$)|\n", self._text)):
            chunk = self._response.read1(65536)
            if not chunk:
                raise EOFError
            self._text += chunk.decode()
        line, self._text = self._text[: found.start()], self._text[found.end() :]
        return line

    def event(self) -> str:
        data: list[str] = []
        while (line := self._line()) or not data:
            field, _, value = line.partition(":")
            if field == "data":
                data.append(value.removeprefix(" "))
            elif field == "id":
                self.last_id = value.removeprefix(" ")
            elif line:
                self.comments.append(value.removeprefix(" "))
        return "\n".join(data)

    def events(self, number: int) -> list[Any]:
        return [json.loads(self.event()) for _ in range(number)]

    def leave(self) -> None:
        self._response.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def post(port: int, order: object) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with contextlib.closing(connection):
        connection.request("POST", "/orders", json.dumps(order), {"content-type": "application/json"})
        return connection.getresponse().read()


def application(database_url: str, **options: Any) -> FastAPI:
    app = FastAPI(lifespan=lifespan(database_url))

    @app.post("/orders")
    async def order(body: dict[str, Any], mq: Mq) -> int | None:
        return (await mq.queue("orders").push(body)).offset

    @app.get("/events")
    async def events(request: Request, mq: Mq) -> EventStream:
        return EventStream(request, mq, "orders", group="page", **{"subscription_mode": "all", **options})

    return app


def test_the_client_lives_as_long_as_the_application(database_url: str):
    app = application(database_url)
    with serving(app) as port:
        assert [post(port, {"id": number}) for number in range(2)] == [b"0", b"1"]
    with pytest.raises(SkepError, match="this client is closed"):
        asyncio.run(app.state.skep.ping())
    with Skep(database_url) as mq:
        assert [message.payload for message in mq.queue("orders").pop(batch=9)] == [{"id": 0}, {"id": 1}]


def test_started_handlers_finish(database_url: str):
    client, began = AsyncSkep(database_url), threading.Event()
    ended: list[int] = []

    @client.consumer("orders", group="billing", batch=1)
    async def bill(message: Message) -> None:
        began.set()
        await asyncio.sleep(0.5)
        ended.append(message.offset)

    with Skep(database_url) as mq:
        mq.queue("orders").push_many(range(10))
        with serving(FastAPI(lifespan=lifespan(client, consumers=True))):
            assert began.wait(30)
        (row,) = mq.queue("orders").lag("billing")
        assert (row.cursor, row.leased) == (len(ended), 0)
        assert 1 <= len(ended) < 10


def test_an_application_can_end_before_its_consumers_start(database_url: str):
    async def live() -> None:
        client = AsyncSkep(database_url)
        client.consumer("orders")(print)
        async with lifespan(client, consumers=True)(FastAPI()):
            pass

    asyncio.run(asyncio.wait_for(live(), 20))


def test_an_error_of_the_consumers_is_logged_at_once(database_url: str, caplog: pytest.LogCaptureFixture):
    async def live() -> None:
        client = AsyncSkep(database_url)
        client.consumer("o" * 256)(print)
        async with lifespan(client, consumers=True)(FastAPI()):
            await asyncio.to_thread(until, lambda: "ended with an error" in caplog.text)

    with caplog.at_level(logging.CRITICAL), pytest.raises(SkepError, match="256 characters"):
        asyncio.run(asyncio.wait_for(live(), 20))


def test_messages_are_events(database_url: str):
    """Stored messages, new messages, and heartbeats in between."""
    with Skep(database_url) as mq, serving(application(database_url, heartbeat=0.2)) as port, Listener(port) as page:
        mq.queue("orders").push_many(range(50))
        assert page.events(50) == list(range(50))
        time.sleep(0.5)
        mq.queue("orders").push("late")
        assert page.events(1) == ["late"]
        assert set(page.comments) == {"here", "still here"}
        until(lambda: [row.lag for row in mq.queue("orders").lag("page")] == [0])


NOT_LINE_ENDS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"


@pytest.mark.parametrize("hostile", ["\ndata: x", "\r\nid: 7\r\n\r\n", "\rretry: 1\r\r", "\n\n: x", "", NOT_LINE_ENDS])
@pytest.mark.parametrize("data", [None, lambda message: message.payload])
def test_no_payload_can_forge_an_event(database_url: str, hostile: str, data: Callable[[Message], str] | None):
    options = {} if data is None else {"data": data}
    with Skep(database_url) as mq, serving(application(database_url, **options)) as port, Listener(port) as page:
        receipt = mq.queue("orders").push(hostile)
        last = mq.queue("orders").push("last")
        first = page.event()
        assert (first if data else json.loads(first)) == (re.sub("\r\n|\r", "\n", hostile) if data else hostile)
        assert page.last_id == str(receipt.id)
        assert page.event() == ("last" if data else '"last"')
        assert page.last_id == str(last.id)
        assert page.comments == ["here"]


@contextmanager
def unread_stream(mq: Skep, port: int) -> Generator[Lag]:
    """Open a stream that is not read, and yield the lag when the buffers of the connection are full."""
    mq.queue("orders").push_many([f"{number:02}" + "x" * 1_000_000 for number in range(30)])
    with Listener(port) as page:
        assert page.event()[1:3] == "00"
        row, before = mq.queue("orders").lag("page")[0], None
        while (row.cursor, row.leased) != before or not row.leased:
            before = (row.cursor, row.leased)
            time.sleep(0.5)
            (row,) = mq.queue("orders").lag("page")
        yield row


def test_a_disconnect_releases_messages_that_were_not_sent(database_url: str):
    with Skep(database_url) as mq, serving(application(database_url, batch=2)) as port:
        with unread_stream(mq, port):
            pass
        (message,) = mq.queue("orders").pop(group="page", wait=30)
        (row,) = mq.queue("orders").lag("page")
        assert 0 < row.cursor == message.offset < 30
        assert message.attempt == 1


def test_a_new_connection_gets_the_leased_messages_of_the_old_one(database_url: str):
    with (
        Skep(database_url) as mq,
        serving(application(database_url, batch=2)) as port,
        unread_stream(mq, port) as row,
    ):
        (seen,) = mq.peek("orders", "Default", row.cursor - 1, 1)
        with Listener(port, last_id=str(seen.id)) as page:
            assert page.event()[1:3] == f"{row.cursor:02}"


def test_a_reconnect_continues_after_the_last_event(database_url: str):
    """The connection breaks after any event, while more messages are pushed."""
    chance, seen, last_id = random.Random(7), [], None
    with Skep(database_url) as mq, serving(application(database_url, batch=7)) as port:
        for number in range(0, 200, 20):
            mq.queue("orders").push_many(range(number, number + 20))
            with Listener(port, last_id=last_id) as page:
                seen += page.events(chance.randint(1, number + 20 - len(seen)))
                last_id = page.last_id
        with Listener(port, last_id=last_id) as page:
            seen += page.events(200 - len(seen))
    assert seen == list(range(200))


def test_a_new_connection_takes_over(database_url: str):
    """The server does not notice the end of the old one, and continues to write to it."""
    app = application(database_url, batch=2, heartbeat=0.1)
    with Skep(database_url) as mq, serving(app) as port, Listener(port) as old:
        orders, seen, more = mq.queue("orders"), [], iter(range(10, 100))
        orders.push_many(range(10))
        assert old.events(3) == [0, 1, 2]
        last_id, connections = old.last_id, 0
        while len(seen) < 97:
            connections += 1
            with Listener(port, last_id=last_id) as page, contextlib.suppress(EOFError):
                while len(seen) < 97:
                    orders.push_many(itertools.islice(more, 1))
                    seen += page.events(1)
                    last_id = page.last_id
    assert seen == list(range(3, 100))
    assert connections < 10


def test_a_deleted_message_is_not_a_gap(database_url: str):
    with Skep(database_url) as mq, serving(application(database_url, batch=2)) as port:
        receipts = mq.queue("orders").push_many(range(6))
        for receipt in receipts[1:4]:
            mq.delete_message(receipt.id)
        with Listener(port, last_id=str(receipts[0].id)) as page:
            assert page.events(2) == [4, 5]


def test_each_partition_is_in_order(database_url: str):
    """All partitions in one stream; the id of a message of another queue is ignored."""
    with Skep(database_url) as mq, serving(application(database_url, partition=None, batch=3)) as port:
        other = mq.queue("other").push(1)
        mq.queue("orders").push_many(
            [NewMessage([partition, n], str(partition)) for n in range(20) for partition in range(3)]
        )
        with Listener(port, last_id=str(other.id)) as page:
            events = page.events(60)
        assert [[n for of, n in events if of == partition] for partition in range(3)] == [list(range(20))] * 3


def test_an_open_stream_ends_with_the_server(database_url: str):
    with Skep(database_url) as mq:
        with serving(application(database_url)) as port:
            mq.queue("orders").push_many(range(5))
            page = Listener(port)
            assert page.events(5) == list(range(5))
        with contextlib.suppress(http.client.IncompleteRead, ConnectionResetError), pytest.raises(EOFError):
            page.event()
        page.leave()
        assert [(row.cursor, row.leased) for row in mq.queue("orders").lag("page")] == [(5, 0)]


def test_the_example(database_url: str):
    """Run fastapi_events.py with the command in its docstring."""
    command = [sys.executable, "-m", "uvicorn", "fastapi_events:app", "--timeout-graceful-shutdown", "5", "--port", "0"]
    env = os.environ | {"SKEP_DATABASE_URL": database_url, "PYTHONUNBUFFERED": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=EXAMPLES, env=env, **pipes) as server:
        assert server.stdout
        port = next(int(found[1]) for line in server.stdout if (found := re.search(r"127.0.0.1:(\d+)", line)))
        with Listener(port, "/orders/events/ann") as page:
            assert post(port, {"id": 7}) == b"0"
            assert page.events(1) == [{"id": 7}]
        assert any(line == "billing 7\n" for line in server.stdout)
        server.terminate()
        server.stdout.read()
    assert server.returncode in (0, -signal.SIGTERM)
