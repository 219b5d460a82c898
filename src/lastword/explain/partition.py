"""Explains records of one partition.

The steps: look at the partition as the run will find it; plan the run; choose the records; let the records of their
keys compete, once over what the run compacts and once over everything; give each its verdict. If files are removed in
the meantime, it begins again from a fresh look.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction import plan as planning
from lastword.compaction import rules as rule
from lastword.compaction.plan import Assessment, PartitionPlan
from lastword.compaction.planned import unit_of
from lastword.compaction.request import Scope
from lastword.compaction.rules import Rules
from lastword.compaction.strategy import strategy_of
from lastword.compaction.survivors import milliseconds
from lastword.compaction.target import PartitionFacts, Target, assess
from lastword.compaction.unit import Unit
from lastword.config import TopicSettings
from lastword.explain import words
from lastword.explain.contest import Found, contest
from lastword.explain.inspecting import InspectedPartition, PlacedSegment, Sealing, inspect_partition
from lastword.explain.model import VALUE_BYTES, ExplainedRecord, PartitionExplanation, Run
from lastword.explain.verdict import Facts, RunFacts, verdict
from lastword.reading.reader import PartitionReader
from lastword.record import NO_TIMESTAMP_MS
from lastword.segments.model import Segment, Snapshot, retry_if_moved
from lastword.segments.parquet import SegmentFiles
from lastword.segments.raw import RawSegment
from lastword.segments.rows import has_timestamp
from lastword.wal.reader import OffsetGoneError

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable

_COLUMNS = ["offset", "timestamp", "timestamp_type", "key", "value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The records to explain, and the run for which to explain them."""

    key: bytes | None = None
    from_offset: int = 0
    limit: int | None = None
    run: Run = "asked for"
    seals: bool = True

    @property
    def scope(self) -> Scope:
        return Scope(asked_for=self.run != "worker", force=self.run == "forced")

    @property
    def sealing(self) -> Sealing:
        if not self.seals:
            return "none"
        return "due" if self.run == "worker" else "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The facts about a partition that only the log knows: its settings, its WAL, its log end and its readers."""

    topic: str
    settings: TopicSettings
    wal_folder: Path
    facts: PartitionFacts
    round_memory_bytes: int
    """The memory that a round of sealing may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    segment: PlacedSegment
    row: int
    offset: int
    timestamp_ms: int
    has_timestamp: bool
    key: bytes | None
    value: bytes | None
    value_bytes: int | None


def _nothing(_unit: Unit) -> None:
    """Ignore the work: the caller only needs the verdicts."""


def explain_partition(
    reader: PartitionReader,
    known: Known,
    question: Question,
    clock: Callable[[], int],
    watch: Callable[[Unit], None] = _nothing,
) -> PartitionExplanation:
    """Explain records of a partition for a run that begins now. `watch` is given its work, if there is a run."""
    table = reader.table

    def attempt() -> PartitionExplanation:
        snapshot = table.snapshot()
        with (
            reader.pin(snapshot),
            tempfile.TemporaryDirectory(prefix="lastword-explain-") as folder,
        ):
            scratch = replace(table.files, location=Path(folder).as_uri())
            found = _explain(table, snapshot, reader.partition, scratch, known, question, clock(), watch)
            if found.problem is None or table.snapshot().id == snapshot.id:
                return found
        # The records that were missing in the WAL may have been sealed in the meantime.
        raise OffsetGoneError(found.problem)

    return retry_if_moved(attempt, f"Partition {reader.partition}")


def _explain(
    table: SegmentTable,
    snapshot: Snapshot,
    partition: int,
    scratch: SegmentFiles,
    known: Known,
    question: Question,
    now_ms: int,
    watch: Callable[[Unit], None],
) -> PartitionExplanation:
    settings = known.settings
    inspected = inspect_partition(
        table,
        snapshot,
        partition,
        known.wal_folder,
        scratch,
        settings=settings,
        sealing=question.sealing,
        round_memory_bytes=known.round_memory_bytes,
        first_append_ms=known.facts.first_append_ms,
        now_ms=now_ms,
    )
    target = Target(
        topic=known.topic,
        table=table,
        settings=settings,
        facts={partition: replace(known.facts, log_end=inspected.log_end)},
    )
    positions = tuple(
        inspected.positions if number == partition else at for number, at in enumerate(snapshot.positions)
    )
    after_sealing = replace(snapshot, positions=positions)

    def look(scope: Scope, segments: Sequence[Segment]) -> Assessment:
        (found,) = assess(
            target,
            replace(scope, partitions=(partition,)),
            now_ms=now_ms,
            snapshot=after_sealing,
            segments=segments,
        )
        return found

    plan = look(Scope(asked_for=True, force=True), inspected.sealed).plan
    assessed = look(question.scope, inspected.found_by_run)
    due = assessed.plan
    rows, next_offset = _choose(table.files, inspected, question)
    run = RunFacts(
        settings=settings,
        log_start=inspected.positions.log_start,
        plan=plan,
        is_due=due is not None,
        all_compactable=plan is not None and len(plan.segments) == len(inspected.sealed),
        hold=known.facts.hold,
        readers=known.facts.readers,
        now_ms=now_ms,
    )
    records = tuple(_verdicts(table.files, inspected, rows, run))
    if due is not None:
        watch(unit_of(due, settings, table.files, job_id="explain"))
    return PartitionExplanation(
        partition=partition,
        log_start=inspected.now.log_start,
        first_dirty=inspected.now.first_dirty,
        sealed_end=inspected.now.sealed_end,
        log_end=inspected.log_end,
        due=None if due is None else due.reason,
        not_due=None if due is not None else planning.why_not([assessed], settings, question.scope),
        records=records,
        next_offset=next_offset,
        problem=inspected.problem,
    )


# ------------------------------------------------------------------------------------------- choosing records


def _choose(
    files: SegmentFiles, inspected: InspectedPartition, question: Question
) -> tuple[list[_Row], int | None]:
    """Return the records that are asked about, and the first offset that was left out."""
    found: list[_Row] = []
    for placed in inspected.segments:
        if placed.segment.last_offset < question.from_offset:
            continue
        left = None if question.limit is None else question.limit + 1 - len(found)
        for row in _rows(files, placed, question, inspected.positions.log_start, left):
            if question.limit is not None and len(found) == question.limit:
                return found, row.offset
            found.append(row)
    return found, None


def _rows(
    files: SegmentFiles, placed: PlacedSegment, question: Question, log_start: int, limit: int | None
) -> Iterator[_Row]:
    """Yield at most `limit` rows of a segment."""
    with RawSegment(files, placed.segment) as raw:
        for group in raw.row_groups:
            offsets = raw.columns(["offset"], [group]).column("offset").to_numpy()
            wanted = offsets >= question.from_offset
            if question.key is not None and wanted.any():
                keys = raw.columns(["key"], [group]).column("key")
                same = pc.fill_null(pc.equal(keys, pa.scalar(question.key, keys.type)), False)
                # A record below the log start has been deleted: its key is neither shown nor found.
                wanted &= same.to_numpy() & (offsets >= log_start)
            chosen = np.flatnonzero(wanted)[:limit]
            if not len(chosen):
                continue
            columns = raw.columns(_COLUMNS, [group]).take(pa.array(chosen))
            times_ms = milliseconds(columns.column("timestamp"))
            values = columns.column("value")
            sizes = pc.binary_length(values).to_pylist()
            starts = [
                None if size is None else each.as_py()[:VALUE_BYTES]
                for each, size in zip(values, sizes, strict=True)
            ]
            for index, (row, offset, came, key) in enumerate(
                zip(
                    chosen.tolist(),
                    columns.column("offset").to_pylist(),
                    has_timestamp(columns).tolist(),
                    columns.column("key").to_pylist(),
                    strict=True,
                )
            ):
                yield _Row(
                    segment=placed,
                    row=group.first_row + row,
                    offset=offset,
                    timestamp_ms=int(times_ms[index]),
                    has_timestamp=came,
                    key=key,
                    value=starts[index],
                    value_bytes=sizes[index],
                )
            if limit is not None:
                limit -= len(chosen)
                if limit <= 0:
                    return


# ----------------------------------------------------------------------------------------------- verdicts


def _verdicts(
    files: SegmentFiles, inspected: InspectedPartition, rows: Sequence[_Row], run: RunFacts
) -> Iterator[ExplainedRecord]:
    if not rows:
        return
    settings, plan = run.settings, run.plan
    by_path: dict[str, list[int]] = {}
    for each in rows:
        by_path.setdefault(each.segment.segment.path, []).append(each.row)
    chosen = {path: np.array(own) for path, own in by_path.items()}
    keys = sorted({each.key for each in rows if each.key is not None})
    in_run: frozenset[str] = frozenset()
    found = Found()
    if plan is not None:
        in_run = frozenset(segment.path for segment in plan.segments)
        unit = unit_of(plan, settings, files, job_id="explain")
        found = contest(_narrowed(unit, rows), chosen, keys if plan.keyed else [])
    last = _last_winners(files, inspected, rows, run, keys, found)
    left_out = _left_out_at_seal(files, inspected, rows, run, keys, chosen)
    ready = _Ready(inspected, settings)
    counted: dict[str, int] = {}
    for each in rows:
        path = each.segment.segment.path
        index = counted[path] = counted.get(path, -1) + 1
        facts = Facts(
            offset=each.offset,
            timestamp_ms=each.timestamp_ms,
            has_key=each.key is not None,
            has_value=each.value is not None,
            in_run=path in in_run,
            won=bool(found.won[path][index]) if path in found.won else True,
            is_young=bool(found.stay[path][index]) if path in found.stay else True,
            winner=None if each.key is None else found.winners.get(each.key),
            later_winner=None if each.key is None else last.get(each.key),
            later_winner_ms=ready.winner_ms(last.get(each.key) if each.key is not None else None),
            is_sealed=each.segment.is_sealed,
            seals_ms=each.segment.seals_ms,
            compactable_ms=ready.segment_ms(each.offset),
            beaten_at_seal=left_out.get(each.offset),
            segment_max_timestamp_ms=each.segment.segment.max_timestamp_ms,
        )
        decided = verdict(facts, run)
        is_hidden = each.offset < run.log_start
        yield ExplainedRecord(
            partition=each.segment.segment.partition,
            offset=each.offset,
            timestamp_ms=each.timestamp_ms if each.has_timestamp else NO_TIMESTAMP_MS,
            key=None if is_hidden else each.key,
            value=None if is_hidden else each.value,
            value_bytes=None if is_hidden else each.value_bytes,
            is_tombstone=facts.is_tombstone and not is_hidden,
            is_hidden=is_hidden,
            place=each.segment.place,
            verdict=decided,
            reason=words.reason(decided, settings, is_tombstone=facts.is_tombstone),
        )


def _narrowed(unit: Unit, rows: Sequence[_Row]) -> Unit:
    """Drop segments that can't matter: those before all the records if the newest wins, those after if the oldest."""
    first, last = rows[0].offset, rows[-1].offset

    def matters(segment: Segment) -> bool:
        match unit.rules.strategy.order:
            case "newest":
                return segment.last_offset >= first
            case "oldest":
                return segment.first_offset <= last
            case "version":
                return True

    return replace(unit, segments=tuple(each for each in unit.segments if matters(each)), max_set_bytes=None)


