"""Reading a WAL beside its writer and the deleter."""

from __future__ import annotations

import os

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import WalFolder, numbered, one_batch, open_files, payloads, read_on

from lastword import batch
from lastword.batch import HEADER_BYTES
from lastword.errors import CorruptError, StorageError, WriteFailedError
from lastword.folder import disk
from lastword.wal import checkpoint as checkpoints
from lastword.wal.checkpoint import DeleterCheckpoint
from lastword.wal.reader import OffsetGoneError, WalExtent, WalReader, decode, read_file
from lastword.wal.writer import PartitionWriter

EVERYTHING = 1 << 30
ONE = 1


def delete(wal: WalFolder, *seqs: int) -> None:
    """As the deleter does."""
    for seq in seqs:
        wal.path(seq).unlink()
    oldest = next(each for each in wal.checkpoint.files if each.seq > max(seqs))
    checkpoints.save_deleter(
        wal.folder, DeleterCheckpoint(start_seq=oldest.seq, start_offset=oldest.first_offset)
    )


def in_files(wal: WalFolder, writer: PartitionWriter, *ends: int) -> None:
    """Files that end at these offsets, and an empty active one."""
    for end in ends:
        wal.fill(writer, writer.end_offset, end)
        writer.roll()


class TestSeek:
    @pytest.mark.parametrize("max_bytes", [ONE, 200, EVERYTHING])
    def test_from_every_offset_everything_behind_it_is_read(self, wal: WalFolder, max_bytes: int) -> None:
        with wal.opened() as writer:
            in_files(wal, writer, 3, 4, 9)
            wal.fill(writer, 9, 12)
        reader = WalReader(wal.folder)

        for offset in range(13):
            assert read_on(reader, offset, max_bytes) == numbered(offset, 12)
        reader.close()

    def test_backwards_too(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            in_files(wal, writer, 3, 6)
            wal.fill(writer, 6, 8)
        reader = WalReader(wal.folder)

        for offset in reversed(range(8)):
            assert payloads(reader.read(offset, max_bytes=ONE), offset)[0] == (offset, str(offset).encode())
        reader.close()

    def test_an_offset_within_a_batch_gives_that_batch(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            writer.append(one_batch("0", "1", "2"))
            writer.append(one_batch("3", "4"))

        assert wal.read(1) == numbered(1, 5)
        assert wal.read(4) == numbered(4, 5)

    def test_one_batch_at_least_however_few_bytes_are_asked_for(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            writer.append(one_batch(b"x" * 10_000))
            writer.append(one_batch(b"y"))
        reader = WalReader(wal.folder)

        assert len(reader.read(0, max_bytes=ONE)) == 1
        assert len(reader.read(0, max_bytes=EVERYTHING)) == 2
        reader.close()

    def test_batches_larger_than_a_chunk(self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes = [10, 5000, 4096, 1, 20_000, 30, 4096 - HEADER_BYTES, 9000]
        with wal.opened() as writer:
            for number, size in enumerate(sizes):
                writer.append(one_batch(bytes([number]) * size))

        monkeypatch.setattr("lastword.wal.reader.CHUNK_BYTES", 4096)
        assert [(offset, len(value)) for offset, value in wal.read()] == list(enumerate(sizes))

    def test_seeking_in_a_large_file_does_not_walk_it_again(
        self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lastword.wal.reader.INDEX_EVERY_BYTES", 500)
        with wal.opened(sync="none") as writer:
            wal.fill(writer, 0, 400)
        reader = WalReader(wal.folder)
        reader.read(399, max_bytes=ONE)
        headers = 0
        real = WalReader._header

        def counted(self: WalReader, cursor: object) -> object:
            nonlocal headers
            headers += 1
            return real(self, cursor)  # type: ignore[arg-type]

        monkeypatch.setattr(WalReader, "_header", counted)
        assert payloads(reader.read(398, max_bytes=ONE), 398) == [(398, b"398")]
        assert headers < 12
        reader.close()


class TestWhatIsVisible:
    def test_no_wal_yet(self, wal: WalFolder) -> None:
        reader = WalReader(wal.folder)

        assert reader.extent() is None
        assert reader.end() is None
        assert reader.read(0, max_bytes=EVERYTHING) == []

    def test_the_extent_follows_writer_and_deleter(self, wal: WalFolder) -> None:
        reader = WalReader(wal.folder)
        with wal.opened() as writer:
            in_files(wal, writer, 3, 6)
            assert reader.extent() == WalExtent(start=0, end=6)
            writer.stage(one_batch("6"))
            assert reader.extent() == WalExtent(start=0, end=6)
            delete(wal, 1)
            assert reader.extent() == WalExtent(start=3, end=6)
            assert reader.end() == 6

    def test_at_the_end_there_is_nothing_until_something_comes(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            reader = WalReader(wal.folder)
            wal.fill(writer, 0, 2)
            assert read_on(reader, 0) == numbered(0, 2)
            assert reader.read(2, max_bytes=EVERYTHING) == []
            wal.fill(writer, 2, 3)
            assert read_on(reader, 2) == numbered(2, 3)
            writer.roll()
            assert reader.read(3, max_bytes=EVERYTHING) == []
            wal.fill(writer, 3, 4)
            assert read_on(reader, 3) == numbered(3, 4)
            reader.close()


class TestFilesChangeUnderTheReader:
    def test_a_file_that_was_active_is_rolled_with_more_in_it(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            reader = WalReader(wal.folder)
            wal.fill(writer, 0, 2)
            assert len(reader.read(0, max_bytes=EVERYTHING)) == 2
            wal.fill(writer, 2, 5)
            writer.roll()
            wal.fill(writer, 5, 7)

            assert read_on(reader, 2) == numbered(2, 7)
            reader.close()

    def test_the_active_file_was_rolled_and_taken_before_all_of_it_was_read(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            reader = WalReader(wal.folder)
            wal.fill(writer, 0, 2)
            assert len(reader.read(0, max_bytes=EVERYTHING)) == 2
            wal.fill(writer, 2, 5)
            writer.roll()
            wal.fill(writer, 5, 7)
            delete(wal, 1)

            # Going on at 5 would be a gap; 2 to 4 are in the table.
            with pytest.raises(OffsetGoneError):
                reader.read(2, max_bytes=EVERYTHING)
            assert read_on(reader, 5) == numbered(5, 7)
            reader.close()

    def test_files_after_the_one_at_hand_were_taken(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            reader = WalReader(wal.folder)
            wal.fill(writer, 0, 3)
            assert len(reader.read(0, max_bytes=EVERYTHING)) == 3
            writer.roll()
            in_files(wal, writer, 6, 9)
            delete(wal, 1, 2)
            wal.fill(writer, 9, 10)

            with pytest.raises(OffsetGoneError):
                reader.read(3, max_bytes=EVERYTHING)
            assert read_on(reader, 6) == numbered(6, 10)
            reader.close()

    def test_they_were_taken_and_the_reader_knows_it_already(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            in_files(wal, writer, 3, 6, 9)
            reader = WalReader(wal.folder)
            assert len(reader.read(0, max_bytes=EVERYTHING)) == 3
            delete(wal, 1, 2)
            assert reader.extent() == WalExtent(start=6, end=9)

            with pytest.raises(OffsetGoneError):
                reader.read(3, max_bytes=EVERYTHING)
            reader.close()

    def test_a_rolled_file_that_is_open_is_read_to_its_end_though_it_was_taken(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            in_files(wal, writer, 4)
            wal.fill(writer, 4, 6)
            reader = WalReader(wal.folder)
            assert len(reader.read(0, max_bytes=ONE)) == 1
            delete(wal, 1)

            assert read_on(reader, 1) == numbered(1, 6)
            reader.close()

    def test_a_file_was_removed_and_not_yet_noted(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            in_files(wal, writer, 2, 4)
        reader = WalReader(wal.folder)
        wal.path(1).unlink()

        with pytest.raises(OffsetGoneError):
            reader.read(0, max_bytes=EVERYTHING)
        assert read_on(reader, 2) == numbered(2, 4)
        reader.close()

    def test_a_failed_file_was_copied(self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        writer = wal.open()
        wal.fill(writer, 0, 3)
        reader = WalReader(wal.folder)
        assert len(reader.read(0, max_bytes=EVERYTHING)) == 3

        def broken(fd: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(disk, "fdatasync", broken)
            with pytest.raises(WriteFailedError):
                writer.append(one_batch("x"))
        writer.close()
        with wal.opened() as writer:
            wal.fill(writer, 3, 5)

            assert read_on(reader, 3) == numbered(3, 5)
        reader.close()

    def test_the_writer_does_everything_between_any_two_reads(
        self, wal: WalFolder, clock: ManualClock
    ) -> None:
        with wal.opened() as writer:
            reader = WalReader(wal.folder)
            found: list[tuple[int, bytes]] = []
            for number in range(60):
                wal.fill(writer, number, number + 1)
                if number % 3 == 2:
                    writer.roll()
                if number % 7 == 6:
                    delete(wal, *[each.seq for each in wal.checkpoint.files[:-2] if each.seq in wal.seqs])
                if number % 2:
                    found += read_on(reader, len(found), max_bytes=ONE)
            assert found == numbered(0, 60)
            reader.close()


class TestDamage:
    def test_batches_before_it_are_given_then_it_is_told(self, wal: WalFolder) -> None:
        size = len(one_batch("0"))
        with wal.opened() as writer:
            in_files(wal, writer, 5)
            wal.fill(writer, 5, 6)
        wal.flip(1, 3 * size - 1)
        reader = WalReader(wal.folder)

        assert [each.header.base_offset for each in reader.read(0, max_bytes=EVERYTHING)] == [0, 1]
        for _ in range(2):
            with pytest.raises(CorruptError, match="checksum is wrong") as caught:
                reader.read(2, max_bytes=EVERYTHING)
            assert caught.value.offset == 2
        assert read_on(reader, 3) == numbered(3, 6)
        reader.close()

    @pytest.mark.parametrize("kept", [0, 1, 70, 75, 139, 140])
    def test_a_truncated_file_is_damage_wherever_it_ends(self, wal: WalFolder, kept: int) -> None:
        size = len(one_batch("0"))
        with wal.opened() as writer:
            in_files(wal, writer, 3)
            wal.fill(writer, 3, 4)
        os.truncate(wal.path(1), kept)
        reader = WalReader(wal.folder)
        whole = kept // size

        if whole:
            assert len(reader.read(0, max_bytes=EVERYTHING)) == whole
        with pytest.raises(CorruptError):
            reader.read(whole, max_bytes=EVERYTHING)
        assert read_on(reader, 3) == [(3, b"3")]
        reader.close()

    def test_a_missing_file_is_not_skipped(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            in_files(wal, writer, 2, 4, 6)
        wal.path(2).unlink()
        reader = WalReader(wal.folder)

        assert len(reader.read(0, max_bytes=EVERYTHING)) == 2
        with pytest.raises(OffsetGoneError):
            reader.read(2, max_bytes=EVERYTHING)
        reader.close()

    @pytest.mark.parametrize(("number", "error"), [(5, CorruptError), (13, StorageError)])
    def test_a_file_that_can_not_be_read_is_an_error_of_ours(
        self, wal: WalFolder, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
    ) -> None:
        with wal.opened() as writer:
            in_files(wal, writer, 2)

        def broken(*_: object) -> bytes:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "pread", broken)
        with pytest.raises(error):
            wal.read(0)
        with pytest.raises(error):
            list(read_file(wal.folder, wal.checkpoint.files[0], from_offset=0, end_offset=2))


class TestReadFile:
    def test_gives_the_batches_that_reach_the_offset(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            writer.append(one_batch("0", "1"))
            writer.append(one_batch("2", "3"))
            writer.roll()
        (file, _) = wal.checkpoint.files

        found = list(read_file(wal.folder, file, from_offset=3, end_offset=4))

        assert [each.header.base_offset for each in found] == [2]
        assert payloads(found, 3) == [(3, b"3")]

    def test_a_file_that_ends_too_early_is_damage_though_its_bytes_are_good(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            in_files(wal, writer, 3)
        (file, _) = wal.checkpoint.files

        with pytest.raises(CorruptError, match="up to offset 4 are missing"):
            list(read_file(wal.folder, file, from_offset=0, end_offset=5))

    def test_a_missing_one_says_so(self, wal: WalFolder) -> None:
        with wal.opened() as writer:
            in_files(wal, writer, 3)
        wal.path(1).unlink()

        with pytest.raises(CorruptError, match="is missing, and its records from offset 1 on are not sealed"):
            list(read_file(wal.folder, wal.checkpoint.files[0], from_offset=1, end_offset=3))


def test_decoding_takes_offsets_by_what_they_are_not_by_counting(wal: WalFolder) -> None:
    with wal.opened() as writer:
        writer.append(one_batch("0", "1"))
        writer.roll()
    path, gap = wal.path(1), batch.empty_batch(2, 6, 0)
    later = bytearray(one_batch("7", "8"))
    batch.place(later, base_offset=7, leader_epoch=0, append_time_ms=None, max_timestamp_ms=None)
    path.write_bytes(path.read_bytes() + gap + later)
    file = wal.checkpoint.files[0].rolled(size_bytes=path.stat().st_size, now_ms=0)

    for offset in range(10):
        batches = list(read_file(wal.folder, file, from_offset=offset, end_offset=9))
        found = [
            each
            for records in decode(batches, from_offset=offset)
            for each in records.column("offset").to_pylist()
        ]
        assert found == [each for each in (0, 1, 7, 8) if each >= offset]


def test_closing_gives_the_file_back(wal: WalFolder) -> None:
    with wal.opened() as writer:
        in_files(wal, writer, 2, 4)
    before = open_files(wal.folder)
    for _ in range(20):
        reader = WalReader(wal.folder)
        read_on(reader, 0)
        reader.close()
        reader.close()

    assert open_files(wal.folder) == before
