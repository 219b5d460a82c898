"""Where things are in a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID

from lastword.config import split_name

CREATING_FOLDER: Final = "creating"
DELETING_FOLDER: Final = "deleting"


def wal_folder(data_folder: Path, name: str, topic_id: UUID) -> Path:
    """Where the WALs of a topic's partitions are."""
    namespace, rest = split_name(name)
    return data_folder / "wal" / namespace / rest / topic_id.hex


def notes(folder: Path) -> list[Path]:
    """The notes in a folder, but for those that are being written: these say nothing yet."""
    return sorted(note for note in folder.iterdir() if not note.suffix) if folder.exists() else []
