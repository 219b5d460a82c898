"""The state view: the winner of each key, sealed and tail together, without the keys that were deleted.

Two passes over the sealed segments of one leased snapshot: the first reads keys and versions only and finds
the winners; the second reads whole rows and keeps those. The tail is read twice, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.compaction.strategy import best_of_each_key, strategy_of
from lastword.config import TopicSettings
from lastword.reading import timetravel
from lastword.reading.reader import PartitionReader
from lastword.reading.timetravel import AsOf, View
from lastword.record import RECORD_SCHEMA
from lastword.segments.model import look_again

MERGE_BYTES = 256 << 20
"""So much of keys and versions is gathered before the losers among them are dropped."""


def state_view(
    readers: Sequence[PartitionReader], settings: TopicSettings, as_of: AsOf | None = None
) -> pa.Table:
    """Return the state of a topic, now or as of a point of its past, as record.RECORD_SCHEMA, by partition and offset.

    A key counts once.
    """
    view = pa.concat_tables([_partition_state(reader, settings, as_of) for reader in readers])
    if len(readers) > 1:
        view = once_each(view)
    return view.filter(view.column("value").is_valid())


def contest(
    rows: Iterable[pa.Table | pa.RecordBatch],
    settings: TopicSettings,
    *,
    merge_bytes: int = MERGE_BYTES,
    narrow: Callable[[pa.Table], pa.Table] = lambda best: best,
) -> pa.Table | None:
    """Return the best row of each key; None if there is no row with a key.

    Rows are of one partition, in offset order, with keys, offsets and what the strategy compares. They compete some
    at a time, so that only the best ones are held; `narrow` may then take keys out for good.
    """
    best: pa.Table | None = None
    waiting: list[pa.Table] = []
    waiting_bytes = best_bytes = 0
    for each in rows:
        keyed = each if isinstance(each, pa.Table) else pa.Table.from_batches([each])
        if each.column("key").null_count:
            keyed = keyed.filter(each.column("key").is_valid())
        waiting.append(keyed)
        waiting_bytes += keyed.nbytes
        if waiting_bytes >= max(merge_bytes, best_bytes):
            best = narrow(_best(best, waiting, settings))
            waiting, waiting_bytes, best_bytes = [], 0, best.nbytes
    if waiting:
        best = narrow(_best(best, waiting, settings))
    return best


def _best(best: pa.Table | None, waiting: Sequence[pa.Table], settings: TopicSettings) -> pa.Table:
    rows = pa.concat_tables(waiting if best is None else [best, *waiting])
    return rows.filter(pa.array(strategy_of(settings).winners(rows)))


def once_each(winners: pa.Table) -> pa.Table:
    """Keep one row of each key, of the winners of several partitions.

    After an increase of partitions a key may be in two: the later timestamp, then the higher partition.
    """
    timestamps = winners.column("timestamp").cast(pa.int64()).fill_null(-1).to_numpy()
    order = np.lexsort((winners.column("partition").to_numpy(), timestamps))
    return winners.filter(pa.array(best_of_each_key(winners.column("key"), order)))


def _partition_state(reader: PartitionReader, settings: TopicSettings, as_of: AsOf | None) -> pa.Table:
    def attempt() -> pa.Table:
        view = timetravel.view_now(reader) if as_of is None else timetravel.view_as_of(reader, as_of)
        with reader.pin(view.snapshot):
            return _winning_rows(reader, settings, view)

    return look_again(attempt, f"Partition {reader.partition}")


def _winning_rows(reader: PartitionReader, settings: TopicSettings, view: View) -> pa.Table:
    best = contest(_scan(reader, settings, view), settings)
    if best is None:
        return RECORD_SCHEMA.empty_table()
    won = np.sort(best.column("offset").to_numpy())
    kept = (
        kept for records in timetravel.read_all(reader, view) if (kept := at_offsets(records, won)).num_rows
    )
    return pa.Table.from_batches(kept, RECORD_SCHEMA)


def _scan(reader: PartitionReader, settings: TopicSettings, view: View) -> Iterator[pa.RecordBatch]:
    columns = ["offset", "key", *strategy_of(settings).columns]
    yield from timetravel.read_sealed(reader, view, columns)
    for records in timetravel.read_tail(reader, view):
        yield records.select(columns)


def at_offsets(records: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return the records of a batch whose offsets are among some, which are in order."""
    if not len(offsets):
        return records.slice(0, 0)
    own = records.column("offset").to_numpy()
    places = np.searchsorted(offsets, own)
    mask = offsets[np.minimum(places, len(offsets) - 1)] == own
    return records if mask.all() else records.filter(pa.array(mask))
