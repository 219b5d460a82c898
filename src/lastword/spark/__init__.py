"""Topics as Spark DataFrames: batch and streaming reads and writes. Python only: no jar.

    import lastword.spark

    lastword.spark.register(spark)
    users = spark.read.format("lastword").option("path", folder).option("topic", "users").option("view", "state").load()

options.py   the options of reads and writes
schema.py    the columns of a topic
opened.py    logs that this process has open for reading
filters.py   finds the files and rows that Spark's filters can match
tasks.py     the tasks of executors, and how they are read
plan.py      plans tasks from a topic, options and filters
batch.py     batch reads
stream.py    streaming reads
sink.py      batch and streaming writes
source.py    the data source that Spark registers
process.py   the one-time setup of each of Spark's Python processes
daemon.py    the process that Lastword's own sessions fork those from, with everything loaded
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "lastword"


def register(spark: SparkSession) -> None:
    """Register the format "lastword" with a Spark session, and let Spark push filters down to it."""
    from lastword.spark.source import LastwordSource

    # Without this, Spark refuses sources that take filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(LastwordSource)
