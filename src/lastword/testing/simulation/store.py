"""An object store that fails: below pyarrow, where S3 would be.

A put is atomic: the object exists once its stream is closed, or not at all. By the plan's faults, a request fails without
effect, fails after it was carried out, or is slow.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

Trouble = Callable[[str], str]
"""Returns the fault of a request: "", "fails" or "fails after"."""


class Store(pafs.FileSystemHandler):  # type: ignore[misc]
    """An object store whose objects are files of a local folder."""

    def __init__(self, folder: Path, trouble: Trouble, now_ms: Callable[[], int]) -> None:
        self._local = pafs.LocalFileSystem()
        self._folder = folder
        self._trouble = trouble
        self._now_ms = now_ms
        self._changed_ms: dict[str, int] = {}

    @contextmanager
    def _request(self, what: str) -> Iterator[None]:
        trouble = self._trouble(what)
        if trouble == "fails":
            raise OSError(f"{what}: 503 Service Unavailable")
        yield
        if trouble:
            raise OSError(f"{what}: connection reset before the answer")

    def _path(self, path: str) -> str:
        return str(self._folder / path.lstrip("/"))

    def _info(self, found: pafs.FileInfo) -> pafs.FileInfo:
        path = found.path.removeprefix(f"{self._folder}/")
        changed_ms = self._changed_ms.get(path)
        return pafs.FileInfo(
            path, found.type, size=found.size, mtime_ns=None if changed_ms is None else changed_ms * 1_000_000
        )

    def get_type_name(self) -> str:
        return "simulated"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Iterable[str]) -> list[pafs.FileInfo]:
        with self._request("HEAD"):
            return [
                self._info(each) for each in self._local.get_file_info([self._path(path) for path in paths])
            ]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        own = pafs.FileSelector(
            self._path(selector.base_dir),
            allow_not_found=selector.allow_not_found,
            recursive=selector.recursive,
        )
        with self._request("LIST"):
            found = sorted(self._local.get_file_info(own), key=lambda each: each.path)
            return [self._info(each) for each in found if not each.path.endswith(".part")]

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(self._path(path), recursive=recursive)

    def delete_dir(self, path: str) -> None:
        with self._request("DELETE"):
            self._local.delete_dir(self._path(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        with self._request("DELETE"):
            self._local.delete_dir_contents(self._path(path), missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        with self._request("DELETE"):
            self._local.delete_file(self._path(path))

    def move(self, source: str, target: str) -> None:
        raise NotImplementedError

    def copy_file(self, source: str, target: str) -> None:
        with self._request("COPY"):
            self._local.copy_file(self._path(source), self._path(target))

    def open_input_stream(self, path: str) -> Any:
        with self._request("GET"):
            return self._local.open_input_stream(self._path(path))

    def open_input_file(self, path: str) -> Any:
        with self._request("GET"):
            return self._local.open_input_file(self._path(path))

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pa.PythonFile(_Put(self, path), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError

    def has(self, path: str) -> bool:
        """Return whether an object exists, without a request."""
        return Path(self._path(path)).exists()

    def put(self, path: str, data: bytes) -> None:
        with self._request("PUT"):
            target = Path(self._path(path))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            self._changed_ms[path] = self._now_ms()


class _Put(io.BytesIO):
    """An object that is being written."""

    def __init__(self, store: Store, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._store.put(self._path, data)
