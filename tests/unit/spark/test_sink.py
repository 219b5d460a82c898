"""Writes without Spark: what tasks stage, what a commit appends, and that it is once."""

from __future__ import annotations

import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)
from tests.support.clock import ManualClock
from tests.support.forks import killed_at
from tests.support.logs import open_log
from tests.support.spark_source import STEPS

from lastword.batch.partitioner import partition_of
from lastword.errors import InvalidError, RecordTooLargeError, WriteFailedError
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.spark import sink
from lastword.spark.options import Where, write_options
from lastword.spark.schema import check_writable
from lastword.spark.sink import BatchWriter, StagedRows
from lastword.wal.staged import Sink, ask_writer

KEY_AND_VALUE = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


@pytest.fixture
def topic(log: Log) -> Topic:
    return log.create_topic("t", partitions=3)


def where(log: Log) -> Where:
    return Where(path=str(log.path), topic="t", config=None)


def rows(numbers: range) -> pa.RecordBatch:
    return pa.record_batch(
        {"key": [f"k{number}" for number in numbers], "value": [str(number).encode() for number in numbers]}
    )


def staged(at: Where, name: str, *parts: range) -> list[StagedRows]:
    return [sink.stage(at, name, iter([rows(part)])) for part in parts]


def values(topic: Topic) -> list[int]:
    return sorted(int(record.value or b"-1") for record in topic.read())


def test_rows_of_several_tasks_are_one_unit(log: Log, topic: Topic) -> None:
    at = where(log)
    sink.commit(at, "q", 0, staged(at, "q", range(50), range(50, 80)))
    assert values(topic) == list(range(80))
    for record in topic.read():
        assert record.key is not None
        assert record.partition == partition_of(record.key, 3)


def test_a_number_is_appended_once(log: Log, topic: Topic) -> None:
    at = where(log)
    for _ in range(2):
        sink.commit(at, "q", 0, staged(at, "q", range(10)))
    sink.commit(at, "other", 0, staged(at, "other", range(10, 20)))
    sink.commit(at, "q", 1, staged(at, "q", range(20, 30)))
    assert values(topic) == list(range(30))


def test_columns_that_say_more(log: Log, topic: Topic, clock: ManualClock) -> None:
    at = where(log)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    written = pa.record_batch(
        {
            "key": [b"k", None],
            "value": [None, b"v"],
            "timestamp": pa.array([clock.now_ms() * 1000 - 5_000_000, None], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None], headers),
            "partition": pa.array([2, 0], pa.int32()),
        }
    )
    sink.commit(at, "q", 0, [sink.stage(at, "q", iter([written]))])
    second, first = list(topic.read())
    assert (first.partition, first.key, first.value) == (2, b"k", None)
    assert first.headers == (("h", b"1"), ("h", None))
    assert first.timestamp_ms == clock.now_ms() - 5_000
    assert (second.partition, second.key, second.value, second.headers) == (0, None, b"v", ())


def test_a_task_without_rows(log: Log, topic: Topic) -> None:
    at = where(log)
    sink.commit(at, "q", 0, [sink.stage(at, "q", iter([]))])
    assert values(topic) == []
    assert list(Sink(log.path, topic.id, "q").folder.iterdir()) == []


def test_a_batch_write_leaves_nothing_behind(log: Log, topic: Topic) -> None:
    writer = BatchWriter(write_options({"path": str(log.path), "topic": "t"}), KEY_AND_VALUE, False)
    writer.commit([writer.write(iter([rows(range(5))])), None])
    writer = BatchWriter(write_options({"path": str(log.path), "topic": "t"}), KEY_AND_VALUE, False)
    writer.abort([writer.write(iter([rows(range(5, 9))])), None])
    assert values(topic) == list(range(5))
    assert list((log.path / "staging").rglob("*.batches")) == []


def test_a_batch_write_with_a_name_and_a_number_can_be_repeated(log: Log, topic: Topic) -> None:
    for unit in ("7", "7", "8"):
        options = write_options({"path": str(log.path), "topic": "t", "sink": "nightly", "unit": unit})
        writer = BatchWriter(options, KEY_AND_VALUE, False)
        first = 10 * int(unit)
        writer.commit([writer.write(iter([rows(range(first, first + 5))]))])
    assert values(topic) == [70, 71, 72, 73, 74, 80, 81, 82, 83, 84]


