"""A disk that is small enough to fill: a tmpfs of its own."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted tmpfs. `fill` takes all the space that is left, `free` gives it back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, but_bytes: int = 0) -> None:
        """Leave only so many bytes."""
        with self._ballast.open("ab") as ballast:
            while True:
                left = os.statvfs(self.path)
                size = left.f_bavail * left.f_frsize - but_bytes
                try:
                    if size > 0:
                        os.posix_fallocate(ballast.fileno(), ballast.tell(), size)
                    return
                except OSError as error:
                    # Somebody else took a part of it just then.
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def grow(self, size: str = "32m") -> None:
        """Give back what was taken, and more than there was."""
        self.free()
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True)


@contextmanager
def small_disk(path: Path, size: str = "4m") -> Iterator[SmallDisk]:
    """Mounted at a folder; skips the test, and says why, where that is not allowed."""
    path.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "lastword-test", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"a tmpfs can't be mounted here, which takes root: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
