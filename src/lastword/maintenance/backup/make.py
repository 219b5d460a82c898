"""Makes a backup of a log while it is being written, or while no process has it open.

The steps:
1. sources are kept from appending, and the small files of the folder are read (belongings.py);
2. the topic of the consumer groups is copied as in 3, before all others: no committed offset is ahead of its topic;
3. for each topic, its WAL is copied from the sealed end on (wals.py), then the current snapshot of its table is pinned
   by a lease. Records that the copy of the WAL lacks were sealed before that, so no record is in neither. Then sources
   may append again;
4. the data files of the pinned snapshots are copied, except those that the store has already. Data files never change,
   and no two have the same name;
5. the manifest is written. This completes the backup;
6. backups beyond those to be kept are removed, manifests first, then files that no manifest names.

Killed before 5: the earlier backups are unchanged, and the next run uses the data files that were copied. Killed in 6:
files that no manifest names are left, and the next run removes them. One process at a time makes backups of a folder.

A topic that can't be copied is left out, and reported with the reason. The other topics are copied.
"""

from __future__ import annotations

import hashlib
import logging
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from lastword.clock import Clock, monotonic_s
from lastword.config import is_internal
from lastword.errors import CorruptError, InvalidError, LastwordError, UnavailableError, UnknownTopicError
from lastword.folder.leases import HeldLease, LeaseKeeper
from lastword.folder.locks import Role, RoleLock
from lastword.folder.paths import wal_folder
from lastword.folder.steps import reached
from lastword.maintenance.backup import belongings, manifest, wals
from lastword.maintenance.backup.manifest import Manifest, SavedTopic, SavedWal
from lastword.maintenance.backup.store import CHUNK_BYTES, BackupStore, Folder, Piece, chunks_of, put
from lastword.maintenance.tiering import OnBytes
from lastword.segments.fileio import bare_path
from lastword.segments.foreign import mapped
from lastword.segments.model import READS, Segment, SegmentGoneError, Snapshot, TableFile, retry_if_moved
from lastword.segments.storage import FORMAT

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable

logger = logging.getLogger(__name__)

DATA_FOLDER = "data"
THREADS = 4
"""The number of data files copied at a time."""

_OF_A_TOPIC = re.compile(r"[a-z]+/[0-9a-f]{32}/")
"""The beginning of all paths in a store's folders for data and WALs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    """The content of a new backup, and the work done for it. It is complete if there are no problems."""

    backup: Manifest
    place: str
    copied_files: int
    copied_bytes: int
    reused_files: int
    removed_backups: tuple[str, ...]
    removed_files: int
    duration_s: float
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The log that is backed up."""

    path: Path
    folder_id: str
    settings: str | None
    names: Callable[[], Sequence[str]]
    load: Callable[[str], SegmentTable]
    leases: LeaseKeeper
    clock: Clock


@dataclass(slots=True)
class _Pinned:
    """A topic whose WAL has been copied: the pinned snapshot, and the copy."""

    table: SegmentTable
    snapshot: Snapshot
    wals: tuple[SavedWal, ...]
    lease: HeldLease


