"""Makes a data folder that was moved or copied usable at its new place.

1. The roles of the folder are taken, so that no other process works on it. Traces of the original's running processes
   (its server's address, its leases) are removed.
2. A copy notes the id that it will have.
3. The metadata of all topics is rewritten for the new place (segments/relocation.py), and the catalog's pointers
   move, all together. The tables name the folder as their owner.
4. The folder's identity gets the new place and the new id.

Killed at any point before the end of 4, the folder still counts as moved or as a copy. It is refused, or relocated
again when it is opened for writing, and no step is done twice. No file outside of the folder is touched.
"""

from __future__ import annotations

import logging
import shutil
import socket
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from lastword.clock import Clock, SystemClock, new_uuid
from lastword.config import BrokerConfig
from lastword.errors import ForeignFolderError, InvalidError
from lastword.folder import disk, identity, state_file
from lastword.folder.identity import Identity, Standing, is_same_place
from lastword.folder.locks import Role, RoleLock
from lastword.folder.paths import (
    CLUSTER_ID_FILE,
    DELETING_FOLDER,
    FORMAT_FILE,
    LEASES_FOLDER,
    RUN_FOLDER,
    notes,
)
from lastword.folder.steps import reached
from lastword.segments import mapping
from lastword.segments.catalog import places_in_sqlite, sqlite_file
from lastword.segments.fileio import warehouse_uri
from lastword.segments.listing import visit
from lastword.segments.model import Owner
from lastword.segments.storage import Storage, check_folder, load_config

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """A planned or finished relocation. `topics` are those whose metadata is rewritten."""

    folder: str
    original: str
    standing: Standing
    id: str
    topics: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    """Files that were unreadable before the relocation and still are."""


def check(storage: Storage, *, writes: bool) -> None:
    """Raise if a folder may not be opened where it is. A copy never may. A moved one may be opened for writing only."""
    known, found = inspect_folder(storage)
    if found is Standing.COPY:
        raise identity.copy_error(storage.folder, known.path)
    if found is Standing.MOVED and not writes:
        raise identity.moved_error(storage.folder, known.path)


def inspect_folder(storage: Storage) -> tuple[Identity, Standing]:
    """Return a folder's identity and standing. A folder of the first version has no identity, but its tables tell."""
    known = identity.load(storage.folder)
    if known is not None:
        return known, identity.standing(storage.folder, known)
    fresh = identity.new_identity(storage.folder)
    original = _place_of_tables(storage)
    if original is None:
        return fresh, Standing.UNKNOWN
    try:
        is_there = (original / FORMAT_FILE).exists()
    except OSError:
        # As in identity.standing: a place that can't be looked at may be the original.
        is_there = True
    return replace(fresh, path=str(original)), Standing.COPY if is_there else Standing.MOVED


def confirm_identity(storage: Storage, clock: Clock) -> Identity:
    """Return the identity of a folder that is being opened for writing. The caller holds the writer role.

    A new folder, or one of the first version, gets an identity. A folder that was moved with its catalog and warehouse
    is relocated.
    """
    known, found = inspect_folder(storage)
    match found:
        case Standing.HOME if known.becoming is None:
            return known
        case Standing.HOME:
            # A relocation as a copy, at the same place, was interrupted.
            with _others_kept_out(storage.folder, clock):
                _execute(storage, known, clock, new_id=known.becoming)
            return _settled(storage.folder)
        case Standing.UNKNOWN:
            return identity.save(storage.folder, recognized(storage, clock, create=True) or known)
        case Standing.COPY:
            raise identity.copy_error(storage.folder, known.path)
    if storage.is_shared:
        raise ForeignFolderError(
            f"{storage.folder} has been moved here from {known.path}, but its catalog or its warehouse is outside of "
            f"it, where the folder at the old place may still be working. If it is not, "
            f"`lastword relocate --data {storage.folder}` makes this the folder's place."
        )
    logger.warning("%s has been moved here from %s; rewriting its tables", storage.folder, known.path)
    with _others_kept_out(storage.folder, clock):
        _execute(storage, known, clock, new_id=None)
    return _settled(storage.folder)


def recognized(storage: Storage, clock: Clock, *, create: bool = False) -> Identity | None:
    """Return the identity of a folder that has lost its identity file, from its tables. None if they don't have it.

    With `create`, create the catalog if it does not exist.
    """
    file = sqlite_file(storage.properties)
    if storage.has_catalog and (file is None or not file.exists()):
        return None
    here = identity.new_identity(storage.folder)
    with closing(storage.open_catalog(clock, create=create)) as catalog:
        infos = visit(catalog.list(), lambda name: catalog.load(name).snapshot().topic, lambda _: False).found
    owners = [info.owner for info in infos.values() if info.owner is not None]
    own = [each for each in owners if (each.path, each.host) == (here.path, socket.gethostname())]
    return replace(here, id=own[0].folder_id) if own else None


def plan(storage: Storage, *, as_copy: bool = False) -> Relocation:
    """Return what `relocate` would do. Change nothing."""
    known, found = inspect_folder(storage)
    if found is Standing.UNKNOWN:
        raise InvalidError(
            f"{storage.folder} has no identity yet, and its tables name this place: there is nothing to relocate."
        )
    if as_copy:
        found = Standing.COPY
    if found is Standing.COPY and storage.has_catalog and not storage.has_warehouse:
        raise InvalidError(
            f"{storage.folder} is a copy whose warehouse, {storage.warehouse}, is outside of it and holds the files of "
            f"{known.path}. Two folders can't both maintain them. Restore a backup of {known.path} instead."
        )
    rewrites = found is not Standing.HOME and _rewrites(storage, found)
    return Relocation(
        folder=str(storage.folder),
        original=known.path,
        standing=found,
        id=known.id,
        topics=tuple(sorted(_topics(storage, known))) if rewrites else (),
    )


