"""Rewrites segments: reads the row groups with survivors, keeps those rows, writes the new file. Or marks them.

A segment that loses few of its rows is not rewritten: those rows are marked, which needs no values. The new file gets its final, unique name at once; nothing refers to it until the commit. Several segments may
become one file. One thread writes it in offset order, and the others read the rows that it needs next. A segment
that is certain to be rewritten can be read before its new file is begun, while other masks are still being found.
The rows that are read and not yet written are bounded (`Ahead`, pool.READS_AHEAD). Otherwise memory holds one row
group that is read and one that is written.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.compaction import rules as rule
from lastword.compaction.pool import Pool, Task
from lastword.compaction.rules import OldestTombstones
from lastword.compaction.survivors import Mask, milliseconds
from lastword.compaction.unit import Marked, Rewritten, Unit
from lastword.folder.steps import reached
from lastword.segments.footer import FileMetadata
from lastword.segments.marking import mark
from lastword.segments.model import Segment
from lastword.segments.raw import RawSegment, RowGroup

AHEAD_BYTES = 128 << 20
"""The bytes of survivors that may be in memory before their new file is begun."""

_RUN_BYTES = 16 << 20
"""The approximate size of the runs in which row groups are read."""


@dataclass(slots=True)
class Part:
    """A segment and the mask of its surviving rows; `reads` are the tasks that read them, once there are any."""

    segment: Segment
    mask: Mask
    footer: FileMetadata | None = None
    reads: list[Read] = field(default_factory=list)


class Ahead:
    """The bytes that were read ahead and not written yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held_bytes = 0

    def take(self, size_bytes: int) -> bool:
        with self._lock:
            if self._held_bytes + size_bytes > AHEAD_BYTES:
                return False
            self._held_bytes += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        with self._lock:
            self._held_bytes -= size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A segment that stays as it is although some of its tombstones might have been removed, or had to be dated."""

    segment: Segment
    oldest: OldestTombstones
    read_bytes: int


class Read(Task[tuple[list[pa.Table], int]]):
    """Reads the survivors of some row groups. The result is the rows, and the bytes read from the file."""

    def __init__(self, unit: Unit, part: Part, groups: Sequence[RowGroup], kept_bytes: int) -> None:
        super().__init__(lambda: _survivors(unit, part, groups))
        self.kept_bytes = kept_bytes
        self.is_ahead = False


def read_ahead(unit: Unit, part: Part, pool: Pool, ahead: Ahead) -> None:
    """Offer the reads of a segment whose rows are certain to go to a new file, if there is room for them."""
    if not pool.has_threads or _may_expire(unit, part.segment) or not part.mask.any():
        return
    reads = _reads(unit, part)
    if ahead.take(sum(each.kept_bytes for each in reads)):
        part.reads = reads
        for each in reads:
            each.is_ahead = True
            pool.offer(each)


def rewrite(
    unit: Unit, parts: Sequence[Part], pool: Pool, ahead: Ahead
) -> Rewritten | Marked | Examined | None:
    """Write the survivors of neighbouring segments, in offset order, as one. Mark the lost rows of one that stays.

    Return None if nothing needs writing.
    """
    removed = 0
    read_bytes = 0
    oldest: list[OldestTombstones] = []
    for part in parts:
        stays = len(parts) == 1 and not unit.rewrites(part.segment, int(np.count_nonzero(part.mask)))
        if part.mask.any() and (
            _may_expire(unit, part.segment) or (stays and _must_tell_oldest(unit, part.segment))
        ):
            with RawSegment(unit.files, part.segment, part.footer) as raw:
                gone, left = _drop_tombstones(unit, raw, part.mask)
                read_bytes += raw.read_bytes
            removed += gone
            oldest.append(left)
    if len(parts) == 1 and not unit.rewrites(parts[0].segment, int(np.count_nonzero(parts[0].mask))):
        known = rule.oldest_of_all(oldest) if oldest else None
        if not parts[0].mask.all():
            marked = _mark(unit, parts[0], removed, known, read_bytes)
            if marked is not None:
                return marked
        elif known is not None:
            return Examined(segment=parts[0].segment, oldest=known, read_bytes=read_bytes)
        else:
            return None
    first = parts[0].segment
    tombstones = _Tombstones(unit)
    reads = [each for part in parts for each in part.reads or _reads(unit, part)]
    for part in parts:
        part.reads = []
    with unit.files.writer(first.partition, first.first_offset, unit.job_id) as writer:
        for read, (tables, size_bytes) in zip(reads, pool.in_order(reads), strict=True):
            read_bytes += size_bytes
            for rows in tables:
                tombstones.add(rows)
                for records in rows.to_batches():
                    writer.write(records)
            if read.is_ahead:
                ahead.give_back(read.kept_bytes)
        added = writer.close()
    reached("compact.segment.written")
    return Rewritten(
        removed=tuple(part.segment for part in parts),
        added=added,
        tombstones_removed=removed,
        oldest=tombstones.oldest,
        read_bytes=read_bytes,
    )


def _mark(
    unit: Unit, part: Part, removed: int, oldest: OldestTombstones | None, read_bytes: int
) -> Marked | None:
    """Mark the rows of a segment that its mask drops. Return None if another engine wrote it, in an order of its own."""
    with RawSegment(unit.files, part.segment, part.footer) as raw:
        if not raw.says.is_ours:
            return None
        kept = part.mask.view(np.bool_)
        after = mark(unit.files, raw, kept, job_id=unit.job_id, now_ms=unit.now_ms)
        read_bytes += raw.read_bytes
    reached("compact.segment.marked")
    return Marked(
        before=part.segment,
        after=after,
        tombstones_removed=removed,
        oldest=oldest,
        read_bytes=read_bytes,
    )


def _reads(unit: Unit, part: Part) -> list[Read]:
    """Return the reads that a segment needs, in runs of neighbouring row groups with survivors."""
    if not part.mask.any():
        return []
    with RawSegment(unit.files, part.segment, part.footer) as raw:
        part.footer = raw.footer
        row_groups = raw.row_groups
    reads: list[Read] = []
    run: list[RowGroup] = []
    run_bytes = kept_bytes = 0
    for group in row_groups:
        kept = int(np.count_nonzero(part.mask[group.first_row : group.first_row + group.rows]))
        if kept == 0:
            continue
        run.append(group)
        run_bytes += group.size_bytes
        kept_bytes += group.size_bytes * kept // group.rows
        if run_bytes >= _RUN_BYTES:
            reads.append(Read(unit, part, run, kept_bytes))
            run, run_bytes, kept_bytes = [], 0, 0
    if run:
        reads.append(Read(unit, part, run, kept_bytes))
    return reads


def _survivors(unit: Unit, part: Part, groups: Sequence[RowGroup]) -> tuple[list[pa.Table], int]:
    with RawSegment(unit.files, part.segment, part.footer) as raw:
        tables = [raw.kept(group, part.mask).combine_chunks() for group in groups]
        return tables, raw.read_bytes


def _may_expire(unit: Unit, segment: Segment) -> bool:
    return segment.null_values > 0 and rule.may_expire(
        unit.rules, segment.first_offset, segment.last_offset, segment.min_timestamp_ms
    )


def _must_tell_oldest(unit: Unit, segment: Segment) -> bool:
    """Return whether this run has to find the age of a segment's tombstones, because no run has done so yet."""
    return unit.rules.tombstone_clock == "record" and segment.null_values > 0 and not unit.is_clean(segment)


