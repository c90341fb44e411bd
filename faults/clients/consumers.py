"""Consumers: over HTTP, with the client in every manner of acking, and those that make something new."""

import asyncio
import os
from collections.abc import Awaitable, Sequence
from typing import Any, Literal

import psycopg

from faults.checker.transactions import DERIVED, MAKER, derived
from faults.clients.context import Me, opened, outcome_of, partition_of, row
from faults.clients.http import Http, NotAnswered, NotSent
from faults.clients.producers import wire_item
from faults.clients.witness import bear_witness
from faults.history import Content, Kind
from faults.state import CROWD, MANY
from skep import AsyncSkep, SkepError
from skep.client.aio.batch import AsyncBatch
from skep.message import Message

Rows = list[list[Any]]


def places(messages: Sequence[Message]) -> list[tuple[int, int]]:
    return [(message.partition_id, message.offset) for message in messages]


async def http(me: Me) -> None:
    """Two consumers that pop by long poll and acknowledge whole batches."""
    async with asyncio.TaskGroup() as group:
        for number in range(2):
            group.create_task(_over_http(me, int(me.name[-1]) + number))


async def _over_http(me: Me, turn: int) -> None:
    """Use the next server when one does not answer."""
    servers = [Http(port) for port in me.settings.ports]
    while not me.stopping.is_set():
        try:
            await _pop_and_ack(me, servers[turn % len(servers)], "http")
        except (NotSent, NotAnswered):
            turn += 1
            await me.pause(0.1)


async def _pop_and_ack(me: Me, server: Http, group: str) -> None:
    batch, partitions = me.dice.randint(1, me.settings.batch), me.dice.choice((1, 1, 2))
    path = (
        f"/api/v1/pop/queue/orders?consumerGroup={group}&batch={batch}&partitions={partitions}&wait=true&timeout=1000"
    )
    call = me.history.invoke("pop", queue="orders", group=group, lease_time=2, batch=batch)
    status, answer = await _told(me, call, server.call("GET", path, wait=1))
    if status != 200:
        me.history.told(call, "unknown", error=answer)
        await me.pause(0.2)
        return
    messages = answer["messages"]
    rows = [_wire_row(message) for message in messages]
    me.history.told(call, "ok", lease=answer["leaseId"] or "", messages=rows)
    if messages:
        await me.think(len(messages))
        await _ack(me, server, group, messages, rows)


def _wire_row(message: dict[str, Any]) -> list[Any]:
    """Write a message of Queen's protocol down: there, one without a dedup key has its id in that place."""
    key = None if message["transactionId"] == message["id"] else message["transactionId"]
    content = Content(message["partition"], message["data"], message["headers"], key)
    return [partition_of(message["partitionId"]), message["offset"], message["deliveryAttempt"], *content]


async def _ack(me: Me, server: Http, group: str, messages: list[dict[str, Any]], rows: Rows) -> None:
    names = ("transactionId", "partitionId", "leaseId")
    said = [{name: message[name] for name in names} for message in messages]
    about = {"kind": "completed", "group": group, "lease": messages[0]["leaseId"]}
    call = me.history.invoke("ack", places=[each[:2] for each in rows], **about)
    body = {"acknowledgments": said, "consumerGroup": group}
    status, answer = await _told(me, call, server.call("POST", "/api/v1/ack/batch", body))
    if status != 200:
        me.history.told(call, "unknown", error=answer)
        return
    outcomes = ["ok" if each["success"] and not each["noop"] else "refused" for each in answer]
    me.history.told(call, "ok", outcomes=outcomes)


async def _told(me: Me, call: int, calling: Awaitable[tuple[int, Any]]) -> tuple[int, Any]:
    try:
        return await calling
    except NotSent as error:
        me.history.told(call, "failed", error=str(error))
        raise
    except NotAnswered as error:
        me.history.told(call, "unknown", error=str(error))
        raise


async def client(me: Me) -> None:
    """Every way to ack: whole, one by one, failed, dead-lettered, released, extended; shared and limited partitions."""
    async with opened(me, 6) as mq, asyncio.TaskGroup() as group:
        group.create_task(_pops(me, mq, "orders", "client"))
        group.create_task(_pops(me, mq, "limited", "limited"))
        for _ in range(2):
            group.create_task(_pops(me, mq, "shared", "crowd"))


async def _pops(me: Me, mq: AsyncSkep, queue: str, group: str) -> None:
    while not me.stopping.is_set():
        batch = await _pop(me, mq, queue, group)
        if batch:
            await _ack_somehow(me, batch, group)


async def _pop(
    me: Me, mq: AsyncSkep, queue: str, group: str, *, auto: bool = False, lease_time: float = 2
) -> AsyncBatch | None:
    most = me.dice.randint(1, me.settings.batch)
    about = {"queue": queue, "group": group, "auto": auto, "lease_time": lease_time, "batch": most}
    call = me.history.invoke("pop", **about)
    try:
        batch = await mq.queue(queue).pop(group=group, batch=most, wait=1, lease_time=lease_time, auto_ack=auto)
    except (SkepError, psycopg.Error) as error:
        me.history.told(call, outcome_of(error), error=repr(error))
        await me.pause(0.1)
        return None
    me.history.told(call, "ok", lease=str(batch.lease) if batch else "", messages=[row(message) for message in batch])
    return batch


