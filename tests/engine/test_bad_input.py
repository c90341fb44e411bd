"""Bad input: a typed error that names the item, nothing stored, and other callers unaffected."""

from collections.abc import Callable
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.engine.verbs import broken, call, configure, pop, push, push_to, refused, take

Connect = Callable[..., psycopg.Connection]

PUSHES = {
    "queue is NULL": ("push(NULL, '1')", "SK001", "queue"),
    "queue is empty": ("push('', '1')", "SK001", "queue"),
    "queue over 255": ("push(repeat('é', 256), '1')", "SK001", "queue name is 256 characters"),
    "partition is NULL": ("push('q', '1', NULL)", "SK001", "partition"),
    "partition over 255": ("push('q', '1', repeat('p', 256))", "SK001", "partition name is 256 characters"),
    "payload is NULL": ("push('q', NULL)", "SK001", "item 0", "payload"),
    "payload over the limit": ("push('small', to_jsonb(repeat('x', 100)))", "SK004", "item 0", "queue is 50"),
    "NUL in a string": (r"""push('q', '{"a": ["\u0000"]}')""", "22P05", "Unicode"),
    "NUL in a key": (r"""push('q', '1', headers => '{"a\u0000": 1}')""", "22P05", "Unicode"),
    "invalid JSON": ("""push('q', '{"a":')""", "22P02", "json"),
    "half a surrogate": (r"""push('q', '"\ud800"')""", "22P02", "json"),
    "headers are an array": ("push('q', '1', headers => '[]')", "SK001", "item 0", "headers"),
    "headers are JSON null": ("push('q', '1', headers => 'null')", "SK001", "item 0", "headers"),
    "transaction id over 255": ("push('q', '1', transaction_id => repeat('é', 256))", "SK001", "item 0", "256"),
    "transaction id is empty": ("push('q', '1', transaction_id => '')", "SK001", "item 0", "transaction id"),
    "trace id is no uuid": ("push('q', '1', trace_id => 'x')", "22P02", "uuid"),
    "messages are an object": ("push('{}'::jsonb)", "SK001", "JSON object"),
    "messages are NULL": ("push(NULL::jsonb)", "SK001", "NULL"),
    "a message is a number": ("push('[1]'::jsonb)", "SK001", "item 0"),
    "a message has an unknown key": (
        """push('[{"queue": "q"}, {"queue": "q", "transactionId": "t"}]'::jsonb)""", "SK001", "item 1", "transactionId",
    ),
    "a message has no queue": ("""push('[{"payload": 1}]'::jsonb)""", "SK001", "queue"),
    "arrays are NULL": ("push_many(NULL, NULL, NULL)", "SK001", "push_many"),
    "a missing array": ("push_many(ARRAY['q'], NULL, ARRAY['1']::jsonb[])", "SK001"),
    "fewer partitions": ("push_many(ARRAY['q', 'q'], ARRAY['p'], ARRAY['1', '2']::jsonb[])", "SK001", "length"),
    "fewer payloads": ("push_many(ARRAY['q', 'q'], ARRAY['p', 'p'], ARRAY['1']::jsonb[])", "SK001", "length"),
    "more transaction ids": ("push_many('{q}', '{p}', ARRAY['1']::jsonb[], '{a,b}')", "SK001", "length"),
    "no headers": ("push_many('{q}', '{p}', ARRAY['1']::jsonb[], headers => '{}')", "SK001", "length"),
    "more trace ids": ("push_many('{q}', '{p}', ARRAY['1']::jsonb[], trace_ids => '{NULL,NULL}')", "SK001", "length"),
    "more producers": ("push_many('{q}', '{p}', ARRAY['1']::jsonb[], producers => '{a,b}')", "SK001", "length"),
}  # fmt: skip

