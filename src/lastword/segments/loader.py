"""Loads tables from a catalog."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from threading import Lock

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.sql.compiler import SQLCompiler

from lastword.errors import CorruptError
from lastword.segments.foreign import decoding

MOST_KNOWN = 64
"""The number of tables whose last state is kept although nobody uses it."""
_LOAD_ATTEMPTS = 5
_POINTER = select(IcebergTables.metadata_location).where(
    IcebergTables.catalog_name == bindparam("catalog"),
    IcebergTables.table_namespace == bindparam("namespace"),
    IcebergTables.table_name == bindparam("name"),
)


class TableLoader:
    """Loads tables, and their metadata only if it has changed."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: OrderedDict[tuple[str, ...], Table] = OrderedDict()
        """The last known states of tables, the most recently used last."""
        self._lock = Lock()

    def load(self, identifier: tuple[str, ...], known: Table | None = None) -> Table:
        known = self._known.get(identifier) or known
        for _ in range(_LOAD_ATTEMPTS):
            path = self.pointer(identifier) or ""
            if known is not None and known.metadata_location == path:
                return known
            try:
                with decoding(path or f"The metadata file of {'.'.join(identifier)}"):
                    table = self._catalog.load_table(identifier)
                    self.remember(table)
                    return table
            except FileNotFoundError as error:
                # The pointer moved on, and the file that it named was removed, before it could be read.
                missing = error
        raise CorruptError(
            f"The metadata file of {'.'.join(identifier)} is missing ({missing}). Restore the file from a backup; "
            "`lastword topic repair` shows whether an older metadata file of the table can be used.",
            path=path,
        ) from missing

    def remember(self, table: Table) -> None:
        """Remember the state that a commit made, so that nobody reads it again."""
        with self._lock:
            self._known[table.name()] = table
            self._known.move_to_end(table.name())
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)

    def exists(self, identifier: tuple[str, ...]) -> bool:
        if isinstance(self._catalog, SqlCatalog):
            return self.pointer(identifier) is not None
        return self._catalog.table_exists(identifier)

    def move_pointers(self, moves: Mapping[tuple[str, ...], tuple[str, str]]) -> None:
        """Point tables of a SQL catalog to other metadata files: all of them, in one transaction, or none.

        `moves` has the expected location of each table's metadata, and the new one.
        """
        assert isinstance(self._catalog, SqlCatalog)
        with Session(self._catalog.engine) as session:
            for (namespace, name), (before, after) in moves.items():
                found = session.execute(
                    update(IcebergTables)
                    .where(
                        IcebergTables.catalog_name == self._catalog.name,
                        IcebergTables.table_namespace == namespace,
                        IcebergTables.table_name == name,
                        IcebergTables.metadata_location == before,
                    )
                    .values(metadata_location=after, previous_metadata_location=None)
                )
                if found.rowcount != 1:  # type: ignore[attr-defined]
                    raise CommitFailedException(f"the table {namespace}.{name} no longer names {before}")
            session.commit()

    def pointers(self) -> dict[tuple[str, str], str] | None:
        """Return the location of every table's metadata, by one query; None if each table must be loaded for that."""
        if not isinstance(self._catalog, SqlCatalog):
            return None
        with Session(self._catalog.engine) as session:
            rows = session.execute(
                select(
                    IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location
                ).where(IcebergTables.catalog_name == self._catalog.name)
            )
            return {(namespace, name): pointer for namespace, name, pointer in rows if pointer is not None}

    def pointer(self, identifier: tuple[str, ...]) -> str | None:
        """Return the current location of the metadata. Only SQL catalogs know it without reading the metadata."""
        if not isinstance(self._catalog, SqlCatalog):
            return None
        namespace, name = identifier
        # This is called all the time: without SQLAlchemy's layers it takes a tenth of the time.
        engine = self._catalog.engine
        sql, names = self._pointer_statement
        values = {"catalog": self._catalog.name, "namespace": namespace, "name": name}
        connection = engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute(sql, values if names is None else tuple(values[each] for each in names))
            row = cursor.fetchone()
            cursor.close()
        except engine.dialect.loaded_dbapi.Error as error:
            # Whether the connection still works is not known.
            connection.invalidate(error)
            raise OperationalError(sql, values, error) from error
        finally:
            connection.close()
        return None if row is None else row[0]

    @cached_property
    def _pointer_statement(self) -> tuple[str, list[str] | None]:
        """The query for a table's metadata, as the database's driver takes it; the names of its values if by position."""
        assert isinstance(self._catalog, SqlCatalog)
        compiled = _POINTER.compile(dialect=self._catalog.engine.dialect)
        assert isinstance(compiled, SQLCompiler)
        return str(compiled), compiled.positiontup if compiled.positional else None

    def previous(self, identifier: tuple[str, ...]) -> str | None:
        """Return the location of the metadata before the last commit, if the catalog knows it."""
        assert isinstance(self._catalog, SqlCatalog)
        namespace, name = identifier
        with Session(self._catalog.engine) as session:
            return session.scalar(
                select(IcebergTables.previous_metadata_location).where(
                    IcebergTables.catalog_name == self._catalog.name,
                    IcebergTables.table_namespace == namespace,
                    IcebergTables.table_name == name,
                )
            )

    def forget(self, identifier: tuple[str, ...], pointer: str) -> bool:
        """Remove a table's entry if its metadata is still at `pointer`. Return False if it is not.

        SQL catalogs do both in one statement. Other catalogs can't: if another data folder drops the table and
        creates one of the same name between the caller's look and the removal, the new one is removed.
        """
        if not isinstance(self._catalog, SqlCatalog):
            try:
                self._catalog.drop_table(identifier)
            except NoSuchTableError:
                return False
            return True
        namespace, name = identifier
        with Session(self._catalog.engine) as session:
            removed = session.execute(
                delete(IcebergTables).where(
                    IcebergTables.catalog_name == self._catalog.name,
                    IcebergTables.table_namespace == namespace,
                    IcebergTables.table_name == name,
                    IcebergTables.metadata_location == pointer,
                )
            )
            session.commit()
        return bool(getattr(removed, "rowcount", 0))
