"""Handlers are called with each message or batch, in order within a partition, and their exceptions are failures."""

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from skep import AsyncSkep, Message, NewMessage
from skep.client.aio.batch import AsyncBatch
from skep.errors import InvalidArgument, PermissionDenied
from tests.client.faces import Face, make
from tests.client.verbs import dead, leased, nothing_left, opened, payloads, refused, running, until
from tests.engine.verbs import broken

GROUP: Any = {"group": "g"}


async def test_a_handler_is_called_with_each_message(mq: AsyncSkep, db: psycopg.Connection):
    seen = []

    @mq.consumer("orders", **GROUP)
    async def handle(message: Message) -> None:
        seen.append((message.offset, message.payload))

    await mq.queue("orders").push_many("abcde")
    async with running(handle):
        await until(lambda: len(seen) == 5, "five messages")
        await mq.queue("orders").push("f")
        await nothing_left(mq)
    assert seen == list(enumerate("abcdef"))
    assert (leased(db), broken(db)) == (0, {})


async def test_a_handler_is_called_with_each_batch(mq: AsyncSkep):
    seen = []

    @mq.consumer("orders", per="batch", batch=3, **GROUP)
    async def handle(batch: AsyncBatch) -> None:
        seen.append(payloads(batch))

    await mq.queue("orders").push_many("abcde")
    async with running(handle):
        await nothing_left(mq)
    assert seen == [["a", "b", "c"], ["d", "e"]]


async def test_a_plain_function_is_a_handler_for_both_clients(mq: AsyncSkep):
    """It runs in a thread, because it may block."""
    seen = []
    main = threading.current_thread()

    @mq.consumer("orders", **GROUP)
    def handle(message: Message) -> None:
        seen.append((message.payload, threading.current_thread() is main))

    await mq.queue("orders").push_many("ab")
    async with running(handle):
        await nothing_left(mq)
    assert seen == [("a", False), ("b", False)]


async def test_a_decorated_handler_can_be_called_as_before(mq: AsyncSkep):
    @mq.consumer("orders")
    def double(number: int) -> int:
        return 2 * number

    assert (double(21), double.__name__, double.handler(4)) == (42, "double", 8)


@pytest.mark.parametrize("per", ["message", "batch"])
async def test_an_exception_is_a_failure_with_its_text(mq: AsyncSkep, per: Any):
    """After its retries the message is a dead letter."""
    attempts = []

    @mq.consumer("orders", per=per, batch=1, **GROUP)
    async def handle(given: Any) -> None:
        message = given if per == "message" else given[0]
        attempts.append(message.attempt)
        raise LookupError(f"no order {message.payload}")

    await mq.queue("orders").configure(retry_limit=2, retry_delay=0)
    await mq.queue("orders").push(7)
    async with running(handle):
        await nothing_left(mq)
    assert attempts == [1, 2, 3]
    assert await dead(mq, "orders") == {0: "LookupError: no order 7"}


async def test_one_bad_message_does_not_stop_the_rest(mq: AsyncSkep):
    """It becomes a dead letter, and the others are completed."""
    seen = []

    @mq.consumer("orders", **GROUP)
    async def handle(message: Message) -> None:
        seen.append(message.payload)
        if message.payload == "b":
            raise ValueError("not b")

    await mq.queue("orders").push_many("abc")
    async with running(handle):
        await nothing_left(mq)
    assert (seen, await dead(mq, "orders")) == (["a", "b", "c"], {1: "ValueError: not b"})


async def test_failures_are_retried_in_order_with_partial_failure_retry(mq: AsyncSkep):
    """`partial_failure` = retry: failed messages come before later ones, and completed ones are not delivered again."""
    seen = []

    @mq.consumer("orders", batch=3, **GROUP)
    async def handle(message: Message) -> None:
        seen.append((message.payload, message.attempt))
        if message.payload == "b" and message.attempt < 3:
            raise ValueError("not yet")

    await mq.queue("orders").configure(partial_failure="retry", retry_delay=0)
    await mq.queue("orders").push_many("abcd")
    async with running(handle):
        await nothing_left(mq)
    assert seen == [("a", 1), ("b", 1), ("c", 1), ("b", 2), ("b", 3), ("d", 1)]


