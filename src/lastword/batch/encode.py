"""Records and Arrow to batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.batch.columns import binary_column, header_columns
from lastword.batch.compression import BadBatchError, Compression, compress
from lastword.batch.header import HEADER_BYTES, LOG_APPEND_TIME_BIT, write_header
from lastword.errors import InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from lastword.record import (
    HEADERS_TYPE,
    MAX_TIMESTAMP_MS,
    NO_TIMESTAMP_MS,
    PAYLOAD_SCHEMA,
    NewRecord,
    TimestampType,
)

DEFAULT_BATCH_BYTES: Final = 1024 * 1024
_INT32_MAX: Final = 2**31 - 1
_NO_PRODUCER: Final = -1


def encode(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    now_ms: int,
    compression: Compression = Compression.NONE,
    log_append_time: bool = False,
    leader_epoch: int = 0,
    producer_id: int = _NO_PRODUCER,
    producer_epoch: int = _NO_PRODUCER,
    base_sequence: int = _NO_PRODUCER,
) -> bytes:
    """Encode records as one batch, at offsets without gaps. A record without a timestamp gets `now_ms`."""
    if not records:
        raise BadBatchError("a batch needs at least one record")
    if log_append_time:
        timestamps = np.full(len(records), now_ms, np.int64)
    else:
        timestamps = _timestamps_ms(records, now_ms)
    kind = TimestampType.LOG_APPEND if log_append_time else TimestampType.CREATE
    columns = _Columns(
        offsets=np.arange(base_offset, base_offset + len(records), dtype=np.int64),
        timestamps=timestamps,
        timestamp_types=np.full(len(records), kind, np.int32),
        keys=_binary([record.key for record in records], "key"),
        values=_binary([record.value for record in records], "value"),
        headers=_headers(records),
    )
    end, size, largest = columns.measure(0, _INT32_MAX)
    if end < len(records):
        raise RecordTooLargeError(f"record {end} does not fit: a batch has at most {_INT32_MAX} bytes")
    return columns.write(
        0,
        end,
        size,
        largest,
        compression=compression,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def encode_arrow(
    records: pa.RecordBatch,
    *,
    compression: Compression = Compression.NONE,
    leader_epoch: int = 0,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
) -> list[bytes]:
    """Encode records at their own offsets, as batches of about `batch_bytes` each (before compression).

    Records with LogAppendTime share a batch only if they share the timestamp: a batch has one for all of them.
    """
    columns = _columns_of(records)
    rows = len(columns.offsets)
    batches = []
    first = 0
    while first < rows:
        end, size, largest = columns.measure(first, batch_bytes - HEADER_BYTES)
        if end == first:
            raise RecordTooLargeError(f"row {first} does not fit into a batch of {_INT32_MAX} bytes")
        batches.append(
            columns.write(first, end, size, largest, compression=compression, leader_epoch=leader_epoch)
        )
        first = end
    return batches


def empty_batches(first_offset: int, end_offset: int, epoch_of: Callable[[int], int]) -> list[bytes]:
    """Return batches without records that span a gap, however long. `epoch_of` gives the leader epoch of an offset."""
    batches = []
    while first_offset < end_offset:
        last_offset = min(end_offset - 1, first_offset + _INT32_MAX)
        batches.append(empty_batch(first_offset, last_offset, epoch_of(last_offset)))
        first_offset = last_offset + 1
    return batches


def empty_batch(base_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """Return a batch without records that spans offsets whose records are gone."""
    if not 0 <= last_offset - base_offset <= _INT32_MAX:
        raise InvalidRecordError(
            f"a batch can't span offsets {base_offset} to {last_offset}: 1 to {_INT32_MAX + 1} of them are allowed"
        )
    batch = bytearray(HEADER_BYTES)
    write_header(
        batch,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=0,
        last_offset_delta=last_offset - base_offset,
        base_timestamp_ms=NO_TIMESTAMP_MS,
        max_timestamp_ms=NO_TIMESTAMP_MS,
        producer_id=_NO_PRODUCER,
        producer_epoch=_NO_PRODUCER,
        base_sequence=_NO_PRODUCER,
        record_count=0,
    )
    return bytes(batch)


class _Columns:
    """Rows in the form of the compiled loops."""

    def __init__(
        self,
        *,
        offsets: npt.NDArray[np.int64],
        timestamps: npt.NDArray[np.int64],
        timestamp_types: npt.NDArray[np.int32],
        keys: pa.Array,
        values: pa.Array,
        headers: pa.Array | None,
    ) -> None:
        for array in (offsets, timestamps, timestamp_types):
            array.flags.writeable = False
        self.offsets = offsets
        self.timestamps = timestamps
        self.timestamp_types = timestamp_types
        self.fields = (binary_column(keys), binary_column(values), *header_columns(headers, len(offsets)))
        self.sizes = np.empty(len(offsets), np.int32)

    def measure(self, first: int, limit_bytes: int) -> tuple[int, int, int]:
        """Return the end of the batch that begins at row `first`, its records' bytes, its largest timestamp."""
        from lastword.batch.compiled import building

        return building.measure(
            self.offsets,
            self.timestamps,
            self.timestamp_types,
            *self.fields,
            first,
            limit_bytes,
            self.sizes,
        )

    def write(
        self,
        first: int,
        end: int,
        size: int,
        largest: int,
        *,
        compression: Compression,
        leader_epoch: int,
        producer_id: int = _NO_PRODUCER,
        producer_epoch: int = _NO_PRODUCER,
        base_sequence: int = _NO_PRODUCER,
    ) -> bytes:
        """Return the batch of rows `first` to `end`, as measured by `measure`."""
        from lastword.batch.compiled import building

        # From Arrow's pool, which keeps its pages: fresh pages would cost more than the write itself.
        room = np.frombuffer(pa.allocate_buffer(HEADER_BYTES + size), np.uint8)
        building.write(
            self.offsets, self.timestamps, *self.fields, first, end, self.sizes, room, HEADER_BYTES
        )
        batch: bytearray | memoryview = room.data
        if compression is not Compression.NONE:
            batch = bytearray(HEADER_BYTES) + compress(batch[HEADER_BYTES:], compression)
        base_offset = int(self.offsets[first])
        appended = self.timestamp_types[first] == TimestampType.LOG_APPEND
        write_header(
            batch,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            attributes=compression | (LOG_APPEND_TIME_BIT if appended else 0),
            last_offset_delta=int(self.offsets[end - 1]) - base_offset,
            base_timestamp_ms=int(self.timestamps[first]),
            max_timestamp_ms=largest,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=end - first,
        )
        return bytes(batch)


