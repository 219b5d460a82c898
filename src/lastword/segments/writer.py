"""Writes one segment file.

1. Records are collected to a row group, which is written to the file, under its final, unique name.
2. `close` writes the footer and syncs file and folder.

If killed at any point, it leaves a file that no snapshot names; the collector removes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastword.folder import steps
from lastword.record import PAYLOAD_SCHEMA
from lastword.segments.fileio import SyncedFileIO
from lastword.segments.footer import closing_metadata
from lastword.segments.foreign import mapped
from lastword.segments.model import Codec, Segment
from lastword.segments.schema import FILE_SCHEMA
from lastword.segments.sketch import KeySketch

ROW_GROUP_ROWS = 16 * 1024
ROW_GROUP_BYTES = 64 * 1024 * 1024

_WRITER_OPTIONS: dict[str, Any] = {
    "use_dictionary": ["partition", "timestamp_type", "headers.list.element.key"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
    "write_statistics": ["partition", "offset", "timestamp"],
    "write_page_checksum": True,
}
_CODEC_OPTIONS: dict[Codec, dict[str, Any]] = {
    "zstd": {"compression": "zstd", "compression_level": 1},
    "lz4": {"compression": "lz4"},
}


class SegmentWriter:
    """Writes one new segment file, which is created with its first row group. Until a commit, nothing refers to it.

    Leaving the `with` block by an exception abandons the file and removes it if possible.
    """

    def __init__(self, *, file_io: SyncedFileIO, path: str, partition: int, codec: Codec) -> None:
        self._file_io = file_io
        self._path = path
        self._partition = partition
        self._codec = codec
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._stream: Any = None
        self._parquet: pq.ParquetWriter | None = None
        self._counts = _Counts()
        self._null_values: list[npt.NDArray[np.bool_]] = []
        self._sketch = KeySketch()
        self._segment: Segment | None = None
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def write(self, records: pa.RecordBatch) -> None:
        """Add records (record.PAYLOAD_SCHEMA, every timestamp filled in), in offset order."""
        if self._closed:
            raise ValueError(f"{self._path} has been closed")
        if records.num_rows == 0:
            return
        if not records.schema.equals(PAYLOAD_SCHEMA):
            records = records.select(PAYLOAD_SCHEMA.names).cast(PAYLOAD_SCHEMA)
        self._counts.add(records)
        for piece in _pieces(records):
            full = (
                self._waiting_rows + piece.num_rows > ROW_GROUP_ROWS
                or self._waiting_bytes + piece.nbytes > ROW_GROUP_BYTES
            )
            if full:
                self._write_row_group()
            self._waiting.append(piece)
            self._waiting_rows += piece.num_rows
            self._waiting_bytes += piece.nbytes

    def close(self) -> Segment | None:
        """Finish and sync the file. Return None if nothing was written."""
        if self._closed:
            return self._segment
        self._write_row_group()
        self._closed = True
        if self._parquet is None:
            return None
        with mapped("Finishing a segment file", self._path):
            self._parquet.add_key_value_metadata(closing_metadata(self._null_values, self._sketch.to_bytes()))
            self._parquet.close()
            size_bytes = self._stream.tell()
            self._stream.close()
        self._segment = self._counts.segment(self._path, self._partition, size_bytes)
        steps.reached("segment.file.closed")
        return self._segment

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()

    def _write_row_group(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting, PAYLOAD_SCHEMA).combine_chunks()
        self._null_values.append(rows.column("value").is_null().to_numpy())
        for keys in rows.column("key").chunks:
            self._sketch.add(keys)
        partition = pa.repeat(pa.scalar(self._partition, pa.int32()), rows.num_rows)
        columns = [partition, *(rows.column(name) for name in FILE_SCHEMA.names[1:])]
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        with mapped("Writing a segment file", self._path):
            if self._parquet is None:
                steps.reached("segment.file.opening")
                self._stream = self._file_io.new_output(self._path).create(overwrite=True)
                self._parquet = pq.ParquetWriter(
                    self._stream, FILE_SCHEMA, **_WRITER_OPTIONS, **_CODEC_OPTIONS[self._codec]
                )
            table = pa.Table.from_arrays(
                [column.cast(field.type) for column, field in zip(columns, FILE_SCHEMA, strict=True)],
                schema=FILE_SCHEMA,
            )
            self._parquet.write_table(table, row_group_size=rows.num_rows)

    def _abandon(self) -> None:
        self._closed = True
        self._waiting = []
        if self._stream is None:
            return
        # The error being raised is the one that counts; the collector removes what is left here.
        with suppress(Exception):
            if self._parquet is not None:
                self._parquet.close()
        with suppress(Exception):
            self._stream.close()
        with suppress(Exception):
            self._file_io.delete(self._path)


class _Counts:
    """The fields of a Segment, counted while its file is written."""

    def __init__(self) -> None:
        self.records = 0
        self.null_keys = 0
        self.null_values = 0
        self.first_offset = 0
        self.last_offset = -1
        self.min_timestamp_us: int | None = None
        self.max_timestamp_us: int | None = None

    def add(self, records: pa.RecordBatch) -> None:
        offsets = records.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        rising = len(offsets) == 1 or pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py()
        if first <= self.last_offset or not rising:
            raise ValueError(f"offsets must increase: {first}..{last} after {self.last_offset}")
        timestamps = records.column("timestamp")
        if timestamps.null_count:
            raise ValueError("every timestamp must be filled in; timestamp_type says which were not given")
        if self.records == 0:
            self.first_offset = first
        self.last_offset = last
        self.records += records.num_rows
        self.null_keys += records.column("key").null_count
        self.null_values += records.column("value").null_count
        bounds = pc.min_max(timestamps.cast(pa.int64()))
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        self.min_timestamp_us = low if self.min_timestamp_us is None else min(low, self.min_timestamp_us)
        self.max_timestamp_us = high if self.max_timestamp_us is None else max(high, self.max_timestamp_us)

    def segment(self, path: str, partition: int, size_bytes: int) -> Segment:
        assert self.min_timestamp_us is not None
        assert self.max_timestamp_us is not None
        return Segment(
            path=path,
            partition=partition,
            first_offset=self.first_offset,
            last_offset=self.last_offset,
            records=self.records,
            size_bytes=size_bytes,
            min_timestamp_ms=self.min_timestamp_us // 1000,
            # Rounded up, so that it stays a bound for timestamps finer than a millisecond.
            max_timestamp_ms=-(-self.max_timestamp_us // 1000),
            null_keys=self.null_keys,
            null_values=self.null_values,
        )


def _pieces(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices that each fit a row group. A single record may be larger than one."""
    if records.num_rows > ROW_GROUP_ROWS:
        for start in range(0, records.num_rows, ROW_GROUP_ROWS):
            yield from _pieces(records.slice(start, ROW_GROUP_ROWS))
    elif records.nbytes > ROW_GROUP_BYTES and records.num_rows > 1:
        half = records.num_rows // 2
        yield from _pieces(records.slice(0, half))
        yield from _pieces(records.slice(half))
    else:
        yield records
