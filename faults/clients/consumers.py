"""Consumers: over HTTP, with the client and every kind of ack, and in transactions that push too."""

import asyncio
import os
from collections.abc import Awaitable, Sequence
from typing import Any, Literal

import psycopg

from faults.checker.transactions import DERIVED, MAKER, derived
from faults.clients.context import Me, opened, outcome_of, partition_of, row
from faults.clients.http import Http, NoResponse, NotSent
from faults.clients.producers import wire_item
from faults.clients.recorder import record_calls
from faults.history import Content, Kind
from faults.state import CROWD, MANY
from skep import AsyncSkep, SkepError
from skep.client.aio.batch import AsyncBatch
from skep.message import Message

Rows = list[list[Any]]


def locations(messages: Sequence[Message]) -> list[tuple[int, int]]:
    return [(message.partition_id, message.offset) for message in messages]


async def http(me: Me) -> None:
    """Run two consumers that pop by long poll and ack whole batches."""
    async with asyncio.TaskGroup() as group:
        for number in range(2):
            group.create_task(_over_http(me, int(me.name[-1]) + number))


async def _over_http(me: Me, turn: int) -> None:
    """Use the next server if one does not respond."""
    servers = [Http(port) for port in me.settings.ports]
    while not me.stopping.is_set():
        try:
            await _pop_and_ack(me, servers[turn % len(servers)], "http")
        except (NotSent, NoResponse):
            turn += 1
            await me.pause(0.1)


async def _pop_and_ack(me: Me, server: Http, group: str) -> None:
    batch, partitions = me.rng.randint(1, me.settings.batch), me.rng.choice((1, 1, 2))
    path = (
        f"/api/v1/pop/queue/orders?consumerGroup={group}&batch={batch}&partitions={partitions}&wait=true&timeout=1000"
    )
    call = me.history.invoke("pop", queue="orders", group=group, lease_time=2, batch=batch)
    status, response = await _returned(me, call, server.call("GET", path, wait=1))
    if status != 200:
        me.history.returned(call, "unknown", error=response)
        await me.pause(0.2)
        return
    messages = response["messages"]
    rows = [_wire_row(message) for message in messages]
    me.history.returned(call, "ok", lease=response["leaseId"] or "", messages=rows)
    if messages:
        await me.think(len(messages))
        await _ack(me, server, group, messages, rows)


def _wire_row(message: dict[str, Any]) -> list[Any]:
    """Return a message of Queen's protocol as the history stores it. There, the default transaction id is the id."""
    key = None if message["transactionId"] == message["id"] else message["transactionId"]
    content = Content(message["partition"], message["data"], message["headers"], key)
    return [partition_of(message["partitionId"]), message["offset"], message["deliveryAttempt"], *content]


async def _ack(me: Me, server: Http, group: str, messages: list[dict[str, Any]], rows: Rows) -> None:
    names = ("transactionId", "partitionId", "leaseId")
    acks = [{name: message[name] for name in names} for message in messages]
    about = {"kind": "completed", "group": group, "lease": messages[0]["leaseId"]}
    call = me.history.invoke("ack", locations=[each[:2] for each in rows], **about)
    body = {"acknowledgments": acks, "consumerGroup": group}
    status, response = await _returned(me, call, server.call("POST", "/api/v1/ack/batch", body))
    if status != 200:
        me.history.returned(call, "unknown", error=response)
        return
    outcomes = ["ok" if each["success"] and not each["noop"] else "refused" for each in response]
    me.history.returned(call, "ok", outcomes=outcomes)


async def _returned(me: Me, call: int, calling: Awaitable[tuple[int, Any]]) -> tuple[int, Any]:
    try:
        return await calling
    except NotSent as error:
        me.history.returned(call, "failed", error=str(error))
        raise
    except NoResponse as error:
        me.history.returned(call, "unknown", error=str(error))
        raise


async def client(me: Me) -> None:
    """Use every kind of ack: whole batch, one by one, failed, dead-lettered, released, extended."""
    async with opened(me, 6) as mq, asyncio.TaskGroup() as group:
        group.create_task(_pops(me, mq, "orders", "client"))
        group.create_task(_pops(me, mq, "limited", "limited"))
        for _ in range(2):
            group.create_task(_pops(me, mq, "shared", "crowd"))


async def _pops(me: Me, mq: AsyncSkep, queue: str, group: str) -> None:
    while not me.stopping.is_set():
        batch = await _pop(me, mq, queue, group)
        if batch:
            await _ack_randomly(me, batch, group)


