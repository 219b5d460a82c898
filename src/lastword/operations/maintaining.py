"""The maintenance role, for requests by people."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from lastword.folder.locks import acquired_within

if TYPE_CHECKING:
    from lastword.log import Log

MAINTENANCE_WAIT_MS = 10_000
"""How long to wait for a command, or for a worker that seals, before reporting which process holds the role."""


def wait_for_maintenance(log: Log) -> ExitStack:
    """Take the maintenance role, and wait if another process has it for a moment."""
    held = ExitStack()
    acquired_within(MAINTENANCE_WAIT_MS, lambda: held.enter_context(log.maintenance()))
    return held
