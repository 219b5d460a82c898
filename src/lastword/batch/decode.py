"""Batches to Arrow and to records. The CRC is not checked: the code that read the bytes has checked it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise, repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.batch.compression import BadBatchError, Buffer
from lastword.batch.header import only_header
from lastword.batch.walk import MAX_RECORD_DATA_BYTES, Walked, walk
from lastword.errors import InvalidRecordError
from lastword.record import (
    HEADERS_TYPE,
    MAX_TIMESTAMP_MS,
    NO_TIMESTAMP_MS,
    PAYLOAD_SCHEMA,
    Header,
    Record,
    TimestampType,
)

_NOT_APPEND_TIME: Final = -2
_TYPES: Final = PAYLOAD_SCHEMA.types
_HEADER_TYPE: Final = HEADERS_TYPE.value_type


def decode(batch: Buffer) -> pa.RecordBatch:
    """Return the records of one batch, as PAYLOAD_SCHEMA. A batch without records gives no rows."""
    return decode_many((batch,))


def decode_many(batches: Sequence[Buffer]) -> pa.RecordBatch:
    """Return the records of several batches as one: for small ones, much cheaper than joining afterwards."""
    from lastword.batch.compiled import parsing

    walks = [walk(batch, only_header(batch)) for batch in batches]
    rows = sum(walked.header.record_count for walked in walks)
    totals = np.zeros(parsing.TOTALS, np.int64)
    for walked in walks:
        totals += walked.totals
    if totals.max() > MAX_RECORD_DATA_BYTES:
        raise InvalidRecordError(
            f"{totals.max()} bytes are too many for one Arrow column; decode fewer batches at a time"
        )

    offsets, timestamps = np.empty(rows, np.int64), np.empty(rows, np.int64)
    timestamp_types, timestamp_validity = np.empty(rows, np.int32), _bitmap(rows)
    keys = _Binary(rows, totals[parsing.KEY_BYTES])
    values = _Binary(rows, totals[parsing.VALUE_BYTES])
    without_timestamp = row = 0
    for walked in walks:
        header = walked.header
        appended = header.timestamp_type is TimestampType.LOG_APPEND
        outcome = parsing.fill(
            walked.data,
            walked.index,
            header.record_count,
            row,
            header.base_offset,
            header.base_timestamp_ms,
            _append_time_ms(walked) if appended else _NOT_APPEND_TIME,
            offsets,
            timestamps,
            timestamp_validity,
            timestamp_types,
            keys.offsets,
            keys.data,
            keys.validity,
            values.offsets,
            values.data,
            values.validity,
        )
        if outcome < 0:
            raise BadBatchError(f"record {-1 - outcome}: the timestamp can't be stored")
        without_timestamp += outcome
        row += header.record_count

    headers = pa.nulls(rows, HEADERS_TYPE)
    if totals[parsing.HEADERS]:
        headers = _Headers(walks, rows, totals).array()
    validity = pa.py_buffer(timestamp_validity) if without_timestamp else None
    arrays = [
        pa.Array.from_buffers(_TYPES[0], rows, [None, pa.py_buffer(offsets)], 0),
        pa.Array.from_buffers(_TYPES[1], rows, [validity, pa.py_buffer(timestamps)], without_timestamp),
        pa.Array.from_buffers(_TYPES[2], rows, [None, pa.py_buffer(timestamp_types)], 0),
        keys.array(_TYPES[3], totals[parsing.NULL_KEYS]),
        values.array(_TYPES[4], totals[parsing.NULL_VALUES]),
        headers,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=PAYLOAD_SCHEMA)


def decode_records(batch: Buffer, partition: int) -> list[Record]:
    """Return the records of one batch as objects, for readers that go row by row."""
    from lastword.batch.compiled import parsing

    walked = walk(batch, only_header(batch))
    header, index = walked.header, walked.index
    count = header.record_count
    data = walked.data.tobytes()
    timestamps_ms: Iterable[int]
    types: Iterable[TimestampType]
    if header.timestamp_type is TimestampType.LOG_APPEND:
        timestamp_ms = _append_time_ms(walked)
        timestamps_ms = repeat(timestamp_ms, count)
        types = repeat(
            TimestampType.NONE if timestamp_ms == NO_TIMESTAMP_MS else TimestampType.LOG_APPEND, count
        )
    else:
        base_ms = header.base_timestamp_ms
        timestamps_ms = [base_ms + delta for delta in index[:, parsing.TIMESTAMP_DELTA].tolist()]
        if count and not NO_TIMESTAMP_MS <= min(timestamps_ms) <= max(timestamps_ms) <= MAX_TIMESTAMP_MS:
            raise BadBatchError("the timestamp of a record can't be stored")
        none, create = TimestampType.NONE, TimestampType.CREATE
        types = [none if timestamp == NO_TIMESTAMP_MS else create for timestamp in timestamps_ms]
    headers: Iterable[tuple[Header, ...]] = repeat((), count)
    if walked.totals[parsing.HEADERS]:
        headers = _Headers([walked], count, walked.totals).tuples()
    return _records(
        count,
        partition=repeat(partition, count),
        offset=(index[:, parsing.OFFSET_DELTA] + header.base_offset).tolist(),
        timestamp_ms=timestamps_ms,
        timestamp_type=types,
        key=_slices(data, index[:, parsing.KEY_START], index[:, parsing.KEY_SIZE]),
        value=_slices(data, index[:, parsing.VALUE_START], index[:, parsing.VALUE_SIZE]),
        headers=headers,
    )


def _append_time_ms(walked: Walked) -> int:
    append_time_ms = walked.header.max_timestamp_ms
    if not NO_TIMESTAMP_MS <= append_time_ms <= MAX_TIMESTAMP_MS:
        raise BadBatchError(f"the append time {append_time_ms} can't be stored")
    return append_time_ms


def _records(count: int, **columns: Iterable[Any]) -> list[Record]:
    """Create records, filling slots column by column, in C: a frozen dataclass's __init__ takes three times as long."""
    records = list(map(object.__new__, repeat(Record, count)))
    for name, column in columns.items():
        deque(map(getattr(Record, name).__set__, records, column), maxlen=0)
    return records


