"""Pages of a topic's records over all partitions, newest first, with counts.

Within a partition, records are in offset order. Between partitions, the next record is the one with the later time.
If times go back within a partition, its offset order still holds, so that every record is on exactly one page.

A *place* between two pages is an offset of each partition. A page has the records before a place (`before`), or those
from it on (`since`): as many as fit, in that direction. The steps:
1. find the records by offset and time alone, in the files that come next by their known times;
2. pick these records;
3. count the records on either side, from file metadata, or by reading the keys if a key is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lastword.errors import CorruptError
from lastword.log.topic import Topic
from lastword.operations.picking import Source, Taken, pick, with_views
from lastword.reading import timetravel
from lastword.reading.reader import PartitionReader
from lastword.reading.timetravel import AsOf, View
from lastword.record import Record
from lastword.segments.rows import to_records

Offsets = Mapping[int, int]
"""For each partition, the first offset after the place."""
Times = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Offsets and times in milliseconds (-1: none), in offset order."""

TAIL_OFFSETS = 1000
"""The number of WAL offsets that are searched first. If that is not enough, four times as many are, and so on."""
LATEST_MS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPage:
    """Some records, newest first. Counts are None if damage prevented counting."""

    total: int | None
    """All records that can be paged through."""
    newer: int | None
    """The number of these records that are newer than the page."""
    records: tuple[Record, ...]
    before: Offsets | None
    """The `before` of the next page, if there are older records."""
    since: Offsets | None
    """The `since` of the previous page, if there are newer records."""


def record_page(
    topic: Topic,
    *,
    partition: int | None = None,
    key: bytes | None = None,
    as_of: AsOf | None = None,
    before: Offsets | None = None,
    since: Offsets | None = None,
    limit: int,
    max_bytes: int,
) -> RecordPage:
    """Return the records before a place (by default the newest) or from a place on, of one key or of all keys.

    A page ends with the record that passes `max_bytes` of keys and values. A partition that a place does not name
    is newer than the place.
    """
    question = _Question(key=key, before=before, since=since, limit=limit, max_bytes=max_bytes)
    return with_views(topic, as_of, question.answer, partition)


def place_of_offset(topic: Topic, offset: int) -> dict[int, int]:
    """Return the place after an offset, in each partition."""
    return dict.fromkeys(range(topic.partitions), offset + 1)


