"""Fixtures that more than one folder uses."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from tests.support.clock import ManualClock
from tests.support.logs import WalFolder, open_log
from tests.support.memory import memory_folder
from tests.support.postgres import Cluster, running_cluster
from tests.support.s3 import S3Server, s3_server

from lastword.log import Log

# Examples are judged by what they find, never by how long one took on a busy machine.
hypothesis.settings.register_profile("lastword", deadline=None)
hypothesis.settings.load_profile("lastword")

# A job in the background of a shell ignores it, and so would every command that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Garbage is collected less often: in processes that have loaded everything, it would be a tenth of their time.
gc.set_threshold(100_000, 20, 50)

# Most of the Spark sessions of the tests live for seconds: a JVM that starts quickly is worth more to them than one
# that compiles well. scripts/ensure-spark-archive makes the archive.
SPARK_ARCHIVE = Path(sys.prefix) / "spark.jsa"
SPARK_OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable"]
if SPARK_ARCHIVE.exists():
    SPARK_OPTIONS.append(f"-XX:SharedArchiveFile={SPARK_ARCHIVE}")
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(SPARK_OPTIONS))

TESTS = Path(__file__).parent
IN_MEMORY = ("unit", "contract", "property")

LONGEST_FIRST = ("spark", "e2e", "crash", "property", "contract", "unit")
"""Groups and folders by how long they take: with the longest at the end, all processes but one would wait."""
SHARES_SPARK = {
    "tests/e2e/test_serve_spark_write.py",
    "tests/e2e/test_spark_compaction.py",
    "tests/e2e/test_spark_source.py",
    "tests/e2e/test_verify.py",
    "tests/property/test_ways.py",
}
"""Files whose tests run in one process, because starting a Spark for each of them would take longer than they do."""


def _group(nodeid: str) -> str:
    """Tests of a group run in one process, one after the other."""
    file = nodeid.split("::", 1)[0]
    return "spark" if file in SHARES_SPARK else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark_engine" in getattr(item, "fixturenames", ()) and _group(item.nodeid) != "spark":
            raise pytest.UsageError(f"{item.nodeid} uses spark_engine: name its file in SHARES_SPARK")

    def rank(item: pytest.Item) -> int:
        folder = _group(item.nodeid).removeprefix("tests/").split("/")[0]
        return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """What has been imported by now stays. Tests that collect garbage need not go through it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return Groups(config, log)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """In memory where that makes no difference: tests of the whole, and of what survives a crash, are on the disk."""
    if request.path.relative_to(TESTS).parts[0] not in IN_MEMORY:
        yield tmp_path
        return
    with memory_folder() as folder:
        yield folder


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


@pytest.fixture(scope="session")
def one_s3_server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def s3(one_s3_server: S3Server) -> S3Server:
    """An empty bucket on a real S3 server."""
    return one_s3_server.new_bucket()


@pytest.fixture(scope="session")
def one_cluster() -> Iterator[Cluster]:
    with running_cluster() as started:
        yield started


@pytest.fixture(scope="module")
def postgres_uri(one_cluster: Cluster) -> str:
    """An empty database of a real PostgreSQL server, for a catalog."""
    return one_cluster.new_database()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server that nobody else uses, for sources."""
    with running_cluster() as started:
        yield started