async def test_explicit_acks_of_a_handler_are_kept(mq: AsyncSkep):
    """Also if it raises an exception afterwards, which fails only the remaining messages."""

    @mq.consumer("orders", per="batch", batch=3, **GROUP)
    async def handle(batch: AsyncBatch) -> None:
        await batch.ack(batch[0])
        await batch.dead_letter(batch[1], "explicit")
        raise ValueError("the rest")

    await mq.queue("orders").push_many("abc")
    async with running(handle):
        await nothing_left(mq)
    assert await dead(mq, "orders") == {1: "explicit", 2: "ValueError: the rest"}


async def test_a_handler_in_a_transaction(mq: AsyncSkep):
    """The ack and the pushes are stored together."""

    @mq.consumer("orders", per="batch", batch=2, **GROUP)
    async def handle(batch: AsyncBatch) -> None:
        async with mq.transaction() as tx:
            for message in batch:
                tx.push("bills", message.payload)
            tx.ack(batch)

    await mq.queue("orders").push_many(range(5))
    async with running(handle):
        await nothing_left(mq)
    assert sorted(payloads(await mq.queue("bills").pop(batch=9))) == list(range(5))


class WithoutText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(3), "SystemExit"),
        (WithoutText(), "WithoutText"),
        (ValueError("a\0b"), "ValueError: ab"),
        (ExceptionGroup("many", [ValueError("one")]), "many"),
        (StopIteration("early"), "StopIteration"),
        (TimeoutError(), "TimeoutError"),
    ],
    ids=["exit", "unspeakable", "unstorable", "group", "stop", "timeout"],
)
async def test_a_consumer_continues_after_any_exception(
    mq: AsyncSkep, caplog: pytest.LogCaptureFixture, error: BaseException, text: str
):
    """Each is a normal failure, and the consumer continues with the next message."""
    caplog.set_level(logging.CRITICAL, logger="skep")  # xdist cannot transfer every text that is logged here
    seen = []

    @mq.consumer("orders", batch=1, **GROUP)
    def handle(message: Message) -> None:
        seen.append(message.payload)
        if message.payload == "bad":
            raise error

    await mq.queue("orders").configure(retry_limit=0)
    await mq.queue("orders").push_many(["bad", "good"])
    async with running(handle):
        await nothing_left(mq)
    assert seen == ["bad", "good"]
    assert text in (await dead(mq, "orders"))[0]


async def test_handlers_run_concurrently_and_partitions_keep_their_order(mq: AsyncSkep, db: psycopg.Connection):
    """Eight handlers work on eight partitions at the same time, each partition in order."""
    inside, most = 0, 0
    everybody = asyncio.Event()
    seen = defaultdict(list)

    @mq.consumer("orders", batch=2, concurrency=8, **GROUP)
    async def handle(message: Message) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 8:
            everybody.set()
        await opened(everybody)
        seen[message.partition].append(message.offset)
        inside -= 1

    await mq.queue("orders").push_many([NewMessage(n, f"partition {n % 8}") for n in range(80)])
    async with running(handle):
        await nothing_left(mq)
    assert most == 8
    assert seen == {f"partition {partition}": list(range(10)) for partition in range(8)}
    assert broken(db) == {}


async def test_blocking_handlers_run_concurrently(mq: AsyncSkep):
    """As many as `concurrency`, whatever the number of cores."""
    everybody = threading.Barrier(16, timeout=20)

    @mq.consumer("orders", batch=1, concurrency=16, **GROUP)
    def handle(message: Message) -> None:
        everybody.wait()

    await mq.queue("orders").push_many([NewMessage(n, f"partition {n}") for n in range(16)])
    async with running(handle):
        await nothing_left(mq)
    assert not everybody.broken