POPS = {
    "nothing named": ("pop()", "SK001", "queue"),
    "queue and namespace": ("pop('q', namespace => 'n')", "SK001", "cannot be combined"),
    "partition without queue": ("pop(namespace => 'n', partition => 'p')", "SK001"),
    "queue over 255": ("pop(repeat('q', 256))", "SK001", "queue name is 256"),
    "group is NULL": ("pop('q', NULL)", "SK001", "group"),
    "group over 255": ("pop('q', repeat('g', 256))", "SK001", "group name is 256"),
    "partition over 255": ("pop('q', partition => repeat('p', 256))", "SK001", "partition name is 256"),
    "partition is empty": ("pop('q', partition => '')", "SK001", "partition"),
    "namespace over 255": ("pop(namespace => repeat('n', 256))", "SK001", "namespace"),
    "task over 255": ("pop(task => repeat('t', 256))", "SK001", "task"),
    "batch 0": ("pop('q', batch => 0)", "SK001", "batch must be between 1 and 100000, got 0"),
    "batch is negative": ("pop('q', batch => -1)", "SK001", "got -1"),
    "got NULL": ("pop('q', batch => NULL)", "SK001", "got NULL"),
    "batch of a million": ("pop('q', batch => 1000000)", "SK001", "got 1000000"),
    "batch is a word": ("pop('q', batch => 'many')", "22P02", "many"),
    "partitions 0": ("pop('q', partitions => 0)", "SK001", "partitions must be between 1 and 10000, got 0"),
    "lease_time is negative": ("pop('q', lease_time => -1)", "SK001", "lease_time must be", "got -1"),
    "lease_time 0": ("pop('q', lease_time => 0)", "SK001", "got 0"),
    "lease_time NaN": ("pop('q', lease_time => 'NaN')", "SK001", "got NaN"),
    "lease_time of a year": ("pop('q', lease_time => 31536000)", "SK001", "got 31536000"),
    "unknown mode": ("pop('q', 'new group', subscription_mode => 'latest')", "SK001", '"latest"'),
    "unknown mode, known group": ("pop('q', 'g', subscription_mode => 'latest')", "SK001", '"latest"'),
    "unparsable time": ("pop('q', 'new group', subscription_from => 'last tuesday')", "SK001", '"last tuesday"'),
    "unparsable time, known group": ("pop('q', 'g', subscription_from => 'last tuesday')", "SK001", '"last tuesday"'),
}  # fmt: skip

STARTS = {
    "no queue": ("subscribe('g')", "SK001", "queue"),
    "unknown mode": ("subscribe('new group', 'q', mode => 'sometimes')", "SK001", '"sometimes"'),
    "empty mode": ("subscribe('new group', 'q', mode => '')", "SK001", '""'),
    "group over 255": ("subscribe(repeat('g', 256), 'q')", "SK001", "group name is 256"),
    "partition over 255": ("subscribe('g', 'q', repeat('p', 256))", "SK001", "partition name is 256"),
    "month 13": ("subscribe('new group', 'q', start_from => '2026-13-01')", "SK001", '"2026-13-01"'),
    "unknown zone": ("subscribe('new group', 'q', start_from => '2026-01-01 12:00 Mars/Phobos')", "SK001", "Mars"),
    "year 300000": ("subscribe('new group', 'q', start_from => '300000-01-01')", "SK001", '"300000-01-01"'),
    "timestamp without a time": ("subscribe('new group', 'q', mode => 'timestamp')", "SK001", '"timestamp"'),
    "offset without a number": ("subscribe('new group', 'q', mode => 'offset')", "SK001", '"offset"'),
    "offset is negative": ("subscribe('new group', 'q', mode => 'offset', start_from => '-1')", "SK001", '"-1"'),
    "offset over 64 bits": ("subscribe('new group', 'q', start_from => repeat('9', 20))", "SK001", "9" * 20),
    "message id is no uuid": ("subscribe('new group', 'q', mode => 'message_id', start_from => 'x')", "SK001", '"x"'),
    "seek to NULL": ("seek('g', 'q', NULL)", "SK001", "position"),
    "seek to nothing": ("seek('g', 'q', '')", "SK001"),
    "seek to a word": ("seek('g', 'q', 'middle')", "SK001", '"middle"'),
    "seek below zero": ("seek('g', 'q', '-1')", "SK001", '"-1"'),
    "seek everywhere to a word": ("seek('g', NULL, 'middle')", "SK001", '"middle"'),
    "seek a partition of no queue": ("seek('g', NULL, 'end', 'p')", "SK001", "queue"),
    "seek partition over 255": ("seek('g', 'q', 'end', repeat('p', 256))", "SK001", "partition name is 256"),
    "default mode unknown": ("configure_defaults('timestamp')", "SK001", "subscription_mode must be all or new"),
    "poll interval 0": ("configure_defaults(max_poll_interval => 0)", "SK001", "max_poll_interval"),
    "poll interval NaN": ("configure_defaults(max_poll_interval => 'NaN')", "SK001", "max_poll_interval"),
    "poll interval without end": ("configure_defaults(max_poll_interval => 'Infinity')", "SK001", "max_poll_interval"),
}  # fmt: skip

