"""Fixtures that more than one folder uses."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from tests.support.clock import ManualClock
from tests.support.logs import WalFolder, open_log

from lastword.log import Log

# Examples are judged by what they find, never by how long one took on a busy machine.
hypothesis.settings.register_profile("lastword", deadline=None)
hypothesis.settings.load_profile("lastword")

# A job in the background of a shell ignores it, and so would every command that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with open_log(tmp_path / "data", clock) as opened:
        yield opened


@pytest.fixture
def wal(tmp_path: Path, clock: ManualClock) -> WalFolder:
    return WalFolder(tmp_path / "wal", clock)


@pytest.fixture(autouse=True)
def _levels_of_loggers() -> Iterator[None]:
    """Commands that run in this process say what they want to hear; the next test must hear everything again."""
    yield
    logging.getLogger().setLevel(logging.WARNING)
    for name in [each for each in logging.root.manager.loggerDict if each.startswith("lastword")]:
        logging.getLogger(name).setLevel(logging.NOTSET)
