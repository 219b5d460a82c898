"""Reads compacted history through a topic's compaction service, page by page, and says where the log goes on.

The pages of one read may come from before and after compactions that commit meanwhile. Each is complete from its
start on, as of when it was read. So a record that has gone between two pages was superseded by one that has been
read or is still ahead, or it was a tombstone whose time (delete.retention.ms) had come. What is still ahead may lie
past the end that the log had when the read began: a read that a compaction overtakes goes on up to what that one
compacted.
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
"""How many records a service is asked for at a time: a row group of a sealed segment."""


def read_compacted(
    service: TopicCompactionService, reader: PartitionReader, offset: int
) -> Generator[pa.RecordBatch, None, int]:
    """Compacted records from `offset` on, in record.RECORD_SCHEMA; returns the offset at which the log goes on."""
    partition = reader.partition
    while offset < (position := service.last_compacted_position(partition) or 0):
        # A service may keep what the log has forgotten.
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
    """Records as a batch of record.RECORD_SCHEMA."""
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
    """Whatever a service does, no reader gets a record twice or from elsewhere."""
    offsets = [offset - 1, *(entry.offset for entry in entries)]
    if any(after <= before for before, after in pairwise(offsets)) or any(
        entry.partition != partition for entry in entries
    ):
        raise UnavailableError(
            f"The compaction service gave records of partition {partition} that it was not asked for, or in disorder: "
            f"offset {offset} and later ones were asked for, it gave {offsets[1]} to {offsets[-1]}."
        )
