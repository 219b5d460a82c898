"""One Spark for a whole test session: starting it takes longer than most tests."""

from __future__ import annotations

import pytest

from lastword.compaction.spark import SparkEngine

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
