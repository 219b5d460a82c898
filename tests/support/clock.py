"""A clock that stands still until a test moves it, and the steps in which it is moved."""

from __future__ import annotations

from lastword.testing.clock import ManualClock

__all__ = ["DAY_MS", "HOUR_MS", "ManualClock"]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
