"""Fixtures that more than one folder uses."""

from __future__ import annotations

import logging
import os
import signal
import sys
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

# Most of the Spark sessions of the tests live for seconds: a JVM that starts quickly is worth more to them than one
# that compiles well. scripts/ensure-spark-archive makes the archive.
SPARK_ARCHIVE = Path(sys.prefix) / "spark.jsa"
SPARK_OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable"]
if SPARK_ARCHIVE.exists():
    SPARK_OPTIONS.append(f"-XX:SharedArchiveFile={SPARK_ARCHIVE}")
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(SPARK_OPTIONS))

LONGEST_FIRST = ("e2e", "crash", "property", "contract", "unit")
"""Folders by how long one of their files takes: with the longest at the end, all but one process would wait."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Say which tests must run in one process: those of a file, and those that share a Spark."""
    item.add_marker(pytest.mark.xdist_group(_group(item)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)


def _group(item: pytest.Item) -> str:
    shares_spark = "spark_engine" in getattr(item, "fixturenames", ())
    return "spark" if shares_spark else item.path.relative_to(Path(__file__).parent).as_posix()


def _rank(item: pytest.Item) -> int:
    folder = _group(item).split("/")[0]
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else -1


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
