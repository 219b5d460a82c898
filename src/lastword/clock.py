"""Time and randomness. Nothing else in the package asks the machine for either."""

from __future__ import annotations

import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """The clock of the log. Tests pass one that they move by hand."""

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""
        ...

    def sleep_ms(self, duration_ms: float) -> None:
        """Sleep for this time."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1000)


def new_uuid() -> uuid.UUID:
    return uuid.uuid4()


def monotonic_s() -> float:
    """Return a monotonic time, for durations that are reported. Decisions use a Clock."""
    return time.monotonic()
