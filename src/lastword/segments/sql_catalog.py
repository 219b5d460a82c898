"""pyiceberg's SQL catalog, with commits whose cost hardly grows with the number of snapshots.

pyiceberg reads the table's metadata again in every commit, and copies all of it several times. Here a commit is made on the
metadata that it was planned on. The catalog's pointer moves only if it still names that metadata, so nothing else needs to be
compared: whatever another process has committed in the meantime, this commit fails.
"""

from __future__ import annotations

from datetime import datetime

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertCreate,
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from pyiceberg.utils.datetime import datetime_to_millis
from sqlalchemy import select, update
from sqlalchemy.orm import Session

IMPLEMENTATION = f"{__name__}.FencedSqlCatalog"

# A release of pyiceberg that renames one of these must not be found out by a commit.
for _name in ("_parse_metadata_version", "_write_metadata"):
    assert hasattr(SqlCatalog, _name), f"pyiceberg's SqlCatalog has no {_name}"


class Staged:
    """A table's metadata with changes that are not committed yet. Each change is applied once, and nothing is copied."""

    def __init__(self, base: TableMetadata) -> None:
        self.base = base
        self.metadata = base
        self._context = _TableMetadataUpdateContext()
        self._applied = 0

    def apply(self, updates: tuple[TableUpdate, ...]) -> TableMetadata:
        """Apply those of some updates that have not been applied yet: new ones come last."""
        for each in updates[self._applied :]:
            self.metadata = _apply_table_update(each, self.metadata, self._context)
        self._applied = len(updates)
        return self.metadata

    def finished(self, metadata_location: str) -> TableMetadata:
        """Return the metadata to write, which names the file of the base."""
        if not self._context.has_changes():
            return self.base
        done = _update_table_metadata_log(self.metadata, metadata_location, self.base.last_updated_ms)
        if done.last_updated_ms == self.base.last_updated_ms:
            now_ms = datetime_to_millis(datetime.now().astimezone())
            done = done.model_copy(update={"last_updated_ms": now_ms})
        return done


class FencedSqlCatalog(SqlCatalog):
    """A SQL catalog that commits on the metadata of the table that it is given."""

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        if any(isinstance(each, AssertCreate) for each in requirements):
            return super().commit_table(table, requirements, updates)
        for each in requirements:
            each.validate(table.metadata)
        staged = Staged(table.metadata)
        staged.apply(updates)
        metadata = staged.finished(table.metadata_location)
        if metadata is table.metadata:
            return _response(metadata, table.metadata_location)
        version = self._parse_metadata_version(table.metadata_location) + 1
        location = load_location_provider(
            metadata.location, metadata.properties
        ).new_table_metadata_file_location(version)
        self._write_metadata(metadata, table.io, location)
        self._move_pointer(table, location)
        return _response(metadata, location)

    def _move_pointer(self, table: Table, location: str) -> None:
        *namespace, name = table.name()
        entry = (
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace == ".".join(namespace),
            IcebergTables.table_name == name,
        )
        with Session(self.engine) as session:
            moved = session.execute(
                update(IcebergTables)
                .where(*entry, IcebergTables.metadata_location == table.metadata_location)
                .values(metadata_location=location, previous_metadata_location=table.metadata_location)
            )
            if moved.rowcount != 1:  # type: ignore[attr-defined]
                found = session.scalar(select(IcebergTables.metadata_location).where(*entry))
                if found is None:
                    raise NoSuchTableError(f"Table does not exist: {'.'.join(table.name())}")
                raise CommitFailedException(
                    f"{'.'.join(table.name())} is at {found}, not at {table.metadata_location}"
                )
            session.commit()


def _response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": location})
