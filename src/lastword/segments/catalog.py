"""The sealed segments of all topics as tables of an Iceberg catalog, through pyiceberg.

A topic is one table, at `<warehouse>/<namespace>/<name>/<topic id>`. The topic's data and the positions of its
partitions are the table's properties. Creation is one commit, with an empty first snapshot in it, so a table
always has a current snapshot to fence the next commit with (commit.py).

A table is dropped by the topic's id: its entry is removed only if it still is that topic's, so that a late drop
never hits a topic that was recreated under the same name. Its files are removed only from a location with the id.
"""

from __future__ import annotations

import builtins
import logging
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

from pyiceberg.catalog import (
    PY_CATALOG_IMPL,
    TYPE,
    Catalog,
    CatalogType,
    infer_catalog_type,
    load_catalog,
)
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import PY_IO_IMPL
from sqlalchemy import URL, event, make_url
from sqlalchemy.exc import SQLAlchemyError

from lastword.clock import Clock, new_uuid
from lastword.errors import (
    ConflictError,
    CorruptError,
    InvalidConfigError,
    InvalidError,
    LastwordError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from lastword.folder import steps
from lastword.segments import mapping
from lastword.segments.commit import Change, stage_snapshot, summary_of
from lastword.segments.fileio import FILE_IO, FileTree, SyncedFileIO, bare_path, io_properties, warehouse_uri
from lastword.segments.foreign import decoding, mapped
from lastword.segments.loader import TableLoader
from lastword.segments.model import (
    Announce,
    Guard,
    OwnerState,
    Positions,
    Segment,
    TablePlace,
    TopicInfo,
    retry_on_conflict,
    to_nobody,
)
from lastword.segments.older import OlderState, older_states
from lastword.segments.relocation import Rewritten, rewrite
from lastword.segments.sql_catalog import IMPLEMENTATION
from lastword.segments.table import SegmentTable

log = logging.getLogger(__name__)

CATALOG_NAME = "lastword"
"""The catalog's name. Other engines that read a SQL catalog's tables use the same one."""


_TOPIC_METADATA = re.compile("(?P<warehouse>.+)/[^/]+/[^/]+/[0-9a-f]{32}/metadata/[^/]+")


def _is_below(location: str, place: str) -> bool:
    return bare_path(location).startswith(bare_path(place).rstrip("/") + "/")


def sqlite_properties(path: Path) -> dict[str, str]:
    """Return the properties of a catalog in a SQLite file, whose folder must exist. For one host."""
    # Another process holds the file for a few milliseconds at a time; waiting is better than failing.
    uri = URL.create("sqlite", database=str(path), query={"timeout": "30"})
    return {"type": "sql", "uri": uri.render_as_string()}


def sqlite_file(properties: Mapping[str, str]) -> Path | None:
    """Return the file of a catalog in SQLite; None if the catalog is somewhere else."""
    try:
        url = make_url(properties.get("uri", ""))
    except SQLAlchemyError:
        return None
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def places_in_sqlite(file: Path) -> list[Path]:
    """Return the warehouses that the topics of a SQLite catalog name, from the file alone."""
    if not file.exists():
        return []
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    except sqlite3.Error:
        # The next attempt to open it says what is wrong with it.
        return []
    found = [_TOPIC_METADATA.fullmatch(pointer) for (pointer,) in rows if pointer]
    return sorted({Path(bare_path(match["warehouse"])) for match in found if match})


def _make_commits_last(catalog: Catalog) -> None:
    """Sync the folder with each commit of SQLite: it ends with the removal of a file, which a power cut can undo."""
    if isinstance(catalog, SqlCatalog) and catalog.engine.dialect.name == "sqlite":

        @event.listens_for(catalog.engine, "connect")
        def sync_folder_too(connection: Any, _: object) -> None:
            connection.execute("PRAGMA synchronous = EXTRA")

        # Connections made so far are replaced.
        catalog.engine.dispose()


def _is_sql(properties: Mapping[str, str]) -> bool:
    given = properties.get(TYPE)
    if given is not None:
        return given.lower() == CatalogType.SQL.value
    return infer_catalog_type(CATALOG_NAME, {**properties}) is CatalogType.SQL


class SegmentCatalog:
    """The tables of all topics."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        warehouse: str,
        clock: Clock,
        announce: Announce = to_nobody,
        guard: Guard | None = None,
    ) -> None:
        self._announce = announce
        self._guard = guard
        self._loader = TableLoader(catalog)
        self._catalog = catalog
        self._warehouse = warehouse
        self._clock = clock
        self._file_io = SyncedFileIO(io_properties(catalog.properties))

    @classmethod
    def open(
        cls,
        *,
        properties: Mapping[str, str],
        warehouse: str,
        clock: Clock,
        announce: Announce = to_nobody,
        create: bool = True,
        guard: Guard | None = None,
    ) -> SegmentCatalog:
        """Open the catalog that pyiceberg's `properties` name. Without `create` it must exist.

        `guard` decides which tables may be changed. Without one, all may.
        """
        warehouse = warehouse_uri(warehouse)
        given = {**properties, "warehouse": warehouse, PY_IO_IMPL: FILE_IO}
        if not create:
            given["init_catalog_tables"] = "false"
        with mapped("Opening the catalog"):
            try:
                if _is_sql(given):
                    given = {**given, PY_CATALOG_IMPL: IMPLEMENTATION}
                    given.pop(TYPE, None)
                catalog = load_catalog(CATALOG_NAME, **given)
            except SQLAlchemyError:
                # Two processes that open a new SQL catalog at once both create its tables; one of them fails.
                catalog = load_catalog(CATALOG_NAME, **given)
            except ValueError as error:
                raise InvalidConfigError(f"Invalid catalog properties: {error}") from error
        _make_commits_last(catalog)
        return cls(catalog=catalog, warehouse=warehouse, clock=clock, announce=announce, guard=guard)

    def create(
        self,
        topic: TopicInfo,
        *,
        positions: tuple[Positions, ...] = (),
        segments: Sequence[Segment] = (),
        operation: str = "create",
        details: Mapping[str, str] | None = None,
    ) -> SegmentTable:
        """Create a topic. Raise TopicExistsError if the name is taken, even by one that is being deleted.

        A topic that is restored begins with positions, and with segments that are already below its `location`.
        """
        identifier = mapping.identifier_of(topic.name)
        location = self.location(topic.name, topic.id)
        with mapped(f"Creating the topic {topic.name}"):
            self._ensure_namespace(identifier[0])
            if self._loader.exists(identifier):
                raise TopicExistsError(f"The topic {topic.name} already exists.")
            positions += (Positions(),) * (topic.partitions - len(positions))
            owner = self._guard.new_owner(topic) if self._guard is not None else None
            transaction = self._catalog.create_table_transaction(
                identifier,
                mapping.SCHEMA,
                location=location,
                partition_spec=mapping.PARTITION_SPEC,
                sort_order=mapping.SORT_ORDER,
                properties={
                    **mapping.TABLE_PROPERTIES,
                    mapping.TABLE_FORMAT: str(mapping.FORMAT),
                    **mapping.topic_properties(topic),
                    **(mapping.owner_properties(owner) if owner is not None else {}),
                    mapping.POSITIONS: mapping.positions_to_json(positions),
                },
            )
            first = Change(operation=operation, positions=positions, details=details or {})
            summary = summary_of(first, commit_id=new_uuid().hex, now_ms=self._clock.now_ms())
            stage_snapshot(transaction, self._file_io, added=segments, summary=summary)
        steps.reached("create.before")
        try:
            transaction.commit_transaction()
        except Exception:
            with mapped(f"Creating the topic {topic.name}"):
                if not self._was_created(topic, location):
                    raise
        steps.reached("create.done")
        return self.load(topic.name)

    def location(self, name: str, topic_id: UUID) -> str:
        """Return the location that the files of a topic have, or would have, in this warehouse."""
        return "/".join((self._warehouse, *mapping.identifier_of(name), topic_id.hex))

    def relocate(
        self, properties: Mapping[str, str] | None = None, *, below: str | None = None
    ) -> dict[str, Rewritten]:
        """Rewrite every topic's metadata for this warehouse, to which their files have been moved or copied.

        `properties` are set in each table. With `below`, only topics whose metadata was below that location are
        looked at. All pointers move in one transaction. Repeated after a kill, it does the rest, or nothing.
        """
        with mapped("Relocating the topics"):
            done: dict[str, Rewritten] = {}
            moves: dict[tuple[str, ...], tuple[str, str]] = {}
            for identifier, pointer in self._topic_pointers(below).items():
                name = mapping.topic_of(identifier)
                folder, _, file_name = pointer.rpartition("/metadata/")
                location = self.location(name, UUID(folder.rpartition("/")[2]))
                done[name] = rewrite(
                    self._file_io,
                    f"{location}/metadata/{file_name}",
                    location=location,
                    properties=properties,
                )
                if done[name].metadata_location != pointer:
                    moves[identifier] = (pointer, done[name].metadata_location)
            if moves:
                self._loader.move_pointers(moves)
            steps.reached("relocate.pointers.moved")
            return done

    def relocatable(self, *, below: str | None = None) -> builtins.list[str]:
        """Return the topics that `relocate` would look at."""
        with mapped("Listing the topics"):
            return [mapping.topic_of(identifier) for identifier in self._topic_pointers(below)]

    def _topic_pointers(self, below: str | None) -> dict[tuple[str, str], str]:
        """Return the location that the metadata of each topic has, or had before the files were moved."""
        pointers = self._loader.pointers()
        if pointers is None:
            raise InvalidConfigError(
                "Tables of this catalog can't be relocated: only a SQL catalog can be told where their metadata is. "
                "Move the folder back, or restore a backup of it."
            )
        return {
            identifier: pointer
            for identifier, pointer in sorted(pointers.items())
            if _TOPIC_METADATA.fullmatch(pointer) and (below is None or _is_below(pointer, below))
        }

    def load(self, name: str) -> SegmentTable:
        """Load a topic. Raise UnknownTopicError if there is none. One that is being deleted is still found."""
        with mapped(f"Loading the topic {name}"):
            table = self._loader.load(mapping.identifier_of(name))
        with decoding(table.metadata_location):
            return SegmentTable(
                loader=self._loader,
                table=table,
                clock=self._clock,
                announce=self._announce,
                guard=self._guard,
            )

    def info(self, name: str) -> TopicInfo:
        """Return what the table of a topic says of it. Raise as `load` does. Nothing else of the table is looked at."""
        with mapped(f"Loading the topic {name}"):
            table = self._loader.load(mapping.identifier_of(name))
        with decoding(table.metadata_location):
            mapping.check_format(table.metadata.properties)
            return mapping.topic_from(table.metadata.properties)

    def owners(self, known: Mapping[str, str | None]) -> dict[str, OwnerState]:
        """Look at the owners of topics. `known` is the location of each one's metadata at the last look, if any.

        A SQL catalog is queried once for all of them, and only metadata that has changed is read. A topic whose
        table can't be looked at is left out.
        """
        with mapped("Looking at the owners of topics"):
            pointers = self._loader.pointers()
        found: dict[str, OwnerState] = {}
        for name, pointer in known.items():
            try:
                with mapped(f"Looking at the owner of {name}"):
                    found[name] = self._owner_state(name, pointer, pointers)
            except LastwordError as error:
                log.warning("%s", error)
        return found

    def _owner_state(
        self, name: str, before: str | None, pointers: Mapping[tuple[str, str], str] | None
    ) -> OwnerState:
        identifier = mapping.identifier_of(name)
        if pointers is not None and identifier not in pointers:
            return OwnerState()
        if pointers is not None and before == pointers[identifier]:
            return OwnerState(pointer=before, is_unchanged=True)
        try:
            table = self._loader.load(identifier)
        except NoSuchTableError:
            return OwnerState()
        return OwnerState(
            pointer=table.metadata_location, topic=mapping.topic_from(table.metadata.properties)
        )

    def list(self) -> builtins.list[str]:
        """Return the names of all topics, including those being deleted, sorted."""
        with mapped("Listing the topics"):
            pointers = self._loader.pointers()
            if pointers is not None:
                # A namespace within another one has a dot in its name.
                identifiers = [(*namespace.split("."), name) for namespace, name in pointers]
            else:
                identifiers = [
                    identifier
                    for namespace in self._catalog.list_namespaces()
                    for identifier in self._catalog.list_tables(namespace)
                ]
        return sorted(mapping.topic_of(identifier) for identifier in identifiers if len(identifier) == 2)

    def place(self, name: str) -> TablePlace:
        """Find a topic's table. Raise UnknownTopicError if there is none. One that can't be read is found too."""
        with mapped(f"Looking for the topic {name}"):
            return self._find(name)[0]

    def drop(self, name: str, topic_id: UUID) -> None:
        """Remove a table's entry, if it is still the one of this topic. Its files stay. Can be repeated."""
        identifier = mapping.identifier_of(name)

        def attempt() -> None:
            try:
                place, pointer = self._find(name)
            except NoSuchTableError:
                return
            if place.topic_id != topic_id:
                return
            steps.reached("drop.looked")
            if not self._loader.forget(identifier, pointer):
                raise ConflictError(f"The table of {name} changed while it was being dropped.")
            steps.reached("drop.entry.removed")

        with mapped(f"Dropping the topic {name}"):
            retry_on_conflict(attempt)

    def older_states(self, name: str) -> builtins.list[OlderState]:
        """Return the states that a table had before the current one, newest first. That one need not be readable."""
        identifier = mapping.identifier_of(name)
        with mapped(f"Looking for older states of {name}"):
            pointer = self._loader.pointer(identifier)
            if pointer is None:
                raise InvalidError(
                    f"The catalog keeps the metadata of {name} itself: use its own tools to go back to an older state."
                )
            return older_states(self._file_io, pointer, self._loader.previous(identifier))

    def go_back(self, name: str, state: OlderState) -> None:
        """Make an older state the current one."""
        identifier = mapping.identifier_of(name)
        with mapped(f"Going back to an older state of {name}"):
            pointer = self._loader.pointer(identifier)
            if pointer is None:
                raise UnknownTopicError(f"there is no topic {name!r}")
            self._loader.move_pointers({identifier: (pointer, state.metadata_location)})
        steps.reached("go_back.done")

    def remove_files(self, location: str, topic_id: UUID) -> None:
        """Remove every file of a topic that the catalog does not have. Raise StorageError if others may be there."""
        if not location.endswith(f"/{topic_id.hex}"):
            raise StorageError(
                f"{location} is not the location of a single topic: its files are not removed."
            )
        with mapped(f"Removing the files in {location}"):
            FileTree(self._file_io, location).remove()

    def close(self) -> None:
        self._catalog.close()

    def _find(self, name: str) -> tuple[TablePlace, str]:
        """Return a table's place and the location of its metadata. If that can't be read, go by its path."""
        identifier = mapping.identifier_of(name)
        try:
            table = self._loader.load(identifier)
        except CorruptError as error:
            pointer = self._loader.pointer(identifier)
            if pointer is None:
                raise
            location = pointer.rpartition("/metadata/")[0]
            try:
                topic_id = UUID(location.rpartition("/")[2])
            except ValueError:
                raise error from None
            return TablePlace(topic_id=topic_id, location=location), pointer
        with decoding(table.metadata_location):
            topic = mapping.topic_from(table.metadata.properties)
        return TablePlace(topic_id=topic.id, location=table.metadata.location), table.metadata_location

    def _was_created(self, topic: TopicInfo, location: str) -> bool:
        """Return whether the table exists despite a failure. If another topic has the name, remove our files."""
        try:
            table = self._loader.load(mapping.identifier_of(topic.name))
        except NoSuchTableError:
            return False
        if table.metadata.properties.get(mapping.ID) == topic.id.hex:
            return True
        self.remove_files(location, topic.id)
        raise TopicExistsError(f"The topic {topic.name} already exists.")

    def _ensure_namespace(self, namespace: str) -> None:
        try:
            self._catalog.create_namespace_if_not_exists((namespace,))
        except SQLAlchemyError:
            # Another process may have created it at the same moment.
            if not self._catalog.namespace_exists((namespace,)):
                raise
