"""Streaming reads without Spark: positions, bounds, restarts, what is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.support.clock import ManualClock
from tests.support.logs import open_log
from tests.support.spark_source import Row, read_range, stream_of

from lastword.connect.appender import Appender
from lastword.connect.destination import OwnDestination
from lastword.connect.protocol import Chunk, SourceRecord
from lastword.errors import InvalidError, OffsetOutOfRangeError
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.record import NewRecord

CONFIG = {
    "wal.sync": "none",
    "compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory",
}


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with open_log(tmp_path / "data", clock, CONFIG) as opened:
        yield opened


@pytest.fixture
def topic(log: Log) -> Topic:
    return log.create_topic("t", partitions=2, config={"cleanup.policy": "compact"})


def fill(topic: Topic, records: int, *, keys: int = 1000, partition: int | None = None) -> None:
    first = sum(extent.log_end for extent in topic.extents().values())
    topic.append_many(
        [NewRecord(key=b"k%d" % (n % keys), value=b"%d" % n) for n in range(first, first + records)],
        partition=partition,
    )


def all_rows(topic: Topic) -> list[Row]:
    return [(record.partition, record.offset, record.key, record.value) for record in topic.read()]


def restarted(position: dict[str, Any]) -> dict[str, Any]:
    """A position as a restart finds it in the checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(position))
    return found


def test_batches_follow_each_other_without_gap_or_double(log: Log, topic: Topic) -> None:
    stream = stream_of(log)
    at = stream.initialOffset()
    found: list[Row] = []
    for step in range(6):
        fill(topic, 30)
        if step == 2:
            topic.seal()
        if step == 4:
            topic.seal()
            # Restarted, on what has been compacted meanwhile: no key is twice, so nothing goes.
            log.compact()
            stream, at = stream_of(log), restarted(at)
        end = stream.latestOffset(at, ReadAllAvailable())
        found += read_range(stream, at, end)
        at = end
    assert sorted(found) == sorted(all_rows(topic))
    assert stream.latestOffset(at, ReadAllAvailable()) == at
    assert read_range(stream, at, at) == []


def test_a_trigger_takes_at_most_what_it_may(log: Log, topic: Topic) -> None:
    fill(topic, 100, partition=0)
    topic.seal()
    fill(topic, 37, partition=0)
    fill(topic, 5, partition=1)
    stream = stream_of(log, max_records_per_trigger=20)
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    at, found, sizes = stream.initialOffset(), [], []
    while (end := stream.latestOffset(at, limit)) != at:
        rows = read_range(stream, at, end)
        sizes.append(len(rows))
        found += rows
        at = end
    assert sorted(found) == sorted(all_rows(topic))
    assert max(sizes) <= 20
    assert len(sizes) <= 10


def test_gaps_that_compaction_left_cost_no_triggers(log: Log, topic: Topic) -> None:
    for _ in range(4):
        fill(topic, 200, keys=10, partition=0)
        topic.seal()
    log.compact()
    fill(topic, 10, partition=0)
    stream = stream_of(log, max_records_per_trigger=20)
    at = stream.initialOffset()
    end = stream.latestOffset(at, ReadMaxRows(20))
    assert len(read_range(stream, at, end)) == 20
    assert end["offsets"]["0"] == 810


def test_a_batch_that_is_repeated_after_compaction_lacks_only_what_is_superseded_ahead(
    log: Log, topic: Topic
) -> None:
    fill(topic, 50, keys=10, partition=0)
    stream = stream_of(log)
    first = stream.initialOffset()
    middle = stream.latestOffset(first, ReadAllAvailable())
    fill(topic, 10, keys=10, partition=0)
    topic.seal()
    log.compact()
    assert read_range(stream, restarted(first), restarted(middle)) == []
    end = stream.latestOffset(middle, ReadAllAvailable())
    assert len(read_range(stream, middle, end)) == 10


def test_partitions_that_are_added_meanwhile(log: Log, topic: Topic) -> None:
    fill(topic, 10)
    stream = stream_of(log)
    at = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    log.alter_topic("t", partitions=3)
    fill(topic, 7, partition=2)
    end = stream.latestOffset(at, ReadAllAvailable())
    assert [row[0] for row in read_range(stream, at, end)] == [2] * 7


