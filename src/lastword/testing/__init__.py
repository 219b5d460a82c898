"""Helpers for the tests of programs that build on Lastword.

clock.py               a clock that tests move by hand
compaction_service.py  the contract of a compaction service, as tests

pytest is not needed to import this. If it is running, failed assertions of the contract show their values.
"""

import sys

if (_pytest := sys.modules.get("pytest")) is not None:
    _pytest.register_assert_rewrite("lastword.testing.compaction_service")

from lastword.testing.clock import ManualClock
from lastword.testing.compaction_service import CompactionServiceContract

__all__ = ["CompactionServiceContract", "ManualClock"]
