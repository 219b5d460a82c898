"""Picks records of a partition by their offsets, in memory that does not grow with what lies between them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword import timetravel
from lastword.reader import PartitionReader, with_partition
from lastword.state import at_offsets
from lastword.timetravel import View

Offsets = npt.NDArray[np.int64]

FAR = 10_000
"""Where the next wanted record of the WAL is further away, the batches between are not decoded."""


def pick(reader: PartitionReader, view: View, offsets: Offsets) -> Iterator[pa.RecordBatch]:
    """Read the records at some offsets, which are in order, in small batches. The view's snapshot is pinned."""
    sealed_end = view.snapshot.positions[reader.partition].sealed_end
    split = int(np.searchsorted(offsets, sealed_end))
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
    """Tell whether one of some offsets, which are in order, is in a span."""
    return len(_within(offsets, first, last)) > 0
