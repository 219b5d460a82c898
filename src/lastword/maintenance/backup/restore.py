"""Restores a log from a backup, to another folder, maybe on another host, that shares nothing with the original.

The steps:
1. the manifest is read. Every piece that it names must be there with its size, and the target must be empty;
2. a marker, `RESTORING`, names the backup. Without `FORMAT` the folder does not count as a log;
3. the data files are copied to the new warehouse, each with its checksum verified;
4. the WAL of each partition is created, under a leader epoch above all earlier ones;
5. the tables are created in the new catalog, each by one commit, with the positions and segments of the backup;
6. the small files and the settings are written, and producer ids start at a fresh block;
7. `FORMAT` is written, which makes the folder a log, and the marker is removed.

Killed or failed before 7: the folder can't be opened. The same restore resumes in it, or the user removes it. Files
that are already there are used if their checksum is right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
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
from lastword.segments.fileio import FileTree, SyncedFileIO, io_properties
from lastword.segments.foreign import FAILURES, mapped
from lastword.segments.marking import copied
from lastword.segments.marks import rewrite_paths
from lastword.segments.model import DeleteFile, Segment
from lastword.segments.parquet import SegmentFiles
from lastword.segments.storage import FORMAT

if TYPE_CHECKING:
    from lastword.segments.catalog import SegmentCatalog

_MAY_BE_THERE = (CONFIG_FILE, LOCKS_FOLDER, RUN_FOLDER, f"{RESTORING_FILE}.tmp")
THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """The result of a restore."""

    backup: Manifest
    place: str
    path: Path
    warehouse: str
    files: int
    size_bytes: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The content of the marker. `users_settings`: the user put a settings file into the target, which takes effect."""

    backup: str
    users_settings: bool
    warehouse: str | None = None
    """The warehouse, once it was found free of other logs' files: from then on, its files are the restore's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLog:
    """The log to create. `settings` is the text of its settings file, unless the user has one."""

    path: Path
    catalog: SegmentCatalog
    warehouse: str
    properties: Mapping[str, str]
    settings: str | None
    clock: Clock


def choose(store: BackupStore, backup_id: str | None) -> Manifest:
    """Load a backup from a store, by default the newest."""
    if backup_id is None:
        known = manifest.ids(store)
        if not known:
            raise InvalidError(f"There is no backup in {store.address}. `lastword backup` makes one.")
        backup_id = known[-1]
    return manifest.load(store, backup_id)


def begin(store: BackupStore, found: Manifest, folder: Path, *, clock: Clock) -> tuple[RoleLock, Begun]:
    """Check all that can be checked, and mark the folder as the target. Return its writer role and the marker."""
    if found.data_format != FORMAT:
        raise InvalidError(
            f"The backup {found.id} has the data format {found.data_format!r}; this version of Lastword reads "
            f"{FORMAT!r} only. Restore it with the version that made it ({found.version})."
        )
    _check_target(folder, found)
    _check_pieces(store, found)
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
    state_file.save(folder / RESTORING_FILE, asdict(begun))


def finish(folder: Path) -> None:
    """Make the folder a log."""
    disk.replace_file(folder / FORMAT_FILE, f"{FORMAT}\n".encode())
    reached("restore.made")
    (folder / RESTORING_FILE).unlink(missing_ok=True)


def unfinished(folder: Path) -> Begun | None:
    """Return the marker of a folder's unfinished restore, if there is one."""
    return state_file.load(
        folder / RESTORING_FILE, lambda saved: Begun(**saved), "Remove the folder and restore again."
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
            f"{folder} has an unfinished restore of the backup {begun.backup}. Resume it "
            f"(`--backup {begun.backup}`), or first remove the folder and the files that it has put into the warehouse."
        )
    there = sorted(each.name for each in folder.iterdir() if each.name not in _MAY_BE_THERE)
    if there:
        raise InvalidError(f"{folder} is not empty ({there[0]} is there). Name an empty or a new folder.")


def _check_pieces(store: BackupStore, found: Manifest) -> None:
    there = store.sizes()
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
            f"The backup {found.id} in {store.address} is damaged: {wrong[0]}{more}. Nothing was restored. "
            f"Another backup there may be intact: `lastword backup list` shows them.",
            path=f"{store.address}/{wrong[0].partition(' ')[0]}",
        )