def make(
    origin: Origin,
    store: BackupStore,
    *,
    keep: int | None = None,
    progress: OnBytes | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> BackupReport:
    """Make a backup of a log in a store. With `keep`, keep only that many of the newest backups there."""
    if keep is not None and keep < 1:
        raise InvalidError(f"Can't keep {keep} backups: at least 1, the new one, is kept.")
    if isinstance(store, Folder) and store.is_inside(origin.path):
        raise InvalidError(
            f"{store.address} is inside the data folder {origin.path}, and would be lost with it. Name another place."
        )
    with RoleLock.acquire(origin.path, Role.BACKUP, origin.clock):
        return _Job(origin, store, progress or (lambda _done, _total: None), stop).run(keep)


class _Job:
    """One backup."""

    def __init__(
        self, origin: Origin, store: BackupStore, progress: OnBytes, stop: Callable[[], bool]
    ) -> None:
        self._origin = origin
        self._store = store
        self._progress = progress
        self._stop = stop
        self._problems: list[str] = []
        self._lock = Lock()
        self._done_bytes = self._total_bytes = 0
        self._copied_files = self._copied_bytes = self._reused_files = 0

    def run(self, keep: int | None) -> BackupReport:
        started_s, began_ms = monotonic_s(), self._origin.clock.now_ms()
        earlier, unreadable = load_all(self._store)
        self._check_owner(earlier)
        self._check_strangers()
        known = {piece.path: piece for each in earlier for piece in each.pieces()}
        there = self._store.sizes(DATA_FOLDER)
        with ExitStack() as pins:
            with belongings.sources_held(self._origin.path):
                files = belongings.collect(self._origin.path)
                reached("backup.belongings.read")
                pinned = self._pin_all(pins, earlier)
            topics = self._copy_all(pinned, pins, known, there)
        made = Manifest(
            id=manifest.new_id(began_ms, manifest.ids(self._store)),
            version=version("lastword"),
            began_ms=began_ms,
            made_ms=self._origin.clock.now_ms(),
            folder=str(self._origin.path),
            folder_id=self._origin.folder_id,
            host=socket.gethostname(),
            data_format=FORMAT,
            settings=self._origin.settings,
            topics=tuple(topics),
            files=files,
            problems=tuple(self._problems),
        )
        reached("backup.copied")
        # Another log may have started backups here meanwhile. It has removed the files that no backup names.
        self._check_owner(load_all(self._store)[0])
        manifest.save(self._store, made)
        reached("backup.made")
        backups, unreadable = load_all(self._store)
        removed_backups, removed_files = self._tidy_up(backups, unreadable, keep)
        return BackupReport(
            backup=made,
            place=self._store.address,
            copied_files=self._copied_files,
            copied_bytes=self._copied_bytes,
            reused_files=self._reused_files,
            removed_backups=tuple(removed_backups),
            removed_files=removed_files,
            duration_s=monotonic_s() - started_s,
            problems=(*self._problems, *unreadable),
        )

    def _check_owner(self, earlier: Sequence[Manifest]) -> None:
        for each in earlier:
            # A folder of the first version has no identity until it is next opened for writing.
            if self._origin.folder_id and each.folder_id not in ("", self._origin.folder_id):
                raise InvalidError(
                    f"{self._store.address} has backups of another log, {each.folder} on {each.host} "
                    f"(backup {each.id}). Each log needs its own place for backups. Name another one."
                )

    def _check_strangers(self) -> None:
        """Refuse a store with other files: files that no backup names are removed at the end."""
        for folder in (DATA_FOLDER, wals.FOLDER):
            for path in sorted(self._store.sizes(folder)):
                if not _OF_A_TOPIC.match(path):
                    raise InvalidError(
                        f"{self._store.address} is in use by something else: {path} is there, which is not part of a "
                        f"backup. Name an empty or a new folder."
                    )

    # ------------------------------------------------------------------------------------------- the cut

    def _pin_all(self, pins: ExitStack, earlier: Sequence[Manifest]) -> list[_Pinned]:
        known = wals.known_files(
            [(topic.info.id, wal) for each in earlier for topic in each.topics for wal in topic.wals],
            self._store.sizes(wals.FOLDER),
        )
        names = self._origin.names()
        pinned: list[_Pinned] = []
        # Internal topics first: the offsets of groups must not be ahead of the topics that they refer to.
        for name in sorted(names, key=lambda each: (not is_internal(each), each)):
            self._check_wanted()
            try:
                pinned.append(self._pin_topic(name, pins, known))
            except UnknownTopicError:
                # Deleted meanwhile, or being deleted.
                continue
            except LastwordError as error:
                self._leave_out(name, error)
        return pinned

    def _pin_topic(self, name: str, pins: ExitStack, known: wals.Known) -> _Pinned:
        table = self._origin.load(name)
        for _ in range(READS):
            saved = self._save_wals(table, known)
            reached("backup.wals.copied")
            snapshot, lease = self._pin(table)
            if not (missing := _missing(saved, snapshot)):
                pins.enter_context(lease)
                reached("backup.pinned")
                return _Pinned(table=table, snapshot=snapshot, wals=saved, lease=lease)
            # The active file was replaced during the copy, because the partition was reopened.
            lease.release()
        partition, offset = missing[0]
        folder = wal_folder(self._origin.path, snapshot.topic.name, snapshot.topic.id) / str(partition)
        raise CorruptError(
            f"No WAL file in {folder} holds offset {offset}, and it is not sealed. "
            f"`lastword wal repair {name}` shows what can be kept.",
            path=str(folder),
            offset=offset,
        )

    def _save_wals(self, table: SegmentTable, known: wals.Known) -> tuple[SavedWal, ...]:
        at = table.snapshot()
        if at.topic.deleted:
            raise UnknownTopicError(f"topic {at.topic.name!r} has been deleted")
        folder = wal_folder(self._origin.path, at.topic.name, at.topic.id)
        return tuple(
            wals.save(
                self._store,
                folder / str(partition),
                topic_id=at.topic.id,
                partition=partition,
                sealed_end=positions.sealed_end,
                known=known,
            )
            for partition, positions in enumerate(at.positions)
        )

    def _pin(self, table: SegmentTable) -> tuple[Snapshot, HeldLease]:
        """Pin the current snapshot. Expiry and collection keep its files from now on."""

        def attempt() -> tuple[Snapshot, HeldLease]:
            snapshot = table.snapshot()
            lease = self._origin.leases.hold(
                topic_id=snapshot.topic.id.hex, job="backup", snapshot_id=snapshot.id
            )
            try:
                # It may have been replaced and expired before the lease was there.
                table.snapshot(snapshot.id)
                return snapshot, lease
            except BaseException:
                lease.release()
                raise

        return retry_if_moved(attempt, f"The table in {table.location}")

    # -------------------------------------------------------------------------------------- data files

    def _copy_all(
        self, pinned: Sequence[_Pinned], pins: ExitStack, known: Mapping[str, Piece], there: Mapping[str, int]
    ) -> list[SavedTopic]:
        topics: list[SavedTopic] = []
        self._total_bytes = sum(_sealed_bytes(each) for each in pinned)
        for each in pinned:
            name = each.snapshot.topic.name
            try:
                topics.append(self._copy_topic(each, pins, known, there))
            except UnknownTopicError:
                # Deleted while it was being copied: its files may be gone.
                continue
            except _UnwantedError:
                raise
            except LastwordError as error:
                self._leave_out(name, error)
        return topics

    def _copy_topic(
        self, pinned: _Pinned, pins: ExitStack, known: Mapping[str, Piece], there: Mapping[str, int]
    ) -> SavedTopic:
        def attempt() -> tuple[Sequence[Segment], list[Piece]]:
            try:
                segments = pinned.table.plan(pinned.snapshot)
                return segments, self._copy_segments(pinned, segments, known, there)
            except SegmentGoneError:
                # An erasure removes every older snapshot, even a leased one. The new snapshot has the rest.
                pinned.snapshot, pinned.lease = self._pin(pinned.table)
                pins.enter_context(pinned.lease)
                raise

        segments, pieces = retry_if_moved(attempt, f"Topic {pinned.snapshot.topic.name!r}")
        snapshot = pinned.snapshot
        return SavedTopic(
            info=snapshot.topic,
            snapshot_id=snapshot.id,
            positions=snapshot.positions,
            segments=tuple(segment.moved(partial(_path_in_store, pinned)) for segment in segments),
            pieces=tuple(pieces),
            wals=tuple(wals.needed(wal, snapshot.positions[wal.partition].sealed_end) for wal in pinned.wals),
        )

    def _copy_segments(
        self,
        pinned: _Pinned,
        segments: Sequence[Segment],
        known: Mapping[str, Piece],
        there: Mapping[str, int],
    ) -> list[Piece]:
        # A delete file of another engine may list rows of several segments.
        files = dict.fromkeys(file for segment in segments for file in segment.files)

        def copy(file: TableFile) -> Piece:
            self._check_wanted()
            path = _path_in_store(pinned, file.path)
            return self._copy_file(pinned.table, file, path, known.get(path), there.get(path))

        return list(_in_order(list(files), copy))

    def _copy_file(
        self, table: SegmentTable, file: TableFile, path: str, known: Piece | None, there_bytes: int | None
    ) -> Piece:
        if there_bytes == file.size_bytes:
            piece = known if known is not None and known.size_bytes == file.size_bytes else None
            # A killed run has left it. Its name and size identify it, and its checksum is that of the original.
            piece = piece or Piece(path=path, size_bytes=there_bytes, sha256=_checksum(table, file))
            with self._lock:
                self._reused_files += 1
            self._pass(file.size_bytes)
            return piece
        with (
            mapped("Copying a segment file", file.path),
            table.files.file_io().new_input(file.path).open() as source,
        ):
            piece = put(self._store, path, chunks_of(source), passed=self._pass)
        reached("backup.file.copied")
        with self._lock:
            self._copied_files += 1
            self._copied_bytes += piece.size_bytes
        return piece

    def _pass(self, size_bytes: int) -> None:
        self._check_wanted()
        with self._lock:
            self._done_bytes += size_bytes
            self._progress(min(self._done_bytes, self._total_bytes), self._total_bytes)

    def _check_wanted(self) -> None:
        if self._stop():
            raise _UnwantedError(
                "The backup was cancelled. The next backup uses the files copied so far. Earlier backups are unchanged."
            )

    def _leave_out(self, name: str, error: LastwordError) -> None:
        if isinstance(error, _UnwantedError):
            raise error
        logger.error("%s is not in the backup: %s", name, error)
        self._problems.append(f"topic {name!r} is not in the backup: {error}")

    # ---------------------------------------------------------------------------------------- tidying up

    def _tidy_up(
        self, backups: Sequence[Manifest], unreadable: Sequence[str], keep: int | None
    ) -> tuple[list[str], int]:
        """Remove backups beyond `keep`, and files that no backup names. Return the backups and the number of files."""
        # The files that a damaged manifest names are unknown, so nothing is removed.
        if unreadable:
            return [], 0
        in_order = sorted(backups, key=lambda each: each.id)
        # A backup that lacks a topic does not replace one that may have it.
        kept = in_order if keep is None or self._problems else in_order[-keep:]
        gone = [each.id for each in in_order if each not in kept]
        for backup_id in gone:
            self._store.remove(manifest.path_of(backup_id))
            reached("backup.removed")
        named = {piece.path for each in kept for piece in each.pieces()}
        garbage = [
            path
            for folder in (DATA_FOLDER, wals.FOLDER)
            for path in self._store.sizes(folder)
            if path not in named
        ]
        for path in garbage:
            self._store.remove(path)
        return gone, len(garbage)


class _UnwantedError(UnavailableError):
    """The client that requested the backup is gone."""


def load_all(store: BackupStore) -> tuple[list[Manifest], list[str]]:
    """Return the backups in a store, oldest first, and the problems of those that can't be read."""
    found: list[Manifest] = []
    problems: list[str] = []
    for backup_id in manifest.ids(store):
        try:
            found.append(manifest.load(store, backup_id))
        except CorruptError as error:
            problems.append(str(error))
    return found, problems


def _sealed_bytes(pinned: _Pinned) -> int:
    """Estimate the bytes to copy, for the progress. Errors are ignored here, because the copy will raise them."""
    try:
        return sum(segment.file_bytes for segment in pinned.table.plan(pinned.snapshot))
    except LastwordError:
        return 0


def _missing(saved: Sequence[SavedWal], snapshot: Snapshot) -> list[tuple[int, int]]:
    """Return the partitions and offsets that are neither in the copy of the WAL nor in the snapshot."""
    found = []
    for wal in saved:
        at = snapshot.positions[wal.partition]
        offset = wals.first_missing(wals.needed(wal, at.sealed_end), max(at.sealed_end, at.log_start))
        if offset is not None:
            found.append((wal.partition, offset))
    return found


def _path_in_store(pinned: _Pinned, path: str) -> str:
    """Return where a file of a table is in the store."""
    location = bare_path(pinned.table.location).rstrip("/") + "/"
    return (
        f"{DATA_FOLDER}/{pinned.snapshot.topic.id.hex}/{bare_path(path).removeprefix(location).lstrip('/')}"
    )


def _checksum(table: SegmentTable, file: TableFile) -> str:
    checksum = hashlib.sha256()
    with (
        mapped("Reading a segment file", file.path),
        table.files.file_io().new_input(file.path).open() as source,
    ):
        while chunk := source.read(CHUNK_BYTES):
            checksum.update(chunk)
    return checksum.hexdigest()


def _in_order(files: Sequence[TableFile], copy: Callable[[TableFile], Piece]) -> Iterator[Piece]:
    """Yield a piece for each file. Several are copied at a time. After a failure no further copy is started."""
    with ThreadPoolExecutor(THREADS, "lastword-backup") as pool:
        waiting: list[Future[Piece]] = [pool.submit(copy, each) for each in files]
        try:
            left = set(waiting)
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for each in done:
                    each.result()
            yield from (each.result() for each in waiting)
        finally:
            pool.shutdown(cancel_futures=True)
