"""Topics as DataFrames on a real Spark: batch and streaming, in and out, with processes that are killed."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.support import deadly_sink
from tests.support.spark import spark_engine  # noqa: F401
from tests.support.spark_source import STEPS

import lastword
import lastword.spark
from lastword.compaction.spark import SparkEngine
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.record import NewRecord
from lastword.record_json import time_text

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
CONFIG = "compaction.service.factory: lastword.compaction.inline:InlineCompactionServiceFactory\n"


@pytest.fixture(scope="module")
def spark(spark_engine: SparkEngine) -> SparkSession:  # noqa: F811
    session: SparkSession = spark_engine.session()
    lastword.spark.register(session)
    return session


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lastword.yaml").write_text(CONFIG)
    return tmp_path / "data"


@pytest.fixture
def log(folder: Path) -> Iterator[Log]:
    with lastword.open(folder) as opened:
        yield opened


def fill(topic: Topic, first: int, end: int, *, keys: int = 100) -> None:
    topic.append_many([NewRecord(key=b"k%d" % (n % keys), value=b"%d" % n) for n in range(first, end)])


def stream(spark: SparkSession, log: Log, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("lastword").option("path", str(log.path)).option("topic", topic)
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), value)
    return reader.load()


def numbers(rows: DataFrame) -> list[int]:
    return sorted(int(row[0]) for row in rows.select(F.col("value").cast("string")).collect())


def test_a_topic_is_a_dataframe(spark: SparkSession, log: Log) -> None:
    config = {"cleanup.policy": "compact", "compaction.at.seal": False}
    topic = log.create_topic("users", partitions=2, config=config)
    for part in range(3):
        fill(topic, 100 * part, 100 * part + 100, keys=70)
        topic.seal()
    topic.append("k1", None)
    topic.append("k2", "300", headers=[("h", b"1")])
    records = topic.dataframe(spark)
    assert records.count() == 302
    found = {
        (row.partition, row.offset, bytes(row.key), bytes(row.value))
        for row in topic.dataframe(spark, view="state").collect()
    }
    expected = topic.state()
    names = ("partition", "offset", "key", "value")
    assert found == set(zip(*(expected.column(name).to_pylist() for name in names), strict=True))
    newest = records.filter(F.col("key") == F.lit(b"k2")).orderBy(F.col("timestamp").desc()).first()
    assert newest is not None and newest.headers[0].value == b"1"
    pair = spark.read.format("lastword").schema("value binary, key binary").option("path", str(log.path))
    assert pair.option("topic", "users").load().columns == ["value", "key"]


def test_as_of_a_time_is_the_same_before_and_after_a_compaction(spark: SparkSession, log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    began_ms = 1_700_000_000_000
    topic.append_many(
        [NewRecord(key=b"k%d" % (n % 7), value=b"%d" % n, timestamp_ms=began_ms + n) for n in range(100)]
    )
    topic.seal()
    as_of = time_text(began_ms + 49)
    before = numbers(topic.dataframe(spark, as_of=as_of))
    log.compact(asked_for=True)
    assert numbers(topic.dataframe(spark)) == list(range(93, 100))
    assert before == numbers(topic.dataframe(spark, as_of=as_of)) == list(range(50))
    assert numbers(topic.dataframe(spark, as_of=as_of, view="state")) == list(range(43, 50))


def test_files_that_cannot_match_are_not_opened(spark: SparkSession, log: Log) -> None:
    topic = log.create_topic("t")
    for part in range(3):
        fill(topic, 10 * part, 10 * part + 10)
        topic.seal()
    files = sorted((log.path / "warehouse").rglob("*.parquet"))
    kept = files[1].read_bytes()
    for each in files:
        if each != files[1]:
            each.unlink()
    files[1].write_bytes(kept)
    rows = topic.dataframe(spark).filter("offset >= 12 and offset < 15")
    assert numbers(rows) == [12, 13, 14]


def test_what_is_said_of_a_wrong_option(spark: SparkSession, log: Log) -> None:
    topic = log.create_topic("t")
    with pytest.raises(AnalysisException, match="option 'vieuw' is unknown for a read; allowed: as"):
        topic.dataframe(spark, vieuw="state")
    with pytest.raises(AnalysisException, match="option 'view' is 'all'; allowed: records, state"):
        topic.dataframe(spark, view="all").count()


def test_a_streaming_read_goes_on_where_it_was(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    topic = log.create_topic("t", partitions=2, config={"cleanup.policy": "compact"})
    copy, checkpoint = str(tmp_path / "copy"), str(tmp_path / "checkpoint")

    def run(**options: str) -> list[dict[str, Any]]:
        writer = stream(spark, log, "t", **options).writeStream.format("parquet").option("path", copy)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return [each for each in query.recentProgress if each["numInputRows"]]

    fill(topic, 0, 50, keys=10_000)
    topic.seal()
    fill(topic, 50, 100, keys=10_000)
    progress = run(max_records_per_trigger="40")
    assert [each["numInputRows"] for each in progress] == [40, 40, 20]
    assert progress[0]["processedRowsPerSecond"] > 0
    topic.seal()
    log.compact()
    fill(topic, 100, 120, keys=10_000)
    run()
    run()
    assert numbers(spark.read.parquet(copy)) == list(range(120))

    fill(topic, 120, 140, keys=10_000)
    topic.seal()
    topic.delete_records({0: -1})
    fill(topic, 140, 150, keys=10_000)
    with pytest.raises(StreamingQueryException, match="'t' partition 0 are lost to this query"):
        run()
    run(on_data_loss="skip")
    left = numbers(spark.read.parquet(copy))
    assert left[:120] == list(range(120))
    assert Counter(left).most_common(1)[0][1] == 1
    assert set(left[-10:]) == set(range(140, 150))


def test_a_write_goes_through_the_process_that_holds_the_log(spark: SparkSession, log: Log) -> None:
    topic = log.create_topic("t", partitions=3)
    rows = spark.range(1000).selectExpr(
        "concat('k', id) key", "string(id) value", "timestamp'2026-01-31' timestamp"
    )
    rows.write.format("lastword").option("path", str(log.path)).option("topic", "t").mode("append").save()
    assert sorted(int(record.value or b"-1") for record in topic.read()) == list(range(1000))
    assert len({record.partition for record in topic.read()}) == 3
    assert len({record.timestamp_ms for record in topic.read()}) == 1


@pytest.mark.parametrize(
    "steps", [STEPS[1::4], pytest.param(STEPS, marks=pytest.mark.soak)], ids=["some steps", "every step"]
)
def test_a_streaming_write_is_once_wherever_its_commit_is_killed(
    spark: SparkSession, folder: Path, tmp_path: Path, steps: tuple[str, ...]
) -> None:
    """Nobody else holds the log, so Spark's own process appends; it is killed at one step after the other."""
    cloudpickle.register_pickle_by_value(sys.modules[deadly_sink.__name__])
    try:
        spark.dataSource.register(deadly_sink.DeadlySource)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[deadly_sink.__name__])
    notes = tmp_path / "notes"
    notes.mkdir()
    with lastword.open(folder) as log:
        log.create_topic("in", partitions=2)
        log.create_topic("out", partitions=3)
    failures: list[tuple[str, str]] = []
    for number, step in enumerate([*steps, "none"]):
        with lastword.open(folder) as log:
            fill(log.topic("in"), 100 * number, 100 * number + 100)
            rows = stream(spark, log, "in").select("key", "value")
        writer = rows.writeStream.format("deadly").option("path", str(folder)).option("topic", "out")
        writer = writer.option("_step", step).option("_notes", str(notes))
        query = (
            writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            failures.append((step, str(error)))
    assert [step for step, _ in failures] == list(steps), failures[-1]
    assert {each.name for each in notes.iterdir()} == set(steps)
    with lastword.open(folder) as log:
        found = sorted(int(record.value or b"-1") for record in log.topic("out").read())
        assert found == list(range(100 * (len(steps) + 1)))
        assert sorted(path.name for path in (folder / "staging").rglob("*.*")) == ["committed.json"]


@pytest.mark.soak
def test_the_code_of_the_page_runs(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    with lastword.open(folder) as log:
        users = log.create_topic("users", config={"cleanup.policy": "compact"})
        users.append("alice", '{"city": "Oslo"}')
        users.append("bob", '{"city": "Rome"}')
        users.append("alice", '{"city": "Paris"}')
        users.seal()
        clicks = log.create_topic("clicks")
        clicks.append("alice", "/home")
        clicks.append("nobody", "/home")
        log.create_topic("visits")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    names: dict[str, Any] = {"spark": spark, "folder": str(folder), "output": str(tmp_path / "output")}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    cities = {row.name: row.city for row in spark.read.parquet(f"{tmp_path}/output/users").collect()}
    assert cities == {"alice": "Paris", "carol": "Bergen"}
    with lastword.open(folder) as log:
        (visit,) = list(log.topic("visits").read())
        assert (visit.key, visit.value) == (b"alice", b'{"page":"/home","user":"{\\"city\\": \\"Paris\\"}"}')
    assert spark.read.parquet(f"{tmp_path}/output/copy").count() == 5
    # What has been written after the seal is not in the table yet.
    assert dict(names["newest"]) == {b"alice": b'{"city": "Paris"}', b"bob": b'{"city": "Rome"}'}