def test_available_now_ends_where_the_log_ended_when_it_began(log: Log, topic: Topic) -> None:
    fill(topic, 10)
    stream = stream_of(log)
    stream.prepareForTriggerAvailableNow()
    fill(topic, 10)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert sum(end["offsets"].values()) == 10
    assert sum(stream.reportLatestOffset()["offsets"].values()) == 20


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", {"0": 0, "1": 0}), ("latest", {"0": 30, "1": 0}), ('{"0": 4}', {"0": 4, "1": 0})],
)
def test_where_a_new_query_begins(log: Log, topic: Topic, start: str, first: dict[str, int]) -> None:
    fill(topic, 30, partition=0)
    assert stream_of(log, start=start).initialOffset()["offsets"] == first


def test_a_new_query_may_begin_at_a_time(log: Log, topic: Topic, clock: ManualClock) -> None:
    fill(topic, 5, partition=0)
    clock.move(10_000)
    fill(topic, 5, partition=0)
    stream = stream_of(log, start_time=clock.now_ms())
    assert stream.initialOffset()["offsets"] == {"0": 5, "1": 0}


def test_what_retention_has_taken_is_an_error_or_is_skipped(log: Log, topic: Topic) -> None:
    fill(topic, 30, partition=0)
    topic.seal()
    stream = stream_of(log)
    at = stream.initialOffset()
    topic.delete_records({0: 12})
    end = stream.latestOffset(at, ReadAllAvailable())
    with pytest.raises(
        OffsetOutOfRangeError, match=r"lost to this query: it has read up to offset 0, .* starts at 12"
    ):
        stream.partitions(at, end)
    skipping = stream_of(log, on_data_loss="skip")
    assert [row[1] for row in read_range(skipping, at, end)] == list(range(12, 30))


def test_a_topic_that_was_created_again_is_another_one(log: Log, topic: Topic) -> None:
    fill(topic, 5, partition=0)
    stream = stream_of(log)
    at = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    log.delete_topic("t")
    fill(log.create_topic("t"), 3, partition=0)
    with pytest.raises(InvalidError, match="deleted and recreated"):
        stream.latestOffset(at, ReadAllAvailable())
    skipping = stream_of(log, on_data_loss="skip")
    end = skipping.latestOffset(at, ReadAllAvailable())
    assert len(read_range(skipping, at, end)) == 3


def test_a_segment_with_many_offsets_and_few_records_costs_few_triggers(log: Log, topic: Topic) -> None:
    """Each of a hundred keys was changed ten times; compaction has left one segment with every hundredth offset or so."""
    for round_ in range(100):
        topic.append_many(
            [NewRecord(key=b"once-%d" % round_, value=b"v"), *[NewRecord(key=b"often", value=b"v")] * 99],
            partition=0,
        )
    topic.seal()
    log.compact()
    expected = [row[1] for row in all_rows(topic)]
    assert len(expected) == 101 and expected[-1] == 9999
    stream = stream_of(log, max_records_per_trigger=20)
    at, sizes = stream.initialOffset(), []
    found: list[int] = []
    while (end := stream.latestOffset(at, ReadMaxRows(20))) != at:
        rows = read_range(stream, at, end)
        sizes.append(len(rows))
        found += sorted(row[1] for row in rows)
        at = end
    assert found == expected
    assert sizes == [20, 20, 20, 20, 20, 1]


def test_a_gap_that_is_not_sealed_costs_no_triggers(tmp_path: Path, log: Log) -> None:
    """A mirror that keeps offsets begins with a gap as long as what its source has removed."""
    log.create_topic("t", partitions=1)
    appender = Appender(OwnDestination(log), tmp_path, source="mirror", connector="kafka")
    records = [SourceRecord("t", b"k", b"%d" % n, 1, offset=5_000_000_000 + n) for n in range(30)]
    appender.append(Chunk(records, {}))
    stream = stream_of(log, max_records_per_trigger=20)
    at, sizes = stream.initialOffset(), []
    while (end := stream.latestOffset(at, ReadMaxRows(20))) != at:
        sizes.append(len(read_range(stream, at, end)))
        at = end
    assert sizes == [20, 10]
