"""The state of a source in the data folder, besides its position: its lock, whether it is paused, its status.

connect/<source>/unit.json     its last unit and its position        see appender.py
                 lock          held by the process that runs it, unless it is paused
                 paused        exists while it is paused
                 status.json   its status, written about every second; informational, never relied on
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Self

from lastword.clock import Clock
from lastword.connect.appender import forget_position
from lastword.errors import LockedError, UnknownSourceError
from lastword.folder import disk, state_file
from lastword.folder.locks import acquired_within, try_flock
from lastword.folder.paths import (
    CONNECT_FOLDER,
    SOURCE_LOCK_FILE,
    SOURCE_PAUSED_FILE,
    SOURCE_STATUS_FILE,
)

LOCK_WAIT_MS: Final = 2_000
"""A status query holds a source's lock for a moment; a source that was just paused holds it until its chunk is done."""


def source_folder(data_folder: Path, source: str) -> Path:
    return data_folder / CONNECT_FOLDER / source


class SourceLock:
    """The lock of a source: one process at a time runs it. The kernel releases the lock when the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def acquire(cls, folder: Path) -> Self:
        disk.make_folder(folder)
        return acquired_within(LOCK_WAIT_MS, lambda: cls._try(folder))

    @classmethod
    def _try(cls, folder: Path) -> Self:
        fd = os.open(folder / SOURCE_LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not try_flock(fd):
            holder = os.pread(fd, 100, 0).decode(errors="replace") or "another process"
            os.close(fd)
            raise LockedError(
                f"The source {folder.name!r} is being run by {holder}; pause it, or stop that process, first."
            )
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()}".encode(), 0)
        return cls(fd)

    def release(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def is_paused(folder: Path) -> bool:
    return (folder / SOURCE_PAUSED_FILE).exists()


def pause(data_folder: Path, source: str) -> dict[str, Any]:
    """Pause a source after its current chunk. It stays paused across restarts."""
    disk.replace_file(_known(data_folder, source) / SOURCE_PAUSED_FILE, b"")
    return {"source": source, "paused": True}


def resume(data_folder: Path, source: str) -> dict[str, Any]:
    """Resume a paused source."""
    folder = _known(data_folder, source)
    (folder / SOURCE_PAUSED_FILE).unlink(missing_ok=True)
    disk.sync_folder(folder)
    return {"source": source, "paused": False}


def reset(data_folder: Path, source: str) -> bool:
    """Forget the position of a source that no process runs; return False if it had none."""
    folder = _known(data_folder, source)
    with SourceLock.acquire(folder):
        (folder / SOURCE_STATUS_FILE).unlink(missing_ok=True)
        return forget_position(folder)


def save_status(folder: Path, status: dict[str, Any]) -> None:
    """Save the status. It is not synced: a status lost in a power cut does no harm."""
    state_file.save(folder / SOURCE_STATUS_FILE, status, synced=False)


def load_statuses(data_folder: Path, clock: Clock) -> list[dict[str, Any]]:
    """Return the status of every source that was ever run here, in the order of their names."""
    return [_load_status(folder, clock.now_ms()) for folder in _folders(data_folder)]


def load_status(data_folder: Path, source: str, clock: Clock) -> dict[str, Any]:
    """Return the status of one source. Raise UnknownSourceError if it was never run here."""
    return _load_status(_known(data_folder, source), clock.now_ms())


def _load_status(folder: Path, now_ms: int) -> dict[str, Any]:
    status: dict[str, Any] = {"source": folder.name, "state": "stopped", "records": 0}
    status |= state_file.load_if_whole(folder / SOURCE_STATUS_FILE, dict) or {}
    if status["state"] != "stopped" and not _is_locked(folder):
        # The process that wrote it was killed.
        status["state"] = "stopped"
    if status["state"] == "stopped" and is_paused(folder):
        status["state"] = "paused"
    status["age_ms"] = max(0, now_ms - status.get("time_ms", now_ms))
    return status


def _is_locked(folder: Path) -> bool:
    try:
        fd = os.open(folder / SOURCE_LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_flock(fd, shared=True)
    finally:
        os.close(fd)


def _folders(data_folder: Path) -> list[Path]:
    root = data_folder / CONNECT_FOLDER
    return sorted(each for each in root.iterdir() if each.is_dir()) if root.exists() else []


def _known(data_folder: Path, source: str) -> Path:
    names = [each.name for each in _folders(data_folder)]
    if source not in names:
        raise UnknownSourceError(
            f"There is no source {source!r} in {data_folder}; known: {', '.join(names) or 'none'}."
        )
    return source_folder(data_folder, source)
