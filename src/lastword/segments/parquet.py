"""Segment files: one segment is one Parquet file. Executors use them too, since they need no catalog.

The file has the table's columns: those of record.PAYLOAD_SCHEMA, with the partition before them and every
timestamp filled in. Rows are in offset order, in row groups that are small enough to bound the memory of writers
and readers. Every page has a checksum, so that a flipped bit is found and never returned.

A writer (1) collects records to a row group and writes it to the file, under its final, unique name, and (2) on
close writes the footer and syncs file and folder. If killed at any point, it leaves a file that no snapshot names;
the collector removes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastword.clock import new_uuid
from lastword.errors import CorruptError, StorageError
from lastword.folder import steps
from lastword.record import PAYLOAD_SCHEMA
from lastword.segments.fileio import SyncedFileIO
from lastword.segments.footer import OWN_METADATA, Footer, closing_metadata
from lastword.segments.foreign import mapped
from lastword.segments.model import Codec, Segment, SegmentGoneError
from lastword.segments.rows import as_payload
from lastword.segments.sketch import KeySketch

ROW_GROUP_ROWS = 16 * 1024
ROW_GROUP_BYTES = 64 * 1024 * 1024

STREAM_ROWS = 256
STREAM_BYTES = 1 << 20
"""The number of rows that a stream returns at a time, and the bytes of a column that it reads ahead."""

FIELD_IDS = {
    "partition": 1,
    "offset": 2,
    "timestamp": 3,
    "timestamp_type": 4,
    "key": 5,
    "value": 6,
    "headers": 7,
}
HEADER_FIELD_IDS = {"element": 8, "key": 9, "value": 10}

_JOB_ID = re.compile(r"[A-Za-z0-9_.-]+")
_FILE_NAME = re.compile(r"\d{20}-(?P<job>.+)-[0-9a-f]{8}\.parquet")


def _with_id(field: pa.Field, field_id: int) -> pa.Field:
    return field.with_metadata({b"PARQUET:field_id": str(field_id).encode()})


def _file_schema() -> pa.Schema:
    header = pa.struct(
        [
            _with_id(pa.field("key", pa.string(), nullable=False), HEADER_FIELD_IDS["key"]),
            _with_id(pa.field("value", pa.binary()), HEADER_FIELD_IDS["value"]),
        ]
    )
    headers = pa.list_(_with_id(pa.field("element", header, nullable=False), HEADER_FIELD_IDS["element"]))
    types = {field.name: field.type for field in PAYLOAD_SCHEMA} | {
        "partition": pa.int32(),
        "headers": headers,
    }
    optional = {"key", "value", "headers"}
    return pa.schema(
        [
            _with_id(pa.field(name, types[name], nullable=name in optional), field_id)
            for name, field_id in FIELD_IDS.items()
        ],
        metadata=OWN_METADATA,
    )


FILE_SCHEMA = _file_schema()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """The location of a topic's segment files, and how to reach them. Small, and can be pickled to executors."""

    location: str
    # They may contain an object store's secrets, which must not get into a log.
    properties: Mapping[str, str] = field(repr=False)

    def writer(self, partition: int, first_offset: int, job_id: str, codec: Codec = "zstd") -> SegmentWriter:
        if not _JOB_ID.fullmatch(job_id):
            raise ValueError(
                f"job id {job_id!r}: only letters, digits, '.', '_' and '-' can be in a file name"
            )
        name = f"{first_offset:020d}-{job_id}-{new_uuid().hex[:8]}.parquet"
        path = f"{self.location}/data/partition={partition}/{name}"
        return SegmentWriter(file_io=self.file_io(), path=path, partition=partition, codec=codec)

    def read(
        self, segment: Segment, columns: Sequence[str] | None = None, from_offset: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Read records of a segment from an offset on, as PAYLOAD_SCHEMA or its `columns`, a row group at a time."""
        schema = PAYLOAD_SCHEMA if columns is None else _selected(columns)
        return _read(self.file_io(), segment, schema, from_offset)

    def stream(
        self,
        segment: Segment,
        columns: Sequence[str] | None = None,
        wanted: Callable[[int, int], bool] = lambda _first, _last: True,
    ) -> Iterator[pa.RecordBatch]:
        """Read as `read` does, but few rows at a time, so that memory never holds a row group of large values.

        `wanted` is called with the first and the last offset of each row group.
        """
        schema = PAYLOAD_SCHEMA if columns is None else _selected(columns)
        return _stream(self.file_io(), segment, schema, wanted)

    def times(
        self, segment: Segment, start: int, end: int, *, backwards: bool = False
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Read offsets and times in milliseconds (-1: none) of the records in a span, a row group at a time.

        Within a row group they are in offset order, even with `backwards`.
        """
        schema = _selected(["offset", "timestamp"])
        return _times(self.file_io(), segment, schema, start, end, backwards)

    def count(self, segment: Segment, start: int, end: int) -> int:
        """Count the records in a span of offsets, by the footer except for row groups that reach beyond the span."""
        if start <= segment.first_offset and segment.last_offset < end:
            return segment.records
        file_io = self.file_io()
        with damage_named(file_io, segment), file_io.new_input(segment.path).open() as source:
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            total = 0
            for group, first, last in _bounds(parquet, Footer(parquet.metadata, segment)):
                if start <= first and last < end:
                    total += parquet.metadata.row_group(group).num_rows
                elif start <= last and first < end:
                    offsets = parquet.read_row_group(group, columns=["offset"]).column("offset").to_numpy()
                    total += int(np.count_nonzero((offsets >= start) & (offsets < end)))
            return total

    def discard(self, segment: Segment) -> None:
        """Remove a file that was written in vain. If that fails, the collector does it."""
        with suppress(Exception):
            self.file_io().delete(segment.path)

    def file_io(self) -> SyncedFileIO:
        return SyncedFileIO(self.properties)


def job_of(path: str) -> str | None:
    """Return the job that wrote a file, by its name; None for a file that is not a segment of ours."""
    match = _FILE_NAME.fullmatch(path.rpartition("/")[2])
    return match["job"] if match else None


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
        self._null_values: list[int] = []
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
        self._null_values.append(rows.column("value").null_count)
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


def _selected(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([PAYLOAD_SCHEMA.field(name) for name in columns])


def _read(
    file_io: SyncedFileIO, segment: Segment, schema: pa.Schema, from_offset: int
) -> Iterator[pa.RecordBatch]:
    with damage_named(file_io, segment):
        source = file_io.new_input(segment.path).open()
    with source:
        with damage_named(file_io, segment):
            parquet = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=True)
            footer = Footer(parquet.metadata, segment)
        ours = footer.is_ours
        needed = _needed_columns(schema, segment, from_offset, sort=not ours)
        # Another engine's file: nothing is known about the order of its rows.
        groups: Sequence[Sequence[int]] = [range(parquet.num_row_groups)]
        if ours:
            with damage_named(file_io, segment):
                groups = [[group] for group, _, last in _bounds(parquet, footer) if last >= from_offset]
        for group in groups:
            with damage_named(file_io, segment):
                rows = parquet.read_row_groups(list(group), columns=needed)
                if not ours:
                    rows = rows.sort_by("offset")
                if from_offset > segment.first_offset:
                    rows = rows.filter(pc.greater_equal(rows.column("offset"), from_offset))
                payload = as_payload(rows, schema)
            yield from payload.to_batches()


def _stream(
    file_io: SyncedFileIO, segment: Segment, schema: pa.Schema, wanted: Callable[[int, int], bool]
) -> Iterator[pa.RecordBatch]:
    with damage_named(file_io, segment):
        source = file_io.new_input(segment.path).open()
    with source:
        with damage_named(file_io, segment):
            parquet = pq.ParquetFile(
                source, page_checksum_verification=True, pre_buffer=False, buffer_size=STREAM_BYTES
            )
            footer = Footer(parquet.metadata, segment)
        if not footer.is_ours:
            for records in _read(file_io, segment, schema, 0):
                for start in range(0, records.num_rows, STREAM_ROWS):
                    yield records.slice(start, STREAM_ROWS)
            return
        needed = _needed_columns(schema, segment, 0, sort=False)
        with damage_named(file_io, segment):
            groups = [group for group, first, last in _bounds(parquet, footer) if wanted(first, last)]
        for group in groups:
            left = parquet.metadata.row_group(group).num_rows
            batches = parquet.iter_batches(STREAM_ROWS, [group], columns=needed, use_threads=False)
            while True:
                with damage_named(file_io, segment):
                    rows = next(batches, None)
                    if rows is None and left:
                        raise pa.ArrowInvalid(f"{left} records of row group {group} are missing")
                    if rows is None:
                        break
                    left -= rows.num_rows
                    payload = as_payload(pa.Table.from_batches([rows]), schema)
                yield from payload.to_batches()


def _times(
    file_io: SyncedFileIO, segment: Segment, schema: pa.Schema, start: int, end: int, backwards: bool
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    with damage_named(file_io, segment):
        source = file_io.new_input(segment.path).open()
    with source:
        with damage_named(file_io, segment):
            parquet = pq.ParquetFile(source, page_checksum_verification=True)
            footer = Footer(parquet.metadata, segment)
            bounds = list(_bounds(parquet, footer))
        groups = [[group] for group, first, last in bounds if first < end and last >= start]
        if not footer.is_ours:
            groups = [list(range(parquet.num_row_groups))]
        for group in reversed(groups) if backwards else groups:
            with damage_named(file_io, segment):
                rows = parquet.read_row_groups(
                    group, columns=[*schema.names, "timestamp_type"], use_threads=False
                )
                rows = as_payload(rows, schema).sort_by("offset")
            offsets = rows.column("offset").to_numpy()
            times_us = rows.column("timestamp").cast(pa.int64()).fill_null(-1000).to_numpy()
            within = slice(int(np.searchsorted(offsets, start)), int(np.searchsorted(offsets, end)))
            yield offsets[within], times_us[within] // 1000


def _bounds(parquet: pq.ParquetFile, footer: Footer) -> Iterator[tuple[int, int, int]]:
    """Yield each row group with its first and its last offset."""
    footer.check_rows()
    for group in range(parquet.num_row_groups):
        yield group, *footer.offsets(group)


def _needed_columns(schema: pa.Schema, segment: Segment, from_offset: int, *, sort: bool) -> list[str]:
    needed = list(schema.names)
    if "timestamp" in needed and "timestamp_type" not in needed:
        needed.append("timestamp_type")
    if "offset" not in needed and (sort or from_offset > segment.first_offset or not needed):
        needed.append("offset")
    return needed


@contextmanager
def damage_named(file_io: SyncedFileIO, segment: Segment) -> Iterator[None]:
    """Tell a damaged file (CorruptError) from one that is gone and from storage that does not answer."""
    try:
        yield
    except FileNotFoundError as error:
        raise SegmentGoneError(f"The segment file {segment.path} is no longer there.") from error
    except (OSError, pa.ArrowException, KeyError, UnicodeDecodeError) as error:
        _raise_if_unreadable(file_io, segment)
        raise CorruptError(
            f"The segment file {segment.path} (offsets {segment.first_offset} to {segment.last_offset}) is "
            f"damaged: {error}. Restore the file from a backup, or delete the records up to its last offset.",
            path=segment.path,
            offset=segment.first_offset,
        ) from error


def _raise_if_unreadable(file_io: SyncedFileIO, segment: Segment) -> None:
    """Read the plain bytes once more: pyarrow raises the same errors for bad bytes and for missing ones."""
    try:
        with file_io.new_input(segment.path).open(seekable=False) as stream:
            while stream.read(1 << 20):
                pass
    except FileNotFoundError as error:
        raise SegmentGoneError(f"The segment file {segment.path} is no longer there.") from error
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"The segment file {segment.path} can't be read: {error}") from error
