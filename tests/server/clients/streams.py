"""Streams: windows and gates run in the client; their state, their output and their acks are the server's."""

import asyncio
from typing import Any

from queen import Queen
from queen.streams import Stream
from talk import URLS, data, error_of, name, tell

STEP = {"url": URLS[0], "max_wait_millis": 200}


async def conversation(queen: Queen) -> dict:
    parts = await asyncio.gather(by_event_time(queen), by_the_clock(queen), through_a_gate(queen), stateless(queen))
    return {word: what for part in parts for word, what in part.items()}


def totals(queen: Queen, source: str, sink: str, seconds: int = 10) -> Stream:
    window = {"seconds": seconds, "event_time": lambda message: message["data"]["at"], "idle_flush_ms": 0}
    sums = {"count": lambda _: 1, "sum": lambda value: value["amount"]}
    return Stream.from_(queen.queue(source)).window_tumbling(**window).aggregate(sums).to(queen.queue(sink))


async def by_event_time(queen: Queen) -> dict:
    """A window that is open when the stream stops is closed by the next run: its state is on the server."""
    source, sink, query = name("events"), name("totals"), name("query")
    await push(queen, source, "a", [(1000, 5), (2000, 6)])
    await push(queen, source, "b", [(3000, 1)])
    first = await totals(queen, source, sink).run(query, **STEP)
    await until(lambda: first.metrics()["messagesTotal"] == 3)
    early = await drain(queen, sink, 0)
    await first.stop()
    await push(queen, source, "a", [(12_000, 7), (25_000, 8)])
    await push(queen, source, "b", [(19_000, 2)])
    second = await totals(queen, source, sink).run(query, **STEP)
    closed = await drain(queen, sink, 3)
    await second.stop()
    mismatch = await error_of(totals(queen, source, sink, seconds=60).run(query, **STEP))
    reset = await totals(queen, source, sink, seconds=60).run(query, reset=True, **STEP)
    await reset.stop()
    errors = [run.metrics()["lastError"] for run in (first, second, reset)]
    return {"early": early, "closed": closed, "mismatch": mismatch, "errors": errors}


async def by_the_clock(queen: Queen) -> dict:
    """Windows of processing time are closed by a timer, without another message."""
    source, sink = name("clock"), name("clock-totals")
    await queen.queue(source).push([{"data": {"amount": 1}} for _ in range(5)])
    counted = Stream.from_(queen.queue(source)).window_tumbling(seconds=1, idle_flush_ms=200)
    run = await counted.aggregate({"count": lambda _: 1}).to(queen.queue(sink)).run(name("clock"), **STEP)
    total = 0
    while total < 5:
        messages = await queen.queue(sink).batch(10).timeout_millis(10_000).pop()
        assert messages, "the window is closed"
        total += sum(message["data"]["count"] for message in messages)
        await queen.ack(messages)
    await run.stop()
    return {"total": total, "clock error": run.metrics()["lastError"]}


async def through_a_gate(queen: Queen) -> dict:
    """A closed gate lets leases run out, which is no failure: nothing dies of it, and the order stays."""
    source, sink, is_open = name("gate"), name("gated"), asyncio.Event()
    await queen.queue(source).config({"lease_time": 1, "retry_limit": 0}).create()
    await queen.queue(source).push([{"data": {"number": number}} for number in range(6)])

    def gate(_value: Any, context: Any) -> bool:
        passed = context.state.get("passed", 0)
        if not is_open.is_set() and passed >= 2:
            return False
        context.state["passed"] = passed + 1
        return True

    run = await Stream.from_(queen.queue(source)).gate(gate).to(queen.queue(sink)).run(name("gate"), **STEP)
    first = await drain(queen, sink, 2)
    await until(lambda: run.metrics().get("gateDenialsTotal", 0) >= 12)  # the four of them, three times
    is_open.set()
    rest = await drain(queen, sink, 4)
    await run.stop()
    dead = (await queen.queue(source).dlq().get())["messages"]
    return {
        "passed": [one["number"] for one in first + rest],
        "dead": data(dead),
        "gate error": run.metrics()["lastError"],
    }


async def stateless(queen: Queen) -> dict:
    source, sink, effects = name("plain"), name("mapped"), []
    await queen.queue(source).push([{"data": {"number": number}} for number in range(6)])
    even = Stream.from_(queen.queue(source)).filter(lambda message: message["data"]["number"] % 2 == 0)
    doubled = even.map(lambda message: {"double": message["data"]["number"] * 2})
    to_sink = await doubled.to(queen.queue(sink), partition="p").run(name("map"), **STEP)
    effect = await doubled.foreach(lambda value, _=None: effects.append(value["double"])).run(name("each"), **STEP)
    mapped = await drain(queen, sink, 3)
    await until(lambda: len(effects) >= 3)
    await asyncio.gather(to_sink.stop(), effect.stop())
    return {"mapped": mapped, "effects": effects}


async def push(queen: Queen, queue: str, partition: str, events: list) -> None:
    items = [{"data": {"at": at, "amount": amount}} for at, amount in events]
    await queen.queue(queue).partition(partition).push(items)


async def drain(queen: Queen, queue: str, count: int) -> list:
    """Return what a queue holds, once it is this many; what comes too much comes too."""
    payloads: list = []
    while True:
        enough = len(payloads) >= count
        messages = await queen.queue(queue).batch(20).partitions(10).timeout_millis(100 if enough else 10_000).pop()
        assert messages or enough, f"{queue} has {payloads}, not {count}"
        if not messages:
            return payloads
        await queen.ack(messages)
        payloads += data(messages)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  the runner has no event to wait for
            await asyncio.sleep(0.02)


tell(conversation)
