"""The few operations of the log on a local disk, each with the syncs that make it durable.

Tests replace `fdatasync` and `write` here to simulate a failing or lossy disk.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

from lastword.clock import SystemClock
from lastword.folder.locks import try_flock

fdatasync = os.fdatasync
fsync = os.fsync
write = os.write
writev = os.writev

MAX_PIECES = 512
_FOLDER_ATTEMPTS = 5
_TURN_MS = 1

# Linux only, and not in Python's os.
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
_SYNC_FILE_RANGE_WRITE = 2


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[write(fd, view) :]


def write_pieces(fd: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write pieces one after the other, many with one call."""
    if len(pieces) == 1:
        write_all(fd, pieces[0])
        return
    for first in range(0, len(pieces), MAX_PIECES):
        some = pieces[first : first + MAX_PIECES]
        written = writev(fd, some)
        for piece in some:
            if written < len(piece):
                write_all(fd, memoryview(piece)[written:])
            written = max(0, written - len(piece))


def sync_data(fd: int) -> None:
    fdatasync(fd)


def begin_write_out(fd: int, position: int, size_bytes: int) -> None:
    """Tell the system to begin writing a part of a file to disk, if it supports that. Don't wait for it.

    A large file that is synced only at its end delays every other sync on the same file system while it is written.
    """
    if _sync_file_range is not None:
        # Failure does not matter: the sync that counts comes later.
        _sync_file_range(fd, ctypes.c_int64(position), ctypes.c_int64(size_bytes), _SYNC_FILE_RANGE_WRITE)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, synced, so that a file in it can't become unreachable."""
    for attempt in range(_FOLDER_ATTEMPTS):
        try:
            _make_missing(folder)
            return
        except FileNotFoundError:
            # Another process that removed a sibling folder has just removed the empty parent too.
            if attempt == _FOLDER_ATTEMPTS - 1:
                raise


def _make_missing(folder: Path) -> None:
    missing = []
    at = folder
    while not at.exists():
        missing.append(at)
        at = at.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)


def replace_file(path: Path, data: bytes, mode: int = 0o644, *, synced: bool = True) -> None:
    """Write a small file so that the old or the new version is always complete; with `synced`, even after a power cut.

    Threads and processes that write the same file take turns.
    """
    temporary = path.with_name(path.name + ".tmp")
    fd = _open_alone(temporary, mode)
    try:
        os.ftruncate(fd, 0)
        write_all(fd, data)
        if synced:
            fsync(fd)
        temporary.replace(path)
    finally:
        os.close(fd)
    if synced:
        sync_folder(path.parent)


def _open_alone(path: Path, mode: int) -> int:
    """Open a file for writing, once no one else has opened it in this way. It stays reserved until it is closed or renamed."""
    while True:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            if try_flock(fd) and os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        SystemClock().sleep_ms(_TURN_MS)
