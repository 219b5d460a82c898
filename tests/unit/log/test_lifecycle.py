"""The end of topics beside everything else that goes on: who finishes it, what fails, what stays whole."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import (
    Killed,
    abandon,
    fill,
    kill_at,
    no_hook,  # noqa: F401 - a fixture that every test uses
    open_log,
    values,
)

from lastword.errors import ClosedError, StorageError, UnavailableError, UnknownTopicError
from lastword.folder import disk, steps
from lastword.log import Log
from lastword.log.lifecycle import Lifecycle
from lastword.segments.catalog import SegmentCatalog, sqlite_properties
from lastword.segments.model import TopicInfo
from lastword.segments.table import SegmentTable

INLINE = {"compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory"}


class Gate:
    """Stops one thread at a named step until it is opened."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._reached = threading.Event()
        self._open = threading.Event()
        self._passed = False
        self.thread: threading.Thread | None = None
        steps.install(self._hook)

    def _hook(self, name: str) -> None:
        if name == self._step and not self._passed:
            self._passed = True
            self.thread = threading.current_thread()
            self._reached.set()
            assert self._open.wait(180)

    def wait(self) -> None:
        assert self._reached.wait(180)

    def open(self) -> None:
        self._open.set()


def in_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def fail_marks(monkeypatch: pytest.MonkeyPatch, *, made: bool = False, blind: bool = False) -> None:
    """Have the commit that marks a topic as deleted fail: before or after it is made, with or without a look at it."""
    alter = SegmentTable.alter

    def failing(self: SegmentTable, base: Any, **changes: Any) -> Any:
        if blind and not changes.get("deleted"):
            raise StorageError("the object store does not answer")
        if changes.get("deleted"):
            if made:
                alter(self, base, **changes)
            raise StorageError("the object store does not answer")
        return alter(self, base, **changes)

    monkeypatch.setattr(SegmentTable, "alter", failing)


