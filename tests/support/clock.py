"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
import time

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class ManualClock:
    """Time as a test says. Sleeping moves it.

    It begins at the machine's time, because the ages of files are compared with it. Tests move in steps that are
    much larger than what a test takes.
    """

    def __init__(self, now_ms: int | None = None) -> None:
        self._now_ms = float(time.time_ns() // 1_000_000 if now_ms is None else now_ms)
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return int(self._now_ms)

    def sleep_ms(self, duration_ms: float) -> None:
        self.move(duration_ms)

    def move(self, duration_ms: float) -> None:
        with self._lock:
            self._now_ms += duration_ms
