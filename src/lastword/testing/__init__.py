"""Helpers for the tests of programs that build on Lastword.

clock.py             a clock that a test sets
compaction_service/  the contract of a compaction service, as tests
history/             a checker for histories of any compacted log
simulation/          a whole server in one process, scheduled by a seed

pytest is not needed to import this. If it is running, failed assertions of the contract show their values.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if (_pytest := sys.modules.get("pytest")) is not None:
    _pytest.register_assert_rewrite("lastword.testing.compaction_service")

if TYPE_CHECKING:
    from lastword.testing.clock import ManualClock
    from lastword.testing.compaction_service import CompactionServiceContract

__all__ = ["CompactionServiceContract", "ManualClock"]

_MODULES = {"ManualClock": "clock", "CompactionServiceContract": "compaction_service"}


def __getattr__(name: str) -> object:
    # The history checker doesn't need the log, so importing it must not load the log.
    if name in _MODULES:
        return getattr(import_module(f"lastword.testing.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
