"""The sealed segments of all topics as tables of an Iceberg catalog, through pyiceberg.

A topic is one table, at `<warehouse>/<namespace>/<name>/<topic id>`; what the topic is, and the positions of its
partitions, are the table's properties. Creation is one commit, with an empty first snapshot in it, so a table
always has a current snapshot to fence the next commit with (commit.py).

Dropping a topic: (1) a note in `<warehouse>/.dropping` says which files have to go; (2) all files go but the current
metadata; (3) the catalog forgets the table; (4) the rest goes; (5) the note goes. Killed before 3, the topic is
still found, marked as deleted, and is dropped again; killed after it, the next open or drop finds the note.
"""

from __future__ import annotations

import builtins
import json
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import PY_IO_IMPL
from sqlalchemy import URL, event
from sqlalchemy.exc import SQLAlchemyError

from lastword import steps
from lastword.clock import Clock, new_uuid
from lastword.errors import InvalidConfigError, StorageError, TopicExistsError
from lastword.segments import mapping
from lastword.segments.commit import Change, summary_of
from lastword.segments.fileio import FILE_IO, FileTree, SyncedFileIO, bare_path, io_properties, warehouse_uri
from lastword.segments.foreign import mapped
from lastword.segments.iceberg_table import IcebergTable
from lastword.segments.loader import TableLoader
from lastword.segments.relocation import Rewritten, rewrite
from lastword.segments.table import Positions, TopicInfo

log = logging.getLogger(__name__)

CATALOG_NAME = "lastword"
"""The catalog's name: other engines that read a SQL catalog's tables give the same one."""


_TOPIC_ID = re.compile("[0-9a-f]{32}")


def _is_below(location: str, place: str) -> bool:
    return bare_path(location).startswith(bare_path(place).rstrip("/") + "/")


def sqlite_properties(path: Path) -> dict[str, str]:
    """The properties of a catalog in a SQLite file, whose folder must be there. For one host."""
    # Another process holds the file for a few milliseconds at a time; waiting is better than failing.
    uri = URL.create("sqlite", database=str(path), query={"timeout": "30"})
    return {"type": "sql", "uri": uri.render_as_string()}


def _make_commits_last(catalog: Catalog) -> None:
    """A commit of SQLite ends with the removal of a file, which a power cut can undo unless its folder is synced."""
    if isinstance(catalog, SqlCatalog) and catalog.engine.dialect.name == "sqlite":

        @event.listens_for(catalog.engine, "connect")
        def sync_folder_too(connection: Any, _: object) -> None:
            connection.execute("PRAGMA synchronous = EXTRA")

        # Those made so far are made anew.
        catalog.engine.dispose()


