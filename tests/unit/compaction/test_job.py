"""A run as a whole: what others do meanwhile, what fails, and what is remembered."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.clock import DAY_MS
from tests.support.compacted import (
    INLINE_CONFIG,
    Meanwhile,
    Twin,
    alter,
    filled,
    keyed,
    meanwhile,
    offsets,
    segments_of,
)
from tests.support.compaction_model import Policy
from tests.support.logs import (
    no_hook,  # noqa: F401 - a fixture that every test uses
    segment_files,
)

import lastword
from lastword.compaction import job
from lastword.compaction.engine import Failure, InlineEngine, Job, Result, TooLarge
from lastword.compaction.job import Compactor
from lastword.compaction.plan import Way
from lastword.compaction.target import PartitionFacts, Target
from lastword.config import BrokerConfig
from lastword.folder import steps
from lastword.folder.leases import live_leases
from lastword.record import NewRecord

SECOND = 1000


# ------------------------------------------------------------------------------------------------- races


def test_what_is_sealed_meanwhile_stays_dirty(twin: Twin) -> None:
    filled(twin)

    def seal_more() -> None:
        twin.topic.append_many(keyed(("a", "newer")), partition=0)
        twin.topic.seal()

    meanwhile(twin, seal_more)
    report = twin.log.compact(["t"])
    assert [each.problem for each in report.partitions] == [None]
    assert offsets(twin) == [2, 5, 6, 7, 8, 9]
    at = twin.positions()
    assert (at.first_dirty, at.sealed_end) == (9, 10)
    twin.log.compact(["t"])
    assert offsets(twin) == [2, 5, 7, 8, 9]


def test_a_segment_that_retention_took_is_planned_without(tmp_path: Path) -> None:
    policy = Policy(min_ratio=0.0, deletes=True, retention_ms=100 * SECOND)
    with Twin(tmp_path / "data", policy) as twin:
        twin.append(*keyed(("a", "1"), ("b", "1")))
        twin.seal()
        twin.move(60 * SECOND)
        twin.append(*keyed(("a", "2"), ("a", "3"), ("c", "1")))
        twin.seal()

        def retain() -> None:
            twin.move(45 * SECOND)
            twin.log.run_retention()

        engine = meanwhile(twin, retain)
        report = twin.log.compact(["t"])
        assert [(each.partition, each.problem) for each in report.partitions] == [(0, None)]
        assert [len(job.unit.segments) for job in engine.jobs] == [2, 1]
        assert offsets(twin) == [3, 4]
        assert (twin.positions().log_start, twin.positions().first_dirty) == (2, 5)


def test_another_compactor_came_first(twin: Twin) -> None:
    filled(twin)

    def compact_too() -> None:
        other = Compactor(InlineEngine(), config=twin.log.config, clock=twin.clock, leases=twin.log._leases)
        target = Target(
            topic=twin.topic.name,
            table=twin.table,
            settings=twin.topic.settings,
            facts={0: PartitionFacts(log_end=9)},
        )
        assert len(other.run([target]).partitions) == 1

    meanwhile(twin, compact_too)
    report = twin.log.compact(["t"])
    # Nothing is left to do, and nothing was done twice.
    assert report.partitions == ()
    assert offsets(twin) == [2, 5, 6, 7, 8]
    assert twin.due() == {}


def test_planned_again_too_often_is_reported(twin: Twin) -> None:
    filled(twin)

    def replace_a_segment() -> None:
        """As an erasure does: the same rows in another file."""
        base = twin.table.snapshot()
        old = twin.table.plan(base, 0)[0]
        with twin.table.writer(0, old.first_offset, "other") as writer:
            for records in twin.table.read(old):
                writer.write(records)
            new = writer.close()
        assert new is not None
        twin.table.replace(base, [old], [new], {}, operation="erase")

    engine = meanwhile(twin, *[replace_a_segment] * 10)
    report = twin.log.compact(["t"])
    assert [each.problem for each in report.partitions] == [
        "its segments changed each time that it was planned"
    ]
    assert len(engine.jobs) == 5
    assert len(offsets(twin)) == 9


@pytest.mark.parametrize(
    ("changed", "runs", "left"),
    [
        ({"compaction.strategy": "first"}, 2, [0, 1, 2, 5, 8]),
        ({"cleanup.policy": "delete"}, 1, list(range(9))),
        ({"cleanup.policy": "compact,delete"}, 2, [2, 5, 6, 7, 8]),
        ({"min.cleanable.dirty.ratio": 0.9}, 1, [2, 5, 6, 7, 8]),
    ],
)
def test_a_run_under_an_older_policy_or_strategy_is_not_committed(
    twin: Twin, changed: dict[str, object], runs: int, left: list[int]
) -> None:
    filled(twin)
    engine = meanwhile(twin)

    def before_commit(step: str) -> None:
        if step == "compact.before_commit":
            steps.install(None)
            twin.log.alter_topic("t", set_config=changed)

    steps.install(before_commit)
    assert not twin.log.compact(["t"]).problems
    assert (len(engine.jobs), offsets(twin)) == (runs, left)


def test_the_workers_process_plans_again_by_the_settings_that_the_writer_has_changed(twin: Twin) -> None:
    filled(twin)
    with lastword.open(twin.log.path, config=INLINE_CONFIG, clock=twin.clock, maintain_only=True) as worker:
        engine = Meanwhile(
            lambda: twin.log.alter_topic("t", set_config={"compaction.strategy": "first"}),
            lambda: twin.log.alter_topic("t", set_config={"compaction.strategy": "timestamp"}),
        )
        worker.compaction.factory()._engine = engine  # type: ignore[attr-defined]
        assert not worker.compact(["t"]).problems
    assert [type(job.unit.rules.strategy).__name__ for job in engine.jobs] == [
        "LastWord",
        "FirstWord",
        "LatestTimestamp",
    ]
    assert offsets(twin) == [2, 5, 6, 7, 8]


def test_others_are_committed_when_one_is_planned_again(tmp_path: Path) -> None:
    with Twin(tmp_path / "data", Policy(min_ratio=0.0), partitions=2) as twin:
        filled(twin, partition=0)
        filled(twin, partition=1)
        engine = meanwhile(twin, lambda: twin.topic.delete_records({0: 4}))
        report = twin.log.compact(["t"])
        assert [(each.partition, each.problem) for each in report.partitions] == [(0, None), (1, None)]
        assert sorted(job.unit.partition for job in engine.jobs) == [0, 0, 1]
        assert offsets(twin, 0) == [5, 6, 7, 8]
        assert offsets(twin, 1) == [2, 5, 6, 7, 8]


@pytest.mark.parametrize("strategy", ["first", "timestamp"])
def test_records_whose_winner_was_deleted_meanwhile_stay(tmp_path: Path, strategy: str) -> None:
    """The winner lies below the new log start, the losers behind it: they are the key's last word then."""
    with Twin(tmp_path / "data", Policy(min_ratio=0.0, strategy=strategy)) as twin:
        now = twin.now_ms
        twin.append(*keyed(("k", "winner"), ("other", "x"), timestamp_ms=now))
        twin.seal()
        twin.compact()
        twin.append(*keyed(("k", "late"), timestamp_ms=now - 5 * SECOND))
        twin.seal()
        meanwhile(twin, lambda: twin.topic.delete_records({0: 1}))
        assert not twin.log.compact(["t"]).problems
        assert [record.value for record in twin.topic.read()] == [b"x", b"late"]
        assert set(twin.state()) == {b"other", b"k"}


