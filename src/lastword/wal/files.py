"""WAL files: their names, creating them, and walking the record batches in a file."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from lastword import batch
from lastword.batch import BatchHeader
from lastword.errors import CorruptError, LastwordError, StorageError
from lastword.folder import disk

SET_ASIDE = "-epoch-"
"""Separates a topic's id and an owner epoch in the name of a WAL from before another data folder took the topic over."""
CHUNK_BYTES = 4 << 20

_NAME = re.compile(r"wal\.(\d+)\.log\Z")


def file_name(seq: int) -> str:
    return f"wal.{seq:010d}.log"


def list_seqs(folder: Path) -> list[int]:
    """Return the sequence numbers of the WAL files in a folder."""
    return sorted(int(match[1]) for match in (_NAME.match(path.name) for path in folder.iterdir()) if match)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalFile:
    """The writer's record of a file. `size_bytes` and `rolled_ms` are None while it is active.

    `gap_end` is set if repair gave up offsets that no file holds: those from `first_offset` up to it are gone.
    """

    seq: int
    first_offset: int
    opened_ms: int
    size_bytes: int | None = None
    rolled_ms: int | None = None
    gap_end: int | None = None

    @property
    def name(self) -> str:
        return file_name(self.seq)

    @property
    def first_batch_offset(self) -> int:
        return self.first_offset if self.gap_end is None else self.gap_end

    @property
    def is_active(self) -> bool:
        return self.rolled_ms is None

    def rolled(self, *, size_bytes: int, now_ms: int) -> WalFile:
        return replace(self, size_bytes=size_bytes, rolled_ms=now_ms)


def create_file(folder: Path, file: WalFile) -> int:
    """Create an empty WAL file, synced with its name, open for appending."""
    fd = os.open(
        folder / file.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
    )
    try:
        disk.fsync(fd)
        disk.sync_folder(folder)
    except OSError:
        os.close(fd)
        raise
    return fd


@dataclass(frozen=True, slots=True)
class PlacedBatch:
    """A batch in a file: its header, its bytes, and its position."""

    header: BatchHeader
    data: memoryview
    position: int


def walk(path: Path, *, position: int = 0, end_position: int, expected_offset: int) -> Iterator[PlacedBatch]:
    """Yield the batches of a file, each checked, from a position where one starts up to `end_position`.

    Raise CorruptError if the bytes are not a whole batch with a correct checksum and the offset that follows the
    batch before: the checksum does not cover the offset, and a wrong one must not pass for a gap. Memory is bounded
    by a chunk or by the largest batch.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield from walk_open(
            fd, path, position=position, end_position=end_position, expected_offset=expected_offset
        )
    finally:
        os.close(fd)


def walk_open(
    fd: int,
    path: Path,
    *,
    position: int,
    end_position: int,
    expected_offset: int,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[PlacedBatch]:
    """Walk a file that is open already, as `walk` does. `path` is for messages."""
    wanted = chunk_bytes
    while position < end_position:
        chunk = memoryview(os.pread(fd, min(wanted, end_position - position), position))
        if len(chunk) < min(wanted, end_position - position):
            end_position = position + len(chunk)
            truncated = True
        else:
            truncated = False
        used = 0
        while used < len(chunk):
            placed = _batch_at(path, chunk, used, position + used, end_position, expected_offset)
            if isinstance(placed, int):
                break
            yield placed
            used += placed.header.size_bytes
            expected_offset = placed.header.next_offset
        position += used
        if truncated:
            raise damaged(
                path, expected_offset, position, "the file ends there, but it was longer when it was written"
            )
        # A batch that is larger than a chunk is read with a chunk of the batch's size.
        wanted = placed if used == 0 and isinstance(placed, int) else chunk_bytes


def _batch_at(
    path: Path, chunk: memoryview, at: int, position: int, end: int, expected_offset: int
) -> PlacedBatch | int:
    """Return the batch at `at` in the chunk, or how many bytes it needs if the chunk ends within it."""
    try:
        header = batch.read_header(chunk, at)
    except batch.BadBatchError as error:
        raise damaged(path, expected_offset, position, str(error)) from None
    if header is None:
        if end - position < batch.HEADER_BYTES:
            raise damaged(path, expected_offset, position, "the file ends within a batch header")
        return batch.HEADER_BYTES
    if position + header.size_bytes > end:
        raise damaged(path, expected_offset, position, "the file ends within a batch")
    if at + header.size_bytes > len(chunk):
        return header.size_bytes
    if header.base_offset != expected_offset:
        raise damaged(
            path,
            expected_offset,
            position,
            f"a batch has offset {header.base_offset} instead of {expected_offset}",
        )
    if not batch.check_crc(chunk, header, at):
        raise damaged(path, expected_offset, position, "a batch's checksum is wrong")
    return PlacedBatch(header, chunk[at : at + header.size_bytes], position)


def header_at(data: bytes, position: int = 0) -> BatchHeader | None:
    """Return the header of the batch at a position, or None if there is none."""
    try:
        return batch.read_header(data, position)
    except batch.BadBatchError:
        return None


def unreadable(path: Path, offset: int, error: OSError) -> LastwordError:
    """Return the error for a failed read of a file: CorruptError if its bytes are lost, else StorageError."""
    what = f"{path} can't be read at offset {offset}: {error.strerror or error}."
    if error.errno == errno.EIO:
        return CorruptError(
            f"{what} `lastword wal repair` shows what can be kept.", path=str(path), offset=offset
        )
    return StorageError(what)


def damaged(path: Path, offset: int, position: int, what: str) -> CorruptError:
    return CorruptError(
        f"{path} is damaged at byte {position}, offset {offset}: {what}. "
        f"`lastword wal repair` shows what can be kept.",
        path=str(path),
        offset=offset,
    )
