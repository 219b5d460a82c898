"""A run as a whole: what others do meanwhile, what fails, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.compacted import INLINE_CONFIG, Twin, extents_of, sealed_records, segments_of
from tests.support.compaction_model import Policy
from tests.support.logs import segment_files

from lastword.compaction.engine import Failure, InlineEngine, Job, Result, TooLarge
from lastword.compaction.job import Compactor
from lastword.compaction.plan import Way
from lastword.compaction.target import PartitionFacts, Target
from lastword.config import BrokerConfig
from lastword.folder.leases import live_leases
from lastword.record import NewRecord

SECOND = 1000


def keyed(*pairs: tuple[str, str | None], timestamp_ms: int | None = None) -> list[NewRecord]:
    return [
        NewRecord(
            key=key.encode(), value=None if value is None else value.encode(), timestamp_ms=timestamp_ms
        )
        for key, value in pairs
    ]


class Meanwhile(InlineEngine):
    """Does something once, after units were carried out and before anything is committed."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        super().__init__()
        self.acts = list(acts)
        self.jobs: list[Job] = []

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        self.jobs += jobs
        results = super().run(jobs)
        if self.acts:
            self.acts.pop(0)()
        return results


def meanwhile(twin: Twin, *acts: Callable[[], object]) -> Meanwhile:
    engine = Meanwhile(*acts)
    twin.log.compaction.factory()._engine = engine  # type: ignore[attr-defined]
    return engine


@pytest.fixture
def twin(tmp_path: Path) -> Iterator[Twin]:
    with Twin(tmp_path / "data", Policy(min_ratio=0.0)) as made:
        yield made


def filled(twin: Twin, segments: int = 3, *, partition: int = 0) -> None:
    for number in range(segments):
        twin.append(
            *keyed(("a", str(number)), ("b", str(number)), (f"own{number}", "x")), partition=partition
        )
        twin.seal()


def offsets(twin: Twin, partition: int = 0) -> list[int]:
    return [record.offset for record in sealed_records(twin.table, partition)]


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


def test_a_stop_request_ends_a_run_between_commits(tmp_path: Path) -> None:
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


def test_nothing_due_commits_nothing_and_starts_no_engine(twin: Twin) -> None:
    class NotStarted(InlineEngine):
        @property
        def parallel(self) -> int:  # type: ignore[override]
            raise AssertionError("an engine was started for nothing")

    twin.log.compaction.factory()._engine = NotStarted()  # type: ignore[attr-defined]
    before = twin.table.snapshot().id
    assert twin.log.compact(["t"]).partitions == ()
    assert twin.table.snapshot().id == before


# ------------------------------------------------------------------------------ positions at the edges


def test_the_log_end_stays_when_everything_goes(twin: Twin) -> None:
    twin.append(*keyed(("a", None), ("b", None)))
    twin.seal()
    twin.compact()
    twin.move(twin.policy.delete_retention_ms)
    assert twin.due() == {0: "tombstones"}
    twin.compact()
    assert offsets(twin) == []
    assert twin.topic.extents()[0].log_end == 2
    twin.append(*keyed(("c", "1")))
    twin.seal()
    twin.compact()
    assert [record.offset for record in twin.topic.read()] == [2]


def test_a_tombstone_as_the_last_record_of_an_idle_log_goes_in_the_end(twin: Twin) -> None:
    twin.append(*keyed(("a", "1"), ("b", "1"), ("a", None)))
    twin.seal()
    twin.compact()
    assert offsets(twin) == [1, 2]
    assert twin.due() == {}
    twin.move(twin.policy.delete_retention_ms - 1)
    assert twin.due() == {}
    twin.move(1)
    assert twin.due() == {0: "tombstones"}
    report = twin.compact()
    assert (report.partitions[0].tombstones_removed, report.partitions[0].tombstones_kept) == (1, 0)
    assert offsets(twin) == [1]
    assert twin.due() == {}
    assert twin.positions().deadlines == ()


