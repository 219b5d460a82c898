"""Waiting for a condition, as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 180.0


def wait_until(
    condition: Callable[[], bool], why: str | Callable[[], object] = "", *, patience_s: float = PATIENCE_S
) -> None:
    """Ask again and again until it is so. `why`: what is waited for, or gives what to show if it was in vain."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited in vain until {why}" if isinstance(why, str) else why()
        time.sleep(0.01)
