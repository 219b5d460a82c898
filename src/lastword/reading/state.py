"""The state view: the winner of each key, from sealed segments and tail together, without deleted keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from lastword.compaction.strategy import Strategy
from lastword.reading import timetravel, winners
from lastword.reading.reader import PartitionReader
from lastword.reading.timetravel import AsOf, view
from lastword.reading.winners import PartitionWinners
from lastword.record import RECORD_SCHEMA
from lastword.segments.model import retry_if_moved
from lastword.segments.rows import at_offsets


def state_view(readers: Sequence[PartitionReader], strategy: Strategy, as_of: AsOf | None = None) -> pa.Table:
    """Return the state of a topic, now or as of a point in the past, in record.RECORD_SCHEMA, by partition and offset.

    Each key appears once.
    """

    def attempt() -> pa.Table:
        with ExitStack() as pins:
            found = winners.find(readers, lambda reader: view(reader, as_of), strategy, pins)
            rows = [
                each.filter(each.column("value").is_valid())
                for reader, own in zip(readers, found, strict=True)
                for each in winning_rows(reader, own)
            ]
        return pa.Table.from_batches(rows, RECORD_SCHEMA)

    return retry_if_moved(attempt, "The state")


def winning_rows(reader: PartitionReader, found: PartitionWinners) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition that win their keys, with tombstones, in offset order, as record.RECORD_SCHEMA.

    The caller pins the snapshot of the view.
    """
    for sealed, mask in zip(found.sealed, found.masks, strict=False):
        if mask.any():
            yield from sealed.records(mask)
    won = found.tail.offsets[found.masks[-1].view(np.bool_)]
    if len(won):
        for records in timetravel.read_tail(reader, found.view):
            if (kept := at_offsets(records, won)).num_rows:
                yield kept
