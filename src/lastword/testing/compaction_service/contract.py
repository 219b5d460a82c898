"""The contract as a whole."""

from __future__ import annotations

from lastword.testing.compaction_service.compacting import Compacting
from lastword.testing.compaction_service.ending import Ending
from lastword.testing.compaction_service.reading import Reading
from lastword.testing.compaction_service.separation import Separation


class CompactionServiceContract(Compacting, Reading, Separation, Ending):
    """The contract. Subclass it with a name that begins with `Test`, and set `factory`."""
