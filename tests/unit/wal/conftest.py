"""The fixture of the tests of a WAL that look at its syncs."""

from __future__ import annotations

import pytest
from tests.support.syncs import Syncs

from lastword.folder import disk


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    counter = Syncs()
    monkeypatch.setattr(disk, "fdatasync", counter)
    return counter
