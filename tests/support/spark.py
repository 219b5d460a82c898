"""One Spark for a whole test session: starting it takes longer than most tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark import cloudpickle

from lastword.compaction.engine import Job, Result
from lastword.compaction.spark import SparkEngine
from lastword.segments.model import Codec
from lastword.segments.parquet import SegmentFiles
from lastword.segments.writer import SegmentWriter

SPARK_SETTINGS = {
    "spark.master": "local[2,3]",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}

_started: list[SparkEngine] = []


@pytest.fixture(scope="session")
def spark_engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SparkEngine:
    """The engine that all tests share, also those of modules that import this fixture on their own."""
    if not _started:
        engine = SparkEngine(SPARK_SETTINGS, log_path=tmp_path_factory.mktemp("spark") / "spark.log")
        request.config.add_cleanup(engine.close)
        _started.append(engine)
    return _started[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlyFiles(SegmentFiles):
    """Files whose writer kills the process that asks for it, so many times. `notes` counts them."""

    notes: str
    times: int

    def writer(self, partition: int, first_offset: int, job_id: str, codec: Codec = "zstd") -> SegmentWriter:
        notes = Path(self.notes)
        for number in range(self.times):
            try:
                (notes / str(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
        # A dataclass with slots is made anew, which `super()` without arguments does not know of.
        return SegmentFiles.writer(self, partition, first_offset, job_id, codec)


class DeadlyEngine:
    """The shared engine; tasks that rewrite partition 0 are killed with SIGKILL, so many times."""

    name = "spark"

    def __init__(self, engine: SparkEngine, notes: Path, times: int) -> None:
        # Executors don't have the tests on their path.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self._engine = engine
        self._notes = notes
        self._times = times

    @property
    def parallel(self) -> int:
        return self._engine.parallel

    @property
    def kills(self) -> int:
        return len(list(self._notes.iterdir()))

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        return self._engine.run([self._deadly(job) if job.unit.partition == 0 else job for job in jobs])

    def close(self) -> None:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])

    def _deadly(self, job: Job) -> Job:
        files = job.unit.files
        deadly = DeadlyFiles(
            location=files.location, properties=files.properties, notes=str(self._notes), times=self._times
        )
        return replace(job, unit=replace(job.unit, files=deadly))