class IcebergCatalog:
    """The tables of all topics."""

    def __init__(self, *, catalog: Catalog, warehouse: str, clock: Clock) -> None:
        self._loader = TableLoader(catalog)
        self._catalog = catalog
        self._warehouse = warehouse
        self._clock = clock
        self._file_io = SyncedFileIO(io_properties(catalog.properties))

    @classmethod
    def open(cls, *, properties: Mapping[str, str], warehouse: str, clock: Clock) -> IcebergCatalog:
        """Open the catalog that pyiceberg's `properties` name; finish drops that a crash cut short."""
        warehouse = warehouse_uri(warehouse)
        given = {**properties, "warehouse": warehouse, PY_IO_IMPL: FILE_IO}
        with mapped("Opening the catalog"):
            try:
                catalog = load_catalog(CATALOG_NAME, **given)
            except SQLAlchemyError:
                # Two processes that open a new SQL catalog at once both create its tables; one of them fails.
                catalog = load_catalog(CATALOG_NAME, **given)
            except ValueError as error:
                raise InvalidConfigError(f"The catalog's properties: {error}") from error
        _make_commits_last(catalog)
        opened = cls(catalog=catalog, warehouse=warehouse, clock=clock)
        try:
            opened._finish_drops()
        except StorageError as error:
            log.warning("The files of a deleted topic are left for the next time: %s", error)
        return opened

    def create(self, topic: TopicInfo) -> IcebergTable:
        identifier = mapping.identifier_of(topic.name)
        location = self._location(topic.name, topic.id)
        with mapped(f"Creating the topic {topic.name}"):
            self._ensure_namespace(identifier[0])
            if self._loader.exists(identifier):
                raise TopicExistsError(f"There is a topic {topic.name} already.")
            positions = (Positions(),) * topic.partitions
            transaction = self._catalog.create_table_transaction(
                identifier,
                mapping.SCHEMA,
                location=location,
                partition_spec=mapping.PARTITION_SPEC,
                sort_order=mapping.SORT_ORDER,
                properties={
                    **mapping.TABLE_PROPERTIES,
                    **mapping.topic_properties(topic),
                    mapping.POSITIONS: mapping.positions_to_json(positions),
                },
            )
            first = Change(operation="create", positions=positions)
            summary = summary_of(first, commit_id=new_uuid().hex, now_ms=self._clock.now_ms())
            transaction.update_snapshot(snapshot_properties=summary).fast_append().commit()
        steps.reached("create.before")
        try:
            transaction.commit_transaction()
        except Exception:
            with mapped(f"Creating the topic {topic.name}"):
                if not self._was_created(topic, location):
                    raise
        steps.reached("create.done")
        return self.load(topic.name)

    def register(self, name: str, metadata_location: str) -> IcebergTable:
        """Take in a topic whose files, written or rewritten for their place, are there already."""
        identifier = mapping.identifier_of(name)
        with mapped(f"Registering the topic {name}"):
            self._ensure_namespace(identifier[0])
            try:
                self._catalog.register_table(identifier, metadata_location)
            except TableAlreadyExistsError as error:
                raise TopicExistsError(f"There is a topic {name} already.") from error
        steps.reached("register.done")
        return self.load(name)

    def location(self, name: str, topic_id: UUID) -> str:
        """Where the files of a topic are, or would be, in this warehouse."""
        return self._location(name, topic_id)

    def relocate(
        self, properties: Mapping[str, str] | None = None, *, below: str | None = None
    ) -> dict[str, Rewritten]:
        """Rewrite every topic's metadata for this warehouse, to which their files have been moved or copied.

        `properties` are set in each table. With `below` only topics whose metadata was below that place are
        looked at. All pointers move in one transaction. Repeated after a kill it does the rest, or nothing.
        """
        with mapped("Relocating the topics"):
            pointers = self._loader.pointers()
            if pointers is None:
                raise InvalidConfigError(
                    "Tables of this catalog can't be relocated: only a SQL catalog can be told where their metadata "
                    "is. Move the folder back, or restore a backup of it."
                )
            done: dict[str, Rewritten] = {}
            moves: dict[tuple[str, ...], tuple[str, str]] = {}
            for identifier, pointer in sorted(pointers.items()):
                folder, _, file_name = pointer.rpartition("/metadata/")
                topic_id = folder.rpartition("/")[2]
                if not _TOPIC_ID.fullmatch(topic_id) or (below and not _is_below(folder, below)):
                    continue
                name = mapping.topic_of(identifier)
                location = self._location(name, UUID(topic_id))
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

    def abandon(self, name: str, topic_id: UUID) -> None:
        with mapped(f"Removing what is left of the creation of {name}"):
            FileTree(self._file_io, self._location(name, topic_id)).remove()

    def load(self, name: str) -> IcebergTable:
        with mapped(f"Loading the topic {name}"):
            table = self._loader.load(mapping.identifier_of(name))
        return IcebergTable(loader=self._loader, table=table, clock=self._clock)

    def list(self) -> builtins.list[str]:
        with mapped("Listing the topics"):
            identifiers = [
                identifier
                for namespace in self._catalog.list_namespaces()
                for identifier in self._catalog.list_tables(namespace)
            ]
        return sorted(mapping.topic_of(identifier) for identifier in identifiers if len(identifier) == 2)

    def drop(self, name: str) -> None:
        self._finish_drops()
        identifier = mapping.identifier_of(name)
        with mapped(f"Dropping the topic {name}"):
            try:
                table = self._loader.load(identifier)
            except NoSuchTableError:
                return
            topic = mapping.topic_from(table.metadata.properties)
            location = table.metadata.location
            if not location.endswith(f"/{topic.id.hex}"):
                raise StorageError(f"{location} is not a place of {name} alone: its files are not removed.")
            note = self._write_note(topic, location)
            tree = FileTree(self._file_io, location)
            current = bare_path(table.metadata_location)
            for file in tree.files():
                if file.path != current:
                    tree.remove_file(file.path)
            steps.reached("drop.files.removed")
            with suppress(NoSuchTableError):
                self._catalog.drop_table(identifier)
            steps.reached("drop.entry.removed")
            tree.remove()
            steps.reached("drop.tree.removed")
            FileTree(self._file_io, self._notes).remove_file(note)
            steps.reached("drop.done")

    def close(self) -> None:
        self._catalog.close()

    def _location(self, name: str, topic_id: UUID) -> str:
        return "/".join((self._warehouse, *mapping.identifier_of(name), topic_id.hex))

    @property
    def _notes(self) -> str:
        # No namespace begins with a dot, so no topic can be here.
        return f"{self._warehouse}/.dropping"

    def _write_note(self, topic: TopicInfo, location: str) -> str:
        note = f"{self._notes}/{topic.id.hex}"
        with self._file_io.new_output(note).create(overwrite=True) as stream:
            stream.write(json.dumps({"name": topic.name, "location": location}).encode())
        steps.reached("drop.noted")
        return bare_path(note)

    def _finish_drops(self) -> None:
        """Remove what is left of topics that the catalog has forgotten already."""
        with mapped("Finishing the deletion of topics"):
            notes = FileTree(self._file_io, self._notes)
            for note in notes.files():
                with self._file_io.new_input(
                    f"{self._notes}/{note.path.rpartition('/')[2]}"
                ).open() as stream:
                    text = stream.read()
                try:
                    # Not the place that it names: a note of a folder that was moved or copied names the old one.
                    name = json.loads(text)["name"]
                    location = self._location(name, UUID(note.path.rpartition("/")[2]))
                except ValueError:
                    # Written only in part, so its drop never began.
                    notes.remove_file(note.path)
                    continue
                if not self._is_at(name, location):
                    FileTree(self._file_io, location).remove()
                    notes.remove_file(note.path)

    def _is_at(self, name: str, location: str) -> bool:
        try:
            return bool(self._loader.load(mapping.identifier_of(name)).metadata.location == location)
        except NoSuchTableError:
            return False

    def _was_created(self, topic: TopicInfo, location: str) -> bool:
        """After a failure: True if the table is there all the same; its files go if another one has the name."""
        try:
            table = self._loader.load(mapping.identifier_of(topic.name))
        except NoSuchTableError:
            return False
        if table.metadata.properties.get(mapping.ID) == topic.id.hex:
            return True
        FileTree(self._file_io, location).remove()
        raise TopicExistsError(f"There is a topic {topic.name} already.")

    def _ensure_namespace(self, namespace: str) -> None:
        try:
            self._catalog.create_namespace_if_not_exists((namespace,))
        except SQLAlchemyError:
            # Another process may have created it in the same moment.
            if not self._catalog.namespace_exists((namespace,)):
                raise
