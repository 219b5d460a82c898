"""Reads compacted history through a topic's compaction service, page by page, up to where the log continues.

The pages of one read may come from before and after compactions that commit meanwhile. Each is complete from its
start on, as of when it was read. So a record that disappeared between two pages was superseded by one that has been
read or is still ahead, or it was a tombstone whose time (delete.retention.ms) had come. A record that is still ahead
may lie past the log end at the start of the read: a read that a compaction overtakes continues to the end of the
compacted part.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from lastword.errors import UnavailableError
from lastword.reading.reader import PartitionReader
from lastword.record import RECORD_SCHEMA, Record, TimestampType

if TYPE_CHECKING:
    from lastword.compaction.service import TopicCompactionService

PAGE_RECORDS = 16 * 1024
"""The number of records to request from a service at a time: a row group of a sealed segment."""


def read_compacted(
    service: TopicCompactionService, reader: PartitionReader, offset: int
) -> Generator[pa.RecordBatch, None, int]:
    """Read compacted records from `offset` on, in record.RECORD_SCHEMA. Return the offset where the log continues."""
    partition = reader.partition
    while offset < (position := service.last_compacted_position(partition) or 0):
        # A service may keep records from before the log start.
        offset = max(offset, reader.table.snapshot().positions[partition].log_start)
        entries = service.read_compacted_entries(partition, offset, PAGE_RECORDS)
        if entries is None:
            break
        if entries:
            _check(entries, partition, offset)
            yield to_arrow(entries)
            offset = entries[-1].offset + 1
        else:
            offset = max(offset, position)
    return offset


def to_arrow(records: Sequence[Record]) -> pa.RecordBatch:
    """Return records as a batch of record.RECORD_SCHEMA."""
    columns = {
        "partition": [record.partition for record in records],
        "offset": [record.offset for record in records],
        "timestamp": [
            None if record.timestamp_type == TimestampType.NONE else record.timestamp_ms * 1000
            for record in records
        ],
        "timestamp_type": [int(record.timestamp_type) for record in records],
        "key": [record.key for record in records],
        "value": [record.value for record in records],
        "headers": [
            [{"key": key, "value": value} for key, value in record.headers] or None for record in records
        ],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in RECORD_SCHEMA], schema=RECORD_SCHEMA
    )


def _check(entries: Sequence[Record], partition: int, offset: int) -> None:
    """Raise UnavailableError if a service would give a reader a record twice or from another place."""
    offsets = [offset - 1, *(entry.offset for entry in entries)]
    if any(after <= before for before, after in pairwise(offsets)) or any(
        entry.partition != partition for entry in entries
    ):
        raise UnavailableError(
            f"The compaction service returned wrong or unordered records for partition {partition}: "
            f"the request was for offsets from {offset} on, the answer has {offsets[1]} to {offsets[-1]}."
        )
