"""Reads marks: the rows of segments that position-delete files of Iceberg list as gone.

A segment has at most one such file of ours, which lists rows of this segment alone; a later one lists the earlier marks
too, and replaces it. Other engines may write any number of them, each for rows of several segments.
"""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from lastword.clock import new_uuid
from lastword.segments.damage import damage_named
from lastword.segments.fileio import SyncedFileIO, bare_path
from lastword.segments.foreign import mapped
from lastword.segments.model import DeleteFile, Segment

Positions = npt.NDArray[np.int64]
"""Numbers of rows of a file, from 0, in order."""

DELETE_FILE_SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={b"PARQUET:field_id": b"2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={b"PARQUET:field_id": b"2147483545"}),
    ]
)
"""The columns of a position-delete file, with the field ids that Iceberg reserves for them."""

CACHED_MARKS: Final = 1 << 22

_SKETCH_KEY: Final = b"lastword.marks.key-sketch"
"""A sketch of the live keys (sketch.py), in base64; absent while the one of the data file is good enough."""
_SKETCHED_KEY: Final = b"lastword.marks.sketched"
"""The number of marks for which that sketch was made."""

_NONE: Final[Positions] = np.empty(0, np.int64)


class LiveRows:
    """The live rows of a segment's file, row group by row group."""

    def __init__(self, marked: Positions, group_rows: Sequence[int]) -> None:
        self._marked = marked
        self._group_rows = group_rows
        self._first = np.cumsum([0, *group_rows])
        # The marks of each row group are a slice of all marks.
        self._cuts = np.searchsorted(marked, self._first).tolist()

    @property
    def is_all(self) -> bool:
        return not len(self._marked)

    def count(self, group: int) -> int:
        """Return the number of live rows of a row group."""
        return self._group_rows[group] - int(self._cuts[group + 1] - self._cuts[group])

    def of(self, group: int) -> npt.NDArray[np.bool_] | None:
        """Return which rows of a row group are live; None if all are."""
        marked = self._marked[self._cuts[group] : self._cuts[group + 1]]
        if not len(marked):
            return None
        live = np.ones(self._group_rows[group], np.bool_)
        live[marked - self._first[group]] = False
        return live

    def among(self, groups: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """Return which rows of some row groups, one after another, are live; None if all are."""
        masks = [self.of(group) for group in groups]
        if all(mask is None for mask in masks):
            return None
        return np.concatenate(
            [
                np.ones(self._group_rows[group], np.bool_) if mask is None else mask
                for group, mask in zip(groups, masks, strict=True)
            ]
        )

    def positions(self) -> Positions:
        """Return the numbers of the live rows."""
        return np.delete(np.arange(self._first[-1]), self._marked)


def filtered(rows: pa.Table, live: npt.NDArray[np.bool_] | None) -> pa.Table:
    """Return the live ones of some rows."""
    return rows if live is None else rows.filter(pa.array(live))


def live_rows(file_io: SyncedFileIO, segment: Segment, group_rows: Sequence[int]) -> LiveRows:
    """Return the live rows of a segment whose file has row groups of this many rows."""
    return LiveRows(load(file_io, segment), group_rows)


def load(file_io: SyncedFileIO, segment: Segment) -> Positions:
    """Return the rows of a segment that are marked. Errors are those of reading a segment."""
    if segment.marks is None:
        return _NONE
    found = [_of_file(file_io, segment, each) for each in segment.marks.files]
    marked = found[0] if len(found) == 1 else np.unique(np.concatenate(found))
    # Another engine may list rows that the file does not have.
    return marked[: int(np.searchsorted(marked, segment.rows))]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSketch:
    """A sketch of the live keys of a segment. If `sketch` is None, that of its data file is good enough."""

    sketch: bytes | None = None
    marks: int = 0
    """The number of marks for which it was made."""

    def metadata(self) -> dict[bytes, bytes]:
        """Return what a delete file keeps of it."""
        found = {_SKETCHED_KEY: str(self.marks).encode()}
        return found if self.sketch is None else {**found, _SKETCH_KEY: base64.b64encode(self.sketch)}


def live_sketch(file_io: SyncedFileIO, segment: Segment) -> LiveSketch | None:
    """Return the sketch in the delete file of a segment; None if another engine marked rows of it."""
    if segment.marks is None or len(segment.marks.files) > 1 or segment.marks.files[0].is_shared:
        return None
    path = segment.marks.files[0].path
    with damage_named(file_io, segment, path), file_io.new_input(path).open() as source:
        pairs = pq.ParquetFile(source).metadata.metadata or {}
        if _SKETCHED_KEY not in pairs:
            return None
        try:
            sketch = base64.b64decode(pairs[_SKETCH_KEY], validate=True) if _SKETCH_KEY in pairs else None
            return LiveSketch(sketch=sketch, marks=int(pairs[_SKETCHED_KEY]))
        except ValueError as error:
            raise pa.ArrowInvalid(f"its footer can't be read: {error}") from error


def write(file_io: FileIO, path: str, rows: pa.Table, metadata: Mapping[bytes, bytes] | None = None) -> int:
    """Write a delete file of rows in DELETE_FILE_SCHEMA. Return its size."""
    stream = file_io.new_output(path).create(overwrite=True)
    with stream:
        pq.write_table(
            rows.replace_schema_metadata(metadata),
            stream,
            compression="zstd",
            use_dictionary=["file_path"],
            column_encoding={"pos": "DELTA_BINARY_PACKED"},
            write_page_checksum=True,
        )
        return int(stream.tell())


def rewrite_paths(file_io: FileIO, path: str, moved: Callable[[str], str]) -> tuple[str, int]:
    """Write a delete file again beside it, with other paths of data files. Return the location and the size of it."""
    with file_io.new_input(path).open() as source:
        parquet = pq.ParquetFile(source, page_checksum_verification=True)
        rows = parquet.read(columns=DELETE_FILE_SCHEMA.names, use_threads=False)
        metadata = {
            key: value
            for key, value in (parquet.metadata.metadata or {}).items()
            if key in (_SKETCH_KEY, _SKETCHED_KEY)
        }
    paths = rows.column("file_path").combine_chunks().dictionary_encode()
    renamed = pa.array([moved(each) for each in paths.dictionary.to_pylist()], pa.string())
    target = renamed_copy(path)
    content = pa.table([renamed.take(paths.indices), rows.column("pos")], schema=DELETE_FILE_SCHEMA)
    return target, write(file_io, target, content, metadata)


def renamed_copy(path: str) -> str:
    """Return a new name for another version of one of our delete files: only the end of the name differs."""
    stem, dash, _ = path.rpartition("-")
    return f"{stem}{dash}{new_uuid().hex[:8]}.deletes.parquet"


def targets(file_io: SyncedFileIO, file: DeleteFile) -> list[str]:
    """Return the data files whose rows a delete file lists, from the file itself."""
    with mapped("Reading a delete file", file.path), file_io.new_input(file.path).open() as source:
        paths = pq.ParquetFile(source).read(columns=["file_path"], use_threads=False).column("file_path")
    return [str(each) for each in pc.unique(paths).to_pylist()]


def _of_file(file_io: SyncedFileIO, segment: Segment, file: DeleteFile) -> Positions:
    path = bare_path(segment.path)
    if (known := _cache.get((file.path, path))) is not None:
        return known
    with damage_named(file_io, segment, file.path), file_io.new_input(file.path).open() as source:
        columns = ["file_path", "pos"] if file.is_shared else ["pos"]
        parquet = pq.ParquetFile(source, page_checksum_verification=True)
        rows = parquet.read(columns=columns, use_threads=False)
        if len(rows) != file.records:
            # The footer has no checksum, and a mark that is missed brings a record back.
            raise pa.ArrowInvalid(f"it has {len(rows)} rows, but there were {file.records}")
        if file.is_shared:
            paths = rows.column("file_path")
            own = [each for each in pc.unique(paths).to_pylist() if bare_path(each) == path]
            rows = rows.filter(pc.is_in(paths, pa.array(own, paths.type)))
    marked = np.unique(rows.column("pos").to_numpy())
    _cache.put((file.path, path), marked)
    return marked


class _Cache:
    """The marks that were read last. Delete files never change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, str], Positions] = OrderedDict()
        self._count = 0

    def get(self, key: tuple[str, str]) -> Positions | None:
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def put(self, key: tuple[str, str], marked: Positions) -> None:
        with self._lock:
            if key in self._found:
                return
            self._found[key] = marked
            self._count += len(marked)
            while self._count > CACHED_MARKS and len(self._found) > 1:
                self._count -= len(self._found.popitem(last=False)[1])


_cache = _Cache()
