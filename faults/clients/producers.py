"""Producers: over HTTP, with the client, and through the outbox together with a row of a table."""

import asyncio
from typing import Any

import psycopg

from faults.checker.log import ANY
from faults.clients.context import Me, opened, outcome_of, partition_of
from faults.clients.http import Http, NoResponse, NotSent
from faults.history import Content, Outcome
from skep import AsyncSkep, SkepError
from skep.message import NewMessage

QUEUES = ("orders", "orders", "orders", "shared", "limited")
Items = list[Content]


def _choose(me: Me) -> tuple[str, Items, bool]:
    """Return a queue, up to eight messages, mostly of one partition, and whether they have transaction ids."""
    queue = me.rng.choice(QUEUES)
    partitions = [me.partition() for _ in range(me.rng.choice((1, 1, 2)))] if queue == "orders" else ["only"]
    named = queue != "limited" and me.rng.random() < 0.6  # there, the first push may already be deleted at a repeat
    items = [_item(me, me.rng.choice(partitions), named=named) for _ in range(me.rng.randrange(1, 9))]
    return queue, items, named


def _item(me: Me, partition: str, *, named: bool = False) -> Content:
    value = me.value()
    return me.content(partition, value, value if named else None)


async def http(me: Me) -> None:
    """Send several requests at a time to all servers, so that they can merge them."""
    async with asyncio.TaskGroup() as group:
        for number in range(3 * len(me.settings.ports)):
            group.create_task(_over_http(me, number))


async def _over_http(me: Me, number: int) -> None:
    servers = [Http(port) for port in me.settings.ports]
    while not me.stopping.is_set():
        queue, items, named = _choose(me)
        server = servers[number % len(servers)]
        if named and me.rng.random() < 0.1:  # the same messages to all servers at once: they are stored once
            await asyncio.gather(*(_post(me, each, queue, items) for each in servers))
        else:
            outcome = await _post(me, server, queue, items)
            while named and outcome == "unknown" and not me.stopping.is_set():
                await me.pause(0.2)
                number += 1
                outcome = await _post(me, servers[number % len(servers)], queue, items)
        await me.pause(me.settings.pause * 3)


async def _post(me: Me, server: Http, queue: str, items: Items) -> Outcome:
    body = [wire_item(queue, item) for item in items]
    call = me.history.invoke("push", queue=queue, items=items)
    try:
        status, response = await server.call("POST", "/api/v1/push", {"items": body})
    except NotSent as error:
        return _returned(me, call, "failed", error=str(error))
    except NoResponse as error:
        return _returned(me, call, "unknown", error=str(error))
    if status != 201:
        return _returned(me, call, "failed" if status < 500 else "unknown", error=response)
    return _returned(me, call, "ok", stored=[_location(each["message_id"], each["offset"]) for each in response])


def wire_item(queue: str, item: Content) -> dict[str, Any]:
    """Return a message in Queen's protocol."""
    named = {} if item.transaction_id is None else {"transactionId": item.transaction_id}
    headers = {} if item.headers is None else {"headers": item.headers}
    return {"queue": queue, "partition": item.partition, "payload": item.payload, **named, **headers}


def _location(message_id: str, offset: int) -> tuple[int, int]:
    return partition_of(message_id), offset


def _returned(me: Me, call: int, outcome: Outcome, **about: Any) -> Outcome:
    me.history.returned(call, outcome, **about)
    return outcome


async def client(me: Me) -> None:
    """Push with a transaction id, and again if the outcome is unknown; push without one; and push with a buffer."""
    async with opened(me, 4) as mq, asyncio.TaskGroup() as group:
        group.create_task(_push_repeatedly(me, mq))
        group.create_task(_push_repeatedly(me, mq))
        group.create_task(_buffered(me, mq))


async def _push_repeatedly(me: Me, mq: AsyncSkep) -> None:
    while not me.stopping.is_set():
        queue, items, named = _choose(me)
        outcome = await _push(me, mq, queue, items)
        while named and outcome == "unknown" and not me.stopping.is_set():
            await me.pause(0.2)
            outcome = await _push(me, mq, queue, items)
        await me.pause(me.settings.pause)


async def _push(me: Me, mq: AsyncSkep, queue: str, items: Items) -> Outcome:
    messages = [NewMessage(item.payload, item.partition, item.transaction_id, item.headers) for item in items]
    call = me.history.invoke("push", queue=queue, items=items)
    try:
        receipts = await mq.queue(queue).push_many(messages)
    except (SkepError, psycopg.Error) as error:
        return _returned(me, call, outcome_of(error), error=repr(error))
    return _returned(me, call, "ok", stored=[(receipt.partition_id, receipt.offset) for receipt in receipts])


async def _buffered(me: Me, mq: AsyncSkep) -> None:
    async with mq.queue("orders").buffer(size=10, delay=0.01) as buffer:
        while not me.stopping.is_set():
            partition = me.partition()
            items = [_item(me, partition) for _ in range(me.rng.randrange(1, 20))]
            call = me.history.invoke(
                "push", queue="orders", items=[item._replace(transaction_id=ANY) for item in items]
            )
            for item in items:
                await buffer.push(item.payload, partition=partition, headers=item.headers)
            await buffer.flush()
            me.history.returned(call, "ok")
            await me.pause(me.settings.pause * 3)


async def outbox(me: Me) -> None:
    """Insert a row and push messages in one transaction; sometimes roll it back."""
    async with opened(me, 1) as mq:
        connection: psycopg.AsyncConnection | None = None
        while not me.stopping.is_set():
            items = [_item(me, me.partition()) for _ in range(me.rng.randrange(1, 5))]
            call = me.history.invoke("push", queue="orders", items=items, outbox=True)
            try:
                connection = await _connected(me, connection)
                outcome = await _transaction(me, mq, connection, items)
                me.history.returned(call, outcome)
            except (SkepError, psycopg.Error) as error:
                me.history.returned(call, outcome_of(error), error=repr(error))
                if connection is not None:
                    await connection.close()
                await me.pause(0.1)
            await me.pause(me.settings.pause)
        if connection is not None:
            await connection.close()


async def _connected(me: Me, connection: psycopg.AsyncConnection | None) -> psycopg.AsyncConnection:
    if connection is None or connection.closed:
        return await psycopg.AsyncConnection.connect(me.settings.database, connect_timeout=10, prepare_threshold=None)
    return connection


async def _transaction(me: Me, mq: AsyncSkep, connection: psycopg.AsyncConnection, items: Items) -> Outcome:
    for item in items:
        await connection.execute("INSERT INTO public.rows (value) VALUES (%s)", [item.value])
        await mq.queue("orders").push(
            item.payload, partition=item.partition, headers=item.headers, connection=connection
        )
    await me.pause(0.01)
    if me.rng.random() < 0.2:
        await connection.rollback()
        return "failed"
    await connection.commit()
    return "ok"
