"""The roles of a data folder, each held by one process at a time.

*writer*: appends, rolls, and changes topics. *maintenance*: seals, applies retention, deletes and collects. *worker*:
runs maintenance in the background. *backup*: makes a backup.
The locks are flocks, so the kernel releases them when a process dies. The file names the holder.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar

from lastword.clock import Clock, SystemClock
from lastword.errors import LockedError
from lastword.folder.paths import LOCKS_FOLDER
from lastword.folder.processes import is_running

logger = logging.getLogger(__name__)

T = TypeVar("T")

BRIEF_WAIT_MS = 5_000
_POLL_MS = 20


_command: str | None = None


def name_command(command: str) -> None:
    """Set the command of this process, for processes that find a role taken.

    Only the command, never arguments: erased keys or records would stay in lock files, logs and error messages.
    """
    global _command
    _command = command


class Role(StrEnum):
    WRITER = "writer"
    MAINTENANCE = "maintenance"
    WORKER = "worker"
    BACKUP = "backup"


class RoleLock:
    """A role, held until it is released or the process ends."""

    def __init__(self, fd: int, role: Role) -> None:
        self._fd: int | None = fd
        self.role = role

    @classmethod
    def acquire(
        cls, data_folder: Path, role: Role, clock: Clock, *, channel: str | None = None, brief: bool = False
    ) -> RoleLock:
        """Acquire a role. Raise LockedError, which names the holder, if another process or another open log has it.

        `channel` is the path where the holder takes requests. With `brief`, the role is released soon, so
        others wait for it instead of failing.
        """
        folder = data_folder / LOCKS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{role}.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        waited_ms = 0
        while True:
            if try_flock(fd):
                break
            held_by = _parse(os.pread(fd, 4096, 0))
            # A holder that is not named yet, or no longer, may be a brief one.
            is_named = bool(held_by) and not _is_gone(held_by)
            if (held_by.get("brief") or not is_named) and waited_ms < BRIEF_WAIT_MS:
                clock.sleep_ms(_POLL_MS)
                waited_ms += _POLL_MS
                continue
            os.close(fd)
            raise LockedError(
                f"{data_folder} is in use: {_describe(held_by)} is its {role}. "
                f"There can be one {role} at a time; stop that process, or wait until it is done."
            )
        me = {
            "channel": channel,
            "brief": brief,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": _command or Path(sys.argv[0]).name,
            "since_ms": clock.now_ms(),
        }
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(me).encode(), 0)
        except OSError as error:
            # The lock is held anyway: a full disk must not prevent opening the log.
            logger.warning("could not note the holder in %s: %s", path, error)
        return cls(fd, role)

    def release(self) -> None:
        if self._fd is not None:
            # The content is removed first: a file without a name is better than one with the wrong name.
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def try_flock(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed. Return False if it is locked already."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def acquired_within(wait_ms: int, acquire: Callable[[], T]) -> T:
    """Call `acquire` until it has its lock. Raise its LockedError if another process still has the lock after `wait_ms`."""
    waited_ms = 0
    while True:
        try:
            return acquire()
        except LockedError:
            if waited_ms >= wait_ms:
                raise
        SystemClock().sleep_ms(_POLL_MS)
        waited_ms += _POLL_MS


def writer_channel(data_folder: Path) -> str | None:
    """Return the path where the writer of a data folder takes requests, from its lock file. The writer may have ended."""
    try:
        return _parse((data_folder / LOCKS_FOLDER / f"{Role.WRITER}.lock").read_bytes()).get("channel")
    except FileNotFoundError:
        return None


def holder(data_folder: Path, role: Role) -> str | None:
    """Return a readable description of the holder of a role, from its lock file. Return None if there is none or it has ended.

    This does not try the lock: a process that wants it at that moment would be refused.
    """
    try:
        found = _parse((data_folder / LOCKS_FOLDER / f"{role}.lock").read_bytes())
    except FileNotFoundError:
        return None
    if not found or _is_gone(found):
        return None
    return _describe(found)


def _is_gone(holder: dict[str, Any]) -> bool:
    """Return whether the named holder is a process of this machine that has ended."""
    return holder.get("host") == socket.gethostname() and not is_running(holder.get("pid"))


def _parse(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _describe(holder: dict[str, Any]) -> str:
    if not {"pid", "host", "command"} <= set(holder):
        return "another process"
    return f"process {holder['pid']} on {holder['host']} (`{holder['command']}`)"
