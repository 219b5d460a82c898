"""Fixtures of the crash tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.crash import Children
from tests.support.memory import memory_folder


@pytest.fixture(scope="session")
def children() -> Iterator[Children]:
    started = Children()
    yield started
    started.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as made:
        yield made / "data"