def test_huge_gaps_are_normal(twin: Twin) -> None:
    """A first dirty offset, a log start and segments far apart."""
    twin.append(*keyed(("a", "1"), ("b", "1")))
    twin.seal()
    base = twin.table.snapshot()
    far = 1 << 45
    old = segments_of(twin.table, 0)[0]
    (batch,) = list(twin.table.read(old))
    moved = batch.set_column(0, batch.schema.field("offset"), _plus(batch.column("offset"), far))
    with twin.table.writer(0, far, "far") as writer:
        writer.write(moved)
        segment = writer.close()
    assert segment is not None
    sealed = replace(base.positions[0], sealed_end=far + 10)
    twin.table.append(base, [segment], {0: sealed}, operation="seal")
    assert not twin.log.compact(["t"]).problems
    assert offsets(twin) == [far, far + 1]
    assert twin.positions().first_dirty == far + 10


def _plus(column: object, number: int) -> object:
    import pyarrow.compute as pc

    return pc.add(column, number)


def test_a_first_dirty_offset_beyond_what_is_sealed(twin: Twin) -> None:
    """All records were deleted, those in the WAL too, and sealing and compaction go on behind them."""
    filled(twin, 1)
    twin.append(*keyed(("a", "wal")))
    twin.delete_before(0, 4)
    twin.check()
    assert twin.compact(force=True).partitions == ()
    twin.append(*keyed(("a", "5"), ("a", "6")))
    twin.seal()
    twin.compact()
    assert offsets(twin) == [5]


def test_deleting_records_in_the_middle_of_clean_and_dirty_segments(twin: Twin) -> None:
    filled(twin)
    twin.compact()
    filled(twin)
    twin.delete_before(0, 7)
    twin.compact()
    assert offsets(twin) == [11, 14, 15, 16, 17]
    twin.delete_before(0, 12)
    twin.compact(force=True)
    twin.check()


# -------------------------------------------------------------------------------------- settings change


def test_from_delete_to_compact_and_back(tmp_path: Path) -> None:
    policy = Policy(min_ratio=0.0, compacts=False, deletes=True)
    with Twin(tmp_path / "data", policy) as twin:
        filled(twin)
        assert twin.due() == {}
        assert twin.log.compact(["t"], force=True).partitions == ()
        _alter(twin, compacts=True, deletes=False)
        twin.compact()
        assert offsets(twin) == [2, 5, 6, 7, 8]
        _alter(twin, compacts=False, deletes=True)
        filled(twin)
        assert twin.due() == {}
        _alter(twin, compacts=True, deletes=False)
        twin.compact()
        assert len(offsets(twin)) == 5


def _alter(twin: Twin, **changes: object) -> None:
    twin.policy = replace(twin.policy, **changes)  # type: ignore[arg-type]
    names = [
        name for name, given in (("compact", twin.policy.compacts), ("delete", twin.policy.deletes)) if given
    ]
    twin.log.alter_topic("t", set_config={"cleanup.policy": ",".join(names)})
    for model in twin.models:
        model.policy = twin.policy


def test_small_clean_segments_are_joined_after_a_change_to_delete(tmp_path: Path) -> None:
    """They lose nothing and are clean, and must not be due for ever."""
    with Twin(tmp_path / "data", Policy(min_ratio=0.0), config={"segment.bytes": 14}) as twin:
        for number in range(9):
            twin.append(*keyed((f"k{number}", "x"), (f"l{number}", None)))
            twin.seal()
        twin.compact()
        before = sealed_records(twin.table, 0)
        assert len(segments_of(twin.table, 0)) == 9
        twin.log.alter_topic("t", set_config={"cleanup.policy": "delete"}, unset=["segment.bytes"])
        assert twin.due() == {0: "small segments"}
        report = twin.log.compact(["t"])
        assert (report.partitions[0].segments_before, report.partitions[0].segments_after) == (9, 1)
        assert twin.due() == {}
        assert sealed_records(twin.table, 0) == before


