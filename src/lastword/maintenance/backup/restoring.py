"""`lastword.restore` and `lastword.backups`: restore a log from a backup, and list backups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from lastword.clock import Clock, SystemClock
from lastword.config import BrokerConfig
from lastword.errors import InvalidError
from lastword.folder.paths import CONFIG_FILE
from lastword.maintenance.backup import restore as steps_of
from lastword.maintenance.backup import settings
from lastword.maintenance.backup.make import load_all
from lastword.maintenance.backup.manifest import Manifest
from lastword.maintenance.backup.restore import NewLog, Restore, RestoreReport
from lastword.maintenance.backup.store import open_store
from lastword.maintenance.ownership import Ownership
from lastword.segments.fileio import io_properties
from lastword.segments.storage import Storage, load_config

Config = BrokerConfig | Mapping[str, object] | str | Path


def restore(
    source: str | Path,
    path: str | Path,
    *,
    backup: str | None = None,
    warehouse: str | None = None,
    config: Config | None = None,
    properties: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RestoreReport:
    """Restore a log to a new folder from a backup, by default the newest at `source`.

    The catalog and the warehouse are the folder's own, inside it. `warehouse` names another place for the segments.
    `config`, or a settings file in the folder, replaces the settings of the backup and says where the catalog and the
    warehouse are. `properties` say how to reach the object store of `source`.
    """
    folder = Path(path).absolute()
    clock = clock or SystemClock()
    given = {} if config is None else io_properties(load_config(folder, config).catalog)
    store = open_store(source, {**given, **(properties or {})})
    found = steps_of.choose(store, backup)
    lock, begun = steps_of.begin(store, found, folder, clock=clock)
    with lock:
        text: str | None = None
        if config is not None or begun.users_settings:
            if warehouse is not None:
                where = CONFIG_FILE if config is None else "the given settings"
                raise InvalidError(
                    f"The location of the segments is set by {where}. Put `warehouse: {warehouse}` there."
                )
            chosen = load_config(folder, config)
        else:
            text = settings.restored(found.settings, warehouse)
            chosen = BrokerConfig.from_text(text or "", where=f"the settings of the backup {found.id}")
        storage = Storage.of(folder, chosen)
        owner = Ownership.of_writer(storage, clock)
        with closing(storage.open_catalog(clock, guard=owner)) as catalog:
            new = NewLog(
                path=folder,
                catalog=catalog,
                warehouse=storage.warehouse,
                properties=io_properties(chosen.catalog),
                settings=text,
                clock=clock,
            )
            report = Restore(store, found, new, progress).run(begun)
        steps_of.finish(folder)
    return report


def backups(
    source: str | Path, *, properties: Mapping[str, str] | None = None
) -> tuple[list[Manifest], list[str]]:
    """Return the backups at a place, oldest first, and the problems of those that can't be read."""
    return load_all(open_store(source, properties or {}))
