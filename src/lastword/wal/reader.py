"""Reads a partition's WAL by offset, concurrently with its writer and the deleter, in this or another process.

It reads the visible end from `wal.state` each time, and the list of files from the checkpoints, again whenever a
file is at its end or gone. It never sees a byte that has not been made visible to readers.
"""

from __future__ import annotations

import os
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from lastword import batch
from lastword.errors import CorruptError
from lastword.wal import checkpoint as checkpoints
from lastword.wal import state as states
from lastword.wal.files import CHUNK_BYTES, PlacedBatch, WalFile, damaged, unreadable, walk, walk_open

INDEX_EVERY_BYTES = 64 << 10
DECODE_BYTES = 4 << 20
WORST_EXPANSION = 1024
"""The decompressed size of a batch is not known in advance, so all but small compressed batches are decoded alone."""


class OffsetGoneError(Exception):
    """The WAL no longer has this offset: it is sealed and must be read from there. Never reaches a user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalExtent:
    """The offsets that a WAL holds: from `start` up to but excluding `end`."""

    start: int
    end: int


@dataclass(slots=True)
class _Cursor:
    """A position in an open file, where the batch with `offset` starts."""

    file: WalFile
    fd: int
    offset: int
    position: int


class WalReader:
    """A reader of one partition. Sequential reads keep their position. Not safe for use by several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: tuple[WalFile, ...] = ()
        self._cursor: _Cursor | None = None
        # The start of some batches of each file, found while walking: (offset, position), ascending.
        self._index: dict[int, list[tuple[int, int]]] = {}

    def end(self) -> int | None:
        """Return the first offset that can't be read yet; None if the partition has no WAL yet."""
        state = states.load(self._folder)
        return None if state is None else state.visible_offset

    def extent(self) -> WalExtent | None:
        """Return the offsets that can be read now; None if the partition has no WAL yet."""
        state = states.load(self._folder)
        if state is None or not self._reload():
            return None
        return WalExtent(start=self._files[0].first_offset, end=state.visible_offset)

    def read(self, offset: int, *, max_bytes: int) -> list[PlacedBatch]:
        """Read batches from the one with `offset` on (or the next one, in a gap), at least one if any is visible.

        Raise OffsetGoneError if the WAL starts after `offset`, CorruptError if the bytes there are damaged.
        """
        state = states.load(self._folder)
        if state is None or offset >= state.visible_offset:
            return []
        for _ in range(3):
            try:
                cursor = self._seek(offset, state)
                return self._read_from(cursor, state, max_bytes)
            except FileNotFoundError:
                # The deleter removed the file since we read the checkpoint, or recovery copied it.
                self.close()
                self._reload()
            except CorruptError:
                # Repair may replace the file.
                self.close()
                self._index.clear()
                raise
            except OSError as error:
                raise unreadable(self._folder, offset, error) from error
        raise OffsetGoneError

    def count(self, offset: int, end_offset: int) -> int:
        """Count the records from one offset up to another, from the headers alone for batches that lie within.

        A batch may span offsets whose records are gone. Errors are those of `read`.
        """
        total = 0
        start = offset
        while offset < end_offset and (placed := self.read(offset, max_bytes=DECODE_BYTES)):
            for each in placed:
                if start <= each.header.base_offset and each.header.next_offset <= end_offset:
                    total += each.header.record_count
                else:
                    for records in decode([each], from_offset=start):
                        offsets = records.column("offset").to_numpy()
                        total += int(np.searchsorted(offsets, end_offset))
            offset = placed[-1].header.next_offset
        return total

    def step_over(self, seq: int, offset: int, position: int) -> None:
        """Note the start of a batch that no walk from the start of the file reaches, because of damage."""
        insort(self._index.setdefault(seq, []), (offset, position))

    def close(self) -> None:
        if self._cursor is not None:
            os.close(self._cursor.fd)
            self._cursor = None

    def _reload(self) -> bool:
        saved = checkpoints.load_writer(self._folder)
        self._files = () if saved is None else checkpoints.left_files(self._folder, saved)
        left = {file.seq for file in self._files}
        self._index = {seq: index for seq, index in self._index.items() if seq in left}
        return bool(self._files)

    def _seek(self, offset: int, state: states.WalState) -> _Cursor:
        if self._cursor is not None and self._cursor.offset == offset:
            return self._cursor
        if not self._files or self._files[-1].seq < state.seq or offset < self._files[0].first_offset:
            self._reload()
        return self._open(self._file_of(offset), offset, state)

    def _file_of(self, offset: int) -> WalFile:
        index = bisect_right(self._files, offset, key=lambda file: file.first_offset) - 1
        if index < 0:
            raise OffsetGoneError
        return self._files[index]

    def _open(self, file: WalFile, offset: int, state: states.WalState) -> _Cursor:
        self.close()
        path = self._folder / file.name
        at_offset, position = file.first_batch_offset, 0
        known = self._index.setdefault(file.seq, [])
        if index := bisect_right(known, offset, key=lambda entry: entry[0]):
            at_offset, position = known[index - 1]
        cursor = _Cursor(file, os.open(path, os.O_RDONLY | os.O_CLOEXEC), at_offset, position)
        self._cursor = cursor
        self._skip_to(cursor, offset, self._end_of(file, state))
        return cursor

    def _skip_to(self, cursor: _Cursor, offset: int, end: int) -> None:
        """Skip batches that end before `offset`, reading only their headers."""
        index = self._index[cursor.file.seq]
        while cursor.position < end:
            header = self._header(cursor)
            if header.next_offset > offset or header.base_offset != cursor.offset:
                # If this is not the batch that must be here, the walk that follows raises the error.
                return
            cursor.position += header.size_bytes
            cursor.offset = header.next_offset
            if cursor.position >= (index[-1][1] if index else 0) + INDEX_EVERY_BYTES:
                index.append((cursor.offset, cursor.position))

    def _header(self, cursor: _Cursor) -> batch.BatchHeader:
        path = self._folder / cursor.file.name
        try:
            header = batch.read_header(os.pread(cursor.fd, batch.HEADER_BYTES, cursor.position))
        except batch.BadBatchError as error:
            raise damaged(path, cursor.offset, cursor.position, str(error)) from None
        if header is None:
            raise damaged(path, cursor.offset, cursor.position, "the file ends within a batch header")
        return header

    def _end_of(self, file: WalFile, state: states.WalState) -> int:
        """Return the position up to which a file may be read."""
        if file.seq == state.seq:
            return state.visible_position
        if file.size_bytes is not None:
            return file.size_bytes
        # It was rolled since the checkpoint was read: look up its size again.
        self._reload()
        for each in self._files:
            if each.seq == file.seq:
                return each.size_bytes or 0
        raise FileNotFoundError(file.name)

    def _read_from(self, cursor: _Cursor, state: states.WalState, max_bytes: int) -> list[PlacedBatch]:
        found: list[PlacedBatch] = []
        total = 0
        while True:
            try:
                for placed in walk_open(
                    cursor.fd,
                    self._folder / cursor.file.name,
                    position=cursor.position,
                    end_position=self._end_of(cursor.file, state),
                    expected_offset=cursor.offset,
                    chunk_bytes=min(CHUNK_BYTES, max(max_bytes - total, 4096)),
                ):
                    found.append(placed)
                    total += placed.header.size_bytes
                    cursor.position = placed.position + placed.header.size_bytes
                    cursor.offset = placed.header.next_offset
                    if total >= max_bytes:
                        return found
            except CorruptError:
                # The batches before the damage are good. The next read starts at the damage and raises the error.
                if found:
                    return found
                raise
            if found or cursor.file.seq >= state.seq:
                return found
            following = self._file_after(cursor.file)
            if following is None:
                return found
            if following.first_offset > cursor.offset:
                # The deleter removed the files in between, or they are missing.
                raise OffsetGoneError
            cursor = self._open(following, cursor.offset, state)

    def _file_after(self, file: WalFile) -> WalFile | None:
        for _ in range(2):
            for each in self._files:
                if each.seq > file.seq:
                    return each
            self._reload()
        return None