class TestADeletionThatFails:
    def test_the_topic_is_whole_and_stays(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open_log(tmp_path / "d", clock, INLINE) as log:
            topic = log.create_topic("t")
            fill(topic, 0, 1)
            with monkeypatch.context() as patched:
                fail_marks(patched)
                with pytest.raises(StorageError, match="does not answer"):
                    log.delete_topic("t")
            assert log.topics() == ["t"]
            assert log.opened_topics()["t"] is topic
            fill(topic, 1, 3)
            with open_log(tmp_path / "d", clock, INLINE, maintain_only=True) as worker:
                worker.run_retention(steps=["collect"])
            log.create_topic("u")
            fill(topic, 3, 4)
            assert values(log.topic("t").read()) == [0, 1, 2, 3]
        with open_log(tmp_path / "d", clock, INLINE) as log:
            assert values(log.topic("t").read()) == [0, 1, 2, 3]
            log.delete_topic("t")
            assert log.topics() == ["u"]

    def test_a_mark_that_was_made_all_the_same_is_the_deletion(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = log.create_topic("t")
        fail_marks(monkeypatch, made=True)
        log.delete_topic("t")
        assert log.topics() == []
        with pytest.raises(ClosedError):
            topic.append("k", "v")

    def test_as_long_as_nobody_knows_nothing_is_acknowledged(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 1)
        with monkeypatch.context() as patched:
            fail_marks(patched, blind=True)
            with pytest.raises(UnavailableError, match="is not known"):
                log.delete_topic("t")
            with pytest.raises(ClosedError):
                topic.append("k", "v")
            with pytest.raises(UnavailableError, match="does not answer"):
                log.topic("t")
            assert log.undecided() == {"t"}
        fill(log.topic("t"), 1, 2)
        assert log.undecided() == set()
        assert values(log.topic("t").read()) == [0, 1]

    def test_one_that_others_find_to_be_there_still_waits_to_be_opened(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log.create_topic("t")
        with monkeypatch.context() as patched:
            fail_marks(patched, blind=True)
            with pytest.raises(UnavailableError, match="is not known"):
                log.delete_topic("t")
        # Settles every deletion, and opens only its own topic.
        log.create_topic("other")
        assert log.undecided() == {"t"}
        log.topic("t")
        assert log.undecided() == set()

    def test_a_mark_that_comes_late_is_refused(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        """A request that timed out may still be carried out: but not after the topic has been found to be whole."""
        topic = log.create_topic("t")
        late: list[Callable[[], object]] = []
        alter = SegmentTable.alter

        def delayed(self: SegmentTable, base: Any, **changes: Any) -> Any:
            if changes.get("deleted"):
                late.append(lambda: alter(self, base, **changes))
                raise StorageError("timed out")
            return alter(self, base, **changes)

        monkeypatch.setattr(SegmentTable, "alter", delayed)
        with pytest.raises(StorageError, match="timed out"):
            log.delete_topic("t")
        with pytest.raises(UnavailableError):
            late[0]()
        fill(topic, 0, 1)
        assert values(log.topic("t").read()) == [0]

    def test_what_fails_after_the_mark_is_done_later(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(log.create_topic("t"), 0, 1)

        def refused(folder: Path) -> None:
            raise PermissionError(13, "Permission denied")

        with monkeypatch.context() as patched:
            patched.setattr("lastword.log.lifecycle._remove_tree", refused)
            log.delete_topic("t")
        assert log.topics() == []
        assert list((log.path / "wal").rglob("*.log"))
        log.run_retention()
        assert not list((log.path / "wal").rglob("*.log"))
        assert list((log.path / "deleting").iterdir()) == []


class TestWhoFinishesIt:
    def test_a_topic_created_again_is_not_touched_by_the_deletion_of_the_old_one(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        with (
            open_log(tmp_path / "d", clock, INLINE) as log,
            open_log(tmp_path / "d", clock, INLINE, maintain_only=True) as worker,
        ):
            old = log.create_topic("t")
            fill(old, 0, 1)
            old.seal()
            gate = Gate("topic.deletion.wal_removed")
            deleting = in_thread(lambda: log.delete_topic("t"))
            gate.wait()
            new = log.create_topic("t")
            fill(new, 5, 7)
            new.seal()
            gate.open()
            deleting.join()
            worker.run_retention(steps=["collect"])
            fill(new, 7, 8)
            assert log.topics() == ["t"]
            assert values(new.read()) == [5, 6, 7]
        with open_log(tmp_path / "d", clock, INLINE) as log:
            assert values(log.topic("t").read()) == [5, 6, 7]
            assert [each.name for each in (log.path / "wal" / "default" / "t").iterdir()] == [new.id.hex]

    def test_maintenance_asks_the_writer_to(self, tmp_path: Path, clock: ManualClock) -> None:
        with (
            open_log(tmp_path / "d", clock, INLINE) as log,
            open_log(tmp_path / "d", clock, INLINE, maintain_only=True) as worker,
        ):
            topic = log.create_topic("t")
            fill(topic, 0, 1)
            kill_at("topic.deletion.marked")
            with pytest.raises(Killed):
                log.delete_topic("t")
            gate = Gate("topic.deletion.dropped")
            gate.open()
            worker.run_retention(steps=["collect"])
            assert gate.thread is not None and gate.thread is not threading.current_thread()
            assert list((log.path / "deleting").iterdir()) == []
            with pytest.raises(ClosedError):
                topic.append("k", "v")

    def test_without_a_writer_maintenance_does_it(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "d", clock, INLINE)
        fill(log.create_topic("t"), 0, 1)
        kill_at("topic.deletion.marked")
        with pytest.raises(Killed):
            log.delete_topic("t")
        abandon(log)
        with open_log(tmp_path / "d", clock, INLINE, maintain_only=True) as worker:
            worker.run_retention(steps=["collect"])
            assert not list((tmp_path / "d").rglob("*.parquet"))
            assert list((tmp_path / "d" / "deleting").iterdir()) == []

    def test_a_note_never_leads_to_the_place_that_a_folder_was_copied_from(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        log = open_log(tmp_path / "d", clock, INLINE)
        topic = log.create_topic("t")
        fill(topic, 0, 1)
        topic.seal()
        kill_at("topic.deletion.dropped")
        with pytest.raises(Killed):
            log.delete_topic("t")
        abandon(log)
        shutil.copytree(tmp_path / "d", tmp_path / "copy")
        copied = SegmentCatalog.open(
            properties=sqlite_properties(tmp_path / "copy" / "catalog.db"),
            warehouse=str(tmp_path / "copy" / "warehouse"),
            clock=clock,
        )
        copy = Lifecycle(tmp_path / "copy", copied, clock)
        for deletion in copy.deletions():
            copy.clean(deletion)
        copied.close()
        assert not list((tmp_path / "copy" / "warehouse").rglob("*.parquet"))
        assert list((tmp_path / "d" / "warehouse").rglob("*.parquet"))

    def test_nothing_is_appended_to_a_topic_that_is_being_deleted(self, log: Log) -> None:
        topic = log.create_topic("t")
        gate = Gate("topic.deletion.wal_removed")
        deleting = in_thread(lambda: log.delete_topic("t"))
        gate.wait()
        with pytest.raises(ClosedError):
            topic.append("k", "v")
        with pytest.raises(UnknownTopicError):
            log.topic("t")
        gate.open()
        deleting.join()


class TestOthersGoOn:
    @pytest.mark.parametrize(
        "step",
        [
            "topic.deletion.marked",
            "topic.deletion.dropped",
            "topic.deletion.wal_removed",
            "topic.creation.noted",
        ],
    )
    def test_the_interval_sync_and_rolls_of_other_topics(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        synced = threading.Event()
        sync = disk.fdatasync

        def noted(fd: int) -> None:
            sync(fd)
            synced.set()

        with (
            open_log(tmp_path / "d", clock, {**INLINE, "wal.sync": "interval:10"}) as log,
            open_log(tmp_path / "d", clock, INLINE, maintain_only=True) as worker,
        ):
            topic = log.create_topic("a")
            log.create_topic("b")
            fill(topic, 0, 1)
            gate = Gate(step)
            changing = in_thread(
                (lambda: log.create_topic("c")) if "creation" in step else (lambda: log.delete_topic("b"))
            )
            gate.wait()
            monkeypatch.setattr(disk, "fdatasync", noted)
            fill(log.topic("a"), 1, 2)
            assert synced.wait(180)
            assert worker.topic("a").seal().records == 2
            gate.open()
            changing.join()


class TestAJobThatWritesMeanwhile:
    @pytest.mark.parametrize("job", ["compact", "seal"])
    def test_what_it_writes_goes_too(self, tmp_path: Path, clock: ManualClock, job: str) -> None:
        with (
            open_log(tmp_path / "d", clock, INLINE) as log,
            open_log(tmp_path / "d", clock, INLINE, maintain_only=True) as worker,
        ):
            topic = log.create_topic("t", config={"cleanup.policy": "compact"})
            for _ in range(2):
                fill(topic, 0, 3)
                topic.seal()
            fill(topic, 3, 4)
            found: list[Any] = []

            def work() -> None:
                if job == "compact":
                    found.append(worker.compact(asked_for=True))
                else:
                    found.append(worker.visit(lambda name: worker.topic(name).seal()))

            gate = Gate("segment.file.opening")
            working = in_thread(work)
            gate.wait()
            log.delete_topic("t")
            assert len(list((log.path / "deleting").iterdir())) == 1
            gate.open()
            working.join()
            if job == "compact":
                assert (found[0].partitions, found[0].failed_topics) == ((), ())
            else:
                assert (found[0].found, found[0].problems) == ({}, {})

            worker.run_retention(steps=["collect"])

            assert [path for path in log.path.rglob("*") if topic.id.hex in str(path)] == []
            assert log.topics() == []

    def test_a_replay_that_goes_on_does_not_keep_anything(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        topic.seal()
        reading = topic.read()
        next(reading)
        log.delete_topic("t")
        assert [path for path in log.path.rglob("*") if topic.id.hex in str(path)] == []


class TestWhatComesBetween:
    def test_partitions_that_are_added_to_it_leave_nothing(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = log.create_topic("t")
        changed = topic.changed

        def deleted_before(info: TopicInfo) -> None:
            log.delete_topic("t")
            changed(info)

        monkeypatch.setattr(topic, "changed", deleted_before)
        log.alter_topic("t", partitions=3)
        assert [path for path in log.path.rglob("*") if topic.id.hex in str(path)] == []
        with pytest.raises(ClosedError):
            topic.append("k", "v", partition=0)

    def test_a_partition_is_not_reopened(self, log: Log) -> None:
        topic = log.create_topic("t")
        log.delete_topic("t")
        with pytest.raises(ClosedError):
            topic.reopen_partition(0)
        assert [path for path in log.path.rglob("*") if topic.id.hex in str(path)] == []

    def test_a_deletion_by_id_leaves_a_topic_that_was_created_again(self, log: Log) -> None:
        old = log.create_topic("t")
        log.delete_topic("t", topic_id=old.id)
        new = log.create_topic("t")
        with pytest.raises(UnknownTopicError, match="has been deleted"):
            log.delete_topic("t", topic_id=old.id)
        fill(new, 0, 1)
        assert log.topics() == ["t"]
        assert list((log.path / "deleting").iterdir()) == []


def test_a_deletion_can_be_noted_while_others_are_finished(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path / "data", clock, INLINE) as log:
        log.create_topic("t")
        sync = disk.fsync
        met: list[str] = []

        def finish_meanwhile(fd: int) -> None:
            sync(fd)
            if not met and (noting := list((tmp_path / "data" / "deleting").glob("*.tmp"))):
                met.append(noting[0].name)
                # As the worker asks of the writer at any time.
                in_thread(lambda: log.run_retention(steps=["collect"])).join(180)

        monkeypatch.setattr(disk, "fsync", finish_meanwhile)
        log.delete_topic("t")
        assert met
        assert log.topics() == []


def test_a_note_that_was_being_written_when_its_process_was_killed_goes_with_the_next_start(
    tmp_path: Path, clock: ManualClock
) -> None:
    folder = tmp_path / "data"
    with open_log(folder, clock, INLINE) as log:
        fill(log.create_topic("t"), 0, 3)
    for name in ("creating", "deleting"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / f"{'0' * 32}.tmp").write_bytes(b'{"na')
    with open_log(folder, clock, INLINE) as log:
        assert values(log.topic("t").read()) == [0, 1, 2]
        assert not list(folder.glob("*ing/*.tmp"))
