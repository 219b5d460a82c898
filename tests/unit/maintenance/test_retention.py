"""Retention of sealed segments, deletion of records, expiry and collection."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.clock import DAY_MS, HOUR_MS, ManualClock
from tests.support.logs import abandon, fill, offsets, open_log, segment_files, settings, values

from lastword.errors import OffsetOutOfRangeError, StorageError, UnknownTopicError
from lastword.folder import steps
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.maintenance import retention
from lastword.reading.timetravel import AsOf
from lastword.segments.model import Positions, Segment
from lastword.segments.rows import to_records

NOW_MS = 10 * DAY_MS
HOUR, DAY = HOUR_MS, DAY_MS


def segment(first: int, last: int, *, age_ms: int = 0, size_bytes: int = 100, partition: int = 0) -> Segment:
    return Segment(
        path=f"{partition}/{first}",
        partition=partition,
        first_offset=first,
        last_offset=last,
        records=last - first + 1,
        size_bytes=size_bytes,
        min_timestamp_ms=NOW_MS - age_ms,
        max_timestamp_ms=NOW_MS - age_ms,
        null_keys=0,
        null_values=0,
    )


def propose(
    segments: list[Segment], positions: Positions, unsealed_bytes: int = 0, **own: object
) -> tuple[list[tuple[int, str]], list[tuple[int, int]]]:
    unlimited = {
        "retention.ms": -1,
        "retention.bytes": -1,
        "local.retention.ms": 0,
        "local.retention.bytes": 0,
    }
    plan = retention.propose(
        "t", [positions], segments, {0: unsealed_bytes}, settings(**unlimited | own), NOW_MS
    )
    return [(each.segment.first_offset, each.rule) for each in plan.removals], list(plan.log_starts)


THREE = [segment(0, 9, age_ms=3 * HOUR), segment(10, 19, age_ms=2 * HOUR), segment(25, 29, age_ms=HOUR)]
AT = Positions(sealed_end=30)


class TestPropose:
    @pytest.mark.parametrize(
        ("own", "positions", "removed", "log_start"),
        [
            ({}, AT, [], None),
            ({"retention.ms": 3 * HOUR}, AT, [], None),
            ({"retention.ms": 3 * HOUR - 1}, AT, [(0, "retention.ms")], 10),
            # The offsets up to the next segment are a gap: the log starts at its first record.
            ({"retention.ms": HOUR}, AT, [(0, "retention.ms"), (10, "retention.ms")], 25),
            ({"retention.ms": 0}, AT, [(each, "retention.ms") for each in (0, 10, 25)], 30),
            ({"retention.bytes": 300}, AT, [], None),
            ({"retention.bytes": 299}, AT, [(0, "retention.bytes")], 10),
            ({"retention.bytes": 0}, AT, [(each, "retention.bytes") for each in (0, 10, 25)], 30),
            (
                {"retention.ms": 3 * HOUR - 1, "retention.bytes": 199},
                AT,
                [(0, "retention.ms"), (10, "retention.bytes")],
                25,
            ),
            ({"retention.ms": 0, "cleanup.policy": "compact"}, AT, [], None),
            (
                {"retention.ms": 3 * HOUR - 1, "cleanup.policy": "compact,delete"},
                AT,
                [(0, "retention.ms")],
                10,
            ),
            ({}, Positions(sealed_end=30, log_start=10), [(0, "below the log start")], None),
            ({}, Positions(sealed_end=30, log_start=9), [], None),
            (
                {"cleanup.policy": "compact"},
                Positions(sealed_end=30, log_start=10),
                [(0, "below the log start")],
                None,
            ),
            (
                {"retention.ms": 2 * HOUR - 1},
                Positions(sealed_end=30, log_start=10),
                [(0, "below the log start"), (10, "retention.ms")],
                25,
            ),
            # The log start is never taken back.
            (
                {"retention.ms": 2 * HOUR - 1},
                Positions(sealed_end=30, log_start=26),
                [(0, "below the log start"), (10, "below the log start")],
                None,
            ),
        ],
    )
    def test_whole_segments_from_the_oldest_on(
        self,
        own: dict[str, object],
        positions: Positions,
        removed: list[tuple[int, str]],
        log_start: int | None,
    ) -> None:
        expected = [] if log_start is None else [(0, log_start)]
        assert propose(THREE, positions, **own) == (removed, expected)

    def test_a_young_segment_protects_those_after_it(self) -> None:
        segments = [segment(0, 9, age_ms=HOUR), segment(10, 19, age_ms=DAY)]
        assert propose(segments, AT, **{"retention.ms": 2 * HOUR}) == ([], [])

    def test_what_only_the_wal_has_counts_towards_the_size(self) -> None:
        own = {"retention.bytes": 300}
        assert propose(THREE, AT, unsealed_bytes=0, **own)[0] == []
        assert propose(THREE, AT, unsealed_bytes=1, **own)[0] == [(0, "retention.bytes")]

    def test_a_log_start_beyond_the_sealed_end_stays(self) -> None:
        at = Positions(sealed_end=30, log_start=40)
        assert propose(THREE, at, **{"retention.ms": 0}) == (
            [(each, "below the log start") for each in (0, 10, 25)],
            [],
        )

    def test_partitions_are_apart(self) -> None:
        segments = [
            segment(0, 9, age_ms=DAY),
            segment(0, 9, partition=1),
            segment(0, 9, age_ms=DAY, partition=2),
        ]
        plan = retention.propose(
            "t",
            [Positions(sealed_end=10)] * 3,
            segments,
            {},
            settings(**{"retention.ms": HOUR, "local.retention.ms": 0}),
            NOW_MS,
        )

        assert [each.segment.partition for each in plan.removals] == [0, 2]
        assert plan.log_starts == ((0, 10), (2, 10))
        assert (plan.records, plan.size_bytes) == (20, 200)


def segments_of(log: Log, *ends: int, clock: ManualClock, **own: object) -> Topic:
    """A topic with sealed segments that end at these offsets, an hour apart."""
    topic = log.create_topic("t", config={key.replace("_", "."): value for key, value in own.items()})
    first = 0
    for end in ends:
        fill(topic, first, end)
        topic.seal()
        clock.move(HOUR)
        first = end
    return topic


class TestOnATable:
    def test_the_log_start_moves_with_the_segments(self, log: Log, clock: ManualClock) -> None:
        topic = segments_of(log, 3, 6, 9, clock=clock, retention_ms=2 * HOUR)
        fill(topic, 9, 11)

        report = log.run_retention()

        assert [each.segment.first_offset for each in report.removed[0].removals] == [0]
        assert topic.extents()[0].log_start == 3
        assert values(topic.read()) == list(range(3, 11))
        with pytest.raises(OffsetOutOfRangeError, match=r"Offset 2 .* 3 \(log start\) to 11 \(log end\)"):
            topic.read(2)
        with pytest.raises(OffsetOutOfRangeError):
            topic.read(12)
        assert values(topic.read(11)) == []
        assert log.run_retention().removed[0].removals == ()

    def test_everything_may_go_and_the_log_goes_on(self, log: Log, clock: ManualClock) -> None:
        topic = segments_of(log, 3, 6, clock=clock, retention_ms=HOUR)
        clock.move(DAY)
        log.run_retention()

        assert topic.extents()[0].log_start == topic.extents()[0].log_end == 6
        fill(topic, 6, 7)
        assert offsets(topic.read()) == [6]
        at = topic._table.snapshot().positions[0]
        assert at.first_dirty == 6

    def test_by_bytes(self, log: Log, clock: ManualClock) -> None:
        topic = segments_of(log, 3, 6, 9, clock=clock, retention_ms=-1)
        sizes = [each.size_bytes for each in topic._table.plan(topic._table.snapshot())]
        log.alter_topic("t", set_config={"retention.bytes": sum(sizes) - 1})

        log.run_retention()

        assert values(topic.read()) == list(range(3, 9))

    def test_a_dry_run_changes_nothing(self, log: Log, clock: ManualClock) -> None:
        topic = segments_of(log, 3, 6, clock=clock, retention_ms=HOUR)
        clock.move(DAY)
        before = topic._table.snapshot().id

        report = log.run_retention(dry_run=True)

        assert len(report.removed[0].removals) == 2
        assert topic._table.snapshot().id == before
        assert values(topic.read()) == list(range(6))

    def test_compaction_alone_never_moves_the_log_start(self, log: Log, clock: ManualClock) -> None:
        topic = segments_of(log, 3, clock=clock, cleanup_policy="compact", retention_ms=1)
        clock.move(DAY)
        log.run_retention()
        assert topic.extents()[0].log_start == 0

    def test_a_commit_that_came_between_is_planned_on(self, log: Log, clock: ManualClock) -> None:
        topic = segments_of(log, 3, 6, clock=clock, retention_ms=HOUR)
        clock.move(DAY)
        once = [True]

        def hook(name: str) -> None:
            if name == "commit.before" and once:
                once.clear()
                topic.delete_records({0: 4})

        steps.install(hook)
        try:
            log.run_retention()
        finally:
            steps.install(None)
        assert topic.extents()[0].log_start == 6

    def test_what_fails_for_one_topic_is_reported_and_the_others_go_on(
        self, log: Log, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a", "b"):
            topic = log.create_topic(name, config={"retention.ms": 1000})
            fill(topic, 0, 2)
            topic.seal()
        clock.move(DAY)
        real = retention.apply

        def broken(table: object, *rest: object, **more: object) -> object:
            if "/a/" in table.location:  # type: ignore[attr-defined]
                raise StorageError("down")
            return real(table, *rest, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(retention, "apply", broken)
        report = log.run_retention()

        assert report.problems == (("a", "down"),)
        assert log.topic("b").extents()[0].log_start == 2

    def test_only_some_topics(self, log: Log, clock: ManualClock) -> None:
        for name in ("a", "b", "c"):
            fill(log.create_topic(name), 0, 1)
        report = log.run_retention(topics=iter(["a", "c"]))
        assert [each.topic for each in report.removed] == ["a", "c"]
        with pytest.raises(UnknownTopicError, match="nope"):
            log.run_retention(topics=["a", "nope"])


class TestDeleteRecords:
    def test_no_read_shows_them(self, log: Log, clock: ManualClock) -> None:
        topic = segments_of(log, 3, 6, clock=clock)
        fill(topic, 6, 9)

        assert topic.delete_records({0: 4}) == {0: 4}

        assert values(topic.read()) == list(range(4, 9))
        assert topic.extents()[0].log_start == 4
        assert topic.describe().partitions[0].segments == 1, "the first one is out of the table"
        assert [int(each) for each in topic.state().column("value").to_pylist()] == list(range(4, 9))
        with pytest.raises(OffsetOutOfRangeError):
            topic.read(3)

    def test_beyond_the_sealed_end(self, log: Log, clock: ManualClock) -> None:
        topic = segments_of(log, 3, clock=clock)
        fill(topic, 3, 8)

        topic.delete_records({0: 6})

        assert values(topic.read()) == [6, 7]
        at = topic._table.snapshot().positions[0]
        assert (at.log_start, at.sealed_end, at.first_dirty) == (6, 3, 3)
        topic.seal()
        assert values(topic.read()) == [6, 7]

    def test_all_of_them_and_the_offsets_go_on(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "d", clock)
        topic = log.create_topic("t")
        fill(topic, 0, 5)
        assert topic.delete_records({0: -1}) == {0: 5}
        assert values(topic.read()) == []
        abandon(log)

        with open_log(tmp_path / "d", clock) as log:
            fill(log.topic("t"), 5, 6)
            assert offsets(log.topic("t").read()) == [5]

    def test_several_partitions_at_once_or_none(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=2)
        for partition in range(2):
            fill(topic, 0, 3, partition=partition)
        with pytest.raises(OffsetOutOfRangeError, match="its log end is 3"):
            topic.delete_records({0: 2, 1: 4})
        assert [each.log_start for each in topic.extents().values()] == [0, 0]

        assert topic.delete_records({0: 2, 1: 3}) == {0: 2, 1: 3}
        assert [each.log_start for each in topic.extents().values()] == [2, 3]

    def test_the_log_start_never_goes_back(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 5)
        topic.delete_records({0: 3})
        before = topic._table.snapshot().id

        assert topic.delete_records({0: 1}) == {0: 3}
        assert topic._table.snapshot().id == before


class TestExpiryAndCollection:
    def removed(self, log: Log, clock: ManualClock) -> Topic:
        """A topic whose first segment was just taken out of the table; all its files are old."""
        topic = segments_of(log, 3, 6, clock=clock, retention_ms=-1)
        clock.move(DAY)
        topic.delete_records({0: 3})
        return topic

    def outlast(self, log: Log, clock: ManualClock) -> None:
        """Let snapshots expire, and then the grace of their files pass. What holds a lease goes on holding it."""
        for _ in range(3):
            clock.move(HOUR)
            for held in log._leases._held:
                held.renew()
            log.run_retention()

    def test_files_go_when_no_snapshot_names_them_any_more(self, log: Log, clock: ManualClock) -> None:
        topic = self.removed(log, clock)
        assert len(segment_files(log)) == 2

        log.run_retention()
        assert len(segment_files(log)) == 2
        clock.move(HOUR)
        report = log.run_retention()
        assert report.expired_snapshots["t"] > 0
        assert len(segment_files(log)) == 2, "a query of another engine may be reading it"
        clock.move(HOUR)
        report = log.run_retention()

        assert len(segment_files(log)) == 1
        assert any(path.endswith(".parquet") for path in report.collected["t"].files)
        assert values(topic.read()) == [3, 4, 5]

    def test_young_snapshots_and_their_files_stay(self, log: Log, clock: ManualClock) -> None:
        topic = segments_of(log, 3, clock=clock)
        topic.delete_records({0: 3})
        clock.move(HOUR // 2)
        # The snapshot with the segment is an hour and a half old, the one without it half an hour.
        assert len(topic._table.history()) > 1
        clock.move(-HOUR)
        assert log.run_retention().expired_snapshots["t"] == 0
        assert len(segment_files(log)) == 1

    def test_after_a_quiet_time_a_compaction_takes_no_file_from_a_query_that_has_just_begun(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        factory = {"compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory"}
        with open_log(tmp_path / "quiet", clock, factory) as log:
            topic = log.create_topic("t", config={"cleanup.policy": "compact", "compaction.at.seal": False})
            for number in range(4):
                topic.append("k", str(number))
            topic.seal()
            files = segment_files(log)
            clock.move(2 * HOUR)
            seen = topic.history()[-1].id
            log.compact(asked_for=True)
            clock.move(60_000)
            log.run_retention()
            assert files <= segment_files(log)
            assert [each.offset for each in topic.read()] == [3]
            assert offsets(
                record
                for records in topic.read_as_of(AsOf(snapshot_id=seen))
                for record in to_records(records)
            ) == [0, 1, 2, 3]
            clock.move(HOUR)
            assert log.run_retention().expired_snapshots["t"] > 0
            clock.move(HOUR - 60_000)
            log.run_retention()
            assert files <= segment_files(log)
            clock.move(60_000)
            log.run_retention()
            assert not files & segment_files(log)

    def test_a_replay_keeps_its_snapshot_and_files(self, log: Log, clock: ManualClock) -> None:
        topic = segments_of(log, 3, 6, clock=clock, retention_ms=-1)
        replay = topic.read_arrow()
        seen = next(replay).column("offset").to_pylist()
        clock.move(DAY)
        topic.delete_records({0: 6})
        self.outlast(log, clock)

        assert len(segment_files(log)) == 2
        for records in replay:
            seen += records.column("offset").to_pylist()
        assert seen == [0, 1, 2, 3, 4, 5]
        self.outlast(log, clock)
        assert segment_files(log) == set()

    def test_a_replay_whose_lease_lapsed_goes_on_from_the_table(self, log: Log, clock: ManualClock) -> None:
        topic = segments_of(log, 3, 6, clock=clock, retention_ms=-1)
        fill(topic, 6, 8)
        replay = topic.read_arrow()
        seen = next(replay).column("offset").to_pylist()
        clock.move(DAY)
        topic.delete_records({0: 6})
        for _ in range(3):
            clock.move(HOUR)
            log.run_retention()
        assert segment_files(log) == set()

        for records in replay:
            seen += records.column("offset").to_pylist()
        assert seen == [0, 1, 2, 6, 7]

    def test_files_of_a_running_job_stay_and_those_of_a_dead_one_go(
        self, log: Log, clock: ManualClock
    ) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)

        class Killed(BaseException):
            pass

        def hook(name: str) -> None:
            if name == "commit.before":
                raise Killed

        with log._leases.hold(topic_id=topic.id.hex, job="seal") as lease:
            steps.install(hook)
            try:
                with pytest.raises(Killed):
                    topic.seal()
            finally:
                steps.install(None)
            (orphan,) = segment_files(log)
            renamed = orphan.with_name(orphan.name.replace(orphan.name.split("-")[1], lease.id))
            orphan.rename(renamed)
            # As its thread does while it lives.
            for _ in range(3 * HOUR // 60_000 + 1):
                clock.move(59_000)
                lease.renew()
            log.run_retention()
            assert segment_files(log) == {renamed}
        self.outlast(log, clock)
        assert segment_files(log) == set()

    def test_a_young_file_that_nothing_names_stays_for_the_grace(self, log: Log, clock: ManualClock) -> None:
        topic = segments_of(log, 3, clock=clock)
        clock.move(-HOUR)
        (segment_file,) = segment_files(log)
        orphan = segment_file.with_name("00000000000000000009-dead-00000000.parquet")
        orphan.write_bytes(b"x")
        os.utime(orphan, ns=(clock.now_ms() * 1_000_000, clock.now_ms() * 1_000_000))

        clock.move(HOUR - 60_000)
        log.run_retention()
        assert orphan.exists()
        clock.move(HOUR)
        assert str(orphan) in {
            path.removeprefix("file://") for path in log.run_retention().collected["t"].files
        }
        assert not orphan.exists()
        assert values(topic.read()) == [0, 1, 2]

    def test_after_a_life_nothing_but_what_the_table_names_is_left(
        self, log: Log, clock: ManualClock
    ) -> None:
        topic = log.create_topic("t", config={"retention.ms": 3 * HOUR, "local.retention.ms": 0})
        for number in range(12):
            fill(topic, 2 * number, 2 * number + 2)
            topic.seal()
            clock.move(HOUR)
            log.run_retention()
        log.alter_topic("t", set_config={"retention.ms": -1})
        self.outlast(log, clock)

        live = topic._table.plan(topic._table.snapshot())
        assert segment_files(log) == {Path(each.path.removeprefix("file://")) for each in live}
        metadata = list((log.path / "warehouse").rglob("*.avro"))
        assert len(topic._table.history()) == 1
        assert len(metadata) < 12, "manifests of old snapshots go too"
        assert len(list((log.path / "warehouse").rglob("*.metadata.json"))) <= 12
        assert list((log.path / "leases").iterdir()) == []
