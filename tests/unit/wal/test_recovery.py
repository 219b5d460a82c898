"""Opening a WAL after whatever the last process, the disk or the power did to it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import (
    Killed,
    WalFolder,
    kill_at,
    no_hook,  # noqa: F401 - a fixture that every test uses
    numbered,
    one_batch,
)

from lastword.errors import CorruptError, WriteFailedError
from lastword.folder import disk, steps
from lastword.folder.paths import WAL_STATE_FILE
from lastword.wal import checkpoint as checkpoints
from lastword.wal.checkpoint import DeleterCheckpoint
from lastword.wal.reader import OffsetGoneError, WalReader
from lastword.wal.recovery import Floor
from lastword.wal.state import Phase, StateFile


def filled(wal: WalFolder, end: int = 3, **options: object) -> None:
    """A WAL that was closed in order."""
    with wal.opened(**options) as writer:
        wal.fill(writer, 0, end)


def left_open(wal: WalFolder, end: int = 3, **options: object) -> None:
    """A WAL whose process died."""
    writer = wal.open(**options)  # type: ignore[arg-type]
    wal.fill(writer, 0, end)
    wal.kill(writer)


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00\xff garbage" * 9)


class TestCleanOpen:
    def test_reads_no_wal_file(self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        filled(wal)
        opened: list[str] = []
        real = os.open
        monkeypatch.setattr(
            os, "open", lambda path, *rest, **more: opened.append(str(path)) or real(path, *rest, **more)
        )

        writer = wal.open()

        assert writer.end_offset == 3
        assert not [path for path in opened if path.endswith(".log")]

    def test_does_not_raise_the_epoch(self, wal: WalFolder) -> None:
        filled(wal)
        for _ in range(3):
            with wal.opened() as writer:
                assert writer.epochs == ((0, 0),)

    def test_changes_nothing_on_disk(self, wal: WalFolder) -> None:
        filled(wal)
        before = {path: path.read_bytes() for path in wal.folder.rglob("*") if path.is_file()}

        wal.open().close()

        assert {path: path.read_bytes() for path in wal.folder.rglob("*") if path.is_file()} == before


class TestTornTail:
    @pytest.mark.parametrize("torn_bytes", [1, 12, 60, 61, 70])
    def test_is_cut_and_kept_aside(self, wal: WalFolder, torn_bytes: int) -> None:
        left_open(wal)
        whole = wal.path(1).read_bytes()
        torn = one_batch("3")[:torn_bytes]
        wal.path(1).write_bytes(whole + torn)

        with wal.opened() as writer:
            assert writer.end_offset == 3
            assert wal.path(1).read_bytes() == whole
            wal.fill(writer, 3, 4)

        assert wal.read() == numbered(0, 4)
        aside = wal.folder / "aside" / f"wal.0000000001.log.torn-at-{len(whole)}"
        assert aside.read_bytes() == torn

    def test_two_cuts_at_one_place_are_both_kept(self, wal: WalFolder) -> None:
        left_open(wal)
        whole = wal.path(1).read_bytes()
        for torn in (b"a", b"bb"):
            wal.path(1).write_bytes(whole + torn)
            wal.kill(wal.open())

        assert len(wal.aside) == 2

    def test_whole_batches_after_what_was_known_are_kept(self, wal: WalFolder) -> None:
        """A power cut leaves an older state than the file."""
        with wal.opened() as writer:
            wal.fill(writer, 0, 1)
            old = wal.state
            wal.fill(writer, 1, 3)
            wal.kill(writer)
        StateFile(wal.folder).write(old)

        with wal.opened() as writer:
            assert writer.end_offset == 3
        assert wal.read() == numbered(0, 3)

    def test_what_was_shown_but_never_synced_may_be_torn(self, wal: WalFolder) -> None:
        left_open(wal, sync="none")
        assert wal.state.durable_offset == 0
        wal.flip(1, wal.path(1).stat().st_size - 1)

        with wal.opened() as writer:
            assert writer.end_offset == 2
        assert wal.read() == numbered(0, 2)

    @pytest.mark.parametrize("step", ["wal.recover.kept_aside", "wal.recover.cut", "wal.recover.named"])
    def test_a_recovery_that_is_killed_is_done_again(self, wal: WalFolder, step: str) -> None:
        left_open(wal)
        with wal.path(1).open("ab") as file:
            file.write(b"torn")
        kill_at(step)
        with pytest.raises(Killed):
            wal.open()

        with wal.opened() as writer:
            wal.fill(writer, 3, 4)
        assert wal.read() == numbered(0, 4)


class TestDamageBelowTheDurableMark:
    @pytest.mark.parametrize("is_clean", [True, False], ids=["truncated after a clean close", "flipped bit"])
    def test_is_reported_there_and_appends_go_on_behind_it(self, wal: WalFolder, is_clean: bool) -> None:
        size = len(one_batch("0"))
        left_open(wal, 5)
        if is_clean:
            wal.open().close()
            os.truncate(wal.path(1), 2 * size)
        else:
            wal.flip(1, 3 * size - 1)

        with wal.opened() as writer:
            assert writer.append(one_batch("5")) == 5

        assert wal.seqs == [1, 2]
        (damage,) = wal.checkpoint.damage
        assert (damage.seq, damage.position, damage.first_offset, damage.end_offset) == (1, 2 * size, 2, 5)
        reader = WalReader(wal.folder)
        placed = reader.read(0, max_bytes=1 << 20)
        assert placed[-1].header.last_offset == 1
        with pytest.raises(CorruptError, match=r"damaged at byte .*offset 2.*wal repair") as caught:
            reader.read(2, max_bytes=1 << 20)
        assert (caught.value.path, caught.value.offset) == (str(wal.path(1)), 2)
        assert wal.read(5) == [(5, b"5")]
        reader.close()

    def test_the_damaged_file_is_left_as_it_is(self, wal: WalFolder) -> None:
        left_open(wal, 5)
        wal.flip(1, 100)
        before = wal.path(1).read_bytes()

        wal.open().close()

        assert wal.path(1).read_bytes() == before

    def test_it_raises_the_epoch_and_is_found_once(self, wal: WalFolder) -> None:
        left_open(wal, 5)
        wal.flip(1, 100)
        with wal.opened() as writer:
            assert writer.epochs == ((0, 0), (1, 5))
        with wal.opened() as writer:
            assert writer.epochs == ((0, 0), (1, 5))
            assert len(wal.checkpoint.damage) == 1

    def test_whole_batches_after_the_mark_are_kept_behind_the_damage(self, wal: WalFolder) -> None:
        writer = wal.open()
        wal.fill(writer, 0, 3)
        old = wal.state
        wal.fill(writer, 3, 5)
        wal.kill(writer)
        StateFile(wal.folder).write(old)
        wal.flip(1, 2 * len(one_batch("0")) - 1)

        with wal.opened() as writer:
            assert writer.append(one_batch("5")) == 5
        assert wal.read(3) == numbered(3, 6)

    def test_a_flipped_offset_is_damage_though_no_checksum_covers_it(self, wal: WalFolder) -> None:
        left_open(wal, 5)
        # The lowest byte of the second batch's base offset: 1 becomes 0, and would become 3 with another bit.
        size = len(one_batch("0"))
        data = bytearray(wal.path(1).read_bytes())
        data[size + 7] = 3
        wal.path(1).write_bytes(data)

        with wal.opened() as writer:
            assert writer.end_offset == 5
        reader = WalReader(wal.folder)
        assert [each.header.base_offset for each in reader.read(0, max_bytes=1 << 20)] == [0]
        with pytest.raises(CorruptError, match="offset 3 instead of 1"):
            reader.read(1, max_bytes=1 << 20)
        reader.close()

    def test_killed_before_it_is_noted_it_is_found_again(self, wal: WalFolder) -> None:
        left_open(wal, 5)
        wal.flip(1, 100)
        kill_at("wal.recover.created")
        with pytest.raises(Killed):
            wal.open()

        with wal.opened() as writer:
            assert writer.end_offset == 5
        assert len(wal.checkpoint.damage) == 1


class TestCheckpoint:
    @pytest.mark.parametrize(
        "spoil",
        [
            Path.unlink,
            garbage,
            lambda path: path.write_text("{}"),
            lambda path: path.write_text('{"files": []}'),
        ],
        ids=["lost", "garbage", "without fields", "without files"],
    )
    @pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
    def test_one_that_is_lost_is_made_anew_from_the_files(
        self, wal: WalFolder, spoil: object, is_clean: bool
    ) -> None:
        writer = wal.open()
        for number in range(3):
            wal.fill(writer, 2 * number, 2 * number + 2)
            writer.roll() if number < 2 else None
        writer.close() if is_clean else wal.kill(writer)
        spoil(wal.folder / checkpoints.WRITER_FILE)  # type: ignore[operator]

        with wal.opened() as writer:
            # It is on disk at once: readers live by it.
            assert wal.read() == numbered(0, 6)
            assert writer.epochs[-1] == (1, 6)
            wal.fill(writer, 6, 7)

        assert [(each.seq, each.first_offset) for each in wal.checkpoint.files] == [(1, 0), (2, 2), (3, 4)]
        assert wal.read() == numbered(0, 7)

    def test_an_empty_active_file_begins_where_the_one_before_it_ends(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            wal.fill(writer, 0, 4)
            writer.roll()
        (wal.folder / checkpoints.WRITER_FILE).unlink()
        (wal.folder / WAL_STATE_FILE).unlink()

        with wal.opened() as writer:
            assert writer.append(one_batch("4")) == 4
        assert wal.read() == numbered(0, 5)

    def test_a_file_whose_start_is_damaged_begins_there_too(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            for number in range(3):
                wal.fill(writer, 2 * number, 2 * number + 2)
                writer.roll()
        (wal.folder / checkpoints.WRITER_FILE).unlink()
        wal.flip(2, 16)

        with wal.opened() as writer:
            assert writer.end_offset == 6
        assert [each.first_offset for each in wal.checkpoint.files] == [0, 2, 4, 6]

    def test_a_lost_one_does_not_take_the_epoch_back(self, wal: WalFolder) -> None:
        left_open(wal, 1)
        for number in range(1, 4):
            writer = wal.open()
            wal.fill(writer, number, number + 1)
            wal.kill(writer)
        (wal.folder / checkpoints.WRITER_FILE).unlink()

        with wal.opened() as writer:
            assert writer.epochs == ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4))

    def test_a_stale_one_learns_of_the_files_that_came_after_it(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            wal.fill(writer, 0, 2)
            stale = (wal.folder / checkpoints.WRITER_FILE).read_bytes()
            writer.roll()
            wal.fill(writer, 2, 4)
        (wal.folder / checkpoints.WRITER_FILE).write_bytes(stale)

        with wal.opened() as writer:
            wal.fill(writer, 4, 5)
        assert wal.read() == numbered(0, 5)

    def test_one_that_names_deleted_files_forgets_them(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            for number in range(3):
                wal.fill(writer, number, number + 1)
                writer.roll()
        wal.path(1).unlink()
        checkpoints.save_deleter(wal.folder, DeleterCheckpoint(start_seq=2, start_offset=1))

        with wal.opened() as writer:
            wal.fill(writer, 3, 4)
            writer.roll()
        assert [each.seq for each in wal.checkpoint.files] == [2, 3, 4, 5]
        assert wal.read(1) == numbered(1, 4)

    def test_an_empty_file_that_it_does_not_name_is_removed(self, wal: WalFolder) -> None:
        left_open(wal)
        kill_at("wal.roll.created")
        writer = wal.open()
        with pytest.raises(Killed):
            writer.roll()
        wal.kill(writer)
        assert wal.seqs == [1, 2]

        with wal.opened() as writer:
            assert wal.seqs == [1]
            wal.fill(writer, 3, 4)
        assert wal.read() == numbered(0, 4)

    def test_killed_after_the_roll_was_named(self, wal: WalFolder) -> None:
        left_open(wal)
        kill_at("wal.roll.named")
        writer = wal.open()
        with pytest.raises(Killed):
            writer.roll()
        wal.kill(writer)

        with wal.opened() as writer:
            wal.fill(writer, 3, 4)
        assert wal.seqs == [1, 2]
        assert wal.read() == numbered(0, 4)

    def test_a_file_that_was_replaced_is_put_aside(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            for number in range(2):
                wal.fill(writer, number, number + 1)
                writer.roll()
        saved = wal.checkpoint
        checkpoints.save_writer(wal.folder, replace(saved, files=saved.files[1:]))

        wal.open().close()

        assert wal.seqs == [2, 3]
        assert wal.aside == ["wal.0000000001.log.replaced"]


class TestState:
    @pytest.mark.parametrize("spoil", [Path.unlink, garbage, lambda path: path.write_bytes(b"")])
    def test_one_that_is_lost_costs_a_walk_and_no_record(self, wal: WalFolder, spoil: object) -> None:
        filled(wal)
        spoil(wal.folder / WAL_STATE_FILE)  # type: ignore[operator]

        with wal.opened() as writer:
            assert writer.end_offset == 3
            assert writer.epochs[-1] == (1, 3)
        assert wal.read() == numbered(0, 3)

    def test_one_of_an_older_file_says_nothing_about_the_active_one(self, wal: WalFolder) -> None:
        writer = wal.open()
        wal.fill(writer, 0, 5)
        old = wal.state
        writer.roll()
        wal.fill(writer, 5, 6)
        wal.kill(writer)
        StateFile(wal.folder).write(old)

        with wal.opened() as writer:
            assert writer.end_offset == 6
        assert wal.checkpoint.damage == ()
        assert wal.read() == numbered(0, 6)


class TestMissingFiles:
    def test_an_active_file_with_records_is_damage(self, wal: WalFolder) -> None:
        filled(wal)
        wal.path(1).unlink()

        with wal.opened() as writer:
            assert writer.append(one_batch("3")) == 3
        assert wal.checkpoint.damage[0].first_offset == 0
        with pytest.raises(CorruptError):
            wal.read(0)
        assert wal.read(3) == [(3, b"3")]

    def test_an_empty_active_file_is_created_again(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            wal.fill(writer, 0, 2)
            writer.roll()
        wal.path(2).unlink()

        with wal.opened() as writer:
            wal.fill(writer, 2, 3)
        assert wal.checkpoint.damage == ()
        assert wal.read() == numbered(0, 3)

    def test_when_all_files_are_gone_the_log_end_does_not_go_back(self, wal: WalFolder) -> None:
        filled(wal, 5)
        wal.path(1).unlink()
        (wal.folder / checkpoints.WRITER_FILE).unlink()

        with wal.opened() as writer:
            assert writer.append(one_batch("5")) == 5
        with pytest.raises(OffsetGoneError):
            wal.read(0)
        assert wal.read(5) == [(5, b"5")]

    def test_a_wal_that_starts_again_is_not_taken_for_what_the_deleter_knew(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            for number in range(4):
                wal.fill(writer, number, number + 1)
                writer.roll()
        checkpoints.save_deleter(wal.folder, DeleterCheckpoint(start_seq=5, start_offset=4))
        for path in wal.folder.glob("w*"):
            path.unlink()

        with wal.opened(floor=Floor(sealed_end=4)) as writer:
            for number in range(4, 7):
                wal.fill(writer, number, number + 1)
                writer.roll()
        assert wal.read(4) == numbered(4, 7)


class TestTableAhead:
    @pytest.mark.parametrize("is_clean", [True, False])
    @pytest.mark.parametrize("floor", [Floor(sealed_end=10), Floor(sealed_end=1, log_start=10)])
    def test_the_wal_goes_on_where_the_table_ends(self, wal: WalFolder, floor: Floor, is_clean: bool) -> None:
        filled(wal) if is_clean else left_open(wal)

        with wal.opened(floor=floor) as writer:
            assert writer.append(one_batch("10")) == 10
            assert writer.epochs[-1] == (1, 10)
        assert wal.seqs == [2]
        assert wal.read(10) == [(10, b"10")]

    def test_a_lost_wal_goes_on_there_under_a_higher_epoch(self, wal: WalFolder) -> None:
        with wal.opened(floor=Floor(sealed_end=10, epochs=((0, 0), (4, 8)))) as writer:
            assert writer.append(one_batch("10")) == 10
            assert writer.epochs == ((0, 0), (4, 8), (5, 10))

    def test_the_higher_epoch_of_the_two_counts(self, wal: WalFolder) -> None:
        left_open(wal)
        with wal.opened(floor=Floor(epochs=((7, 0),))) as writer:
            assert writer.epochs == ((7, 0), (8, 3))


class TestFailedFile:
    def fail(self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch, end: int = 3) -> None:
        writer = wal.open()
        wal.fill(writer, 0, end)

        def broken(fd: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(disk, "fdatasync", broken)
            with pytest.raises(WriteFailedError):
                writer.append(one_batch("never acknowledged"))
        writer.close()

    def test_what_was_acknowledged_is_copied_to_a_new_one(
        self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fail(wal, monkeypatch)

        with wal.opened() as writer:
            assert writer.epochs[-1] == (1, 3)
            assert writer.append(one_batch("3")) == 3

        assert wal.seqs == [2]
        assert wal.aside == ["wal.0000000001.log.failed"]
        assert wal.read() == numbered(0, 4)

    @pytest.mark.parametrize(
        "step", ["wal.recover.copied", "wal.recover.renamed", "wal.recover.named", "wal.recovered"]
    )
    def test_killed_while_it_is_copied_nothing_is_lost(
        self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        self.fail(wal, monkeypatch)
        kill_at(step)
        with pytest.raises(Killed):
            wal.open()

        for number in (3, 4):
            with wal.opened() as writer:
                assert writer.append(one_batch(str(number))) == number
        assert wal.read() == numbered(0, 5)

    def test_killed_in_the_middle_of_the_copy_nothing_is_lost(
        self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fail(wal, monkeypatch, end=20)

        def half(fd: int, data: memoryview) -> int:
            os.write(fd, data[: len(data) // 2])
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(disk, "write", half)
            with pytest.raises(Killed):
                wal.open()

        with wal.opened() as writer:
            assert writer.append(one_batch("20")) == 20
        assert wal.read() == numbered(0, 21)

    def test_a_disk_that_still_fails_leaves_it_readable(
        self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fail(wal, monkeypatch)

        def full(fd: int, data: memoryview) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(disk, "write", full)
            writer = wal.open()
        assert "No space left" in (writer.failed or "")
        with pytest.raises(WriteFailedError):
            writer.append(one_batch("3"))
        assert wal.read() == numbered(0, 3)
        writer.close()

        with wal.opened() as writer:
            wal.fill(writer, 3, 4)
        assert wal.read() == numbered(0, 4)

    def test_not_even_a_first_start_that_fails_is_a_foreign_error(
        self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(disk, "fsync", full)
            writer = wal.open()
        with pytest.raises(WriteFailedError, match="No space left"):
            writer.append(one_batch("0"))

        filled(wal)
        assert wal.read() == numbered(0, 3)

    def test_what_was_shown_and_is_readable_is_copied_though_it_was_never_synced(
        self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = wal.open(sync="none")
        wal.fill(writer, 0, 4)
        size = wal.state.visible_position

        def broken(fd: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(disk, "fdatasync", broken)
            with pytest.raises(WriteFailedError):
                writer.sync()
        writer.close()
        # The kernel gave up on the last page.
        os.truncate(wal.path(1), size - 5)

        with wal.opened() as writer:
            assert writer.append(one_batch("3")) == 3
        assert wal.checkpoint.damage == ()
        assert wal.read() == numbered(0, 4)


class TestEpochs:
    def test_every_unclean_open_raises_it(self, wal: WalFolder) -> None:
        left_open(wal, 1)
        for number in range(1, 4):
            writer = wal.open()
            wal.fill(writer, number, number + 1)
            wal.kill(writer)

        assert wal.checkpoint.epochs == ((0, 0), (1, 1), (2, 2), (3, 3))

    def test_one_under_which_nothing_was_written_is_replaced(self, wal: WalFolder) -> None:
        left_open(wal, 2)
        for _ in range(3):
            writer = wal.open()
            writer.stage(one_batch("never acknowledged"))
            wal.kill(writer)
            os.truncate(wal.path(1), wal.state.visible_position)

        wal.open().close()

        assert wal.checkpoint.epochs == ((0, 0), (4, 2))

    def test_those_below_the_log_start_are_forgotten(self, wal: WalFolder) -> None:
        left_open(wal, 1)
        for number in range(1, 6):
            writer = wal.open()
            wal.fill(writer, number, number + 1)
            wal.kill(writer)

        wal.open(floor=Floor(log_start=3)).close()

        assert wal.checkpoint.epochs == ((3, 3), (4, 4), (5, 5), (6, 6))


def test_the_first_start_can_be_killed_at_each_step(wal: WalFolder, clock: ManualClock) -> None:
    for step in ("wal.started.created", "wal.recover.named", "wal.recovered"):
        kill_at(step)
        with pytest.raises(Killed):
            wal.open()
        steps.install(None)
        if step == "wal.started.created":
            assert wal.seqs == [1]
        for path in wal.folder.glob("writer.json"):
            path.unlink()

    filled(wal)
    assert wal.read() == numbered(0, 3)


def test_a_wal_whose_process_died_is_open_until_it_is_recovered(wal: WalFolder) -> None:
    left_open(wal)
    assert wal.state.phase is Phase.OPEN
    wal.kill(wal.open())
    assert wal.state.phase is Phase.CLEAN
