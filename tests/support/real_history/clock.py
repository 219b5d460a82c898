"""The clock of the server's processes. A small library (moved_clock.c), loaded before the C library, moves it.

All processes see a step at once. What follows from a step follows as it does on a real machine: logs, the times of
files, Spark's JVM. Monotonic clocks stay as they are.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

from lastword.testing.history import Recorder

SOURCE: Final = Path(__file__).with_name("moved_clock.c")
MAPPED_BYTES: Final = 4_096


def can_move() -> bool:
    """Return whether there is a compiler for the library."""
    return shutil.which("cc") is not None


class ServerClock:
    """The clock that the server's processes show."""

    def __init__(self) -> None:
        self._ahead_ms = 0
        self._steps: list[tuple[int, int]] = []
        self._file: Path | None = None

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def sleep_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1000)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the variables of processes whose clock can be moved."""
        library = folder / "moved_clock.so"
        flags = ("-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-Wno-missing-attributes")
        subprocess.run(["cc", *flags, "-o", str(library), str(SOURCE), "-ldl"], check=True)
        self._file = folder / "clock"
        self._file.write_bytes(bytes(MAPPED_BYTES))
        return {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(self._file)}

    def step(self, seconds: float, recorder: Recorder, topic: str) -> None:
        """Move the clock.

        The history learns that it may have shown the new time from before the step on, and the old time until after it.
        """
        before_ms = self._ahead_ms
        after_ms = before_ms + int(seconds * 1000)
        self._ahead_ms = after_ms
        _note_time(recorder, topic)
        self._write(after_ms)
        self._ahead_ms = before_ms
        _note_time(recorder, topic)
        self._ahead_ms = after_ms

    def _write(self, ahead_ms: int) -> None:
        """Add a step to the file, and then count it."""
        assert self._file is not None
        # The kernel's times of files lag behind its clock by up to ten milliseconds.
        self._steps.append((time.time_ns() - 10_000_000, ahead_ms * 1_000_000))
        with self._file.open("r+b", buffering=0) as file:
            file.seek(8 + 16 * (len(self._steps) - 1))
            file.write(struct.pack("=qq", *self._steps[-1]))
            file.seek(0)
            file.write(struct.pack("=q", len(self._steps)))


def _note_time(recorder: Recorder, topic: str) -> None:
    """Record an operation that tells nothing but the time."""
    with recorder.positions(topic, 0, process="clock"):
        pass
