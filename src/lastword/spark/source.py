"""What Spark is told: the format, its columns, and who reads and writes."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lastword.spark import FORMAT
from lastword.spark.batch import BatchReader
from lastword.spark.options import batch_options, columns_of, stream_options, write_options
from lastword.spark.schema import read_schema
from lastword.spark.sink import BatchWriter, StreamWriter
from lastword.spark.stream import StreamReader


class LastwordSource(DataSource):
    """The format "lastword"."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return read_schema(columns_of(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(batch_options(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(write_options(self.options), schema, overwrite)
