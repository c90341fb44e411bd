"""Acks and their verdicts: every row of the verdict table, with every way to acknowledge."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from skep import AsyncSkep, Message
from skep.client.aio.batch import AsyncBatch
from tests.client.verbs import LEASE_SECONDS, dead, drain, lag, leased, offsets, payloads, take, until
from tests.engine.test_verdict import TABLE, WITHOUT_ACK
from tests.engine.verbs import broken, pass_time

HOUR = 3600
Way = Callable[[AsyncSkep, AsyncBatch, str], Awaitable[None]]


async def one_by_one(mq: AsyncSkep, batch: AsyncBatch, letters: str) -> None:
    for message, letter in zip(batch, letters, strict=True):
        match letter:
            case "c":
                await batch.ack(message)
            case "f":
                await batch.fail(message, f"error {message.offset}")
            case "d":
                await batch.dead_letter(message, ValueError(f"error {message.offset}"))


async def in_one_call(mq: AsyncSkep, batch: AsyncBatch, letters: str) -> None:
    async with mq.transaction() as tx:
        for message, letter in zip(batch, letters, strict=True):
            match letter:
                case "c":
                    tx.ack(batch, message)
                case "f":
                    tx.fail(batch, message, f"error {message.offset}")
                case "d":
                    tx.dead_letter(batch, message, f"error {message.offset}")


async def the_rest_with_one_word(mq: AsyncSkep, batch: AsyncBatch, letters: str) -> None:
    """Acknowledge one by one, except for the most frequent status, which is given for all remaining messages."""
    word = max("cfd", key=letters.count)
    await one_by_one(mq, batch, letters.replace(word, "."))
    match word:
        case "c":
            await batch.ack()
        case "f":
            await batch.fail(None, "the rest")
        case "d":
            await batch.dead_letter(None, "the rest")


WAYS = [one_by_one, in_one_call, the_rest_with_one_word]


async def runs(mq: AsyncSkep, queue: str) -> list[tuple[list[int], int]]:
    """Pop and complete until the queue is empty; return the offsets and the attempt of each run."""
    taken: list[tuple[list[int], int]] = []
    while batch := await mq.queue(queue).pop(group="g", batch=100):
        await batch.ack()
        taken.append((offsets(batch), batch[0].attempt))
    return taken


async def popped(mq: AsyncSkep, row: int, letters: str, options: dict[str, Any]) -> tuple[str, AsyncBatch]:
    """Return a queue for this row of the table, and a batch of all its messages but one."""
    queue = f"row {row}"
    await mq.configure_queue(queue, {"retry_delay": 0, **options})
    await mq.queue(queue).push_many(range(len(letters) + 1))
    return queue, await mq.queue(queue).pop(group="g", batch=len(letters))


@pytest.mark.parametrize("way", WAYS)
async def test_the_verdict_on_a_batch(mq: AsyncSkep, db: psycopg.Connection, way: Way):
    """The last ack triggers the verdict, whatever the order and the number of calls."""
    for row, (letters, options, dead_offsets, again) in enumerate(TABLE):
        queue, batch = await popped(mq, row, letters, options)
        await way(mq, batch, letters)
        assert not batch.open
        end = len(letters)
        assert sorted(await dead(mq, queue)) == dead_offsets, TABLE[row]
        assert await lag(mq.queue(queue)) == {"Default": end + 1 - min(again, default=end)}, TABLE[row]
        assert await runs(mq, queue) == ([(again, 2)] if again else []) + [([end], 1)], TABLE[row]
    assert broken(db) == {}


@pytest.mark.parametrize("way", WAYS[:2])
async def test_some_messages_without_ack_when_the_lease_expires(mq: AsyncSkep, db: psycopg.Connection, way: Way):
    """Completed messages are not delivered again; the others are, with attempt + 1, in order, before later messages."""
    acked = []
    for row, (letters, options, _, _) in enumerate(WITHOUT_ACK):
        queue, batch = await popped(mq, row, letters, options)
        await way(mq, batch, letters)
        assert batch.open
        assert not await mq.queue(queue).pop(group="g")
        acked.append(queue)
    pass_time(db, LEASE_SECONDS + 1)
    for queue, (letters, _, dead_offsets, again) in zip(acked, WITHOUT_ACK, strict=True):
        came = [(offset, attempt) for run, attempt in await runs(mq, queue) for offset in run]
        assert came == [(offset, 2) for offset in again] + [(len(letters), 1)], letters
        assert sorted(await dead(mq, queue)) == dead_offsets, letters
    assert broken(db) == {}


async def test_the_verdict_on_a_handler(mq: AsyncSkep, db: psycopg.Connection):
    """An exception means "failed"; the consumer stores the acks of a batch in one call."""
    rows = [row for row in TABLE if "d" not in row[0] and row[1].get("retry_limit") == 0]
    for row, (letters, options, dead_offsets, _) in enumerate(rows):
        queue = f"row {row}"
        await mq.configure_queue(queue, options)
        await mq.queue(queue).push_many(letters)

        @mq.consumer(queue, group="g")
        async def handler(message: Message) -> None:
            if message.payload == "f":
                raise ValueError(f"error {message.offset}")

        assert handler.__name__ == "handler"
        await run_until_idle(mq, handler, queue)
        errors = {offset: f"ValueError: error {offset}" for offset in dead_offsets}
        assert await dead(mq, queue) == errors, letters
    assert broken(db) == {}


async def run_until_idle(mq: AsyncSkep, consumer: Any, queue: str) -> None:
    running = asyncio.create_task(consumer.run())

    async def idle() -> bool:
        return await lag(mq.queue(queue)) == {"Default": 0}

    await until(idle, "the consumer to be through")
    await consumer.stop()
    await running


async def test_a_failure_among_ten_thousand(mq: AsyncSkep):
    """The cursor is at the end, there is one dead letter, and the next pop starts after the batch."""
    q = mq.queue("orders")
    await q.push_many(range(10_000))
    batch = await q.pop(group="g", batch=10_000)
    await batch.fail(batch[7777], "no such customer")
    await batch.ack()
    assert await lag(q) == {"Default": 0}
    assert await dead(mq, "orders") == {7777: "no such customer"}
    await q.push("next")
    assert await take(q) == ["next"]


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_a_failed_batch_is_retried_up_to_the_limit(mq: AsyncSkep, limit: int):
    """`retry_limit` = N gives N + 1 deliveries, then dead letters. The next batch starts with attempt 1."""
    q = mq.queue("orders")
    await q.configure(retry_limit=limit, retry_delay=0)
    await q.push_many("abcd")
    for first in (0, 2):
        for attempt in range(1, limit + 2):
            batch = await q.pop(group="g", batch=2)
            assert [(m.offset, m.attempt) for m in batch] == [(first, attempt), (first + 1, attempt)]
            await batch.fail(None, f"attempt {attempt}")
        assert await dead(mq, "orders") == dict.fromkeys(range(first + 2), f"attempt {limit + 1}")
    assert await lag(q) == {"Default": 0}
    assert {letter.attempts for letter in await mq.dead_letters("orders")} == {limit + 1}


async def test_a_failed_batch_waits_for_its_retry(mq: AsyncSkep, db: psycopg.Connection):
    """The partition waits for `retry_delay`, which doubles each time and has jitter."""
    q = mq.queue("orders")
    await q.configure(retry_delay=100)
    await q.push_many("ab")
    for nothing_before, surely_after in ((70, 130), (145, 260)):
        await (await q.pop(group="g")).fail(None, "later")
        pass_time(db, nothing_before)
        assert not await q.pop(group="g")
        pass_time(db, surely_after - nothing_before)
    assert (await q.pop(group="g"))[0].attempt == 3


async def test_a_release_counts_no_attempt(mq: AsyncSkep):
    """Completed messages stay completed; the others are delivered again with the same attempt."""
    q = mq.queue("orders")
    await q.push_many("abc")
    for _ in range(5):
        batch = await q.pop(group="g", batch=2)
        assert [(m.payload, m.attempt) for m in batch] == [("a", 1), ("b", 1)]
        await batch.release()
        assert not batch.open
    batch = await q.pop(group="g", batch=3)
    await batch.ack(batch[1])
    await batch.release()
    assert payloads(await drain(q)) == ["a", "c"]


async def test_a_dead_letter_is_a_full_copy(clients: Callable[..., AsyncSkep]):
    """It survives its queue, and each group has its own dead letters."""
    mq = clients(producer="shop-1")
    q = mq.queue("orders")
    await q.push({"n": 1}, partition="eu", transaction_id="t", headers={"h": 1})
    batch = await q.pop(group="g")
    await batch.dead_letter(batch[0], KeyError("customer"))
    await q.delete()
    (letter,) = await mq.dead_letters("orders")
    assert (letter.queue, letter.partition, letter.offset, letter.group) == ("orders", "eu", 0, "g")
    assert (letter.payload, letter.headers, letter.transaction_id) == ({"n": 1}, {"h": 1}, "t")
    assert (letter.producer, letter.attempts, letter.error) == ("shop-1", 1, "KeyError: 'customer'")
    assert (letter.created_at, letter.trace_id) == (batch[0].created_at, None)
    assert await mq.dead_letters("orders", "other") == []
    assert await mq.dead_letters(before=letter.id) == []
    assert len(await mq.dead_letters(limit=1)) == 1


async def test_errors_of_any_kind_are_stored(mq: AsyncSkep):
    """The ack is stored even if the error has no text or one that cannot be stored."""
    q = mq.queue("orders")
    errors = ["a\0b", "\ud800", "x" * 20_000, None, 404, ValueError(), ""]
    await q.push_many(range(len(errors)))
    batch = await q.pop(group="g", batch=100)
    for message, error in zip(batch, errors, strict=True):
        await batch.dead_letter(message, error)
    assert list((await dead(mq, "orders")).values())[::-1] == [
        "ab", "?", "x" * 10_000, "dead-lettered", "404", "ValueError", "",
    ]  # fmt: skip
    await q.configure(retry_limit=0)
    await q.push("last")
    await (await q.pop(group="g")).fail(None, None)
    assert (await dead(mq, "orders"))[len(errors)] == "failed"


async def test_a_block_without_an_error_acknowledges(mq: AsyncSkep, db: psycopg.Connection):
    q = mq.queue("orders")
    await q.push_many("abc")
    async with await q.pop(group="g", batch=2) as batch:
        assert payloads(batch) == ["a", "b"]
    assert (batch.open, leased(db), await lag(q)) == (False, 0, {"Default": 1})


async def test_a_block_that_raises_fails_with_the_text(mq: AsyncSkep):
    q = mq.queue("orders")
    await q.configure(retry_limit=0)
    await q.push_many("abc")
    with pytest.raises(ZeroDivisionError):
        async with await q.pop(group="g", batch=2):
            raise ZeroDivisionError("by zero")
    assert await dead(mq, "orders") == dict.fromkeys((0, 1), "ZeroDivisionError: by zero")
    assert await take(q) == ["c"]


async def test_a_block_keeps_explicit_acks(mq: AsyncSkep):
    """Explicit acks count; the end of the block acknowledges only the remaining messages."""
    q = mq.queue("orders")
    await q.push_many("abc")
    with suppress(ZeroDivisionError):
        async with await q.pop(group="g", batch=3) as batch:
            await batch.ack(batch[0])
            raise ZeroDivisionError
    assert await dead(mq, "orders") == dict.fromkeys((1, 2), "ZeroDivisionError")
    await q.push("d")
    async with await q.pop(group="g") as batch:
        await batch.release()
    assert await take(q) == ["d"]


async def test_an_interrupted_block_releases(mq: AsyncSkep):
    """The end of the program is not a failure of the messages."""
    q = mq.queue("orders")
    await q.push("a")
    with pytest.raises(SystemExit):
        async with await q.pop(group="g"):
            raise SystemExit
    (batch,) = [await q.pop(group="g")]
    assert (payloads(batch), batch[0].attempt) == (["a"], 1)
