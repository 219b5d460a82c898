"""The small files of a data folder beside its topics. Each is copied as it is.

| in the folder | in a backup |
|---|---|
| `lastword.yaml`, or the settings file that the log was opened with | its text |
| `readers/`, `uptime.json`, `cluster.id`, `broker.settings.json`, `producer.ids`, `erasing/` | yes |
| `connect/<source>/`: position, pause, groups | yes; not its lock and status |
| `staging/<topic id>/<sink>/committed.json` | yes |
| the staged unit of a source that is journaled and not appended | yes |
| `wal/`, the tables | see wals.py and make.py; not `aside/` and the state of idempotent producers |
| `catalog.db`, `FORMAT`, the folder's identity | created by the restore |
| `locks/`, `leases/`, `run/`, `creating/`, `deleting/`, `worker.json`, other staged files | no: state of running jobs |

Sources are exact: while the WAL is copied and snapshots are pinned, no source appends, so its position matches its
records. A source holds the lock `appending` while it appends a unit, and the backup holds it while it copies.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from lastword.clock import SystemClock
from lastword.errors import StorageError, UnavailableError
from lastword.folder import disk, state_file
from lastword.folder.locks import try_flock
from lastword.folder.paths import (
    BROKER_SETTINGS_FILE,
    CATALOG_FILE,
    CLUSTER_ID_FILE,
    COMMITTED_FILE,
    CONFIG_FILE,
    CONNECT_FOLDER,
    CREATING_FOLDER,
    DELETING_FOLDER,
    ERASING_FOLDER,
    FORMAT_FILE,
    IDENTITY_FILE,
    JOURNAL_FILE,
    LEASES_FOLDER,
    LOCKS_FOLDER,
    LOGS_FOLDER,
    PRODUCER_IDS_FILE,
    READERS_FOLDER,
    RESTORING_FILE,
    RUN_FOLDER,
    SOURCE_LOCK_FILE,
    SOURCE_STATUS_FILE,
    STAGING_FOLDER,
    UPTIME_FILE,
    WAL_FOLDER,
    WAREHOUSE_FOLDER,
    WORKER_FILE,
)
from lastword.maintenance.backup.manifest import Manifest, SavedFile

SINK_OF_SOURCE: Final = "connect-"
SOURCE_WAIT_MS: Final = 60_000
"""How long a source may take to append its current unit."""

COPIED: Final = (UPTIME_FILE, CLUSTER_ID_FILE, BROKER_SETTINGS_FILE, PRODUCER_IDS_FILE)
COPIED_FOLDERS: Final = (READERS_FOLDER, ERASING_FOLDER)
IN_PART: Final = (CONNECT_FOLDER, STAGING_FOLDER, WAL_FOLDER, WAREHOUSE_FOLDER, CATALOG_FILE, CONFIG_FILE)
CREATED: Final = (FORMAT_FILE, IDENTITY_FILE)
LEFT_OUT: Final = (
    *(LOCKS_FOLDER, LEASES_FOLDER, RUN_FOLDER, CREATING_FOLDER, DELETING_FOLDER, LOGS_FOLDER, WORKER_FILE),
    RESTORING_FILE,
)
"""These five cover everything in a data folder."""

_OF_A_RUNNING_SOURCE: Final = (SOURCE_LOCK_FILE, "appending", SOURCE_STATUS_FILE)
_UNFINISHED: Final = ".tmp"


@contextmanager
def appending(folder: Path, wait_ms: int | None = None) -> Iterator[None]:
    """Keep everyone else from appending a unit of the source that has this folder."""
    disk.make_folder(folder)
    fd = os.open(folder / "appending", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if wait_ms is None:
            fcntl.flock(fd, fcntl.LOCK_EX)
        else:
            _lock_within(fd, wait_ms, folder.name)
        yield
    finally:
        os.close(fd)


def _lock_within(fd: int, wait_ms: int, source: str) -> None:
    clock, waited_ms = SystemClock(), 0
    while True:
        if try_flock(fd):
            return
        if waited_ms >= wait_ms:
            raise UnavailableError(
                f"The source {source!r} has been appending for {wait_ms // 1000} s, and its position can't be read "
                f"meanwhile. `lastword connect status` shows its state. Pause it, or try again."
            )
        clock.sleep_ms(20)
        waited_ms += 20


@contextmanager
def sources_held(data_folder: Path) -> Iterator[None]:
    """Keep all sources from appending."""
    root = data_folder / CONNECT_FOLDER
    with ExitStack() as held:
        for folder in sorted(each for each in root.iterdir() if each.is_dir()) if root.exists() else ():
            held.enter_context(appending(folder, SOURCE_WAIT_MS))
        yield


def collect(data_folder: Path) -> tuple[SavedFile, ...]:
    """Read the small files as they are now. Sources must be held."""
    return tuple(found for path in _paths(data_folder) if (found := _read(data_folder, path)) is not None)


def _paths(data_folder: Path) -> Iterator[Path]:
    yield from (data_folder / name for name in COPIED)
    for name in COPIED_FOLDERS:
        yield from sorted((data_folder / name).rglob("*.json"))
    for path in sorted((data_folder / CONNECT_FOLDER).glob("*/*")):
        if path.is_file() and path.name not in _OF_A_RUNNING_SOURCE and path.suffix != _UNFINISHED:
            yield path
    yield from sorted((data_folder / STAGING_FOLDER).glob(f"*/*/{COMMITTED_FILE}"))
    for source in sorted((data_folder / CONNECT_FOLDER).glob(f"*/{JOURNAL_FILE}")):
        yield from _staged(data_folder, source)


def _staged(data_folder: Path, journal: Path) -> Iterator[Path]:
    """Yield the staged files of a source's last unit, if it has not been appended yet."""
    saved = state_file.load_if_whole(journal, dict) or {}
    for topic_id in saved.get("topics", {}).values():
        sink = data_folder / STAGING_FOLDER / topic_id / f"{SINK_OF_SOURCE}{journal.parent.name}"
        committed = state_file.load_if_whole(sink / COMMITTED_FILE, dict) or {}
        if committed.get("unit", 0) < saved.get("number", 0):
            yield from sorted(
                each for each in sink.glob("*") if each.name != COMMITTED_FILE and each.suffix != _UNFINISHED
            )


