"""For the tests of those who build on Lastword.

clock.py               a clock to move by hand
compaction_service.py  what a compaction service must do

pytest is not needed to import this; where it is running, failed assertions of the contract show their values.
"""

import sys

if (_pytest := sys.modules.get("pytest")) is not None:
    _pytest.register_assert_rewrite("lastword.testing.compaction_service")

from lastword.testing.clock import ManualClock
from lastword.testing.compaction_service import CompactionServiceContract

__all__ = ["CompactionServiceContract", "ManualClock"]
