"""The chunks that a sink stages: limited in rows and bytes, sorted by partition; without Spark and a database."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from skep.spark.arrow import pa
from skep.spark.staging import MAX_BYTES, MAX_ROWS, SEPARATOR, as_chunk, split

COLUMNS = ("queue", "partition", "payload", "headers", "transaction_id", "trace_id", "producer")
NAMES = st.sampled_from("abc")
OPTIONAL = st.none() | st.sampled_from("xyz")
MESSAGES = st.lists(
    st.tuples(NAMES, NAMES, st.integers().map(str), OPTIONAL, OPTIONAL, OPTIONAL, OPTIONAL), min_size=1, max_size=40
)


def values(*texts: str) -> Any:
    return pa.record_batch({"value": pa.array(texts, pa.string())})


def unpacked(chunk: dict[str, Any]) -> list[tuple[str | None, ...]]:
    partitions = zip(chunk["queues"], chunk["partitions"], chunk["counts"], strict=True)
    names = [(queue, partition) for queue, partition, count in partitions for _ in range(count)]
    others = [chunk[name] or [None] * len(names) for name in ("headers", "transaction_ids", "trace_ids", "producers")]
    payloads = chunk["payloads"].split(SEPARATOR)
    return [(*name, *rest) for name, *rest in zip(names, payloads, *others, strict=True)]


@given(MESSAGES, st.sampled_from([pa.string(), pa.large_string()]))
def test_sorting_keeps_messages_whole_and_partitions_in_order(messages: list[tuple[str | None, ...]], text: Any):
    columns = zip(COLUMNS, zip(*messages, strict=True), strict=True)
    chunk = as_chunk({name: pa.array(column, text) for name, column in columns})
    found = unpacked(chunk)
    partitions = list(zip(chunk["queues"], chunk["partitions"], strict=True))
    assert len(partitions) == len(set(partitions))
    assert sorted(partitions) == sorted({message[:2] for message in messages})
    for partition in partitions:
        assert [message for message in found if message[:2] == partition] == [
            each for each in messages if each[:2] == partition
        ]


def test_a_column_of_nulls_is_not_sent():
    nothing = pa.nulls(2, pa.string())
    named = {"queue": pa.array(["q", "q"]), "partition": pa.array(["p", "p"]), "payload": pa.array(["1", "2"])}
    chunk = as_chunk({**dict.fromkeys(COLUMNS, nothing), **named})
    assert [name for name, value in chunk.items() if value is None] == [
        "headers", "transaction_ids", "trace_ids", "producers"
    ]  # fmt: skip


def test_chunks_are_small_in_rows_and_in_bytes():
    many = values(*map(str, range(2 * MAX_ROWS + 1)))
    assert max(part.num_rows for part in split(many)) <= MAX_ROWS
    assert [text for part in split(many) for text in part["value"].to_pylist()] == many["value"].to_pylist()
    large = values(*("x" * (MAX_BYTES // 4) for _ in range(9)), "y")
    assert [part.num_rows for part in split(large)] == [2, 3, 2, 3]
    assert max(part.nbytes for part in split(large)) <= MAX_BYTES
    assert list(split(values())) == []


def test_a_row_that_is_too_large_is_a_piece_of_its_own():
    assert [part.num_rows for part in split(values("1", "x" * (MAX_BYTES + 1), "2"))] == [1, 1, 1]
