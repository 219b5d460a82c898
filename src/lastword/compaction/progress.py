"""The progress of a task: counts in a small file that the starting process reads."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

_PROGRESS = struct.Struct(">QQ")


class ProgressFile:
    """Counts the work of a task in a small file that the starting process reads. Without a path it does nothing."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._records = self._bytes = 0
        self._lock = threading.Lock()

    def add(self, records: int, size_bytes: int) -> None:
        if self._path is None:
            return
        with self._lock:
            self._records += records
            self._bytes += size_bytes
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(fd, _PROGRESS.pack(self._records, self._bytes), 0)
            finally:
                os.close(fd)


def read_progress(path: Path) -> tuple[int, int]:
    """Return the records and bytes that a task has processed."""
    try:
        records, size_bytes = _PROGRESS.unpack(path.read_bytes())
    except (FileNotFoundError, struct.error):
        return 0, 0
    return records, size_bytes
