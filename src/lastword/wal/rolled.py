"""Rolled WAL files that are still to be sealed: their records, from the first to the last or span by span."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastword import batch
from lastword.wal.files import WalFile, damaged, header_at, unreadable, walk
from lastword.wal.reader import DECODE_BYTES, decode, read_file

COMPRESSED_BYTES = 512 << 10
"""The most bytes of compressed batches in a span."""
LEAST_COMPRESSED_BYTES = 16 << 10
DECODED_BYTES = 8 << 20
"""About the size of the records of a span. How far batches expand is estimated from a few of them."""
_SAMPLES = 8
"""The number of compressed batches of a file that are decoded for that estimate."""
_HEADERS_BYTES = 64 << 10
"""The bytes that are read at a time to look for headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledFile:
    """A rolled file, its offsets that are still to be sealed, and the log start. It can be sent to other processes."""

    partition: int
    folder: Path
    file: WalFile
    from_offset: int
    end_offset: int
    log_start: int

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes or 0

    @property
    def first_wanted(self) -> int:
        """The first offset whose record is wanted. Those below the log start have been deleted."""
        return max(self.from_offset, self.log_start)

    @property
    def path(self) -> Path:
        return self.folder / self.file.name

    def records(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the file as segments have them: none below the log start, no timestamp missing.

        Raise CorruptError if the file is damaged or missing.
        """
        batches = read_file(self.folder, self.file, from_offset=self.first_wanted, end_offset=self.end_offset)
        for records in decode(batches, from_offset=self.first_wanted):
            yield self._with_times(records)

    def spans(self) -> list[Span] | None:
        """Cut the file into spans of batches, by the headers alone. Return None if they don't fit: it is damaged."""
        assert self.file.size_bytes is not None
        spans: list[Span] = []
        offset, start = self.file.first_batch_offset, Span(0, 0, self.file.first_batch_offset, 0)
        most_compressed = COMPRESSED_BYTES
        sample_at = 0
        for position, header in self._headers(self.file.size_bytes):
            if header is None or header.base_offset != offset:
                return None
            end = position + header.size_bytes
            offset = header.next_offset
            start = replace(start, end=end, next_offset=offset)
            is_compressed = header.compression is not batch.Compression.NONE
            if is_compressed and position >= sample_at:
                sample_at = position + self.file.size_bytes // _SAMPLES
                decoded_bytes = sum(
                    each.nbytes for each in self.read(Span(position, end, header.base_offset, offset))
                )
                wanted = DECODED_BYTES * header.size_bytes // max(1, decoded_bytes)
                most_compressed = min(COMPRESSED_BYTES, max(LEAST_COMPRESSED_BYTES, wanted))
            if end - start.position >= (most_compressed if is_compressed else DECODE_BYTES):
                spans.append(start)
                start = Span(end, end, offset, offset)
        if start.end > start.position:
            spans.append(start)
        if offset != self.end_offset or (spans and spans[-1].end != self.file.size_bytes):
            return None
        return [each for each in spans if each.next_offset > self.first_wanted]

    def read(self, span: Span) -> list[pa.RecordBatch]:
        """Return the wanted rows of a span. Every batch is checked. Raise CorruptError if one is damaged."""
        batches = walk(
            self.path, position=span.position, end_position=span.end, expected_offset=span.first_offset
        )
        try:
            return [self._with_times(each) for each in decode(batches, from_offset=self.first_wanted)]
        except OSError as error:
            raise unreadable(self.path, span.first_offset, error) from error

    def newest_ms(self) -> int:
        """Return the latest timestamp of its wanted records, -1 if there are none. Reads the whole file."""
        return max((max_timestamp_us(each) // 1000 for each in self.records()), default=-1)

    def is_younger_than(self, time_ms: int) -> bool:
        """Return whether a wanted record has a later timestamp. The headers of the batches usually suffice to say so.

        A record without a timestamp is as old as the roll. Raise CorruptError if the file is damaged.
        """
        assert self.file.size_bytes is not None
        for position, header in self._headers(self.file.size_bytes):
            if header is None:
                raise damaged(self.path, self.from_offset, position, "no batch begins here")
            if header.base_offset >= self.first_wanted and header.max_timestamp_ms > time_ms:
                return True
        # Only records without a timestamp, and those of a batch with deleted records, are still unknown.
        return (self.file.rolled_ms or 0) > time_ms and self.newest_ms() > time_ms

    def _headers(self, size_bytes: int) -> Iterator[tuple[int, batch.BatchHeader | None]]:
        """Yield the position and the header of each batch; None where there is no header."""
        position = begun = 0
        data = b""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while position < size_bytes:
                if position + batch.HEADER_BYTES > begun + len(data):
                    begun = position
                    data = os.pread(fd, min(_HEADERS_BYTES, size_bytes - position), position)
                header = header_at(data, position - begun)
                yield position, header
                if header is None:
                    return
                position += header.size_bytes
        finally:
            os.close(fd)

    def _with_times(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Fill in missing timestamps: a record without one ages from its append, which was no later than the roll."""
        timestamps = records.column("timestamp")
        if not timestamps.null_count:
            return records
        roll_time = pa.scalar((self.file.rolled_ms or 0) * 1000, pa.timestamp("us", tz="UTC"))
        at = records.schema.get_field_index("timestamp")
        return records.set_column(at, records.schema.field(at), pc.fill_null(timestamps, roll_time))


@dataclass(frozen=True, slots=True)
class Span:
    """Whole batches of a file: the bytes [position, end), with the offsets [first_offset, next_offset)."""

    position: int
    end: int
    first_offset: int
    next_offset: int


def joined(records: list[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Return some rows as one batch; None if there are none."""
    if len(records) < 2:
        return records[0] if records else None
    return pa.concat_batches(records)


def max_timestamp_us(records: pa.RecordBatch) -> int:
    """Return the latest timestamp of some rows, none of which lacks one."""
    return int(np.max(records.column("timestamp").cast(pa.int64()).to_numpy()))
