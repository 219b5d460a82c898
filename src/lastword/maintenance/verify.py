"""Proves from two snapshots that nothing was lost between them: a Spark job over everything but the values.

Each side is read as one row per record: partition, offset, key, version, whether it is a tombstone, timestamp and a
digest of the whole record. Spark joins the sides by offset, and each removed record with the winner of its key.

The proof holds if no record appeared below the earlier sealed end, no record changed, offsets rise, and every removed
record was superseded by one that is there (or that was itself allowed to go), or is a tombstone that had expired, or
had outlived retention.ms, or lies below the log start. So every key has the same winner, unless the rules removed it.
Everything else is a problem, reported with its partition and offset.

Ranges that were compacted while they were sealed, and that no run had passed at the earlier snapshot, are read from the
WAL instead of that snapshot: so the proof includes the sealing. Where their WAL files are gone, or Spark does not reach
them, the snapshot itself is compared, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.clock import new_uuid
from lastword.compaction.committing import JOB_DETAIL
from lastword.compaction.keyset import hash_rows
from lastword.compaction.rules import on_clock
from lastword.compaction.spark import SparkEngine
from lastword.compaction.spark_session import collect, message, spark_errors
from lastword.compaction.strategy import strategy_of
from lastword.config import TopicSettings
from lastword.errors import CorruptError, InvalidError, LastwordError, UnavailableError
from lastword.maintenance import tiering
from lastword.segments.model import CompactedRange, Deadline, Positions, Segment, Snapshot
from lastword.segments.parquet import SegmentFiles
from lastword.segments.raw import RawSegment
from lastword.wal import checkpoint as checkpoints
from lastword.wal.rolled import RolledFile

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable

MAX_EXAMPLES = 20

_SCHEMA = (
    "partition int, offset long, key binary, known int, version long, tombstone boolean, timestamp_ms long, "
    "digest long, second_digest long, in_order boolean"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A record that breaks a rule."""

    partition: int
    offset: int
    key: bytes | None
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of a comparison. Without problems nothing was lost."""

    topic: str
    before: Snapshot
    after: Snapshot
    records_before: int
    records_after: int
    keys: int
    wal_records: int = 0
    """Of `records_before`, those that were read from the WAL: their sealing is part of the proof."""
    unproven: tuple[tuple[int, int, int], ...] = ()
    """Partition, first and last offset of the ranges whose sealing is not part of it."""
    gone: Mapping[str, int] = field(default_factory=dict)
    """The number of removed records, by the rule that removed them."""
    problems: tuple[Problem, ...] = ()
    problem_count: int = 0

    @property
    def holds(self) -> bool:
        return self.problem_count == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedRounds:
    """The WAL files of ranges that were compacted while they were sealed, and the ranges whose files are gone."""

    files: tuple[RolledFile, ...] = ()
    proven: tuple[tuple[int, CompactedRange], ...] = ()
    """Partition and range of the rounds that `files` have."""
    unproven: tuple[tuple[int, int, int], ...] = ()

    def ranges(self, partition: int) -> list[CompactedRange]:
        """Return the ranges of a partition that are read from the WAL."""
        return [each for own, each in self.proven if own == partition]


def find_rounds(before: Snapshot, folders: Sequence[Path], settings: TopicSettings) -> SealedRounds:
    """Look for the WAL files of what had been compacted while it was sealed. `folders` are those of the partitions.

    What was compacted by another strategy than the present one is not proven.
    """
    files: list[RolledFile] = []
    proven: list[tuple[int, CompactedRange]] = []
    unproven: list[tuple[int, int, int]] = []
    tag = strategy_of(settings).tag
    for partition, at in enumerate(before.positions):
        saved = checkpoints.load_writer(folders[partition]) if at.rounds else None
        left = checkpoints.left_files(folders[partition], saved) if saved is not None else ()
        for each in at.rounds:
            at_round = replace(at, sealed_end=each.start, log_start=min(at.log_start, each.start))
            try:
                found = tiering.propose(partition, folders[partition], left, at_round)
            except CorruptError:
                found = []
            own = [file for file in found if file.end_offset <= each.end]
            if own and own[-1].end_offset == each.end and each.strategy == tag:
                files += own
                proven.append((partition, each))
            else:
                unproven.append((partition, each.start, each.end - 1))
    return SealedRounds(files=tuple(files), proven=tuple(proven), unproven=tuple(unproven))


def choose_snapshots(
    table: SegmentTable, before_id: int | None = None, after_id: int | None = None
) -> tuple[Snapshot, Snapshot]:
    """Return the two snapshots to compare: the ones given, else those around the last compaction.

    If there was none, but records were left out when they were sealed, it is the newest snapshot, twice.
    """
    history = table.history()
    known = {snapshot.id: snapshot for snapshot in history}
    for wanted in (before_id, after_id):
        if wanted is not None and wanted not in known:
            raise InvalidError(
                f"There is no snapshot {wanted}. `lastword topic history` lists the retained snapshots "
                f"(snapshot.retention.ms)."
            )
    after = known[after_id] if after_id is not None else None
    if after is None:
        compactions = [each for each in history if each.operation == "compact" and each.parent_id in known]
        if before_id is not None:
            after = history[-1]
        elif compactions:
            after = compactions[-1]
            # A run makes several commits. Compare with the snapshot before the first of them.
            job = after.details.get(JOB_DETAIL)
            first = next(
                each
                for each in compactions
                if each.id == after.id or (job and each.details.get(JOB_DETAIL) == job)
            )
            before_id = first.parent_id
        elif any(at.rounds for at in history[-1].positions):
            return history[-1], history[-1]
        else:
            raise InvalidError(
                "None of the retained snapshots (snapshot.retention.ms) is a compaction, so there is nothing to "
                "compare. Compact first, or name two snapshots of `lastword topic history`."
            )
    before = known.get(before_id if before_id is not None else after.parent_id)
    if before is None:
        raise InvalidError(
            f"The snapshot before {after.id} is no longer retained (snapshot.retention.ms). Name another one."
        )
    return before, after


def verify(
    table: SegmentTable,
    before: Snapshot,
    after: Snapshot,
    settings: TopicSettings,
    engine: SparkEngine,
    rounds: SealedRounds,
) -> VerifyReport:
    """Compare two snapshots of a topic on Spark. `rounds` are read from the WAL instead of the earlier one."""
    if not engine.reaches_local_files:
        unread = tuple((partition, each.start, each.end - 1) for partition, each in rounds.proven)
        rounds = SealedRounds(unproven=tuple(sorted((*rounds.unproven, *unread))))
    try:
        return _Comparison(table, before, after, settings, engine, rounds).run()
    except LastwordError:
        raise
    except spark_errors() as error:
        raise UnavailableError(message(error)) from error


class _Comparison:
    def __init__(
        self,
        table: SegmentTable,
        before: Snapshot,
        after: Snapshot,
        settings: TopicSettings,
        engine: SparkEngine,
        rounds: SealedRounds,
    ) -> None:
        self._before, self._after = before, after
        self._rounds = rounds
        self._settings = settings
        self._spark = engine.session()
        self._parallel = engine.parallel
        self._sides = (table.plan(before), table.plan(after))
        self._files = table.files
        random = new_uuid().int
        self._seeds = (random & (2**64 - 1), random >> 64)

    def run(self) -> VerifyReport:
        from pyspark.sql import functions as sql

        before, after = self._rows(self._sides[0], self._rounds), self._rows(self._sides[1], SealedRounds())
        both = before.alias("b").join(after.alias("a"), ["partition", "offset"], "full_outer")
        compared = both.join(sql.broadcast(self._positions()), "partition").select(
            "partition",
            "offset",
            sql.coalesce("b.key", "a.key").alias("key"),
            sql.col("b.digest").isNotNull().alias("was"),
            sql.col("a.digest").isNotNull().alias("is"),
            (
                (sql.col("b.digest") == sql.col("a.digest"))
                & (sql.col("b.second_digest") == sql.col("a.second_digest"))
            ).alias("same"),
            sql.coalesce("a.in_order", "b.in_order").alias("in_order"),
            sql.coalesce("b.known", "a.known").alias("known"),
            sql.coalesce("b.version", "a.version").alias("version"),
            sql.coalesce("b.tombstone", "a.tombstone").alias("tombstone"),
            sql.coalesce("b.timestamp_ms", "a.timestamp_ms").alias("timestamp_ms"),
            "log_start",
            "sealed_end_before",
        )
        judged = self._judged(compared.withColumn("may_go", self._may_go()))
        # One pass counts everything. A second pass fetches examples only if there are problems.
        counts = collect(
            judged.groupBy("kind", "what").agg(
                sql.count("*").alias("n"),
                sql.sum("wins").alias("keys"),
                sql.sum(sql.col("was").cast("int")).alias("before"),
                sql.sum((sql.col("was") & sql.col("from_wal")).cast("int")).alias("wal"),
            )
        )
        gone = {each["what"]: each["n"] for each in counts if each["kind"] == "gone"}
        problem_count = sum(each["n"] for each in counts if each["kind"] == "problem")
        examples = (
            collect(judged.where("kind = 'problem'").orderBy("partition", "offset").limit(MAX_EXAMPLES))
            if problem_count
            else []
        )
        return VerifyReport(
            topic=self._after.topic.name,
            before=self._before,
            after=self._after,
            records_before=sum(each["before"] for each in counts),
            records_after=sum(segment.records for segment in self._sides[1]),
            keys=sum(each["keys"] for each in counts),
            wal_records=sum(each["wal"] for each in counts),
            unproven=self._rounds.unproven,
            gone=gone,
            problems=tuple(
                Problem(
                    partition=each["partition"],
                    offset=each["offset"],
                    key=None if each["key"] is None else bytes(each["key"]),
                    what=each["what"],
                )
                for each in examples
            ),
            problem_count=problem_count,
        )

    def _judged(self, compared: Any) -> Any:
        """Return each record with a verdict: `kind` is kept, gone or problem, `what` is the rule or the problem."""
        from pyspark.sql import Window
        from pyspark.sql import functions as sql

        col = sql.col
        # Records without a key don't compete: each has its own window.
        same_key = Window.partitionBy("partition", "key", sql.when(col("key").isNull(), col("offset")))
        rank = sql.struct("known", "version", "offset")
        if strategy_of(self._settings).order == "oldest":
            rank = sql.struct((-col("offset")).alias("rank"))
        competes = sql.when(col("offset") >= col("log_start"), rank)
        best = sql.max_by(sql.struct("offset", "is", "may_go"), competes).over(same_key)
        judged = self._with_rounds(compared.withColumn("best", best), rank)
        beaten = col("key").isNotNull() & (col("best.offset") != col("offset"))
        lawful = col("best.is") | col("best.may_go").isNotNull()
        gone = (
            sql.when(col("offset") < col("log_start"), "below the log start")
            .when(col("left_out") | (beaten & lawful), "beaten by another record of its key")
            .otherwise(col("may_go"))
        )
        problem = (
            sql.when(
                col("is") & ~col("was") & (col("offset") < col("sealed_end_before")),
                "it was not there before",
            )
            .when(col("is") & ~col("in_order"), "its offset is not above the one before it")
            .when(col("is") & col("was") & ~col("same"), "key, value, headers or timestamp changed")
            .when(col("is") | gone.isNotNull(), sql.lit(None))
            .when(col("key").isNull(), "a record without a key is gone, and no rule let it go")
            .when(beaten, "it is gone, and so is the record that beat it")
            .otherwise("it is gone, and it was the winner of its key")
        )
        kind = sql.when(problem.isNotNull(), "problem").when(col("is"), "kept").otherwise("gone")
        wins = col("key").isNotNull() & (col("best.offset") == col("offset"))
        return judged.select(
            "partition",
            "offset",
            "key",
            "was",
            "from_wal",
            kind.alias("kind"),
            sql.coalesce(problem, sql.when(~col("is"), gone)).alias("what"),
            sql.coalesce(wins, sql.lit(False)).cast("int").alias("wins"),
        )

    def _rows(self, segments: Sequence[Segment], rounds: SealedRounds) -> Any:
        parts: list[Segment | RolledFile] = [*segments, *rounds.files]
        if not parts:
            return self._spark.createDataFrame([], _SCHEMA)
        return self._spark.range(0, len(parts), 1, min(len(parts), self._parallel * 4)).mapInArrow(
            _read_rows(self._files, parts, rounds, self._settings, self._seeds), _SCHEMA
        )

    def _with_rounds(self, compared: Any, rank: Any) -> Any:
        """Add whether the earlier side of a record was read from the WAL, and whether sealing had to leave it out.

        Records of a round competed among themselves, from the log start on that there was then.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as sql

        if not self._rounds.proven:
            return compared.withColumns({"from_wal": sql.lit(False), "left_out": sql.lit(False)})
        col = sql.col
        number, log_start = sql.lit(None).cast("int"), sql.lit(0).cast("long")
        for index, (partition, each) in enumerate(self._rounds.proven):
            inside = (
                (col("partition") == partition) & (col("offset") >= each.start) & (col("offset") < each.end)
            )
            number = sql.when(inside, index).otherwise(number)
            log_start = sql.when(inside, sql.lit(each.log_start).cast("long")).otherwise(log_start)
        found = compared.withColumns({"round": number, "round_start": log_start})
        same_round = Window.partitionBy(
            "round", "partition", "key", sql.when(col("key").isNull(), col("offset"))
        )
        competes = sql.when(col("offset") >= col("round_start"), rank)
        winner = sql.max_by(col("offset"), competes).over(same_round)
        is_inside = col("round").isNotNull()
        left_out = is_inside & col("key").isNotNull() & (winner != col("offset"))
        return found.withColumns(
            {
                "from_wal": is_inside,
                "left_out": sql.coalesce(left_out & (col("offset") >= col("round_start")), sql.lit(False)),
            }
        )

    def _positions(self) -> Any:
        return self._spark.createDataFrame(
            [
                (partition, at.log_start, was.sealed_end)
                for partition, (was, at) in enumerate(
                    zip(self._before.positions, self._after.positions, strict=True)
                )
            ],
            "partition int, log_start long, sealed_end_before long",
        )

    def _may_go(self) -> Any:
        """Return the rule by which a record may go although no other record supersedes it, or null."""
        from pyspark.sql import functions as sql

        settings, now_ms = self._settings, self._after.committed_ms
        rule = sql.when(sql.lit(False), "")
        if settings.deletes and settings.retention_ms is not None:
            rule = rule.when(
                sql.col("timestamp_ms") < now_ms - settings.retention_ms, "older than retention.ms"
            )
        expired = sql.lit(False)
        for partition, at in enumerate(self._before.positions):
            expired = expired | ((sql.col("partition") == partition) & self._expired(at, now_ms))
        return rule.when(sql.col("tombstone") & expired, "expired tombstone")

    def _expired(self, at: Positions, now_ms: int) -> Any:
        """Return whether a tombstone of a partition had expired when the later snapshot was made.

        If tombstone.clock was changed, either clock counts: the run may have been before or after the change.
        """
        from pyspark.sql import functions as sql

        settings = self._settings
        own = sql.col("timestamp_ms") + settings.delete_retention_ms <= now_ms
        if settings.tombstone_clock == "record":
            for deadline in at.deadlines:
                if not deadline.by_record and deadline.deadline_ms <= now_ms:
                    own = own | self._inside(deadline)
            return own
        # Records that no run had passed got their deadline in between, at the earliest at the earlier snapshot.
        fresh = self._before.committed_ms + settings.delete_retention_ms <= now_ms
        expired = (sql.col("offset") >= at.first_dirty) & sql.lit(fresh)
        waiting = sql.lit(False)
        for given, deadline in zip(at.deadlines, on_clock(settings, at).deadlines, strict=True):
            inside = self._inside(deadline)
            waiting = waiting | inside
            expired = expired | (inside & sql.lit(deadline.deadline_ms <= now_ms))
            if given.by_record:
                expired = expired | (inside & own)
        return expired | ((sql.col("offset") < at.first_dirty) & ~waiting)

    @staticmethod
    def _inside(deadline: Deadline) -> Any:
        from pyspark.sql import functions as sql

        return (sql.col("offset") >= deadline.start) & (sql.col("offset") < deadline.end)


