"""Views of a partition as it was: as of an offset, a time, or a snapshot.

As of an offset X, a view shows what a reader that had read up to X would have found, had it begun then. It is
exact if X has not been overtaken by compaction: a snapshot is still kept whose first dirty offset is at most
X + 1, so that no record up to X has been removed because of one behind X. As of a time is as of the last offset
before the first record that is younger. As of a snapshot is what that snapshot holds. No view goes below the
log start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from lastword.errors import InvalidError
from lastword.reader import PartitionReader, clip, with_partition
from lastword.segments.table import Segment, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """A point of a topic's past: one of the three."""

    offset: int | None = None
    time_ms: int | None = None
    snapshot_id: int | None = None

    def __post_init__(self) -> None:
        if [self.offset, self.time_ms, self.snapshot_id].count(None) != 2:
            raise InvalidError("As of what? Give an offset, a time or a snapshot, and only one of them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a partition shows: offsets from `start` up to, but without, `end`, the sealed ones from one snapshot."""

    snapshot: Snapshot
    start: int
    end: int


def view_now(reader: PartitionReader) -> View:
    """Everything that there is."""
    snapshot = reader.table.snapshot()
    extent = reader.extent(snapshot)
    return View(snapshot=snapshot, start=extent.log_start, end=extent.log_end)


def view_as_of(reader: PartitionReader, as_of: AsOf) -> View:
    """The view of a partition as it was; InvalidError if it can't be shown exactly any more."""
    now = view_now(reader)
    partition = reader.partition
    history = reader.table.history()
    if as_of.snapshot_id is not None:
        for snapshot in history:
            if snapshot.id == as_of.snapshot_id:
                at = snapshot.positions[partition]
                return View(snapshot=snapshot, start=max(at.log_start, now.start), end=at.sealed_end)
        raise InvalidError(
            f"There is no snapshot {as_of.snapshot_id}; `lastword topic history` lists those that are kept "
            f"(for snapshot.retention.ms)."
        )
    if as_of.time_ms is not None:
        end = reader.offset_for_time(as_of.time_ms + 1)
    else:
        assert as_of.offset is not None
        end = as_of.offset + 1
        if not now.start <= end <= now.end:
            raise InvalidError(
                f"Offset {as_of.offset} of partition {partition} is out of range: it has {now.start} (log start) "
                f"to {now.end - 1} (last offset)."
            )
    exact = [snapshot for snapshot in history if snapshot.positions[partition].first_dirty <= end]
    if not exact:
        oldest = min(snapshot.positions[partition].first_dirty for snapshot in history)
        raise InvalidError(
            f"Partition {partition} has been compacted beyond offset {end - 1}, and no snapshot from before that is "
            f"kept any more (snapshot.retention.ms). The oldest offset that can be shown exactly is {oldest - 1}."
        )
    return View(snapshot=exact[-1], start=now.start, end=end)


def sealed_segments(reader: PartitionReader, view: View) -> list[Segment]:
    """The segments of a view, in offset order."""
    segments = reader.table.plan(view.snapshot, reader.partition, view.start)
    return [segment for segment in segments if segment.first_offset < view.end]


def read_sealed(
    reader: PartitionReader, view: View, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The sealed part of a view: whole rows in record.RECORD_SCHEMA, or some columns (offset among them)."""
    for segment in sealed_segments(reader, view):
        for records in reader.table.read(segment, columns, view.start):
            clipped = clip(records, view.end)
            if clipped.num_rows:
                yield clipped if columns is not None else with_partition(clipped, reader.partition)


def read_tail(reader: PartitionReader, view: View) -> Iterator[pa.RecordBatch]:
    """The rest of a view, which is only in the WAL."""
    sealed_end = view.snapshot.positions[reader.partition].sealed_end
    return reader.tail(max(sealed_end, view.start), view.end)


def read(reader: PartitionReader, view: View) -> Iterator[pa.RecordBatch]:
    """All records of a view, in offset order."""
    with reader.pin(view.snapshot):
        yield from read_all(reader, view)


def read_all(reader: PartitionReader, view: View) -> Iterator[pa.RecordBatch]:
    """Read all records of a view, in offset order. Its snapshot is pinned by the caller."""
    yield from read_sealed(reader, view)
    yield from read_tail(reader, view)
