"""The state view for Spark is the topic's: for every strategy, tail, tombstone, partition and point of the past."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, In
from tests.support.clock import ManualClock
from tests.support.logs import open_log
from tests.support.spark_source import files_of, given, read, rows_of

from lastword.errors import UnavailableError
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.reading.timetravel import AsOf
from lastword.record_json import time_text
from lastword.spark import tasks
from lastword.spark.filters import EVERYTHING
from lastword.spark.options import batch_options
from lastword.spark.plan import plan_batch
from lastword.spark.schema import arrow_schema, read_schema

INLINE = {
    "wal.sync": "none",
    "compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory",
}
STRATEGIES: dict[str, dict[str, object]] = {
    "offset": {},
    "first": {},
    "timestamp": {},
    "header": {
        "compaction.strategy.header": "v",
        "compaction.strategy.header.format": "text",
        "compaction.strategy.header.missing": "lowest",
    },
}


def some_topic(log: Log, clock: ManualClock, strategy: str, partitions: int, seed: int) -> Topic:
    """A topic with a history: sealed, compacted, sealed again, with a tail; keys in partitions where they don't belong."""
    config = {"cleanup.policy": "compact", "compaction.strategy": strategy, **STRATEGIES[strategy]}
    topic = log.create_topic("t", partitions=partitions, config=config)
    drawn = random.Random(seed)
    for part in range(5):
        for _ in range(60):
            number = drawn.randrange(40)
            clock.move(drawn.randrange(5))
            topic.append(
                None if number == 0 else f"k{number}",
                None if drawn.random() < 0.2 else f"{part}",
                headers=[("v", b"%d" % drawn.randrange(5))] if drawn.random() < 0.9 else [],
                timestamp_ms=clock.now_ms() - drawn.randrange(10_000),
                partition=drawn.randrange(partitions) if drawn.random() < 0.3 else None,
            )
        if part < 4:
            topic.seal()
        if part == 1:
            log.compact()
    return topic


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_is_the_state_of_the_topic(
    tmp_path: Path, clock: ManualClock, strategy: str, partitions: int
) -> None:
    with open_log(tmp_path, clock, INLINE) as log:
        topic = some_topic(log, clock, strategy, partitions, seed=partitions)
        expected = rows_of(topic.state())
        assert len(expected) > 10
        assert rows_of(read(log, view="state")) == expected


def test_as_of_a_snapshot(tmp_path: Path, clock: ManualClock) -> None:
    with open_log(tmp_path, clock, INLINE) as log:
        topic = some_topic(log, clock, "offset", 2, 7)
        snapshot_id = topic.history()[-2].id
        assert snapshot_id is not None
        point = AsOf(snapshot_id=snapshot_id)
        expected = rows_of(topic.state(as_of=point))
        assert rows_of(read(log, view="state", as_of=f"snapshot:{snapshot_id}")) == expected
        records = [row for batch in topic.read_as_of(point) for row in rows_of(batch)]
        assert rows_of(read(log, as_of=f"snapshot:{snapshot_id}")) == sorted(records, key=lambda row: row[:2])


def test_as_of_an_offset(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    for number in range(10):
        topic.append(f"k{number % 3}", str(number))
    topic.seal()
    found = rows_of(read(log, view="state", as_of=4))
    assert found == [(0, 2, b"k2", b"2"), (0, 3, b"k0", b"3"), (0, 4, b"k1", b"4")]


def test_as_of_a_time_after_a_compaction(tmp_path: Path, clock: ManualClock) -> None:
    with open_log(tmp_path, clock, INLINE) as log:
        topic = log.create_topic("t", config={"cleanup.policy": "compact"})
        began_ms = clock.now_ms()
        for number, key in enumerate("ACBC"):
            topic.append(key, str(number))
            clock.move(1000)
        topic.seal()
        log.compact(asked_for=True)
        topic.append("D", "4")
        for number in range(5):
            point = AsOf(time_ms=began_ms + 1000 * number)
            as_of = time_text(began_ms + 1000 * number)
            shown = [row for batch in topic.read_as_of(point) for row in rows_of(batch)]
            assert [row[1] for row in shown] == (
                list(range(number + 1)) if number < 3 else [0, 2, 3, 4][:number]
            )
            assert rows_of(read(log, as_of=as_of)) == shown
            assert rows_of(read(log, view="state", as_of=as_of)) == rows_of(topic.state(as_of=point))


@pytest.mark.parametrize("at_seal", [False, True])
def test_a_past_whose_tail_is_compacted_before_it_is_read_is_an_error(
    tmp_path: Path, clock: ManualClock, at_seal: bool
) -> None:
    with open_log(tmp_path, clock, INLINE | {"local.retention.ms": 0}) as log:
        topic = log.create_topic("t", config={"cleanup.policy": "compact", "compaction.at.seal": at_seal})
        for number in range(4):
            topic.append("k", str(number))
            clock.move(1000)
        options = batch_options(given(log, as_of=2))
        (task,) = plan_batch(options, EVERYTHING)
        schema = arrow_schema(read_schema(options.columns))

        def offsets() -> list[int]:
            return [each for rows in tasks.read(task, schema) for each in rows.column("offset").to_pylist()]

        topic.seal()
        assert offsets() == [0, 1, 2], "sealed since it was planned, and still in the WAL"
        log.run_retention()
        if not at_seal:
            assert offsets() == [0, 1, 2], "whole in the table"
            log.compact(asked_for=True)
        with pytest.raises(UnavailableError, match="compacted while its past was read; read it again"):
            offsets()


def test_some_keys_only(tmp_path: Path, clock: ManualClock) -> None:
    with open_log(tmp_path, clock, INLINE) as log:
        topic = some_topic(log, clock, "offset", 3, 1)
        for keys in ([b"k7"], [b"k7", b"k8", b"k9"], [b"nobody"]):
            filters = [EqualTo(("key",), keys[0])] if len(keys) == 1 else [In(("key",), keys)]
            expected = [row for row in rows_of(topic.state()) if row[2] in keys]
            assert rows_of(read(log, filters, view="state")) == expected
        assert files_of(log, [EqualTo(("key",), b"nobody")], view="state") == set()


def test_deleted_keys_are_left_out_also_where_values_are_not_read(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    topic.append("a", "1")
    topic.append("b", "1")
    topic.append("a", None)
    topic.seal()
    topic.append("c", "1")
    topic.append("d", None)
    assert read(log, view="state", columns="key").column("key").to_pylist() == [b"b", b"c"]


def test_what_has_been_overtaken_is_not_opened(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    for part in range(3):
        topic.append("a", str(part))
        topic.seal()
    assert len(files_of(log, view="state")) == 1


def test_a_tail_that_is_sealed_after_the_plan(log: Log) -> None:

    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    topic.append("a", "1")
    topic.append("b", "1")
    topic.append("a", "2")
    parsed = batch_options(given(log, view="state"))
    (task,) = plan_batch(parsed, EVERYTHING)
    topic.seal()
    found = list(tasks.read(task, arrow_schema(read_schema(parsed.columns))))
    assert [row for batch in found for row in rows_of(batch)] == [(0, 1, b"b", b"1"), (0, 2, b"a", b"2")]
