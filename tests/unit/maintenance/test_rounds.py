"""Sealing that compacts: what is left out, what a round is, and what may change while it is made."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.clock import ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.logs import (
    no_hook,  # noqa: F401 - a fixture that every test uses
    offsets,
    open_log,
    roll,
    segment_files,
    values,
    wal_path,
)

from lastword import Compression
from lastword.compaction import sealing
from lastword.compaction.spark import SparkEngine
from lastword.errors import UnavailableError
from lastword.folder import steps
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.maintenance import tiering
from lastword.record import NewRecord
from lastword.segments.model import MAX_ROUNDS
from lastword.wal import checkpoint as checkpoints
from lastword.wal.rolled import DECODED_BYTES, RolledFile

HEADER = {
    "compaction.strategy": "header",
    "compaction.strategy.header": "v",
    "compaction.strategy.header.format": "text",
}


def compacted(log: Log, **config: object) -> Topic:
    own = {key.replace("_", "."): value for key, value in config.items()}
    return log.create_topic("t", config={"cleanup.policy": "compact", **own})


def put(topic: Topic, *records: tuple[str | None, str | None], rolls: bool = True) -> None:
    """Append records, each of its own, and roll the WAL behind them."""
    for key, value in records:
        topic.append(key, value)
    if rolls:
        roll(topic)


def rolled_files(topic: Topic) -> list[list[RolledFile]]:
    snapshot = topic.table.snapshot()
    found = []
    for partition, at in enumerate(snapshot.positions):
        folder = wal_path(topic, partition)
        saved = checkpoints.load_writer(folder)
        assert saved is not None
        found.append(tiering.propose(partition, folder, checkpoints.left_files(folder, saved), at))
    return found


def sealed(topic: Topic) -> list[int]:
    """The offsets that are in the table."""
    snapshot = topic.table.snapshot()
    return [
        offset
        for segment in topic.table.plan(snapshot)
        for records in topic.table.read(segment)
        for offset in records.column("offset").to_pylist()
    ]


def when(step: str, act: Callable[[], object]) -> None:
    """Do something once, the first time that a step is reached."""

    def hook(name: str) -> None:
        if name == step:
            steps.install(None)
            act()

    steps.install(hook)


class TestWhatIsWritten:
    def test_all_rolled_files_compete(self, log: Log) -> None:
        topic = compacted(log)
        put(topic, ("a", "0"), ("b", "1"), (None, "2"))
        put(topic, ("a", "3"), ("c", "4"), ("c", None))
        put(topic, ("a", "6"), (None, "7"))
        report = topic.seal()
        assert sealed(topic) == [1, 2, 5, 6, 7]
        assert (report.files, report.records, report.beaten, len(report.segments)) == (3, 5, 3, 1)
        assert json.loads(topic.history()[-1].details["rounds"]) == {
            "0": {"wal": 8, "below the log start": 0, "beaten": 3}
        }
        assert topic.extents()[0].log_end == topic.describe().partitions[0].sealed_end == 8
        assert offsets(topic.read()) == [1, 2, 5, 6, 7]

    def test_what_older_sealed_records_may_need_stays(self, log: Log) -> None:
        topic = compacted(log, delete_retention_ms=0)
        put(topic, ("a", "0"))
        topic.seal()
        put(topic, ("a", None), ("b", "2"))
        topic.seal()
        assert sealed(topic) == [0, 1, 2]

    def test_the_last_record_may_be_left_out(self, log: Log) -> None:
        topic = compacted(log, compaction_strategy="first")
        put(topic, ("a", "0"), ("a", "1"), ("a", "2"))
        topic.seal()
        assert sealed(topic) == [0]
        assert topic.extents()[0].log_end == topic.table.snapshot().positions[0].sealed_end == 3
        assert topic.append("a", "3").offset == 3

    @pytest.mark.parametrize(
        ("config", "left"),
        [
            ({}, [2, 4, 5]),
            ({"compaction.strategy": "first"}, [0, 1, 5]),
            ({"compaction.strategy": "timestamp"}, [2, 3, 5]),
            ({**HEADER, "compaction.strategy.header.missing": "lowest"}, [0, 3, 5]),
        ],
        ids=["offset", "first", "timestamp", "header"],
    )
    def test_the_strategy_decides(
        self, log: Log, clock: ManualClock, config: dict[str, object], left: list[int]
    ) -> None:
        topic = log.create_topic("t", config={"cleanup.policy": "compact", **config})
        for key, time_ms, version in [
            ("a", 5, b"9"),
            ("b", 1, b"1"),
            ("a", 5, b"3"),
            ("b", 7, b"2"),
            ("b", 6, b"x"),
            (None, 0, b"0"),
        ]:
            topic.append(key, "v", timestamp_ms=clock.now_ms() + time_ms, headers=[("v", version)])
        topic.seal()
        assert sealed(topic) == left

    def test_deleted_records_beat_nobody(self, log: Log) -> None:
        topic = compacted(log, compaction_strategy="first")
        put(topic, ("a", "0"), ("b", "1"), ("a", "2"), ("b", "3"))
        topic.delete_records({0: 1})
        report = topic.seal()
        assert sealed(topic) == [1, 2]
        assert json.loads(topic.history()[-1].details["rounds"])["0"] == {
            "wal": 4,
            "below the log start": 1,
            "beaten": 1,
        }
        assert report.beaten == 1

    def test_what_is_held_back_is_sealed_whole_and_all_after_it(self, log: Log, clock: ManualClock) -> None:
        topic = compacted(log, min_compaction_lag_ms=60_000)
        put(topic, ("a", "0"), ("a", "1"))
        clock.move(120_000)
        put(topic, ("a", "2"), ("a", "3"))
        topic.append("b", "4", timestamp_ms=clock.now_ms() - 100_000)
        topic.append("b", "5", timestamp_ms=clock.now_ms() - 100_000)
        topic.seal()
        assert sealed(topic) == [1, 2, 3, 4, 5]

    def test_what_follows_a_sealed_segment_that_is_held_back_is_sealed_whole(
        self, log: Log, clock: ManualClock
    ) -> None:
        """So it does not depend on when the worker comes by."""
        topic = compacted(log, min_compaction_lag_ms=3_600_000)
        topic.append("a", "0")
        topic.seal()
        for value in "12":
            topic.append("b", value, timestamp_ms=clock.now_ms() - 7_200_000)
        assert topic.seal().beaten == 0
        assert sealed(topic) == [0, 1, 2]

    def test_off_and_other_policies_seal_everything(self, log: Log) -> None:
        for name, config in {
            "off": {"cleanup.policy": "compact", "compaction.at.seal": False},
            "delete": {"cleanup.policy": "delete"},
        }.items():
            topic = log.create_topic(name, config=config)
            put(topic, ("a", "0"), ("a", "1"))
            assert (topic.seal().beaten, sealed(topic)) == (0, [0, 1])


class TestMemory:
    @pytest.mark.parametrize("strategy", ["offset", "first", "timestamp"])
    def test_without_room_for_rows_it_reads_twice(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, strategy: str
    ) -> None:
        found = []
        for name, holds in (("rows", None), ("masks", lambda *_: False)):
            with monkeypatch.context() as patched, open_log(tmp_path / name, clock, INLINE_CONFIG) as log:
                if holds is not None:
                    patched.setattr(sealing._Finder, "_hold", holds)
                topic = compacted(log, compaction_strategy=strategy)
                for part in range(3):
                    put(topic, *((f"k{n * n % 17}", f"{part}-{n}") for n in range(100)))
                topic.seal()
                found.append([(each.offset, each.key, each.value) for each in topic.read()])
        assert found[0] == found[1]
        assert len(found[0]) == len({n * n % 17 for n in range(100)})

    def test_keys_that_do_not_fit_are_sealed_as_they_are(self, tmp_path: Path, clock: ManualClock) -> None:
        config = {**INLINE_CONFIG, "compaction.task.memory.bytes": 1 << 20}
        with open_log(tmp_path / "data", clock, config) as log:
            topic = compacted(log)
            keys = [b"%0200d" % number for number in range(4000)]
            topic.append_many([NewRecord(key=key, value=b"v") for key in [*keys, *keys]])
            report = topic.seal()
            assert (report.beaten, report.records, report.problems) == (0, 8000, ())
            assert log.compact(asked_for=True).problems == ()
            assert len(sealed(topic)) == 4000

    def test_where_hardly_any_record_goes_it_gives_up(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sealing, "SAMPLE_ROWS", 100)
        topic = compacted(log)
        topic.append_many([NewRecord(key=b"k%d" % number, value=b"v") for number in range(1000)])
        topic.append_many([NewRecord(key=b"k0", value=b"again")])
        report = topic.seal()
        assert (report.beaten, report.records) == (0, 1001)

    def test_batches_that_expand_much_are_read_a_few_at_a_time(self, log: Log) -> None:
        topic = compacted(log)
        for part in range(60):
            rows = [NewRecord(key=b"%d-%d" % (part, n), value=b"x" * 10_000) for n in range(50)]
            topic.append_many(rows, compression=Compression.GZIP)
        roll(topic)
        (file,) = [each for own in rolled_files(topic) for each in own]
        spans = file.spans()
        assert spans is not None and len(spans) > 2
        decoded = [sum(each.nbytes for each in file.read(span)) for span in spans]
        assert max(decoded) < 2 * DECODED_BYTES
        assert sum(decoded) > 20 * (file.size_bytes or 0)


class TestFailures:
    def test_a_round_that_fails_is_sealed_whole_and_said(
        self, log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fails(_self: RolledFile) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        topic = compacted(log)
        put(topic, ("a", "0"), ("a", "1"))
        with monkeypatch.context() as patched:
            patched.setattr(RolledFile, "spans", fails)
            report = topic.seal()
        # The disk is not to blame, so nothing is called damaged.
        assert (report.problems, report.beaten, sealed(topic)) == ((), 0, [0, 1])
        assert "t partition 0 can't be compacted while it is sealed" in caplog.text
        assert "Too many open files" in caplog.text

    def test_a_stop_is_honoured_between_rounds(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tiering, "COMMIT_BYTES", 1)
        with open_log(tmp_path / "data", clock, INLINE_CONFIG) as log:
            topic = log.create_topic("t", partitions=12, config={"cleanup.policy": "compact"})
            for partition in range(12):
                for value in "01":
                    topic.append("k", value, partition=partition)
                roll(topic, partition)
            written: list[str] = []
            steps.install(lambda name: written.append(name) if name == "seal.round.written" else None)
            topic.seal_rolled(stop=lambda: bool(written))
            steps.install(None)
            assert 1 <= len(written) <= 2
            # What was done by then is committed.
            assert sum(each.sealed_end for each in topic.describe().partitions) == 2 * len(written)
            assert topic.seal().beaten == 12 - len(written)

    def test_a_log_start_that_moves_all_the_time_holds_up_nothing(self, log: Log) -> None:
        topic = compacted(log, compaction_strategy="first")
        put(topic, *((f"k{number % 3}", str(number)) for number in range(100)))
        moves = iter(range(1, 90))

        def move(name: str) -> None:
            if name == "commit.before":
                steps.install(None)
                topic.delete_records({0: next(moves)})
                steps.install(move)

        steps.install(move)
        try:
            with pytest.raises(UnavailableError):
                topic.seal()
        finally:
            steps.install(None)
        # Each commit was overtaken. One that is not is made at once.
        when("commit.before", lambda: topic.delete_records({0: next(moves)}))
        assert topic.seal().problems == ()
        assert topic.describe().partitions[0].sealed_end == 100


class TestWhere:
    """Whether rounds run on Spark."""

    @pytest.mark.parametrize(
        ("master", "is_local"),
        [
            ("local[*]", True),
            ("local", True),
            ("local-cluster[1,1,512]", False),
            ("spark://there:7077", False),
        ],
    )
    def test_a_session_that_was_there_before_decides(self, master: str, is_local: bool) -> None:
        engine = SparkEngine({})
        engine._spark = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
        assert engine.reaches_local_files is is_local

    def test_a_client_of_spark_connect_reaches_nothing(self) -> None:
        engine = SparkEngine({})
        engine._spark = SimpleNamespace()
        assert not engine.reaches_local_files


class TestFiles:
    def test_they_are_cut_by_size(self, log: Log) -> None:
        topic = compacted(log, segment_bytes=2000)
        for part in range(10):
            topic.append_many(
                [NewRecord(key=b"k%d" % (10 * part + n), value=os.urandom(150)) for n in range(10)]
            )
            roll(topic)
        report = topic.seal()
        assert len(report.segments) > 5
        assert [each.first_offset for each in report.segments] == sorted(
            each.first_offset for each in report.segments
        )
        assert sealed(topic) == list(range(100))

    def test_they_are_cut_by_time_where_retention_applies(self, log: Log, clock: ManualClock) -> None:
        topic = compacted(log, cleanup_policy="compact,delete", segment_ms=60_000)
        for number in range(4):
            put(topic, (f"k{number}", "v"))
            clock.move(50_000)
        segments = topic.seal().segments
        assert len(segments) > 1
        assert all(each.max_timestamp_ms - each.min_timestamp_ms <= 60_000 for each in segments)


class TestWhatHappensMeanwhile:
    @pytest.mark.parametrize("step", ["seal.round.written", "commit.before"])
    def test_deleted_records_take_nothing_along(self, log: Log, step: str) -> None:
        """With `first` the deleted record had beaten the one that must stay now."""
        topic = compacted(log, compaction_strategy="first")
        put(topic, ("a", "0"), ("a", "1"), ("b", "2"))
        when(step, lambda: topic.delete_records({0: 1}))
        report = topic.seal()
        assert report.problems == ()
        assert [(each.offset, each.value) for each in topic.read()] == [(1, b"1"), (2, b"2")]
        assert sealed(topic) == [1, 2]

    def test_another_strategy_is_another_round(self, log: Log) -> None:
        topic = compacted(log)
        put(topic, ("a", "0"), ("a", "1"))
        when("seal.round.written", lambda: log.alter_topic("t", set_config={"compaction.strategy": "first"}))
        topic.seal()
        assert sealed(topic) == [0]

    def test_another_policy_leaves_nothing_out(self, log: Log) -> None:
        topic = compacted(log)
        put(topic, ("a", "0"), ("a", "1"))
        when("commit.before", lambda: log.alter_topic("t", set_config={"cleanup.policy": "delete"}))
        topic.seal()
        assert sealed(topic) == [0, 1]

    def test_what_another_job_sealed_is_not_sealed_again(self, log: Log) -> None:
        topic = compacted(log)
        put(topic, ("a", "0"), ("a", "1"))
        when("commit.before", topic.seal)
        report = topic.seal()
        assert (report.files, report.records, sealed(topic)) == (0, 0, [1])
        assert len(topic.table.plan(topic.table.snapshot())) == 1

    def test_a_round_stops_at_damage_and_goes_on_behind_it_once_that_is_skipped(self, log: Log) -> None:
        """What is before the damage must not be beaten by what is behind it: that may be lost, too."""
        topic = compacted(log)
        put(topic, ("a", "0"), ("b", "1"))
        put(topic, ("a", "2"), ("c", "3"))
        put(topic, ("a", "4"), ("b", "5"))
        path = wal_path(topic) / "wal.0000000002.log"
        damaged = bytearray(path.read_bytes())
        damaged[70] ^= 0xFF
        path.write_bytes(damaged)
        report = topic.seal()
        assert [partition for partition, _ in report.problems] == [0]
        assert str(path) in report.problems[0][1]
        assert sealed(topic) == [0, 1]
        assert segment_files(log) == {
            Path(each.path.removeprefix("file://")) for each in topic.table.plan(topic.table.snapshot())
        }
        topic.skip_wal_damage()
        assert topic.seal().problems == ()
        assert [each.value for each in topic.read()][:2] == [b"0", b"1"]
        assert values(topic.read())[-2:] == [4, 5]
        log.compact(asked_for=True)
        assert {each.key: each.value for each in topic.read()} == {b"a": b"4", b"b": b"5"} | (
            {b"c": b"3"} if any(each.key == b"c" for each in topic.read()) else {}
        )

    def test_a_missing_file_is_not_sealed_over(self, log: Log) -> None:
        topic = compacted(log)
        put(topic, ("a", "0"))
        put(topic, ("a", "1"))
        (wal_path(topic) / "wal.0000000001.log").unlink()
        report = topic.seal()
        assert [partition for partition, _ in report.problems] == [0]
        assert (sealed(topic), topic.table.snapshot().positions[0].sealed_end) == ([], 0)


def test_many_rounds_are_remembered_in_few_ranges(log: Log) -> None:
    topic = compacted(log)
    for number in range(70):
        put(topic, ("a", str(number)), ("a", str(number)))
        topic.seal()
    rounds = topic.table.snapshot().positions[0].rounds
    assert len(rounds) == MAX_ROUNDS
    assert (rounds[0].start, rounds[-1].end) == (0, 140)
    assert all(one.end == two.start for one, two in pairwise(rounds))
    log.compact(asked_for=True)
    assert topic.table.snapshot().positions[0].rounds == ()
    assert offsets(topic.read()) == [139]
