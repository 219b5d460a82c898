"""Erasures that were requested but are not done: `erasing/<topic id>.json`, one per topic.

An intent has, for each request, the keys and the log ends of the partitions at that time: records from there on are
new and stay. The file holds keys itself, so it is removed when the erasure is done.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.errors import CorruptError, StorageError
from lastword.folder import disk, state_file
from lastword.folder.paths import ERASING_FOLDER
from lastword.folder.steps import reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Keys whose records below `ends`, by partition, must be erased. Partitions that were added since have none."""

    keys: tuple[bytes, ...]
    ends: tuple[int, ...]

    def end(self, partition: int) -> int:
        return self.ends[partition] if partition < len(self.ends) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """The records that must be erased from a topic."""

    topic: str
    topic_id: str
    wanted: tuple[Wanted, ...]
    held: tuple[int, ...] | None = None
    """None: the files have yet to be rewritten. Else the snapshots that still had records of the keys afterwards,
    because another engine's tag or branch kept them."""

    @property
    def keys(self) -> tuple[bytes, ...]:
        return tuple(dict.fromkeys(key for each in self.wanted for key in each.keys))

    def end(self, partition: int) -> int:
        """Return the offset below which records of a partition may have to be erased."""
        return max(each.end(partition) for each in self.wanted)


def add_intent(data_folder: Path, wanted: Intent) -> Intent:
    """Note an erasure in addition to unfinished ones of the topic. Replace a damaged note."""
    path = _path(data_folder, wanted.topic_id)
    try:
        earlier = load_intent(path)
    except CorruptError:
        earlier = None
    both = Intent(
        topic=wanted.topic,
        topic_id=wanted.topic_id,
        wanted=(*(earlier.wanted if earlier is not None else ()), *wanted.wanted),
    )
    save_intent(data_folder, both)
    reached("erase.noted")
    return both


def save_intent(data_folder: Path, intent: Intent) -> None:
    """Write an intent. Raise StorageError if that fails."""
    content = {
        "topic": intent.topic,
        "topic_id": intent.topic_id,
        "wanted": [
            {"keys": [base64.b64encode(key).decode() for key in each.keys], "ends": list(each.ends)}
            for each in intent.wanted
        ],
        "held": None if intent.held is None else list(intent.held),
    }
    path = _path(data_folder, intent.topic_id)
    try:
        disk.make_folder(path.parent)
        state_file.save(path, content)
    except OSError as error:
        raise StorageError(f"Can't write {path}: {error.strerror or error}.") from error


def list_intents(data_folder: Path) -> list[Path]:
    return sorted((data_folder / ERASING_FOLDER).glob("*.json"))


def load_intent(path: Path) -> Intent | None:
    """Return an intent, or None if there is none. Raise CorruptError if it can't be parsed."""
    return state_file.load(
        path,
        _intent_from,
        "So it is not known which keys were to be erased. Erase them again with `lastword erase`, which replaces the "
        "file, or remove it.",
    )


def is_erasing(data_folder: Path, topic_id: str) -> bool:
    """Return whether records of a topic are still to be erased from its files. They must beat no others."""
    try:
        intent = load_intent(_path(data_folder, topic_id))
    except CorruptError:
        return True
    return intent is not None and intent.held is None


def _intent_from(saved: dict[str, Any]) -> Intent:
    return Intent(
        topic=str(saved["topic"]),
        topic_id=str(saved["topic_id"]),
        wanted=tuple(
            Wanted(keys=_keys(each["keys"]), ends=tuple(map(int, each["ends"]))) for each in saved["wanted"]
        ),
        held=None if saved["held"] is None else tuple(map(int, saved["held"])),
    )


def forget_intent(data_folder: Path, topic_id: str) -> None:
    _path(data_folder, topic_id).unlink(missing_ok=True)


def unfinished_intents(data_folder: Path) -> list[Path]:
    """Return half-written intents. They have no effect, but contain keys."""
    return sorted((data_folder / ERASING_FOLDER).glob("*.tmp"))


def _keys(texts: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(base64.b64decode(text, validate=True) for text in texts)


def _path(data_folder: Path, topic_id: str) -> Path:
    return data_folder / ERASING_FOLDER / f"{topic_id}.json"
