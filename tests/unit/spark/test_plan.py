"""Batch reads without Spark: what tasks give, which files they open, how they are cut."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan
from tests.support.clock import ManualClock
from tests.support.logs import open_log
from tests.support.spark_source import files_of, given, read, rows_of

from lastword.clock import SystemClock
from lastword.errors import InvalidError, OffsetOutOfRangeError
from lastword.folder.leases import live_leases
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.record import NewRecord
from lastword.segments.writer import ROW_GROUP_ROWS
from lastword.spark.filters import EVERYTHING
from lastword.spark.options import batch_options
from lastword.spark.plan import plan_batch
from lastword.spark.schema import arrow_schema, read_schema
from lastword.spark.tasks import SealedTask
from lastword.spark.tasks import read as read_task


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    config = {"compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory"}
    with open_log(tmp_path / "data", clock, config) as opened:
        yield opened


@pytest.fixture
def topic(log: Log, clock: ManualClock) -> Topic:
    """Two partitions, three segments each, an hour between them, and a tail."""
    topic = log.create_topic("t", partitions=2, config={"cleanup.policy": "compact"})
    for part in range(4):
        for partition in range(2):
            records = [
                NewRecord(key=b"k%d" % number, value=b"%d-%d" % (part, number)) for number in range(10)
            ]
            topic.append_many(records, partition=partition)
        if part < 3:
            topic.seal()
        clock.move(3_600_000)
    return topic


def expected(topic: Topic) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [(record.partition, record.offset, record.key, record.value) for record in topic.read()]


def test_records_are_those_of_the_topic(log: Log, topic: Topic) -> None:
    assert rows_of(read(log)) == expected(topic)


def test_every_column_of_every_kind_of_record(log: Log, clock: ManualClock) -> None:
    topic = log.create_topic("t")
    records = [
        NewRecord(key=b"\xff\x00", value=None, headers=(("h", b"1"), ("h", None))),
        NewRecord(key=None, value=b""),
        NewRecord(key=b"", value=b"x", timestamp_ms=-1),
    ]
    topic.append_many(records)
    topic.seal()
    topic.append_many(records)
    found = read(log, columns="key,value,headers,timestamp,timestamp_type,offset,partition")
    assert found.column("key").to_pylist() == [b"\xff\x00", None, b""] * 2
    assert found.column("value").to_pylist() == [None, b"", b"x"] * 2
    assert (
        found.column("headers").to_pylist()
        == [
            [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
            None,
            None,
        ]
        * 2
    )
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    assert found.column("timestamp").to_pylist() == [now, now, None] * 2
    assert found.column("timestamp_type").to_pylist() == [0, 0, -1] * 2


@pytest.mark.parametrize("columns", ["key", "partition", "value,offset"])
def test_some_columns(log: Log, topic: Topic, columns: str) -> None:
    found = read(log, columns=columns)
    assert found.column_names == columns.split(",")
    assert len(found) == 80


def test_a_topic_without_records(log: Log) -> None:
    log.create_topic("t")
    assert len(read(log)) == 0
    assert len(read(log, view="state")) == 0


def test_start_and_end(log: Log, topic: Topic) -> None:
    found = rows_of(read(log, start='{"0": 15}', end='{"0": 35, "1": 0}'))
    assert [row[:2] for row in found] == [(0, offset) for offset in range(15, 35)]
    assert [row[1] for row in rows_of(read(log, start=38))] == [38, 39] * 2
    assert len(read(log, start="latest")) == 0


def test_start_and_end_by_time(log: Log, topic: Topic, clock: ManualClock) -> None:
    first_ms = clock.now_ms() - 4 * 3_600_000
    found = read(log, start_time=first_ms + 1, end_time=first_ms + 2 * 3_600_000)
    assert [row[1] for row in rows_of(found)] == list(range(10, 20)) * 2


def test_a_start_that_is_not_there_any_more(log: Log, topic: Topic) -> None:
    topic.delete_records({0: 20})
    with pytest.raises(
        OffsetOutOfRangeError, match=r"option 'start': offset 5 of partition 0 .* 20 \(log start\)"
    ):
        read(log, start='{"0": 5}')
    with pytest.raises(InvalidError, match="no partition 7; it has 0 to 1"):
        read(log, start='{"7": 5}')
    assert len(read(log)) == 60


@pytest.mark.parametrize(
    ("filters", "files"),
    [
        ([EqualTo(("partition",), 1)], 3),
        ([GreaterThanOrEqual(("offset",), 15), LessThan(("offset",), 19)], 2),
        ([GreaterThanOrEqual(("offset",), 30)], 0),
        ([EqualTo(("partition",), 5)], 0),
    ],
)
def test_segments_that_cannot_match_are_not_opened(
    log: Log, topic: Topic, filters: list[object], files: int
) -> None:
    assert len(files_of(log, filters)) == files  # type: ignore[arg-type]


def test_segments_of_another_time_are_not_opened(log: Log, topic: Topic, clock: ManualClock) -> None:
    moment = datetime.fromtimestamp((clock.now_ms() - 3 * 3_600_000) / 1000, UTC)
    assert len(files_of(log, [LessThan(("timestamp",), moment)])) == 4
    assert len(files_of(log, [GreaterThanOrEqual(("timestamp",), moment)])) == 4


def test_a_key_is_looked_up_before_anything_else_is_read(log: Log, topic: Topic) -> None:
    found = rows_of(read(log, [EqualTo(("key",), b"k3")]))
    assert found == [row for row in expected(topic) if row[2] == b"k3"]


def test_large_segments_are_cut_and_small_ones_are_put_together(log: Log) -> None:
    topic = log.create_topic("t")
    rows = 3 * ROW_GROUP_ROWS
    topic.append_arrow(pa.table({"key": [b"%d" % n for n in range(rows)], "value": [b"v" * 50] * rows}))
    topic.seal()
    small = topic.describe().partitions[0].sealed_bytes // 5
    tasks = plan_batch(batch_options(given(log, split_bytes=small)), EVERYTHING)
    assert len(tasks) == 5
    assert [row[1] for row in rows_of(read(log, split_bytes=small))] == list(range(rows))
    for _ in range(3):
        topic.append("k", "v")
        topic.seal()
    assert len(plan_batch(batch_options(given(log)), EVERYTHING)) == 1


def test_files_are_leased_from_the_plan_on(log: Log, topic: Topic) -> None:
    tasks = [
        each for each in plan_batch(batch_options(given(log)), EVERYTHING) if isinstance(each, SealedTask)
    ]
    planned = {lease.snapshot_id for lease in live_leases(log.path, SystemClock().now_ms())}
    assert planned == {topic.history()[-1].id}
    assert set(tasks[0].pin.snapshot_ids) == planned


def test_what_is_sealed_and_compacted_after_the_plan_is_still_read(log: Log, topic: Topic) -> None:
    before = expected(topic)
    parsed = batch_options(given(log))
    tasks = plan_batch(parsed, EVERYTHING)
    topic.seal()
    log.compact()
    schema = arrow_schema(read_schema(parsed.columns))
    batches = [each for task in tasks for each in read_task(task, schema)]
    found = sorted(rows_of(pa.Table.from_batches(batches, schema)))
    # The tail has been compacted, but its records are the newest of their keys.
    assert found == sorted(before)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="option 'path' is"):
        plan_batch(batch_options({"path": str(tmp_path / "none"), "topic": "t"}), EVERYTHING)


def test_as_of_an_offset_needs_one_partition(log: Log, topic: Topic) -> None:
    with pytest.raises(InvalidError, match="2 partitions, and an offset belongs to one partition"):
        read(log, as_of=3)
