"""What a sink stages at once: cut by rows and by bytes, sorted by lane; without Spark and without a database."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from skep.spark.arrow import pa
from skep.spark.piece import BYTES, ROWS, SEPARATOR, as_piece, cut

COLUMNS = ("queue", "partition", "payload", "headers", "transaction_id", "trace_id", "producer")
NAMES = st.sampled_from("abc")
OPTIONAL = st.none() | st.sampled_from("xyz")
MESSAGES = st.lists(
    st.tuples(NAMES, NAMES, st.integers().map(str), OPTIONAL, OPTIONAL, OPTIONAL, OPTIONAL), min_size=1, max_size=40
)


def values(*texts: str) -> Any:
    return pa.record_batch({"value": pa.array(texts, pa.string())})


def taken_apart(piece: dict[str, Any]) -> list[tuple[str | None, ...]]:
    lanes = zip(piece["queues"], piece["partitions"], piece["counts"], strict=True)
    names = [(queue, partition) for queue, partition, count in lanes for _ in range(count)]
    others = [piece[name] or [None] * len(names) for name in ("headers", "transaction_ids", "trace_ids", "producers")]
    payloads = piece["payloads"].split(SEPARATOR)
    return [(*name, *rest) for name, *rest in zip(names, payloads, *others, strict=True)]


@given(MESSAGES, st.sampled_from([pa.string(), pa.large_string()]))
def test_sorting_by_lane_keeps_messages_whole_and_lanes_in_order(messages: list[tuple[str | None, ...]], text: Any):
    columns = zip(COLUMNS, zip(*messages, strict=True), strict=True)
    piece = as_piece({name: pa.array(column, text) for name, column in columns})
    found = taken_apart(piece)
    lanes = list(zip(piece["queues"], piece["partitions"], strict=True))
    assert len(lanes) == len(set(lanes))
    assert sorted(lanes) == sorted({message[:2] for message in messages})
    for lane in lanes:
        assert [message for message in found if message[:2] == lane] == [each for each in messages if each[:2] == lane]


def test_a_column_of_nulls_is_not_sent():
    nothing = pa.nulls(2, pa.string())
    named = {"queue": pa.array(["q", "q"]), "partition": pa.array(["p", "p"]), "payload": pa.array(["1", "2"])}
    piece = as_piece({**dict.fromkeys(COLUMNS, nothing), **named})
    assert [name for name, value in piece.items() if value is None] == [
        "headers", "transaction_ids", "trace_ids", "producers"
    ]  # fmt: skip


def test_pieces_are_small_in_rows_and_in_bytes():
    many = values(*map(str, range(2 * ROWS + 1)))
    assert max(part.num_rows for part in cut(many)) <= ROWS
    assert [text for part in cut(many) for text in part["value"].to_pylist()] == many["value"].to_pylist()
    large = values(*("x" * (BYTES // 4) for _ in range(9)), "y")
    assert [part.num_rows for part in cut(large)] == [2, 3, 2, 3]
    assert max(part.nbytes for part in cut(large)) <= BYTES
    assert list(cut(values())) == []


def test_a_row_that_is_too_large_is_a_piece_of_its_own():
    assert [part.num_rows for part in cut(values("1", "x" * (BYTES + 1), "2"))] == [1, 1, 1]
