"""Compaction on Spark: runs task.py in its tasks, over a DataFrame of work units. Values never go through a shuffle.

Only the DataFrame API is used, so that a Spark Connect server suffices. A run is one job of one stage for all
partitions that fit into one task each. A large partition takes two stages (masks by shares of the keys, then the
rewrite spread over tasks). For a partition with more keys than fit into memory, Spark SQL finds the winners from
keys and versions alone, and it is then rewritten like a large one.

A task that fails or is killed leaves files that nothing refers to. It is retried, under new names. If Spark itself
dies, the running work fails, and later work gets a new session.
"""

from __future__ import annotations

import logging
import pickle
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lastword.clock import monotonic_s
from lastword.compaction import task
from lastword.compaction.engine import (
    Failure,
    Job,
    Result,
    RoundResult,
    ShareFound,
    TooLarge,
    carry_out,
    carry_out_round,
    find_share,
    join,
    rewrite_found,
    unite,
)
from lastword.compaction.keyset import Share
from lastword.compaction.round import Round
from lastword.compaction.service import EngineFactory, ServiceContext
from lastword.compaction.spark_session import (
    borrow,
    collect,
    default_parallelism,
    is_alive,
    message,
    spark_errors,
    start,
    stop,
)
from lastword.compaction.survivors import Mask, Survivors, pack
from lastword.compaction.unit import Unit
from lastword.errors import InvalidConfigError, UnavailableError
from lastword.folder.paths import spark_log

logger = logging.getLogger(__name__)

_RESULT_SCHEMA = "job int, result binary"


TASK_BYTES = 256 << 20
"""Work of this size is worth a separate task."""


