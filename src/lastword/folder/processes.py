"""Whether a process is still there that a file names."""

from __future__ import annotations

import os
from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When a process was started, in the kernel's ticks; None if there is none of that number, 0 if nobody can say."""
    try:
        # The command's name, in parentheses, may have spaces.
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # One that has ended and is not waited for yet is gone.
        return None if state in "ZX" else int(rest[18])
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
    """Whether a process of this machine is there.

    With `started`, in ticks, it must be the one that was started then, not another that has got its number since.
    """
    found = start_ticks(pid) if isinstance(pid, int) else None
    return found is not None and (started is None or found == started)