def test_joining_drops_nothing_but_what_is_below_the_log_start(tmp_path: Path) -> None:
    policy = Policy(compacts=False, deletes=True)
    with Twin(tmp_path / "data", policy) as twin:
        filled(twin, 9)
        twin.topic.delete_records({0: 1})
        report = twin.log.compact(["t"])
        assert [each.reason for each in report.partitions] == ["small segments"]
        assert len(segments_of(twin.table, 0)) == 1
        assert offsets(twin) == list(range(1, 27))
        assert twin.positions().first_dirty == 1
        assert twin.due() == {}


def test_joining_never_compares_keys_however_little_memory_there_is(tmp_path: Path) -> None:
    broker = {"compaction.task.memory.bytes": 1 << 20}
    with Twin(tmp_path / "data", Policy(compacts=False, deletes=True), broker=broker) as twin:
        for _ in range(8):
            twin.topic.append_many(
                [NewRecord(key=b"same", value=b"%d" % number) for number in range(4000)], partition=0
            )
            twin.topic.seal()
        engine = meanwhile(twin)
        assert not twin.log.compact(["t"]).problems
        assert [job.way for job in engine.jobs] == ["one stage"]
        assert len(offsets(twin)) == 32_000


def test_a_raised_lag_forgets_no_tombstone(tmp_path: Path) -> None:
    with Twin(tmp_path / "data", Policy(min_ratio=0.0, delete_retention_ms=10 * SECOND)) as twin:
        twin.append(*keyed(("a", None)))
        twin.seal()
        twin.compact()
        deadlines = twin.positions().deadlines
        twin.log.alter_topic("t", set_config={"min.compaction.lag.ms": 3600 * SECOND})
        twin.move(60 * SECOND)
        assert twin.due() == {}
        twin.log.compact(["t"], force=True)
        assert twin.positions().deadlines == deadlines
        twin.move(3600 * SECOND)
        assert twin.due() == {0: "tombstones"}
        twin.log.compact(["t"])
        assert offsets(twin) == []


# ---------------------------------------------------------------------------- what a run remembers of time


def test_a_run_remembers_the_log_as_it_was_when_it_looked(tmp_path: Path) -> None:
    """Not as it was when it committed: a late, older version may have come in between."""
    policy = Policy(min_ratio=0.0, strategy="timestamp", delete_retention_ms=10 * SECOND)
    with Twin(tmp_path / "data", policy) as twin:
        start = twin.now_ms
        twin.append(*keyed(("a", None), timestamp_ms=start))
        twin.seal()
        twin.compact()
        twin.append(*keyed(("z", "1")))
        twin.seal()

        def late() -> None:
            twin.move(20 * SECOND)
            twin.topic.append_many(keyed(("a", "late"), timestamp_ms=start - SECOND), partition=0)
            twin.move(SECOND)

        meanwhile(twin, late)
        twin.log.compact(["t"])
        # The tombstone expired while the run was under way, and the late record is not sealed yet.
        twin.log.compact(["t"], force=True)
        twin.topic.seal()
        twin.log.compact(["t"], force=True)
        assert b"a" not in twin.state()
        assert [record.key for record in sealed_records(twin.table, 0)].count(b"a") <= 1


def test_with_first_a_tombstone_waits_for_what_it_beats(tmp_path: Path) -> None:
    policy = Policy(min_ratio=0.0, strategy="first", delete_retention_ms=0, min_lag_ms=60 * SECOND)
    with Twin(tmp_path / "data", policy) as twin:
        twin.append(*keyed(("a", None)))
        twin.seal()
        twin.move(60 * SECOND)
        twin.compact()
        twin.append(*keyed(("a", "beaten")))
        twin.seal()
        assert twin.due() == {}
        twin.compact(force=True)
        assert b"a" not in twin.state()
        twin.move(60 * SECOND)
        twin.compact()
        twin.compact(force=True)
        assert offsets(twin) == []