def _last_winners(
    files: SegmentFiles,
    inspected: InspectedPartition,
    rows: Sequence[_Row],
    run: RunFacts,
    keys: Sequence[bytes],
    found: Found,
) -> dict[bytes, int]:
    """Return the winner of each key once everything that is there may be compacted."""
    settings, plan = run.settings, run.plan
    if not settings.compacts or not keys:
        return {}
    if plan is not None and len(plan.segments) == len(inspected.segments):
        return found.winners
    rules = rule.rules_for(
        settings,
        inspected.positions,
        compactable_end=inspected.log_end,
        all_compactable=True,
        seen=(run.now_ms, inspected.log_end),
        hold=run.hold,
        now_ms=run.now_ms,
    )
    unit = _unit_over(files, inspected, inspected.all, rules, run)
    return contest(_narrowed(unit, rows), {}, keys).winners


def _left_out_at_seal(
    files: SegmentFiles,
    inspected: InspectedPartition,
    rows: Sequence[_Row],
    run: RunFacts,
    keys: Sequence[bytes],
    chosen: Mapping[str, npt.NDArray[np.int64]],
) -> dict[int, int]:
    """Return the rows that are left out when they are sealed, each with the offset that beats it."""
    strategy = strategy_of(run.settings)
    rules = Rules(strategy=strategy, log_start=run.log_start, expiring=(), retention_before_ms=None)
    by_path: dict[str, list[_Row]] = {}
    for each in rows:
        by_path.setdefault(each.segment.segment.path, []).append(each)
    beaten: dict[int, int] = {}
    for segments in inspected.rounds:
        own = {each.path: chosen[each.path] for each in segments if each.path in chosen}
        if not own:
            continue
        found = contest(_unit_over(files, inspected, segments, rules, run), own, keys)
        for path in own:
            for row, won in zip(by_path[path], found.won[path], strict=True):
                if not won and row.key is not None and row.offset >= run.log_start:
                    beaten[row.offset] = found.winners[row.key]
    return beaten


