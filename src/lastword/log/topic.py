"""A topic of an open log: it spreads appends over its partitions, seals them, and deletes records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lastword import batch, metrics
from lastword.batch import Compression
from lastword.clock import Clock
from lastword.config import BrokerConfig, check_not_internal, is_internal
from lastword.errors import (
    ClosedError,
    InvalidError,
    LastwordError,
    NotOwnerError,
    OffsetOutOfRangeError,
    UnavailableError,
)
from lastword.folder.leases import LeaseKeeper
from lastword.log.appending import Batches, append_batches, append_produced
from lastword.log.encoding import encode_records, encode_rows, limits_of, payload_of
from lastword.log.partition import Partition
from lastword.log.readable import ReadableTopic, as_bytes
from lastword.log.routing import Router
from lastword.maintenance import tiering
from lastword.maintenance.lanes import Lane
from lastword.maintenance.retention import delete_records
from lastword.maintenance.tiering import SealReport
from lastword.record import NewRecord
from lastword.segments.model import TopicInfo
from lastword.wal import deleter, staged
from lastword.wal.repair import DamagedRange
from lastword.wal.writer import PartitionWriter

if TYPE_CHECKING:
    from lastword.compaction.service import TopicCompactionService
    from lastword.segments.table import SegmentTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPosition:
    """The position of an appended record."""

    partition: int
    offset: int


class Topic(ReadableTopic):
    """A topic. Get one from `Log.topic` or `Log.create_topic`; appending is safe from several threads."""

    def __init__(
        self,
        info: TopicInfo,
        table: SegmentTable,
        *,
        data_folder: Path,
        config: BrokerConfig,
        clock: Clock,
        leases: LeaseKeeper | None,
        writes: bool,
        maintenance: Callable[..., AbstractContextManager[object]] | None,
        ask_to_roll: Callable[[str, bool], list[tuple[int, str]]],
        kept_elsewhere: Callable[[str], TopicCompactionService | None],
        foreign: NotOwnerError | None = None,
        may_append: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            info,
            table,
            data_folder=data_folder,
            config=config,
            clock=clock,
            leases=leases,
            kept_elsewhere=kept_elsewhere,
            foreign=foreign,
        )
        self._may_append = may_append
        self._writes = writes
        self._maintenance = maintenance
        self._ask_to_roll = ask_to_roll
        self._router = Router(info.name)
        self._partitions_lock = threading.Lock()
        """Held while partitions are added, and while the topic is closed."""
        self._staged_lock = threading.Lock()
        self._add_partitions(info.partitions)

    # ------------------------------------------------------------------------------------------- append

    def append(
        self,
        key: bytes | str | None,
        value: bytes | str | None,
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordPosition:
        """Append one record, and return when it is durable as set by `wal.sync`. A null value is a tombstone."""
        record = NewRecord(
            key=as_bytes(key), value=as_bytes(value), headers=tuple(headers), timestamp_ms=timestamp_ms
        )
        return self.append_many([record], partition=partition)[0]

    def append_many(
        self,
        records: Iterable[NewRecord],
        *,
        partition: int | Sequence[int | None] | None = None,
        compression: Compression = Compression.NONE,
    ) -> list[RecordPosition]:
        """Append records in order, and return the position of each. All are checked before any is written.

        `partition` is one for all records or one for each. Without one, the key decides a record's partition.
        Raise PartlyAppendedError if a disk fails after other partitions have been written.
        """
        check_not_internal(self.name, "appended to")
        return self._append_records(records, partition, compression)

    def append_internal(self, records: Iterable[NewRecord]) -> list[RecordPosition]:
        """Append records to an internal topic, as `append_many` does to others."""
        assert is_internal(self.name), self.name
        return self._append_records(records, None, Compression.NONE)

    def _append_records(
        self,
        records: Iterable[NewRecord],
        partition: int | Sequence[int | None] | None,
        compression: Compression,
    ) -> list[RecordPosition]:
        by_partition: dict[int, list[int]] = {}
        given = list(records)
        for index, (record, own) in enumerate(zip(given, _one_each(partition, len(given)), strict=True)):
            each = self._router.route(record.key, own, self.partitions)
            by_partition.setdefault(each, []).append(index)
        now_ms = self._clock.now_ms()
        batches = {
            each: list(
                encode_records(
                    [given[index] for index in indexes],
                    self._settings,
                    now_ms=now_ms,
                    compression=compression,
                )
            )
            for each, indexes in by_partition.items()
        }
        positions: list[RecordPosition | None] = [None] * len(given)
        for each, offsets in self._append_batches(batches, now_ms).items():
            for index, offset in zip(by_partition[each], offsets, strict=True):
                positions[index] = RecordPosition(partition=each, offset=offset)
        return [position for position in positions if position is not None]

    def check_many(
        self,
        records: Iterable[NewRecord],
        *,
        partition: int | Sequence[int | None] | None = None,
        compression: Compression = Compression.NONE,
    ) -> None:
        """Raise the error that `append_many` would raise because of the records. Nothing is appended."""
        given = list(records)
        for each in {each for each in _one_each(partition, len(given)) if each is not None}:
            self._check_partition(each)
        now_ms = self._clock.now_ms()
        limits = self.limits(now_ms)
        for data in encode_records(given, self._settings, now_ms=now_ms, compression=compression):
            batch.validate(data, limits)

    def append_arrow(
        self,
        records: pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        compression: Compression = Compression.NONE,
    ) -> dict[int, range]:
        """Append the rows of an Arrow table. Return the offsets that they got in each partition.

        Columns: `key` and `value` (binary or string, nullable), and optionally `timestamp`, `headers` (as in
        record.RECORD_SCHEMA) and `partition`. The key decides the partition of a row that names none.
        """
        check_not_internal(self.name, "appended to")
        batches: dict[int, list[bytes]] = {}
        for each, data in self.encode_arrow(records, partition=partition, compression=compression):
            batches.setdefault(each, []).append(data)
        return self._append_batches(batches, self._clock.now_ms())

    def encode_arrow(
        self,
        records: pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        compression: Compression = Compression.NONE,
    ) -> list[tuple[int, bytes]]:
        """Encode the rows of an Arrow table as `append_arrow` appends them. Return each batch with its partition."""
        table = records if isinstance(records, pa.Table) else pa.Table.from_batches([records])
        payload = payload_of(table, self._clock.now_ms())
        targets = self._router.route_rows(table, payload.column("key"), partition, self.partitions)
        batches: list[tuple[int, bytes]] = []
        used = np.unique(targets).tolist()
        for each in used:
            own = payload.filter(pa.array(targets == each)) if len(used) > 1 else payload
            encoded = encode_rows(own, self._settings, compression=compression)
            batches += [(each, data) for data in encoded]
        return batches

    def append_batch(self, partition: int, data: bytes | memoryview) -> int:
        """Append one record batch as a Kafka producer made it. Return the offset of its first record.

        A batch of an idempotent producer that the log already has is not appended again. Raise
        OutOfOrderSequenceError if batches before it are missing, FencedProducerError if a newer producer has its id.
        """
        check_not_internal(self.name, "appended to")
        return append_produced(
            self.name,
            data,
            self.writer(partition),
            limits=self.limits(self._clock.now_ms()),
            check_owned=self.check_owned,
        )

    def append_staged(self, sink: str, number: int) -> int:
        """Append a staged unit, exactly once. Return how many records this call has appended. See staged.py."""
        check_not_internal(self.name, "appended to")
        self._check_writer()
        now_ms = self._clock.now_ms()
        limits = self.limits(now_ms)
        with self._staged_lock:
            appended = staged.append(
                staged.Sink(self._data_folder, self.id, sink),
                number,
                lambda partition: self.partition(partition).writer,
                limits,
                now_ms if limits.log_append_time else None,
                self.check_owned,
            )
        metrics.RECORDS_APPENDED.labels(self.name).inc(appended)
        return appended

    def _append_batches(self, batches: Batches, now_ms: int) -> dict[int, range]:
        self._check_writer()
        return append_batches(
            self.name,
            batches,
            lambda partition: self.partition(partition).writer,
            limits=self.limits(now_ms),
            check_owned=self.check_owned,
        )

    def limits(self, now_ms: int, *, max_timestamp_corrected: bool = False) -> batch.Limits:
        """Return the checks that a batch must pass to be appended now."""
        return limits_of(self._settings, now_ms, max_timestamp_corrected=max_timestamp_corrected)

    # --------------------------------------------------------------------------------------- maintenance

    def seal(self, *, progress: tiering.OnBytes | None = None) -> SealReport:
        """Roll the WAL and commit all its records as sealed segments."""
        return self._seal(progress, due_only=False)

    def seal_rolled(
        self, *, progress: tiering.OnBytes | None = None, stop: Callable[[], bool] = lambda: False
    ) -> SealReport:
        """Roll the WAL files that are due, and commit the rolled ones. `stop` is checked between two files."""
        return self._seal(progress, due_only=True, stop=stop)

    def delete_records(self, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records of partitions before an offset (-1: all). Return the new log start of each partition."""
        self._check_writer()
        check_not_internal(self.name, "deleted from")
        wanted: dict[int, int] = {}
        for partition, offset in before.items():
            extent = self.partition(partition).extent()
            wanted[partition] = extent.log_end if offset == -1 else offset
            if not 0 <= wanted[partition] <= extent.log_end:
                raise OffsetOutOfRangeError(
                    f"Can't delete the records of {self.name!r} partition {partition} before offset {offset}: "
                    f"its log end is {extent.log_end}. Use 0 to {extent.log_end}, or -1 for all."
                )
        snapshot = delete_records(self._table, wanted)
        return {partition: snapshot.positions[partition].log_start for partition in before}

    def reopen_partition(self, partition: int) -> None:
        """Make a partition writable again after a failed write or sync. No acknowledged record is lost."""
        self._check_writer()
        self.partition(partition).reopen()

    def leave_segments_behind(self) -> list[tuple[int, DamagedRange]]:
        """Move the log start of an internal topic past unreadable segments. Return the ranges that were skipped.

        Everything else before their end is removed too: the last record of each key must have been appended again.
        """
        self._check_writer()
        assert is_internal(self.name)
        found = self.sealed_damage()
        ends: dict[int, int] = {}
        for partition, damaged in found:
            ends[partition] = max(ends.get(partition, 0), damaged.end_offset)
        if ends:
            delete_records(self._table, ends)
        return found

    def skip_wal_damage(self) -> list[tuple[int, DamagedRange]]:
        """Skip the damaged ranges, so that sealing and reading continue after them. Return the skipped ranges."""
        self._check_writer()
        with self._as_maintenance(Lane.TIDY, Lane.SEAL):
            # Only a rolled file can be rewritten.
            for partition in {each for each, _ in self.wal_damage()}:
                self.partition(partition).roll(due_only=False)
            found = self.wal_damage()
            for partition in sorted({each for each, _ in found}):
                self._check_writer()
                self.partition(partition).skip([damaged for each, damaged in found if each == partition])
            return found

    def removable_wals(self) -> list[deleter.LocalWal]:
        """Return `local_wals` for removing files. Raise NotOwnerError if the sealed records may be another folder's."""
        snapshot = self._table.snapshot()
        self._table.check_owned(snapshot)
        return self._local_wals(snapshot)

    def _seal(
        self,
        progress: tiering.OnBytes | None,
        *,
        due_only: bool,
        stop: Callable[[], bool] = lambda: False,
    ) -> SealReport:
        with self._as_maintenance(Lane.SEAL):
            assert self._leases is not None
            failed = self.roll(due_only=due_only) if self._writes else self._ask_to_roll(self.name, due_only)
            folders = [each.folder for each in self.all_partitions()]
            report = tiering.seal(
                self._table,
                folders,
                leases=self._leases,
                codec=self._settings.segment_compression_type,
                progress=progress,
                stop=stop,
            )
            return tiering.with_problems(report, failed)

    # -------------------------------------------------------------------------------------- for the log

    def roll(self, *, due_only: bool) -> list[tuple[int, str]]:
        """Roll the WAL of each partition, or only those due. Return the partitions where that failed, and why."""
        self._check_writer()
        failed: list[tuple[int, str]] = []
        for partition in self._partitions:
            try:
                partition.roll(due_only=due_only)
            except UnavailableError as error:
                failed.append((partition.number, str(error)))
        return failed

    def changed(self, info: TopicInfo) -> None:
        """Apply the new state of the topic after the log has altered it."""
        self._settings = self._config.resolve(info.name, info.config)
        for each in self._partitions:
            each.apply(self._settings)
        # The new partitions can be appended to before others learn of them.
        self._add_partitions(info.partitions)
        if not self._closed:
            self._info = info

    def writer(self, partition: int) -> PartitionWriter:
        """Return the writer of a partition, for a caller that checks batches itself."""
        self._check_writer()
        return self.partition(partition).writer

    def close(self) -> None:
        """Close the WAL cleanly. The first error is raised after every partition has been closed."""
        with self._partitions_lock:
            # No partition is added from here on.
            self._closed = True
        errors: list[LastwordError] = []
        for each in self._partitions:
            try:
                each.close()
            except LastwordError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _add_partitions(self, count: int) -> None:
        with self._partitions_lock:
            if self._closed:
                # It was deleted meanwhile: a file that is created now would be left behind.
                return
            added: list[Partition] = []
            try:
                for number in range(len(self._partitions), count):
                    partition = Partition(number, self._shared, self._settings)
                    if self._writes:
                        partition.open()
                    added.append(partition)
            finally:
                self._partitions = (*self._partitions, *added)

    def _check_writer(self) -> None:
        self.check_owned()
        if self._closed:
            raise ClosedError(f"Topic {self.name!r} has been closed.")
        if not self._writes:
            raise InvalidError(
                "The log was opened for reading or maintenance only; open it as its writer to change it."
            )

    def check_owned(self) -> None:
        """Raise NotOwnerError if another data folder owns the topic or may have taken it: nothing is acknowledged."""
        if self.foreign is not None:
            raise self.foreign
        if self._may_append is not None:
            self._may_append()

    def _as_maintenance(self, *lanes: Lane) -> AbstractContextManager[object]:
        if self._closed:
            # It may have been closed because another folder took it.
            self.check_owned()
            raise ClosedError(f"Topic {self.name!r} has been closed.")
        if self.foreign is not None:
            raise self.foreign
        if self._maintenance is None:
            raise InvalidError("The log was opened for reading only; open it without read_only to change it.")
        return self._maintenance(*lanes)


def _one_each(partition: int | Sequence[int | None] | None, count: int) -> Sequence[int | None]:
    return [partition] * count if partition is None or isinstance(partition, int) else partition
