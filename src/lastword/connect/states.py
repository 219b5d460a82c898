"""What is kept of a source in the data folder, beside its position: who runs it, whether it is paused, how it is.

connect/<source>/unit.json     its last unit and its position        see appender.py
                 lock          held by the process that runs it
                 paused        there while it is paused
                 status.json   how it is, written about every second; of interest, never relied on
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any, Final, Self

from lastword import disk
from lastword.clock import Clock
from lastword.connect.appender import forget_position
from lastword.errors import InvalidError, LockedError

CONNECT_FOLDER: Final = "connect"
STALE_MS: Final = 10_000
_STATUS: Final = "status.json"
_PAUSED: Final = "paused"


def source_folder(data_folder: Path, source: str) -> Path:
    return data_folder / CONNECT_FOLDER / source


class SourceLock:
    """One process at a time runs a source. The kernel gives the lock back when it ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def acquire(cls, folder: Path) -> Self:
        disk.make_folder(folder)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 100, 0).decode(errors="replace") or "another process"
            os.close(fd)
            raise LockedError(
                f"The source {folder.name!r} is being run by {holder}; stop it first."
            ) from None
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
    return (folder / _PAUSED).exists()


def pause(data_folder: Path, source: str) -> None:
    """Let a source end its chunk and wait. It stays so over restarts."""
    disk.replace_file(_known(data_folder, source) / _PAUSED, b"")


def resume(data_folder: Path, source: str) -> None:
    folder = _known(data_folder, source)
    (folder / _PAUSED).unlink(missing_ok=True)
    disk.sync_folder(folder)


def reset(data_folder: Path, source: str) -> bool:
    """Forget the position of a source that nobody runs; False if it had none."""
    folder = _known(data_folder, source)
    with SourceLock.acquire(folder):
        (folder / _STATUS).unlink(missing_ok=True)
        return forget_position(folder)


def save_status(folder: Path, status: dict[str, Any]) -> None:
    """Not synced: a status that a power cut takes is no loss."""
    temporary = folder / f"{_STATUS}.tmp"
    temporary.write_text(json.dumps(status))
    temporary.replace(folder / _STATUS)


def load_statuses(data_folder: Path, clock: Clock) -> list[dict[str, Any]]:
    """How every source is that was ever run here, by name."""
    root = data_folder / CONNECT_FOLDER
    folders = sorted(each for each in root.iterdir() if each.is_dir()) if root.exists() else []
    return [_load_status(folder, clock.now_ms()) for folder in folders]


def _load_status(folder: Path, now_ms: int) -> dict[str, Any]:
    status: dict[str, Any]
    try:
        status = json.loads((folder / _STATUS).read_bytes())
    except (FileNotFoundError, ValueError):
        status = {"source": folder.name, "state": "stopped", "records": 0}
    if status["state"] != "stopped" and not _is_locked(folder):
        # Whoever wrote it was killed.
        status["state"] = "stopped"
    if status["state"] == "stopped" and is_paused(folder):
        status["state"] = "paused"
    status["age_ms"] = max(0, now_ms - status.get("time_ms", now_ms))
    return status


def _is_locked(folder: Path) -> bool:
    try:
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _known(data_folder: Path, source: str) -> Path:
    folder = source_folder(data_folder, source)
    if "/" in source or not folder.is_dir():
        root = data_folder / CONNECT_FOLDER
        known = sorted(each.name for each in root.iterdir() if each.is_dir()) if root.exists() else []
        raise InvalidError(
            f"There is no source {source!r} in {data_folder}; known: {', '.join(known) or 'none'}."
        )
    return folder
