"""`verify` on real Spark: it holds after real compactions of every kind, and finds every kind of planted damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.clock import ManualClock
from tests.support.spark import spark_engine  # noqa: F401

import lastword
from lastword.compaction.spark import SparkEngine
from lastword.log import Log
from lastword.maintenance.verify import SealedRounds, VerifyReport, choose_snapshots, find_rounds, verify
from lastword.record import NewRecord
from lastword.segments.model import Segment
from lastword.segments.table import SegmentTable

INLINE = {"compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with lastword.open(tmp_path / "data", config=INLINE, clock=clock) as opened:
        yield opened


def check(log: Log, engine: SparkEngine, before: int | None = None) -> VerifyReport:
    table, topic = log._topics.load("t"), log.topic("t")
    first, last = choose_snapshots(table, before)
    rounds = find_rounds(first, [each.folder for each in topic.all_partitions()], topic.settings)
    return verify(table, first, last, topic.settings, engine, rounds)


def fill(log: Log, clock: ManualClock, **config: object) -> None:
    topic = log.create_topic("t", partitions=2, config={"cleanup.policy": "compact", **config})
    rng = np.random.default_rng(1)
    for _ in range(3):
        records = []
        for number in rng.integers(0, 40, 300).tolist():
            version = int(rng.integers(0, 50))
            records.append(
                NewRecord(
                    key=None if number == 39 else b"k%d" % number,
                    value=None if number % 7 == 3 else b"v%d" % version,
                    headers=(("version", b"%d" % version),),
                    timestamp_ms=clock.now_ms() - version * 10,
                )
            )
        topic.append_many(records)
        topic.seal()
        clock.sleep_ms(1000)


def test_records_without_headers_that_are_joined_with_some_that_have_them_are_the_same(
    log: Log,
    spark_engine: SparkEngine,  # noqa: F811
) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    for number, headers in enumerate([(), (("trace", b"1"),), ()]):
        topic.append_many(
            [NewRecord(key=b"k%d-%d" % (number, each), value=b"v", headers=headers) for each in range(3)]
        )
        topic.append(b"common", b"%d" % number)
        topic.seal()
    log.compact(asked_for=True)
    assert topic.describe().partitions[0].segments == 1
    report = check(log, spark_engine)
    assert (report.problems, report.records_after) == ((), 10)


@pytest.mark.parametrize("at_seal", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"compaction.strategy": "first"},
        {"compaction.strategy": "timestamp"},
        {
            "compaction.strategy": "header",
            "compaction.strategy.header": "version",
            "compaction.strategy.header.format": "text",
        },
        {"cleanup.policy": "compact,delete", "retention.ms": 2500, "local.retention.ms": 2500},
    ],
    ids=["offset", "first", "timestamp", "header", "compact,delete"],
)
def test_it_holds_after_compactions(
    log: Log,
    clock: ManualClock,
    spark_engine: SparkEngine,  # noqa: F811
    config: dict[str, object],
    at_seal: bool,
) -> None:
    fill(log, clock, **config, **{"delete.retention.ms": 1000, "compaction.at.seal": at_seal})
    first = log.topic("t").history()[-1].id
    log.compact(asked_for=True)
    report = check(log, spark_engine)
    assert report.holds, report.problems
    # Either way the left side is everything that was appended.
    assert report.records_before == 900
    assert (report.wal_records, report.unproven) == (900 if at_seal else 0, ())
    assert report.records_before - report.records_after == sum(report.gone.values()) > 0
    assert report.keys >= 39
    clock.sleep_ms(5000)
    log.topic("t").append("new", "1", headers=[("version", b"1")])
    log.topic("t").seal()
    log.compact(asked_for=True)
    whole = check(log, spark_engine, before=first)
    assert whole.holds, whole.problems
    if not config:
        assert whole.gone["expired tombstone"] > 0


def rewritten(
    table: SegmentTable, change: Callable[[pa.Table], pa.Table], index: int = 0
) -> tuple[Segment, Segment]:
    """A segment, and a copy of it with changed rows, which no snapshot names yet."""
    segment = table.plan(table.snapshot())[index]
    rows = pa.Table.from_batches(list(table.read(segment)))
    with table.writer(segment.partition, segment.first_offset, "damage") as writer:
        for records in change(rows).combine_chunks().to_batches():
            writer.write(records)
        copy = writer.close()
    assert copy is not None
    return segment, copy


def drop_first_key(rows: pa.Table) -> pa.Table:
    keyed = np.flatnonzero(
        rows.column("key").is_valid().to_numpy() & rows.column("value").is_valid().to_numpy()
    )
    return pa.concat_tables([rows.slice(0, keyed[0]), rows.slice(keyed[0] + 1)])


def drop_null_key(rows: pa.Table) -> pa.Table:
    row = int(np.flatnonzero(rows.column("key").is_null().to_numpy())[0])
    return pa.concat_tables([rows.slice(0, row), rows.slice(row + 1)])


def change_column(name: str, value: object) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        column = rows.column(name).to_pylist()
        column[0] = value
        field = rows.schema.field(name)
        return rows.set_column(rows.schema.get_field_index(name), field, pa.array(column, field.type))

    return change


def invent(rows: pa.Table) -> pa.Table:
    """A record at an offset that compaction had emptied."""
    offsets = rows.column("offset").to_pylist()
    free = next(offset for offset in range(offsets[-1]) if offset not in offsets)
    added = rows.slice(0, 1).set_column(0, rows.schema.field("offset"), pa.array([free]))
    return pa.concat_tables([rows, added]).sort_by("offset")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (drop_first_key, "it was the winner of its key"),
        (drop_null_key, "without a key"),
        (change_column("value", b"other"), "changed"),
        (change_column("key", b"other"), "changed"),
        (
            change_column("headers", [{"key": "version", "value": b"0"}, {"key": "x", "value": None}]),
            "changed",
        ),
        (change_column("timestamp_type", 1), "changed"),
        (invent, "was not there before"),
    ],
    ids=["winner lost", "null key lost", "value", "key", "headers", "timestamp type", "invented"],
)
def test_it_finds_planted_damage(
    log: Log,
    clock: ManualClock,
    spark_engine: SparkEngine,  # noqa: F811
    change: Callable[[pa.Table], pa.Table],
    what: str,
) -> None:
    fill(log, clock)
    log.compact(asked_for=True)
    table = log._topics.load("t")
    good = table.snapshot()
    old, new = rewritten(table, change)
    table.replace(good, [old], [new], {}, operation="compact")
    report = verify(table, good, table.snapshot(), log.topic("t").settings, spark_engine, SealedRounds())
    assert not report.holds
    assert report.problem_count >= 1
    assert any(what in problem.what for problem in report.problems), report.problems
    assert {problem.partition for problem in report.problems} == {old.partition}


def test_damage_of_sealing_is_found_while_the_wal_is_there(
    log: Log,
    clock: ManualClock,
    spark_engine: SparkEngine,  # noqa: F811
) -> None:
    fill(log, clock, **{"local.retention.ms": 0})
    assert check(log, spark_engine).holds
    table = log._topics.load("t")
    old, new = rewritten(table, drop_first_key, index=-1)
    table.replace(table.snapshot(), [old], [new], {}, operation="seal")
    report = check(log, spark_engine)
    assert (report.problem_count, report.records_before) == (1, 900)
    assert report.problems[0].what == "it is gone, and it was the winner of its key"
    log.run_retention()
    report = check(log, spark_engine)
    # Nothing is left to compare with, and the report says so.
    assert (report.problems, report.wal_records, len(report.unproven)) == ((), 0, 6)


@pytest.mark.parametrize("strategy", ["first", "timestamp"])
def test_what_beat_a_record_when_it_was_sealed_may_be_deleted_since(
    log: Log,
    clock: ManualClock,
    spark_engine: SparkEngine,  # noqa: F811
    strategy: str,
) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "compaction.strategy": strategy})
    for key, age_ms in (("a", 0), ("b", 0), ("a", 5), ("c", 0)):
        topic.append(key, "v", timestamp_ms=clock.now_ms() - age_ms)
    assert topic.seal().beaten == 1
    topic.delete_records({0: 1})
    report = check(log, spark_engine)
    assert (report.problems, report.wal_records, report.unproven) == ((), 4, ())
    log.compact(asked_for=True, force=True)
    assert check(log, spark_engine).problems == ()


def test_another_strategy_since_the_sealing_is_not_taken_for_a_loss(
    log: Log,
    clock: ManualClock,
    spark_engine: SparkEngine,  # noqa: F811
) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    for age_ms in (0, 5):
        topic.append("a", "v", timestamp_ms=clock.now_ms() - age_ms)
    topic.seal()
    log.alter_topic("t", set_config={"compaction.strategy": "timestamp"})
    report = check(log, spark_engine)
    assert (report.problems, report.unproven) == ((), ((0, 0, 1),))


def test_a_record_that_came_back_is_found(
    log: Log,
    clock: ManualClock,
    spark_engine: SparkEngine,  # noqa: F811
) -> None:
    fill(log, clock)
    table = log._topics.load("t")
    before = table.snapshot()
    originals = table.plan(before, 0)
    log.compact(asked_for=True)
    good = table.snapshot()
    table.replace(good, table.plan(good, 0), originals, {}, operation="compact")
    report = verify(table, good, table.snapshot(), log.topic("t").settings, spark_engine, SealedRounds())
    assert not report.holds
    assert {problem.what for problem in report.problems} == {"it was not there before"}
