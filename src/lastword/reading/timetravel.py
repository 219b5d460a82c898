"""Views of a partition as of an offset, a time, or a snapshot.

A view as of offset X shows the records that a reader would have found if it had begun when X was the last offset. It is
exact if compaction has not overtaken X: a snapshot is still kept whose first dirty offset is at most X + 1, so that no
record up to X has been removed because of one after X. If X + 1 is inside a range that was compacted while it was
sealed, that range is read from the WAL.

As of a time means as of the log end at that time: the last offset before the first record, from the log start on, that
is younger. A record without a timestamp is as old as the one before it. Erased records count as if they had never been
there. The end is searched in the snapshot that is read, because a later one may lack the record that marks it. A
snapshot can answer if none of the records that it may lack, those below its first dirty offset, was younger: their
latest timestamp is kept with its positions.

As of a snapshot, a view shows the records of that snapshot. No view goes below the log start.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from lastword.errors import InvalidError, UnavailableError
from lastword.reading.reader import PartitionReader
from lastword.record_json import parse_time, time_text
from lastword.segments.model import Positions, Segment, Snapshot, resume_if_moved, retry_if_moved
from lastword.segments.rows import clip, first_not_older, last_offset, with_partition
from lastword.wal.reader import OffsetGoneError


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """A point in a topic's past: exactly one of the three is set."""

    offset: int | None = None
    time_ms: int | None = None
    snapshot_id: int | None = None

    def __post_init__(self) -> None:
        if [self.offset, self.time_ms, self.snapshot_id].count(None) != 2:
            raise InvalidError("Give exactly one of an offset, a time or a snapshot.")


