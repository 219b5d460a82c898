"""Topics as Spark DataFrames, batch and streaming, in and out. Python only: no jar.

    import lastword.spark

    lastword.spark.register(spark)
    users = spark.read.format("lastword").option("path", folder).option("topic", "users").option("view", "state").load()

options.py   what a user may say
schema.py    the columns of a topic
opened.py    logs that this process has open for reading
filters.py   what Spark's filters mean for which files are opened
tasks.py     what executors are given, and how they read it
plan.py      from a topic, options and filters to tasks
batch.py     batch reads
stream.py    streaming reads
sink.py      batch and streaming writes
source.py    what Spark is told of all this
process.py   what is done once in each of Spark's Python processes
daemon.py    where Lastword's own sessions fork those from, with everything loaded
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "lastword"


def register(spark: SparkSession) -> None:
    """Make the format "lastword" known to a Spark session, and let Spark push filters down to it."""
    from lastword.spark.source import LastwordSource

    # Without it Spark refuses sources that take filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(LastwordSource)
