"""Marks rows of segments: writes the position-delete file, and finds the counts and bounds of the rows that stay.

Neither reads values. Bounds come from the statistics of row groups, so that few rows are read for them.
If killed, it leaves a file that no snapshot names; the collector removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.folder import steps
from lastword.segments.foreign import mapped
from lastword.segments.mapping import live_bytes
from lastword.segments.marks import DELETE_FILE_SCHEMA, LiveSketch, Positions, load, write
from lastword.segments.model import DeleteFile, Marks, Segment
from lastword.segments.parquet import SegmentFiles
from lastword.segments.raw import RawSegment, RowGroup
from lastword.segments.sketch import KeySketch

Kept = npt.NDArray[np.bool_]

RESKETCH_SHARE: Final = 0.05
"""The share of a file's rows that may be marked before its sketch is made again: a sketch is no more exact than this."""


def mark(files: SegmentFiles, raw: RawSegment, kept: Kept, *, job_id: str, now_ms: int) -> Segment:
    """Mark the live rows of an open segment that are not kept. At least one of them must be kept.

    The earlier marks are in the new delete file, too.
    """
    before = raw.segment
    is_marked = np.ones(before.rows, np.bool_)
    is_marked[raw.positions()[kept]] = False
    marked = np.flatnonzero(is_marked)
    file = _write(files, before, marked, _sketch(raw, kept, len(marked)), job_id)
    steps.reached("segment.marks.written")
    since_ms = before.marks.since_ms if before.marks is not None else now_ms
    return _with_live(raw, kept, Marks(files=(file,), whole=before.whole, since_ms=since_ms))


def copied(files: SegmentFiles, segment: Segment, *, job_id: str) -> Segment:
    """Return a segment whose marks are in a file of its own."""
    assert segment.marks is not None
    with RawSegment(files, segment) as raw:
        marked = load(files.file_io(), segment)
        file = _write(
            files, segment, marked, _sketch(raw, np.ones(segment.records, np.bool_), len(marked)), job_id
        )
    return replace(segment, marks=replace(segment.marks, files=(file,)))


def with_foreign_marks(files: SegmentFiles, whole: Segment, listed: Sequence[DeleteFile]) -> Segment:
    """Return a segment with marks that another engine made: it has not counted the rows that stay."""
    marks = Marks(files=tuple(listed), whole=whole)
    with RawSegment(files, replace(whole, marks=marks)) as raw:
        rows = sum(group.rows for group in raw.row_groups)
        if rows == whole.records:
            # None of the listed rows is in the file.
            return whole
        return _with_live(raw, np.ones(rows, np.bool_), marks)


def _sketch(raw: RawSegment, kept: Kept, marks: int) -> LiveSketch:
    """Return a sketch of the keys that stay: the last one, while few marks have come since."""
    last = LiveSketch() if raw.segment.marks is None else raw.live_sketch()
    if last is not None and raw.says.is_ours and marks - last.marks < raw.segment.rows * RESKETCH_SHARE:
        return last
    sketch = KeySketch()
    for row, keys in raw.key_runs():
        sketch.add(keys.filter(pa.array(kept[row : row + len(keys)])))
    return LiveSketch(sketch=sketch.to_bytes(), marks=marks)


def _write(
    files: SegmentFiles, segment: Segment, marked: Positions, sketch: LiveSketch, job_id: str
) -> DeleteFile:
    path = files.new_path(segment.partition, segment.whole.first_offset, job_id, ".deletes")
    rows = pa.table(
        [pa.repeat(pa.scalar(segment.path), len(marked)), pa.array(marked, pa.int64())],
        schema=DELETE_FILE_SCHEMA,
    )
    with mapped("Writing a delete file", path):
        size_bytes = write(files.file_io(), path, rows, sketch.metadata())
    return DeleteFile(path=path, size_bytes=size_bytes, records=len(marked))


def _with_live(raw: RawSegment, kept: Kept, marks: Marks) -> Segment:
    whole, before = marks.whole, raw.segment
    records = int(np.count_nonzero(kept))
    parts = [
        _Part(raw, group, own)
        for group in raw.row_groups
        if (own := kept[group.first_row : group.first_row + group.rows]).any()
    ]
    if not parts:
        return replace(whole, records=0, size_bytes=0, null_keys=0, null_values=0, marks=marks)
    low_us = _extreme(parts, lambda each: each.times_us[0], lambda each: int(each.timestamps_us.min()), min)
    high_us = _extreme(parts, lambda each: each.times_us[1], lambda each: int(each.timestamps_us.max()), max)
    return replace(
        whole,
        records=records,
        size_bytes=live_bytes(whole, records),
        # Files of other engines are sorted, and are one row group here.
        first_offset=int(parts[0].offsets[0]),
        last_offset=int(parts[-1].offsets[-1]),
        min_timestamp_ms=low_us // 1000,
        max_timestamp_ms=-(-high_us // 1000),
        null_keys=sum(each.null_keys for each in parts) if before.null_keys else 0,
        null_values=sum(each.null_values for each in parts) if before.null_values else 0,
        marks=marks,
    )


@dataclass(frozen=True)
class _Part:
    """The rows of a row group that stay. They are read only if a property is asked for that statistics don't tell."""

    raw: RawSegment
    group: RowGroup
    kept: Kept

    @property
    def times_us(self) -> tuple[int, int]:
        """Bounds of the timestamps."""
        known = self.raw.says.times_us(self.group.index) if self.raw.says.is_ours else None
        return known or (int(self.timestamps_us.min()), int(self.timestamps_us.max()))

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        return self._column("offset")

    @property
    def timestamps_us(self) -> npt.NDArray[np.int64]:
        return self._column("timestamp")

    @property
    def null_keys(self) -> int:
        keys = self.raw.columns(["key"], [self.group]).column("key")
        return int(np.count_nonzero(keys.is_null().to_numpy() & self.kept)) if keys.null_count else 0

    @property
    def null_values(self) -> int:
        if self.group.null_values == 0:
            return 0
        return int(np.count_nonzero(self.raw.without_value(self.group) & self.kept))

    def _column(self, name: str) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = (
            self.raw.columns([name], [self.group]).column(name).cast(pa.int64()).to_numpy()[self.kept]
        )
        return found


def _extreme(
    parts: Sequence[_Part],
    bound: Callable[[_Part], int],
    exact: Callable[[_Part], int],
    better: Callable[[int, int], int],
) -> int:
    """Return the lowest or the highest of some values, by reading only the row groups whose bounds leave it open."""
    found: int | None = None
    for part in sorted(parts, key=bound, reverse=better is max):
        if found is not None and better(found, bound(part)) == found:
            break
        own = exact(part)
        found = own if found is None else better(found, own)
    assert found is not None
    return found
