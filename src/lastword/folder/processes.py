"""Checks whether a process that a file names is still running."""

from __future__ import annotations

import os
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """Return when a process was started, in kernel ticks; None if there is no such process, 0 if that is unknown."""
    try:
        # The command's name, in parentheses, may have spaces.
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # A process that has ended and is not waited for yet counts as gone, unless one of its threads still ends: until
        # then it has its files, and their locks.
        has_ended = state in "ZX" and int(rest[16]) <= 1
        return None if has_ended else int(rest[18])
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
    except (OSError, ValueError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0


def is_running(pid: object, started: int | None = None) -> bool:
    """Return whether a process is running on this machine.

    With `started`, in ticks, it must be the one that was started then, not another one with a reused pid.
    """
    found = start_ticks(pid) if isinstance(pid, int) else None
    return found is not None and (started is None or found == started)
