"""Finds damage in a partition's WAL files and, on request, skips it.

`inspect` walks the files from an offset on and lists the damaged ranges: after damage it looks for the next
bytes that are a whole batch with a correct checksum and a plausible offset. `skip` rewrites each damaged file
with an empty batch in place of the damaged bytes that spans their offsets, and keeps the damaged file aside. So
sealing and reading continue after the gap.

The new file takes the old one's name in one step. If the process is killed before that, nothing has changed.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lastword import batch
from lastword.errors import CorruptError
from lastword.folder import disk
from lastword.folder.steps import reached
from lastword.wal import checkpoint as checkpoints
from lastword.wal import state as states
from lastword.wal.checkpoint import WriterCheckpoint
from lastword.wal.files import WalFile, header_at, walk
from lastword.wal.recovery import aside_path

logger = logging.getLogger(__name__)

NOT_IN_WAL = -1

_MAGIC_AT, _MAGIC = 16, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRange:
    """Bytes that can't be read, and the offsets that were in them. If the range of offsets is empty, none was lost.

    The path may be that of a sealed segment. Then `seq` is NOT_IN_WAL.
    """

    path: Path | str
    seq: int
    position: int
    end_position: int
    first_offset: int
    end_offset: int
    problem: str
    is_hole: bool = False


def inspect(folder: Path, checkpoint: WriterCheckpoint, *, from_offset: int) -> list[DamagedRange]:
    """Return the damaged ranges of the files that hold offsets from `from_offset` on, up to the visible end."""
    found: list[DamagedRange] = []
    files = checkpoints.left_files(folder, checkpoint)
    if files[0].first_offset > from_offset:
        found.append(_hole(folder, files[0], from_offset))
    for file, following in itertools.pairwise(files):
        if following.first_offset > from_offset:
            found += _damaged_ranges(folder, file, following.first_offset)
    known = states.load(folder)
    if known is not None and known.seq == files[-1].seq and known.visible_offset > from_offset:
        visible = replace(files[-1], size_bytes=known.visible_position)
        found += _damaged_ranges(folder, visible, known.visible_offset)
    return found


def skip(folder: Path, checkpoint: WriterCheckpoint, damaged: Sequence[DamagedRange]) -> WriterCheckpoint:
    """Rewrite the damaged files without the damaged bytes. The WAL must not be open for writing."""
    for file in checkpoint.files:
        ranges = [each for each in damaged if each.seq == file.seq]
        if not ranges:
            continue
        repaired = file
        if ranges[0].is_hole:
            # The file after a hole covers it: its first offset moves to the start of the hole, its batches stay.
            repaired = replace(file, first_offset=ranges[0].first_offset, gap_end=file.first_batch_offset)
            ranges = ranges[1:]
        if ranges:
            size_bytes = _write_without(folder, file, ranges, checkpoint.epochs)
            repaired = replace(repaired, size_bytes=size_bytes)
        checkpoint = replace(
            checkpoint,
            files=tuple(repaired if each.seq == file.seq else each for each in checkpoint.files),
            damage=tuple(each for each in checkpoint.damage if each.seq != file.seq),
        )
        checkpoints.save_writer(folder, checkpoint)
        reached("wal.repair.noted")
    return checkpoint


def _hole(folder: Path, first: WalFile, from_offset: int) -> DamagedRange:
    return DamagedRange(
        path=folder,
        seq=first.seq,
        position=0,
        end_position=0,
        first_offset=from_offset,
        end_offset=first.first_offset,
        problem=f"no WAL file in {folder} holds these offsets, and they are not sealed",
        is_hole=True,
    )


def _damaged_ranges(folder: Path, file: WalFile, end_offset: int) -> Iterator[DamagedRange]:
    path = folder / file.name
    expected_size = file.size_bytes or 0
    data: bytes | None = None
    position, offset = 0, file.first_batch_offset
    while True:
        try:
            for placed in walk(path, position=position, end_position=expected_size, expected_offset=offset):
                position, offset = placed.position + placed.header.size_bytes, placed.header.next_offset
            if offset == end_offset:
                return
            problem = f"{path} ends before the next file begins"
        except FileNotFoundError:
            problem = f"{path} is missing"
        except CorruptError as error:
            problem = str(error)
        if data is None:
            data = path.read_bytes()[:expected_size] if path.exists() else b""
        found = _next_batch(data, position, offset, end_offset)
        next_position, next_offset = found or (len(data), end_offset)
        yield DamagedRange(
            path=path,
            seq=file.seq,
            position=position,
            end_position=next_position,
            first_offset=offset,
            end_offset=next_offset,
            problem=problem,
        )
        if found is None:
            return
        position, offset = next_position, next_offset


def _next_batch(data: bytes, start: int, first_offset: int, end_offset: int) -> tuple[int, int] | None:
    """Return the position and the offset of the next whole batch with an offset in the range, or None."""
    candidates = np.flatnonzero(np.frombuffer(data, np.uint8)[start + _MAGIC_AT :] == _MAGIC) + start
    for position in candidates.tolist():
        header = header_at(data, position)
        if (
            header is not None
            and first_offset <= header.base_offset < header.next_offset <= end_offset
            and batch.check_crc(data, header, position)
            and (position > start or _is_followed(data, header, position, end_offset))
        ):
            return position, header.base_offset
    return None


def _is_followed(data: bytes, header: batch.BatchHeader, position: int, end_offset: int) -> bool:
    """Return whether the bytes after a batch confirm its offset, which no checksum covers."""
    after = position + header.size_bytes
    if after >= len(data):
        return header.next_offset == end_offset
    following = header_at(data, after)
    return following is not None and following.base_offset == header.next_offset


def _write_without(
    folder: Path, file: WalFile, ranges: list[DamagedRange], epochs: tuple[tuple[int, int], ...]
) -> int:
    path = folder / file.name
    repaired = path.with_name(path.name + ".repair")
    data = memoryview(path.read_bytes() if path.exists() else b"")
    fd = os.open(repaired, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        position = 0
        for each in ranges:
            disk.write_all(fd, data[position : each.position])
            if each.first_offset < each.end_offset:
                disk.write_all(fd, _gap(each, epochs))
            position = each.end_position
        disk.write_all(fd, data[position : file.size_bytes])
        size_bytes = os.fstat(fd).st_size
        disk.fsync(fd)
    finally:
        os.close(fd)
    reached("wal.repair.written")
    if path.exists():
        aside = aside_path(folder, f"{path.name}.damaged")
        os.link(path, aside)
        disk.sync_folder(aside.parent)
    repaired.replace(path)
    disk.sync_folder(folder)
    reached("wal.repair.replaced")
    logger.warning("skipped %d damaged ranges of %s", len(ranges), path)
    return size_bytes


def _gap(damaged: DamagedRange, epochs: tuple[tuple[int, int], ...]) -> bytes:
    epoch = max((epoch for epoch, first in epochs if first <= damaged.first_offset), default=0)
    return batch.empty_batch(damaged.first_offset, damaged.end_offset - 1, epoch)
