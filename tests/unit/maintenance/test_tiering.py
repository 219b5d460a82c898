"""Sealing: from rolled WAL files to committed segments."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.support.clock import ManualClock
from tests.support.logs import (
    Killed,
    abandon,
    fill,
    kill_at,
    no_hook,  # noqa: F401 - a fixture that every test uses
    offsets,
    open_log,
    roll,
    segment_files,
    values,
    wal_path,
)

from lastword import metrics
from lastword.errors import CorruptError, LeaseLapsedError, StorageError
from lastword.folder import steps
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.maintenance import tiering
from lastword.record import NewRecord, TimestampType
from lastword.segments.model import Positions
from lastword.wal.files import WalFile

INLINE = "lastword.compaction.inline:InlineCompactionServiceFactory"


def files(*first_offsets: int) -> list[WalFile]:
    """Files that begin at these offsets; the last one is active."""
    rolled = [
        WalFile(seq=seq, first_offset=first, opened_ms=0, size_bytes=1, rolled_ms=0)
        for seq, first in enumerate(first_offsets[:-1], 1)
    ]
    return [*rolled, WalFile(seq=len(first_offsets), first_offset=first_offsets[-1], opened_ms=0)]


class TestPropose:
    @pytest.mark.parametrize(
        ("first_offsets", "positions", "expected"),
        [
            ((0,), Positions(), []),
            ((0, 5), Positions(), [(1, 0, 5)]),
            ((0, 5, 9), Positions(), [(1, 0, 5), (2, 5, 9)]),
            ((0, 5, 9), Positions(sealed_end=5), [(2, 5, 9)]),
            ((0, 5, 9), Positions(sealed_end=9), []),
            ((0, 5, 9), Positions(sealed_end=20), []),
            # A file that is sealed in part, as after a recovery that copied it.
            ((0, 5, 9), Positions(sealed_end=3), [(1, 3, 5), (2, 5, 9)]),
            # Empty files, and one that was copied.
            ((0, 5, 5, 9), Positions(), [(1, 0, 5), (3, 5, 9)]),
            # Below the log start nothing is missing.
            ((5, 9), Positions(log_start=5), [(1, 0, 9)]),
            ((0, 5, 9), Positions(log_start=7), [(1, 0, 5), (2, 5, 9)]),
        ],
    )
    def test_the_rolled_files_from_the_sealed_end_on(
        self, first_offsets: tuple[int, ...], positions: Positions, expected: list[tuple[int, int, int]]
    ) -> None:
        found = tiering.propose(0, Path("/wal"), files(*first_offsets), positions)

        assert [(each.file.seq, each.from_offset, each.end_offset) for each in found] == expected

    def test_a_hole_is_an_error_not_a_gap(self) -> None:
        with pytest.raises(CorruptError, match="holds the offsets 2 to 4") as caught:
            tiering.propose(0, Path("/wal"), files(5, 9), Positions(sealed_end=2))
        assert caught.value.offset == 2


def sealed_end(topic: Topic, partition: int = 0) -> int:
    return topic.describe().partitions[partition].sealed_end


class TestSeal:
    def test_everything_is_sealed_once_and_reads_the_same(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 5)
        before = list(topic.read())

        report = topic.seal()

        assert (report.records, report.files, len(report.segments), report.problems) == (5, 1, 1, ())
        assert report.wal_bytes > 0 and report.size_bytes > 0 and report.snapshot_id is not None
        assert list(topic.read()) == before
        assert topic.seal().records == 0
        assert list(topic.read()) == before
        assert topic.extents()[0].log_end == sealed_end(topic) == 5

    @pytest.mark.parametrize("codec", ["zstd", "lz4"])
    def test_segments_are_packed_as_the_topic_says_until_they_are_compacted(
        self, tmp_path: Path, clock: ManualClock, codec: str
    ) -> None:
        def codecs(log: Log) -> set[str]:
            found = [pq.ParquetFile(each).metadata.row_group(0) for each in segment_files(log)]
            return {group.column(at).compression for group in found for at in range(group.num_columns)}

        with open_log(tmp_path / "data", clock, {"compaction.service.factory": INLINE}) as log:
            settings = {
                "cleanup.policy": "compact",
                "segment.compression.type": codec,
                "compaction.at.seal": False,
            }
            topic = log.create_topic("t", config=settings)
            topic.append_many([NewRecord(key=b"k%d" % (n % 3), value=b"%d" % n) for n in range(10)])
            topic.seal()
            sealed = segment_files(log)
            assert codecs(log) == {codec.upper()}
            log.compact(["t"])
            for each in sealed:
                each.unlink()
            assert codecs(log) == {"ZSTD"}
            assert values(topic.read()) == [7, 8, 9]

    def test_many_partitions_are_one_commit(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=4)
        for partition in range(4):
            fill(topic, 0, 3, partition=partition)
        before = len(topic._table.history())

        report = topic.seal()

        assert len(report.segments) == 4
        assert len(topic._table.history()) == before + 1

    def test_nothing_to_seal_is_no_commit(self, log: Log) -> None:
        topic = log.create_topic("t")
        before = len(topic._table.history())

        assert topic.seal().snapshot_id is None
        assert len(topic._table.history()) == before

    def test_seal_rolled_leaves_what_is_not_due(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t", config={"tiering.lag.ms": 1000})
        fill(topic, 0, 2)
        assert topic.seal_rolled().records == 0
        clock.move(1000)
        assert topic.seal_rolled().records == 2
        fill(topic, 2, 3)
        assert topic.seal_rolled().records == 0
        assert sealed_end(topic) == 2

    def test_rows_below_the_log_start_are_left_out(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 6)
        topic.delete_records({0: 4})

        report = topic.seal()

        assert report.records == 2
        assert report.segments[0].first_offset == 4
        assert values(topic.read()) == [4, 5]

    def test_with_nothing_left_the_sealed_end_moves_without_a_file(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        topic.delete_records({0: -1})

        report = topic.seal()

        assert (report.files, report.segments) == (1, ())
        assert sealed_end(topic) == 3
        fill(topic, 3, 4)
        topic.seal()
        assert values(topic.read()) == [3]
        assert topic.describe().partitions[0].segments == 1

    def test_a_record_without_a_timestamp_ages_from_the_roll_and_stays_without_one(
        self, log: Log, clock: ManualClock
    ) -> None:
        topic = log.create_topic("t")
        topic.append_many([NewRecord(key=b"k", value=b"1", timestamp_ms=-1)])
        clock.move(500)
        roll(topic)
        rolled_ms = clock.now_ms()
        clock.move(500)

        (segment,) = topic.seal().segments

        assert (segment.min_timestamp_ms, segment.max_timestamp_ms) == (rolled_ms, rolled_ms)
        (record,) = topic.read()
        assert (record.timestamp_ms, record.timestamp_type) == (-1, TimestampType.NONE)

    def test_records_keep_everything_they_have(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t")
        now_ms = clock.now_ms()
        topic.append_many(
            [
                NewRecord(key=b"k", value=b"", headers=(("h", b"1"), ("h", None), ("", b""))),
                NewRecord(key=None, value=b"v", timestamp_ms=now_ms - 7),
                NewRecord(key=b"", value=None),
                NewRecord(key=b"\x00\xff", value=b"\x80", timestamp_ms=0),
            ]
        )
        before = list(topic.read())
        topic.seal()

        assert list(topic.read()) == before
        assert before[0].headers == (("h", b"1"), ("h", None), ("", b""))

    def test_the_epochs_go_into_the_table(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "d", clock)
        fill(log.create_topic("t"), 0, 2)
        abandon(log)
        with open_log(tmp_path / "d", clock) as log:
            topic = log.topic("t")
            fill(topic, 2, 3)
            topic.seal()
            assert topic._table.snapshot().positions[0].epochs == ((0, 0), (1, 2))

    def test_progress_is_told_and_ends_at_the_whole(self, log: Log) -> None:
        topic = log.create_topic("t")
        for first in (0, 2, 4):
            fill(topic, first, first + 2)
            roll(topic)
        told: list[tuple[int, int]] = []

        topic.seal(progress=lambda done, total: told.append((done, total)))

        assert len(told) == 4
        assert told[0][0] == 0
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        assert told[-1][0] == told[-1][1]

    def test_a_long_backlog_is_sealed_bit_by_bit(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tiering, "COMMIT_BYTES", 1)
        topic = log.create_topic("t")
        for first in (0, 2, 4):
            fill(topic, first, first + 2)
            roll(topic)
        before = len(topic._table.history())

        assert topic.seal().files == 3
        assert len(topic._table.history()) == before + 3
        assert values(topic.read()) == list(range(6))

    def test_what_was_sealed_is_counted(self, log: Log) -> None:
        topic = log.create_topic("counted")
        fill(topic, 0, 2)
        size = topic.seal().size_bytes

        labels = {"topic": "counted"}
        assert metrics.REGISTRY.get_sample_value("lastword_tiering_segments_sealed_total", labels) == 1
        assert metrics.REGISTRY.get_sample_value("lastword_tiering_bytes_sealed_total", labels) == size


class TestDamage:
    def test_the_partition_stops_there_and_the_others_go_on(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=2)
        for partition in range(2):
            for first in (0, 3, 6):
                fill(topic, first, first + 3, partition=partition)
                roll(topic, partition)
        path = wal_path(topic, 0) / "wal.0000000002.log"
        os.truncate(path, path.stat().st_size - 1)

        report = topic.seal()

        assert [partition for partition, _ in report.problems] == [0]
        assert str(path) in report.problems[0][1]
        # What comes before the damage is sealed; nothing after it.
        assert [sealed_end(topic, each) for each in range(2)] == [3, 9]
        assert segment_files(log) == {
            Path(each.path.removeprefix("file://")) for each in topic._table.plan(topic._table.snapshot())
        }

    def test_a_missing_file_is_not_sealed_over(self, log: Log) -> None:
        topic = log.create_topic("t")
        for first in (0, 3):
            fill(topic, first, first + 3)
            roll(topic)
        (wal_path(topic) / "wal.0000000001.log").unlink()

        assert "is missing" in topic.seal().problems[0][1]
        assert sealed_end(topic) == 0

    def test_a_file_with_a_hole_is_not_sealed_over(self, log: Log) -> None:
        """As when the checkpoint was lost together with a file, and was made anew without it."""
        topic = log.create_topic("t")
        for first in (0, 3, 6):
            fill(topic, first, first + 3)
            roll(topic)
        (wal_path(topic) / "wal.0000000002.log").unlink()
        (wal_path(topic) / "writer.json").unlink()
        topic.reopen_partition(0)

        assert "are missing" in topic.seal().problems[0][1]
        assert sealed_end(topic) == 0
        with pytest.raises(CorruptError):
            list(topic.read())
        topic.skip_wal_damage()
        assert topic.seal().problems == ()
        assert values(topic.read()) == [0, 1, 2, 6, 7, 8]


class TestCrashes:
    @pytest.mark.parametrize("step", ["seal.written", "commit.before", "commit.done", "seal.committed"])
    def test_killed_at_any_step_nothing_is_sealed_twice_or_skipped(
        self, tmp_path: Path, clock: ManualClock, step: str
    ) -> None:
        log = open_log(tmp_path / "d", clock)
        topic = log.create_topic("t", partitions=2)
        for partition in range(2):
            fill(topic, 0, 4, partition=partition)
        kill_at(step)
        with pytest.raises(Killed):
            topic.seal()
        abandon(log)

        with open_log(tmp_path / "d", clock) as log:
            topic = log.topic("t")
            topic.seal()
            for partition in range(2):
                assert offsets(topic.read(partition=partition)) == [0, 1, 2, 3]
                assert sealed_end(topic, partition) == 4

    def test_a_job_that_lost_its_lease_does_not_commit(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        steps.install(lambda name: clock.move(10 * 60_000) if name == "seal.written" else None)

        with pytest.raises(LeaseLapsedError):
            topic.seal()
        steps.install(None)

        assert sealed_end(topic) == 0
        topic.seal()
        assert values(topic.read()) == [0, 1, 2]

    def test_what_another_job_sealed_meanwhile_is_not_sealed_again(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)

        def hook(name: str) -> None:
            if name == "seal.written":
                steps.install(None)
                assert topic.seal().records == 3

        steps.install(hook)
        report = topic.seal()

        assert (report.files, report.records) == (0, 0)
        assert values(topic.read()) == [0, 1, 2]
        assert topic.describe().partitions[0].segments == 1

    def test_storage_that_fails_is_not_taken_for_damage(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)

        def down(*_: object, **__: object) -> object:
            raise StorageError("the store does not answer")

        with monkeypatch.context() as patched:
            patched.setattr(type(topic._table), "append", down)
            with pytest.raises(StorageError):
                topic.seal()
        topic.seal()
        assert values(topic.read()) == [0, 1, 2]

    def test_records_deleted_while_they_are_sealed_stay_deleted(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 6)

        def hook(name: str) -> None:
            if name == "seal.written":
                steps.install(None)
                topic.delete_records({0: 4})

        steps.install(hook)
        topic.seal()

        assert values(topic.read()) == [4, 5]
        assert topic._table.snapshot().positions[0].log_start == 4
