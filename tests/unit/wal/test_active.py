"""The active file: group commit, what is shown when, and what a failure leaves."""

from __future__ import annotations

import os

import pytest
from tests.support.logs import WalFolder, numbered, one_batch
from tests.support.syncs import Syncs, in_thread, waiting
from tests.support.waiting import wait_until

from lastword.errors import WriteFailedError
from lastword.folder import disk, steps
from lastword.wal.state import Phase


class TestGroupCommit:
    def test_an_append_is_synced_before_it_is_answered(self, wal: WalFolder, syncs: Syncs) -> None:
        with wal.opened() as writer:
            wal.fill(writer, 0, 3)

            assert syncs.count == 3
            assert wal.state.durable_offset == wal.state.visible_offset == 3

    def test_those_who_wait_together_share_a_sync(self, wal: WalFolder, syncs: Syncs) -> None:
        writer = wal.open()
        syncs.may_go.clear()
        threads = [in_thread(lambda: writer.append(one_batch("first")))]
        assert syncs.entered.wait(180)
        threads += [in_thread(lambda: writer.append(one_batch("other"))) for _ in range(8)]
        wait_until(lambda: waiting(writer) == 8)
        assert writer.end_offset == 9
        assert writer.visible_end == 0
        syncs.may_go.set()
        for thread in threads:
            thread.join(180)

        assert writer.visible_end == 9
        # The first one's, and one for the eight who came meanwhile.
        assert syncs.count == 2
        writer.close()

    def test_nothing_is_shown_before_its_sync(self, wal: WalFolder, syncs: Syncs) -> None:
        with wal.opened() as writer:
            wal.fill(writer, 0, 2)
            writer.stage(one_batch("2"))

            assert wal.read() == numbered(0, 2)
            writer.wait_durable(3)
            assert wal.read() == numbered(0, 3)

    def test_after_an_interrupted_sync_another_one_takes_over(self, wal: WalFolder, syncs: Syncs) -> None:
        writer = wal.open()

        def interrupt(step: str) -> None:
            if step == "wal.synced":
                steps.install(None)
                raise KeyboardInterrupt

        steps.install(interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.append(one_batch("0"))

        assert writer.append(one_batch("1")) == 1
        writer.close()
        assert wal.read() == numbered(0, 2)

    def test_an_interrupt_between_a_write_and_its_counting_can_not_double_offsets(
        self, wal: WalFolder
    ) -> None:
        writer = wal.open()
        wal.fill(writer, 0, 2)

        def interrupt(step: str) -> None:
            steps.install(None)
            raise KeyboardInterrupt

        steps.install(interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.append(one_batch("lost"))

        with pytest.raises(WriteFailedError):
            writer.append(one_batch("2"))
        writer.close()
        with wal.opened() as writer:
            wal.fill(writer, 2, 3)
        assert wal.read() == numbered(0, 3)


class TestSyncModes:
    @pytest.mark.parametrize("sync", ["none", "interval:60000"])
    def test_without_group_an_append_is_shown_at_once_and_not_synced(
        self, wal: WalFolder, syncs: Syncs, sync: str
    ) -> None:
        writer = wal.open(sync=sync)
        wal.fill(writer, 0, 3)

        assert syncs.count == 0
        assert wal.read() == numbered(0, 3)
        assert (wal.state.visible_offset, wal.state.durable_offset) == (3, 0)
        writer.sync()
        assert syncs.count == 1
        assert wal.state.durable_offset == 3
        writer.sync()
        assert syncs.count == 1, "everything was durable already"
        writer.close()

    def test_closing_syncs_what_is_left(self, wal: WalFolder, syncs: Syncs) -> None:
        with wal.opened(sync="none") as writer:
            wal.fill(writer, 0, 2)

        assert syncs.count == 1
        assert wal.state.phase is Phase.CLEAN
        assert wal.state.durable_offset == 2

    def test_that_the_file_is_open_is_synced_where_a_power_cut_could_hide_it(
        self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wal.open().close()
        synced: list[Phase] = []
        monkeypatch.setattr(disk, "fsync", lambda fd: synced.append(wal.state.phase) or os.fsync(fd))

        with wal.opened(sync="none") as writer:
            wal.fill(writer, 0, 1)
            assert synced == [Phase.OPEN]


class TestFailures:
    def test_a_failed_sync_is_told_to_all_and_to_every_later_append(
        self, wal: WalFolder, syncs: Syncs
    ) -> None:
        writer = wal.open()
        wal.fill(writer, 0, 2)
        syncs.error = OSError(5, "Input/output error")
        with pytest.raises(WriteFailedError, match=r"Can't sync .*Input/output error.*until it is reopened"):
            writer.append(one_batch("2"))
        syncs.error = None

        with pytest.raises(WriteFailedError):
            writer.append(one_batch("2"))
        assert writer.failed is not None
        assert wal.state.phase is Phase.FAILED
        assert wal.read() == numbered(0, 2)
        writer.close()
        assert wal.state.phase is Phase.FAILED

    def test_a_sync_that_was_under_way_does_not_take_the_mark_of_a_failed_write_away(
        self, wal: WalFolder, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = wal.open()
        syncs.may_go.clear()
        syncing = in_thread(lambda: writer.append(one_batch("0")))
        assert syncs.entered.wait(180)

        def full(fd: int, data: memoryview) -> int:
            os.write(fd, data[:10])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(disk, "write", full)
        with pytest.raises(WriteFailedError, match="No space left"):
            writer.append(one_batch("1"))
        syncs.may_go.set()
        syncing.join(180)
        monkeypatch.setattr(disk, "write", os.write)

        assert wal.state.phase is Phase.FAILED
        assert wal.state.visible_offset == 1, "what the sync covered is there"
        writer.close()
        with wal.opened() as writer:
            assert writer.append(one_batch("1")) == 1
        assert wal.read() == numbered(0, 2)
        assert wal.aside == ["wal.0000000001.log.failed"]

    def test_a_state_that_can_not_be_written_wakes_those_who_wait(
        self, wal: WalFolder, syncs: Syncs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = wal.open()
        wal.fill(writer, 0, 1)
        syncs.entered.clear()
        syncs.may_go.clear()
        outcomes: list[str] = []

        def append() -> None:
            try:
                writer.append(one_batch("x"))
                outcomes.append("done")
            except WriteFailedError:
                outcomes.append("failed")

        threads = [in_thread(append)]
        assert syncs.entered.wait(180)
        threads.append(in_thread(append))
        wait_until(lambda: waiting(writer) == 1)
        assert writer._active._state_file is not None

        def broken(*_: object, **__: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(writer._active._state_file, "write", broken)
        syncs.may_go.set()
        for thread in threads:
            thread.join(180)

        assert outcomes == ["failed", "failed"]
        writer.close()


def test_an_idle_partition_holds_no_file_open(wal: WalFolder) -> None:
    with wal.opened() as writer:
        assert (writer._active._fd, writer._active._state_file) == (None, None)