ANSWERS = {
    "extend by 0": ("extend(%(lease)s, 0)", "SK001", "got 0"),
    "extend by NaN": ("extend(%(lease)s, 'NaN')", "SK001", "got NaN"),
    "extend by NULL": ("extend(%(lease)s, NULL)", "SK001", "got NULL"),
    "extend what is not": ("extend(gen_random_uuid())", "SK003", "has ended"),
    "ack NULL": ("ack(NULL)", "SK003", "NULL"),
    "ack what is not": ("ack(gen_random_uuid())", "SK003", "has ended"),
    "ack of another message": ("ack(%(lease)s, gen_random_uuid())", "SK003", "does not contain message"),
    "lease is no uuid": ("ack('x')", "22P02", "uuid"),
    "fewer ids than leases": ("ack_many(ARRAY[%(lease)s]::uuid[], '{}', '{completed}')", "SK001", "length"),
    "fewer statuses": ("ack_many(ARRAY[%(lease)s]::uuid[], NULL, '{}')", "SK001", "length"),
    "more errors": ("ack_many(ARRAY[%(lease)s]::uuid[], NULL, '{failed}', '{oops,oops}')", "SK001", "length"),
    "operations are an object": ("transaction('{}')", "SK001", "array"),
    "operations are NULL": ("transaction(NULL)", "SK001", "array"),
    "unknown operation": ("""transaction('[{"pull": {}}]')""", "SK001", '"pull"'),
    "two operations in one": ("""transaction('[{"push": {}, "ack": {}}]')""", "SK001", "unknown operation"),
    "operation is a word": ("""transaction('["push"]')""", "SK001"),
    "push of a number": ("""transaction('[{"push": 1}]')""", "SK001"),
    "ack without a lease": ("""transaction('[{"ack": {}}]')""", "SK003", "ack 0"),
    "lease in JSON is no uuid": ("""transaction('[{"ack": {"lease": "x"}}]')""", "22P02", "uuid"),
    "NUL in a pushed string": (r"""transaction('[{"push": {"queue": "q", "payload": "\u0000"}}]')""", "22P05"),
}  # fmt: skip


def contents(connection: psycopg.Connection) -> dict[str, list]:
    """Everything stored, table by table."""
    tables = "SELECT relname FROM pg_class WHERE relnamespace = 'skep'::regnamespace AND relkind = 'r'"
    return {
        name: connection.execute(
            sql.SQL("SELECT t::text FROM skep.{} t ORDER BY 1").format(sql.Identifier(name))
        ).fetchall()
        for (name,) in connection.execute(tables).fetchall()
    }


@pytest.fixture
def stage(mq: psycopg.Connection) -> tuple[psycopg.Connection, dict]:
    """A queue with messages and a lease, and one with a small limit: enough to be damaged."""
    configure(mq, "small", max_payload_bytes=50)
    push(mq, "q", "a", "b", "c")
    return mq, {"lease": pop(mq, "q", batch=2)[0].lease}