def test_deleting_records_below_losers_meanwhile_disturbs_nothing(twin: Twin) -> None:
    filled(twin)
    twin.compact()
    twin.append(*keyed(("a", "new")))
    twin.seal()
    engine = meanwhile(twin, lambda: twin.topic.delete_records({0: 3}))
    twin.log.compact(["t"])
    assert len(engine.jobs) == 1
    assert [record.offset for record in twin.topic.read()] == [5, 7, 8, 9]


def test_a_topic_deleted_meanwhile_is_left_alone(twin: Twin) -> None:
    filled(twin)

    def mark_deleted() -> None:
        twin.table.alter(twin.table.snapshot(), deleted=True)

    meanwhile(twin, mark_deleted)
    before = segments_of(twin.table, 0)
    assert twin.log.compact(["t"]).partitions == ()
    assert segments_of(twin.table, 0) == before


# ----------------------------------------------------------------------------------- leases and failures


def test_a_lapsed_lease_must_not_commit(twin: Twin) -> None:
    filled(twin)
    before = segments_of(twin.table, 0)
    meanwhile(twin, lambda: twin.move(twin.log.config.lease_ttl_ms + 1))
    report = twin.log.compact(["t"])
    assert [("lease" in (each.problem or "")) for each in report.partitions] == [True]
    assert segments_of(twin.table, 0) == before
    assert twin.positions().first_dirty == 0
    # It can be run again.
    assert not twin.log.compact(["t"]).problems
    assert offsets(twin) == [2, 5, 6, 7, 8]