def _drop_tombstones(unit: Unit, raw: RawSegment, mask: Mask) -> tuple[int, OldestTombstones]:
    """Drop removable tombstones from the mask. Return how many, and the lowest timestamps of those that stay."""
    removed = 0
    oldest: list[OldestTombstones] = []
    for group in raw.row_groups:
        own = mask[group.first_row : group.first_row + group.rows]
        if group.null_values == 0 or not own.any():
            continue
        columns = raw.columns(["offset", "timestamp", "key"], [group])
        is_tombstone = raw.without_value(group) & columns.column("key").is_valid().to_numpy()
        rows = np.flatnonzero(is_tombstone & (own == 1))
        timestamps_ms = milliseconds(columns.column("timestamp"))[rows]
        offsets = columns.column("offset").to_numpy()[rows]
        gone = rule.drops_tombstones(unit.rules, offsets, timestamps_ms)
        own[rows[gone]] = 0
        removed += int(gone.sum())
        oldest.append(rule.oldest(unit.rules, offsets[~gone], timestamps_ms[~gone]))
    return removed, rule.oldest_of_all(oldest)


def _tombstone_rows(columns: pa.Table) -> npt.NDArray[np.int64]:
    is_tombstone = columns.column("value").is_null().to_numpy() & columns.column("key").is_valid().to_numpy()
    return np.flatnonzero(is_tombstone)


class _Tombstones:
    """The lowest timestamps of the tombstones that are written."""

    def __init__(self, unit: Unit) -> None:
        self._rules = unit.rules
        self.oldest = OldestTombstones()

    def add(self, rows: pa.Table) -> None:
        if rows.column("value").null_count:
            found = _tombstone_rows(rows)
            own = rule.oldest(
                self._rules,
                rows.column("offset").to_numpy()[found],
                milliseconds(rows.column("timestamp"))[found],
            )
            self.oldest = rule.oldest_of_all([self.oldest, own])
