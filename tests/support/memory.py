"""Folders in memory, for tests that need no disk: a killed process loses nothing that it wrote, and syncs take no time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SHARED = Path("/dev/shm")
_ROOM_BYTES = 1 << 30


def make_memory_folder() -> Path:
    """A new folder in memory; on the disk where there is no room."""
    fits = _SHARED.is_dir() and min(shutil.disk_usage(_SHARED).free, _available_bytes()) > _ROOM_BYTES
    return Path(tempfile.mkdtemp(prefix="lastword-test-", dir=_SHARED if fits else None))


@contextmanager
def memory_folder() -> Iterator[Path]:
    folder = make_memory_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0