def test_files_in_the_making_belong_to_a_live_lease(twin: Twin) -> None:
    filled(twin)
    held: list[str] = []
    engine = meanwhile(
        twin, lambda: held.extend(lease.id for lease in live_leases(twin.log.path, twin.now_ms))
    )
    twin.log.compact(["t"])
    assert [job.unit.job_id for job in engine.jobs] == held
    assert any(held[0] in path.name for path in segment_files(twin.log))
    assert live_leases(twin.log.path, twin.now_ms) == []


class FailsOne(InlineEngine):
    def run(self, jobs: Sequence[Job]) -> list[Result]:
        return [
            Failure(message="the disk is on fire") if job.unit.partition == 1 else result
            for job, result in zip(jobs, super().run(jobs), strict=True)
        ]


def test_one_that_fails_leaves_the_others_and_no_trace(tmp_path: Path) -> None:
    with Twin(tmp_path / "data", Policy(min_ratio=0.0), partitions=3) as twin:
        for partition in range(3):
            filled(twin, partition=partition)
        twin.log.compaction.factory()._engine = FailsOne()  # type: ignore[attr-defined]
        report = twin.log.compact(["t"])
        assert [each.problem for each in report.partitions] == [None, "the disk is on fire", None]
        assert [len(offsets(twin, partition)) for partition in range(3)] == [5, 9, 5]
        assert [twin.positions(partition).first_dirty for partition in range(3)] == [9, 0, 9]
        assert list(twin.due()) == [1]


def test_a_damaged_file_fails_its_partition_alone(tmp_path: Path) -> None:
    with Twin(tmp_path / "data", Policy(min_ratio=0.0), partitions=2) as twin:
        filled(twin, partition=0)
        filled(twin, partition=1)
        damaged = Path(segments_of(twin.table, 0)[1].path.removeprefix("file://"))
        damaged.write_bytes(damaged.read_bytes()[:-30])
        files = segment_files(twin.log)
        report = twin.log.compact(["t"])
        assert [each.problem is None for each in report.partitions] == [False, True]
        assert "damaged" in str(report.partitions[0].problem)
        assert twin.positions(0).first_dirty == 0
        assert len(offsets(twin, 1)) == 5
        # What was begun for the damaged one is the collector's; what it had is all there.
        assert {Path(each.path.removeprefix("file://")) for each in segments_of(twin.table, 0)} <= files


def test_keys_that_fit_nowhere_are_reported_and_the_others_go_on(tmp_path: Path) -> None:
    config = BrokerConfig.from_mapping(dict(INLINE_CONFIG), where="test")
    with Twin(tmp_path / "data", Policy(min_ratio=0.0), partitions=2) as twin:
        twin.append(*(NewRecord(key=b"%d" % number * 10_000, value=b"") for number in range(40)), partition=0)
        filled(twin, 1, partition=1)

        class Tiny(InlineEngine):
            def run(self, jobs: Sequence[Job]) -> list[Result]:
                return super().run(
                    [
                        replace(
                            job,
                            unit=replace(job.unit, max_set_bytes=100 if job.unit.partition == 0 else None),
                        )
                        for job in jobs
                    ]
                )

        compactor = Compactor(Tiny(), config=config, clock=twin.clock, leases=twin.log._leases)
        report = compactor.run(
            [Target(topic=twin.topic.name, table=twin.table, settings=twin.topic.settings)]
        )
        assert "compaction.task.memory.bytes" in str(report.partitions[0].problem)
        assert report.partitions[1].problem is None


