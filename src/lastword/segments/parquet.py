"""Segment files: one segment is one Parquet file. Executors use them too, since they need no catalog.

The file has the table's columns: those of record.PAYLOAD_SCHEMA, with the partition before them and every
timestamp filled in. Rows are in offset order, in row groups that are small enough to bound the memory of writers
and readers. Every page has a checksum, so that a flipped bit is found and never returned. Marked rows are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.clock import new_uuid
from lastword.segments import scan
from lastword.segments.fileio import SyncedFileIO
from lastword.segments.model import Codec, Segment
from lastword.segments.writer import SegmentWriter

_JOB_ID = re.compile(r"[A-Za-z0-9_.-]+")
_FILE_NAME = re.compile(r"\d{20}-(?P<job>.+)-[0-9a-f]{8}(\.deletes)?\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """The location of a topic's segment files, and how to reach them. Small, and can be pickled to executors."""

    location: str
    # They may contain an object store's secrets, which must not get into a log.
    properties: Mapping[str, str] = field(repr=False)

    def writer(self, partition: int, first_offset: int, job_id: str, codec: Codec = "zstd") -> SegmentWriter:
        path = self.new_path(partition, first_offset, job_id)
        return SegmentWriter(file_io=self.file_io(), path=path, partition=partition, codec=codec)

    def new_path(self, partition: int, first_offset: int, job_id: str, kind: str = "") -> str:
        """Return the unique name of a new file; `kind` is the end of its name before `.parquet`."""
        if not _JOB_ID.fullmatch(job_id):
            raise ValueError(
                f"job id {job_id!r}: only letters, digits, '.', '_' and '-' can be in a file name"
            )
        name = f"{first_offset:020d}-{job_id}-{new_uuid().hex[:8]}{kind}.parquet"
        return f"{self.location}/data/partition={partition}/{name}"

    def read(
        self, segment: Segment, columns: Sequence[str] | None = None, from_offset: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Read records of a segment from an offset on, as PAYLOAD_SCHEMA or its `columns`, a row group at a time."""
        return scan.read(self.file_io(), segment, columns, from_offset)

    def stream(
        self,
        segment: Segment,
        columns: Sequence[str] | None = None,
        wanted: Callable[[int, int], bool] = lambda _first, _last: True,
    ) -> Iterator[pa.RecordBatch]:
        """Read as `read` does, but few rows at a time, so that memory never holds a row group of large values.

        `wanted` is called with the first and the last offset of each row group.
        """
        return scan.stream(self.file_io(), segment, columns, wanted)

    def times(
        self, segment: Segment, start: int, end: int, *, backwards: bool = False
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Read offsets and times in milliseconds (-1: none) of the records in a span, a row group at a time.

        Within a row group they are in offset order, even with `backwards`.
        """
        return scan.times(self.file_io(), segment, start, end, backwards)

    def count(self, segment: Segment, start: int, end: int) -> int:
        """Count the records in a span of offsets, by the footer except for row groups that reach beyond the span."""
        return scan.count(self.file_io(), segment, start, end)

    def discard(self, segment: Segment) -> None:
        """Remove an unused file. If that fails, the collector removes it."""
        with suppress(Exception):
            self.file_io().delete(segment.path)

    def file_io(self) -> SyncedFileIO:
        return SyncedFileIO(self.properties)


def job_of(path: str) -> str | None:
    """Return the job that wrote a file, by its name; None for a file that is neither a segment nor marks of ours."""
    match = _FILE_NAME.fullmatch(path.rpartition("/")[2])
    return match["job"] if match else None
