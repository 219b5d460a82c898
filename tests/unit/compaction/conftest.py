"""The fixture of the tests of whole runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.compacted import Twin
from tests.support.compaction_model import Policy


@pytest.fixture
def twin(tmp_path: Path) -> Iterator[Twin]:
    with Twin(tmp_path / "data", Policy(min_ratio=0.0)) as made:
        yield made
