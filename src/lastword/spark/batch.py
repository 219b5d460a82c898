"""Batch reads: planned once on the driver, read by tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from lastword.spark import tasks
from lastword.spark.filters import EVERYTHING, wanted
from lastword.spark.options import ReadOptions
from lastword.spark.process import prepare_process
from lastword.spark.schema import arrow_schema


class BatchReader(DataSourceReader):
    """A batch read. Spark sends it to executors after it has called `partitions`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._wanted = EVERYTHING

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        # All are returned to Spark as well: only rows that surely don't match are left out here.
        self._wanted = wanted(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        from lastword.spark.plan import plan_batch  # Executors need neither it nor its imports.

        planned = plan_batch(self._options, self._wanted)
        prepare_process()
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        prepare_process()
        return tasks.read(partition, self._schema, self._wanted)
