"""The footer of a segment file: its writer, its format, and the statistics of its row groups.

Files that another engine wrote don't have our format: the order of their rows is not known, and their statistics
may leave rows out.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lastword.errors import StorageError
from lastword.segments.model import Segment

FileMetadata: TypeAlias = pq.FileMetaData
"""The footer as Parquet's library has it, for callers that open a file again."""

FORMAT = 1
"""The format that we write, and the newest that we read: rows in offset order, in row groups with statistics."""

_FORMAT_KEY = b"lastword.segment.format"
_NULL_VALUES_KEY = b"lastword.segment.null-values"
"""The number of null values in each row group, as a JSON list."""
_NULL_ROWS_KEY = b"lastword.segment.null-value-rows"
"""Which rows have a null value: a bit for each row, deflated, in base64. Absent if none has, or all of them have."""
_SKETCH_KEY = b"lastword.segment.key-sketch"
"""A sketch of the file's keys (sketch.py), in base64."""

OWN_METADATA = {_FORMAT_KEY: str(FORMAT).encode()}


def closing_metadata(null_values: Sequence[npt.NDArray[np.bool_]], sketch: bytes) -> dict[bytes, bytes]:
    """Return the metadata of a file that is known once its rows have been written.

    `null_values` says for each row group which of its rows have a null value.
    """
    counts = [int(each.sum()) for each in null_values]
    found = {_NULL_VALUES_KEY: json.dumps(counts).encode(), _SKETCH_KEY: base64.b64encode(sketch)}
    if any(0 < count < len(each) for count, each in zip(counts, null_values, strict=True)):
        bits = np.packbits(np.concatenate(null_values)).tobytes()
        found[_NULL_ROWS_KEY] = base64.b64encode(zlib.compress(bits))
    return found


class Footer:
    """The footer of a segment's file. Raises StorageError if a newer Lastword wrote it, ArrowInvalid if damaged."""

    def __init__(self, metadata: pq.FileMetaData, segment: Segment) -> None:
        self._metadata = metadata
        self._segment = segment
        pairs = metadata.metadata or {}
        self.is_ours = _FORMAT_KEY in pairs
        """Whether rows are in offset order, and statistics cover all of them."""
        if self.is_ours:
            _check_format(pairs[_FORMAT_KEY], segment)
        try:
            nulls = json.loads(pairs.get(_NULL_VALUES_KEY, b"[]"))
            sketch = base64.b64decode(pairs.get(_SKETCH_KEY, b""), validate=True)
        except ValueError as error:
            raise pa.ArrowInvalid(f"its footer can't be read: {error}") from error
        self.null_values: Sequence[int | None] = nulls or [None] * metadata.num_row_groups
        """The number of null values in each row group; None if it is not known."""
        self.sketch = sketch or None
        self._null_rows = pairs.get(_NULL_ROWS_KEY)
        names = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
        self._offset, self._timestamp = names["offset"], names["timestamp"]

    def check_rows(self) -> None:
        """Raise ArrowInvalid if the footer, which has no checksum, counts fewer records than there were."""
        rows = sum(self._metadata.row_group(each).num_rows for each in range(self._metadata.num_row_groups))
        if rows < self._segment.rows:
            raise pa.ArrowInvalid(f"its footer counts {rows} records, but there were {self._segment.rows}")

    def group_rows(self) -> list[int]:
        """Return the number of rows of each row group."""
        return [self._metadata.row_group(each).num_rows for each in range(self._metadata.num_row_groups)]

    def without_value(self, group: int) -> npt.NDArray[np.bool_] | None:
        """Return which rows of a row group have a null value; None if the footer does not say it."""
        rows, nulls = self._metadata.row_group(group).num_rows, self.null_values[group]
        if nulls in (0, rows):
            return np.full(rows, nulls == rows and rows > 0)
        if self._null_rows is None:
            return None
        first, bits = self._null_bits
        return bits[first[group] : first[group] + rows]

    @cached_property
    def _null_bits(self) -> tuple[list[int], npt.NDArray[np.bool_]]:
        """The first row of each row group, and for each row of the file whether its value is null."""
        assert self._null_rows is not None
        rows = self.group_rows()
        first = [0, *np.cumsum(rows).tolist()]
        try:
            packed = zlib.decompress(base64.b64decode(self._null_rows, validate=True))
            return first, np.unpackbits(np.frombuffer(packed, np.uint8), count=first[-1]).view(np.bool_)
        except (ValueError, zlib.error) as error:
            raise pa.ArrowInvalid(f"its footer can't be read: {error}") from error

    def offsets(self, group: int) -> tuple[int, int]:
        """Return the first and the last offset of a row group, or bounds of them."""
        statistics = self._metadata.row_group(group).column(self._offset).statistics
        if not self.is_ours or statistics is None or not statistics.has_min_max:
            return self._segment.first_offset, self._segment.last_offset
        return statistics.min, statistics.max

    def times_us(self, group: int) -> tuple[int, int] | None:
        """Return the lowest and the highest timestamp of a row group, if they are known."""
        statistics = self._metadata.row_group(group).column(self._timestamp).statistics
        if not self.is_ours or statistics is None or not statistics.has_min_max:
            return None
        low, high = (
            pa.scalar(each, pa.timestamp("us", tz="UTC")).value for each in (statistics.min, statistics.max)
        )
        return low, high


def _check_format(found: bytes, segment: Segment) -> None:
    if not found.isdigit() or int(found) < 1:
        raise pa.ArrowInvalid(f"its footer names the format {found!r}")
    if int(found) > FORMAT:
        raise StorageError(
            f"The segment file {segment.path} has format {int(found)}; this version of Lastword reads up to {FORMAT}. Use "
            f"the version that wrote it, or a newer one; if there is none, the file is damaged."
        )