async def _ack_somehow(me: Me, batch: AsyncBatch, group: str) -> None:
    await me.think(len(batch))
    match me.dice.choice((*["whole"] * 8, "each", "each", "failed", "dlq", "released", "extended")):
        case "each":
            for message in batch[:10]:
                await _say(me, batch, group, "completed", [message], batch.ack(message))
            if rest := batch[10:]:
                await _say(me, batch, group, "released", rest, batch.release())
        case "failed":
            bad = me.dice.choice(batch)
            await _refuse(me, batch, group, "failed", bad, batch.fail(bad, "on purpose"))
        case "dlq":
            await _refuse(me, batch, group, "dlq", batch[0], batch.dead_letter(batch[0], "on purpose"))
        case "released":
            await _say(me, batch, group, "released", batch, batch.release())
        case "extended":
            await _say(me, batch, group, "extended", batch, batch.extend(2))
            await _say(me, batch, group, "completed", batch, batch.ack())
        case _:
            await _say(me, batch, group, "completed", batch, batch.ack())


async def _refuse(me: Me, batch: AsyncBatch, group: str, kind: Kind, bad: Message, saying: Awaitable[object]) -> None:
    """One message is bad, the rest is done."""
    rest = [message for message in batch if message is not bad]
    if await _say(me, batch, group, kind, [bad], saying) and rest:
        await _say(me, batch, group, "completed", rest, batch.ack())


async def _say(
    me: Me, batch: AsyncBatch, group: str, kind: Kind, messages: Sequence[Message], saying: Awaitable[object]
) -> bool:
    """Return whether it counted. If nobody knows, nothing may be said of the rest: that would be of this one too."""
    about = {"kind": kind, "group": group, "lease": str(batch.lease)}
    call = me.history.invoke("ack", places=places(messages), **about)
    try:
        await saying
    except (SkepError, psycopg.Error) as error:
        me.history.told(call, outcome_of(error), error=repr(error))
        return False
    me.history.told(call, "ok")
    return True


async def auto(me: Me) -> None:
    """With auto_ack, and beside it a handler, whose acks the client stores when it likes."""
    async with opened(me, 3) as handling, opened(me, 2) as mq:
        bear_witness(me, handling, "orders", "handlers")
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
    """By a transaction of the client, by one of our own with a row of ours, and by one over HTTP."""
    servers = [Http(port) for port in me.settings.ports]
    async with opened(me, 3) as mq:
        while not me.stopping.is_set():
            batch = await _pop(me, mq, "orders", MAKER)
            if not batch:
                continue
            await me.think(len(batch))
            manner = me.dice.choice(("client", "own", "http"))
            items = [me.content(message.partition, derived(message.payload["v"])) for message in batch]
            about = {"group": MAKER, "lease": str(batch.lease), "queue": DERIVED, "outbox": manner == "own"}
            call = me.history.invoke("transact", places=places(batch), items=items, **about)
            try:
                if manner == "http":
                    await _by_http(me, me.dice.choice(servers), call, batch, items)
                    continue
                await (_by_client if manner == "client" else _by_own)(me, mq, batch, items)
            except (NotSent, NotAnswered, SkepError, psycopg.Error) as error:
                unsure = (
                    "unknown" if isinstance(error, NotAnswered) else "failed" if isinstance(error, NotSent) else None
                )
                me.history.told(call, unsure or outcome_of(error), error=repr(error))
            else:
                me.history.told(call, "ok")


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
    status, answer = await server.call("POST", "/api/v1/transaction", body)
    if status != 200:
        me.history.told(call, "unknown", error=answer)
    else:
        me.history.told(call, "ok" if answer["success"] else "refused", error=answer.get("error"))


async def many(me: Me) -> None:
    """Takes as much as it can, and tells ranges."""
    async with opened(me, 3) as mq, asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(_many(me, mq))


async def _many(me: Me, mq: AsyncSkep) -> None:
    while not me.stopping.is_set():
        call = me.history.invoke("run", group=MANY)
        try:
            batch = await mq.queue(CROWD).pop(group=MANY, batch=5000, partitions=500, wait=1, lease_time=15)
        except (SkepError, psycopg.Error) as error:
            me.history.told(call, outcome_of(error), error=repr(error))
            await me.pause(0.1)
            continue
        spans = _spans(batch)
        me.history.told(call, "ok", lease=str(batch.lease) if batch else "", spans=spans)
        if batch:
            await _done(me, batch, spans)


async def _done(me: Me, batch: AsyncBatch, spans: list[list[int]]) -> None:
    call = me.history.invoke("run done", group=MANY, lease=str(batch.lease), spans=spans)
    try:
        await batch.ack()
    except (SkepError, psycopg.Error) as error:
        me.history.told(call, outcome_of(error), error=repr(error))
    else:
        me.history.told(call, "ok")


def _spans(batch: AsyncBatch) -> list[list[int]]:
    """Return ranges of offsets, partition by partition; every message says where it has to be."""
    spans: list[list[int]] = []
    for message in batch:
        if message.payload["v"] != message.offset:
            raise ValueError(f"{message.partition} has {message.payload['v']} at offset {message.offset}")
        if spans and spans[-1][0] == message.partition_id and spans[-1][2] == message.offset:
            spans[-1][2] += 1
        else:
            spans.append([message.partition_id, message.offset, message.offset + 1])
    return spans


async def poison(me: Me) -> None:
    """Does what the message says: fails, dies, or hangs until its lease is over."""
    async with opened(me, 3) as mq:
        while not me.stopping.is_set():
            batch = await _pop(me, mq, "poison", "patient", lease_time=1)
            if batch:
                await _swallow(me, batch)


async def _swallow(me: Me, batch: AsyncBatch) -> None:
    for message in batch:
        value = message.payload["v"]
        if value.endswith("!crash"):
            os._exit(1)
        if value.endswith("!hang"):
            await me.pause(1.5)
            break
        if value.endswith("!fail"):
            await _say(me, batch, "patient", "failed", [message], batch.fail(message, "poison"))
        else:
            await _say(me, batch, "patient", "completed", [message], batch.ack(message))
