"""Rewrites segments: reads the row groups with survivors, keeps those rows, writes the new file.

The new file goes to its final, unique name; nothing names it until the commit. Memory is bounded by a row group
of what is read and one of what is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.compaction import rules as rule
from lastword.compaction.rules import OldestTombstones
from lastword.compaction.survivors import Mask, milliseconds
from lastword.compaction.unit import Rewritten, Unit
from lastword.segments.parquet import SegmentFileWriter
from lastword.segments.raw import RawSegment
from lastword.segments.table import Segment
from lastword.steps import reached


@dataclass(frozen=True, slots=True)
class Part:
    """A segment and the mask of its rows that survive."""

    segment: Segment
    mask: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A segment that stays as it is although tombstones of it might have gone."""

    segment: Segment
    oldest: OldestTombstones
    read_bytes: int


def rewrite(unit: Unit, parts: Sequence[Part]) -> Rewritten | Examined | None:
    """Write what survives of neighbouring segments, in offset order, as one; None if nothing needs to be written."""
    removed = 0
    read_bytes = 0
    oldest: list[OldestTombstones] = []
    stays = len(parts) == 1 and bool(parts[0].mask.all())
    for part in parts:
        if part.mask.any() and (
            _may_expire(unit, part.segment) or (stays and _must_tell_oldest(unit, part.segment))
        ):
            with RawSegment(unit.files, part.segment) as raw:
                gone, left = _drop_tombstones(unit, raw, part.mask)
                read_bytes += raw.read_bytes
            removed += gone
            oldest.append(left)
    if stays and not removed:
        if read_bytes:
            return Examined(
                segment=parts[0].segment, oldest=rule.oldest_of_all(oldest), read_bytes=read_bytes
            )
        return None
    first = parts[0].segment
    tombstones = _Tombstones(unit)
    with unit.files.writer(first.partition, first.first_offset, unit.job_id) as writer:
        for part in parts:
            if part.mask.any():
                with RawSegment(unit.files, part.segment) as raw:
                    _copy(raw, part.mask, writer, tombstones)
                    read_bytes += raw.read_bytes
        added = writer.close()
    reached("compact.segment.written")
    return Rewritten(
        removed=tuple(part.segment for part in parts),
        added=added,
        tombstones_removed=removed,
        oldest=tombstones.oldest,
        read_bytes=read_bytes,
    )


def _copy(raw: RawSegment, mask: Mask, writer: SegmentFileWriter, tombstones: _Tombstones) -> None:
    for group in raw.row_groups:
        wanted = mask[group.first_row : group.first_row + group.rows]
        if not wanted.any():
            continue
        rows = raw.rows(group)
        if not wanted.all():
            rows = rows.filter(pa.array(wanted.view(np.bool_)))
        tombstones.look_at(rows)
        for records in rows.combine_chunks().to_batches():
            writer.write(records)


def _may_expire(unit: Unit, segment: Segment) -> bool:
    return segment.null_values > 0 and rule.may_expire(
        unit.rules, segment.first_offset, segment.last_offset, segment.min_timestamp_ms
    )


def _must_tell_oldest(unit: Unit, segment: Segment) -> bool:
    """Whether somebody has to look how old the tombstones of a segment are, that no run has looked at yet."""
    return unit.rules.tombstone_clock == "record" and segment.null_values > 0 and not unit.is_clean(segment)


def _drop_tombstones(unit: Unit, raw: RawSegment, mask: Mask) -> tuple[int, OldestTombstones]:
    """Take tombstones that may go out of the mask; how many, and the lowest timestamps of those that stay."""
    removed = 0
    oldest: list[OldestTombstones] = []
    for group in raw.row_groups:
        own = mask[group.first_row : group.first_row + group.rows]
        if group.null_values == 0 or not own.any():
            continue
        columns = raw.columns(["offset", "timestamp", "key", "value"], [group])
        rows = _tombstone_rows(columns, own)
        timestamps_ms = milliseconds(columns.column("timestamp"))[rows]
        offsets = columns.column("offset").to_numpy()[rows]
        gone = rule.drops_tombstones(unit.rules, offsets, timestamps_ms)
        own[rows[gone]] = 0
        removed += int(gone.sum())
        oldest.append(rule.oldest(unit.rules, offsets[~gone], timestamps_ms[~gone]))
    return removed, rule.oldest_of_all(oldest)


def _tombstone_rows(columns: pa.Table, mask: Mask) -> npt.NDArray[np.int64]:
    is_tombstone = columns.column("value").is_null().to_numpy() & columns.column("key").is_valid().to_numpy()
    return np.flatnonzero(is_tombstone & (mask == 1))


class _Tombstones:
    """The lowest timestamps of the tombstones that are written."""

    def __init__(self, unit: Unit) -> None:
        self._rules = unit.rules
        self.oldest = OldestTombstones()

    def look_at(self, rows: pa.Table) -> None:
        if rows.column("value").null_count:
            found = _tombstone_rows(rows, np.ones(len(rows), np.uint8))
            own = rule.oldest(
                self._rules,
                rows.column("offset").to_numpy()[found],
                milliseconds(rows.column("timestamp"))[found],
            )
            self.oldest = rule.oldest_of_all([self.oldest, own])
