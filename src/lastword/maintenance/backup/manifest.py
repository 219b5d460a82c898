"""The manifest of a backup: the file that names everything in it, written last.

It is `backups/<id>.json` in its store. The id begins with the time, so that names sort by age.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from lastword.clock import new_uuid
from lastword.errors import CorruptError, InvalidError, StorageError
from lastword.maintenance.backup.store import BackupStore, Piece
from lastword.segments.foreign import FAILURES
from lastword.segments.mapping import positions_from_json, positions_to_json
from lastword.segments.model import DeleteFile, Marks, Positions, Segment, TopicInfo
from lastword.wal.checkpoint import Damage
from lastword.wal.files import WalFile

FORMATS = (1, 2)
"""The formats that can be read. The second one is written only if segments have marks: the first can't have them."""
FOLDER = "backups"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWal:
    """A partition's WAL: the files that are not sealed, the piece of each at the same index, and their end offset."""

    partition: int
    files: tuple[WalFile, ...] = ()
    pieces: tuple[Piece, ...] = ()
    end_offset: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    damage: tuple[Damage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTopic:
    """A topic as of one snapshot of its table, and the WAL after it. The paths of segments' files are those of pieces."""

    info: TopicInfo
    snapshot_id: int | None
    positions: tuple[Positions, ...]
    segments: tuple[Segment, ...]
    pieces: tuple[Piece, ...]
    wals: tuple[SavedWal, ...]

    def all_pieces(self) -> Iterable[Piece]:
        yield from self.pieces
        for wal in self.wals:
            yield from wal.pieces

    def log_end(self, partition: int) -> int:
        at = self.positions[partition]
        wal_end = max((wal.end_offset for wal in self.wals if wal.partition == partition), default=0)
        return max(at.sealed_end, at.log_start, wal_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """A small file of the data folder, as it was. `path` is relative to the folder."""

    path: str
    content: bytes
    changed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A backup. `settings` is the text of the settings file, if there was one."""

    id: str
    version: str
    began_ms: int
    made_ms: int
    folder: str
    folder_id: str
    host: str
    data_format: str
    settings: str | None = None
    topics: tuple[SavedTopic, ...] = ()
    files: tuple[SavedFile, ...] = ()
    problems: tuple[str, ...] = ()
    """The topics that are missing from it, and why."""

    def pieces(self) -> Iterable[Piece]:
        for topic in self.topics:
            yield from topic.all_pieces()

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces())


def new_id(now_ms: int, earlier: Iterable[str]) -> str:
    """Return an id that sorts after those in the store, even if the clock was set back."""
    stamp = _stamp(now_ms)
    newest = max((each.partition("-")[0] for each in earlier), default="")
    while stamp <= newest:
        now_ms = max(now_ms, _ms_of(newest)) + 1
        stamp = _stamp(now_ms)
    return f"{stamp}-{new_uuid().hex[:8]}"


def _stamp(now_ms: int) -> str:
    return f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y%m%dT%H%M%S}{now_ms % 1000:03d}"


def _ms_of(stamp: str) -> int:
    try:
        seconds = datetime.strptime(stamp[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
        return int(seconds.timestamp()) * 1000 + int(stamp[15:])
    except ValueError:
        return 0


def path_of(backup_id: str) -> str:
    return f"{FOLDER}/{backup_id}.json"


def ids(store: BackupStore) -> list[str]:
    """Return the ids of the backups in a store, oldest first."""
    found = store.sizes(FOLDER)
    return sorted(
        path.removeprefix(f"{FOLDER}/").removesuffix(".json") for path in found if path.endswith(".json")
    )


def save(store: BackupStore, manifest: Manifest) -> None:
    body = _to_json(manifest)
    has_marks = any(each.marks is not None for topic in manifest.topics for each in topic.segments)
    whole = {"lastword.backup": FORMATS[has_marks], "sha256": _checksum(body), "manifest": body}
    store.write(path_of(manifest.id), [json.dumps(whole, indent=1).encode()])


def load(store: BackupStore, backup_id: str) -> Manifest:
    """Load a manifest. Raise CorruptError if it is damaged, InvalidError if it is missing or has an unknown format."""
    path = path_of(backup_id)
    where = f"{store.address}/{path}"
    try:
        with store.open(path) as file:
            text = file.read()
    except FileNotFoundError:
        known = ", ".join(ids(store)) or "none"
        raise InvalidError(
            f"There is no backup {backup_id!r} in {store.address}. Backups there: {known}."
        ) from None
    except FAILURES as error:
        raise StorageError(f"Can't read {where}: {error}") from error
    try:
        whole = json.loads(text)
        found_format, body = whole["lastword.backup"], whole["manifest"]
        if found_format not in FORMATS:
            raise InvalidError(
                f"{where} has the format {found_format!r}; this version of Lastword reads up to {FORMATS[-1]}. "
                f"Restore it with the version that made it, or a newer one."
            )
        if _checksum(body) != whole["sha256"]:
            raise ValueError("its checksum is wrong")
        return _from_json(body)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(
            f"{where} is damaged: {error}. Another backup there may be intact: `lastword backup list` shows them.",
            path=where,
        ) from error


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _to_json(manifest: Manifest) -> dict[str, Any]:
    plain = ("id", "version", "began_ms", "made_ms", "folder", "folder_id", "host", "data_format", "settings")
    return {
        **{name: getattr(manifest, name) for name in plain},
        "problems": list(manifest.problems),
        "topics": [_topic_to_json(each) for each in manifest.topics],
        "files": [
            {
                "path": each.path,
                "content": base64.b64encode(each.content).decode(),
                "changed_ms": each.changed_ms,
            }
            for each in manifest.files
        ],
    }


def _from_json(body: Mapping[str, Any]) -> Manifest:
    return Manifest(
        **{
            **body,
            "problems": tuple(body["problems"]),
            "topics": tuple(_topic_from_json(each) for each in body["topics"]),
            "files": tuple(
                SavedFile(
                    path=each["path"],
                    content=base64.b64decode(each["content"]),
                    changed_ms=each["changed_ms"],
                )
                for each in body["files"]
            ),
        }
    )


def _topic_to_json(topic: SavedTopic) -> dict[str, Any]:
    info = topic.info
    return {
        "name": info.name,
        "id": info.id.hex,
        "partitions": info.partitions,
        "config": dict(info.config),
        "snapshot_id": topic.snapshot_id,
        "positions": json.loads(positions_to_json(topic.positions)),
        "segments": [asdict(each) for each in topic.segments],
        "pieces": [asdict(each) for each in topic.pieces],
        "wals": [asdict(each) for each in topic.wals],
    }


def _segment_from_json(saved: Mapping[str, Any]) -> Segment:
    marks = saved.get("marks")
    if marks is None:
        return Segment(**saved)
    return Segment(
        **{
            **saved,
            "marks": Marks(
                files=tuple(DeleteFile(**each) for each in marks["files"]),
                whole=_segment_from_json(marks["whole"]),
                since_ms=marks["since_ms"],
            ),
        }
    )


def _topic_from_json(saved: Mapping[str, Any]) -> SavedTopic:
    return SavedTopic(
        info=TopicInfo(
            name=saved["name"], id=UUID(saved["id"]), partitions=saved["partitions"], config=saved["config"]
        ),
        snapshot_id=saved["snapshot_id"],
        positions=positions_from_json(json.dumps(saved["positions"])),
        segments=tuple(_segment_from_json(each) for each in saved["segments"]),
        pieces=tuple(Piece(**each) for each in saved["pieces"]),
        wals=tuple(
            SavedWal(
                partition=each["partition"],
                files=tuple(WalFile(**file) for file in each["files"]),
                pieces=tuple(Piece(**piece) for piece in each["pieces"]),
                end_offset=each["end_offset"],
                epochs=tuple((epoch, first) for epoch, first in each["epochs"]),
                damage=tuple(Damage(**one) for one in each["damage"]),
            )
            for each in saved["wals"]
        ),
    )
