"""Stores of backups: a folder, or an address in an object store. A file in a store is either whole or absent."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from lastword.errors import InvalidError, StorageError
from lastword.folder import disk
from lastword.folder.steps import reached
from lastword.segments.fileio import FileTree, SyncedFileIO
from lastword.segments.foreign import FAILURES

CHUNK_BYTES = 4 << 20
_PART = ".part"
"""The suffix of local files that are being written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A file in a store: its path there, and the size and checksum of its content."""

    path: str
    size_bytes: int
    sha256: str


class BackupStore(Protocol):
    """The operations that backups need. Paths are relative to the store, with slashes."""

    @property
    def address(self) -> str: ...

    def sizes(self, under: str = "") -> dict[str, int]:
        """Return every file below a folder of the store, with its size."""
        ...

    def open(self, path: str) -> BinaryIO:
        """Open a file. Raise FileNotFoundError if it does not exist."""
        ...

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file and sync it. If the chunks raise, nothing of it is left."""
        ...

    def remove(self, path: str) -> None: ...


def open_store(address: str | Path, properties: Mapping[str, str]) -> BackupStore:
    """Open the store at an address. `properties` say how to reach an object store, as those of a catalog do."""
    text = str(address)
    if "://" not in text:
        return Folder(Path(text).absolute())
    scheme, _, rest = text.partition("://")
    if scheme == "file":
        return Folder(Path("/" + rest.lstrip("/")))
    if "#" in text or "?" in text or not rest.strip("/"):
        raise InvalidError(
            f"{text!r} is not a place for backups. Allowed: a folder, or an address such as s3://bucket/path, "
            f"without '#' and '?'."
        )
    return ObjectStore(text.rstrip("/"), properties)


def chunks_of(file: Any) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield bytes(chunk)


def put(
    store: BackupStore, path: str, chunks: Iterable[bytes], *, passed: Callable[[int], None] = lambda _: None
) -> Piece:
    """Write a file and return its size and checksum. `passed` is called with the size of each chunk."""
    checksum = hashlib.sha256()
    size_bytes = 0

    def counted() -> Iterator[bytes]:
        nonlocal size_bytes
        for chunk in chunks:
            checksum.update(chunk)
            size_bytes += len(chunk)
            yield chunk
            passed(len(chunk))

    store.write(path, counted())
    return Piece(path=path, size_bytes=size_bytes, sha256=checksum.hexdigest())


class Folder:
    """A folder in a local file system."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def address(self) -> str:
        return str(self._root)

    def is_inside(self, folder: Path) -> bool:
        return self._root.resolve().is_relative_to(folder.resolve())

    def sizes(self, under: str = "") -> dict[str, int]:
        top = self._root / under
        found: dict[str, int] = {}
        try:
            for path in top.rglob("*") if top.exists() else ():
                if path.is_file():
                    found[path.relative_to(self._root).as_posix()] = path.stat().st_size
        except OSError as error:
            raise _failed("list", str(top), error) from error
        return found

    def open(self, path: str) -> BinaryIO:
        return (self._root / path).open("rb")

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        target = self._root / path
        part = target.with_name(target.name + _PART)
        try:
            disk.make_folder(target.parent)
            # Only the owner may read it: it has records, or the settings with their secrets.
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _failed("write", str(target), error) from error
        try:
            try:
                for chunk in chunks:
                    disk.write_all(fd, chunk)
                disk.fsync(fd)
            finally:
                os.close(fd)
            reached("place.written")
            part.replace(target)
            disk.sync_folder(target.parent)
        except BaseException as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise _failed("write", str(target), error) from error
            raise

    def remove(self, path: str) -> None:
        target = self._root / path
        try:
            target.unlink(missing_ok=True)
            for folder in target.relative_to(self._root).parents:
                # Except the last one, which is the store itself.
                if folder != Path():
                    (self._root / folder).rmdir()
        except OSError as error:
            if target.exists():
                raise _failed("remove", str(target), error) from error


class ObjectStore:
    """A prefix in an object store, accessed in the same way as the files of tables."""

    def __init__(self, address: str, properties: Mapping[str, str]) -> None:
        self._address = address
        self._file_io = SyncedFileIO(properties)
        try:
            self._tree = FileTree(self._file_io, address)
        except (ValueError, *FAILURES) as error:
            raise InvalidError(f"{address!r} is not a place for backups: {error}") from error

    @property
    def address(self) -> str:
        return self._address

    def sizes(self, under: str = "") -> dict[str, int]:
        top = FileTree(self._file_io, f"{self._address}/{under}".rstrip("/"))
        try:
            return {each.path.removeprefix(self._tree.path + "/"): each.size_bytes for each in top.files()}
        except FAILURES as error:
            raise _failed("list", f"{self._address}/{under}", error) from error

    def open(self, path: str) -> BinaryIO:
        stream: Any = self._file_io.new_input(f"{self._address}/{path}").open()
        return stream  # type: ignore[no-any-return]

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        location = f"{self._address}/{path}"
        try:
            stream: Any = self._file_io.new_output(location).create(overwrite=True)
        except FAILURES as error:
            raise _failed("write", location, error) from error
        try:
            for chunk in chunks:
                stream.write(chunk)
            stream.close()
        except BaseException as error:
            # Closing completes the upload of a partial file, which must not be mistaken for the whole.
            with suppress(Exception):
                stream.close()
            with suppress(Exception):
                self._file_io.delete(location)
            if isinstance(error, FAILURES) and not isinstance(error, FileNotFoundError):
                raise _failed("write", location, error) from error
            raise

    def remove(self, path: str) -> None:
        try:
            self._tree.remove_file(f"{self._tree.path}/{path}")
        except FAILURES as error:
            raise _failed("remove", f"{self._address}/{path}", error) from error


def _failed(action: str, where: str, error: BaseException) -> StorageError:
    return StorageError(f"Can't {action} {where}: {getattr(error, 'strerror', None) or error}.")
