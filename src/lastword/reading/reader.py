"""Reads a partition: the sealed segments of one snapshot, then the WAL's tail, as one seamless sequence.

Steps of a replay:
1. look at the table, and take a lease on its snapshot, so that expiry and collection leave its files alone;
2. read the snapshot's segments in offset order, from the wanted offset up to the sealed end;
3. read the WAL from there on. If it no longer has the next offset, that offset has been sealed meanwhile: start
   again at 1, from that offset.

A file that is gone anyway (an expired lease) also leads back to 1. So the sequence has no gaps and no duplicates,
whatever sealing, retention, the deleter, expiry and collection do meanwhile. If retention overtakes the reader, it
continues at the log start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lastword.errors import CorruptError, OffsetOutOfRangeError, StorageError
from lastword.folder.leases import LeaseKeeper
from lastword.record import NO_TIMESTAMP_MS
from lastword.segments.model import Snapshot, resume_if_moved, retry_if_moved
from lastword.segments.rows import (
    clip,
    first_not_older,
    last_offset,
    latest_timestamp_ms,
    with_partition,
)
from lastword.wal.files import PlacedBatch
from lastword.wal.reader import OffsetGoneError, WalReader, decode
from lastword.wal.repair import DamagedRange

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable

logger = logging.getLogger(__name__)

TAIL_BYTES = 4 << 20
"""The approximate size of the WAL part that is decoded at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The offsets of a partition that can be read: from `log_start` up to but excluding `log_end`."""

    log_start: int
    log_end: int


class PartitionReader:
    """Reads one partition. Each `replay` is independent. Not safe for use by several threads."""

    def __init__(
        self, table: SegmentTable, partition: int, wal_folder: Path, leases: LeaseKeeper | None
    ) -> None:
        self.table = table
        self.partition = partition
        self._leases = leases
        self._wal_folder = wal_folder
        self._wal = WalReader(wal_folder)

    def extent(self, snapshot: Snapshot | None = None) -> Extent:
        """Return the offsets that can be read now, from a fresh look at table and WAL."""
        at = (snapshot or self.table.snapshot()).positions[self.partition]
        return Extent(log_start=at.log_start, log_end=max(at.sealed_end, at.log_start, self._wal.end() or 0))

    def wal_start(self) -> int:
        """Return the first offset that the WAL still has; the log end if it has none."""
        extent = self._wal.extent()
        return self.extent().log_end if extent is None else extent.start

    def check(self, offset: int) -> None:
        """Raise OffsetOutOfRangeError if a read can't begin at an offset."""
        extent = self.extent()
        if not extent.log_start <= offset <= extent.log_end:
            raise OffsetOutOfRangeError(
                f"Offset {offset} of partition {self.partition} is out of range: "
                f"it has {extent.log_start} (log start) to {extent.log_end} (log end)."
            )

    def replay(self, offset: int, end_offset: int) -> Generator[pa.RecordBatch, None, int]:
        """Read records from `offset` up to but excluding `end_offset`, in record.RECORD_SCHEMA.

        If compaction or sealing has removed records before the end, continue to the end of what it has compacted:
        the record that superseded one before the end may come after it. Return the offset up to which records were read.
        """

        def rest() -> Generator[pa.RecordBatch, None, None]:
            nonlocal offset, end_offset
            if offset >= end_offset:
                return
            snapshot = self.table.snapshot()
            at = snapshot.positions[self.partition]
            end_offset = at.next_exact(end_offset)
            if offset < at.log_start:
                logger.info("partition %d: continuing at the log start %d", self.partition, at.log_start)
                offset = at.log_start
            with self.pin(snapshot):
                for records in self._sealed(snapshot, offset, end_offset):
                    yield records
                    offset = last_offset(records) + 1
                offset = max(offset, min(at.sealed_end, end_offset))
            for records in self.tail(offset, end_offset):
                yield records
                offset = last_offset(records) + 1

        yield from resume_if_moved(rest, f"Partition {self.partition}")
        return offset

    def offset_for_time(self, timestamp_ms: int) -> int:
        """Return the first offset whose record is not older than a time; the log end if there is none."""
        found = self.find_time(timestamp_ms)
        return self.extent().log_end if found is None else found[0]

    def find_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return the offset and the time of the first record that is not older than a time, or None."""
        return self._searched(lambda snapshot: self._find_time(snapshot, timestamp_ms))

    def find_latest(self) -> tuple[int, int] | None:
        """Return the offset and the time of the first record with the latest time, or None."""
        return self._searched(self._find_latest)

    def _searched(self, search: Callable[[Snapshot], tuple[int, int] | None]) -> tuple[int, int] | None:
        def attempt() -> tuple[int, int] | None:
            snapshot = self.table.snapshot()
            with self.pin(snapshot):
                return search(snapshot)

        return retry_if_moved(attempt, f"Partition {self.partition}")

    def _find_time(self, snapshot: Snapshot, timestamp_ms: int) -> tuple[int, int] | None:
        extent = self.extent(snapshot)
        for segment in self.table.plan(snapshot, self.partition, extent.log_start):
            if segment.max_timestamp_ms >= timestamp_ms:
                for records in self.table.read(segment, ["offset", "timestamp"], extent.log_start):
                    if (found := first_not_older(records, timestamp_ms)) is not None:
                        return found
        offset = max(snapshot.positions[self.partition].sealed_end, extent.log_start)
        while placed := self._batches(offset):
            # A batch's header tells whether it is worth decoding.
            for each in placed:
                if each.header.max_timestamp_ms >= timestamp_ms:
                    for records in decode([each], from_offset=offset):
                        if (found := first_not_older(records, timestamp_ms)) is not None:
                            return found
            offset = placed[-1].header.next_offset
        return None

    def _find_latest(self, snapshot: Snapshot) -> tuple[int, int] | None:
        log_start = self.extent(snapshot).log_start
        latest_ms, latest = NO_TIMESTAMP_MS, None
        for first_offset, bound_ms, read in self._latest_bounds(snapshot, log_start):
            if bound_ms <= latest_ms:
                continue
            if first_offset < log_start:
                # The record that set its bound may have been deleted.
                bound_ms = max(map(latest_timestamp_ms, read()), default=NO_TIMESTAMP_MS)
                if bound_ms <= latest_ms:
                    continue
            latest_ms, latest = bound_ms, read
        for records in latest() if latest is not None else ():
            if (found := first_not_older(records, latest_ms)) is not None:
                return found
        return None

    def _latest_bounds(
        self, snapshot: Snapshot, log_start: int
    ) -> Iterator[tuple[int, int, Callable[[], Iterable[pa.RecordBatch]]]]:
        """Yield every segment, then every batch of the tail: its first offset, its timestamp bound, its records."""
        for segment in self.table.plan(snapshot, self.partition, log_start):
            yield (
                segment.first_offset,
                segment.max_timestamp_ms,
                partial(self.table.read, segment, ["offset", "timestamp"], log_start),
            )
        offset = max(snapshot.positions[self.partition].sealed_end, log_start)
        while placed := self._batches(offset):
            for each in placed:
                header = each.header
                yield header.base_offset, header.max_timestamp_ms, partial(decode, [each], from_offset=offset)
            offset = placed[-1].header.next_offset

    def close(self) -> None:
        self._wal.close()

    def pin(self, snapshot: Snapshot) -> AbstractContextManager[object]:
        """Return a context that keeps expiry and collection away from a snapshot's files."""
        if self._leases is None:
            return nullcontext()
        try:
            return self._leases.hold(topic_id=snapshot.topic.id.hex, job="replay", snapshot_id=snapshot.id)
        except StorageError as error:
            # A full disk, or a read-only folder. If a file goes away, the reader looks at the table again.
            logger.warning("reading without a lease: %s", error)
            return nullcontext()

    def _sealed(self, snapshot: Snapshot, offset: int, end_offset: int) -> Iterator[pa.RecordBatch]:
        for segment in self.table.plan(snapshot, self.partition, offset):
            if segment.first_offset >= end_offset:
                return
            for records in self.table.read(segment, None, offset):
                clipped = clip(records, end_offset)
                if clipped.num_rows:
                    yield with_partition(clipped, self.partition)
                if clipped.num_rows < records.num_rows:
                    return

    def step_over(self, damaged: DamagedRange) -> None:
        """Let later reads continue after a damaged range: nothing else tells where the records after it begin."""
        self._wal.step_over(damaged.seq, damaged.end_offset, damaged.end_position)

    def _batches(self, offset: int) -> list[PlacedBatch]:
        try:
            return self._wal.read(offset, max_bytes=TAIL_BYTES)
        except OffsetGoneError:
            raise self.not_in_wal(offset) from None

    def not_in_wal(self, offset: int) -> OffsetGoneError | CorruptError:
        """Return the error for an offset that the WAL does not have: its record was sealed, deleted, or lost."""
        at = self.table.snapshot().positions[self.partition]
        if offset < max(at.sealed_end, at.log_start):
            return OffsetGoneError()
        return CorruptError(
            f"Offset {offset} of partition {self.partition} is neither sealed nor in a WAL file. "
            f"`lastword wal repair` shows what can be kept.",
            path=str(self._wal_folder),
            offset=offset,
        )

    def tail(self, offset: int, end_offset: int) -> Iterator[pa.RecordBatch]:
        """Read records from the WAL alone. Raise OffsetGoneError if it does not have `offset` any more."""
        while offset < end_offset:
            placed = self._batches(offset)
            if not placed:
                return
            for records in decode(placed, from_offset=offset):
                clipped = clip(records, end_offset)
                if clipped.num_rows:
                    yield with_partition(clipped, self.partition)
            offset = placed[-1].header.next_offset

    def count_tail(self, offset: int, end_offset: int) -> int:
        """Count the records of a span in the WAL. Raise OffsetGoneError if it does not have `offset` any more."""
        return self._wal.count(offset, end_offset)
