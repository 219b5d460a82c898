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
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.table import Table
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from lastword import steps
from lastword.clock import Clock, new_uuid
from lastword.errors import (
    ConflictError,
    CorruptError,
    InvalidConfigError,
    InvalidTopicError,
    StorageError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from lastword.segments import mapping
from lastword.segments.collector import collect
from lastword.segments.commit import Change, commit, expire, summary_of
from lastword.segments.fileio import FILE_IO, FileTree, SyncedFileIO, bare_path, io_properties, warehouse_uri
from lastword.segments.foreign import mapped
from lastword.segments.index import IndexCache, SegmentIndex
from lastword.segments.parquet import SegmentFiles, SegmentFileWriter
from lastword.segments.table import Collected, Positions, Segment, SegmentGoneError, Snapshot, TopicInfo

log = logging.getLogger(__name__)

CATALOG_NAME = "lastword"
"""The catalog's name: other engines that read a SQL catalog's tables give the same one."""

_LOAD_ATTEMPTS = 5


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
        opened = cls(catalog=catalog, warehouse=warehouse, clock=clock)
        try:
            opened._finish_drops()
        except StorageError as error:
            log.warning("The files of a deleted topic are left for the next time: %s", error)
        return opened

    def create(self, topic: TopicInfo) -> IcebergTable:
        identifier = mapping.identifier_of(topic.name)
        location = "/".join((self._warehouse, *identifier, topic.id.hex))
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
                    name, location = json.loads(text)["name"], json.loads(text)["location"]
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


class TableLoader:
    """Loads tables, and their metadata only if it has changed."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def load(self, identifier: tuple[str, ...], known: Table | None = None) -> Table:
        if known is not None and known.metadata_location == self._pointer(identifier):
            return known
        for _ in range(_LOAD_ATTEMPTS):
            try:
                return self._catalog.load_table(identifier)
            except FileNotFoundError as error:
                # The pointer moved on, and the file that it named was removed, before it could be read.
                missing = error
        raise CorruptError(
            f"The metadata file of {'.'.join(identifier)} is missing: {missing}. Register the table again with an "
            "older metadata file of its metadata folder.",
            path=str(missing.filename or ""),
        )

    def exists(self, identifier: tuple[str, ...]) -> bool:
        if isinstance(self._catalog, SqlCatalog):
            return self._pointer(identifier) is not None
        return self._catalog.table_exists(identifier)

    def _pointer(self, identifier: tuple[str, ...]) -> str | None:
        """Where the metadata is now. Only SQL catalogs can tell without reading it."""
        if not isinstance(self._catalog, SqlCatalog):
            return None
        namespace, name = identifier
        with Session(self._catalog.engine) as session:
            return session.scalar(
                select(IcebergTables.metadata_location).where(
                    IcebergTables.catalog_name == self._catalog.name,
                    IcebergTables.table_namespace == namespace,
                    IcebergTables.table_name == name,
                )
            )


class IcebergTable:
    """The sealed segments of one topic. May be used by several threads."""

    def __init__(self, *, loader: TableLoader, table: Table, clock: Clock) -> None:
        self._loader = loader
        self._clock = clock
        self._identifier = table.name()
        self._topic_id = mapping.topic_from(table.metadata.properties).id
        self._table = table
        self._table_lock = Lock()
        self._indexes = IndexCache()

    @property
    def location(self) -> str:
        return self._table.metadata.location

    @property
    def files(self) -> SegmentFiles:
        """Reads and writes segment files where there is no catalog: hand it to executors."""
        return SegmentFiles(location=self.location, properties=io_properties(self._table.io.properties))

    def snapshot(self, snapshot_id: int | None = None) -> Snapshot:
        table = self._refresh()
        if snapshot_id is None:
            return self._snapshot_of(table, table.metadata.current_snapshot_id)
        return self._snapshot_of(table, snapshot_id)

    def history(self) -> list[Snapshot]:
        metadata = self._refresh().metadata
        in_order = sorted(metadata.snapshots, key=lambda each: each.sequence_number or 0)
        return [mapping.snapshot_from(metadata, each) for each in in_order]

    def plan(self, snapshot: Snapshot, partition: int | None = None, from_offset: int = 0) -> list[Segment]:
        return self._index(snapshot.id).from_offset(partition, from_offset)

    def writer(self, partition: int, first_offset: int, job_id: str) -> SegmentFileWriter:
        return self.files.writer(partition, first_offset, job_id)

    def read(
        self, segment: Segment, columns: Sequence[str] | None = None, from_offset: int = 0
    ) -> Iterator[pa.RecordBatch]:
        return self.files.read(segment, columns, from_offset)

    def append(
        self,
        base: Snapshot,
        segments: Sequence[Segment],
        positions: Mapping[int, Positions],
        *,
        operation: str,
        details: Mapping[str, str] | None = None,
    ) -> Snapshot:
        return self.replace(base, (), segments, positions, operation=operation, details=details)

    def replace(
        self,
        base: Snapshot,
        removed: Sequence[Segment],
        added: Sequence[Segment],
        positions: Mapping[int, Positions],
        *,
        operation: str,
        details: Mapping[str, str] | None = None,
    ) -> Snapshot:
        change = Change(
            operation=operation,
            details=details or {},
            removed=removed,
            added=added,
            positions=_moved(base, positions),
        )
        return self._commit(base, change)

    def alter(
        self,
        base: Snapshot,
        *,
        config: Mapping[str, str] | None = None,
        partitions: int | None = None,
        deleted: bool = False,
    ) -> Snapshot:
        before = base.topic
        count = before.partitions if partitions is None else partitions
        if count < before.partitions:
            raise InvalidTopicError(
                f"The topic {before.name} has {before.partitions} partitions; it can't have fewer ({count})."
            )
        after = TopicInfo(
            name=before.name,
            id=before.id,
            partitions=count,
            config=before.config if config is None else config,
            deleted=before.deleted or deleted,
        )
        old, new = mapping.topic_properties(before), mapping.topic_properties(after)
        change = Change(
            operation="delete" if deleted else "alter",
            positions=base.positions + (Positions(),) * (count - before.partitions),
            properties=new,
            removed_properties=sorted(old.keys() - new.keys()),
        )
        return self._commit(base, change)

    def expire(self, *, before_ms: int, keep: Collection[int] = ()) -> list[int]:
        attempts = 5
        while True:
            table = self._refresh()
            protected = {ref.snapshot_id for ref in table.metadata.refs.values()} | set(keep)
            old = [
                each.id
                for each in (mapping.snapshot_from(table.metadata, each) for each in table.metadata.snapshots)
                if each.id is not None and each.committed_ms < before_ms and each.id not in protected
            ]
            if not old:
                return []
            attempts -= 1
            try:
                self._keep(expire(table, old))
                return old
            except ConflictError:
                if attempts == 0:
                    raise

    def collect(
        self, *, older_than_ms: int, live_jobs: Collection[str] = (), dry_run: bool = False
    ) -> Collected:
        with mapped(f"Collecting files of {self.location}"):
            return collect(
                SyncedFileIO(self.files.properties),
                self.location,
                self._refresh,
                older_than_ms=older_than_ms,
                live_jobs=live_jobs,
                dry_run=dry_run,
            )

    def _commit(self, base: Snapshot, change: Change) -> Snapshot:
        table = self._refresh()
        if table.metadata.current_snapshot_id != base.id:
            raise ConflictError(
                f"The table of {base.topic.name} changed: snapshot {base.id} was planned on, "
                f"{table.metadata.current_snapshot_id} is the current one."
            )
        after = self._checked(base, change)
        committed, snapshot_id = commit(
            table, base.id, change, now_ms=self._clock.now_ms(), reload=self._refresh
        )
        self._indexes.put(snapshot_id, after)
        self._keep(committed)
        return self._snapshot_of(committed, snapshot_id)

    def _checked(self, base: Snapshot, change: Change) -> SegmentIndex:
        """The segments after the change, which must fit those that are there."""
        index = self._index(base.id)
        for segment in change.removed:
            if index.by_path.get(segment.path) != segment:
                raise ConflictError(f"The segment {segment.path} is no longer in snapshot {base.id}.")
        for segment in change.added:
            if not 0 <= segment.partition < len(change.positions):
                raise UnknownPartitionError(f"{base.topic.name} has no partition {segment.partition}.")
            if segment.path in index.by_path:
                raise ConflictError(f"The segment {segment.path} is in snapshot {base.id} already.")
        return index.changed(change.removed, change.added)

    def _refresh(self) -> Table:
        with mapped(f"Looking at the table {'.'.join(self._identifier)}"):
            table = self._loader.load(self._identifier, known=self._table)
        if table is not self._table:
            if mapping.topic_from(table.metadata.properties).id != self._topic_id:
                raise UnknownTopicError(
                    f"The topic {'.'.join(self._identifier)} was deleted and created again."
                )
            self._keep(table)
        return table

    def _keep(self, table: Table) -> None:
        """Remember the newest state seen. Another thread may have seen a newer one meanwhile."""
        with self._table_lock:
            if _age(table) >= _age(self._table):
                self._table = table

    def _index(self, snapshot_id: int | None) -> SegmentIndex:
        if snapshot_id is None:
            return SegmentIndex(())
        if (index := self._indexes.get(snapshot_id)) is not None:
            return index
        table = self._table
        snapshot = table.metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            table = self._refresh()
            snapshot = table.metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise SegmentGoneError(f"Snapshot {snapshot_id} of {self.location} has expired.")
        with mapped(f"Reading the manifests of snapshot {snapshot_id}", snapshot.manifest_list):
            return self._indexes.load(snapshot, table.io)

    def _snapshot_of(self, table: Table, snapshot_id: int | None) -> Snapshot:
        snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
        if snapshot is None:
            raise SegmentGoneError(f"Snapshot {snapshot_id} of {self.location} is no longer there.")
        return mapping.snapshot_from(table.metadata, snapshot)


def _age(table: Table) -> int:
    snapshot = table.metadata.current_snapshot()
    return (snapshot.sequence_number or 0) if snapshot else 0


def _moved(base: Snapshot, changed: Mapping[int, Positions]) -> tuple[Positions, ...]:
    """The positions of all partitions after a change. One that moves down is a bug of the caller."""
    positions = list(base.positions)
    for partition, new in changed.items():
        if not 0 <= partition < len(positions):
            raise UnknownPartitionError(f"{base.topic.name} has no partition {partition}.")
        old = positions[partition]
        down = (
            new.log_start < old.log_start
            or new.first_dirty < old.first_dirty
            or new.sealed_end < old.sealed_end
            or new.epochs[-1:] < old.epochs[-1:]
        )
        if down:
            raise ValueError(f"positions of partition {partition} would move down: {old} to {new}")
        positions[partition] = new
    return tuple(positions)
