"""Finds the files that rotation has made of one: the one that was being read, and those that came after it.

A rotated file has the name of the file and, behind it, a number (`.1`) or a date (`-20260131`). Files are put in the order in
which they were last written: with some writers the higher number is the older file, with some the newer. Where two were
written at the same time, the lower number is the newer one, as logrotate has it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

HEAD_BYTES: Final = 1024
"""Of so much of its beginning a file is known again: an inode that was freed may be another file's."""
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
    """A checksum of the beginning of a file, as far as it was read."""
    return crc32(os.pread(file.fileno(), min(offset, HEAD_BYTES), 0))


def find(path: Path, inode: int) -> Path | None:
    """The file of an inode, among the one and those that rotation made of it; None if it is gone."""
    return next((each.path for each in _beside(path) if each.inode == inode), None)


def following(path: Path, inode: int) -> FilePosition | None:
    """The file after the one of an inode: the next that was rotated, else the one that is being written.

    None if that one is not there yet. Whoever opens it looks at the inode again: it may have been rotated meanwhile.
    """
    try:
        # Before the folder is listed: what is rotated in between is in the list, or shows when it is opened.
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
    """What rotated files are put in order by; None if it has not the name of one."""
    suffix = _COMPRESSED.sub("", rotated.path.name[len(path.name) :])
    if counted := _COUNTED.fullmatch(suffix):
        return (rotated.written_ns, -int(counted[1]), "")
    if dated := _DATED.fullmatch(suffix):
        return (rotated.written_ns, 0, dated[1])
    return None
