"""A data folder: its format, the effective settings, and the locations of its catalog and warehouse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lastword.clock import Clock
from lastword.config import BrokerConfig
from lastword.errors import InvalidError
from lastword.folder import disk
from lastword.folder.paths import (
    CATALOG_FILE,
    CONFIG_FILE,
    FORMAT_FILE,
    RESTORING_FILE,
    WAREHOUSE_FOLDER,
)
from lastword.folder.running import strangers
from lastword.segments.catalog import SegmentCatalog, sqlite_file, sqlite_properties
from lastword.segments.model import Announce, Guard, to_nobody

FORMAT = "1"


def load_config(
    folder: Path, config: BrokerConfig | Mapping[str, object] | str | Path | None
) -> BrokerConfig:
    """Return the effective settings: those given, otherwise those of the folder's own file."""
    if isinstance(config, BrokerConfig):
        return config
    if isinstance(config, Mapping):
        return BrokerConfig.from_mapping(config, where="config")
    if config is not None:
        return BrokerConfig.load(Path(config))
    own = folder / CONFIG_FILE
    return BrokerConfig.load(own if own.exists() else None)


def check_folder(folder: Path, *, create: bool) -> None:
    """Raise InvalidError if there is no log in a folder. With `create`, start one in a new or empty folder."""
    marker = folder / FORMAT_FILE
    if marker.exists():
        found = marker.read_text().strip()
        if found != FORMAT:
            raise InvalidError(
                f"{folder} has the data format {found!r}; this version of Lastword reads {FORMAT!r} only."
            )
        return
    if (folder / RESTORING_FILE).exists():
        raise InvalidError(
            f"{folder} has an unfinished restore of a backup. Run the same `lastword restore` again to resume it, or "
            f"remove the folder."
        )
    if not create:
        raise InvalidError(
            f"There is no Lastword data in {folder}. `lastword topic create` starts a log there."
        )
    if folder.exists() and not folder.is_dir():
        raise InvalidError(f"{folder} is not a folder.")
    # A process that was killed while it wrote the marker leaves its temporary file.
    if foreign := strangers(folder):
        raise InvalidError(
            f"{folder} is not empty and has no Lastword data in it ({foreign[0]} is there). "
            f"Choose an empty or a new folder."
        )
    disk.make_folder(folder)
    disk.replace_file(marker, f"{FORMAT}\n".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The locations of a folder's catalog and warehouse, and which of them are inside it."""

    folder: Path
    properties: Mapping[str, str]
    warehouse: str
    has_catalog: bool
    has_warehouse: bool

    @classmethod
    def of(cls, folder: Path, config: BrokerConfig) -> Storage:
        properties = dict(config.catalog)
        if not {"type", "uri"} & set(properties):
            properties |= sqlite_properties(folder / CATALOG_FILE)
        warehouse = config.warehouse or properties.pop("warehouse", None) or str(folder / WAREHOUSE_FOLDER)
        return cls(
            folder=folder,
            properties=properties,
            warehouse=warehouse,
            has_catalog=_is_inside(sqlite_file(properties), folder),
            has_warehouse=_is_inside(_local(warehouse), folder),
        )

    @property
    def is_shared(self) -> bool:
        """Whether another folder could use the same tables."""
        return not (self.has_catalog and self.has_warehouse)

    def open_catalog(
        self,
        clock: Clock,
        announce: Announce = to_nobody,
        *,
        create: bool = True,
        guard: Guard | None = None,
    ) -> SegmentCatalog:
        """Open the catalog. `guard` decides which of its tables may be changed."""
        file = sqlite_file(self.properties)
        if not create and file is not None and not file.exists():
            # SQLite would create an empty one.
            raise InvalidError(
                f"There is no catalog {file}: nothing was ever written to the log in {self.folder}."
            )
        return SegmentCatalog.open(
            properties=self.properties,
            warehouse=self.warehouse,
            clock=clock,
            announce=announce,
            create=create,
            guard=guard,
        )


def _local(warehouse: str) -> Path | None:
    scheme, separator, path = warehouse.partition("://")
    if not separator:
        return Path(warehouse.removeprefix("file:"))
    return Path(path) if scheme == "file" else None


def _is_inside(path: Path | None, folder: Path) -> bool:
    return path is not None and path.absolute().resolve().is_relative_to(folder.resolve())