def _read_rows(
    files: SegmentFiles,
    parts: Sequence[Segment | RolledFile],
    rounds: SealedRounds,
    settings: TopicSettings,
    seeds: tuple[int, int],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def rows_of(part: Segment | RolledFile) -> Iterator[pa.Table]:
        if isinstance(part, RolledFile):
            yield from (pa.Table.from_batches([each]) for each in part.records())
            return
        with RawSegment(files, part) as raw:
            for group in raw.row_groups:
                yield raw.rows(group)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                part = parts[number]
                last_offset = -1
                for rows in rows_of(part):
                    found = _row_batch(rows, part.partition, settings, seeds, last_offset)
                    last_offset = rows.column("offset")[-1].as_py()
                    if not isinstance(part, RolledFile):
                        found = _without(found, rounds.ranges(part.partition))
                    yield found

    return run


def _without(rows: pa.RecordBatch, ranges: Sequence[CompactedRange]) -> pa.RecordBatch:
    """Return the rows whose offsets are in none of some ranges."""
    offsets = rows.column("offset").to_numpy()
    outside = np.ones(len(offsets), np.bool_)
    for each in ranges:
        outside &= (offsets < each.start) | (offsets >= each.end)
    return rows if outside.all() else rows.filter(pa.array(outside))


def _row_batch(
    rows: pa.Table, partition: int, settings: TopicSettings, seeds: tuple[int, int], last_offset: int
) -> pa.RecordBatch:
    count = len(rows)
    known, versions = strategy_of(settings).versions(rows)
    offsets = rows.column("offset").to_numpy()
    microseconds = rows.column("timestamp").cast(pa.int64()).to_numpy()
    return pa.RecordBatch.from_pydict(
        {
            "partition": np.full(count, partition, np.int32),
            "offset": offsets,
            "key": rows.column("key").combine_chunks(),
            "known": known.astype(np.int32),
            "version": versions,
            "tombstone": rows.column("value").is_null().to_numpy() & rows.column("key").is_valid().to_numpy(),
            "timestamp_ms": microseconds // 1000,
            "digest": _digests(rows, seeds[0]),
            "second_digest": _digests(rows, seeds[1]),
            "in_order": np.diff(offsets, prepend=last_offset) > 0,
        }
    )


def _digests(rows: pa.Table, seed: int) -> npt.NDArray[np.int64]:
    """Hash everything that must not change. Each comparison has new seeds, so nobody can prepare a collision."""
    multiplier = np.uint64(0x9E3779B97F4A7C15)
    digest = rows.column("timestamp").cast(pa.int64()).to_numpy().astype(np.uint64)
    digest = digest * multiplier + rows.column("timestamp_type").to_numpy().astype(np.uint64)
    for name in ("key", "value"):
        digest = (digest * multiplier) ^ hash_rows(rows.column(name).combine_chunks(), seed)
    digest = (digest * multiplier) ^ _header_hashes(rows.column("headers"), seed)
    digest ^= digest >> np.uint64(29)
    mixed: npt.NDArray[np.int64] = (digest * multiplier).view(np.int64)
    return mixed


def _header_hashes(headers: pa.ChunkedArray, seed: int) -> npt.NDArray[np.uint64]:
    """Hash each record's headers independently of its neighbours. Null and an empty list both mean no headers."""
    if headers.null_count == len(headers):
        # Most records have none. This avoids creating Python objects.
        return np.repeat(hash_rows(pa.nulls(1, pa.binary()), seed), len(headers))
    texts = pa.array([repr(each).encode() if each else None for each in headers.to_pylist()], pa.binary())
    return hash_rows(texts, seed)
