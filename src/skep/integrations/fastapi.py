"""FastAPI: a client that lives as long as the application, and messages as server-sent events.

app = FastAPI(lifespan=lifespan())

@app.post("/orders")
async def order(body: dict[str, Any], mq: Mq) -> int:
    return (await mq.queue("orders").push(body)).offset

@app.get("/orders/events")
async def events(request: Request, mq: Mq) -> EventStream:
    return EventStream(request, mq, "orders", group="page")
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Annotated
from uuid import UUID

from fastapi import Depends, FastAPI, Request
from fastapi.requests import HTTPConnection
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from skep.client import AsyncSkep
from skep.client.aio.batch import AsyncBatch
from skep.errors import TransientError
from skep.message import DEFAULT_PARTITION, Message

log = logging.getLogger("skep")

LINE_END = re.compile("\r\n|\r|\n")  # the line ends of an event; str.splitlines splits at more characters
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # the second one turns off the buffering of nginx


def lifespan(
    mq: AsyncSkep | str | None = None, *, consumers: bool = False
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return a lifespan that opens a client at the start of the application and closes it at the end.

    `mq` is a client, a database URL, or None for SKEP_DATABASE_URL. With `consumers` the consumers of the client run
    meanwhile; at the end started handlers finish.
    """

    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncGenerator[None]:
        client = mq if isinstance(mq, AsyncSkep) else AsyncSkep(mq)
        async with client:
            app.state.skep = client
            if not consumers:
                yield
                return
            running = asyncio.create_task(client.run())
            running.add_done_callback(_log_error)
            try:
                yield
            finally:
                while not running.done():  # stop() has no effect on consumers that have not started yet
                    await client.stop()
                    await asyncio.wait([running], timeout=0.1)
            await running

    return live


def _log_error(running: asyncio.Task[None]) -> None:
    if not running.cancelled() and (error := running.exception()):
        log.critical("the consumers of the application ended with an error: %s", error)


def get_skep(connection: HTTPConnection) -> AsyncSkep:
    return connection.app.state.skep


Mq = Annotated[AsyncSkep, Depends(get_skep)]


def payload_only(message: Message) -> str:
    return json.dumps(message.payload, ensure_ascii=False)


class EventStream(Response):
    """Sends the messages of a group as server-sent events. Each message is acknowledged when it has been sent.

    The id of an event is the id of its message. A browser that reconnects sends the id of the last event it received,
    and the stream continues after that message, without loss and without duplicates. So each browser needs its own
    group. If an old connection of the group is still open, the new one takes over.

    With `partition` None the stream has the messages of all partitions. After a reconnect the partition of the last
    event continues after it. In other partitions, events in transit when the connection broke are not sent again.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        request: Request,
        mq: AsyncSkep,
        queue: str,
        *,
        group: str,
        partition: str | None = DEFAULT_PARTITION,
        subscription_mode: str = "new",
        data: Callable[[Message], str] = payload_only,
        batch: int = 20,
        heartbeat: float = 15,
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]  # unknown
        self._mq = mq
        self._queue = queue
        self._group = group
        self._partition = partition
        self._mode = subscription_mode
        self._data = data
        self._batch = batch
        self._heartbeat = heartbeat
        self._last_seen = request.headers.get("last-event-id")
        self._next: int | None = None  # the offset after the last message sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send events until the browser disconnects. Messages that were not sent are released."""
        sending = asyncio.create_task(self._send(send))
        disconnect = asyncio.create_task(_until_disconnect(receive))
        try:
            await asyncio.wait([sending, disconnect], return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect.cancel()
            sending.cancel()
            await asyncio.wait([sending])
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        await self._resume()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events()) as events:
            async for text in events:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _events(self) -> AsyncGenerator[str]:
        """Yield the events of each batch. Asking for the next batch acknowledges the previous one."""
        batches = self._mq.queue(self._queue).consume(
            group=self._group, partition=self._partition, batch=self._batch, subscription_mode=self._mode
        )
        yield ": here\n\n"
        async with aclosing(batches):
            while True:
                next_batch = asyncio.ensure_future(anext(batches, None))
                try:
                    while not (await asyncio.wait([next_batch], timeout=self._heartbeat))[0]:
                        if await self._is_taken_over():
                            return
                        yield ": still here\n\n"
                    batch = next_batch.result()
                finally:
                    await _end(next_batch)
                if batch is None or await self._has_gap(batch[0].offset):
                    return
                yield "".join(map(self._event, batch))
                self._next = batch[-1].offset + 1

    async def _has_gap(self, offset: int) -> bool:
        """Return whether another connection of the group got messages in between. The browser must reconnect then."""
        if self._partition is None or self._next is None or offset <= self._next:
            return False
        between = await self._mq.peek(self._queue, self._partition, self._next)
        return any(message.offset < offset and not message.deleted for message in between)

    async def _is_taken_over(self) -> bool:
        """Return whether another connection has moved the cursor ahead; False if the database is not available."""
        if self._partition is None:
            return False
        try:
            lags = await self._mq.lag(self._group, self._queue, self._partition)
            return len(lags) == 1 and await self._has_gap(lags[0].cursor)
        except TransientError:
            return False

    def _event(self, message: Message) -> str:
        lines = "".join(f"data: {line}\n" for line in LINE_END.split(self._data(message)))
        return f"id: {message.id}\n{lines}\n"

    async def _resume(self) -> None:
        """Move the group after the last event that the browser received, if that message exists in this stream."""
        try:
            seen = await self._mq.find(UUID(self._last_seen or ""))
        except ValueError:
            return
        if seen is None or seen.queue != self._queue or self._partition not in (None, seen.partition):
            return
        self._next = seen.offset + 1
        lags = await self._mq.lag(self._group, self._queue, seen.partition)
        if [(lag.cursor, lag.leased) for lag in lags] != [(self._next, 0)]:
            await self._mq.seek(self._group, self._queue, self._next, partition=seen.partition)


async def _end(next_batch: "asyncio.Future[AsyncBatch | None]") -> None:
    if not next_batch.done():
        next_batch.cancel()
        await asyncio.wait([next_batch])


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