def _slices(
    data: bytes, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> Sequence[bytes | None]:
    found = list(map(data.__getitem__, map(slice, starts.tolist(), (starts + sizes).tolist())))
    nullable: list[bytes | None] = list(found)
    for row in np.flatnonzero(sizes < 0).tolist():
        nullable[row] = None
    return nullable


def _bitmap(rows: int) -> npt.NDArray[np.uint8]:
    return np.zeros((rows + 7) // 8, np.uint8)


class _Binary:
    """The buffers of a binary column, while they are being filled."""

    def __init__(self, rows: int, size_bytes: int) -> None:
        self.rows = rows
        self.offsets = np.zeros(rows + 1, np.int32)
        self.buffer = pa.allocate_buffer(int(size_bytes))
        self.data = np.frombuffer(self.buffer, np.uint8)
        self.validity = _bitmap(rows)

    def array(self, arrow_type: pa.DataType, nulls: int) -> pa.Array:
        validity = pa.py_buffer(self.validity) if nulls else None
        buffers = [validity, pa.py_buffer(self.offsets), self.buffer]
        return pa.Array.from_buffers(arrow_type, self.rows, buffers, int(nulls))


class _Headers:
    """The headers of some batches, as the buffers of a list column."""

    def __init__(self, walks: Sequence[Walked], rows: int, totals: npt.NDArray[np.int64]) -> None:
        from lastword.batch.compiled import parsing

        self.rows = rows
        self.count = int(totals[parsing.HEADERS])
        self.null_values = int(totals[parsing.NULL_HEADER_VALUES])
        self.null_lists = rows - int(totals[parsing.RECORDS_WITH_HEADERS])
        self.offsets = np.zeros(rows + 1, np.int32)
        self.validity = _bitmap(rows)
        self.names = _Binary(self.count, totals[parsing.HEADER_NAME_BYTES])
        self.values = _Binary(self.count, totals[parsing.HEADER_VALUE_BYTES])
        row = 0
        for walked in walks:
            parsing.fill_headers(
                walked.data,
                walked.index,
                walked.header.record_count,
                row,
                self.offsets,
                self.validity,
                self.names.offsets,
                self.names.data,
                self.values.offsets,
                self.values.data,
                self.values.validity,
            )
            row += walked.header.record_count

    def array(self) -> pa.Array:
        names = self.names.array(_HEADER_TYPE[0].type, 0)
        values = self.values.array(_HEADER_TYPE[1].type, self.null_values)
        pairs = pa.Array.from_buffers(_HEADER_TYPE, self.count, [None], 0, children=[names, values])
        validity = pa.py_buffer(self.validity) if self.null_lists else None
        buffers = [validity, pa.py_buffer(self.offsets)]
        return pa.Array.from_buffers(HEADERS_TYPE, self.rows, buffers, self.null_lists, children=[pairs])

    def tuples(self) -> list[tuple[Header, ...]]:
        names = self.names.array(_HEADER_TYPE[0].type, 0).to_pylist()
        values = self.values.array(_HEADER_TYPE[1].type, self.null_values).to_pylist()
        pairs = tuple(zip(names, values, strict=True))
        ends = self.offsets.tolist()
        return [pairs[start:end] for start, end in pairwise(ends)]
