"""Encodes records from a producer in this process as Kafka record batches, and sets the checks for a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from lastword import batch
from lastword.batch import Compression, Limits
from lastword.compaction.strategy import strategy_of
from lastword.config import TopicSettings
from lastword.errors import InvalidRecordError
from lastword.record import HEADERS_TYPE, PAYLOAD_SCHEMA, NewRecord, TimestampType

MIN_DECOMPRESSED_BYTES = 128 << 20
MAX_EXPANSION = 8
"""A batch may decompress to this many times max.message.bytes, and at least to MIN_DECOMPRESSED_BYTES."""

BATCH_BYTES = 512 << 10
"""Records appended together are put into batches of at most this size, or of max.message.bytes if that is less."""

RECORD_OVERHEAD_BYTES = 36
"""The most that a record takes in a batch besides its key, value and headers."""


def limits_of(settings: TopicSettings, now_ms: int, *, max_timestamp_corrected: bool = False) -> Limits:
    """Return the checks that a batch must pass to be appended to a topic now."""
    return Limits(
        max_message_bytes=settings.max_message_bytes,
        now_ms=now_ms,
        timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
        timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
        null_key_allowed=not (settings.compacts and settings.null_key == "reject"),
        version_header=strategy_of(settings).required_header if settings.compacts else None,
        log_append_time=settings.message_timestamp_type == "LogAppendTime",
        max_decompressed_bytes=max(MIN_DECOMPRESSED_BYTES, settings.max_message_bytes * MAX_EXPANSION),
        max_timestamp_corrected=max_timestamp_corrected,
    )


def encode_records(
    records: Sequence[NewRecord], settings: TopicSettings, *, now_ms: int, compression: Compression
) -> Iterator[bytes]:
    """Encode records as record batches, in order."""
    for chunk in _chunks(records, _batch_bytes(settings)):
        yield batch.encode(chunk, now_ms=now_ms, compression=compression)


def encode_rows(payload: pa.Table, settings: TopicSettings, *, compression: Compression) -> Iterator[bytes]:
    """Encode the rows of a table of record.PAYLOAD_SCHEMA as record batches, with new offsets."""
    offset = payload.schema.get_field_index("offset")
    numbered = payload.set_column(offset, PAYLOAD_SCHEMA.field("offset"), pa.array(np.arange(len(payload))))
    for records in numbered.to_batches(max_chunksize=65536):
        yield from batch.encode_arrow(records, compression=compression, batch_bytes=_batch_bytes(settings))


def _batch_bytes(settings: TopicSettings) -> int:
    return min(BATCH_BYTES, settings.max_message_bytes)


def _chunks(records: Sequence[NewRecord], batch_bytes: int) -> Iterator[Sequence[NewRecord]]:
    """Split records into runs that make batches of at most `batch_bytes`. A larger record gets its own batch."""
    first, size_bytes = 0, batch.HEADER_BYTES
    for index, record in enumerate(records):
        own_bytes = _most_bytes(record)
        if index > first and size_bytes + own_bytes > batch_bytes:
            yield records[first:index]
            first, size_bytes = index, batch.HEADER_BYTES
        size_bytes += own_bytes
    if first < len(records):
        yield records[first:]


def _most_bytes(record: NewRecord) -> int:
    try:
        size_bytes = len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
        return size_bytes + sum(len(name.encode()) + len(value or b"") + 10 for name, value in record.headers)
    except (AttributeError, TypeError, ValueError) as error:
        # A value that the types rule out, or text that is not valid Unicode.
        raise InvalidRecordError(f"a record can't be appended: {error}") from error


def payload_of(table: pa.Table, now_ms: int) -> pa.Table:
    """Convert the rows of a user's table to record.PAYLOAD_SCHEMA, with offsets from 0 on."""
    missing = {"key", "value"} - set(table.column_names)
    if missing:
        raise InvalidRecordError(
            f"The Arrow table has no column {sorted(missing)[0]!r}; it needs key and value."
        )
    rows = len(table)
    now = pa.scalar(now_ms * 1000, pa.timestamp("us", tz="UTC"))
    try:
        if "timestamp" in table.column_names:
            timestamps = table.column("timestamp").cast(pa.timestamp("us", tz="UTC")).fill_null(now)
        else:
            timestamps = pa.repeat(now, rows)
        headers = (
            table.column("headers").cast(HEADERS_TYPE)
            if "headers" in table.column_names
            else pa.nulls(rows, HEADERS_TYPE)
        )
        return pa.table(
            [
                pa.array(np.arange(rows)),
                timestamps,
                pa.repeat(pa.scalar(int(TimestampType.CREATE), pa.int32()), rows),
                table.column("key").cast(pa.binary()),
                table.column("value").cast(pa.binary()),
                headers,
            ],
            schema=PAYLOAD_SCHEMA,
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidRecordError(f"The Arrow table can't be appended: {error}") from error