CASES = [
    pytest.param(*case, id=f"{group} {name}".replace(" ", "_"))
    for group, cases in {"push": PUSHES, "pop": POPS, "start": STARTS, "answer": ANSWERS}.items()
    for name, (query, *expected) in cases.items()
    for case in [(query, expected)]
]


@pytest.mark.parametrize(("query", "expected"), CASES)
def test_bad_arguments_are_refused_and_store_nothing(
    stage: tuple[psycopg.Connection, dict], query: LiteralString, expected: list[str]
):
    connection, names = stage
    before = contents(connection)
    with refused(*expected):
        connection.execute(f"SELECT * FROM skep.{query}", names if "%(" in query else None)
    assert contents(connection) == before


@pytest.mark.parametrize("bad", range(3))
def test_the_error_names_the_item_of_a_batch(mq: psycopg.Connection, bad: int):
    """Of three items one is wrong: its number is told, and none of the three is stored."""
    items = [("q", f"p{n}", n) for n in range(3)]
    ids = ["x" * 256 if n == bad else None for n in range(3)]
    before = contents(mq)
    with refused("SK001", f"item {bad}"):
        push_to(mq, items, transaction_ids=ids)
    configure(mq, "q", max_payload_bytes=100)
    with refused("SK004", f"item {bad}"):
        push_to(mq, [("q", "p", "x" * 200 if n == bad else n) for n in range(3)])
    with refused("SK001", f"item {bad}: queue name"):
        push_to(mq, [("" if n == bad else "q", "p", n) for n in range(3)])
    with refused("SK001", f"item {bad}: partition name"):
        push_to(mq, [("q", "x" * 256 if n == bad else "p", n) for n in range(3)])
    mq.execute("SELECT skep.delete_queue('q')")
    assert contents(mq) == before


MESSAGES: dict[str, tuple[dict, str]] = {
    "queue is a number": ({"queue": 5}, "queue must be a string, got a JSON number"),
    "queue is a boolean": ({"queue": True}, "queue must be a string, got a JSON boolean"),
    "queue is null": ({"queue": None}, "queue name is missing"),
    "queue over 255": ({"queue": "q" * 256}, "queue name is 256 characters"),
    "partition is an object": ({"partition": {"a": 1}}, "partition must be a string, got a JSON object"),
    "partition is a number": ({"partition": 7}, "partition must be a string, got a JSON number"),
    "partition is empty": ({"partition": ""}, "partition name is missing"),
    "transaction id is a number": ({"transaction_id": 7}, "transaction_id must be a string, got a JSON number"),
    "transaction id is empty": ({"transaction_id": ""}, "the transaction id must have 1 to 255 characters, got 0"),
    "producer is an array": ({"producer": []}, "producer must be a string, got a JSON array"),
    "trace id is a number": ({"trace_id": 7}, "trace_id must be a string, got a JSON number"),
    "trace id is no uuid": ({"trace_id": "x"}, 'trace_id must be a UUID, got "x"'),
    "headers are a text": ({"headers": "x"}, "headers must be a JSON object, got a JSON string"),
}


@pytest.mark.parametrize("function", ["push", "push_to_outbox"])
@pytest.mark.parametrize(("wrong", "said"), MESSAGES.values(), ids=MESSAGES)
def test_the_error_names_the_item_of_a_json_batch(mq: psycopg.Connection, function: str, wrong: dict, said: str):
    """Wrong types are not made into texts, for what was meant is not known."""
    good = {"queue": "q", "payload": 1, "partition": None, "transaction_id": None, "trace_id": None, "producer": None}
    before = contents(mq)
    with refused("SK001", f"item 1: {said}"):
        call(mq, function, messages=Jsonb([good | {"headers": None}, good | wrong, good | wrong]))
    assert contents(mq) == before
    call(mq, function, messages=Jsonb([good, {"queue": "q", "trace_id": str(UUID(int=7))}]))
    assert take(mq, "q") == [1, None]


