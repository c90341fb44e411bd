"""The chunks that a sink stages: messages sorted by partition, each partition named once, all payloads in one text."""

from collections.abc import Iterator, Mapping
from typing import Any

from skep.spark.arrow import Array, RecordBatch, pa, pc

MAX_ROWS, MAX_BYTES = 10_000, 2**24  # of a chunk, which PostgreSQL takes, stores and reads as one value
SEPARATOR = "\x1e"  # JSON contains it only escaped


def split(rows: RecordBatch) -> Iterator[RecordBatch]:
    """Halve rows until each part fits into a chunk. A single row is never split, however large it is."""
    if rows.num_rows > 1 and (rows.num_rows > MAX_ROWS or rows.nbytes > MAX_BYTES):
        half = rows.num_rows // 2
        yield from split(rows.slice(0, half))
        yield from split(rows.slice(half))
    elif rows.num_rows:
        yield rows


def as_chunk(messages: Mapping[str, Array]) -> dict[str, Any]:
    """Return the arguments of `skep._stage_messages`. The messages of a partition stay in order."""
    queues, partitions = messages["queue"].dictionary_encode(), messages["partition"].dictionary_encode()
    width = len(partitions.dictionary)
    pairs = pc.add(pc.multiply(queues.indices.cast("int64"), width), partitions.indices).dictionary_encode()
    order = pc.array_sort_indices(pairs.indices)
    queue_of = pc.divide(pairs.dictionary, width)
    partition_of = pc.subtract(pairs.dictionary, pc.multiply(queue_of, width))
    return {
        "queues": queues.dictionary.take(queue_of).to_pylist(),
        "partitions": partitions.dictionary.take(partition_of).to_pylist(),
        "counts": pairs.indices.value_counts().field("counts").to_pylist(),
        "payloads": _joined(messages["payload"].take(order)),
        "headers": _listed(messages["headers"], order),
        "transaction_ids": _listed(messages["transaction_id"], order),
        "trace_ids": _listed(messages["trace_id"], order),
        "producers": _listed(messages["producer"], order),
    }


def _joined(texts: Array) -> str:
    """Join texts of either type, string or large_string: Spark can be configured to use the latter."""
    lists = pa.ListArray.from_arrays([0, len(texts)], texts)
    return pc.binary_join(lists, pa.scalar(SEPARATOR, texts.type))[0].as_py()


def _listed(column: Array, order: Array) -> list[str | None] | None:
    """Return the values in order, or None for a column of nulls, so that nothing is sent for it."""
    return None if column.null_count == len(column) else column.take(order).to_pylist()
