"""The state view: the winner of each key, sealed and tail together, without the keys that were deleted.

Two passes over the sealed segments of one leased snapshot: the first reads keys and versions only and finds
the winners; the second reads whole rows and keeps those. The tail is read once and held in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword import timetravel
from lastword.compaction import strategy
from lastword.config import TopicSettings
from lastword.errors import UnavailableError
from lastword.reader import ATTEMPTS, PartitionReader
from lastword.record import RECORD_SCHEMA
from lastword.segments.table import SegmentGoneError
from lastword.timetravel import AsOf, View
from lastword.wal.reader import OffsetGoneError


def state_view(
    readers: Sequence[PartitionReader], settings: TopicSettings, as_of: AsOf | None = None
) -> pa.Table:
    """The state of a topic, now or as of a point of its past, as record.RECORD_SCHEMA, by partition and offset.

    A key counts once.
    """
    view = pa.concat_tables([_partition_state(reader, settings, as_of) for reader in readers])
    if len(readers) > 1:
        # After an increase of partitions a key may be in two: the later timestamp, then the higher partition.
        timestamps = view.column("timestamp").cast(pa.int64()).fill_null(-1).to_numpy()
        order = np.lexsort((view.column("partition").to_numpy(), timestamps))
        view = view.filter(pa.array(strategy.best_of_each_key(view.column("key"), order)))
    return view.filter(view.column("value").is_valid())


def _partition_state(reader: PartitionReader, settings: TopicSettings, as_of: AsOf | None) -> pa.Table:
    for _ in range(ATTEMPTS):
        view = timetravel.view_now(reader) if as_of is None else timetravel.view_as_of(reader, as_of)
        try:
            with reader.pin(view.snapshot):
                return _winning_rows(reader, settings, view)
        except (SegmentGoneError, OffsetGoneError):
            # Sealing or retention moved the records meanwhile: look again.
            continue
    raise UnavailableError(f"Partition {reader.partition} changed {ATTEMPTS} times while its state was read.")


def _winning_rows(reader: PartitionReader, settings: TopicSettings, view: View) -> pa.Table:
    columns = ["offset", "key", *strategy.version_columns(settings)]
    tail = list(timetravel.read_tail(reader, view))
    scanned = [
        *timetravel.read_sealed(reader, view, columns),
        *(records.select(columns) for records in tail),
    ]
    if not scanned:
        return RECORD_SCHEMA.empty_table()
    keyed = pa.Table.from_batches(scanned)
    won = strategy.winners(keyed, settings) & keyed.column("key").is_valid().to_numpy()
    return pa.Table.from_batches(_kept(timetravel.read_sealed(reader, view), tail, won), RECORD_SCHEMA)


def _kept(
    sealed: Iterator[pa.RecordBatch], tail: Sequence[pa.RecordBatch], won: npt.NDArray[np.bool_]
) -> Iterator[pa.RecordBatch]:
    row = 0
    for records in itertools.chain(sealed, tail):
        mask = won[row : row + records.num_rows]
        row += records.num_rows
        if mask.any():
            yield records.filter(pa.array(mask))