def _columns_of(records: pa.RecordBatch) -> _Columns:
    arrays: dict[str, pa.Array] = {}
    for field in PAYLOAD_SCHEMA:
        array = records.column(field.name)
        if array.type != field.type:
            raise InvalidRecordError(f"column {field.name} is {array.type}; it must be {field.type}")
        if array.null_count and not field.nullable:
            raise InvalidRecordError(f"column {field.name} has nulls")
        arrays[field.name] = array
    offsets = _numbers(arrays["offset"], np.int64)
    if np.any(offsets[1:] <= offsets[:-1]):
        raise InvalidRecordError("the rows are not in the order of their offsets")
    timestamps = _numbers(arrays["timestamp"], np.int64) // 1000
    if arrays["timestamp"].null_count:
        timestamps[arrays["timestamp"].is_null().to_numpy(zero_copy_only=False)] = NO_TIMESTAMP_MS
    return _Columns(
        offsets=offsets,
        timestamps=timestamps,
        timestamp_types=_numbers(arrays["timestamp_type"], np.int32),
        keys=arrays["key"],
        values=arrays["value"],
        headers=arrays["headers"] if arrays["headers"].null_count < len(records) else None,
    )


def _numbers(array: pa.Array, dtype: type[Any]) -> npt.NDArray[Any]:
    """Return an Arrow column of numbers or timestamps as a numpy array, including nulls, without a copy."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(0, dtype)
    return np.frombuffer(buffer, dtype)[array.offset : array.offset + len(array)]


def _timestamps_ms(records: Sequence[NewRecord], now_ms: int) -> npt.NDArray[np.int64]:
    timestamps = [now_ms if record.timestamp_ms is None else record.timestamp_ms for record in records]
    for outlier in (min(timestamps), max(timestamps)):
        if not NO_TIMESTAMP_MS <= outlier <= MAX_TIMESTAMP_MS:
            raise InvalidTimestampError(
                f"record {timestamps.index(outlier)}: timestamp {outlier} can't be stored; {NO_TIMESTAMP_MS}"
                f" (none) to {MAX_TIMESTAMP_MS} is allowed"
            )
    return np.array(timestamps, np.int64)


def _binary(items: list[bytes | None], what: str) -> pa.Array:
    # Arrow would accept text and encode it, which the types rule out and no caller intends.
    if others := set(map(type, items)) - {bytes, type(None)}:
        raise InvalidRecordError(f"a {what} is {others.pop().__name__}; bytes or None are allowed")
    array = pa.array(items, pa.binary())
    if isinstance(array, pa.ChunkedArray):
        raise RecordTooLargeError(f"the {what}s together have more than {_INT32_MAX} bytes")
    return array


def _headers(records: Sequence[NewRecord]) -> pa.Array | None:
    lists = [record.headers for record in records]
    if not any(lists):
        return None
    flat = list(chain.from_iterable(lists))
    try:
        names = pa.array([name for name, _ in flat], pa.string())
    except (UnicodeEncodeError, pa.ArrowException) as error:
        raise InvalidRecordError(f"a header's name is not text: {error}") from error
    if names.null_count:
        raise InvalidRecordError("a header's name is None; it must be text")
    values = _binary([value for _, value in flat], "header")
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    ends = np.zeros(len(lists) + 1, np.int32)
    np.cumsum([len(headers) for headers in lists], out=ends[1:])
    return pa.ListArray.from_arrays(pa.array(ends), pairs, type=HEADERS_TYPE)
