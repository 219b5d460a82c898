"""Compaction on a real Spark: a topic of some size, killed tasks, and a quiet terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.clock import DAY_MS, ManualClock
from tests.support.compacted import sealed_records
from tests.support.logs import open_log
from tests.support.spark import DeadlyEngine, spark_engine  # noqa: F401
from tests.support.waiting import wait_until

import lastword
from lastword.compaction.engine import Job, Result
from lastword.compaction.reports import CompactionReport
from lastword.compaction.spark import SparkEngine
from lastword.log import Log
from lastword.log.topic import Topic

RECORDS = 200_000
PARTITIONS = 3


def changelog(records: int, *, keys: int, seed: int, partition: int | None = None) -> pa.Table:
    """Updates and deletions of keys, drawn at random."""
    random = np.random.default_rng(seed)
    drawn = random.integers(0, keys, records)
    deleted = random.random(records) < 0.05
    columns = {
        "key": pa.array([b"user-%06d" % number for number in drawn.tolist()], pa.binary()),
        "value": pa.array(
            [None if gone else b"%d of %d" % (row, seed) for row, gone in enumerate(deleted.tolist())],
            pa.binary(),
        ),
    }
    return pa.table(columns)


def last_words(topic: Topic, partition: int) -> dict[bytes, tuple[int, bytes | None]]:
    """The last record of each key, by a plain walk over everything that can be read."""
    found: dict[bytes, tuple[int, bytes | None]] = {}
    for records in topic.read_arrow(partition=partition):
        for key, offset, value in zip(
            records.column("key").to_pylist(),
            records.column("offset").to_pylist(),
            records.column("value").to_pylist(),
            strict=True,
        ):
            found[key] = (offset, value)
    return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with open_log(tmp_path / "data", clock, {"wal.sync": "none"}) as opened:
        yield opened


def use(log: Log, engine: object) -> None:
    """Let the log compact with an engine that runs already; the log must not stop it."""
    factory = log.compaction.factory()
    factory._engine = engine  # type: ignore[attr-defined]
    factory.close = lambda: None  # type: ignore[method-assign]


def test_a_topic_of_some_size(log: Log, clock: ManualClock, spark_engine: SparkEngine) -> None:  # noqa: F811
    topic = log.create_topic("t", partitions=PARTITIONS, config={"cleanup.policy": "compact"})
    for part in range(4):
        topic.append_arrow(changelog(RECORDS // 4, keys=20_000, seed=part))
        topic.seal()
    expected = [last_words(topic, partition) for partition in range(PARTITIONS)]
    state = topic.state()
    use(log, spark_engine)
    report = log.compact(["t"])
    _is_whole(report)
    table = log._topics.load("t")
    for partition, words in enumerate(expected):
        left = sealed_records(table, partition)
        assert [(each.offset, each.key, each.value) for each in left] == sorted(
            (offset, key, value) for key, (offset, value) in words.items()
        )
    assert topic.state().equals(state)
    assert log.plan_compaction() == []

    # A day later the tombstones go, on every partition, and a second look finds nothing to do.
    clock.move(DAY_MS)
    assert {plan.reason for plan in log.plan_compaction()} == {"tombstones"}
    _is_whole(log.compact(["t"]))
    for partition, words in enumerate(expected):
        assert [each.offset for each in sealed_records(table, partition)] == sorted(
            offset for offset, value in words.values() if value is not None
        )
    assert topic.state().equals(state)
    assert log.compact(["t"]).partitions == ()


def _is_whole(report: CompactionReport) -> None:
    assert report.engine == "spark"
    assert [each.problem for each in report.partitions] == [None] * PARTITIONS
    assert {each.way for each in report.partitions} == {"one stage"}


@pytest.fixture
def small(log: Log) -> Topic:
    """Two partitions, each with five segments."""
    topic = log.create_topic("t", partitions=2, config={"cleanup.policy": "compact"})
    for part in range(5):
        for partition in range(2):
            topic.append_arrow(changelog(2000, keys=500, seed=part), partition=partition)
        topic.seal()
    return topic


def deadly(log: Log, engine: SparkEngine, folder: Path, times: int) -> DeadlyEngine:
    notes = folder / "kills"
    notes.mkdir()
    made = DeadlyEngine(engine, notes, times)
    use(log, made)
    return made


def test_a_task_that_is_killed_is_done_again(
    log: Log,
    small: Topic,
    spark_engine: SparkEngine,  # noqa: F811
    tmp_path: Path,
) -> None:
    expected = [last_words(small, partition) for partition in range(2)]
    engine = deadly(log, spark_engine, tmp_path, times=1)
    report = log.compact(["t"])
    assert engine.kills == 1
    assert [each.problem for each in report.partitions] == [None, None]
    for partition, words in enumerate(expected):
        found = [
            (each.offset, each.key, each.value) for each in sealed_records(log._topics.load("t"), partition)
        ]
        assert found == sorted((offset, key, value) for key, (offset, value) in words.items())
    assert log.plan_compaction() == []
    engine.close()


def test_one_that_is_killed_each_time_is_reported_and_nothing_is_damaged(
    log: Log,
    small: Topic,
    spark_engine: SparkEngine,  # noqa: F811
    tmp_path: Path,
) -> None:
    expected = last_words(small, 1)
    before = sealed_records(log._topics.load("t"), 0)
    engine = deadly(log, spark_engine, tmp_path, times=1000)
    report = log.compact(["t"])
    assert engine.kills >= 3
    assert [each.problem is None for each in report.partitions] == [False, True]
    table = log._topics.load("t")
    assert sealed_records(table, 0) == before
    assert table.snapshot().positions[0].first_dirty == 0
    assert [each.offset for each in sealed_records(table, 1)] == sorted(
        offset for offset, _ in expected.values()
    )
    assert {plan.partition for plan in log.plan_compaction()} == {0}
    engine.close()
    # And the next run does it.
    use(log, spark_engine)
    assert [each.problem for each in log.compact(["t"]).partitions] == [None]


class Meanwhile:
    """The shared engine; something else happens between its work and the commit of it."""

    name = "spark"

    def __init__(self, engine: SparkEngine, happens: Callable[[], object]) -> None:
        self._engine = engine
        self._happens = happens

    @property
    def parallel(self) -> int:
        return self._engine.parallel

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        found = self._engine.run(jobs)
        self._happens()
        return found

    def close(self) -> None:
        pass


def test_a_topic_created_again_meanwhile_gets_nothing_of_the_old_one(
    log: Log,
    small: Topic,
    clock: ManualClock,
    spark_engine: SparkEngine,  # noqa: F811
) -> None:
    old = small.id.hex

    def create_again() -> None:
        log.delete_topic("t")
        log.create_topic("t", config={"cleanup.policy": "compact"}).append("new", "life")

    with open_log(log.path, clock, {"wal.sync": "none"}, maintain_only=True) as worker:
        use(worker, Meanwhile(spark_engine, create_again))
        report = worker.compact(["t"])
        assert (report.partitions, report.failed_topics) == ((), ())
        worker.run_retention(steps=["collect"])
    again = log.topic("t")
    assert again.id.hex != old
    assert again.seal().records == 1
    assert [(each.key, each.value) for each in again.read()] == [(b"new", b"life")]
    assert [path for path in log.path.rglob("*") if old in str(path)] == []


def test_sealing_and_retention_go_on_meanwhile(tmp_path: Path, spark_engine: SparkEngine) -> None:  # noqa: F811
    often = {
        "worker.initial.delay.ms": 1,
        "worker.interval.ms": 100,
        "seal.interval.ms": 100,
        "retention.interval.ms": 100,
        "tiering.lag.ms": 1,
    }
    with lastword.open(tmp_path / "data", config=often) as log:
        big = log.create_topic("big", config={"cleanup.policy": "compact"})
        small = log.create_topic("small", config={"retention.ms": 1, "local.retention.ms": 0})
        big.append_arrow(changelog(2000, keys=10, seed=1))
        big.seal()
        seen: list[tuple[int, int]] = []

        def others_work() -> None:
            if seen:
                return
            big.append("other", "x")
            small.append("k", "v", timestamp_ms=log.clock.now_ms() - 60_000)
            wait_until(lambda: big.table.snapshot().positions[0].sealed_end == 2001)
            wait_until(lambda: small.table.snapshot().positions[0].log_start == 1)
            seen.append((big.table.snapshot().positions[0].first_dirty, 2001))

        use(log, Meanwhile(spark_engine, others_work))
        with log.worker():
            wait_until(lambda: big.table.snapshot().positions[0].first_dirty >= 2000)
        assert seen == [(0, 2001)]


CHILD = """
import json, sys
import lastword