def test_a_stop_request_ends_a_run_between_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else partitions with so little in them are committed together.
    monkeypatch.setattr(job, "TOGETHER_BYTES", 0)
    with Twin(tmp_path / "data", Policy(min_ratio=0.0), partitions=6) as twin:
        for partition in range(6):
            twin.append(*keyed(("a", "1"), ("a", "2")), partition=partition)
        twin.seal()
        asked: list[int] = []

        def stop() -> bool:
            asked.append(1)
            return len(asked) > 1

        report = twin.log.compact(["t"], stop=stop)
        # The inline engine takes one at a time.
        assert len(report.partitions) == 1
        assert len(twin.due()) == 5
        assert len(twin.log.compact(["t"]).partitions) == 5
        assert twin.log.compact(["t"], stop=lambda: True).partitions == ()


def test_partitions_with_little_to_do_share_a_commit(tmp_path: Path) -> None:
    with Twin(tmp_path / "data", Policy(min_ratio=0.0), partitions=6) as twin:
        for partition in range(6):
            twin.append(*keyed(("a", "1"), ("a", "2")), partition=partition)
        twin.seal()
        before = len(twin.topic.history())
        assert len(twin.compact().partitions) == 6
        assert len(twin.topic.history()) == before + 1


def test_nothing_due_commits_nothing_and_starts_no_engine(twin: Twin) -> None:
    class NotStarted(InlineEngine):
        @property
        def parallel(self) -> int:  # type: ignore[override]
            raise AssertionError("an engine was started for nothing")

    twin.log.compaction.factory()._engine = NotStarted()  # type: ignore[attr-defined]
    before = twin.table.snapshot().id
    assert twin.log.compact(["t"]).partitions == ()
    assert twin.table.snapshot().id == before


# ------------------------------------------------------------------------------------ planned once more


def overtaking(twin: Twin) -> Callable[[], None]:
    """Another compactor, who is faster."""

    def act() -> None:
        other = Compactor(InlineEngine(), config=twin.log.config, clock=twin.clock, leases=twin.log._leases)
        target = Target(
            topic=twin.topic.name,
            table=twin.table,
            settings=twin.topic.settings,
            facts={0: PartitionFacts(log_end=9)},
        )
        assert not other.run([target]).problems

    return act


class Before(Meanwhile):
    """Does something once, before units are carried out."""

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        if self.acts:
            self.acts.pop(0)()
        return super().run(jobs)


@pytest.mark.parametrize("way", ["one stage", "two stages", "Spark SQL"])
def test_one_whose_files_were_collected_is_planned_again(tmp_path: Path, way: Way) -> None:
    broker = {"collect.grace.ms": 0, "snapshot.retention.ms": 0}

    class InThatWay(Before):
        def run(self, jobs: Sequence[Job]) -> list[Result]:
            return super().run([replace(job, way=way) for job in jobs])

    with Twin(tmp_path / "data", Policy(min_ratio=0.0), broker=broker) as twin:
        filled(twin)
        files = segment_files(twin.log)

        def take_away() -> None:
            overtaking(twin)()
            twin.topic.append_many(keyed(("a", "newer")), partition=0)
            twin.topic.seal()
            twin.move(SECOND)
            for each in files:
                # The file system has its own clock: on a busy machine it is ahead of the test's by more than a second.
                os.utime(each, (0, 0))
            twin.log.run_retention()
            assert not files & segment_files(twin.log)

        engine = InThatWay(take_away)
        twin.log.compaction.factory()._engine = engine  # type: ignore[attr-defined]
        report = twin.log.compact(["t"], asked_for=True)
        assert [each.problem for each in report.partitions] == [None]
        assert len(engine.jobs) == 2
        assert offsets(twin) == [2, 5, 7, 8, 9]


def test_a_file_that_is_gone_although_the_table_names_it_is_a_failure(twin: Twin) -> None:
    filled(twin)
    Path(segments_of(twin.table, 0)[0].path.removeprefix("file://")).unlink()
    engine = meanwhile(twin)
    report = twin.log.compact(["t"])
    assert "no longer there" in str(report.partitions[0].problem)
    assert len(engine.jobs) == 1


def test_planned_again_it_knows_who_reads_by_then(twin: Twin) -> None:
    filled(twin)

    def read_and_overtake() -> None:
        with twin.topic.reader("late") as reader:
            reader.seek(0, 4)
            reader.commit()
        overtaking(twin)()
        twin.topic.append_many(keyed(("a", "newer")), partition=0)
        twin.topic.seal()

    engine = meanwhile(twin, read_and_overtake)
    assert not twin.log.compact(["t"], asked_for=True).problems
    first, second = engine.jobs
    assert first.unit.rules.held_from > 1 << 60
    assert second.unit.rules.held_from == 4