def _read(data_folder: Path, path: Path) -> SavedFile | None:
    try:
        with path.open("rb") as file:
            changed_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
            return SavedFile(
                path=path.relative_to(data_folder).as_posix(), content=file.read(), changed_ms=changed_ms
            )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"Can't read {path}: {error.strerror or error}.") from error


# ------------------------------------------------------------------------------------------------------ restoring


def put_back(data_folder: Path, manifest: Manifest, *, now_ms: int) -> None:
    """Write the small files of a backup into a restored folder. Can be repeated."""
    for each in manifest.files:
        path = data_folder / each.path
        disk.make_folder(path.parent)
        is_journal = each.path.startswith(f"{CONNECT_FOLDER}/") and path.name == JOURNAL_FILE
        disk.replace_file(path, _marked(each.content, manifest.id) if is_journal else each.content)
        # The time of a reader's last activity is the modification time of its file.
        os.utime(path, ns=(each.changed_ms * 1_000_000, each.changed_ms * 1_000_000))
    ids = next((each.content for each in manifest.files if each.path == PRODUCER_IDS_FILE), b"{}")
    state_file.save(data_folder / PRODUCER_IDS_FILE, _fresh_ids(ids, now_ms))


def _marked(journal: bytes, backup_id: str) -> bytes:
    """Mark the journal of a source as restored: the external system may have moved on without this log."""
    saved = state_file.parse_if_whole(journal, dict)
    # One that was damaged already is left as it is. The source will report that.
    return journal if saved is None else json.dumps({**saved, "restored": backup_id}).encode()


def _fresh_ids(content: bytes, now_ms: int) -> dict[str, int]:
    """Choose producer ids that neither the original, even since the backup, nor another restored log assigns."""
    known = state_file.parse_if_whole(content, lambda saved: int(saved["next"])) or 0
    return {"version": 1, "next": max(known, now_ms << 20)}