def _unit_over(
    files: SegmentFiles,
    inspected: InspectedPartition,
    segments: Sequence[Segment],
    rules: Rules,
    run: RunFacts,
) -> Unit:
    """Return the work of a run over some segments, by some rules."""
    plan = PartitionPlan(
        topic="",
        partition=segments[0].partition,
        reason="asked for",
        dirty_ratio=0.0,
        positions=inspected.positions,
        segments=tuple(segments),
        compactable_end=inspected.log_end,
        seen=(run.now_ms, inspected.log_end),
        rules=rules,
        keyed=True,
        now_ms=run.now_ms,
    )
    return unit_of(plan, run.settings, files, job_id="explain")


class _Ready:
    """The times from which records may be compacted, by their offsets."""

    def __init__(self, inspected: InspectedPartition, settings: TopicSettings) -> None:
        self._segments = inspected.segments
        self._first_offsets = [each.segment.first_offset for each in inspected.segments]
        self._times_ms = planning.compactable_from(inspected.all, settings)

    def segment_ms(self, offset: int) -> int:
        """Return when min.compaction.lag.ms no longer holds back the segment with an offset."""
        return self._times_ms[bisect_right(self._first_offsets, offset) - 1]

    def winner_ms(self, offset: int | None) -> int | None:
        """Return when the record with an offset may be compacted, if known."""
        if offset is None:
            return None
        index = bisect_right(self._first_offsets, offset) - 1
        return max(self._times_ms[index], self._segments[index].seals_ms or 0) or None
