"""The maintenance role, for something that was asked for by a person."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from lastword.clock import SystemClock
from lastword.errors import LockedError

if TYPE_CHECKING:
    from lastword.log import Log

MAINTENANCE_WAIT_MS = 10_000
"""How long to wait for a command, or for a worker that seals, before saying who is in the way."""


def wait_for_maintenance(log: Log) -> ExitStack:
    """The maintenance role, which another process may have for a moment."""
    clock = SystemClock()
    waited_ms = 0
    held = ExitStack()
    while True:
        try:
            held.enter_context(log.maintenance())
            return held
        except LockedError:
            if waited_ms >= MAINTENANCE_WAIT_MS:
                raise
            clock.sleep_ms(100)
            waited_ms += 100
