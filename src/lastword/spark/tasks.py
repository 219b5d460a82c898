"""The tasks of executors, and how they are read: sealed segments from storage, the tail from the WAL.

A task is small: file names, offsets, and for the state view the selected rows. It is read as Arrow batches in the
requested columns, one row group at a time, so a task's memory does not depend on its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from lastword.clock import SystemClock
from lastword.errors import OffsetOutOfRangeError, StorageError, UnavailableError
from lastword.folder.leases import LeaseKeeper
from lastword.segments.model import Segment, SegmentGoneError
from lastword.segments.parquet import SegmentFiles
from lastword.segments.raw import RawSegment, RowGroup
from lastword.segments.rows import timestamps
from lastword.spark.filters import EVERYTHING, Wanted
from lastword.spark.options import Where

if TYPE_CHECKING:
    from lastword.reading.reader import PartitionReader

BATCH_ROWS: Final = 4 * 1024
BATCH_BYTES: Final = 1 << 20
"""Batches below both limits are joined before they go to Spark. Joining copies them, so only small ones are joined."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The snapshots that a task leases while it reads, so that no file is removed meanwhile."""

    data_folder: str
    topic_id: str
    snapshot_ids: tuple[int, ...]
    ttl_ms: int

    def hold(self) -> AbstractContextManager[object]:
        """Take leases if the data folder can be reached; otherwise snapshot.retention.ms must suffice."""
        if not Path(self.data_folder).is_dir():
            return nullcontext()
        keeper = LeaseKeeper(Path(self.data_folder), SystemClock(), self.ttl_ms)
        try:
            for each in self.snapshot_ids:
                keeper.hold(topic_id=self.topic_id, job="spark", snapshot_id=each)
        except StorageError:
            return nullcontext()
        return closing(keeper)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedPart:
    """Rows of a segment: those with offsets from `start` up to, but without, `end`; with a `mask`, some of them."""

    segment: Segment
    start: int
    end: int
    mask: bytes | None = field(default=None, repr=False)
    """One bit for every row of the segment: whether it is a winner of the state view."""

    def winners(self) -> Mask | None:
        if self.mask is None:
            return None
        bits = np.unpackbits(np.frombuffer(self.mask, np.uint8), count=self.segment.records)
        return bits.view(np.bool_)


@dataclass(frozen=True, kw_only=True)
class SealedTask(InputPartition):
    """Some parts of segments."""

    files: SegmentFiles
    parts: tuple[SealedPart, ...]
    pin: Pin


@dataclass(frozen=True, kw_only=True)
class TailTask(InputPartition):
    """Records that were only in the WAL when the read was planned. They may be sealed by the time they are read."""

    where: Where
    topic_id: str
    partition: int
    start: int
    end: int
    winners: bytes | None = field(default=None, repr=False)
    """The offsets (64 bits each, ascending) of the winners of the state view; None is every row."""
    follows_compaction: bool = False
    """If compaction overtakes the end, read on as far as the records that superseded those before it may be."""
    exact: bool = False
    """Read every record of it or raise an error: for a view of the past."""
    on_data_loss: Literal["fail", "skip"] = "skip"


@dataclass(frozen=True, kw_only=True)
class EmptyTask(InputPartition):
    """A task with nothing to read. Spark requires at least one task."""


def read(task: InputPartition, schema: pa.Schema, wanted: Wanted = EVERYTHING) -> Iterator[pa.RecordBatch]:
    """Return the rows of a task, in `schema`. Rows that can't match are left out where that is cheap."""
    if isinstance(task, SealedTask):
        return _joined(_read_sealed(task, schema, wanted), schema)
    if isinstance(task, TailTask):
        return _joined(_read_tail(task, schema, wanted), schema)
    return iter(())


# ------------------------------------------------------------------------------------------------ sealed


