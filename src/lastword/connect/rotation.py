"""Finds the files of a rotation: the one that was being read, and those that came after it.

A rotated file has the name of the file followed by a number (`.1`) or a date (`-20260131`). Files are ordered by the time
of their last write, because with some writers the higher number is the older file, and with others the newer. Of two
files written at the same time, the lower number is the newer one, as with logrotate.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

HEAD_BYTES: Final = 1024
"""This much of its beginning identifies a file, besides its inode: a freed inode may be reused by another file."""
_COUNTED = re.compile(r"[._-]?(\d{1,4})")
_DATED = re.compile(r"[._-]?(\d[\dT:._-]{4,})")
_COMPRESSED = re.compile(r"\.(gz|bz2|xz|zst|lz4|Z)$")


@dataclass(frozen=True, slots=True)
class FilePosition:
    """A file as it was found."""

    path: Path
    inode: int
    written_ns: int

    @property
    def is_compressed(self) -> bool:
        return _COMPRESSED.search(self.path.name) is not None


def head_of(file: BinaryIO, offset: int) -> int:
    """Return a checksum of the beginning of a file, as far as it was read."""
    return crc32(os.pread(file.fileno(), min(offset, HEAD_BYTES), 0))


def find(path: Path, inode: int) -> Path | None:
    """Return the file with an inode, either the one at the path or a rotated one; None if it is gone."""
    return next((each.path for each in _beside(path) if each.inode == inode), None)


def following(path: Path, inode: int) -> FilePosition | None:
    """Return the file after the one with an inode: the next rotated file, else the one that is being written.

    None if that one does not exist yet. The caller checks the inode after opening: it may have been rotated meanwhile.
    """
    try:
        # Before the folder is listed: a file rotated in between is in the list, or is noticed when it is opened.
        newest = _place(path)
    except FileNotFoundError:
        newest = None
    order = {each: rank for each in _beside(path) if (rank := _rank(path, each)) is not None}
    own = next((rank for each, rank in order.items() if each.inode == inode), None)
    if own is None:
        return newest
    later = [each for each, rank in order.items() if rank > own]
    return min(later, key=order.__getitem__) if later else newest


def _beside(path: Path) -> list[FilePosition]:
    found = []
    for each in [path, *sorted(path.parent.glob(f"{_literal(path.name)}?*"))]:
        try:
            found.append(_place(each))
        except OSError:
            # It was moved or removed since it was listed.
            continue
    return found


def _place(path: Path) -> FilePosition:
    found = path.stat()
    return FilePosition(path, found.st_ino, found.st_mtime_ns)


def _literal(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


def _rank(path: Path, rotated: FilePosition) -> tuple[int, int, str] | None:
    """Return the sort key of a rotated file; None if it does not have the name of one."""
    suffix = _COMPRESSED.sub("", rotated.path.name[len(path.name) :])
    if counted := _COUNTED.fullmatch(suffix):
        return (rotated.written_ns, -int(counted[1]), "")
    if dated := _DATED.fullmatch(suffix):
        return (rotated.written_ns, 0, dated[1])
    return None