def relocate(
    path: str | Path,
    *,
    config: BrokerConfig | Mapping[str, object] | str | Path | None = None,
    as_copy: bool = False,
    clock: Clock | None = None,
) -> Relocation:
    """Make a data folder that was moved or copied usable where it is now.

    A moved folder keeps its id. A copy becomes a separate folder with a new id. Use `as_copy` for a copy whose original
    can't be seen from here. A folder that is where it belongs is left as it is.
    """
    folder = Path(path).absolute()
    clock = clock or SystemClock()
    check_folder(folder, create=False)
    storage = Storage.of(folder, load_config(folder, config))
    with RoleLock.acquire(folder, Role.WRITER, clock), _others_kept_out(folder, clock):
        planned = plan(storage, as_copy=as_copy)
        if planned.standing is Standing.HOME:
            return planned
        known, _ = inspect_folder(storage)
        new_id = _id_to_be(storage.folder, known) if planned.standing is Standing.COPY else None
        return _execute(storage, known, clock, new_id=new_id)


def _execute(storage: Storage, known: Identity, clock: Clock, *, new_id: str | None) -> Relocation:
    folder = storage.folder
    found = Standing.MOVED if new_id is None else Standing.COPY
    _forget_processes(folder)
    if new_id is not None:
        # Clients must not mistake it for the cluster that they know.
        (folder / CLUSTER_ID_FILE).unlink(missing_ok=True)
        known = replace(known, becoming=new_id, becoming_path=str(folder.resolve()))
    identity.save(folder, known)
    reached("relocate.noted")
    settled = identity.relocated(folder, known, new_id=new_id)
    rewritten = {}
    if storage.has_warehouse:
        _forget_places(folder)
    if _rewrites(storage, found):
        owner = Owner(folder_id=settled.id, host=socket.gethostname(), path=settled.path)
        properties = mapping.owner_properties(owner)
        if storage.is_shared:
            # Other folders know its tables, so the owner, its epoch and its incarnation stay.
            properties = {key: properties[key] for key in (mapping.OWNER_HOST, mapping.OWNER_PATH)}
        with closing(storage.open_catalog(clock)) as catalog:
            rewritten = catalog.relocate(properties, below=_old_warehouse(storage, known))
    reached("relocate.rewritten")
    identity.save(folder, settled)
    reached("relocate.done")
    return Relocation(
        folder=str(folder),
        original=known.path,
        standing=found,
        id=settled.id,
        topics=tuple(sorted(rewritten)),
        damaged=tuple(each for done in rewritten.values() for each in done.damaged),
    )


def _settled(folder: Path) -> Identity:
    settled = identity.load(folder)
    assert settled is not None, folder
    return settled


def _rewrites(storage: Storage, found: Standing) -> bool:
    """Return whether the tables' files were moved or copied too, so that their metadata must be rewritten."""
    return storage.has_warehouse and (storage.has_catalog or found is Standing.MOVED)


def _old_warehouse(storage: Storage, known: Identity) -> str | None:
    """Return the old warehouse of the folder's topics, or None if the catalog has only this folder's topics."""
    if storage.has_catalog:
        return None
    inside = Path(warehouse_uri(storage.warehouse).removeprefix("file://")).resolve()
    return f"file://{Path(known.path) / inside.relative_to(storage.folder.resolve())}"


def _topics(storage: Storage, known: Identity) -> list[str]:
    with closing(storage.open_catalog(SystemClock())) as catalog:
        return catalog.relocatable(below=_old_warehouse(storage, known))


def _place_of_tables(storage: Storage) -> Path | None:
    """Return the folder that the tables name, if it is not the one that they are in."""
    file = sqlite_file(storage.properties)
    if storage.is_shared or file is None:
        return None
    warehouse = Path(warehouse_uri(storage.warehouse).removeprefix("file://"))
    for place in places_in_sqlite(file):
        if place != warehouse and not is_same_place(place, warehouse):
            return place.parent
    return None


def _id_to_be(folder: Path, known: Identity) -> str:
    """Return the id that an interrupted relocation at this place has noted, else a new one."""
    if known.becoming is not None and known.becoming_path == str(folder.resolve()):
        return known.becoming
    return new_uuid().hex


def _others_kept_out(folder: Path, clock: Clock) -> ExitStack:
    with ExitStack() as roles:
        for role in (Role.MAINTENANCE, Role.WORKER):
            roles.enter_context(RoleLock.acquire(folder, role, clock))
        return roles.pop_all()


def _forget_processes(folder: Path) -> None:
    """Remove the run files and leases of the original's processes."""
    for name in (RUN_FOLDER, LEASES_FOLDER):
        if (folder / name).exists():
            shutil.rmtree(folder / name)
    disk.sync_folder(folder)


def _forget_places(data_folder: Path) -> None:
    """Make noted deletions look where the catalog would put a topic's files: the folder is at another place now."""
    for note in notes(data_folder / DELETING_FOLDER):
        name = state_file.load_if_whole(note, lambda saved: saved["name"])
        if name is not None:
            state_file.save(note, {"name": name, "location": None})
