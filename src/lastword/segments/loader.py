"""Loads tables from a catalog."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import Table
from sqlalchemy import select
from sqlalchemy.orm import Session

from lastword.errors import CorruptError
from lastword.segments.foreign import decoding

_LOAD_ATTEMPTS = 5


class TableLoader:
    """Loads tables, and their metadata only if it has changed."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def load(self, identifier: tuple[str, ...], known: Table | None = None) -> Table:
        if known is not None and known.metadata_location == self._pointer(identifier):
            return known
        for _ in range(_LOAD_ATTEMPTS):
            path = self._pointer(identifier) or ""
            try:
                with decoding(path or f"The metadata file of {'.'.join(identifier)}"):
                    return self._catalog.load_table(identifier)
            except FileNotFoundError as error:
                # The pointer moved on, and the file that it named was removed, before it could be read.
                missing = error
        raise CorruptError(
            f"The metadata file of {'.'.join(identifier)} is missing ({missing}). Register the table again with an "
            "older metadata file of its metadata folder.",
            path=path,
        ) from missing

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