def test_progress_counts_nothing_twice(tmp_path: Path) -> None:
    with Twin(tmp_path / "data", Policy(min_ratio=0.0), partitions=2) as twin:
        filled(twin, partition=0)
        filled(twin, partition=1)
        seen: list[tuple[int, int, int, int]] = []
        done_before: list[int] = []

        class TooLargeOnce(Meanwhile):
            # So that both partitions go to it together.
            parallel = 2

            def run(self, jobs: Sequence[Job]) -> list[Result]:
                done_before.append(seen[-1][0] if seen else 0)
                results = super().run(jobs)
                return [
                    TooLarge() if job.way == "one stage" and job.unit.partition == 0 else result
                    for job, result in zip(jobs, results, strict=True)
                ]

        def overtake() -> None:
            overtaking(twin)()
            twin.topic.append_many(keyed(("a", "newer")), partition=1)
            twin.topic.seal()

        # The first look, the other way for partition 0, and partition 1 again with what is new by then.
        engine = TooLargeOnce(lambda: None, overtake)
        twin.log.compaction.factory()._engine = engine  # type: ignore[attr-defined]
        twin.log.compact(["t"], asked_for=True, progress=lambda *given: seen.append(given))
        assert [job.unit.partition for job in engine.jobs][:3] == [0, 1, 0]
        # Partition 0 has to be gone through once more.
        assert done_before[1] == 9
        assert all(
            done <= total and done_bytes <= total_bytes for done, total, done_bytes, total_bytes in seen
        )
        assert seen[-1][0] == seen[-1][1] and seen[-1][2] == seen[-1][3]


# ------------------------------------------------------------------------------------------ what is told


def test_records_without_a_key_are_no_tombstones(tmp_path: Path) -> None:
    with Twin(tmp_path / "data", Policy(compacts=False, deletes=True)) as twin:
        twin.append(NewRecord(key=None, value=None), NewRecord(key=None, value=b"x"), *keyed(("a", None)))
        twin.seal()
        twin.append(*keyed(("b", None), ("c", "1")))
        twin.seal()
        alter(twin, compacts=True, deletes=False)
        (report,) = twin.log.compact(["t"], asked_for=True).partitions
        assert (report.records_after, report.tombstones_kept) == (5, 2)


@pytest.mark.parametrize("way", ["one stage", "two stages"])
def test_the_memory_of_the_keys_is_told(twin: Twin, way: Way) -> None:
    filled(twin)

    class InThatWay(InlineEngine):
        def run(self, jobs: Sequence[Job]) -> list[Result]:
            return super().run([replace(job, way=way) for job in jobs])

    twin.log.compaction.factory()._engine = InThatWay()  # type: ignore[attr-defined]
    (report,) = twin.log.compact(["t"]).partitions
    assert report.peak_set_bytes > 0
    assert report.read_bytes > 0


@pytest.mark.parametrize(
    "change",
    [{"cleanup.policy": "delete"}, {"min.compaction.lag.ms": 365 * DAY_MS}],
    ids=["no longer compacted", "held back"],
)
def test_garbage_goes_in_time_whatever_the_settings_are(tmp_path: Path, change: dict[str, object]) -> None:
    with Twin(tmp_path / "data", Policy(min_rewrite_ratio=0.9, retention_ms=None)) as twin:
        # Small dirty segments would be joined.
        twin.append(*keyed(*((f"k{number}", os.urandom(1000).hex()) for number in range(1500))))
        twin.seal()
        twin.append(*keyed(("k0", None)))
        twin.seal()
        twin.compact(asked_for=True)
        assert [each.rows - each.records for each in segments_of(twin.table, 0)] == [1, 0]
        twin.log.alter_topic("t", set_config=change)
        twin.move(8 * DAY_MS)
        assert [each.reason for each in twin.log.plan_compaction()] == ["garbage"]
        assert twin.log.compact().problems == ()
        assert sum(each.rows - each.records for each in segments_of(twin.table, 0)) == 0
        assert twin.log.plan_compaction() == []
        twin.check()
