"""A disk that loses unsynced bytes and names when the power is cut.

`PowerCut` watches every sync that goes through `lastword.folder.disk`, and remembers the result: the bytes of a file, the
names in a folder. At the cut it captures the folder again. `restore` then puts the folder into a state that such a disk
may hold afterwards, chosen by a seed:

- a file has its bytes up to the last sync, and any part of the later ones, intact or garbled;
- a folder has its names as of the last sync; each name that was added, removed or moved later may have either state;
- a folder that was never synced into its parent may be missing.

SQLite syncs by itself: its file is as it was at the cut. Locks and leases need not outlive the machine.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastword.folder import disk

IN_PLACE = ("wal.state",)
"""Files that are overwritten in place, within one sector: they have the old content or the new."""

SYNCS_BY_ITSELF = ("catalog.db", "catalog.db-journal")


class CutError(BaseException):
    """The power is cut: nothing happens after this."""


@dataclass(frozen=True)
class Entry:
    """The target of a name in a folder."""

    inode: int
    is_folder: bool


Names = dict[str, Entry]


@dataclass
class Image:
    """The content of a disk, by inode: the bytes of files, the names in folders."""

    files: dict[int, bytes] = field(default_factory=dict)
    folders: dict[int, Names] = field(default_factory=dict)


class PowerCut:
    """Cuts the power at the n-th sync below a folder, before or after it, if `at` is given."""

    def __init__(self, folder: Path, at: int | None = None, *, seed: int = 0) -> None:
        self.folder = folder
        self.at = at
        self.random = random.Random(seed)
        self.syncs = 0
        self.synced = Image()
        self.last: Image | None = None
        self._looking = threading.Lock()
        self._is_told = False
        self._kept: dict[str, Callable[..., Any]] = {}
        self._remember_all(folder)

    # ------------------------------------------------------------------------------------------- watch

    def __enter__(self) -> PowerCut:
        for call in ("fdatasync", "fsync"):
            self._kept[call] = getattr(disk, call)
            setattr(disk, call, self._watched(self._kept[call]))
        return self

    def __exit__(self, *exc: object) -> None:
        for call, kept in self._kept.items():
            setattr(disk, call, kept)

    @property
    def is_cut(self) -> bool:
        return self.last is not None

    def cut(self) -> None:
        """Capture the disk's state. Later writes are discarded."""
        with self._looking:
            if self.last is None:
                self.last = Image()
                _look(self.folder, self.last)
        self._is_told |= threading.current_thread() is threading.main_thread()

    def _watched(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if path == self.folder.parent and self.last is None:
                _look(path, self.synced, only=self.folder.name)
            if self.last is not None and self._is_main_untold():
                # Another thread's sync was the last one. This thread must not act on it.
                raise CutError
            if self.last is not None or not path.is_relative_to(self.folder):
                # The power is cut, or the path is not in the folder.
                return call(fd)
            self.syncs += 1
            is_last = self.syncs == self.at
            if not is_last or self.random.random() < 0.5:
                self._remember(fd)
            if is_last:
                self.cut()
                # Other threads continue without effect, until their next sync.
                if threading.current_thread() is threading.main_thread():
                    raise CutError
            return None

        return sync

    def _is_main_untold(self) -> bool:
        if threading.current_thread() is not threading.main_thread() or self._is_told:
            return False
        self._is_told = True
        with self._looking:
            return True

    def _remember(self, fd: int) -> None:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self.synced.folders[status.st_ino] = _names(Path(f"/proc/self/fd/{fd}").readlink())
        else:
            self.synced.files[status.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def _remember_all(self, folder: Path) -> None:
        """Treat the current content of a folder, and its name in the parent, as synced."""
        _look(folder.parent, self.synced, only=folder.name)
        if folder.exists():
            _look(folder, self.synced)

    # ----------------------------------------------------------------------------------------- restore

    def restore(self) -> None:
        """Put the folder into a state that the disk may hold after the cut."""
        assert self.last is not None
        above = self.folder.parent.stat().st_ino
        name = self.folder.name
        there = {name: Entry(self.folder.stat().st_ino, True)} if self.folder.exists() else {}
        names = self._names_after(self.synced.folders.get(above, {}), there)
        shutil.rmtree(self.folder)
        if name in names:
            self._build(self.folder, names[name], self.last)

    def _build(self, path: Path, entry: Entry, last: Image) -> None:
        if entry.is_folder:
            path.mkdir()
            synced = self.synced.folders.get(entry.inode, {})
            for name, each in self._names_after(synced, last.folders.get(entry.inode, {})).items():
                self._build(path / name, each, last)
        else:
            path.write_bytes(self._bytes_after(path.name, entry.inode, last))

    def _names_after(self, synced: Names, last: Names) -> Names:
        held: Names = {}
        for name in sorted({*synced, *last}):
            before, after = synced.get(name), last.get(name)
            if name in SYNCS_BY_ITSELF:
                chosen = after
            else:
                chosen = before if before == after else self.random.choice([before, after])
            if chosen is not None:
                held[name] = chosen
        return held

    def _bytes_after(self, name: str, inode: int, last: Image) -> bytes:
        synced = self.synced.files.get(inode, b"")
        written = last.files.get(inode, synced)
        if name in SYNCS_BY_ITSELF:
            return written
        if name in IN_PLACE:
            return self.random.choice([synced, written])
        if not written.startswith(synced):
            # Truncated or overwritten since the sync: either state is possible.
            return self.random.choice([synced, written])
        end = self.random.randint(len(synced), len(written))
        unsynced = bytearray(written[len(synced) : end])
        if unsynced and self.random.random() < 0.5:
            start = self.random.randrange(len(unsynced))
            garbled = self.random.choice(
                [bytes(len(unsynced) - start), self.random.randbytes(len(unsynced) - start)]
            )
            unsynced[start:] = garbled
        return synced + bytes(unsynced)


def _look(folder: Path, image: Image, only: str | None = None) -> None:
    names = _names(folder)
    if only is not None:
        image.folders[folder.stat().st_ino] = {name: each for name, each in names.items() if name == only}
        return
    image.folders[folder.stat().st_ino] = names
    for path in folder.iterdir():
        if path.is_dir():
            _look(path, image)
        else:
            image.files[path.stat().st_ino] = path.read_bytes()


def _names(folder: Path) -> Names:
    with os.scandir(folder) as entries:
        return {entry.name: Entry(entry.inode(), entry.is_dir()) for entry in entries}
