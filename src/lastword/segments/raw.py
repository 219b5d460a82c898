"""The live rows of a segment file, for code that rewrites it: one column at a time, or one row group at a time.

Live rows are numbered from 0, in offset order: nobody here sees the marked ones. Files that another engine wrote are put
in that order first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lastword.record import PAYLOAD_SCHEMA
from lastword.segments.damage import damage_named
from lastword.segments.footer import Footer
from lastword.segments.marks import LiveSketch, Positions, filtered, live_rows, live_sketch
from lastword.segments.model import Segment
from lastword.segments.parquet import SegmentFiles
from lastword.segments.sketch import KeySketch


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The live rows [first_row, first_row + rows) of a file, about `size_bytes` in memory.

    `null_values` is None if it is not known.
    """

    index: int
    first_row: int
    rows: int
    size_bytes: int
    null_values: int | None


class RawSegment:
    """An open segment file. Errors are those of reading a segment: gone, damaged, or failing storage."""

    def __init__(self, files: SegmentFiles, segment: Segment, footer: pq.FileMetaData | None = None) -> None:
        """Open the file. If `footer` is given, it is not read again."""
        self.segment = segment
        self._file_io = files.file_io()
        self.read_bytes = 0
        with self._damage_named():
            self._parquet = pq.ParquetFile(
                self._source(),
                metadata=footer,
                page_checksum_verification=True,
                memory_map=True,
                pre_buffer=False,
            )
        self.footer = self._parquet.metadata
        with self._damage_named():
            self.says = Footer(self.footer, segment)
        self._live = live_rows(self._file_io, segment, self.says.group_rows())
        self._sorted: pa.Table | None = None
        self.row_groups = self._row_groups()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._parquet.close(force=True)

    def sketch(self) -> bytes:
        """Return the sketch of the live keys. If no footer has it, make it from the keys."""
        live = None if self._live.is_all else self.live_sketch()
        if live is not None and live.sketch is not None:
            return live.sketch
        if self.says.sketch is not None and (self._live.is_all or live is not None):
            return self.says.sketch
        sketch = KeySketch()
        for _, keys in self.key_runs():
            sketch.add(keys)
        return sketch.to_bytes()

    def live_sketch(self) -> LiveSketch | None:
        """Return the sketch that came with the marks; None if another engine marked rows."""
        return live_sketch(self._file_io, self.segment)

    def key_bytes(self) -> int:
        """Estimate the bytes of the live keys, by the footer."""
        metadata = self._parquet.metadata
        at = next(c for c in range(metadata.num_columns) if metadata.schema.column(c).path == "key")
        groups = range(metadata.num_row_groups)
        size_bytes = sum(metadata.row_group(group).column(at).total_uncompressed_size for group in groups)
        return int(size_bytes * self.segment.records // max(1, metadata.num_rows))

    def key_runs(self, *, backwards: bool = False) -> Iterator[tuple[int, pa.Array]]:
        """Return the keys in runs, each with the number of its first row; `backwards`: the last run first."""
        chunks = self.columns(["key"]).column("key").chunks
        first_row = 0
        runs = []
        for chunk in chunks:
            runs.append((first_row, chunk))
            first_row += len(chunk)
        return iter(reversed(runs) if backwards else runs)

    def columns(self, names: Sequence[str], groups: Sequence[RowGroup] | None = None) -> pa.Table:
        """Read whole columns, or their rows of some row groups."""
        if self._sorted is not None:
            rows = self._sorted.select(list(names))
            return (
                rows if groups is None else pa.concat_tables(rows.slice(g.first_row, g.rows) for g in groups)
            )
        indexes = [each.index for each in (self.row_groups if groups is None else groups)]
        return filtered(self._read(names, indexes), self._live.among(indexes))

    def rows(self, group: RowGroup) -> pa.Table:
        """Read all columns of a row group but the partition, with every timestamp filled in."""
        return self.columns(PAYLOAD_SCHEMA.names, [group])

    def kept(self, group: RowGroup, mask: npt.NDArray[np.uint8]) -> pa.Table:
        """Read as `rows` does, without the rows for which a mask of the whole file has 0."""
        wanted = mask[group.first_row : group.first_row + group.rows].view(np.bool_)
        if self._sorted is not None:
            return filtered(self.rows(group), None if wanted.all() else wanted)
        live = self._live.of(group.index)
        if live is not None:
            # One pass over the values drops the marked rows and the unwanted ones.
            live[live] = wanted
            wanted = live
        return filtered(self._read(PAYLOAD_SCHEMA.names, [group.index]), None if wanted.all() else wanted)

    def without_value(self, group: RowGroup) -> npt.NDArray[np.bool_]:
        """Return which rows of a row group have a null value. Most footers tell, so that no value is read."""
        if self._sorted is None:
            with self._damage_named():
                told = self.says.without_value(group.index)
            if told is not None:
                live = self._live.of(group.index)
                return told if live is None else told[live]
        nulls: npt.NDArray[np.bool_] = self.columns(["value"], [group]).column("value").is_null().to_numpy()
        return nulls

    def positions(self) -> Positions:
        """Return where the live rows are in the file. Only for files of ours, whose rows are in offset order."""
        assert self._sorted is None
        return self._live.positions()

    def _source(self) -> object:
        parts = urlsplit(self.segment.path)
        if parts.scheme in ("", "file"):
            # A path, so that the file can be mapped into memory.
            path = Path(unquote(parts.path))
            if not path.exists():
                raise FileNotFoundError(path)
            return str(path)
        return self._file_io.new_input(self.segment.path).open()

    def _row_groups(self) -> list[RowGroup]:
        if not self.says.is_ours:
            groups = range(self._parquet.num_row_groups)
            with self._damage_named():
                rows = self._parquet.read(columns=PAYLOAD_SCHEMA.names, use_threads=False)
                self._sorted = filtered(rows, self._live.among(groups)).sort_by("offset")
            return [RowGroup(0, 0, self._sorted.num_rows, self._sorted.nbytes, None)]
        metadata = self._parquet.metadata
        found, first_row = [], 0
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            rows = self._live.count(index)
            if rows:
                size_bytes = group.total_byte_size * rows // group.num_rows
                found.append(RowGroup(index, first_row, rows, size_bytes, self._null_values(index)))
            first_row += rows
        return found

    def _null_values(self, index: int) -> int | None:
        """Return the number of null values among the live rows of a row group; None if it is not known."""
        nulls, live = self.says.null_values[index], self._live.of(index)
        if not nulls or live is None:
            return nulls
        with self._damage_named():
            told = self.says.without_value(index)
        return None if told is None else int(np.count_nonzero(told & live))

    def _read(self, names: Sequence[str], groups: Sequence[int]) -> pa.Table:
        """Read columns of some row groups, with their marked rows."""
        with self._damage_named():
            self._count_bytes(names, groups)
            return self._parquet.read_row_groups(list(groups), columns=list(names), use_threads=False)

    def _count_bytes(self, names: Sequence[str], groups: Sequence[int]) -> None:
        wanted = set(names)
        metadata = self._parquet.metadata
        columns = [
            column
            for column in range(metadata.num_columns)
            if metadata.schema.column(column).path.partition(".")[0] in wanted
        ]
        for group in groups:
            row_group = metadata.row_group(group)
            self.read_bytes += sum(row_group.column(column).total_compressed_size for column in columns)

    def _damage_named(self) -> AbstractContextManager[None]:
        return damage_named(self._file_io, self.segment)
