"""The embedded log: its folder, its topics, and who may do what."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tests.support.alone import alone
from tests.support.clock import ManualClock
from tests.support.logs import (
    Killed,
    abandon,
    fill,
    kill_at,
    no_hook,  # noqa: F401 - a fixture that every test uses
    offsets,
    one_batch,
    open_log,
    values,
    wal_path,
)

import lastword
from lastword.config import BrokerConfig
from lastword.errors import (
    ClosedError,
    InvalidConfigError,
    InvalidError,
    InvalidTopicError,
    LockedError,
    TopicExistsError,
    UnavailableError,
    UnknownTopicError,
    WriteFailedError,
)
from lastword.folder import disk
from lastword.folder.locks import Role, RoleLock
from lastword.log import Log
from lastword.segments.model import SegmentGoneError, Snapshot


class TestFolder:
    def test_a_new_one_is_made_and_marked(self, tmp_path: Path, clock: ManualClock) -> None:
        with open_log(tmp_path / "a" / "b", clock):
            pass
        assert (tmp_path / "a" / "b" / "FORMAT").read_text() == "1\n"

    def test_without_create_it_must_be_there(self, tmp_path: Path, clock: ManualClock) -> None:
        for options in ({"create": False}, {"read_only": True}):
            with pytest.raises(InvalidError, match="There is no Lastword data"):
                open_log(tmp_path / "d", clock, **options)
        assert not (tmp_path / "d").exists()

    def test_another_format_is_refused(self, tmp_path: Path, clock: ManualClock) -> None:
        open_log(tmp_path / "d", clock).close()
        (tmp_path / "d" / "FORMAT").write_text("2\n")
        with pytest.raises(
            InvalidError, match="has the data format '2'; this version of Lastword reads '1' only"
        ):
            open_log(tmp_path / "d", clock)

    def test_somebody_elses_folder_is_refused_and_left_alone(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(InvalidError, match=r"is not empty .*thesis\.txt is there"):
            open_log(tmp_path, clock)
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]

    def test_a_file_is_not_a_folder(self, tmp_path: Path, clock: ManualClock) -> None:
        (tmp_path / "f").write_text("x")
        with pytest.raises(InvalidError, match="is not a folder"):
            open_log(tmp_path / "f", clock)

    def test_a_first_open_that_was_killed_does_not_stand_in_the_way(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(fd: int) -> None:
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(disk, "write", lambda fd, data: killed(fd))
            with pytest.raises(Killed):
                open_log(tmp_path / "d", clock)
        with open_log(tmp_path / "d", clock) as log:
            fill(log.create_topic("t"), 0, 1)

    @pytest.mark.parametrize("character", ["?", "#"])
    def test_a_path_that_can_not_be_said_as_a_uri_is_refused(
        self, tmp_path: Path, clock: ManualClock, character: str
    ) -> None:
        with pytest.raises(InvalidConfigError, match="must not have '#' or '\\?' in its path"):
            open_log(tmp_path / f"a{character}b", clock)

    def test_a_settings_file_may_be_there_already_and_is_read(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        (tmp_path / "lastword.yaml").write_text("retention.ms: 5000\n")
        with lastword.open(tmp_path, clock=clock) as log:
            assert log.create_topic("t").settings.retention_ms == 5000

    def test_strange_characters_in_the_path(self, tmp_path: Path, clock: ManualClock) -> None:
        folder = tmp_path / "a b%20é"
        with open_log(folder, clock) as log:
            topic = log.create_topic("t")
            fill(topic, 0, 2)
            topic.seal()
        assert (folder / "catalog.db").exists()
        with open_log(folder, clock) as log:
            assert values(log.topic("t").read()) == [0, 1]


class TestConfig:
    def test_topic_over_namespace_over_broker_over_default(self, tmp_path: Path, clock: ManualClock) -> None:
        config = {
            "retention.ms": 4000,
            "segment.ms": 4000,
            "tiering.lag.ms": 4000,
            "namespaces": {"ns": {"segment.ms": 3000, "tiering.lag.ms": 0}},
        }
        with open_log(tmp_path / "d", clock, config) as log:
            topic = log.create_topic("ns.t", config={"segment.ms": 2000})
            held = topic.settings
            assert (held.retention_ms, held.segment_ms, held.tiering_lag_ms) == (4000, 2000, 0)
            assert held.max_message_bytes == 1048588
            sources = {each.key: each.source for each in log.explain_config("ns.t")}
            assert sources["segment.ms"] == "topic"
            assert sources["tiering.lag.ms"] == "namespace ns"
            assert sources["retention.ms"] == "broker"
            assert sources["max.message.bytes"] == "default"
            assert {each.key for each in log.explain_config()} >= {"wal.sync", "retention.ms"}

    def test_a_file_a_mapping_and_a_config_are_the_same(self, tmp_path: Path, clock: ManualClock) -> None:
        file = tmp_path / "other.yaml"
        file.write_text("retention.ms: 7000\n")
        for number, config in enumerate(
            (file, str(file), {"retention.ms": 7000}, BrokerConfig.load(file), {"retention": {"ms": "7000"}})
        ):
            with lastword.open(tmp_path / f"d{number}", config=config, clock=clock) as log:
                assert log.create_topic("t").settings.retention_ms == 7000

    def test_an_error_in_it_leaves_no_folder(self, tmp_path: Path, clock: ManualClock) -> None:
        with pytest.raises(InvalidConfigError, match=r"retention\.mss"):
            open_log(tmp_path / "d", clock, {"retention.mss": 1})
        assert not (tmp_path / "d").exists()


class TestCreate:
    def test_it_is_there_at_once_and_after_a_restart(self, tmp_path: Path, clock: ManualClock) -> None:
        with open_log(tmp_path / "d", clock) as log:
            topic = log.create_topic("ns.t", partitions=3, config={"cleanup.policy": "compact"})
            assert (topic.name, topic.partitions) == ("ns.t", 3)
            assert log.topics() == ["ns.t"]
            assert log.topic("ns.t") is topic
        with open_log(tmp_path / "d", clock) as log:
            again = log.topic("ns.t")
            assert (again.id, again.partitions) == (topic.id, 3)
            assert dict(again.config) == {"cleanup.policy": "compact"}

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "default.t", "a..b", ".a", "a.", "x" * 250, "ü"])
    def test_names_that_are_not_allowed(self, log: Log, name: str) -> None:
        with pytest.raises(InvalidTopicError):
            log.create_topic(name)
        assert log.topics() == []

    def test_a_name_that_is_taken_or_differs_in_case_only(self, log: Log) -> None:
        log.create_topic("Orders")
        with pytest.raises(TopicExistsError):
            log.create_topic("Orders")
        with pytest.raises(InvalidTopicError, match="only in case"):
            log.create_topic("orders")
        assert log.topics() == ["Orders"]

    def test_names_that_look_alike_share_nothing(self, log: Log) -> None:
        names = ["a", "a.b", "b", "a.b.c", "b.a", "x" * 249]
        for number, name in enumerate(names):
            fill(log.create_topic(name), number, number + 1)
        assert sorted(log.topics()) == sorted(names)
        for number, name in enumerate(names):
            assert values(log.topic(name).read()) == [number]
        log.delete_topic("a")
        assert values(log.topic("a.b").read()) == [1]

    @pytest.mark.parametrize("partitions", [0, -1, 10_001])
    def test_a_partition_count_that_is_not_allowed(self, log: Log, partitions: int) -> None:
        with pytest.raises(InvalidTopicError, match="1 to 10000 are allowed"):
            log.create_topic("t", partitions=partitions)
        assert log.topics() == []

    @pytest.mark.parametrize(
        "config",
        [
            {"retention.mss": 1},
            {"retention.ms": "soon"},
            {"wal.sync": "none"},
            {"compaction.strategy": "header"},
            {"min.compaction.lag.ms": 2, "max.compaction.lag.ms": 1},
            {"local.retention.ms": 2, "retention.ms": 1},
        ],
    )
    def test_a_config_that_does_not_hold_creates_nothing(self, log: Log, config: dict[str, object]) -> None:
        with pytest.raises(InvalidConfigError):
            log.create_topic("t", config=config)
        assert log.topics() == []
        assert not list((log.path / "wal").rglob("*.log"))

    def test_an_unknown_topic(self, log: Log) -> None:
        for call in (log.topic, log.delete_topic, log.alter_topic, log.explain_config):
            with pytest.raises(UnknownTopicError):
                call("nope")


class TestAlter:
    def test_settings_are_set_and_taken_back(self, tmp_path: Path, clock: ManualClock) -> None:
        with open_log(tmp_path / "d", clock) as log:
            topic = log.create_topic("t", config={"retention.ms": 9000, "segment.ms": 9000})
            log.alter_topic("t", set_config={"retention.ms": 8000}, unset=["segment.ms"])
            assert topic.settings.retention_ms == 8000
            assert topic.settings.segment_ms == 604800000
            assert all(each.writer.settings is topic.settings for each in topic.all_partitions())
        with open_log(tmp_path / "d", clock) as log:
            assert dict(log.topic("t").config) == {"retention.ms": "8000"}

    def test_a_running_writer_rolls_by_what_holds_now(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 1)
        log.alter_topic("t", set_config={"segment.bytes": 14})
        fill(topic, 1, 3)
        assert len(topic.local_wals()[0].files) == 3

    @pytest.mark.parametrize(
        "change",
        [
            {"set_config": {"retention.ms": 1, "nope": 2}},
            {"set_config": {"retention.ms": 1}, "unset": ["segment.ms"]},
            {"set_config": {"retention.ms": 1}, "partitions": 1},
            {"set_config": {"retention.ms": 1}, "partitions": 99_999},
            {"set_config": {"retention.ms": 1, "min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4}},
        ],
    )
    def test_nothing_is_half_applied(self, log: Log, change: dict[str, object]) -> None:
        topic = log.create_topic("t", partitions=2, config={"retention.ms": 9000})
        before = topic.settings, topic._table.snapshot().id
        with pytest.raises(InvalidError):
            log.alter_topic("t", **change)  # type: ignore[arg-type]
        assert (topic.settings, topic._table.snapshot().id) == before
        assert (topic.partitions, dict(topic.config)) == (2, {"retention.ms": "9000"})

    def test_partitions_are_added_and_can_be_used(self, log: Log, caplog: pytest.LogCaptureFixture) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 2)
        topic.seal()
        log.alter_topic("t", partitions=3)
        fill(topic, 10, 12, partition=2)
        assert sorted(values(topic.read())) == [0, 1, 10, 11]
        topic.seal()
        assert [each.sealed_end for each in topic.describe().partitions] == [2, 0, 2]
        assert "is compacted" not in caplog.text

    def test_on_a_compacted_topic_that_warns(self, log: Log, caplog: pytest.LogCaptureFixture) -> None:
        log.create_topic("t", config={"cleanup.policy": "compact"})
        log.alter_topic("t", partitions=2)
        assert "is compacted and has 2 partitions now" in caplog.text


class TestDelete:
    def test_everything_that_belongs_to_it_goes(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        topic.seal()
        fill(topic, 3, 4)
        with topic.reader("r") as reader:
            reader.commit()
        log.delete_topic("t")

        assert log.topics() == []
        left = [path for path in log.path.rglob("*") if path.is_file() and topic.id.hex in str(path)]
        assert left == []
        assert not list((log.path / "warehouse").rglob("*.parquet"))
        assert list((log.path / "deleting").iterdir()) == []
        with pytest.raises(ClosedError):
            topic.append("k", "v")
        with pytest.raises(UnknownTopicError):
            log.topic("t")

    def test_created_again_it_shares_nothing(self, log: Log) -> None:
        old = log.create_topic("t", partitions=2, config={"cleanup.policy": "compact"})
        fill(old, 0, 3)
        old.seal()
        log.delete_topic("t")
        new = log.create_topic("t")
        assert new.id != old.id
        assert (new.partitions, dict(new.config)) == (1, {})
        assert values(new.read()) == []
        assert new.append("k", "0").offset == 0
        assert wal_path(new) != wal_path(old)

    @pytest.mark.parametrize(
        "step",
        [
            "topic.deletion.marked",
            "drop.entry.removed",
            "topic.deletion.dropped",
            "topic.deletion.wal_removed",
            "topic.deletion.files_removed",
        ],
    )
    def test_killed_at_any_step_the_next_open_finishes_it(
        self, tmp_path: Path, clock: ManualClock, step: str
    ) -> None:
        log = open_log(tmp_path / "d", clock)
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        topic.seal()
        kill_at(step)
        with pytest.raises(Killed):
            log.delete_topic("t")
        abandon(log)

        with open_log(tmp_path / "d", clock) as log:
            assert log.topics() == []
            assert values(log.create_topic("t").read()) == []
            left = [path for path in log.path.rglob("*") if path.is_file() and topic.id.hex in str(path)]
            assert left == []

    def test_killed_before_it_is_decided_the_topic_is_whole(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "d", clock)
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        kill_at("topic.deletion.noted")
        with pytest.raises(Killed):
            log.delete_topic("t")
        abandon(log)

        with open_log(tmp_path / "d", clock) as log:
            assert values(log.topic("t").read()) == [0, 1, 2]
            assert list((log.path / "deleting").iterdir()) == []

    def test_what_can_not_be_removed_now_is_tried_again(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = open_log(tmp_path / "d", clock)
        fill(log.create_topic("t"), 0, 1)
        kill_at("topic.deletion.marked")
        with pytest.raises(Killed):
            log.delete_topic("t")
        abandon(log)

        def refused(folder: Path) -> None:
            raise PermissionError(13, "Permission denied")

        with monkeypatch.context() as patched:
            patched.setattr("lastword.log.lifecycle._remove_tree", refused)
            log = open_log(tmp_path / "d", clock)
        assert log.topics() == []
        log.run_retention()
        assert list((log.path / "deleting").iterdir()) == []
        log.close()

    def test_a_topic_whose_wal_fails_can_be_deleted(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 1)
        topic.partition(0).writer.stage(one_batch("1"))

        def broken(fd: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(disk, "fdatasync", broken)
        log.delete_topic("t")
        assert log.topics() == []


class TestRoles:
    def test_there_is_one_writer(self, tmp_path: Path, clock: ManualClock) -> None:
        with open_log(tmp_path / "d", clock), pytest.raises(LockedError, match=f"process {os.getpid()}"):
            open_log(tmp_path / "d", clock)
        open_log(tmp_path / "d", clock).close()

    def test_one_does_maintenance(self, tmp_path: Path, clock: ManualClock) -> None:
        with open_log(tmp_path / "d", clock) as log:
            topic = log.create_topic("t")
            with RoleLock.acquire(log.path, Role.MAINTENANCE, clock):
                for act in (topic.seal, log.run_retention, topic.skip_wal_damage):
                    with pytest.raises(LockedError, match="is its maintenance"):
                        act()
                fill(topic, 0, 2)
                assert values(topic.read()) == [0, 1]
            topic.seal()

    def test_read_only_reads_beside_a_writer_and_changes_nothing(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        with open_log(tmp_path / "d", clock) as log, open_log(tmp_path / "d", clock, read_only=True) as other:
            topic = log.create_topic("t")
            fill(topic, 0, 3)
            seen = other.topic("t")
            assert values(seen.read()) == [0, 1, 2]
            assert seen.extents() == topic.extents()
            assert len(seen.state()) == 3
            refused = [
                lambda: seen.append("k", "v"),
                lambda: seen.delete_records({0: 1}),
                lambda: seen.reopen_partition(0),
                seen.seal,
                seen.skip_wal_damage,
                lambda: other.create_topic("u"),
                lambda: other.alter_topic("t", partitions=2),
                lambda: other.delete_topic("t"),
                other.run_retention,
            ]
            for act in refused:
                with pytest.raises(InvalidError, match="opened for reading"):
                    act()
            assert other.topics() == ["t"]

    def test_read_only_follows_what_the_writer_makes_of_a_topic(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        with open_log(tmp_path / "d", clock) as log, open_log(tmp_path / "d", clock, read_only=True) as other:
            fill(log.create_topic("t"), 0, 1)
            assert other.topic("t").partitions == 1
            log.alter_topic("t", partitions=2, set_config={"retention.ms": 5000})
            fill(log.topic("t"), 7, 8, partition=1)
            assert other.topic("t").settings.retention_ms == 5000
            assert sorted(values(other.topic("t").read())) == [0, 7]
            log.delete_topic("t")
            with pytest.raises(UnknownTopicError):
                other.topic("t")
            fill(log.create_topic("t"), 4, 5)
            assert values(other.topic("t").read()) == [4]

    def test_closed_is_closed(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "d", clock)
        topic = log.create_topic("t")
        log.close()
        log.close()
        for act in (log.topics, log.run_retention, lambda: log.topic("t"), lambda: log.create_topic("u")):
            with pytest.raises(ClosedError):
                act()
        for act in (lambda: topic.append("k", "v"), topic.read, topic.state, topic.seal, topic.extents):
            with pytest.raises(ClosedError):
                act()


class TestSyncModes:
    def test_an_interval_syncs_in_the_background(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced = threading.Event()
        monkeypatch.setattr(disk, "fdatasync", lambda fd: synced.set())
        with open_log(tmp_path / "d", clock, {"wal.sync": "interval:1"}) as log:
            fill(log.create_topic("t"), 0, 1)
            assert synced.wait(180)
            flusher = log._writer.flusher
        assert flusher is not None and not flusher._thread.is_alive()

    @pytest.mark.parametrize("sync", ["group", "none", "interval:100000"])
    def test_all_of_them_outlive_the_process(self, tmp_path: Path, clock: ManualClock, sync: str) -> None:
        log = open_log(tmp_path / "d", clock, {"wal.sync": sync})
        fill(log.create_topic("t"), 0, 5)
        abandon(log)
        with open_log(tmp_path / "d", clock) as log:
            assert values(log.topic("t").read()) == [0, 1, 2, 3, 4]


class TestFailures:
    def test_a_partition_that_failed_is_reopened_by_hand_and_the_others_go_on(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = log.create_topic("t", partitions=2)
        fill(topic, 0, 2, partition=0)

        def broken(fd: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(disk, "fdatasync", broken)
            with pytest.raises(WriteFailedError):
                fill(topic, 2, 3, partition=0)
        with pytest.raises(WriteFailedError):
            fill(topic, 2, 3, partition=0)
        fill(topic, 0, 1, partition=1)
        assert "Input/output error" in (topic.describe().partitions[0].problem or "")
        report = topic.seal()
        assert [partition for partition, _ in report.problems] == [0]
        assert values(topic.read(partition=0)) == [0, 1]

        topic.reopen_partition(0)
        assert topic.describe().partitions[0].problem is None
        fill(topic, 2, 3, partition=0)
        topic.seal()
        assert values(topic.read(partition=0)) == [0, 1, 2]

    def test_reopening_on_a_disk_that_still_fails_says_so(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 1)

        def broken(fd: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(disk, "fdatasync", broken)
        with pytest.raises(WriteFailedError):
            fill(topic, 1, 2)
        monkeypatch.setattr(disk, "fsync", broken)
        with pytest.raises(UnavailableError, match="It can be read, not written"):
            topic.reopen_partition(0)
        assert values(topic.read()) == [0]
        monkeypatch.undo()
        topic.reopen_partition(0)
        fill(topic, 1, 2)
        assert values(topic.read()) == [0, 1]

    def test_closing_tells_the_first_error_after_closing_everything(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = open_log(tmp_path / "d", clock, {"wal.sync": "none"})
        topic = log.create_topic("t", partitions=2)
        for partition in range(2):
            fill(topic, 0, 1, partition=partition)

        def broken(fd: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(disk, "fdatasync", broken)
            with pytest.raises(WriteFailedError):
                log.close()
        with open_log(tmp_path / "d", clock) as log:
            assert offsets(log.topic("t").read()) == [0, 0]


def _live_and_count(place: str) -> None:
    """Open and close logs, and compare what this process has open and running before and after."""

    def life(name: str) -> None:
        with open_log(Path(place) / name, ManualClock(), {"wal.sync": "interval:50"}) as log:
            for number in range(3):
                topic = log.create_topic(f"t{number}", partitions=3)
                for partition in range(3):
                    fill(topic, 0, 2, partition=partition)
                topic.seal()
                list(topic.read())
                topic.state()
            log.run_retention()
            log.delete_topic("t1")
            with pytest.raises(LockedError):
                open_log(Path(place) / name, ManualClock())

    def everything() -> tuple[int, int]:
        return sum(1 for _ in Path("/proc/self/fd").iterdir()), threading.active_count()

    life("warm")
    before = everything()
    for name in ("a", "a2", "a3"):
        life(name)
    assert everything() == before


def test_open_and_close_leave_no_file_and_no_thread(tmp_path: Path) -> None:
    alone(_live_and_count, str(tmp_path))


def test_describe_looks_again_when_its_snapshot_goes(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = {"snapshot.retention.ms": 0, "collect.grace.ms": 0}
    with (
        open_log(tmp_path / "data", clock, at_once) as log,
        lastword.open(log.path, read_only=True, clock=clock) as beside,
    ):
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        topic.seal()
        seen = beside.topic("t")
        look = seen.table.snapshot

        def look_slowly() -> Snapshot:
            found = look()
            monkeypatch.undo()
            topic.delete_records({0: 3})
            # Two more commits and a round after each: then not even the metadata of what it found is there.
            for lag_ms in (6000, 7000):
                clock.move(100_000)
                log.run_retention()
                log.alter_topic("t", set_config={"tiering.lag.ms": lag_ms})
            log.run_retention()
            with pytest.raises(SegmentGoneError):
                seen.table.plan(found)
            return found

        monkeypatch.setattr(seen.table, "snapshot", look_slowly)
        described = seen.describe()
    assert described.partitions[0].sealed_records == 0


def test_describe_shows_what_is_where(log: Log) -> None:
    topic = log.create_topic("t", partitions=2, config={"cleanup.policy": "compact"})
    fill(topic, 0, 3)
    topic.seal()
    fill(topic, 3, 5)
    topic.delete_records({0: 1})

    described = topic.describe()

    assert (described.name, described.id, described.cleanup_policy) == ("t", topic.id, "compact")
    first, second = described.partitions
    assert (first.log_start, first.sealed_end, first.log_end) == (1, 3, 5)
    assert (first.segments, first.sealed_records, first.wal_files) == (1, 3, 2)
    assert first.sealed_bytes > 0 and first.wal_bytes > 0
    assert (second.log_end, second.segments, second.wal_files, second.problem) == (0, 0, 1, None)
