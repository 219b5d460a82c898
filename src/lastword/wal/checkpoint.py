"""The checkpoints of a partition's WAL. Each has one owner, which alone writes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from lastword.folder import state_file
from lastword.folder.paths import DELETER_FILE, WRITER_FILE
from lastword.wal.files import WalFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes of a file, and the offsets in them, that recovery found to be damaged before the durable end."""

    seq: int
    position: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterCheckpoint:
    """The writer's files, oldest first, the last one active. Epochs are pairs of epoch and first offset."""

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
    """The oldest remaining file: everything before it has been deleted."""

    start_seq: int
    start_offset: int


def save_writer(folder: Path, checkpoint: WriterCheckpoint) -> None:
    state_file.save(
        folder / WRITER_FILE,
        {
            "version": 1,
            "topic_id": str(checkpoint.topic_id),
            "partition": checkpoint.partition,
            "files": [asdict(each) for each in checkpoint.files],
            "epochs": checkpoint.epochs,
            "damage": [asdict(each) for each in checkpoint.damage],
        },
        indent=1,
    )


def load_writer(folder: Path) -> WriterCheckpoint | None:
    """Load the writer's checkpoint; None if it is missing or unreadable: recovery rebuilds it from the files."""
    found = state_file.load_if_whole(folder / WRITER_FILE, _writer_from)
    return found if found is not None and found.files else None


def _writer_from(saved: dict[str, Any]) -> WriterCheckpoint:
    return WriterCheckpoint(
        topic_id=UUID(saved["topic_id"]),
        partition=saved["partition"],
        files=tuple(WalFile(**each) for each in saved["files"]),
        epochs=tuple((epoch, first) for epoch, first in saved["epochs"]),
        damage=tuple(Damage(**each) for each in saved["damage"]),
    )


def save_deleter(folder: Path, checkpoint: DeleterCheckpoint) -> None:
    state_file.save(folder / DELETER_FILE, {"version": 1, **asdict(checkpoint)}, indent=1)


def load_deleter(folder: Path) -> DeleterCheckpoint | None:
    return state_file.load_if_whole(
        folder / DELETER_FILE,
        lambda saved: DeleterCheckpoint(start_seq=saved["start_seq"], start_offset=saved["start_offset"]),
    )


def left_files(folder: Path, checkpoint: WriterCheckpoint) -> tuple[WalFile, ...]:
    """Return the writer's files without those that the deleter has removed since."""
    deleter = load_deleter(folder)
    return checkpoint.files if deleter is None else without_deleted(checkpoint.files, deleter)


def without_deleted(files: tuple[WalFile, ...], deleter: DeleterCheckpoint) -> tuple[WalFile, ...]:
    return tuple(each for each in files if each.seq >= deleter.start_seq or each.is_active)
