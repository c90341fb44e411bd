"""`format("skep")`: the data source, and the batch reader."""

import os
from collections.abc import Iterator

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from skep.errors import InvalidArgument
from skep.spark.arrow import RecordBatch
from skep.spark.log import Log
from skep.spark.options import SourceOptions, include_headers, sink_options, source_options
from skep.spark.reader import TaskInput, read_task
from skep.spark.runs import pack
from skep.spark.schema import check_read, check_written, source_schema
from skep.spark.sink import BatchWriter, StreamWriter
from skep.spark.stream import StreamReader
from skep.spark.window import batch_runs


class SkepDataSource(DataSource):
    """Reads and writes queues, in batches and streams."""

    @classmethod
    def name(cls) -> str:
        return "skep"

    def schema(self) -> StructType:
        return source_schema(headers=include_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(source_options(self.options, streaming=False), check_read(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return StreamReader(source_options(self.options, streaming=True), check_read(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
        if overwrite:
            raise InvalidArgument('a queue cannot be overwritten: write with mode("append")')
        options = sink_options(self.options)
        return BatchWriter(options, check_written(schema, options.queue))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802
        if overwrite:
            raise InvalidArgument('a queue cannot be overwritten: write with outputMode("append")')
        options = sink_options(self.options)
        return StreamWriter(options, check_written(schema, options.queue))


class BatchReader(DataSourceReader):
    """Reads the messages between two positions, as they are when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        tasks = pack(
            batch_runs(Log(options)),
            cores=os.cpu_count() or 1,
            max_rows=options.max_rows_per_task,
            min_tasks=options.min_tasks,
        )
        return [TaskInput(runs) for runs in tasks]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_task(self._options, self._schema, partition)