async def _pop(
    me: Me, mq: AsyncSkep, queue: str, group: str, *, auto: bool = False, lease_time: float = 2
) -> AsyncBatch | None:
    most = me.rng.randint(1, me.settings.batch)
    about = {"queue": queue, "group": group, "auto": auto, "lease_time": lease_time, "batch": most}
    call = me.history.invoke("pop", **about)
    try:
        batch = await mq.queue(queue).pop(group=group, batch=most, wait=1, lease_time=lease_time, auto_ack=auto)
    except (SkepError, psycopg.Error) as error:
        me.history.returned(call, outcome_of(error), error=repr(error))
        await me.pause(0.1)
        return None
    me.history.returned(
        call, "ok", lease=str(batch.lease) if batch else "", messages=[row(message) for message in batch]
    )
    return batch


async def _ack_randomly(me: Me, batch: AsyncBatch, group: str) -> None:
    await me.think(len(batch))
    match me.rng.choice((*["whole"] * 8, "each", "each", "failed", "dlq", "released", "extended")):
        case "each":
            for message in batch[:10]:
                await _send_ack(me, batch, group, "completed", [message], batch.ack(message))
            if rest := batch[10:]:
                await _send_ack(me, batch, group, "released", rest, batch.release())
        case "failed":
            bad = me.rng.choice(batch)
            await _reject(me, batch, group, "failed", bad, batch.fail(bad, "on purpose"))
        case "dlq":
            await _reject(me, batch, group, "dlq", batch[0], batch.dead_letter(batch[0], "on purpose"))
        case "released":
            await _send_ack(me, batch, group, "released", batch, batch.release())
        case "extended":
            await _send_ack(me, batch, group, "extended", batch, batch.extend(2))
            await _send_ack(me, batch, group, "completed", batch, batch.ack())
        case _:
            await _send_ack(me, batch, group, "completed", batch, batch.ack())


async def _reject(me: Me, batch: AsyncBatch, group: str, kind: Kind, bad: Message, sending: Awaitable[object]) -> None:
    """Fail or dead-letter one message, and complete the rest."""
    rest = [message for message in batch if message is not bad]
    if await _send_ack(me, batch, group, kind, [bad], sending) and rest:
        await _send_ack(me, batch, group, "completed", rest, batch.ack())


async def _send_ack(
    me: Me, batch: AsyncBatch, group: str, kind: Kind, messages: Sequence[Message], sending: Awaitable[object]
) -> bool:
    """Return whether the ack succeeded. If not, the rest must not be acked: that would include these messages."""
    about = {"kind": kind, "group": group, "lease": str(batch.lease)}
    call = me.history.invoke("ack", locations=locations(messages), **about)
    try:
        await sending
    except (SkepError, psycopg.Error) as error:
        me.history.returned(call, outcome_of(error), error=repr(error))
        return False
    me.history.returned(call, "ok")
    return True


async def auto(me: Me) -> None:
    """Pop with auto_ack; and run a handler, whose acks the client sends in batches."""
    async with opened(me, 3) as handling, opened(me, 2) as mq:
        record_calls(me, handling, "orders", "handlers")
        per: Literal["message", "batch"] = "batch" if me.life % 2 else "message"

        @handling.consumer("orders", group="handlers", batch=me.settings.batch, per=per, lease_time=2)
        async def handle(handled: AsyncBatch | Message) -> None:
            await me.think(1 if isinstance(handled, Message) else len(handled))

        running = asyncio.create_task(handling.run())
        while not me.stopping.is_set():
            await _pop(me, mq, "orders", "auto", auto=True)
            await me.pause(me.settings.think)
        await handling.stop()
        await running


async def transform(me: Me) -> None:
    """Push derived messages: in a transaction of the client, in our own with a row, and over HTTP."""
    servers = [Http(port) for port in me.settings.ports]
    async with opened(me, 3) as mq:
        while not me.stopping.is_set():
            batch = await _pop(me, mq, "orders", MAKER)
            if not batch:
                continue
            await me.think(len(batch))
            method = me.rng.choice(("client", "own", "http"))
            items = [me.content(message.partition, derived(message.payload["v"])) for message in batch]
            about = {"group": MAKER, "lease": str(batch.lease), "queue": DERIVED, "outbox": method == "own"}
            call = me.history.invoke("transact", locations=locations(batch), items=items, **about)
            try:
                if method == "http":
                    await _by_http(me, me.rng.choice(servers), call, batch, items)
                    continue
                await (_by_client if method == "client" else _by_own)(me, mq, batch, items)
            except (NotSent, NoResponse, SkepError, psycopg.Error) as error:
                unsure = (
                    "unknown" if isinstance(error, NoResponse) else "failed" if isinstance(error, NotSent) else None
                )
                me.history.returned(call, unsure or outcome_of(error), error=repr(error))
            else:
                me.history.returned(call, "ok")


