"""The data source as Spark sees it: the format, its columns, its readers and writers.

Every Python process that Spark starts loads this module. Modules that only some of them need are imported where they
are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lastword.spark import FORMAT
from lastword.spark.options import batch_options, columns_of, stream_options, write_options
from lastword.spark.process import prepare_process
from lastword.spark.schema import read_schema

if TYPE_CHECKING:
    from lastword.spark.batch import BatchReader
    from lastword.spark.sink import BatchWriter, StreamWriter
    from lastword.spark.stream import StreamReader


class LastwordSource(DataSource):
    """The format "lastword"."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        prepare_process()
        return read_schema(columns_of(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        from lastword.spark.batch import BatchReader

        return BatchReader(batch_options(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        from lastword.spark.stream import StreamReader

        return StreamReader(stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from lastword.spark.sink import BatchWriter

        return BatchWriter(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from lastword.spark.sink import StreamWriter

        return StreamWriter(write_options(self.options), schema, overwrite)
