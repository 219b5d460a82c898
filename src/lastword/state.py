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

from lastword.compaction import strategy
from lastword.config import TopicSettings
from lastword.errors import UnavailableError
from lastword.reader import ATTEMPTS, PartitionReader, with_partition
from lastword.record import RECORD_SCHEMA
from lastword.segments.table import SegmentGoneError
from lastword.wal.reader import OffsetGoneError


def state_view(readers: Sequence[PartitionReader], settings: TopicSettings) -> pa.Table:
    """The state of a topic, as record.RECORD_SCHEMA, by partition and offset. A key counts once."""
    view = pa.concat_tables([_partition_state(reader, settings) for reader in readers])
    if len(readers) > 1:
        # After an increase of partitions a key may be in two: the later timestamp, then the higher partition.
        timestamps = view.column("timestamp").cast(pa.int64()).fill_null(-1).to_numpy()
        order = np.lexsort((view.column("partition").to_numpy(), timestamps))
        view = view.filter(pa.array(strategy.best_of_each_key(view.column("key"), order)))
    return view.filter(view.column("value").is_valid())


def _partition_state(reader: PartitionReader, settings: TopicSettings) -> pa.Table:
    for _ in range(ATTEMPTS):
        try:
            return _winning_rows(reader, settings)
        except (SegmentGoneError, OffsetGoneError):
            # Sealing or retention moved the records meanwhile: look again.
            continue
    raise UnavailableError(f"Partition {reader.partition} changed {ATTEMPTS} times while its state was read.")


def _winning_rows(reader: PartitionReader, settings: TopicSettings) -> pa.Table:
    snapshot = reader.table.snapshot()
    at = snapshot.positions[reader.partition]
    columns = ["offset", "key", *strategy.version_columns(settings)]
    with reader.pin(snapshot):
        segments = reader.table.plan(snapshot, reader.partition, at.log_start)
        tail = list(reader.tail(max(at.sealed_end, at.log_start), reader.extent(snapshot).log_end))
        scanned = [
            records for segment in segments for records in reader.table.read(segment, columns, at.log_start)
        ]
        scanned += [records.select(columns) for records in tail]
        if not scanned:
            return RECORD_SCHEMA.empty_table()
        keyed = pa.Table.from_batches(scanned)
        won = strategy.winners(keyed, settings) & keyed.column("key").is_valid().to_numpy()
        rows = (
            with_partition(records, reader.partition)
            for segment in segments
            for records in reader.table.read(segment, None, at.log_start)
        )
        return pa.Table.from_batches(_kept(rows, tail, won), RECORD_SCHEMA)


def _kept(
    sealed: Iterator[pa.RecordBatch], tail: Sequence[pa.RecordBatch], won: npt.NDArray[np.bool_]
) -> Iterator[pa.RecordBatch]:
    row = 0
    for records in itertools.chain(sealed, tail):
        mask = won[row : row + records.num_rows]
        row += records.num_rows
        if mask.any():
            yield records.filter(pa.array(mask))