def read_file(folder: Path, file: WalFile, *, from_offset: int, end_offset: int) -> Iterator[PlacedBatch]:
    """Yield the batches of a rolled file that reach `from_offset` or beyond, all of them up to `end_offset`.

    Raise CorruptError if one is damaged or missing.
    """
    assert file.size_bytes is not None
    path = folder / file.name
    offset = file.first_batch_offset
    try:
        for placed in walk(path, end_position=file.size_bytes, expected_offset=offset):
            offset = placed.header.next_offset
            if offset > from_offset:
                yield placed
    except FileNotFoundError:
        raise CorruptError(
            f"{path} is missing, and its records from offset {from_offset} on are not sealed yet. "
            f"`lastword wal repair` shows what can be kept.",
            path=str(path),
            offset=from_offset,
        ) from None
    except OSError as error:
        raise unreadable(path, offset, error) from error
    if offset != end_offset:
        raise damaged(path, offset, file.size_bytes, f"the records up to offset {end_offset - 1} are missing")


def decode(batches: Iterable[PlacedBatch], *, from_offset: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of batches from an offset on, several batches at a time: much cheaper for small ones."""
    for chunk in _chunks(batches):
        records = batch.decode_many([each.data for each in chunk])
        if chunk[0].header.base_offset < from_offset:
            # Found by offset, not by counting: a batch may span offsets whose records are gone.
            records = records.slice(int(np.searchsorted(records.column("offset").to_numpy(), from_offset)))
        if records.num_rows:
            yield records


def _chunks(batches: Iterable[PlacedBatch]) -> Iterator[list[PlacedBatch]]:
    chunk: list[PlacedBatch] = []
    expected_bytes = 0
    for each in batches:
        chunk.append(each)
        compressed = each.header.compression is not batch.Compression.NONE
        expected_bytes += each.header.size_bytes * (WORST_EXPANSION if compressed else 1)
        if expected_bytes >= DECODE_BYTES:
            yield chunk
            chunk, expected_bytes = [], 0
    if chunk:
        yield chunk
