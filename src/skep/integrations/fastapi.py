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

LINE_END = re.compile("\r\n|\r|\n")  # what ends a line of an event; str.splitlines knows more, which are data
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # the second one tells nginx to pass on at once


def lifespan(
    mq: AsyncSkep | str | None = None, *, consumers: bool = False
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Open a client (or one of this URL, or of SKEP_DATABASE_URL) at the start, and close it at the end.

    `consumers`: run the handlers of the client meanwhile; at the end they finish what they have begun.
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
            running.add_done_callback(_tell)
            try:
                yield
            finally:
                while not running.done():  # they may not have begun yet, when there was nothing to stop
                    await client.stop()
                    await asyncio.wait([running], timeout=0.1)
            await running

    return live


def _tell(running: asyncio.Task[None]) -> None:
    if not running.cancelled() and (error := running.exception()):
        log.critical("the consumers of the application have ended: %s", error)


def get_skep(connection: HTTPConnection) -> AsyncSkep:
    return connection.app.state.skep


Mq = Annotated[AsyncSkep, Depends(get_skep)]


def payload_only(message: Message) -> str:
    return json.dumps(message.payload, ensure_ascii=False)


class EventStream(Response):
    """The messages of a group, as long as somebody listens; each is acknowledged once it is sent.

    The id of an event is that of its message. A browser that comes back tells the last one it has seen: the partition
    goes on right there, whatever had been sent and got lost, or had arrived and was not acknowledged. So each listener
    needs a group of its own; if an old connection of his is still open, the new one wins.

    `partition` None is every partition. Then the one of the last event goes on right there, and the others behind what
    was sent: what was on its way when the connection broke is not sent again.
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
        del self.headers["content-length"]  # nobody knows
        self._mq = mq
        self._queue = queue
        self._group = group
        self._partition = partition
        self._mode = subscription_mode
        self._data = data
        self._batch = batch
        self._heartbeat = heartbeat
        self._last_seen = request.headers.get("last-event-id")
        self._next: int | None = None  # the offset behind the last one sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send until the listener goes away; what was not sent is given back then."""
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
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
        """Going on to the next batch acknowledges the one before, which is sent by then."""
        batches = self._mq.queue(self._queue).consume(
            group=self._group, partition=self._partition, batch=self._batch, subscription_mode=self._mode
        )
        yield ": here\n\n"
        async with aclosing(batches):
            while True:
                coming = asyncio.ensure_future(anext(batches, None))
                try:
                    while not (await asyncio.wait([coming], timeout=self._heartbeat))[0]:
                        if await self._is_left_behind():
                            return
                        yield ": still here\n\n"
                    batch = coming.result()
                finally:
                    await _end(coming)
                if batch is None or await self._has_gap(batch[0].offset):
                    return
                yield "".join(map(self._event, batch))
                self._next = batch[-1].offset + 1

    async def _has_gap(self, offset: int) -> bool:
        """Tell whether another connection of this listener was sent something below. Then he has to come again."""
        if self._partition is None or self._next is None or offset <= self._next:
            return False
        between = await self._mq.peek(self._queue, self._partition, self._next)
        return any(message.offset < offset and not message.deleted for message in between)

    async def _is_left_behind(self) -> bool:
        """The same while nothing comes, when nobody should have come further. A database that is away says nothing."""
        if self._partition is None:
            return False
        try:
            lanes = await self._mq.lag(self._group, self._queue, self._partition)
            return len(lanes) == 1 and await self._has_gap(lanes[0].cursor)
        except TransientError:
            return False

    def _event(self, message: Message) -> str:
        lines = "".join(f"data: {line}\n" for line in LINE_END.split(self._data(message)))
        return f"id: {message.id}\n{lines}\n"

    async def _resume(self) -> None:
        """Put the group behind the last event that was seen. One that is not of this stream, or gone, says nothing."""
        try:
            seen = await self._mq.find(UUID(self._last_seen or ""))
        except ValueError:
            return
        if seen is None or seen.queue != self._queue or self._partition not in (None, seen.partition):
            return
        self._next = seen.offset + 1
        lanes = await self._mq.lag(self._group, self._queue, seen.partition)
        if [(lane.cursor, lane.leased) for lane in lanes] != [(self._next, 0)]:
            await self._mq.seek(self._group, self._queue, self._next, partition=seen.partition)


async def _end(coming: "asyncio.Future[AsyncBatch | None]") -> None:
    if not coming.done():
        coming.cancel()
        await asyncio.wait([coming])


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
