"""Reads the live records of segment files, row group by row group. All functions are those of `SegmentFiles`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastword.record import PAYLOAD_SCHEMA
from lastword.segments.damage import damage_named
from lastword.segments.fileio import SyncedFileIO
from lastword.segments.footer import Footer
from lastword.segments.marks import LiveRows, filtered, live_rows
from lastword.segments.model import Segment
from lastword.segments.rows import as_payload

STREAM_ROWS: Final = 256
STREAM_BYTES: Final = 1 << 20
"""The number of rows that a stream returns at a time, and the bytes of a column that it reads ahead."""


class _Opened:
    """An open segment file."""

    def __init__(self, file_io: SyncedFileIO, segment: Segment, source: Any, **options: Any) -> None:
        self.segment = segment
        self._file_io = file_io
        with damage_named(file_io, segment):
            self.parquet = pq.ParquetFile(source, page_checksum_verification=True, **options)
            self.footer = Footer(self.parquet.metadata, segment)
            self.footer.check_rows()
        self.live: LiveRows = live_rows(file_io, segment, self.footer.group_rows())

    def bounds(self) -> Iterator[tuple[int, int, int]]:
        """Yield each row group that has live rows, with its first and its last offset."""
        for group in range(self.parquet.num_row_groups):
            if self.live.count(group):
                yield group, *self.footer.offsets(group)

    def read(
        self, groups: Sequence[int], columns: Sequence[str], *, sort: bool = False, use_threads: bool = True
    ) -> pa.Table:
        """Read the live rows of some row groups."""
        rows = self.parquet.read_row_groups(list(groups), columns=list(columns), use_threads=use_threads)
        rows = filtered(rows, self.live.among(groups))
        return rows.sort_by("offset") if sort else rows


@contextmanager
def _opened(file_io: SyncedFileIO, segment: Segment, **options: Any) -> Iterator[_Opened]:
    with damage_named(file_io, segment):
        source = file_io.new_input(segment.path).open()
    with source:
        yield _Opened(file_io, segment, source, **options)


def read(
    file_io: SyncedFileIO, segment: Segment, columns: Sequence[str] | None, from_offset: int
) -> Iterator[pa.RecordBatch]:
    schema = _selected(columns)
    with _opened(file_io, segment, pre_buffer=True) as file:
        ours = file.footer.is_ours
        needed = _needed_columns(schema, segment, from_offset, sort=not ours)
        # Another engine's file: nothing is known about the order of its rows.
        groups: Sequence[Sequence[int]] = [range(file.parquet.num_row_groups)]
        if ours:
            with damage_named(file_io, segment):
                groups = [[group] for group, _, last in file.bounds() if last >= from_offset]
        for group in groups:
            with damage_named(file_io, segment):
                rows = file.read(group, needed, sort=not ours)
                if from_offset > segment.first_offset:
                    rows = rows.filter(pc.greater_equal(rows.column("offset"), from_offset))
                payload = as_payload(rows, schema)
            yield from payload.to_batches()


def stream(
    file_io: SyncedFileIO,
    segment: Segment,
    columns: Sequence[str] | None,
    wanted: Callable[[int, int], bool],
) -> Iterator[pa.RecordBatch]:
    schema = _selected(columns)
    with _opened(file_io, segment, pre_buffer=False, buffer_size=STREAM_BYTES) as file:
        if not file.footer.is_ours:
            for records in read(file_io, segment, columns, 0):
                for start in range(0, records.num_rows, STREAM_ROWS):
                    yield records.slice(start, STREAM_ROWS)
            return
        needed = _needed_columns(schema, segment, 0, sort=False)
        with damage_named(file_io, segment):
            groups = [group for group, first, last in file.bounds() if wanted(first, last)]
        for group in groups:
            live = file.live.of(group)
            rows = file.parquet.metadata.row_group(group).num_rows
            done = 0
            batches = file.parquet.iter_batches(STREAM_ROWS, [group], columns=needed, use_threads=False)
            while True:
                with damage_named(file_io, segment):
                    batch = next(batches, None)
                    if batch is None and done < rows:
                        raise pa.ArrowInvalid(f"{rows - done} records of row group {group} are missing")
                    if batch is None:
                        break
                    own = None if live is None else live[done : done + batch.num_rows]
                    done += batch.num_rows
                    payload = as_payload(filtered(pa.Table.from_batches([batch]), own), schema)
                yield from payload.to_batches()


def times(
    file_io: SyncedFileIO, segment: Segment, start: int, end: int, backwards: bool
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    schema = _selected(["offset", "timestamp"])
    with _opened(file_io, segment) as file:
        with damage_named(file_io, segment):
            groups = [[group] for group, first, last in file.bounds() if first < end and last >= start]
        if not file.footer.is_ours:
            groups = [list(range(file.parquet.num_row_groups))]
        for group in reversed(groups) if backwards else groups:
            with damage_named(file_io, segment):
                rows = file.read(group, [*schema.names, "timestamp_type"], use_threads=False)
                rows = as_payload(rows, schema).sort_by("offset")
            offsets = rows.column("offset").to_numpy()
            times_us = rows.column("timestamp").cast(pa.int64()).fill_null(-1000).to_numpy()
            within = slice(int(np.searchsorted(offsets, start)), int(np.searchsorted(offsets, end)))
            yield offsets[within], times_us[within] // 1000


def count(file_io: SyncedFileIO, segment: Segment, start: int, end: int) -> int:
    if start <= segment.first_offset and segment.last_offset < end:
        return segment.records
    with _opened(file_io, segment) as file, damage_named(file_io, segment):
        total = 0
        for group, first, last in file.bounds():
            if start <= first and last < end:
                total += file.live.count(group)
            elif start <= last and first < end:
                offsets = file.read([group], ["offset"]).column("offset").to_numpy()
                total += int(np.count_nonzero((offsets >= start) & (offsets < end)))
        return total


def _selected(columns: Sequence[str] | None) -> pa.Schema:
    return PAYLOAD_SCHEMA if columns is None else pa.schema([PAYLOAD_SCHEMA.field(name) for name in columns])


def _needed_columns(schema: pa.Schema, segment: Segment, from_offset: int, *, sort: bool) -> list[str]:
    needed = list(schema.names)
    if "timestamp" in needed and "timestamp_type" not in needed:
        needed.append("timestamp_type")
    if "offset" not in needed and (sort or from_offset > segment.first_offset or not needed):
        needed.append("offset")
    return needed