with lastword.open(sys.argv[1], config={"wal.sync": "none", "spark.master": "local[1]"}) as log:
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "compaction.at.seal": False})
    for number in range(100):
        topic.append(f"k{number % 10}", str(number))
    report = log.compact(seal=True, asked_for=True)
    done = report.partitions[0]
    print(json.dumps([report.engine, done.problem, done.records_before, done.records_after]))
"""


def test_spark_keeps_quiet(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert child.stderr == ""
    assert json.loads(child.stdout) == ["spark", None, 100, 10]
    assert child.returncode == 0


def test_the_callers_own_spark_is_used_and_left_as_it_was(
    log: Log,
    small: Topic,
    spark_engine: SparkEngine,  # noqa: F811
) -> None:
    theirs = spark_engine.session()
    theirs.conf.set("spark.sql.shuffle.partitions", "7")
    borrowed = SparkEngine({"spark.sql.shuffle.partitions": "3"})
    assert borrowed.session().sparkContext is theirs.sparkContext
    assert borrowed.session().conf.get("spark.sql.shuffle.partitions") == "3"
    log.compact([small.name], force=True)
    borrowed.close()
    log.close()
    assert theirs.conf.get("spark.sql.shuffle.partitions") == "7"
    assert theirs.range(5).count() == 5