async def _by_client(_me: Me, mq: AsyncSkep, batch: AsyncBatch, items: list[Content]) -> None:
    async with mq.transaction() as transaction:
        for item in items:
            transaction.push(DERIVED, item.payload, partition=item.partition, headers=item.headers)
        transaction.ack(batch)


async def _by_own(me: Me, mq: AsyncSkep, batch: AsyncBatch, items: list[Content]) -> None:
    url = me.settings.database
    async with await psycopg.AsyncConnection.connect(url, connect_timeout=10, prepare_threshold=None) as connection:
        for item in items:
            await connection.execute("INSERT INTO public.rows (value) VALUES (%s)", [item.value])
            await mq.queue(DERIVED).push(
                item.payload, partition=item.partition, headers=item.headers, connection=connection
            )
        await batch.ack(connection=connection)


async def _by_http(me: Me, server: Http, call: int, batch: AsyncBatch, items: list[Content]) -> None:
    acks = [
        {
            "type": "ack",
            "transactionId": message.transaction_id or str(message.id),
            "partitionId": str(message.id),
            "consumerGroup": MAKER,
            "leaseId": str(message.lease),
        }
        for message in batch
    ]
    pushes = [wire_item(DERIVED, item) for item in items]
    body = {"operations": [*acks, {"type": "push", "items": pushes}]}
    status, response = await server.call("POST", "/api/v1/transaction", body)
    if status != 200:
        me.history.returned(call, "unknown", error=response)
    else:
        me.history.returned(call, "ok" if response["success"] else "refused", error=response.get("error"))


async def many(me: Me) -> None:
    """Pop large batches, and record ranges of offsets."""
    async with opened(me, 3) as mq, asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(_many(me, mq))


async def _many(me: Me, mq: AsyncSkep) -> None:
    while not me.stopping.is_set():
        call = me.history.invoke("run", group=MANY)
        try:
            batch = await mq.queue(CROWD).pop(group=MANY, batch=5000, partitions=500, wait=1, lease_time=15)
        except (SkepError, psycopg.Error) as error:
            me.history.returned(call, outcome_of(error), error=repr(error))
            await me.pause(0.1)
            continue
        ranges = _ranges(batch)
        me.history.returned(call, "ok", lease=str(batch.lease) if batch else "", ranges=ranges)
        if batch:
            await _done(me, batch, ranges)


async def _done(me: Me, batch: AsyncBatch, ranges: list[list[int]]) -> None:
    call = me.history.invoke("run done", group=MANY, lease=str(batch.lease), ranges=ranges)
    try:
        await batch.ack()
    except (SkepError, psycopg.Error) as error:
        me.history.returned(call, outcome_of(error), error=repr(error))
    else:
        me.history.returned(call, "ok")


def _ranges(batch: AsyncBatch) -> list[list[int]]:
    """Return the ranges of offsets of a batch. The payload of each message must be its offset."""
    ranges: list[list[int]] = []
    for message in batch:
        if message.payload["v"] != message.offset:
            raise ValueError(f"{message.partition} has {message.payload['v']} at offset {message.offset}")
        if ranges and ranges[-1][0] == message.partition_id and ranges[-1][2] == message.offset:
            ranges[-1][2] += 1
        else:
            ranges.append([message.partition_id, message.offset, message.offset + 1])
    return ranges


async def poison(me: Me) -> None:
    """Fail, exit, or hang until the lease has expired, as the message says."""
    async with opened(me, 3) as mq:
        while not me.stopping.is_set():
            batch = await _pop(me, mq, "poison", "patient", lease_time=1)
            if batch:
                await _handle_poison(me, batch)


async def _handle_poison(me: Me, batch: AsyncBatch) -> None:
    for message in batch:
        value = message.payload["v"]
        if value.endswith("!crash"):
            os._exit(1)
        if value.endswith("!hang"):
            await me.pause(1.5)
            break
        if value.endswith("!fail"):
            await _send_ack(me, batch, "patient", "failed", [message], batch.fail(message, "poison"))
        else:
            await _send_ack(me, batch, "patient", "completed", [message], batch.ack(message))