@pytest.mark.parametrize("messages", [{}, 1, None, [1], [[]], [{"queue": "q", "transactionId": "t"}]])
def test_the_outbox_takes_what_push_takes(mq: psycopg.Connection, messages: object):
    """Both refuse the same; nothing to publish is no error in either."""
    said: list[str | None] = []
    for function in ("push", "push_to_outbox"):
        with pytest.raises(psycopg.Error) as caught:
            call(mq, function, messages=Jsonb(messages))
        said += [caught.value.sqlstate, caught.value.diag.message_primary]
    assert said[:2] == said[2:]
    assert said[0] == "SK001"
    call(mq, "push_to_outbox", messages=Jsonb([]))


def test_other_callers_are_unaffected(connect: Connect):
    """A caller whose push fails holds nobody up, and its transaction can go on from a savepoint."""
    clumsy, careful = connect(), connect(options="-c lock_timeout=2s")
    configure(careful, "q", max_payload_bytes=100)
    clumsy.execute("BEGIN")
    with refused("SK004"), clumsy.transaction():
        push_to(clumsy, [("q", "p", 1), ("new queue", "p", 1), ("q", "p", "x" * 200)])
    push_to(careful, [("q", "p", 2), ("new queue", "p", 2)])
    push(clumsy, "q", 3, partition="p")
    clumsy.execute("COMMIT")
    assert take(careful, "q") == [2, 3]
    assert take(careful, "new queue") == [2]
    assert broken(careful) == {}


@pytest.mark.parametrize("text", ["a\x00b", {"k\x00": 1}, ["\x00"]])
def test_nul_from_python(mq: psycopg.Connection, text: object):
    """The driver sends U+0000 in JSON as an escape, which jsonb cannot hold; in a text it refuses by itself."""
    with refused("22P05"):
        push(mq, "q", text)
    with pytest.raises(psycopg.DataError):
        push(mq, "q\x00", 1)


def test_not_utf8(mq: psycopg.Connection):
    with refused("22021"):
        mq.execute(b"SELECT skep.push('q\xff', '1')")


def test_an_empty_push_is_no_error(mq: psycopg.Connection):
    """Nothing to do is done: no error that asks to push again."""
    assert call(mq, "push", messages=Jsonb([])) == []
    assert call(mq, "push_many", queues=[], partitions=[], payloads=[]) == []
    assert call(mq, "transaction", operations=Jsonb([])) == []


OUTBOX: dict[str, LiteralString] = {
    "queue over 255": "INSERT INTO skep.outbox (queue, payload) VALUES (repeat('q', 256), '1')",
    "queue is empty": "INSERT INTO skep.outbox (queue, payload) VALUES ('', '1')",
    "queue is NULL": "INSERT INTO skep.outbox (payload) VALUES ('1')",
    "partition over 255": "INSERT INTO skep.outbox (queue, partition, payload) VALUES ('q', repeat('p', 256), '1')",
    "payload is NULL": "INSERT INTO skep.outbox (queue, payload) VALUES ('q', NULL)",
    "headers are an array": "INSERT INTO skep.outbox (queue, payload, headers) VALUES ('q', '1', '[]')",
    "transaction_id is empty": "INSERT INTO skep.outbox (queue, payload, transaction_id) VALUES ('q', '1', '')",
}  # fmt: skip


@pytest.mark.parametrize("name", OUTBOX)
def test_the_outbox_refuses_at_once(mq: psycopg.Connection, name: str):
    """Not only at COMMIT: the statement fails by a constraint of the table, which names the column."""
    before = contents(mq)
    with pytest.raises(psycopg.errors.IntegrityError) as caught:
        mq.execute(OUTBOX[name])
    assert name.split(maxsplit=1)[0] in f"{caught.value.diag.constraint_name} {caught.value.diag.column_name}"
    assert contents(mq) == before
