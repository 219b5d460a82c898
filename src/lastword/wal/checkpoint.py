"""The checkpoints of a partition's WAL. Each has one owner, and nobody writes another's."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from lastword.folder import disk
from lastword.wal.files import WalFile

WRITER_FILE = "writer.json"
DELETER_FILE = "deleter.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes of a file, and the offsets in them, that recovery found to be damaged below what was durable."""

    seq: int
    position: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterCheckpoint:
    """The writer's files, oldest first; the last one is active. Epochs as pairs of epoch and first offset."""

    topic_id: UUID
    partition: int
    files: tuple[WalFile, ...]
    epochs: tuple[tuple[int, int], ...]
    damage: tuple[Damage, ...] = ()

    @property
    def active(self) -> WalFile:
        return self.files[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleterCheckpoint:
    """The oldest file that is left: everything before it has been deleted."""

    start_seq: int
    start_offset: int


def save_writer(folder: Path, checkpoint: WriterCheckpoint) -> None:
    _save(
        folder / WRITER_FILE,
        {
            "version": 1,
            "topic_id": str(checkpoint.topic_id),
            "partition": checkpoint.partition,
            "files": [asdict(each) for each in checkpoint.files],
            "epochs": checkpoint.epochs,
            "damage": [asdict(each) for each in checkpoint.damage],
        },
    )


def load_writer(folder: Path) -> WriterCheckpoint | None:
    """None if there is none, or none that can be read: recovery then rebuilds it from the files."""
    data = _load(folder / WRITER_FILE)
    if data is None or not data.get("files"):
        return None
    try:
        return WriterCheckpoint(
            topic_id=UUID(data["topic_id"]),
            partition=data["partition"],
            files=tuple(WalFile(**each) for each in data["files"]),
            epochs=tuple((epoch, first) for epoch, first in data["epochs"]),
            damage=tuple(Damage(**each) for each in data["damage"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def save_deleter(folder: Path, checkpoint: DeleterCheckpoint) -> None:
    _save(folder / DELETER_FILE, {"version": 1, **asdict(checkpoint)})


def load_deleter(folder: Path) -> DeleterCheckpoint | None:
    data = _load(folder / DELETER_FILE)
    if data is None:
        return None
    try:
        return DeleterCheckpoint(start_seq=data["start_seq"], start_offset=data["start_offset"])
    except (KeyError, TypeError):
        return None


def left_files(folder: Path, checkpoint: WriterCheckpoint) -> tuple[WalFile, ...]:
    """The writer's files without those that the deleter has taken since."""
    deleter = load_deleter(folder)
    return checkpoint.files if deleter is None else without_deleted(checkpoint.files, deleter)


def without_deleted(files: tuple[WalFile, ...], deleter: DeleterCheckpoint) -> tuple[WalFile, ...]:
    return tuple(each for each in files if each.seq >= deleter.start_seq or each.is_active)


def _save(path: Path, data: dict[str, Any]) -> None:
    disk.replace_file(path, json.dumps(data, indent=1).encode())


def _load(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return data if isinstance(data, dict) else None