def place_of_time(topic: Topic, time_ms: int) -> dict[int, int]:
    """Return the place after the records up to a time."""
    found = topic.offsets_for_time(time_ms + 1)
    return {partition: offset for partition, offset in found.items() if isinstance(offset, int)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    key: bytes | None
    before: Offsets | None
    since: Offsets | None
    limit: int
    max_bytes: int

    @property
    def _upwards(self) -> bool:
        return self.since is not None

    def answer(self, sources: Sequence[Source]) -> RecordPage:
        start = {reader.partition: self._start(view, reader.partition) for reader, view in sources}
        counts: list[_KeyCount] = []
        if self.key is not None:
            counts = [
                _KeyCount(
                    *source, self.key, start[source[0].partition], limit=self.limit, upwards=self._upwards
                )
                for source in sources
            ]
            walks = [each.walk(upwards=self._upwards) for each in counts]
        else:
            walks = [
                _Walk(
                    reader.partition,
                    _files_of(reader, view, start[reader.partition], upwards=self._upwards),
                    upwards=self._upwards,
                )
                for reader, view in sources
            ]
        records = self._pick(sources, _merge(walks, self.limit, self._upwards))
        end = dict(start)
        for each in records:
            # The last record of each partition is the furthest from the start.
            end[each.partition] = each.offset + 1 if self._upwards else each.offset
        low, high = (start, end) if self._upwards else (end, start)
        below: int | None
        above: int | None
        if counts:
            below = sum(each.below for each in counts) - (0 if self._upwards else len(records))
            above = sum(each.above for each in counts) - (len(records) if self._upwards else 0)
        else:
            below, above = _count(sources, low, high)
        return RecordPage(
            total=None if below is None or above is None else below + len(records) + above,
            newer=above,
            records=records[::-1] if self._upwards else records,
            before=low if below or (below is None and _any_below(sources, low)) else None,
            since=high if above or (above is None and _any_above(sources, high)) else None,
        )

    def _start(self, view: View, partition: int) -> int:
        """Return the start of the page, within the visible offsets of a partition."""
        if self.since is not None:
            wanted = self.since.get(partition, view.start)
        elif self.before is not None:
            wanted = self.before.get(partition, view.start)
        else:
            wanted = view.end
        return min(max(wanted, view.start), view.end)

    def _pick(self, sources: Sequence[Source], chosen: Sequence[tuple[int, int]]) -> tuple[Record, ...]:
        ranks = {where: rank for rank, where in enumerate(chosen)}
        taken = Taken[int](self.max_bytes)
        for reader, view in sources:
            offsets = sorted(offset for partition, offset in chosen if partition == reader.partition)
            for batch in pick(reader, view, np.array(offsets, np.int64)):
                for record in to_records(batch):
                    taken.add(ranks[record.partition, record.offset], record)
        return taken.in_order()


# ---------------------------------------------------------------------------------------------- the order


def _merge(walks: Sequence[_Walk], limit: int, upwards: bool) -> list[tuple[int, int]]:
    """Choose the next records of several partitions, by their times."""
    chosen: list[tuple[int, int]] = []
    while len(chosen) < limit:
        at = [each for each in walks if each.time_ms is not None]
        if not at:
            break
        if upwards:
            first = min(at, key=lambda each: (each.time_ms, each.partition))
        else:
            first = max(at, key=lambda each: (each.time_ms, each.partition))
        if first.is_known:
            chosen.append((first.partition, first.take()))
            continue
        try:
            first.open()
        except CorruptError:
            # The page ends at the damage. The next page begins there and raises.
            if not chosen:
                raise
            break
    return chosen


class _Walk:
    """A walk over the records of a partition, up or down, that knows the time and offset of the next one.

    Files come with a bound of their times. A file is opened when the next record may be in it. Until then the bound
    stands for the record's time.
    """

    def __init__(
        self, partition: int, files: Iterator[tuple[int, Iterator[Times]]], *, upwards: bool
    ) -> None:
        self.partition = partition
        self.time_ms: int | None = None
        """The time of the next record, or a bound of it. None if there is no next record."""
        self.is_known = False
        self._files = files
        self._upwards = upwards
        self._bound_ms = 0
        self._times: Iterator[Times] = iter(())
        self._found: deque[tuple[int, int]] = deque()
        self._last_ms = -1
        self._next_file()

    def take(self) -> int:
        """Take the next record and return its offset."""
        offset, _ = self._found.popleft()
        self._note_next()
        return offset

    def open(self) -> None:
        """Look for the next record in the next file."""
        for offsets, times_ms in self._times:
            self._add(offsets.tolist(), times_ms.tolist())
            if self._found:
                self._note_next()
                return
        self._next_file()

    def _add(self, offsets: list[int], times_ms: list[int]) -> None:
        pairs = list(zip(offsets, times_ms, strict=True))
        for offset, time_ms in pairs if self._upwards else pairs[::-1]:
            # A record without a time takes that of its neighbour.
            self._last_ms = (
                time_ms if time_ms >= 0 else self._last_ms if self._last_ms >= 0 else self._bound_ms
            )
            self._found.append((offset, self._last_ms))

    def _note_next(self) -> None:
        self.is_known = bool(self._found)
        self.time_ms = self._found[0][1] if self._found else self._bound_ms

    def _next_file(self) -> None:
        self.is_known = False
        following = next(self._files, None)
        if following is None:
            self.time_ms = None
        else:
            self._bound_ms, self._times = following
            self.time_ms = self._bound_ms


def _files_of(
    reader: PartitionReader, view: View, start: int, *, upwards: bool
) -> Iterator[tuple[int, Iterator[Times]]]:
    """Yield the segments from an offset on, up or down, and the part of the WAL after or before them."""
    low, high = (start, view.end) if upwards else (view.start, start)
    tail, sealed_to = max(low, view.sealed_end), min(high, view.sealed_end)
    if not upwards and tail < high:
        yield LATEST_MS, _tail_downwards(reader, tail, high)
    segments = timetravel.sealed_segments(reader, view)
    for segment in segments if upwards else reversed(segments):
        if segment.first_offset < sealed_to and segment.last_offset >= low:
            bound_ms = segment.min_timestamp_ms if upwards else segment.max_timestamp_ms
            yield bound_ms, reader.table.files.times(segment, low, sealed_to, backwards=not upwards)
    if upwards and tail < high:
        yield 0, map(_times_of, reader.tail(tail, high))


def _tail_downwards(reader: PartitionReader, start: int, end: int) -> Iterator[Times]:
    offsets = TAIL_OFFSETS
    while start < end:
        first = max(start, end - offsets)
        try:
            parts = [_times_of(records) for records in reader.tail(first, end)]
        except CorruptError:
            if end - first == 1:
                raise
            # The records above the damage come first.
            offsets = (end - first) // 2
            continue
        if parts:
            yield np.concatenate([each for each, _ in parts]), np.concatenate([each for _, each in parts])
        end, offsets = first, offsets * 4


def _times_of(records: pa.RecordBatch) -> Times:
    times_us = records.column("timestamp").cast(pa.int64()).fill_null(-1000).to_numpy()
    return records.column("offset").to_numpy(), times_us // 1000


# ----------------------------------------------------------------------------------------------- counting


def _count(sources: Sequence[Source], low: Offsets, high: Offsets) -> tuple[int | None, int | None]:
    """Count the records below one place, and those from another place on."""
    below, above = 0, 0
    try:
        for reader, view in sources:
            below += _count_span(reader, view, view.start, low[reader.partition])
            above += _count_span(reader, view, high[reader.partition], view.end)
    except CorruptError:
        return None, None
    return below, above


def _count_span(reader: PartitionReader, view: View, start: int, end: int) -> int:
    if start >= end:
        return 0
    sealed_to = min(end, view.sealed_end)
    total = sum(
        reader.table.files.count(segment, start, sealed_to)
        for segment in timetravel.sealed_segments(reader, view)
        if segment.first_offset < sealed_to and segment.last_offset >= start
    )
    return total + reader.count_tail(max(start, view.sealed_end), end)


def _any_below(sources: Sequence[Source], low: Offsets) -> bool:
    return any(low[reader.partition] > view.start for reader, view in sources)


def _any_above(sources: Sequence[Source], high: Offsets) -> bool:
    return any(high[reader.partition] < view.end for reader, view in sources)


# ------------------------------------------------------------------------------------------------- a key


class _KeyCount:
    """The number of records that a key has on either side of an offset in a partition, and the nearest ones."""

    def __init__(
        self, reader: PartitionReader, view: View, key: bytes, start: int, *, limit: int, upwards: bool
    ) -> None:
        self.partition = reader.partition
        self.below = self.above = 0
        near: deque[tuple[int, int]] = deque(maxlen=limit)
        for offsets, times_ms in _of_one_key(reader, view, key):
            split = int(np.searchsorted(offsets, start))
            self.below += split
            self.above += len(offsets) - split
            rows = slice(split, split + limit - len(near)) if upwards else slice(0, split)
            near.extend(zip(offsets[rows].tolist(), times_ms[rows].tolist(), strict=True))
        self.nearest = np.array(near, np.int64).reshape(-1, 2)

    def walk(self, *, upwards: bool) -> _Walk:
        """Return a walk over the nearest records, instead of all records of the partition."""
        times = iter([(self.nearest[:, 0], self.nearest[:, 1])])
        return _Walk(self.partition, iter([(0 if upwards else LATEST_MS, times)]), upwards=upwards)


def _of_one_key(reader: PartitionReader, view: View, key: bytes) -> Iterator[Times]:
    for records in timetravel.read_sealed(reader, view, ["offset", "timestamp", "key"]):
        yield _matching(records, key)
    for records in timetravel.read_tail(reader, view):
        yield _matching(records, key)


def _matching(records: pa.RecordBatch, key: bytes) -> Times:
    same = pc.fill_null(pc.equal(records.column("key"), pa.scalar(key, pa.binary())), False)
    return _times_of(records.select(["offset", "timestamp"]).filter(same))
