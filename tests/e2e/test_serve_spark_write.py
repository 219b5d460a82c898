"""Spark writes to a topic that a running server holds: the server's broker appends what Spark has staged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.support.cli import Cli
from tests.support.server import Server, serving
from tests.support.spark import spark_engine  # noqa: F401

import lastword
import lastword.spark
from lastword.compaction.spark import SparkEngine


@pytest.fixture(scope="module")
def spark(spark_engine: SparkEngine) -> SparkSession:  # noqa: F811
    session: SparkSession = spark_engine.session()
    lastword.spark.register(session)
    return session


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("served") / "data") as started:
        yield started


def write(spark: SparkSession, server: Server, first: int, end: int, **options: Any) -> None:
    rows = spark.range(first, end).selectExpr("concat('k', id % 7) key", "string(id) value")
    writer = rows.write.format("lastword").option("path", str(server.data)).option("topic", "t")
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.mode("append").save()


def values(server: Server, topic: str) -> Counter[int]:
    with lastword.open(server.data, read_only=True) as log:
        return Counter(int(record.value or b"-1") for record in log.topic(topic).read())


@pytest.mark.soak
def test_writes_go_through_the_server_once_also_over_a_killed_broker(
    spark: SparkSession, server: Server
) -> None:
    cli = Cli(server.data)
    cli("topic", "create", "t", "--partitions", "3", "--cleanup-policy", "compact")
    write(spark, server, 0, 500)
    write(spark, server, 500, 600, sink="job", unit=1)
    server.kill_child("broker")
    # What is repeated is found to be there.
    write(spark, server, 500, 600, sink="job", unit=1)
    write(spark, server, 600, 700, sink="job", unit=2)
    assert values(server, "t") == Counter(range(700))
    # The server has been the writer all the time, and knows of the records.
    assert server.child("broker").restarts == 1
    assert cli.json("topic", "compact", "t")["total"]["records_after"] == 7


@pytest.mark.soak
def test_what_the_topic_refuses_is_told_with_its_reason(spark: SparkSession, server: Server) -> None:
    Cli(server.data)("topic", "create", "small", "--config", "max.message.bytes=100")
    rows = spark.range(1).selectExpr("'k' key", "repeat('x', 1000) value")
    writer = rows.write.format("lastword").option("path", str(server.data)).option("topic", "small")
    with pytest.raises(PySparkException, match=r"max\.message\.bytes") as caught:
        writer.mode("append").save()
    assert "RecordTooLargeError" in str(caught.value)
    assert values(server, "small") == Counter()
