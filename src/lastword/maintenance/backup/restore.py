"""Makes a log of a backup: another folder, maybe on another host, that shares nothing with the original.

By its steps:
1. the manifest is read, and every piece that it names must be there with its size; the target must be empty;
2. a marker, `RESTORING`, says which backup the folder is made of. Without `FORMAT` nobody takes the folder for a log;
3. the data files are copied to the new warehouse, each with its checksum verified;
4. the WAL of each partition is laid out, under a leader epoch above any that was;
5. the tables are created in the new catalog, each by one commit, with the positions and segments of the backup;
6. the small files and the settings are written, the producers' ids begin a fresh block;
7. `FORMAT` is written: the folder is a log. The marker goes.

Killed or failed before 7: the folder can't be opened, and the same restore goes on with it, or it is removed. What is there
already is used where its checksum is right.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from lastword.clock import Clock, monotonic_s
from lastword.errors import (
    CorruptError,
    InvalidError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from lastword.folder import disk, identity, state_file
from lastword.folder.locks import Role, RoleLock
from lastword.folder.paths import (
    CONFIG_FILE,
    FORMAT_FILE,
    LOCKS_FOLDER,
    RESTORING_FILE,
    RUN_FOLDER,
    wal_folder,
)
from lastword.folder.steps import reached
from lastword.maintenance.backup import belongings, manifest, wals
from lastword.maintenance.backup.manifest import Manifest, SavedTopic, SavedWal
from lastword.maintenance.backup.store import BackupStore, Piece, chunks_of
from lastword.maintenance.tiering import OnBytes
from lastword.segments.fileio import FileTree, SyncedFileIO
from lastword.segments.foreign import FAILURES, mapped
from lastword.segments.model import Segment
from lastword.segments.storage import FORMAT

if TYPE_CHECKING:
    from lastword.segments.catalog import SegmentCatalog

_MAY_BE_THERE = (CONFIG_FILE, LOCKS_FOLDER, RUN_FOLDER, f"{RESTORING_FILE}.tmp")
THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What a restored folder was made of."""

    backup: Manifest
    place: str
    path: Path
    warehouse: str
    files: int
    size_bytes: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What the marker says. `users_settings`: the target had a settings file of the user's, which counts."""

    backup: str
    users_settings: bool
    warehouse: str | None = None
    """Where nothing of another log was when it began to write: what is there now is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The log that is made. `settings` is the text of its settings file, unless the user has one."""

    path: Path
    catalog: SegmentCatalog
    warehouse: str
    properties: Mapping[str, str]
    settings: str | None
    clock: Clock


def choose(place: BackupStore, backup_id: str | None) -> Manifest:
    """A backup of a place, by default the newest."""
    if backup_id is None:
        known = manifest.ids(place)
        if not known:
            raise InvalidError(f"There is no backup in {place.address}. `lastword backup` makes one.")
        backup_id = known[-1]
    return manifest.load(place, backup_id)


def begin(place: BackupStore, found: Manifest, folder: Path, *, clock: Clock) -> tuple[RoleLock, Begun]:
    """Check everything that can be checked, and make the folder the target of this restore. Its writer's role is held."""
    if found.data_format != FORMAT:
        raise InvalidError(
            f"The backup {found.id} has the data format {found.data_format!r}; this version of Lastword reads "
            f"{FORMAT!r} only. Restore it with the version that made it ({found.version})."
        )
    _check_target(folder, found)
    _check_pieces(place, found)
    disk.make_folder(folder)
    lock = RoleLock.acquire(folder, Role.WRITER, clock)
    try:
        begun = unfinished(folder)
        if begun is None:
            begun = Begun(backup=found.id, users_settings=(folder / CONFIG_FILE).exists())
            _mark(folder, begun)
        if identity.load(folder) is None:
            identity.save(folder, identity.new_identity(folder))
    except BaseException:
        lock.release()
        raise
    reached("restore.marked")
    return lock, begun


def _mark(folder: Path, begun: Begun) -> None:
    disk.replace_file(folder / RESTORING_FILE, json.dumps(asdict(begun)).encode())


def finish(folder: Path) -> None:
    """Make the folder a log."""
    disk.replace_file(folder / FORMAT_FILE, f"{FORMAT}\n".encode())
    reached("restore.made")
    (folder / RESTORING_FILE).unlink(missing_ok=True)