def parse_as_of(text: str, option: str) -> AsOf:
    """Parse a point in the past: an offset, a time, or snapshot:ID. `option` is named in errors."""
    if text.isascii() and text.isdigit():
        return AsOf(offset=int(text))
    kind, _, rest = text.partition(":")
    if kind == "snapshot":
        if not rest.isascii() or not rest.isdigit():
            raise InvalidError(
                f"{option} is {text!r}; a snapshot is a number, and `lastword topic history` lists them"
            )
        return AsOf(snapshot_id=int(rest))
    try:
        # A number means an offset here, even a negative one, which is invalid.
        return AsOf(time_ms=parse_time(text if not text.startswith("-") else ""))
    except InvalidError:
        raise InvalidError(
            f"{option} is {text!r}; allowed: an offset such as 1000, a time such as 2026-01-31T12:00:00Z, or snapshot:ID"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The visible offsets of a partition: from `start` up to but excluding `end`.

    Those below `sealed_end` are read from a snapshot, the others from the WAL.
    """

    snapshot: Snapshot
    start: int
    end: int
    sealed_end: int

    @property
    def sealed_to(self) -> int:
        """The end of the part that is read from the snapshot."""
        return min(self.end, self.sealed_end)

    @property
    def tail_start(self) -> int:
        """The start of the part that is read from the WAL."""
        return max(self.start, self.sealed_end)


def view(reader: PartitionReader, as_of: AsOf | None) -> View:
    """Return the view of a partition now, or as of a point."""
    return view_now(reader) if as_of is None else view_as_of(reader, as_of)


def view_now(reader: PartitionReader) -> View:
    """Return the view of everything that is there now."""
    return _view_whole(reader, reader.table.snapshot())


def _view_whole(reader: PartitionReader, snapshot: Snapshot) -> View:
    extent = reader.extent(snapshot)
    sealed_end = snapshot.positions[reader.partition].sealed_end
    return View(snapshot=snapshot, start=extent.log_start, end=extent.log_end, sealed_end=sealed_end)


def view_as_of(reader: PartitionReader, as_of: AsOf) -> View:
    """Return the view of a partition as it was. Raise InvalidError if it can't be shown exactly any more."""

    def attempt() -> View:
        if as_of.snapshot_id is not None:
            return _view_of_snapshot(reader, as_of.snapshot_id)
        if as_of.time_ms is not None:
            return _view_at_time(reader, as_of.time_ms)
        assert as_of.offset is not None
        return _view_at_offset(reader, as_of.offset)

    return retry_if_moved(attempt, f"Partition {reader.partition}")


def _view_of_snapshot(reader: PartitionReader, snapshot_id: int) -> View:
    kept = reader.table.history()
    for snapshot in kept:
        if snapshot.id == snapshot_id:
            log_start = kept[-1].positions[reader.partition].log_start
            sealed_end = snapshot.positions[reader.partition].sealed_end
            return View(snapshot=snapshot, start=log_start, end=sealed_end, sealed_end=sealed_end)
    raise InvalidError(
        f"There is no snapshot {snapshot_id}; `lastword topic history` lists those that are kept "
        f"(for snapshot.retention.ms)."
    )


def _view_at_offset(reader: PartitionReader, offset: int) -> View:
    kept = reader.table.history()
    now = _view_whole(reader, kept[-1])
    partition, end = reader.partition, offset + 1
    if not now.start <= end <= now.end:
        raise InvalidError(
            f"Offset {offset} of partition {partition} is out of range: it has {now.start} (log start) "
            f"to {now.end - 1} (last offset)."
        )
    wal_start = reader.wal_start()
    for snapshot in reversed(kept):
        at = snapshot.positions[partition]
        if at.first_dirty <= end:
            view = View(snapshot=snapshot, start=now.start, end=end, sealed_end=_exact_sealed_end(at, end))
            if view.tail_start >= end or wal_start <= view.tail_start:
                return view
    raise _can_not_show(reader, kept, now, end)


def _exact_sealed_end(at: Positions, end: int) -> int:
    """Return up to where the table shows what a view that ends at `end` must show. From there on the WAL must."""
    return next((each.start for each in at.rounds if each.start < end < each.end), at.sealed_end)


def _can_not_show(reader: PartitionReader, kept: Sequence[Snapshot], now: View, end: int) -> Exception:
    partition = reader.partition
    exact = [each for each in kept if each.positions[partition].next_exact(end) == end]
    if not exact:
        return InvalidError(
            f"Partition {partition} has been compacted beyond offset {end - 1}, and no earlier snapshot is "
            f"retained (snapshot.retention.ms). {_next_exact(kept, partition, end)}"
        )
    sealed_end = exact[-1].positions[partition].sealed_end
    if exact[-1].id == now.snapshot.id:
        return reader.not_in_wal(max(sealed_end, now.start))
    later = kept[kept.index(exact[-1]) + 1 :]
    return InvalidError(
        f"Partition {partition} can't be shown as of offset {end - 1}: the snapshot that could show it ends at "
        f"offset {sealed_end - 1}, and the WAL no longer has the records after it. "
        f"{_next_exact(later, partition, end)}"
    )


def _next_exact(kept: Sequence[Snapshot], partition: int, end: int) -> str:
    """Name the first offset, from the one before `end` on, that some snapshots can show exactly."""
    found = min(snapshot.positions[partition].next_exact(end) for snapshot in kept)
    return f"The next offset that can be shown exactly is {found - 1}."


def _view_at_time(reader: PartitionReader, time_ms: int) -> View:
    kept = reader.table.history()
    now = _view_whole(reader, kept[-1])
    partition = reader.partition
    exact = [each for each in kept if _lacks_nothing_after(each.positions[partition], time_ms, now.start)]
    if not exact:
        raise InvalidError(
            f"Partition {partition} has been compacted beyond {time_text(time_ms)}, and no earlier snapshot is "
            f"retained (snapshot.retention.ms). {_oldest_time(kept[0].positions[partition])}"
        )
    wal_start = reader.wal_start()
    for snapshot in reversed(exact):
        with reader.pin(snapshot):
            try:
                found = _end_at_time(reader, _view_from(now, snapshot, partition), time_ms, wal_start)
            except OffsetGoneError:
                if snapshot.id == now.snapshot.id:
                    raise
                break
        if found is not None:
            return found
    later = kept[kept.index(snapshot) + 1 :] or [snapshot]
    raise InvalidError(
        f"Partition {partition} can't be shown as of {time_text(time_ms)}: the snapshot that could show it ends at offset "
        f"{snapshot.positions[partition].sealed_end - 1}, and the WAL no longer has the records after it. "
        f"{_oldest_time(later[0].positions[partition])}"
    )


def _view_from(now: View, snapshot: Snapshot, partition: int) -> View:
    """Return the view now, with the sealed records of an earlier snapshot."""
    return replace(now, snapshot=snapshot, sealed_end=snapshot.positions[partition].sealed_end)


def _end_at_time(reader: PartitionReader, view: View, time_ms: int, wal_start: int) -> View | None:
    """Let a view end at the first record that is younger than a time. Return None if it can't show that record.

    It may have been left out when it was sealed. Then only the WAL has it.
    """
    end = offset_for_time(reader, view, time_ms + 1)
    at = view.snapshot.positions[reader.partition]
    hiding = next((each for each in at.rounds if each.start < end and each.max_timestamp_ms > time_ms), None)
    if hiding is not None and hiding.min_timestamp_ms > time_ms:
        end = hiding.start
    elif hiding is not None:
        view = replace(view, sealed_end=hiding.start)
        if wal_start > view.tail_start:
            return None
        end = offset_for_time(reader, view, time_ms + 1)
    return replace(view, end=max(end, view.start))


def _lacks_nothing_after(at: Positions, time_ms: int, log_start: int) -> bool:
    """Return whether no record that a snapshot may lack is younger than a time."""
    return at.first_dirty <= log_start or (
        at.clean_max_timestamp_ms is not None and at.clean_max_timestamp_ms <= time_ms
    )


def _oldest_time(at: Positions) -> str:
    if at.rounds:
        # A record that was left out may be younger than all that are there, and so in every range that has older ones, too.
        latest_ms = max(at.rounds[0].max_timestamp_ms, at.clean_max_timestamp_ms or -1)
        while hiding := [e for e in at.rounds if e.min_timestamp_ms <= latest_ms < e.max_timestamp_ms]:
            latest_ms = hiding[0].max_timestamp_ms
        return f"A time that can be shown exactly is {time_text(latest_ms)}."
    if at.clean_max_timestamp_ms is None:
        return "The oldest time that can be shown is not known; as of an offset or a snapshot may work."
    return f"The oldest time that can be shown exactly is {time_text(at.clean_max_timestamp_ms)}."


def offset_for_time(reader: PartitionReader, view: View, timestamp_ms: int) -> int:
    """Return the first offset of a view whose record is not older than a time; its end if there is none."""
    for segment in sealed_segments(reader, view):
        if segment.max_timestamp_ms >= timestamp_ms:
            for records in reader.table.read(segment, ["offset", "timestamp"], view.start):
                found = first_not_older(clip(records, view.sealed_to), timestamp_ms)
                if found is not None:
                    return found[0]
    for records in read_tail(reader, view):
        if (found := first_not_older(records, timestamp_ms)) is not None:
            return found[0]
    return view.end


def sealed_segments(reader: PartitionReader, view: View) -> list[Segment]:
    """Return the segments of a view, in offset order."""
    segments = reader.table.plan(view.snapshot, reader.partition, view.start)
    return [segment for segment in segments if segment.first_offset < view.sealed_to]


def read_sealed(
    reader: PartitionReader, view: View, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the sealed part of a view: whole rows in record.RECORD_SCHEMA, or some columns (including offset)."""
    for segment in sealed_segments(reader, view):
        for records in reader.table.read(segment, columns, view.start):
            clipped = clip(records, view.sealed_to)
            if clipped.num_rows:
                yield clipped if columns is not None else with_partition(clipped, reader.partition)


def read_tail(reader: PartitionReader, view: View) -> Iterator[pa.RecordBatch]:
    """Read the rest of a view, which is only in the WAL."""
    return reader.tail(view.tail_start, view.end)


def read(reader: PartitionReader, as_of: AsOf, view: View) -> Iterator[pa.RecordBatch]:
    """Read all records of a view that was taken as of a point, in offset order.

    Records that have moved since are read from where they are now. Raise UnavailableError if compaction has passed the
    rest after a part has been read: of a key it would show an old record, and not the one that superseded it.
    """
    if as_of.snapshot_id is None:
        # As of a time, other records may have come before the end since.
        as_of = AsOf(offset=view.end - 1)
    views = chain([view], iter(lambda: view_as_of(reader, as_of), None))
    offset = view.start

    def rest() -> Generator[pa.RecordBatch, None, None]:
        nonlocal offset
        at = next(views)
        positions = at.snapshot.positions[reader.partition]
        if view.start < offset < at.sealed_end and positions.next_exact(offset) > offset:
            raise UnavailableError(
                f"Partition {reader.partition} was compacted while its past was read; read it again."
            )
        with reader.pin(at.snapshot):
            for records in read_all(reader, replace(at, start=max(at.start, offset))):
                yield records
                offset = last_offset(records) + 1

    return resume_if_moved(rest, f"Partition {reader.partition}")


def read_all(reader: PartitionReader, view: View) -> Iterator[pa.RecordBatch]:
    """Read all records of a view, in offset order. The caller pins its snapshot."""
    yield from read_sealed(reader, view)
    yield from read_tail(reader, view)
