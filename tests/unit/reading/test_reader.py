"""A replay over sealed segments and the tail, whatever maintenance does meanwhile."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.clock import DAY_MS, HOUR_MS, ManualClock
from tests.support.logs import fill, offsets, one_batch, open_log, roll, segment_files, values, wal_path

from lastword.connect.destination import DestinationReads, OwnDestination
from lastword.errors import CorruptError, OffsetOutOfRangeError
from lastword.folder.leases import LeaseKeeper
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.reading import reader as readers
from lastword.reading.timetravel import AsOf
from lastword.record import NewRecord


def three_parts(log: Log, **own: object) -> Topic:
    """0 to 5 in two segments, 6 to 8 in a rolled WAL file, 9 to 11 in the active one."""
    topic = log.create_topic("t", config={key.replace("_", "."): value for key, value in own.items()})
    for first in (0, 3):
        fill(topic, first, first + 3)
        topic.seal()
    fill(topic, 6, 9)
    roll(topic)
    fill(topic, 9, 12)
    return topic


class TestLatest:
    @pytest.mark.parametrize("is_sealed", [True, False])
    def test_a_deleted_record_is_not_the_latest(self, log: Log, clock: ManualClock, is_sealed: bool) -> None:
        """The bounds of the segment, and of the batch, that the log start lies in still speak of it."""
        topic = log.create_topic("t")
        now_ms = clock.now_ms()
        times = [now_ms, now_ms - 500, now_ms - 400, now_ms - 400]
        topic.append_many([NewRecord(key=b"k", value=b"v", timestamp_ms=each) for each in times])
        if is_sealed:
            topic.seal()
        with closing(topic.partition_reader(0)) as reader:
            assert reader.find_latest() == (0, now_ms)
            topic.delete_records({0: 1})
            assert reader.find_latest() == (2, now_ms - 400)
            topic.delete_records({0: 3})
            assert reader.find_latest() == (3, now_ms - 400)
            topic.delete_records({0: 4})
            assert reader.find_latest() is None
            topic.append(b"k", b"v", timestamp_ms=now_ms - 900)
            assert reader.find_latest() == (4, now_ms - 900)


class TestStart:
    def test_at_every_offset(self, log: Log) -> None:
        topic = three_parts(log)
        for offset in range(13):
            assert offsets(topic.read(offset)) == list(range(offset, 12))

    @pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 12)])
    def test_at_an_end(self, log: Log, start: str, first: int) -> None:
        topic = three_parts(log)
        assert offsets(topic.read(start)) == list(range(first, 12))  # type: ignore[arg-type]

    @pytest.mark.parametrize("offset", [-1, 13])
    def test_out_of_range_is_told_at_once(self, log: Log, offset: int) -> None:
        topic = three_parts(log)
        with pytest.raises(
            OffsetOutOfRangeError, match=rf"Offset {offset} of partition 0 .* 0 \(log start\) to 12"
        ):
            topic.read(offset)

    def test_at_a_place_for_each_partition(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=3)
        for partition in range(3):
            fill(topic, 0, 3, partition=partition)
        found = [(each.partition, each.offset) for each in topic.read({0: 2, 1: "latest"})]
        assert found == [(0, 2), (2, 0), (2, 1), (2, 2)]

    def test_what_comes_after_the_call_is_not_part_of_it(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        reading = topic.read()
        fill(topic, 3, 5)
        assert values(reading) == [0, 1, 2]


class TestByTime:
    def test_the_first_record_that_is_not_older(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t")
        start_ms = clock.now_ms()
        for number in range(3):
            fill(topic, 2 * number, 2 * number + 2)
            clock.move(1000)
            if number < 2:
                topic.seal()

        expected = {-1: 0, 0: 0, 1: 2, 1000: 2, 1001: 4, 2000: 4, 2001: 6}
        for after_ms, offset in expected.items():
            assert topic.offsets_for_time(start_ms + after_ms) == {0: offset}

    def test_records_without_a_time_are_passed_over(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t")
        topic.append_many(
            [
                NewRecord(key=b"a", value=b"1", timestamp_ms=-1),
                NewRecord(key=b"a", value=b"2", timestamp_ms=5),
            ]
        )
        assert topic.offsets_for_time(0) == {0: 1}
        topic.seal()
        assert topic.offsets_for_time(0) == {0: 1}

    def test_never_below_the_log_start(self, log: Log) -> None:
        topic = three_parts(log)
        topic.delete_records({0: 4})
        assert topic.offsets_for_time(0) == {0: 4}
        topic.delete_records({0: 10})
        assert topic.offsets_for_time(0) == {0: 10}

    def test_while_the_records_move_from_the_wal_to_the_table(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = three_parts(log, local_retention_ms=0)
        real = readers.PartitionReader.tail

        def moved_first(self: readers.PartitionReader, *rest: int) -> Iterator[object]:
            monkeypatch.setattr(readers.PartitionReader, "tail", real)
            topic.seal()
            log.run_retention()
            return real(self, *rest)

        monkeypatch.setattr(readers.PartitionReader, "tail", moved_first)
        assert topic.offsets_for_time(2**50) == {0: 12}


def seal(log: Log, clock: ManualClock) -> None:
    log.topic("t").seal()


def take_wal_files(log: Log, clock: ManualClock) -> None:
    log.run_retention()


def append(log: Log, clock: ManualClock) -> None:
    topic = log.topic("t")
    end = topic.extents()[0].log_end
    fill(topic, end, end + 2)


def expire_and_collect(log: Log, clock: ManualClock) -> None:
    """Long enough for every lease to lapse and every file to be old."""
    clock.move(DAY_MS)
    log.run_retention()


def pause(log: Log, clock: ManualClock) -> None:
    clock.move(HOUR_MS)


ACTS: list[Callable[[Log, ManualClock], None]] = [seal, take_wal_files, append, expire_and_collect, pause]


class TestWhileOthersAreAtWork:
    @pytest.mark.parametrize("seed", range(12))
    def test_no_gap_and_no_double(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        """Between any two batches anything may happen; batches are as small as they can be."""
        monkeypatch.setattr(readers, "TAIL_BYTES", 1)
        chance = random.Random(seed)
        with open_log(tmp_path / "d", clock, {"local.retention.ms": 0, "retention.ms": -1}) as log:
            topic = three_parts(log)
            with topic.reader("r") as reader:
                seen: list[int] = []
                for _ in range(25):
                    for act in chance.sample(ACTS, k=chance.randint(0, 3)):
                        act(log, clock)
                    seen += values(reader.poll(max_records=chance.choice([1, 2, 500])))
                while polled := reader.poll():
                    seen += values(polled)
            assert seen == list(range(topic.extents()[0].log_end))

    @pytest.mark.parametrize("acts", list(itertools.permutations([seal, take_wal_files, expire_and_collect])))
    def test_a_replay_in_every_order_of_events(
        self,
        tmp_path: Path,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
        acts: tuple[Callable[[Log, ManualClock], None], ...],
    ) -> None:
        monkeypatch.setattr(readers, "TAIL_BYTES", 1)
        with open_log(tmp_path / "d", clock, {"local.retention.ms": 0, "retention.ms": -1}) as log:
            topic = three_parts(log)
            turns = itertools.cycle(acts)
            seen: list[int] = []
            for records in topic.read_arrow():
                seen += records.column("offset").to_pylist()
                next(turns)(log, clock)
            assert seen == list(range(12))

    def test_one_that_retention_overtakes_goes_on_at_the_log_start(
        self, log: Log, clock: ManualClock
    ) -> None:
        topic = three_parts(log)
        with topic.reader("r") as reader:
            assert values(reader.poll(max_records=2)) == [0, 1]
            topic.delete_records({0: 8})
            seen: list[int] = []
            while polled := reader.poll():
                seen += values(polled)
        # What it had read already may still come; after that nothing below the log start does.
        assert seen[-4:] == [8, 9, 10, 11]
        assert offsets(topic.read()) == [8, 9, 10, 11]

    def test_one_that_a_compacting_seal_overtakes_shows_every_last_word(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        """The record that superseded one before the end of the replay comes after that end."""
        with open_log(tmp_path / "d", clock, {"local.retention.ms": 0}) as log:
            topic = log.create_topic("t", config={"cleanup.policy": "compact", "compaction.at.seal": True})
            topic.append("other", "0")
            topic.append("key", "old")
            replay = topic.read()
            topic.append("key", "new")
            topic.append("last", "3")
            assert topic.seal().beaten == 1
            log.run_retention()
            assert [(each.key, each.value) for each in replay] == [
                (b"other", b"0"),
                (b"key", b"new"),
                (b"last", b"3"),
            ]

    def test_every_record_that_is_deleted_meanwhile_may_be_gone(self, log: Log) -> None:
        topic = three_parts(log)
        replay = topic.read_arrow()
        next(replay)
        topic.delete_records({0: -1})
        for records in replay:
            assert records.column("offset").to_pylist()
        assert offsets(topic.read()) == []


class TestLeases:
    def test_a_replay_holds_one_while_it_reads_sealed_files(self, log: Log) -> None:
        topic = three_parts(log)
        replay = topic.read_arrow()
        assert list((log.path / "leases").iterdir()) == [] if (log.path / "leases").exists() else True
        next(replay)
        assert len(list((log.path / "leases").iterdir())) == 1
        replay.close()  # type: ignore[attr-defined]
        assert list((log.path / "leases").iterdir()) == []

    def test_reading_goes_on_where_none_can_be_taken(
        self, log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        topic = three_parts(log)

        def full(self: LeaseKeeper, lease: object) -> None:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(LeaseKeeper, "write", full)
        assert offsets(topic.read()) == list(range(12))
        assert "without a lease" in caplog.text


class TestWhatIsLost:
    def test_a_segment_file_that_is_gone_is_told(self, log: Log) -> None:
        topic = three_parts(log)
        for path in segment_files(log):
            path.unlink()
        with pytest.raises(CorruptError, match="The table still names it: its records are lost"):
            list(topic.read())
        assert offsets(topic.read(6)) == list(range(6, 12))

    def test_every_read_tells_that_a_segment_file_is_gone(self, log: Log) -> None:
        topic = three_parts(log)
        for path in segment_files(log):
            path.unlink()
        named = {each.path for each in topic.table.plan(topic.table.snapshot())}
        for read in (
            topic.state,
            lambda: topic.state(as_of=AsOf(offset=11)),
            lambda: topic.offsets_for_time(0),
            lambda: list(topic.read_as_of(AsOf(offset=11))),
        ):
            with pytest.raises(CorruptError, match="The table still names it") as lost:
                read()
            assert lost.value.path in named

    def test_a_wal_file_that_is_gone_is_told(self, log: Log) -> None:
        topic = three_parts(log)
        third = sorted(wal_path(topic).glob("*.log"))[-2]
        third.unlink()
        seen: list[int] = []
        with pytest.raises(
            CorruptError, match=r"Offset 6 of partition 0 is neither sealed nor in a WAL file"
        ):
            for record in topic.read():
                seen.append(record.offset)
        assert seen == [0, 1, 2, 3, 4, 5]

    def test_every_search_tells_that_a_wal_file_is_gone(self, log: Log) -> None:
        topic = three_parts(log)
        sorted(wal_path(topic).glob("*.log"))[-2].unlink()
        reads = DestinationReads(OwnDestination(log))
        for search in (
            topic.state,
            lambda: topic.state(as_of=AsOf(offset=11)),
            lambda: list(reads.live_keys("t")),
        ):
            with pytest.raises(CorruptError, match=r"Offset 6 .* `lastword wal repair` shows"):
                search()


def test_another_process_sees_what_was_shown_and_no_more(tmp_path: Path, clock: ManualClock) -> None:
    with open_log(tmp_path / "d", clock) as log, open_log(tmp_path / "d", clock, read_only=True) as other:
        topic = three_parts(log)
        seen = other.topic("t")
        assert offsets(seen.read()) == list(range(12))
        topic.partition(0).writer.stage(one_batch("12"))
        assert offsets(seen.read()) == list(range(12))
        topic.seal()
        assert offsets(seen.read()) == list(range(13))
        with seen.reader("r") as reader:
            fill(topic, 13, 15)
            found: list[int] = []
            while polled := reader.poll(max_records=4):
                found += offsets(polled)
        assert found == list(range(15))