def test_what_was_spared_goes_with_its_tombstone_and_not_after_it(tmp_path: Path) -> None:
    policy = Policy(min_ratio=0.0, min_rewrite_ratio=0.9, delete_retention_ms=10 * SECOND)
    with Twin(tmp_path / "data", policy, config={"segment.bytes": 14}) as twin:
        twin.append(*keyed(*((key, "1") for key in "abcdef")))
        twin.seal()
        twin.compact()
        twin.append(*keyed(("a", None)))
        twin.seal()
        twin.compact()
        # One of six is little enough to be left where it is.
        assert offsets(twin) == [0, 1, 2, 3, 4, 5, 6]
        assert twin.positions().spared
        assert twin.due() == {}
        twin.move(10 * SECOND)
        assert twin.due() == {0: "tombstones"}
        twin.compact()
        assert offsets(twin) == [1, 2, 3, 4, 5]
        assert not twin.positions().spared


def test_what_a_run_reports(twin: Twin) -> None:
    filled(twin)
    seen: list[tuple[int, int, int, int]] = []
    before = extents_of(twin.table, 0)
    report = twin.log.compact(["t"], progress=lambda *given: seen.append(given))
    (done,) = report.partitions
    after = extents_of(twin.table, 0)
    assert (done.topic, done.partition, done.reason, done.way) == (
        "t",
        0,
        "min.cleanable.dirty.ratio",
        "one stage",
    )
    assert (done.segments_before, done.segments_compacted, done.segments_after) == (3, 3, 1)
    assert (done.records_before, done.records_after) == (9, 5)
    assert done.bytes_before == sum(each.size_bytes for each in before)
    assert done.bytes_after == done.written_bytes == sum(each.size_bytes for each in after)
    assert done.reclaimed_bytes == done.bytes_before - done.bytes_after
    assert done.read_bytes > 0
    last_run = twin.positions().last_run
    assert last_run is not None
    assert (last_run.time_ms, last_run.reclaimed_bytes) == (twin.now_ms, done.reclaimed_bytes)
    assert seen[-1] == (9, 9, done.bytes_before, done.bytes_before)
    assert [each[0] for each in seen] == sorted(each[0] for each in seen)


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
        _alter(twin, compacts=True, deletes=False)
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


def test_from_the_record_clock_to_the_compaction_clock_no_tombstone_goes_early(tmp_path: Path) -> None:
    policy = Policy(min_ratio=0.0, tombstone_clock="record", delete_retention_ms=100 * SECOND)
    with Twin(tmp_path / "data", policy) as twin:
        twin.append(*keyed(("old", None), timestamp_ms=1))
        twin.append(*keyed(("new", None)))
        twin.seal()
        twin.compact()
        twin.log.alter_topic("t", set_config={"tombstone.clock": "compaction"})
        # The oldest had expired long ago by its own timestamp, and no longer by the clock that there is now.
        twin.move(99 * SECOND)
        assert twin.due() == {}
        twin.log.compact(["t"], force=True)
        assert offsets(twin) == [0, 1]
        twin.move(SECOND)
        assert twin.due() == {0: "tombstones"}
        twin.log.compact(["t"])
        assert offsets(twin) == []


def test_from_the_compaction_clock_to_the_record_clock_what_has_expired_goes(tmp_path: Path) -> None:
    with Twin(tmp_path / "data", Policy(min_ratio=0.0, delete_retention_ms=100 * SECOND)) as twin:
        twin.append(*keyed(("old", None), timestamp_ms=1))
        twin.append(*keyed(("new", None)))
        twin.seal()
        twin.compact()
        twin.log.alter_topic("t", set_config={"tombstone.clock": "record"})
        assert twin.due() == {0: "tombstones"}
        twin.log.compact(["t"])
        assert offsets(twin) == [1]
        assert twin.due() == {}
        twin.move(100 * SECOND)
        assert twin.due() == {0: "tombstones"}