async def test_one_partition_is_never_handled_twice_at_once(mq: AsyncSkep):
    """With any number of handlers and of batches fetched ahead."""
    busy: set[str] = set()
    seen = defaultdict(list)

    @mq.consumer("orders", batch=1, concurrency=4, fetch_ahead=4, **GROUP)
    async def handle(message: Message) -> None:
        assert message.partition not in busy
        busy.add(message.partition)
        await asyncio.sleep(0)
        seen[message.partition].append(message.offset)
        busy.remove(message.partition)

    await mq.queue("orders").push_many([NewMessage(n, f"partition {n % 2}") for n in range(40)])
    async with running(handle):
        await nothing_left(mq)
    assert seen == {"partition 0": list(range(20)), "partition 1": list(range(20))}
    assert await dead(mq, "orders") == {}


async def test_eight_handlers_share_a_partition(mq: AsyncSkep, db: psycopg.Connection):
    """With the option `concurrency` of the queue; each message is delivered once."""
    seen = []

    @mq.consumer("orders", batch=3, concurrency=8, **GROUP)
    async def handle(message: Message) -> None:
        seen.append(message.offset)

    await mq.queue("orders").configure(concurrency=8)
    await mq.queue("orders").push_many(range(200))
    async with running(handle):
        await nothing_left(mq)
    assert (sorted(seen), broken(db)) == (list(range(200)), {})


async def test_a_slow_handler_never_delays_another_partition(mq: AsyncSkep):
    """One handler hangs; the other one handles all other partitions."""
    hang = asyncio.Event()
    seen = []

    @mq.consumer("orders", batch=1, concurrency=2, **GROUP)
    async def handle(message: Message) -> None:
        if message.partition == "slow":
            await opened(hang)
        seen.append(message.payload)

    await mq.queue("orders").push("hangs", partition="slow")
    async with running(handle):
        for number in range(10):
            await mq.queue("orders").push(number, partition=f"partition {number}")
        await until(lambda: len(seen) == 10, "the other partitions to be served")
        hang.set()
    assert sorted(map(str, seen)) == [*map(str, range(10)), "hangs"]


async def test_consumers_of_a_namespace_and_of_one_partition(mq: AsyncSkep):
    seen = defaultdict(set)

    @mq.consumer(namespace="shop", **GROUP)
    async def shop(message: Message) -> None:
        seen["shop"].add(message.payload)

    @mq.consumer("shop.mail", group="vip", partition="vip")
    async def vip(message: Message) -> None:
        seen["vip"].add(message.payload)

    await mq.queue("shop.mail").push_many(["a", NewMessage("b", "vip")])
    await mq.queue("shop.sms").push("c")
    await mq.queue("bank.mail").push("d")
    async with running(mq):
        await until(lambda: seen == {"shop": {"a", "b", "c"}, "vip": {"b"}}, "both to be served")


async def test_invalid_options_are_refused_at_once(mq: AsyncSkep, face: Face):
    wrong: list[dict[str, Any]] = [{"concurrency": 0}, {"fetch_ahead": -1}, {"lease_time": 0}, {"per": "row"}]
    for options in wrong:
        with refused(InvalidArgument):
            mq.consumer("orders", **options)(print)
    with refused(InvalidArgument, "a handler", "got str"):
        mq.consumer("orders")("no function")  # pyright: ignore[reportArgumentType]
    with refused(InvalidArgument, "poll_interval"):
        make(face, None, poll_interval=0)


async def test_a_permanent_fault_ends_the_run(clients: Callable[..., AsyncSkep], stranger: str):
    """Missing rights are raised, and not retried forever."""
    mq = clients(stranger)
    consumer = mq.consumer("orders")(print)
    for run in (consumer.run, mq.run):
        with refused(PermissionDenied):
            await run()
    await consumer.stop()
