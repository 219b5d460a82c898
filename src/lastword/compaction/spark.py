"""Compaction on Spark: the kernels in tasks, over a DataFrame of work units. Values never move through a shuffle.

Only the DataFrame API is used, so that a Spark Connect server will do. A run is one job of one stage for all
partitions that one task each can compact; a large partition is two stages (masks by shares of the keys, then the
rewrite spread over tasks); one with more keys than fit into memory lets Spark SQL find the winners, from keys and
versions alone, and is then rewritten like a large one.

A task that fails or is killed has written files that nothing names. It is tried again, under new names.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lastword.clock import monotonic_s
from lastword.compaction import kernels
from lastword.compaction.engine import (
    Failure,
    Job,
    Result,
    TooLarge,
    carry_out,
    find_share,
    join,
    rewrite_found,
    unite,
)
from lastword.compaction.keyset import Share
from lastword.compaction.service import EngineFactory, ServiceContext
from lastword.compaction.survivors import Mask, Survivors, pack
from lastword.compaction.unit import Unit
from lastword.errors import InvalidConfigError, UnavailableError

logger = logging.getLogger(__name__)

DEFAULT_MASTER = "local[*,3]"
"""All cores of this machine; a task whose process dies is tried twice more."""

_DEFAULTS = {
    "spark.app.name": "lastword",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # What is known beforehand needs no adapting, and a run pays for each stage.
    "spark.sql.adaptive.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    # Spark's own default suits clusters; here each of them is a task on one machine.
    "spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1)),
}
_ENVIRONMENT = {
    # Arrow gives memory back and takes it again with each row group otherwise.
    "MIMALLOC_PURGE_DELAY": "10000",
}
_RESULT_SCHEMA = "job int, result binary"


class SparkEngine:
    """Runs units on a Spark session, which is started with the first run and kept."""

    name = "spark"

    def __init__(self, settings: Mapping[str, str], *, log_path: Path | None = None) -> None:
        self._settings = dict(settings)
        self._log_path = log_path
        self._spark: Any = None
        self._lock = threading.Lock()

    @property
    def parallel(self) -> int:
        return max(1, _default_parallelism(self.session()))

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        results: dict[int, Result] = {}
        single = [(number, job) for number, job in enumerate(jobs) if job.way == "one stage"]
        if single:
            results |= self._one_stage(single)
        for number, job in enumerate(jobs):
            if job.way == "two stages":
                results[number] = self._guarded(self._two_stages, job)
            elif job.way == "Spark SQL":
                results[number] = self._guarded(self._spark_sql, job)
        return [results[number] for number in range(len(jobs))]

    def session(self) -> Any:
        """The Spark session; started if it is not running."""
        with self._lock:
            if self._spark is None:
                self._spark = _start(self._settings, self._log_path)
            return self._spark

    def close(self) -> None:
        with self._lock:
            if self._spark is not None:
                self._spark.stop()
                self._spark = None

    def _one_stage(self, jobs: Sequence[tuple[int, Job]]) -> dict[int, Result]:
        threads = max(1, self.parallel // len(jobs))
        units = [replace(job.unit, threads=min(threads, 2)) for _, job in jobs]
        try:
            found = self._map(units, carry_out)
        except _spark_errors() as error:
            # A job fails as a whole; one unit at a time tells which of them it was.
            if len(jobs) == 1:
                return {jobs[0][0]: Failure(message=_message(error))}
            return {number: result for each in jobs for number, result in self._one_stage([each]).items()}
        return {number: result for (number, _), result in zip(jobs, found, strict=True)}

    def _two_stages(self, job: Job) -> Result:
        started_s = monotonic_s()
        unit = job.unit
        shares = self._map(
            [Share(index, job.shares) for index in range(job.shares)], lambda share: find_share(unit, share)
        )
        for share in shares:
            if isinstance(share, Failure | TooLarge):
                return share
        return self._rewrite(unit, unite(unit, shares), started_s, keys_only=False)

    def _spark_sql(self, job: Job) -> Result:
        started_s = monotonic_s()
        return self._rewrite(job.unit, self._sql_masks(job.unit), started_s, keys_only=True)

    def _rewrite(self, unit: Unit, masks: list[Mask], started_s: float, *, keys_only: bool) -> Result:
        pieces = kernels.split(unit, masks, self.parallel * 2)
        packed = [(piece, [pack(mask) for mask in own]) for piece, own in pieces]

        def work(piece: tuple[Unit, list[bytes]]) -> Result:
            own, bits = piece
            return rewrite_found(
                own,
                [
                    np.unpackbits(np.frombuffer(each, np.uint8), count=segment.records)
                    for each, segment in zip(bits, own.segments, strict=True)
                ],
                keys_only=keys_only,
            )

        return join(unit, self._map(packed, work), monotonic_s() - started_s)

    def _sql_masks(self, unit: Unit) -> list[Mask]:
        """Let Spark find each key's winner: a shuffle of keys, versions and row numbers."""
        from pyspark.sql import functions as sql

        assert unit.keyed, "records that don't compete must not be compared"
        spark = self.session()
        keys = spark.range(0, len(unit.segments), 1, len(unit.segments)).mapInArrow(
            _read_keys(unit), "key binary, known int, version long, segment int, row int"
        )
        row = sql.struct("segment", "row")
        if unit.rules.strategy == "first":
            best = sql.min(row)
        else:
            best = sql.max(sql.struct("known", "version", "segment", "row"))
        winners = keys.groupBy("key").agg(best.alias("best")).select("best.segment", "best.row")
        rows = [segment.records for segment in unit.segments]
        found = (
            winners.groupBy("segment").applyInArrow(_pack_rows(rows), "segment int, bits binary").collect()
        )
        masks = [np.zeros(segment.records, np.uint8) for segment in unit.segments]
        for each in found:
            bits = np.frombuffer(bytes(each["bits"]), np.uint8)
            masks[each["segment"]] = np.unpackbits(bits, count=rows[each["segment"]])
        return masks

    def _map(self, items: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        """Each item in a task of its own; the results in the items' order."""
        tasks = (
            self.session()
            .range(0, len(items), 1, len(items))
            .mapInArrow(_task(list(items), work), _RESULT_SCHEMA)
        )
        results = {each["job"]: pickle.loads(bytes(each["result"])) for each in tasks.collect()}
        return [results[number] for number in range(len(items))]

    def _guarded(self, way: Callable[[Job], Result], job: Job) -> Result:
        try:
            return way(job)
        except _spark_errors() as error:
            return Failure(message=_message(error))


def _task(
    items: list[Any], work: Callable[[Any], Any]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                result = pickle.dumps(work(items[number]))
                yield pa.RecordBatch.from_pydict(
                    {"job": pa.array([number], pa.int32()), "result": pa.array([result], pa.binary())}
                )

    return run


def _read_keys(unit: Unit) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Keys, versions and row numbers of segments. Rows without a key compete with nobody and are left out."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        finder = Survivors(unit)
        versioned = unit.rules.strategy in ("timestamp", "header")
        for batch in batches:
            for index in batch.column("id").to_pylist():
                with finder.open(index) as raw:
                    rows = unit.segments[index].records
                    known, versions = (
                        finder.versions(raw)
                        if versioned
                        else (np.zeros(rows, np.uint8), np.zeros(rows, np.int64))
                    )
                    for first_row, run_keys in finder.runs(raw):
                        place = slice(first_row, first_row + len(run_keys))
                        yield pa.RecordBatch.from_pydict(
                            {
                                "key": run_keys,
                                "known": known[place].astype(np.int32),
                                "version": versions[place],
                                "segment": np.full(len(run_keys), index, np.int32),
                                "row": np.arange(place.start, place.stop, dtype=np.int32),
                            }
                        ).filter(run_keys.is_valid())

    return run


def _pack_rows(rows: list[int]) -> Callable[[pa.Table], pa.Table]:
    def run(winners: pa.Table) -> pa.Table:
        segment = winners.column("segment")[0].as_py()
        mask = np.zeros(rows[segment], np.uint8)
        mask[winners.column("row").to_numpy()] = 1
        return pa.table(
            {"segment": pa.array([segment], pa.int32()), "bits": pa.array([pack(mask)], pa.binary())}
        )

    return run


def _start(settings: Mapping[str, str], log_path: Path | None) -> Any:
    """Start or find the session. Spark's own words go to a file, not to the terminal."""
    from pyspark.sql import SparkSession

    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Executors would start the system's Python otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    remote = settings.get("spark.remote")
    builder = SparkSession.builder.remote(remote) if remote else SparkSession.builder
    if not remote:
        quiet = resources.files("lastword.compaction").joinpath("log4j2.properties")
        options = settings.get("spark.driver.extraJavaOptions", "")
        defaults = _DEFAULTS | {
            "spark.master": DEFAULT_MASTER,
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet} {options}".strip(),
        }
        for key, value in (
            defaults | {k: v for k, v in settings.items() if k != "spark.driver.extraJavaOptions"}
        ).items():
            builder = builder.config(key, value)
    else:
        for key, value in settings.items():
            if key != "spark.remote":
                builder = builder.config(key, value)
    try:
        with _stderr_to(log_path):
            spark = builder.getOrCreate()
            if not remote:
                spark.sparkContext.setLogLevel("ERROR")
            return spark
    except Exception as error:
        hint = "" if log_path is None else f" Spark's own words are in {log_path}."
        raise UnavailableError(
            f"Spark can't be started: {_message(error)}.{hint} It needs Java 17 or newer (JAVA_HOME or java on the "
            f"path); without Java, set compaction.service.factory to "
            f"lastword.compaction.inline:InlineCompactionServiceFactory."
        ) from error


@contextlib.contextmanager
def _stderr_to(path: Path | None) -> Iterator[None]:
    """Let a child that is started meanwhile write its errors to a file."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    saved = os.dup(2)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.dup2(log, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(log)


def _default_parallelism(spark: Any) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and says so in several ways
        return int(spark.conf.get("spark.default.parallelism", "8"))


def _spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def _message(error: BaseException) -> str:
    """The first telling line of an error that may carry a Java stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__


class SparkCompactionServiceFactory(EngineFactory):
    """The default: compaction on Spark, embedded (`local[*]`) or wherever `spark.master` or `spark.remote` says."""

    def make_engine(self, context: ServiceContext) -> SparkEngine:
        settings = context.config.spark
        if "spark.remote" in settings and "spark.master" in settings:
            raise InvalidConfigError("spark.remote and spark.master are both set; one of them is allowed")
        return SparkEngine(settings, log_path=context.data_folder / "logs" / "spark.log")
