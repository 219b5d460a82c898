"""Appends to a topic, which spreads records over its partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lastword import batch, metrics
from lastword.batch import Compression
from lastword.config import check_not_internal, is_internal
from lastword.errors import ClosedError, InvalidError, NotOwnerError
from lastword.log.appending import Batches, append_batches, append_produced
from lastword.log.context import LogContext
from lastword.log.encoding import encode_records, encode_rows, limits_of, payload_of
from lastword.log.readable import ReadableTopic, as_bytes
from lastword.log.routing import Router
from lastword.record import NewRecord
from lastword.segments.model import TopicInfo
from lastword.wal import staged
from lastword.wal.writer import PartitionWriter

if TYPE_CHECKING:
    from lastword.compaction.service import TopicCompactionService
    from lastword.segments.table import SegmentTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPosition:
    """The position of an appended record."""

    partition: int
    offset: int


class AppendableTopic(ReadableTopic):
    """A topic that can be appended to and read. Appends need the writer role, and are safe from several threads."""

    def __init__(
        self,
        info: TopicInfo,
        table: SegmentTable,
        context: LogContext,
        *,
        writes: bool,
        kept_elsewhere: Callable[[str], TopicCompactionService | None],
        foreign: NotOwnerError | None,
        may_append: Callable[[], None] | None,
    ) -> None:
        super().__init__(info, table, context, kept_elsewhere=kept_elsewhere, foreign=foreign)
        self._may_append = may_append
        self._writes = writes
        self._router = Router(info.name)
        self._staged_lock = threading.Lock()

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

        `partition` is one number for all records or one per record. Without it, the key determines the partition.
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
        record.RECORD_SCHEMA) and `partition`. The key determines the partition of a row that names none.
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

    def writer(self, partition: int) -> PartitionWriter:
        """Return the writer of a partition, for a caller that checks batches itself."""
        self._check_writer()
        return self.partition(partition).writer

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


def _one_each(partition: int | Sequence[int | None] | None, count: int) -> Sequence[int | None]:
    return [partition] * count if partition is None or isinstance(partition, int) else partition
