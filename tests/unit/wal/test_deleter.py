"""The deleter: what may go, what goes, and what is left afterwards."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.clock import DAY_MS, HOUR_MS, ManualClock
from tests.support.logs import (
    Killed,
    fill,
    kill_at,
    no_hook,  # noqa: F401 - a fixture that every test uses
    open_log,
    roll,
    settings,
    values,
    wal_path,
    wal_seqs,
)

from lastword import metrics
from lastword.config import BrokerConfig
from lastword.folder import steps
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.wal import checkpoint as checkpoints
from lastword.wal import deleter
from lastword.wal.deleter import Deletion, LocalFile, LocalWal

NOW_MS = 1_000_000_000


def broker(**own: object) -> BrokerConfig:
    return BrokerConfig.from_mapping(
        {key.replace("_", "."): value for key, value in own.items()}, where="test"
    )


def local_wal(
    *sizes: int | None, sealed_end: int, partition: int = 0, rolled_ms: tuple[int, ...] = (), **own: object
) -> LocalWal:
    """Files of ten offsets each, the last one active. Without times the first was rolled longest ago, an hour each."""
    count = len(sizes)
    times = rolled_ms or tuple(NOW_MS - (count - 1 - each) * HOUR_MS for each in range(count - 1))
    files = tuple(
        LocalFile(
            seq=each + 1,
            first_offset=each * 10,
            end_offset=(each + 1) * 10 if each < count - 1 else None,
            rolled_ms=times[each] if each < count - 1 else None,
            size_bytes=size,
        )
        for each, size in enumerate(sizes)
    )
    return LocalWal(
        topic="t",
        partition=partition,
        folder=Path(f"/wal/{partition}"),
        sealed_end=sealed_end,
        settings=settings(**{"local.retention.ms": -1, "local.retention.bytes": -1} | own),
        files=files,
    )


def proposed(*wals: LocalWal, config: BrokerConfig | None = None) -> list[tuple[int, str]]:
    return [(each.file.seq, each.rule) for each in deleter.propose(wals, config or broker(), NOW_MS)]


class TestPropose:
    @pytest.mark.parametrize(
        ("own", "sealed_end", "expected"),
        [
            ({}, 40, []),
            ({"local.retention.ms": 3 * HOUR_MS}, 40, [(1, "local.retention.ms"), (2, "local.retention.ms")]),
            ({"local.retention.ms": 3 * HOUR_MS}, 19, [(1, "local.retention.ms")]),
            ({"local.retention.ms": 3 * HOUR_MS}, 20, [(1, "local.retention.ms"), (2, "local.retention.ms")]),
            ({"local.retention.ms": 3 * HOUR_MS}, 9, []),
            ({"local.retention.ms": 4 * HOUR_MS + 1}, 40, []),
            ({"local.retention.ms": 0}, 40, [(each, "local.retention.ms") for each in (1, 2, 3, 4)]),
            ({"local.retention.ms": 0}, 25, [(1, "local.retention.ms"), (2, "local.retention.ms")]),
            ({"local.retention.bytes": 500}, 40, []),
            ({"local.retention.bytes": 499}, 40, [(1, "local.retention.bytes")]),
            ({"local.retention.bytes": 200}, 40, [(each, "local.retention.bytes") for each in (1, 2, 3)]),
            ({"local.retention.bytes": 0}, 40, [(each, "local.retention.bytes") for each in (1, 2, 3, 4)]),
            ({"local.retention.bytes": 0}, 10, [(1, "local.retention.bytes")]),
            (
                # What the time rule frees counts: 500 bytes less 200 are within the limit.
                {"local.retention.ms": 3 * HOUR_MS, "local.retention.bytes": 300},
                40,
                [(1, "local.retention.ms"), (2, "local.retention.ms")],
            ),
            (
                {"local.retention.ms": 3 * HOUR_MS, "local.retention.bytes": 299},
                40,
                [(1, "local.retention.ms"), (2, "local.retention.ms"), (3, "local.retention.bytes")],
            ),
        ],
    )
    def test_by_time_and_size(
        self, own: dict[str, object], sealed_end: int, expected: list[tuple[int, str]]
    ) -> None:
        assert proposed(local_wal(100, 100, 100, 100, 100, sealed_end=sealed_end, **own)) == expected

    def test_local_retention_as_the_topics_retention(self) -> None:
        own = {"local.retention.ms": -2, "retention.ms": 3 * HOUR_MS}
        assert [seq for seq, _ in proposed(local_wal(1, 1, 1, 1, 1, sealed_end=40, **own))] == [1, 2]

    @pytest.mark.parametrize(
        ("own", "config"),
        [
            ({"local.retention.ms": 0}, {"deleter_time_enabled": False}),
            ({"local.retention.bytes": 0}, {"deleter_size_enabled": False}),
            ({}, {"deleter_size_enabled": False, "wal_max_bytes": 0}),
        ],
    )
    def test_a_rule_can_be_switched_off(self, own: dict[str, object], config: dict[str, object]) -> None:
        assert proposed(local_wal(100, 100, sealed_end=20, **own), config=broker(**config)) == []

    def test_with_one_rule_off_the_other_holds(self) -> None:
        wal = local_wal(100, 100, sealed_end=20, **{"local.retention.ms": 0, "local.retention.bytes": 0})

        assert proposed(wal, config=broker(deleter_time_enabled=False)) == [(1, "local.retention.bytes")]
        assert proposed(wal, config=broker(deleter_size_enabled=False)) == [(1, "local.retention.ms")]

    def test_the_bound_on_all_partitions_takes_the_oldest_files_of_any(self) -> None:
        first = local_wal(100, 100, 100, sealed_end=30, rolled_ms=(10, 40))
        second = local_wal(100, 100, 100, sealed_end=30, rolled_ms=(20, 30), partition=1)

        found = deleter.propose([first, second], broker(wal_max_bytes=300), NOW_MS)

        assert [(each.partition, each.file.seq) for each in found] == [(0, 1), (1, 1), (1, 2)]
        assert {each.rule for each in found} == {"wal.max.bytes"}

    def test_that_bound_never_takes_what_is_not_sealed(self) -> None:
        assert proposed(local_wal(100, 100, 100, sealed_end=10), config=broker(wal_max_bytes=0)) == [
            (1, "wal.max.bytes")
        ]

    def test_that_bound_counts_what_the_other_rules_free(self) -> None:
        wal = local_wal(100, 100, 100, sealed_end=30, **{"local.retention.ms": 2 * HOUR_MS})
        assert proposed(wal, config=broker(wal_max_bytes=200)) == [(1, "local.retention.ms")]

    def test_within_a_partition_files_go_in_order_even_when_the_clock_was_put_back(self) -> None:
        wal = local_wal(100, 100, 100, sealed_end=30, rolled_ms=(50, 10))
        assert proposed(wal, config=broker(wal_max_bytes=200)) == [(1, "wal.max.bytes")]

    def test_a_clock_that_was_put_back_does_not_hold_back_cloud_first(self) -> None:
        wal = local_wal(1, 1, sealed_end=10, rolled_ms=(NOW_MS + HOUR_MS,), **{"local.retention.ms": 0})
        assert proposed(wal) == [(1, "local.retention.ms")]

    def test_a_file_that_is_gone_is_forgotten_by_any_rule(self) -> None:
        assert proposed(local_wal(None, 100, 100, sealed_end=30)) == [(1, "already gone")]

    def test_one_that_is_gone_and_not_sealed_is_not_forgotten(self) -> None:
        assert proposed(local_wal(None, 100, 100, sealed_end=5)) == []


@pytest.fixture
def files(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    """A log where nothing goes but by the rule that a test sets."""
    config = {"local.retention.ms": -1, "local.retention.bytes": -1}
    with open_log(tmp_path / "data", clock, config) as log:
        yield log


def in_files(topic: Topic, *ends: int) -> None:
    for end in ends:
        fill(topic, topic.extents()[0].log_end, end)
        roll(topic)


def sealed_files(log: Log, *ends: int, name: str = "t", **own: object) -> Topic:
    """A topic with sealed WAL files that end at these offsets, and an active one with one record more."""
    topic = log.create_topic(name, config={key.replace("_", "."): value for key, value in own.items()})
    in_files(topic, *ends)
    topic.seal()
    fill(topic, ends[-1], ends[-1] + 1)
    return topic


def metric(name: str, topic: str = "t") -> float:
    return metrics.REGISTRY.get_sample_value(f"lastword_wal_{name}", {"topic": topic}) or 0.0


class TestTheTenCases:
    """The cases that the design of WAL retention lists, in its words."""

    def test_does_not_delete_active_file(self, files: Log) -> None:
        topic = files.create_topic("t", config={"local.retention.ms": 0, "local.retention.bytes": 0})
        fill(topic, 0, 3)

        assert files.run_retention().wal.deletions == ()
        assert wal_seqs(topic) == [1]
        topic.seal()
        files.run_retention()
        assert wal_seqs(topic) == [2], "the file is rolled, and what is active now is left"
        assert values(topic.read()) == [0, 1, 2]

    def test_does_not_delete_file_being_uploaded(self, files: Log) -> None:
        topic = files.create_topic("t", config={"local.retention.ms": 0})
        in_files(topic, 3)
        seen: list[list[int]] = []

        def during_upload(step: str) -> None:
            if step == "seal.written":
                # In a thread of its own, as the worker's are.
                with ThreadPoolExecutor(1) as thread:
                    done = thread.submit(files.run_retention).result(180)
                seen.append([each.file.seq for each in done.wal.deletions])

        steps.install(during_upload)
        try:
            topic.seal()
        finally:
            steps.install(None)
        assert seen == [[]]
        assert wal_seqs(topic) == [1, 2]

    def test_does_not_delete_file_with_uncommitted_data(self, files: Log) -> None:
        topic = sealed_files(files, 3, 6, local_retention_ms=0, local_retention_bytes=0)
        fill(topic, 7, 9)
        roll(topic)

        deleted = files.run_retention().wal.deletions

        # The table ends at 6; the third file has 6 to 8.
        assert [each.file.seq for each in deleted] == [1, 2]
        assert wal_seqs(topic) == [3, 4]
        assert values(topic.read()) == list(range(9))

    def test_time_based_retention_triggers_correctly(self, files: Log, clock: ManualClock) -> None:
        topic = files.create_topic("t", config={"local.retention.ms": HOUR_MS})
        in_files(topic, 2)
        clock.move(HOUR_MS // 2)
        in_files(topic, 4)
        topic.seal()

        clock.move(HOUR_MS // 2 - 1)
        assert files.run_retention().wal.deletions == ()
        clock.move(1)
        (deleted,) = files.run_retention().wal.deletions
        assert (deleted.file.seq, deleted.rule, deleted.age_ms) == (1, "local.retention.ms", HOUR_MS)
        clock.move(HOUR_MS // 2)
        assert [each.file.seq for each in files.run_retention().wal.deletions] == [2]

    def test_size_based_retention_triggers_correctly(self, files: Log) -> None:
        topic = sealed_files(files, 4, 8, 12)
        sizes = [each.size_bytes for each in topic.local_wals()[0].files]
        files.alter_topic("t", set_config={"local.retention.bytes": sum(sizes)})
        assert files.run_retention().wal.deletions == ()

        files.alter_topic("t", set_config={"local.retention.bytes": sum(sizes) - 1})
        (deleted,) = files.run_retention().wal.deletions
        assert (deleted.file.seq, deleted.rule) == (1, "local.retention.bytes")
        files.alter_topic("t", set_config={"local.retention.bytes": 0})
        assert [each.file.seq for each in files.run_retention().wal.deletions] == [2, 3]

    def test_start_offset_updates_correctly(self, files: Log, clock: ManualClock) -> None:
        topic = sealed_files(files, 3, 5, 9, local_retention_ms=0)
        assert topic.describe().partitions[0].wal_start == 0

        files.run_retention()

        assert topic.describe().partitions[0].wal_start == 9
        saved = checkpoints.load_deleter(wal_path(topic))
        assert saved == checkpoints.DeleterCheckpoint(start_seq=4, start_offset=9)

    def test_stateful_reader_works_after_deletion(self, files: Log) -> None:
        topic = sealed_files(files, 3, 6, 9, local_retention_ms=0)
        with topic.reader("r") as reader:
            seen = values(reader.poll(max_records=2))
            files.run_retention()
            fill(topic, 10, 12)
            while polled := reader.poll(max_records=2):
                seen += values(polled)
        assert seen == list(range(12))

    def test_checkpoint_updates_are_atomic(self, files: Log, tmp_path: Path, clock: ManualClock) -> None:
        topic = sealed_files(files, 3, 6, local_retention_ms=0)
        before = topic.local_wals()

        # Gone from the disk, not yet noted: the next cycle forgets it, and readers go to the table.
        kill_at("deleter.removed")
        with pytest.raises(Killed):
            files.run_retention()
        assert wal_seqs(topic) == [2, 3]
        assert checkpoints.load_deleter(wal_path(topic)) is None
        assert values(topic.read()) == list(range(7))
        deleted = files.run_retention().wal.deletions
        assert [(each.file.seq, each.rule) for each in deleted] == [
            (1, "already gone"),
            (2, "local.retention.ms"),
        ]
        saved = checkpoints.load_deleter(wal_path(topic))
        assert saved is not None and saved.start_seq == 3

        # A half-written file of the deleter never takes the place of the whole one.
        (wal_path(topic) / "deleter.json.tmp").write_text('{"start_')
        assert values(topic.read()) == list(range(7))
        assert len(before[0].files) == 3

    def test_handles_file_system_errors_gracefully(
        self, files: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        topic = sealed_files(files, 3, 6, local_retention_ms=0)
        other = sealed_files(files, 3, name="other", local_retention_ms=0)
        errors = metric("retention_errors_total")
        real = Path.unlink

        def refused(path: Path, missing_ok: bool = False) -> None:
            if path.name == "wal.0000000001.log" and path.parent == wal_path(topic):
                raise PermissionError(13, "Permission denied")
            real(path, missing_ok=missing_ok)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", refused)
            report = files.run_retention().wal
        assert [each.topic for each in report.deletions] == ["other"]
        assert len(report.errors) == 1 and "Permission denied" in report.errors[0]
        assert metric("retention_errors_total") == errors + 1
        assert wal_seqs(topic) == [1, 2, 3], "those behind it stay too, so that the WAL has no hole"
        assert wal_seqs(other) == [2]

        assert [each.file.seq for each in files.run_retention().wal.deletions] == [1, 2]
        assert values(topic.read()) == list(range(7))

    def test_multiple_topics_work_independently(self, files: Log, clock: ManualClock) -> None:
        short = sealed_files(files, 3, 6, name="short", local_retention_ms=0)
        long = sealed_files(files, 3, 6, name="long", local_retention_ms=DAY_MS)
        unsealed = files.create_topic("unsealed", config={"local.retention.ms": 0})
        in_files(unsealed, 4)

        files.run_retention()

        assert [wal_seqs(each) for each in (short, long, unsealed)] == [[3], [1, 2, 3], [1, 2]]
        clock.move(DAY_MS)
        files.run_retention()
        assert [wal_seqs(each) for each in (short, long, unsealed)] == [[3], [3], [1, 2]]


class TestExecute:
    def test_it_can_be_switched_off(self, tmp_path: Path, clock: ManualClock) -> None:
        config = {"deleter.enabled": False, "local.retention.ms": 0, "wal.max.bytes": 0}
        with open_log(tmp_path / "d", clock, config) as log:
            topic = sealed_files(log, 3)
            assert log.run_retention().wal.deletions == ()
            assert wal_seqs(topic) == [1, 2]

    def test_a_dry_run_removes_nothing(self, files: Log) -> None:
        topic = sealed_files(files, 3, 6, local_retention_ms=0)

        report = files.run_retention(dry_run=True).wal

        assert [each.file.seq for each in report.deletions] == [1, 2]
        assert report.size_bytes > 0
        assert wal_seqs(topic) == [1, 2, 3]

    def test_the_bound_on_all_partitions_holds_over_topics(self, tmp_path: Path, clock: ManualClock) -> None:
        with open_log(tmp_path / "d", clock, {"wal.max.bytes": 0}) as log:
            topics = [sealed_files(log, 3, name=name) for name in ("a", "b")]
            log.run_retention()
            assert [wal_seqs(each) for each in topics] == [[2], [2]]

    def test_one_that_is_already_gone_is_forgotten_without_a_word(
        self, files: Log, caplog: pytest.LogCaptureFixture
    ) -> None:
        topic = sealed_files(files, 3, 6)
        (wal_path(topic) / "wal.0000000001.log").unlink()
        deleted = metric("retention_files_deleted_total")
        caplog.set_level(logging.INFO, "lastword.wal.deleter")
        caplog.clear()

        report = files.run_retention()

        assert [each.rule for each in report.wal.deletions] == ["already gone"]
        assert report.wal.errors == () and caplog.records == []
        assert metric("retention_files_deleted_total") == deleted
        assert topic.describe().partitions[0].wal_start == 3
        assert files.run_retention().wal.deletions == ()

    def test_a_file_that_is_not_sealed_is_refused_with_a_warning(
        self, files: Log, caplog: pytest.LogCaptureFixture
    ) -> None:
        topic = files.create_topic("t")
        in_files(topic, 3, 6)
        (wal,) = topic.local_wals()
        wrong = [
            Deletion(
                topic="t",
                partition=0,
                path=wal.folder / f"wal.{file.seq:010d}.log",
                file=file,
                rule="local.retention.ms",
                age_ms=0,
            )
            for file in wal.files
        ]

        for each in wrong:
            assert deleter.execute([wal], [each], NOW_MS).deletions == ()

        assert wal_seqs(topic) == [1, 2, 3]
        assert [each.levelname for each in caplog.records] == ["WARNING"] * 3
        assert "refused to delete" in caplog.text

    def test_each_deletion_is_logged_and_counted(
        self, files: Log, caplog: pytest.LogCaptureFixture, clock: ManualClock
    ) -> None:
        topic = sealed_files(files, 3, 6, local_retention_ms=0)
        size = topic.local_wals()[0].files[0].size_bytes or 0
        active = topic.local_wals()[0].files[-1].size_bytes
        before = [metric("retention_files_deleted_total"), metric("retention_bytes_reclaimed_total")]
        caplog.set_level(logging.INFO, "lastword.wal.deleter")
        clock.move(7000)

        files.run_retention()

        lines = [each.getMessage() for each in caplog.records if each.name == "lastword.wal.deleter"]
        assert len(lines) == 2
        assert f"offsets 0 to 2, {size} bytes, 7 s old, by local.retention.ms" in lines[0]
        assert metric("retention_files_deleted_total") - before[0] == 2
        assert metric("retention_bytes_reclaimed_total") - before[1] == 2 * size
        assert metric("disk_usage_bytes") == active
        assert metric("retention_last_run_timestamp") == clock.now_ms() / 1000

    def test_what_can_not_be_noted_is_noted_in_the_next_cycle(
        self, files: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = sealed_files(files, 3, local_retention_ms=0)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(checkpoints, "save_deleter", full)
            assert len(files.run_retention().wal.errors) == 1
        assert values(topic.read()) == list(range(4))
        files.run_retention()
        assert topic.describe().partitions[0].wal_start == 3

    def test_a_hundred_files_go_without_one_being_opened(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "p"
        folder.mkdir()
        files = tuple(
            LocalFile(seq=each, first_offset=each, end_offset=each + 1, rolled_ms=0, size_bytes=1)
            for each in range(1, 101)
        )
        active = LocalFile(seq=101, first_offset=101, end_offset=None, rolled_ms=None, size_bytes=1)
        for each in (*files, active):
            (folder / f"wal.{each.seq:010d}.log").write_bytes(b"x")
        wal = replace(
            local_wal(1, sealed_end=101, **{"local.retention.ms": 0}), folder=folder, files=(*files, active)
        )
        opened: list[str] = []
        real = os.open
        monkeypatch.setattr(
            os, "open", lambda path, *rest, **more: opened.append(str(path)) or real(path, *rest, **more)
        )

        deleted = deleter.execute([wal], deleter.propose([wal], broker(), NOW_MS), NOW_MS)

        assert len(deleted.deletions) == 100
        assert not [path for path in opened if path.endswith(".log")]
        assert [path.name for path in folder.glob("*.log")] == ["wal.0000000101.log"]

    def test_what_was_put_aside_goes_after_a_week(self, files: Log, clock: ManualClock) -> None:
        topic = sealed_files(files, 3)
        aside = wal_path(topic) / "aside"
        aside.mkdir()
        kept = aside / "wal.0000000009.log.failed"
        kept.write_bytes(b"x")
        # Last written long ago, but put aside now.
        os.utime(kept, (1, 1))

        clock.move(6 * DAY_MS)
        files.run_retention()
        assert kept.exists()
        clock.move(2 * DAY_MS)
        files.run_retention()
        assert not kept.exists()


def test_a_look_sees_files_sizes_and_ends(files: Log) -> None:
    topic = sealed_files(files, 3, 6)
    (wal,) = topic.local_wals()

    assert [(each.seq, each.first_offset, each.end_offset) for each in wal.files] == [
        (1, 0, 3),
        (2, 3, 6),
        (3, 6, None),
    ]
    sizes = [(wal_path(topic) / f"wal.{each.seq:010d}.log").stat().st_size for each in wal.files]
    assert [each.size_bytes for each in wal.files] == sizes
    assert wal.size_bytes == sum(sizes)
    assert wal.sealed_end == 6


def test_a_partition_without_a_wal_is_passed_over(tmp_path: Path) -> None:
    assert deleter.local_wal("t", 0, tmp_path, sealed_end=0, settings=settings()) is None