def test_a_writer_that_can_not_append_now_is_asked_again(
    log: Log, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.writer(1).refuse("the disk is away")
    refused = threading.Event()

    def watched(*asked: Any) -> int | None:
        try:
            return ask_writer(*asked)
        except WriteFailedError:
            refused.set()
            raise

    monkeypatch.setattr(sink, "ask_writer", watched)
    writer = BatchWriter(write_options({"path": str(log.path), "topic": "t"}), KEY_AND_VALUE, False)
    rest = [writer.write(iter([rows(range(50))]))]
    committing = threading.Thread(target=writer.commit, args=(rest,))
    committing.start()
    assert refused.wait(180)
    topic.reopen_partition(1)
    committing.join(180)
    assert values(topic) == list(range(50))


def test_a_batch_write_that_failed_half_way_is_completed_by_the_name_that_its_error_tells(
    log: Log, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "WAIT_S", 0.0)
    topic.writer(1).refuse("the disk is away")
    options = {"path": str(log.path), "topic": "t"}
    writer = BatchWriter(write_options(options), KEY_AND_VALUE, False)
    messages = [writer.write(iter([rows(range(50))]))]
    with pytest.raises(WriteFailedError, match="the disk is away") as failed:
        writer.commit(list(messages))
    writer.abort(list(messages))
    told = re.search(r"sink=(\S+) and unit=(\d+)", str(failed.value))
    assert told is not None
    assert 0 < len(values(topic)) < 50

    topic.reopen_partition(1)
    again = write_options({**options, "sink": told[1], "unit": told[2]})
    writer = BatchWriter(again, KEY_AND_VALUE, False)
    writer.commit([writer.write(iter([rows(range(50))]))])
    assert values(topic) == list(range(50))


def test_records_that_are_not_allowed(log: Log, topic: Topic) -> None:
    at = where(log)
    written = pa.record_batch({"key": ["k"], "value": [b"v"], "partition": pa.array([9], pa.int32())})
    with pytest.raises(InvalidError, match="no partition 9; it has 0 to 2"):
        sink.stage(at, "q", iter([written]))
    log.alter_topic("t", set_config={"max.message.bytes": 70})
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes allows 70"):
        sink.commit(at, "q", 0, staged(at, "q", range(1)))
    assert values(topic) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([StructField("key", StringType())], "no column 'value'"),
        (
            [*KEY_AND_VALUE.fields, StructField("offset", LongType())],
            "a column 'offset' can't be written; allowed: key",
        ),
        (
            [StructField("key", LongType()), StructField("value", StringType())],
            "'key' is bigint; allowed: binary or",
        ),
        (
            [*KEY_AND_VALUE.fields, StructField("headers", ArrayType(StringType()))],
            "'headers' is array<string>",
        ),
        (
            [*KEY_AND_VALUE.fields, StructField("partition", LongType())],
            "'partition' is bigint; allowed: int",
        ),
    ],
)
def test_columns_that_cannot_be_written(fields: list[StructField], said: str) -> None:
    with pytest.raises(InvalidError) as raised:
        check_writable(StructType(fields))
    assert said in str(raised.value)
    check_writable(StructType([*KEY_AND_VALUE.fields, StructField("partition", IntegerType())]))


def test_a_topic_cannot_be_overwritten(log: Log, topic: Topic) -> None:
    with pytest.raises(InvalidError, match="can't be overwritten"):
        BatchWriter(write_options({"path": str(log.path), "topic": "t"}), KEY_AND_VALUE, True)


def test_a_commit_that_is_killed_at_any_step_is_finished_by_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with open_log(folder, ManualClock(), {}) as log:
        log.create_topic("t", partitions=3)
        at = where(log)
    expected: Counter[int] = Counter()
    for number, step in enumerate(STEPS):
        numbers = range(100 * number, 100 * number + 60)

        def write(number: int = number, numbers: range = numbers) -> None:
            # The order in which tasks end is another one each time.
            parts = [numbers[:20], numbers[20:], range(0)]
            tasks = staged(at, "q", *(parts if number % 2 else parts[::-1]))
            (folder / "staged").write_text("\n".join(task.file for task in tasks))
            sink.commit(at, "q", number, tasks)

        assert killed_at(step, write), step
        # Spark says that the write has failed, and knows no more than that.
        names = (folder / "staged").read_text().splitlines()
        failed = [StagedRows(sink="q", file=name, pieces=()) for name in names]
        assert not killed_at(None, lambda failed=failed: sink.discard(at, "q", failed))
        assert not killed_at(None, write)
        expected.update(numbers)
    with open_log(folder, ManualClock(), {}) as log:
        assert Counter(values(log.topic("t"))) == expected
