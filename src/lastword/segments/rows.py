"""Records as they are read from segments and WALs: Arrow batches with the columns of a record."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lastword.record import NO_TIMESTAMP_MS, PAYLOAD_SCHEMA, RECORD_SCHEMA, Record, TimestampType


def clip(records: pa.RecordBatch, end_offset: int) -> pa.RecordBatch:
    """Return the records before an offset."""
    if records.num_rows == 0 or last_offset(records) < end_offset:
        return records
    return records.slice(0, int(np.searchsorted(records.column("offset").to_numpy(), end_offset)))


def last_offset(records: pa.RecordBatch) -> int:
    return int(records.column("offset")[-1].as_py())


def with_partition(records: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """Convert records from record.PAYLOAD_SCHEMA to record.RECORD_SCHEMA."""
    column = pa.repeat(pa.scalar(partition, pa.int32()), records.num_rows)
    return pa.RecordBatch.from_arrays([column, *records.columns], schema=RECORD_SCHEMA)


def at_offsets(records: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return the records of a batch whose offsets are among `offsets`, which are in order."""
    if not len(offsets):
        return records.slice(0, 0)
    own = records.column("offset").to_numpy()
    places = np.searchsorted(offsets, own)
    mask = offsets[np.minimum(places, len(offsets) - 1)] == own
    return records if mask.all() else records.filter(pa.array(mask))


def has_timestamp(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which rows of a segment or a WAL came with a timestamp. In segments, others have their roll's time."""
    came: npt.NDArray[np.bool_] = rows.column("timestamp_type").to_numpy() != int(TimestampType.NONE)
    came &= rows.column("timestamp").is_valid().to_numpy()
    return came


def timestamps(rows: pa.Table) -> pa.ChunkedArray:
    """Return the timestamps of a segment's rows, null where a record came without one."""
    column = rows.column("timestamp")
    absent = pc.equal(rows.column("timestamp_type"), int(TimestampType.NONE))
    return pc.if_else(absent, pa.scalar(None, column.type), column) if pc.any(absent).as_py() else column


def as_payload(rows: pa.Table, schema: pa.Schema = PAYLOAD_SCHEMA) -> pa.Table:
    """Convert rows of a segment's file to record.PAYLOAD_SCHEMA or some of its columns."""
    columns = []
    for wanted in schema:
        column = timestamps(rows) if wanted.name == "timestamp" else rows.column(wanted.name)
        columns.append(column if column.type.equals(wanted.type) else column.cast(wanted.type))
    return pa.Table.from_arrays(columns, schema=schema)


def first_not_older(records: pa.RecordBatch, timestamp_ms: int) -> tuple[int, int] | None:
    """Return the offset and the time of the first record that is not older than a time; None if there is none."""
    limit = pa.scalar(timestamp_ms * 1000, pa.timestamp("us", tz="UTC"))
    index = pc.index(pc.greater_equal(records.column("timestamp"), limit), pa.scalar(True)).as_py()
    if index < 0:
        return None
    found_us = records.column("timestamp")[index].cast(pa.int64()).as_py()
    return int(records.column("offset")[index].as_py()), int(found_us) // 1000


def latest_timestamp_ms(records: pa.RecordBatch) -> int:
    latest = pc.max(records.column("timestamp").cast(pa.int64())).as_py()
    return NO_TIMESTAMP_MS if latest is None else int(latest) // 1000


def to_records(records: pa.RecordBatch) -> Iterator[Record]:
    """Yield the rows of a batch in record.RECORD_SCHEMA as records."""
    timestamps_ms = pc.fill_null(
        pc.divide(records.column("timestamp").cast(pa.int64()), 1000), NO_TIMESTAMP_MS
    ).to_pylist()
    types = [TimestampType(each) for each in records.column("timestamp_type").to_pylist()]
    headers = records.column("headers")
    no_headers = headers.null_count == len(headers)
    header_lists = [()] * len(headers) if no_headers else [_headers(each) for each in headers.to_pylist()]
    for partition, offset, timestamp_ms, timestamp_type, key, value, own_headers in zip(
        records.column("partition").to_pylist(),
        records.column("offset").to_pylist(),
        timestamps_ms,
        types,
        records.column("key").to_pylist(),
        records.column("value").to_pylist(),
        header_lists,
        strict=True,
    ):
        yield Record(
            partition=partition,
            offset=offset,
            timestamp_ms=timestamp_ms,
            timestamp_type=timestamp_type,
            key=key,
            value=value,
            headers=own_headers,
        )


def _headers(entries: list[dict[str, object]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((str(each["key"]), each["value"]) for each in entries or ())  # type: ignore[misc]
