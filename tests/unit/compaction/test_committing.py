"""The positions after a commit: at the edges, after a change of settings, and as time passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support.compacted import (
    Twin,
    alter,
    extents_of,
    filled,
    keyed,
    meanwhile,
    offsets,
    sealed_records,
    segments_of,
)
from tests.support.compaction_model import Policy

from lastword.record import NewRecord
from lastword.segments.model import Deadline

SECOND = 1000


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
        alter(twin, compacts=True, deletes=False)
        twin.compact()
        assert offsets(twin) == [2, 5, 6, 7, 8]
        alter(twin, compacts=False, deletes=True)
        filled(twin)
        assert twin.due() == {}
        alter(twin, compacts=True, deletes=False)
        twin.compact()
        assert len(offsets(twin)) == 5


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


def test_superseded_records_of_an_earlier_version_are_marked_before_any_tombstone_goes(
    tmp_path: Path,
) -> None:
    policy = Policy(min_ratio=0.0, min_rewrite_ratio=1.0, delete_retention_ms=10 * SECOND)
    with Twin(tmp_path / "data", policy, config={"segment.bytes": 14}) as twin:
        twin.append(*keyed(*((key, "1") for key in "abcdef")))
        twin.seal()
        twin.append(*keyed(("a", None), ("b", "2")))
        twin.seal()
        # As min.rewrite.ratio left it before there were marks: all is clean, and 0 and 1 are still there.
        base = twin.table.snapshot()
        spared = replace(
            base.positions[0], first_dirty=8, spared=True, deadlines=(Deadline(0, 8, twin.now_ms),)
        )
        twin.table.replace(base, (), (), {0: spared}, operation="compact")
        twin.move(60 * SECOND)
        assert twin.due() == {0: "superseded records"}
        assert offsets(twin) == list(range(8))
        twin.log.compact(["t"])
        # The tombstone has expired, but goes only after what it beats.
        assert offsets(twin) == [2, 3, 4, 5, 6, 7]
        assert not twin.positions().spared
        assert [each.records for each in segments_of(twin.table, 0)] == [4, 2]
        assert twin.due() == {0: "tombstones"}
        twin.log.compact(["t"])
        assert offsets(twin) == [2, 3, 4, 5, 7]
        assert twin.due() == {}


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