class Restore:
    """One restore, after the target is marked and until it can be made a log."""

    def __init__(self, store: BackupStore, found: Manifest, new: NewLog, progress: OnBytes | None) -> None:
        self._store = store
        self._found = found
        self._new = new
        self._file_io = SyncedFileIO(new.properties)
        self._progress = progress or (lambda _done, _total: None)
        self._total_bytes = found.size_bytes
        self._done_bytes = 0
        self._lock = Lock()

    def run(self, begun: Begun) -> RestoreReport:
        """Restore everything, or resume an earlier attempt that had begun to write."""
        started_s = monotonic_s()
        # An attempt that was refused has written nothing, so existing files belong to another log.
        self._check_free(resumed=begun.warehouse == self._new.warehouse)
        _mark(self._new.path, replace(begun, warehouse=self._new.warehouse))
        for topic in self._found.topics:
            self._restore(topic)
        belongings.put_back(self._new.path, self._found, now_ms=self._new.clock.now_ms())
        if self._new.settings is not None:
            path = self._new.path / CONFIG_FILE
            # It may contain secrets, so only the user who runs the restored log may read it.
            disk.replace_file(path, self._new.settings.encode(), mode=0o600)
        reached("restore.belongings.written")
        pieces = list(self._found.pieces())
        return RestoreReport(
            backup=self._found,
            place=self._store.address,
            path=self._new.path,
            warehouse=self._new.warehouse,
            files=len(pieces),
            size_bytes=self._total_bytes,
            duration_s=monotonic_s() - started_s,
        )

    def _check_free(self, *, resumed: bool) -> None:
        """Raise if another log has topics or files where the restored topics go."""
        for topic in self._found.topics:
            name = topic.info.name
            try:
                there = self._new.catalog.load(name).snapshot()
            except UnknownTopicError:
                there = None
            if there is not None and not (resumed and _is_ours(there.details, self._found)):
                raise TopicExistsError(
                    f"The catalog of the restored log already has a topic {name!r}. Name another catalog, or remove "
                    f"`catalog:` from the settings to use the folder's own."
                )
            location = self._new.catalog.location(name, topic.info.id)
            with mapped(f"Looking at {location}"):
                is_taken = not resumed and next(FileTree(self._file_io, location).files(), None) is not None
            if is_taken:
                raise InvalidError(
                    f"There are already files at {location}, of another log that has the topic {name!r}. "
                    f"Name another warehouse."
                )

    def _restore(self, topic: SavedTopic) -> None:
        info = topic.info
        location = self._new.catalog.location(info.name, info.id)
        root = f"data/{info.id.hex}/"

        def restored(path: str) -> str:
            return f"{location}/{path.removeprefix(root)}"

        with ThreadPoolExecutor(THREADS, "lastword-restore") as pool:
            try:
                for _ in pool.map(lambda piece: self._put_piece(piece, restored(piece.path)), topic.pieces):
                    pass
            finally:
                pool.shutdown(cancel_futures=True)
        self._lay_out_wals(topic)
        with suppress(UnknownTopicError):
            # An earlier attempt created it, with everything in it.
            self._new.catalog.load(info.name)
            return
        segments = [segment.moved(restored) for segment in topic.segments]
        with_own_marks, copies = self._with_own_marks(segments, location)
        self._new.catalog.create(
            info,
            positions=topic.positions,
            segments=with_own_marks,
            operation="restore",
            details={"backup": self._found.id},
        )
        reached("restore.table.created")
        for path in copies:
            # The collector removes what is left.
            with suppress(Exception):
                self._file_io.delete(path)

    def _lay_out_wals(self, topic: SavedTopic) -> None:
        folder = wal_folder(self._new.path, topic.info.name, topic.info.id)
        by_partition = {wal.partition: wal for wal in topic.wals}
        for partition, positions in enumerate(topic.positions):
            own = by_partition.get(partition) or SavedWal(partition=partition)
            wals.lay_out(
                folder / str(partition),
                own if own.epochs else replace(own, epochs=positions.epochs),
                self._put_file,
                topic_id=topic.info.id,
                log_end=topic.log_end(partition),
                now_ms=self._new.clock.now_ms(),
            )

    # ---------------------------------------------------------------------------------------------- copying

    def _with_own_marks(self, segments: Sequence[Segment], location: str) -> tuple[list[Segment], set[str]]:
        """Write delete files that list the rows of the restored files: the copied ones list those of the originals.

        Also return the copied ones.
        """
        files = SegmentFiles(location=location, properties=io_properties(self._file_io.properties))
        by_name = {each.path.rpartition("/")[2]: each.path for each in segments}
        shared: dict[str, DeleteFile] = {}

        def own(segment: Segment) -> Segment:
            if segment.marks is None:
                return segment
            for each in segment.marks.files:
                if each.is_shared and each.path not in shared:
                    path, size_bytes = rewrite_paths(
                        self._file_io, each.path, lambda old: by_name.get(old.rpartition("/")[2], old)
                    )
                    shared[each.path] = replace(each, path=path, size_bytes=size_bytes)
            listed = tuple(shared.get(each.path, each) for each in segment.marks.files)
            return copied(
                files, replace(segment, marks=replace(segment.marks, files=listed)), job_id="restore"
            )

        with mapped("Writing delete files", location):
            made = [own(each) for each in segments]
        copies = {file.path for segment in segments for file in segment.files[1:]}
        return made, copies | {each.path for each in shared.values()}

    def _put_piece(self, piece: Piece, path: str) -> None:
        if self._holds(path, piece):
            self._pass(piece.size_bytes)
            return
        stream: Any = None
        try:
            with mapped("Writing a segment file", path):
                stream = self._file_io.new_output(path).create(overwrite=True)
                for chunk in self._verified(piece):
                    stream.write(chunk)
                stream.close()
        except BaseException:
            if stream is not None:
                # A partial file must not be mistaken for the whole.
                with suppress(Exception):
                    stream.close()
                with suppress(Exception):
                    self._file_io.delete(path)
            raise
        reached("restore.file.copied")

    def _holds(self, location: str, piece: Piece) -> bool:
        """Return whether an earlier attempt has written the whole piece there."""
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
        """Yield the bytes of a piece. Raise CorruptError at the end if the checksum is wrong."""
        where = f"{self._store.address}/{piece.path}"
        checksum = hashlib.sha256()
        try:
            with self._store.open(piece.path) as source:
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
            f"{where} {what}. The restore to {self._new.path} is not finished, so the folder can't be opened. Remove it "
            f"and restore another backup (`lastword backup list` shows them), or repair the file and run the command again.",
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
