"""One stream over partitions of a topic: the existing records, partition by partition, then the new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from lastword.clock import Clock
from lastword.reading.compacted import read_compacted
from lastword.reading.reader import PartitionReader
from lastword.reading.topic_reader import Reader

if TYPE_CHECKING:
    from lastword.compaction.service import TopicCompactionService

Start = int | Literal["earliest", "latest"]
"""The start of a read: an offset, or one end of the log."""


def start_offset(reader: PartitionReader, start: Start | Mapping[int, Start]) -> int:
    """Return the offset where a read of a partition begins. Partitions not in a mapping begin at the log start."""
    wanted = start.get(reader.partition, "earliest") if isinstance(start, Mapping) else start
    extent = reader.extent()
    if wanted == "earliest":
        return extent.log_start
    if wanted == "latest":
        return extent.log_end
    assert isinstance(wanted, int)
    reader.check(wanted)
    return wanted


def stream(
    readers: Mapping[int, PartitionReader],
    start: Mapping[int, int],
    *,
    service: TopicCompactionService | None = None,
    follow_until: Callable[[], bool] | None = None,
    clock: Clock,
) -> Iterator[pa.RecordBatch]:
    """Read records from `start` to the current log end, in record.RECORD_SCHEMA, then new ones until `follow_until`.

    Records that a service has compacted are read through it. The readers are closed at the end.
    """
    ends = {each: reader.extent().log_end for each, reader in readers.items()}
    return _stream(readers, start, ends, service, follow_until, clock)


def _stream(
    readers: Mapping[int, PartitionReader],
    start: Mapping[int, int],
    ends: dict[int, int],
    service: TopicCompactionService | None,
    follow_until: Callable[[], bool] | None,
    clock: Clock,
) -> Iterator[pa.RecordBatch]:
    try:
        for each, reader in readers.items():
            offset = start[each]
            if service is not None:
                offset = yield from read_compacted(service, reader, offset)
                ends[each] = max(ends[each], offset)
            ends[each] = max(ends[each], (yield from reader.replay(offset, ends[each])))
        if follow_until is None:
            return
        with Reader(readers, {each: max(ends[each], start[each]) for each in readers}, clock) as tail:
            while not follow_until():
                if (records := tail.poll_arrow(timeout_s=1.0)) is not None:
                    yield records
    finally:
        for reader in readers.values():
            reader.close()
