"""Producers: over HTTP, with the client, and through the outbox together with a row of their own."""

import asyncio
from typing import Any

import psycopg

from faults.checker.log import ANY
from faults.clients.context import Me, opened, outcome_of, partition_of
from faults.clients.http import Http, NotAnswered, NotSent
from faults.history import Content, Outcome
from skep import AsyncSkep, SkepError
from skep.message import NewMessage

QUEUES = ("orders", "orders", "orders", "shared", "limited")
Items = list[Content]


def _choose(me: Me) -> tuple[str, Items, bool]:
    """Return a queue, up to eight messages for it, most often of one partition, and whether they have dedup keys."""
    queue = me.dice.choice(QUEUES)
    partitions = [me.partition() for _ in range(me.dice.choice((1, 1, 2)))] if queue == "orders" else ["only"]
    named = queue != "limited" and me.dice.random() < 0.6  # there, a repeat may find that the first is deleted
    items = [_item(me, me.dice.choice(partitions), named=named) for _ in range(me.dice.randrange(1, 9))]
    return queue, items, named


def _item(me: Me, partition: str, *, named: bool = False) -> Content:
    value = me.value()
    return me.content(partition, value, value if named else None)


async def http(me: Me) -> None:
    """Several requests at a time, so that the servers have something to merge; both servers are used."""
    async with asyncio.TaskGroup() as group:
        for number in range(3 * len(me.settings.ports)):
            group.create_task(_over_http(me, number))


async def _over_http(me: Me, number: int) -> None:
    servers = [Http(port) for port in me.settings.ports]
    while not me.stopping.is_set():
        queue, items, named = _choose(me)
        server = servers[number % len(servers)]
        if named and me.dice.random() < 0.1:  # the same by two servers at once: it is stored once
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
        status, answer = await server.call("POST", "/api/v1/push", {"items": body})
    except NotSent as error:
        return _told(me, call, "failed", error=str(error))
    except NotAnswered as error:
        return _told(me, call, "unknown", error=str(error))
    if status != 201:
        return _told(me, call, "failed" if status < 500 else "unknown", error=answer)
    return _told(me, call, "ok", stored=[_place(each["message_id"], each["offset"]) for each in answer])


def wire_item(queue: str, item: Content) -> dict[str, Any]:
    """Return a message as Queen's protocol has it."""
    named = {} if item.transaction_id is None else {"transactionId": item.transaction_id}
    headers = {} if item.headers is None else {"headers": item.headers}
    return {"queue": queue, "partition": item.partition, "payload": item.payload, **named, **headers}


def _place(message_id: str, offset: int) -> tuple[int, int]:
    return partition_of(message_id), offset


def _told(me: Me, call: int, outcome: Outcome, **about: Any) -> Outcome:
    me.history.told(call, outcome, **about)
    return outcome


async def client(me: Me) -> None:
    """Plain pushes, with a transaction id and again if nobody knows, or without; and a buffer, which does all that."""
    async with opened(me, 4) as mq, asyncio.TaskGroup() as group:
        group.create_task(_plainly(me, mq))
        group.create_task(_plainly(me, mq))
        group.create_task(_buffered(me, mq))


async def _plainly(me: Me, mq: AsyncSkep) -> None:
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
        return _told(me, call, outcome_of(error), error=repr(error))
    return _told(me, call, "ok", stored=[(receipt.partition_id, receipt.offset) for receipt in receipts])


async def _buffered(me: Me, mq: AsyncSkep) -> None:
    async with mq.queue("orders").buffer(size=10, delay=0.01) as buffer:
        while not me.stopping.is_set():
            partition = me.partition()
            items = [_item(me, partition) for _ in range(me.dice.randrange(1, 20))]
            call = me.history.invoke(
                "push", queue="orders", items=[item._replace(transaction_id=ANY) for item in items]
            )
            for item in items:
                await buffer.push(item.payload, partition=partition, headers=item.headers)
            await buffer.flush()
            me.history.told(call, "ok")
            await me.pause(me.settings.pause * 3)


async def outbox(me: Me) -> None:
    """A row and messages in one transaction of ours; now and then we change our mind."""
    async with opened(me, 1) as mq:
        connection: psycopg.AsyncConnection | None = None
        while not me.stopping.is_set():
            items = [_item(me, me.partition()) for _ in range(me.dice.randrange(1, 5))]
            call = me.history.invoke("push", queue="orders", items=items, outbox=True)
            try:
                connection = await _connected(me, connection)
                outcome = await _transaction(me, mq, connection, items)
                me.history.told(call, outcome)
            except (SkepError, psycopg.Error) as error:
                me.history.told(call, outcome_of(error), error=repr(error))
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
    if me.dice.random() < 0.2:
        await connection.rollback()
        return "failed"
    await connection.commit()
    return "ok"
