"""Files of a table: on local disk, with the syncs that make them durable, or in an object store.

pyiceberg loads `SyncedFileIO` by name (FILE_IO) and writes manifests, manifest lists and metadata through it;
segment files go the same way. A local file and the folders above it are on disk when its stream is closed, so
before a catalog's pointer can name it. Object stores guarantee the same by themselves.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from lastword.errors import InvalidConfigError
from lastword.folder import disk

FILE_IO = f"{__name__}.SyncedFileIO"

_BUFFER_BYTES = 1 << 20
_WRITE_OUT_BYTES = 4 << 20
_IO_PREFIXES = ("s3.", "gcs.", "adls.", "hdfs.", "client.")
_file_systems: dict[tuple[object, ...], pafs.FileSystem] = {}


class SyncedStream(io.BufferedWriter):
    """A new local file. The file and its name in its folder are on disk when `close` has returned.

    It is written out bit by bit, so that appends to a WAL on the same disk don't wait for all of it at once.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        disk.make_folder(path.parent)
        self._path = path
        self._written_bytes = self._begun_bytes = 0
        super().__init__(io.FileIO(path, "w" if overwrite else "x"), _BUFFER_BYTES)

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        self._written_bytes += written
        if self._written_bytes - self._begun_bytes >= _WRITE_OUT_BYTES:
            self.flush()
            disk.begin_write_out(self.fileno(), self._begun_bytes, self._written_bytes - self._begun_bytes)
            self._begun_bytes = self._written_bytes
        return written

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.flush()
            disk.fsync(self.fileno())
        finally:
            super().close()
        disk.sync_folder(self._path.parent)


class SyncedFile(PyArrowFile):
    """A local file of a table."""

    def create(self, overwrite: bool = False) -> SyncedStream:
        return SyncedStream(Path(self._path), overwrite=overwrite)


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's file access through pyarrow, with syncs on local disk and connections that are kept."""

    def __init__(self, properties: Mapping[str, Any] | None = None) -> None:
        super().__init__(dict(properties or {}))
        self.fs_by_scheme = self._kept_file_system

    def _kept_file_system(self, scheme: str, netloc: str | None = None) -> pafs.FileSystem:
        # pyiceberg makes a FileIO with every load of a table. Connections are kept by the settings they depend on;
        # a forked process must not use those of its parent.
        key = (os.getpid(), scheme, netloc, *sorted(io_properties(self.properties).items()))
        if key not in _file_systems:
            _file_systems[key] = self._initialize_fs(scheme, netloc)
        return _file_systems[key]

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        if scheme != "file":
            return super().new_output(location)
        return SyncedFile(location, path, self.fs_by_scheme(scheme, netloc))

    def __getstate__(self) -> dict[str, Any]:
        return {"properties": self.properties}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["properties"])  # type: ignore[misc]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file as a listing shows it. `path` has no scheme: two spellings of one place compare equal."""

    path: str
    size_bytes: int
    changed_ms: int | None


class FileTree:
    """All files below a place. Listing `…/foo` never shows anything of `…/foo-bar`."""

    def __init__(self, file_io: SyncedFileIO, location: str) -> None:
        scheme, netloc, path = file_io.parse_location(location, file_io.properties)
        self._local = scheme == "file"
        self._file_system = file_io.fs_by_scheme(scheme, netloc)
        self._path = path.rstrip("/")

    @property
    def path(self) -> str:
        return self._path

    def files(self) -> Iterator[StoredFile]:
        selector = pafs.FileSelector(self._path, allow_not_found=True, recursive=True)
        for info in self._file_system.get_file_info(selector):
            if info.type == pafs.FileType.File and info.path.startswith(self._path + "/"):
                changed_ms = None if info.mtime_ns is None else info.mtime_ns // 1_000_000
                yield StoredFile(path=info.path, size_bytes=info.size, changed_ms=changed_ms)

    def remove_file(self, path: str) -> None:
        """Remove one file. It is no error if it is already gone."""
        try:
            self._file_system.delete_file(path)
        except FileNotFoundError:
            return
        except OSError:
            if self._file_system.get_file_info(path).type != pafs.FileType.NotFound:
                raise

    def remove(self) -> None:
        """Remove everything. On local disk, also remove the two folders above if nothing else is in them."""
        if self._file_system.get_file_info(self._path).type != pafs.FileType.NotFound:
            self._file_system.delete_dir(self._path)
        if not self._local:
            return
        at = Path(self._path).parent
        for folder in (at, at.parent):
            if not folder.exists():
                at = folder.parent
                continue
            try:
                folder.rmdir()
            except OSError:
                # It is not empty, perhaps only since a moment ago: another topic's files are in it.
                break
            at = folder.parent
        if at.is_dir():
            disk.sync_folder(at)


def io_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return those of a catalog's properties that say how to reach its files."""
    return {key: str(value) for key, value in properties.items() if key.startswith(_IO_PREFIXES)}


def warehouse_uri(warehouse: str) -> str:
    """Return a local path as a URI, and a URI as it is. Neither ends with a slash."""
    if "://" not in warehouse:
        warehouse = f"file://{Path(warehouse.removeprefix('file:')).absolute()}"
    # pyiceberg and other engines read the text after these as a query or a fragment, not as part of the path.
    if "#" in warehouse or "?" in warehouse:
        raise InvalidConfigError(f"The warehouse {warehouse!r} must not have '#' or '?' in its path.")
    return warehouse.rstrip("/")


def bare_path(location: str) -> str:
    """Return a location without its scheme, as listings show it."""
    return str(PyArrowFileIO.parse_location(location)[2])