def unfinished(folder: Path) -> Begun | None:
    """The unfinished restore that a folder has."""
    return state_file.load(
        folder / RESTORING_FILE, lambda saved: Begun(**saved), "Remove the folder, and restore anew."
    )


def _check_target(folder: Path, found: Manifest) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InvalidError(f"{folder} is not a folder.")
    begun = unfinished(folder)
    if begun is not None and begun.backup == found.id:
        return
    if begun is not None:
        raise InvalidError(
            f"{folder} has an unfinished restore of the backup {begun.backup}. Go on with it (`--backup {begun.backup}`), or remove "
            f"the folder, and what it has put into the warehouse, first."
        )
    there = sorted(each.name for each in folder.iterdir() if each.name not in _MAY_BE_THERE)
    if there:
        raise InvalidError(f"{folder} is not empty ({there[0]} is there). Name an empty or a new folder.")


def _check_pieces(place: BackupStore, found: Manifest) -> None:
    there = place.sizes()
    wrong = [
        f"{piece.path} is missing"
        if piece.path not in there
        else f"{piece.path} has {there[piece.path]} bytes instead of {piece.size_bytes}"
        for piece in found.pieces()
        if there.get(piece.path) != piece.size_bytes
    ]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise CorruptError(
            f"The backup {found.id} in {place.address} is damaged: {wrong[0]}{more}. Nothing was restored. "
            f"Another backup of the place may be whole: `lastword backup list` shows them.",
            path=f"{place.address}/{wrong[0].partition(' ')[0]}",
        )


