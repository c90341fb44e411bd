"""Pieces, as a sink stages them: messages sorted by lane, each lane named once, all payloads in one text."""

from collections.abc import Iterator, Mapping
from typing import Any

from skep.spark.arrow import Array, RecordBatch, pa, pc

ROWS, BYTES = 10_000, 2**24  # the most in a piece: PostgreSQL takes it as one value, which is stored and read at once
SEPARATOR = "\x1e"  # JSON has it only escaped


def cut(rows: RecordBatch) -> Iterator[RecordBatch]:
    """Halve what is too large for one piece. A row too large by itself is a piece, and for the database to judge."""
    if rows.num_rows > 1 and (rows.num_rows > ROWS or rows.nbytes > BYTES):
        half = rows.num_rows // 2
        yield from cut(rows.slice(0, half))
        yield from cut(rows.slice(half))
    elif rows.num_rows:
        yield rows


def as_piece(messages: Mapping[str, Array]) -> dict[str, Any]:
    """Return the arguments of skep.stage_piece. In each lane the messages stay in order."""
    queues, partitions = messages["queue"].dictionary_encode(), messages["partition"].dictionary_encode()
    width = len(partitions.dictionary)
    lanes = pc.add(pc.multiply(queues.indices.cast("int64"), width), partitions.indices).dictionary_encode()
    order = pc.array_sort_indices(lanes.indices)
    queue_of = pc.divide(lanes.dictionary, width)
    partition_of = pc.subtract(lanes.dictionary, pc.multiply(queue_of, width))
    return {
        "queues": queues.dictionary.take(queue_of).to_pylist(),
        "partitions": partitions.dictionary.take(partition_of).to_pylist(),
        "counts": lanes.indices.value_counts().field("counts").to_pylist(),
        "payloads": _joined(messages["payload"].take(order)),
        "headers": _listed(messages["headers"], order),
        "transaction_ids": _listed(messages["transaction_id"], order),
        "trace_ids": _listed(messages["trace_id"], order),
        "producers": _listed(messages["producer"], order),
    }


def _joined(texts: Array) -> str:
    """Join texts of whatever type: Spark can be told to use large ones."""
    lists = pa.ListArray.from_arrays([0, len(texts)], texts)
    return pc.binary_join(lists, pa.scalar(SEPARATOR, texts.type))[0].as_py()


def _listed(column: Array, order: Array) -> list[str | None] | None:
    """Return nothing for a column of nulls: it costs nothing on its way."""
    return None if column.null_count == len(column) else column.take(order).to_pylist()
