"""Shared parts of pages of records: views of a topic, picking records by offset, and limiting a page's size.

Memory does not grow with the number of records between those of a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.log.topic import Topic
from lastword.reading import timetravel
from lastword.reading.reader import PartitionReader
from lastword.reading.timetravel import AsOf, View
from lastword.record import Record
from lastword.segments.model import retry_if_moved
from lastword.segments.rows import at_offsets, with_partition

T = TypeVar("T")
Rank = TypeVar("Rank", int, bytes)
Source = tuple[PartitionReader, View]
"""A partition, and its view."""
Offsets = npt.NDArray[np.int64]

FAR = 10_000
"""If the next wanted record of the WAL is further away than this, the batches in between are not decoded."""


def with_views(
    topic: Topic, as_of: AsOf | None, act: Callable[[Sequence[Source]], T], partition: int | None = None
) -> T:
    """Call `act` with the views of a topic or of one partition, now or in the past. Retry if they change meanwhile."""
    with ExitStack() as opened:
        readers = topic.partition_readers() if partition is None else [topic.partition_reader(partition)]
        for reader in readers:
            opened.callback(reader.close)

        def attempt() -> T:
            with ExitStack() as pinned:
                return act([_source(reader, as_of, pinned) for reader in readers])

        return retry_if_moved(attempt, f"Topic {topic.name!r}")


def _source(reader: PartitionReader, as_of: AsOf | None, pinned: ExitStack) -> Source:
    view = timetravel.view(reader, as_of)
    pinned.enter_context(reader.pin(view.snapshot))
    return reader, view


class Taken(Generic[Rank]):
    """The records of a page: those of the lowest ranks. They are added in any order, and no more are held than fit.

    A page ends with the record that passes `max_bytes` of keys and values, and has at least one.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._by_rank: dict[Rank, Record] = {}
        self._size_bytes = 0
        self._end: Rank | None = None

    def add(self, rank: Rank, record: Record) -> None:
        if self._end is not None and rank >= self._end:
            return
        self._by_rank[rank] = record
        self._size_bytes += _size_bytes(record)
        while self._size_bytes >= self._max_bytes and len(self._by_rank) > 1:
            last = max(self._by_rank)
            rest_bytes = self._size_bytes - _size_bytes(self._by_rank[last])
            if rest_bytes < self._max_bytes:
                return
            del self._by_rank[last]
            self._size_bytes, self._end = rest_bytes, last

    def in_order(self) -> tuple[Record, ...]:
        return tuple(self._by_rank[rank] for rank in sorted(self._by_rank))


def _size_bytes(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"")


def pick(reader: PartitionReader, view: View, offsets: Offsets) -> Iterator[pa.RecordBatch]:
    """Read the records at some sorted offsets, in small batches. The view's snapshot is pinned."""
    split = int(np.searchsorted(offsets, view.sealed_end))
    yield from _sealed(reader, view, offsets[:split])
    yield from _tail(reader, view, offsets[split:])


def _sealed(reader: PartitionReader, view: View, offsets: Offsets) -> Iterator[pa.RecordBatch]:
    if not len(offsets):
        return
    for segment in timetravel.sealed_segments(reader, view):
        own = _within(offsets, segment.first_offset, segment.last_offset)
        if not len(own):
            continue
        found = 0
        for records in reader.table.files.stream(segment, wanted=partial(any_within, own)):
            picked = at_offsets(records, own)
            if picked.num_rows:
                yield with_partition(picked, reader.partition)
                found += picked.num_rows
            if found == len(own):
                break


def _tail(reader: PartitionReader, view: View, offsets: Offsets) -> Iterator[pa.RecordBatch]:
    while len(offsets):
        for records in reader.tail(int(offsets[0]), min(view.end, int(offsets[-1]) + 1)):
            picked = at_offsets(records, offsets)
            if picked.num_rows:
                yield picked
            reached = int(records.column("offset")[-1].as_py())
            offsets = offsets[np.searchsorted(offsets, reached, side="right") :]
            if not len(offsets) or int(offsets[0]) > reached + FAR:
                break
        else:
            return


def _within(offsets: Offsets, first: int, last: int) -> Offsets:
    return offsets[np.searchsorted(offsets, first) : np.searchsorted(offsets, last, side="right")]


def any_within(offsets: Offsets, first: int, last: int) -> bool:
    """Return whether one of some sorted offsets is in a span."""
    return len(_within(offsets, first, last)) > 0
