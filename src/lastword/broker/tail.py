"""The WAL's bytes for fetches: whole batches from an offset on, checked but not decoded.

The place of a consumer's next fetch is remembered, so that consumers that follow the tail don't seek. A read that finds
its bytes in the page cache is a copy in memory and is done on the event loop (`inline`). Any other read raises
WouldBlockError and is repeated on a thread. Some file systems can't tell what is in the page cache (tmpfs, NFS, FUSE).
There it is assumed to contain the bytes that were just written, or just read on a thread.
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from crc32c import crc32c

from lastword.batch import HEADER_BYTES, Compression
from lastword.wal.active import Shown
from lastword.wal.files import WalFile, damaged, unreadable
from lastword.wal.reader import OffsetGoneError
from lastword.wal.writer import PartitionWriter

K = TypeVar("K")
V = TypeVar("V")

PLACES: Final = 64
INDEX_EVERY_BYTES: Final = 1 << 20
INLINE_SCAN_BYTES: Final = 256 << 10
RECENT_BYTES: Final = 4 << 20

_HEAD: Final = struct.Struct(">qiibIhi")
_CRC_FROM: Final = 21
_LENGTH_END: Final = 12
_COMPRESSION_MASK: Final = 7
_MAGIC: Final = 2


class WouldBlockError(Exception):
    """A read that would block the event loop for too long. Never reaches a user."""


@dataclass(frozen=True, slots=True)
class TailBytes:
    """Whole batches, the offset after them, and whether one is compressed with zstd."""

    data: memoryview
    next_offset: int
    has_zstd: bool


NOTHING: Final = TailBytes(memoryview(b""), -1, False)


class Tail:
    """The WAL of one partition. Several threads may read at a time: shared state is replaced, not changed."""

    def __init__(self, writer: PartitionWriter) -> None:
        self._writer = writer
        self._places: OrderedDict[int, tuple[int, int]] = OrderedDict()
        # For each file the places of some of its batches: (offset, position), ascending.
        self._index: dict[int, list[tuple[int, int]]] = {}
        self._cache_is_known = True
        # If it is not: the bytes that were read on a thread, from a place (file, position) up to a position.
        self._in_memory: OrderedDict[tuple[int, int], int] = OrderedDict()

    def available_bytes(self, offset: int) -> int:
        """Return an estimate of the bytes from an offset on; 0 if there are none."""
        shown = self._writer.shown
        if offset >= shown.offset:
            return 0
        place = self._places.get(offset)
        if place is None or place[0] != shown.seq:
            return 1 << 30
        return shown.position - place[1]

    def read(self, offset: int, max_bytes: int, *, inline: bool) -> TailBytes:
        """Read batches from the one with `offset` on, at most `max_bytes`, but at least one if any is visible.

        Raise OffsetGoneError if the WAL no longer has it, CorruptError if the bytes are damaged.
        """
        shown = self._writer.shown
        if offset >= shown.offset:
            return NOTHING
        file, position = self._seek(offset, shown, inline)
        while True:
            end = shown.position if file.seq == shown.seq else file.size_bytes or 0
            if position < end:
                return self._read(file, position, end, offset, max_bytes, inline)
            # At the end of a rolled file: continue with the next one.
            following = next((each for each in self._writer.files if each.seq > file.seq), None)
            if following is None or following.seq > shown.seq:
                return NOTHING
            file, position, offset = following, 0, max(offset, following.first_batch_offset)

    def _seek(self, offset: int, shown: Shown, inline: bool) -> tuple[WalFile, int]:
        files = self._writer.files
        place = self._places.get(offset)
        if place is not None:
            for file in reversed(files):
                if file.seq == place[0]:
                    return file, place[1]
        at = bisect_right(files, offset, key=lambda each: each.first_offset) - 1
        if at < 0:
            raise OffsetGoneError
        file = files[at]
        if offset <= file.first_batch_offset:
            return file, 0
        end = shown.position if file.seq == shown.seq else file.size_bytes or 0
        return file, self._scan(file, offset, end, inline)

    def _scan(self, file: WalFile, offset: int, end: int, inline: bool) -> int:
        """Find the position of the batch with an offset, by the headers before it."""
        index = self._index.get(file.seq, [])
        position = 0
        if known := bisect_right(index, offset, key=lambda entry: entry[0]):
            position = index[known - 1][1]
        if inline and end - position > INLINE_SCAN_BYTES:
            raise WouldBlockError
        found: list[tuple[int, int]] = []
        last_indexed = position
        fd = self._open(file)
        try:
            while position < end:
                head = os.pread(fd, _HEAD.size, position)
                if len(head) < _HEAD.size:
                    raise damaged(self._writer.folder / file.name, offset, position, "the file ends there")
                base_offset, length, _, magic, _, _, last_delta = _HEAD.unpack(head)
                if magic != _MAGIC or length < HEADER_BYTES - _LENGTH_END:
                    raise damaged(self._writer.folder / file.name, offset, position, "there is no batch")
                if base_offset + last_delta >= offset:
                    break
                position += _LENGTH_END + length
                if position - last_indexed >= INDEX_EVERY_BYTES:
                    found.append((base_offset + last_delta + 1, position))
                    last_indexed = position
        finally:
            os.close(fd)
        if found:
            left = {each.seq for each in self._writer.files}
            merged = sorted({*index, *found})
            self._index = {seq: own for seq, own in self._index.items() if seq in left} | {file.seq: merged}
        return position

    def _read(
        self, file: WalFile, position: int, end: int, offset: int, max_bytes: int, inline: bool
    ) -> TailBytes:
        wanted = min(max(max_bytes, HEADER_BYTES), end - position)
        data = self._bytes(file, position, wanted, offset, inline)
        if len(data) >= _HEAD.size:
            first_bytes = _LENGTH_END + _HEAD.unpack_from(data)[1]
            if wanted < first_bytes <= end - position:
                # The first batch is always returned whole.
                data = self._bytes(file, position, first_bytes, offset, inline)
        size_bytes, next_offset, has_zstd = self._check(file, data, position, end, offset)
        _remember(self._places, next_offset, (file.seq, position + size_bytes))
        return TailBytes(data[:size_bytes], next_offset, has_zstd)

    def _check(
        self, file: WalFile, data: memoryview, position: int, end: int, offset: int
    ) -> tuple[int, int, bool]:
        """Return the size of the whole, valid batches, the offset after them, and whether one has zstd."""
        at = 0
        next_offset = -1
        has_zstd = False
        size = len(data)
        problem = ""
        while size - at >= _HEAD.size:
            base_offset, length, _, magic, crc, attributes, last_delta = _HEAD.unpack_from(data, at)
            batch_end = at + _LENGTH_END + length
            if magic != _MAGIC or length < HEADER_BYTES - _LENGTH_END or position + batch_end > end:
                problem = "there is no batch"
                break
            if batch_end > size:
                break
            if (next_offset >= 0 and base_offset != next_offset) or base_offset + last_delta < offset:
                problem = f"a batch has offset {base_offset}"
                break
            if crc32c(data[at + _CRC_FROM : batch_end]) != crc:
                problem = "a batch's checksum is wrong"
                break
            if attributes & _COMPRESSION_MASK == Compression.ZSTD:
                has_zstd = True
            next_offset = base_offset + last_delta + 1
            at = batch_end
        if at == 0:
            # Batches before damage are returned. The next read begins at the damage and reports it.
            path = self._writer.folder / file.name
            raise damaged(path, offset, position, problem or "the file ends within a batch")
        return at, next_offset, has_zstd

    def _open(self, file: WalFile) -> int:
        try:
            return os.open(self._writer.folder / file.name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # The deleter removed it: it is sealed.
            raise OffsetGoneError from None

    def _bytes(self, file: WalFile, position: int, size_bytes: int, offset: int, inline: bool) -> memoryview:
        if inline and not self._cache_is_known and not self._is_in_memory(file, position, size_bytes):
            raise WouldBlockError
        fd = self._open(file)
        try:
            # Not zeroed first.
            data = np.empty(size_bytes, np.uint8).data
            flags = os.RWF_NOWAIT if inline and self._cache_is_known else 0
            try:
                read = os.preadv(fd, [data], position, flags)
            except OSError as error:
                if flags and error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                    self._cache_is_known = False
                    return self._bytes(file, position, size_bytes, offset, inline)
                if flags and error.errno == errno.EAGAIN:
                    raise WouldBlockError from None
                raise unreadable(self._writer.folder / file.name, offset, error) from error
            if not inline and not self._cache_is_known:
                _remember(self._in_memory, (file.seq, position), position + read)
            if read == size_bytes:
                return data
            if inline:
                raise WouldBlockError
            return data[:read]
        finally:
            os.close(fd)

    def _is_in_memory(self, file: WalFile, position: int, size_bytes: int) -> bool:
        shown = self._writer.shown
        recent = shown.position - RECENT_BYTES if file.seq == shown.seq else position + size_bytes
        return self._in_memory.get((file.seq, position), position) >= min(recent, position + size_bytes)


def _remember(places: OrderedDict[K, V], key: K, value: V) -> None:
    places[key] = value
    if len(places) > PLACES:
        # Another thread may have emptied it meanwhile.
        with suppress(KeyError):
            places.popitem(last=False)