class SparkEngine:
    """Runs units on a Spark session, which is started by the first run and kept, or on the caller's own Spark."""

    name = "spark"

    def __init__(self, settings: Mapping[str, str], *, log_path: Path | None = None) -> None:
        self._settings = dict(settings)
        self._log_path = log_path
        self._spark: Any = None
        self._is_borrowed = False
        self._running = 0
        self._lock = threading.Lock()

    @property
    def parallel(self) -> int:
        return max(1, default_parallelism(self.session(), is_remote="spark.remote" in self._settings))

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        with self._lock:
            self._running += 1
        try:
            return self._run(jobs)
        finally:
            with self._lock:
                self._running -= 1

    def _run(self, jobs: Sequence[Job]) -> list[Result]:
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

    @property
    def reaches_local_files(self) -> bool:
        """Whether its executors are threads of a Spark on this machine. A borrowed one may be another than the settings say."""
        if "spark.remote" in self._settings:
            return False
        master = self._settings.get("spark.master", "local[*]")
        if (spark := self._spark) is not None:
            try:
                master = spark.sparkContext.master
            except Exception:  # noqa: BLE001 - one that is gone, or a client of Spark Connect
                return False
        return re.fullmatch(r"local(\[.*\])?", master) is not None

    @property
    def rounds_at_a_time(self) -> int:
        return self.parallel * 4

    @property
    def is_busy(self) -> bool:
        return self._running > 0

    def run_rounds(self, rounds: Sequence[Round]) -> list[RoundResult | Failure | TooLarge]:
        try:
            parallel = self.parallel
            threads = max(1, parallel // max(1, len(rounds)))
            at_a_time = min(parallel, max(1, len(rounds)))
            units = [
                replace(each, threads=min(threads, 2), memory_bytes=each.memory_bytes // at_a_time)
                for each in rounds
            ]
            dealt = deal([each.size_bytes for each in units], parallel)
            shares = [[units[index] for index in share] for share in dealt]
            done = self._map(shares, lambda share: [carry_out_round(each) for each in share])
        except UnavailableError as error:
            return [Failure(message=str(error)) for _ in rounds]
        except spark_errors() as error:
            return [Failure(message=message(error)) for _ in rounds]
        results = {
            index: result
            for share, own in zip(dealt, done, strict=True)
            for index, result in zip(share, own, strict=True)
        }
        return [results[index] for index in range(len(rounds))]

    def session(self) -> Any:
        """Return the Spark session. Start one if none is running."""
        with self._lock:
            if self._spark is not None and not self._is_alive(self._spark):
                logger.warning("Spark is gone; starting a new session")
                stop(self._spark)
                self._spark = None
            if self._spark is None:
                self._spark = borrow(self._settings)
                self._is_borrowed = self._spark is not None
            if self._spark is None:
                self._spark = start(self._settings, self._log_path)
            return self._spark

    @property
    def state(self) -> str:
        """The state of the session. This neither starts one nor waits for one that is being started."""
        spark = self._spark
        if spark is None:
            return "being started" if self._lock.locked() else "not started"
        return "running" if self._is_alive(spark) else "gone"

    def close(self) -> None:
        with self._lock:
            spark, self._spark = self._spark, None
            if spark is None or self._is_borrowed:
                return
            if "spark.remote" in self._settings:
                spark.stop()
            else:
                stop(spark)

    def _is_alive(self, spark: Any) -> bool:
        """Return whether the session can be used. One on a server that others run is always worth a try."""
        return "spark.remote" in self._settings or is_alive(spark)

    def _one_stage(self, jobs: Sequence[tuple[int, Job]]) -> dict[int, Result]:
        try:
            self.session()
        except UnavailableError as error:
            # None of the jobs is the cause, so there is no use in trying them one by one.
            return {number: Failure(message=str(error)) for number, _ in jobs}
        try:
            parallel = self.parallel
            threads = max(1, parallel // len(jobs))
            units = [replace(job.unit, threads=min(threads, 2)) for _, job in jobs]
            dealt = deal([unit.size_bytes for unit in units], parallel)
            shares = [[units[index] for index in share] for share in dealt]
            done = self._map(shares, lambda share: [carry_out(unit) for unit in share])
            by_index = {
                index: result
                for share, results in zip(dealt, done, strict=True)
                for index, result in zip(share, results, strict=True)
            }
            found = [by_index[index] for index in range(len(units))]
        except spark_errors() as error:
            # A Spark job fails as a whole. Running one unit at a time shows which of them it was.
            if len(jobs) == 1:
                return {jobs[0][0]: Failure(message=message(error))}
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
        return self._rewrite(unit, unite(unit, shares), started_s, shares=shares)

    def _spark_sql(self, job: Job) -> Result:
        started_s = monotonic_s()
        return self._rewrite(job.unit, self._sql_masks(job.unit), started_s)

    def _rewrite(
        self, unit: Unit, masks: list[Mask], started_s: float, shares: Sequence[ShareFound] = ()
    ) -> Result:
        """Rewrite in several tasks. Without shares, the tasks complete the masks: Spark looked at keys only."""
        pieces = task.split(unit, masks, self.parallel * 2)
        packed = [
            (_with_own_progress(piece, number), [pack(mask) for mask in own])
            for number, (piece, own) in enumerate(pieces)
        ]
        keys_only = not shares

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

        results = self._map(packed, work)
        return join(unit, results, monotonic_s() - started_s, shares)

    def _sql_masks(self, unit: Unit) -> list[Mask]:
        """Let Spark find each key's winner: a shuffle of keys, versions and row numbers."""
        from pyspark.sql import functions as sql

        assert unit.keyed, "records that don't compete must not be compared"
        spark = self.session()
        keys = spark.range(0, len(unit.segments), 1, len(unit.segments)).mapInArrow(
            _read_keys(unit), "key binary, known int, version long, segment int, row int"
        )
        row = sql.struct("segment", "row")
        if unit.rules.strategy.order == "oldest":
            best = sql.min(row)
        else:
            best = sql.max(sql.struct("known", "version", "segment", "row"))
        winners = keys.groupBy("key").agg(best.alias("best")).select("best.segment", "best.row")
        rows = [segment.records for segment in unit.segments]
        found = collect(winners.groupBy("segment").applyInArrow(_pack_rows(rows), "segment int, bits binary"))
        masks = [np.zeros(segment.records, np.uint8) for segment in unit.segments]
        for each in found:
            bits = np.frombuffer(bytes(each["bits"]), np.uint8)
            masks[each["segment"]] = np.unpackbits(bits, count=rows[each["segment"]])
        return masks

    def _map(self, items: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        """Run each item in a separate task. Return the results in the items' order."""
        tasks = (
            self.session()
            .range(0, len(items), 1, len(items))
            .mapInArrow(_task(list(items), work), _RESULT_SCHEMA)
        )
        results = {each["job"]: pickle.loads(bytes(each["result"])) for each in collect(tasks)}
        if len(results) < len(items):
            # A stream of results that breaks off looks like one that ends.
            raise UnavailableError(f"Spark went away after {len(results)} of {len(items)} results")
        return [results[number] for number in range(len(items))]

    def _guarded(self, way: Callable[[Job], Result], job: Job) -> Result:
        try:
            return way(job)
        except spark_errors() as error:
            return Failure(message=message(error))


def deal(sizes_bytes: Sequence[int], parallel: int) -> list[list[int]]:
    """Assign units, by their indexes, to tasks: the largest first, each to the task with the least to do.

    A task costs more than a small unit, so there are no more tasks than run at a time, unless there is much to do.
    """
    count = min(len(sizes_bytes), max(parallel, sum(sizes_bytes) // TASK_BYTES))
    tasks: list[tuple[int, list[int]]] = [(0, []) for _ in range(count)]
    for index in sorted(range(len(sizes_bytes)), key=lambda index: -sizes_bytes[index]):
        at = min(range(count), key=lambda task: tasks[task][0])
        total, own = tasks[at]
        tasks[at] = (total + sizes_bytes[index], [*own, index])
    return [own for _, own in tasks]


def _with_own_progress(piece: Unit, number: int) -> Unit:
    """Give a task a separate file in which it reports its progress."""
    path = piece.progress_path
    return replace(piece, progress_path=None if path is None else f"{path}.{number}")


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
    """Read keys, versions and row numbers of segments. Rows without a key don't compete and are left out."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        finder = Survivors(unit)
        versioned = unit.rules.strategy.is_versioned
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


class SparkCompactionServiceFactory(EngineFactory):
    """The default: compaction on Spark, embedded (`local[*]`) or at `spark.master` or `spark.remote`."""

    def make_engine(self, context: ServiceContext) -> SparkEngine:
        settings = context.config.spark
        if "spark.remote" in settings and "spark.master" in settings:
            raise InvalidConfigError(
                "spark.remote and spark.master are both set; only one of them is allowed"
            )
        return SparkEngine(settings, log_path=spark_log(context.data_folder))