class Restore:
    """One restore, from when the target is marked until it may be made a log."""

    def __init__(self, place: BackupStore, found: Manifest, target: Target, progress: OnBytes | None) -> None:
        self._place = place
        self._found = found
        self._target = target
        self._file_io = SyncedFileIO(target.properties)
        self._progress = progress or (lambda _done, _total: None)
        self._total_bytes = found.size_bytes
        self._done_bytes = 0
        self._lock = Lock()

    def run(self, begun: Begun) -> RestoreReport:
        """Put everything into its place, or go on where an earlier attempt stopped that had begun to."""
        started_s = monotonic_s()
        # One that was refused has written nothing: what is there is still another's.
        self._check_free(resumed=begun.warehouse == self._target.warehouse)
        _mark(self._target.path, replace(begun, warehouse=self._target.warehouse))
        for topic in self._found.topics:
            self._restore(topic)
        belongings.put_back(self._target.path, self._found, now_ms=self._target.clock.now_ms())
        if self._target.settings is not None:
            path = self._target.path / CONFIG_FILE
            # There may be secrets in it: only whoever runs the restored log may read it.
            disk.replace_file(path, self._target.settings.encode(), mode=0o600)
        reached("restore.belongings.written")
        pieces = list(self._found.pieces())
        return RestoreReport(
            backup=self._found,
            place=self._place.address,
            path=self._target.path,
            warehouse=self._target.warehouse,
            files=len(pieces),
            size_bytes=self._total_bytes,
            duration_s=monotonic_s() - started_s,
        )

    def _check_free(self, *, resumed: bool) -> None:
        """Nothing of another log may be where the topics shall be."""
        for topic in self._found.topics:
            name = topic.info.name
            try:
                there = self._target.catalog.load(name).snapshot()
            except UnknownTopicError:
                there = None
            if there is not None and not (resumed and _is_ours(there.details, self._found)):
                raise TopicExistsError(
                    f"The catalog of the restored log has a topic {name!r} already. Name another catalog, or leave it to the "
                    f"folder's own: without `catalog:` in the settings."
                )
            location = self._target.catalog.location(name, topic.info.id)
            with mapped(f"Looking at {location}"):
                is_taken = not resumed and next(FileTree(self._file_io, location).files(), None) is not None
            if is_taken:
                raise InvalidError(
                    f"There are files at {location} already, of another log that has the topic {name!r}. "
                    f"Name another warehouse."
                )

    def _restore(self, topic: SavedTopic) -> None:
        info = topic.info
        location = self._target.catalog.location(info.name, info.id)
        root = f"data/{info.id.hex}/"
        segments = [
            replace(segment, path=f"{location}/{segment.path.removeprefix(root)}")
            for segment in topic.segments
        ]
        with ThreadPoolExecutor(THREADS, "lastword-restore") as pool:
            try:
                for _ in pool.map(self._put_segment, topic.pieces, segments):
                    pass
            finally:
                pool.shutdown(cancel_futures=True)
        self._lay_out_wals(topic)
        with suppress(UnknownTopicError):
            # Created by an attempt before this one: everything in it was restored.
            self._target.catalog.load(info.name)
            return
        self._target.catalog.create(
            info,
            positions=topic.positions,
            segments=segments,
            operation="restore",
            details={"backup": self._found.id},
        )
        reached("restore.table.created")

    def _lay_out_wals(self, topic: SavedTopic) -> None:
        folder = wal_folder(self._target.path, topic.info.name, topic.info.id)
        by_partition = {wal.partition: wal for wal in topic.wals}
        for partition, positions in enumerate(topic.positions):
            own = by_partition.get(partition) or SavedWal(partition=partition)
            wals.lay_out(
                folder / str(partition),
                own if own.epochs else replace(own, epochs=positions.epochs),
                self._put_file,
                topic_id=topic.info.id,
                log_end=topic.log_end(partition),
                now_ms=self._target.clock.now_ms(),
            )

    # ---------------------------------------------------------------------------------------------- copying

    def _put_segment(self, piece: Piece, segment: Segment) -> None:
        if self._holds(segment.path, piece):
            self._pass(piece.size_bytes)
            return
        stream: Any = None
        try:
            with mapped("Writing a segment file", segment.path):
                stream = self._file_io.new_output(segment.path).create(overwrite=True)
                for chunk in self._verified(piece):
                    stream.write(chunk)
                stream.close()
        except BaseException:
            if stream is not None:
                # A part of it must not pass for the file.
                with suppress(Exception):
                    stream.close()
                with suppress(Exception):
                    self._file_io.delete(segment.path)
            raise
        reached("restore.file.copied")

    def _holds(self, location: str, piece: Piece) -> bool:
        """Whether an earlier attempt has put a piece there, whole."""
        file = self._file_io.new_input(location)
        with mapped("Reading a segment file", location):
            if not file.exists() or len(file) != piece.size_bytes:
                return False
            with file.open() as stream:
                return _checksum(chunks_of(stream)) == piece.sha256

    def _put_file(self, piece: Piece, path: Path) -> None:
        temporary = path.with_name(path.name + ".part")
        try:
            with temporary.open("wb", buffering=0) as file:
                for chunk in self._verified(piece):
                    disk.write_all(file.fileno(), chunk)
                disk.fsync(file.fileno())
            temporary.replace(path)
            disk.sync_folder(path.parent)
        except OSError as error:
            raise StorageError(f"Can't write {path}: {error.strerror or error}.") from error
        finally:
            temporary.unlink(missing_ok=True)
        reached("restore.file.copied")

    def _verified(self, piece: Piece) -> Iterator[bytes]:
        """The bytes of a piece. CorruptError at its end if they are not what they must be."""
        where = f"{self._place.address}/{piece.path}"
        checksum = hashlib.sha256()
        try:
            with self._place.open(piece.path) as source:
                for chunk in chunks_of(source):
                    checksum.update(chunk)
                    yield chunk
                    self._pass(len(chunk))
        except FileNotFoundError:
            raise self._damaged(where, "is missing") from None
        except FAILURES as error:
            raise StorageError(f"Can't read {where}: {error}") from error
        if checksum.hexdigest() != piece.sha256:
            raise self._damaged(where, "is damaged: its checksum is wrong")

    def _damaged(self, where: str, what: str) -> CorruptError:
        return CorruptError(
            f"{where} {what}. The restore of {self._target.path} is not done, and can't be opened. Remove it and restore another "
            f"backup (`lastword backup list` shows them), or repair the file and run the same command again.",
            path=where,
        )

    def _pass(self, size_bytes: int) -> None:
        with self._lock:
            self._done_bytes += size_bytes
            self._progress(min(self._done_bytes, self._total_bytes), self._total_bytes)


def _is_ours(details: Mapping[str, str], found: Manifest) -> bool:
    return details.get("backup") == found.id


def _checksum(chunks: Iterator[bytes]) -> str:
    checksum = hashlib.sha256()
    for chunk in chunks:
        checksum.update(chunk)
    return checksum.hexdigest()