def _read_sealed(task: SealedTask, schema: pa.Schema, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    with task.pin.hold():
        for part in task.parts:
            try:
                with RawSegment(task.files, part.segment) as raw:
                    yield from _read_part(raw, part, schema, wanted)
            except SegmentGoneError as error:
                raise StorageError(
                    f"{error} This read was planned longer ago than snapshot.retention.ms; load the DataFrame again."
                ) from error


def _read_part(
    raw: RawSegment, part: SealedPart, schema: pa.Schema, wanted: Wanted
) -> Iterator[pa.RecordBatch]:
    winners = part.winners()
    for group in raw.row_groups:
        own = None if winners is None else winners[group.first_row : group.first_row + group.rows]
        if own is not None and not own.any():
            continue
        if not _may_match(raw, group, part, wanted):
            continue
        mask = _mask(raw, group, part, wanted, own)
        if mask is not None and not mask.any():
            continue
        needed = _needed(schema, drops_null_values=own is not None and _may_have_null_values(group, part))
        rows = raw.columns(needed, [group])
        if mask is not None and not mask.all():
            rows = rows.filter(pa.array(mask))
        if own is not None and "value" in needed and rows.column("value").null_count:
            # Winners without a value are deleted keys.
            rows = rows.filter(rows.column("value").is_valid())
        yield from _shaped(rows, schema, part.segment.partition)


def _mask(
    raw: RawSegment, group: RowGroup, part: SealedPart, wanted: Wanted, own: Mask | None
) -> Mask | None:
    """Return the rows of a row group to read; None is all of them."""
    mask = own
    first, last = max(part.start, wanted.first_offset), min(part.end - 1, wanted.last_offset)
    lowest, highest = raw.says.offsets(group.index)
    if lowest < first or last < highest:
        offsets = raw.columns(["offset"], [group]).column("offset").to_numpy()
        inside: Mask = (offsets >= first) & (offsets <= last)
        mask = inside if mask is None else mask & inside
    if wanted.keys is not None and (mask is None or mask.any()):
        keys = raw.columns(["key"], [group]).column("key")
        found = pc.is_in(keys, value_set=pa.array(list(wanted.keys), pa.binary())).to_numpy()
        mask = found if mask is None else mask & found
    return mask


def _may_have_null_values(group: RowGroup, part: SealedPart) -> bool:
    nulls = group.null_values
    return part.segment.null_values > 0 if nulls is None else nulls > 0


def _may_match(raw: RawSegment, group: RowGroup, part: SealedPart, wanted: Wanted) -> bool:
    first, last = raw.says.offsets(group.index)
    if last < max(part.start, wanted.first_offset) or first > min(part.end - 1, wanted.last_offset):
        return False
    times_us = raw.says.times_us(group.index) if wanted.by_time else None
    return times_us is None or wanted.times(*times_us)


def passed(files: SegmentFiles, segment: Segment, first: int, most_records: int) -> tuple[int, int]:
    """Return the number of records of a segment from an offset on, up to a limit, and the offset after them."""
    counted = 0
    with RawSegment(files, segment) as raw:
        for group in raw.row_groups:
            low, high = raw.says.offsets(group.index)
            if high < first:
                continue
            if first <= low and counted + group.rows <= most_records:
                counted += group.rows
                continue
            offsets = raw.columns(["offset"], [group]).column("offset").to_numpy()
            offsets = offsets[offsets >= first]
            if counted + len(offsets) > most_records:
                left = most_records - counted
                # If none are left, the limit was reached at the end of a row group: no record is in between.
                return most_records, int(offsets[left - 1]) + 1 if left else max(first, int(offsets[0]))
            counted += len(offsets)
    return counted, segment.last_offset + 1


# -------------------------------------------------------------------------------------------------- tail


def _read_tail(task: TailTask, schema: pa.Schema, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    # Imports everything of a log; tasks that read sealed segments don't need it.
    from lastword.spark.opened import opened

    topic = opened(task.where).topic(task.where.topic)
    if topic.id.hex != task.topic_id:
        raise UnavailableError(f"The topic {topic.name!r} has been deleted and recreated; load it again.")
    winners = None if task.winners is None else np.frombuffer(task.winners, np.int64)
    found = 0
    with closing(topic.partition_readers()[task.partition]) as reader:
        for records in _tail_of(reader, task):
            offsets = records.column("offset").to_numpy()
            mask: Mask = (offsets >= wanted.first_offset) & (offsets <= wanted.last_offset)
            if not task.follows_compaction:
                mask &= offsets < task.end
            if winners is not None:
                won = _among(offsets, winners)
                found += int(won.sum())
                mask &= won
            rows = records
            if wanted.keys is not None:
                mask &= pc.is_in(
                    records.column("key"), value_set=pa.array(list(wanted.keys), pa.binary())
                ).to_numpy(zero_copy_only=False)
            if not mask.all():
                rows = rows.filter(pa.array(mask))
            if winners is not None and rows.column("value").null_count:
                rows = rows.filter(rows.column("value").is_valid())
            yield from _shaped(pa.Table.from_batches([rows]), schema, task.partition)
        if task.on_data_loss == "fail":
            check_not_lost(topic.name, task.partition, task.start, reader.extent().log_start)
    if winners is not None and found < len(winners):
        raise UnavailableError(
            f"Partition {task.partition} of {topic.name!r} was compacted while its state was read; read it again."
        )


def _tail_of(reader: PartitionReader, task: TailTask) -> Iterator[pa.RecordBatch]:
    from lastword.wal.reader import OffsetGoneError

    if not task.exact:
        yield from reader.replay(task.start, task.end)
        return
    offset = task.start
    try:
        for records in reader.tail(task.start, task.end):
            yield records
            offset = records.column("offset")[-1].as_py() + 1
        return
    except OffsetGoneError:
        pass
    # The range has been sealed since the read was planned; no record of it may have been compacted away.
    yield from reader.replay(offset, task.end)
    if task.winners is not None:
        # They are counted.
        return
    at = reader.table.snapshot().positions[task.partition]
    if at.first_dirty > task.start or at.next_exact(task.end) > task.end:
        raise UnavailableError(
            f"Partition {task.partition} of {task.where.topic!r} was compacted while its past was read; read it again."
        )


def check_not_lost(topic: str, partition: int, start: int, log_start: int) -> None:
    """Raise OffsetOutOfRangeError if retention has removed records that are still to be read."""
    if start < log_start:
        raise OffsetOutOfRangeError(
            f"Records of {topic!r} partition {partition} are lost to this query: it has read up to offset {start}, but "
            f"the log now starts at {log_start}. Set option 'on.data.loss' to 'skip' to continue from there."
        )


def _among(offsets: npt.NDArray[np.int64], rising: npt.NDArray[np.int64]) -> Mask:
    if not len(rising):
        return np.zeros(len(offsets), np.bool_)
    places = np.minimum(np.searchsorted(rising, offsets), len(rising) - 1)
    found: Mask = rising[places] == offsets
    return found


# ------------------------------------------------------------------------------------------------- shape


def _needed(schema: pa.Schema, *, drops_null_values: bool) -> list[str]:
    """Return the columns of a file to read for a schema."""
    needed = [name for name in schema.names if name != "partition"]
    if "timestamp" in needed and "timestamp_type" not in needed:
        needed.append("timestamp_type")
    if drops_null_values and "value" not in needed:
        needed.append("value")
    return needed or ["offset"]


def _shaped(rows: pa.Table, schema: pa.Schema, partition: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the columns and types that Spark expects."""
    if not rows.num_rows:
        return
    columns = [_column(rows, each, partition) for each in schema]
    if columns:
        yield from pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches()


def _column(rows: pa.Table, wanted: pa.Field, partition: int) -> Any:
    if wanted.name == "partition":
        return pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)
    column = timestamps(rows) if wanted.name == "timestamp" else rows.column(wanted.name)
    return column if column.type.equals(wanted.type) else column.cast(wanted.type)


def _joined(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Join small batches: a filter may leave only a few rows of each."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for each in batches:
        waiting.append(each)
        rows += each.num_rows
        size_bytes += each.nbytes
        if rows >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
            yield _one(waiting, schema)
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield _one(waiting, schema)


def _one(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches, schema).combine_chunks().to_batches()[0]
