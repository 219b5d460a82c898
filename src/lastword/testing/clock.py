"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading

from lastword.clock import SystemClock


class ManualClock:
    """A clock that a test sets. Sleeping moves it.

    It starts at the machine's time, because the ages of files are compared with it. Move it in steps that are much
    larger than the duration of a test.
    """

    def __init__(self, now_ms: int | None = None) -> None:
        self._now_ms = float(SystemClock().now_ms() if now_ms is None else now_ms)
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return int(self._now_ms)

    def sleep_ms(self, duration_ms: float) -> None:
        self.move(duration_ms)

    def move(self, duration_ms: float) -> None:
        """Let time pass."""
        with self._lock:
            self._now_ms += duration_ms

    def put(self, now_ms: float) -> None:
        """Set the time. It may be earlier than before."""
        with self._lock:
            self._now_ms = float(now_ms)
