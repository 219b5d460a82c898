"""Copies of keys outside the table and the WAL after an erasure: in staged writes and positions of sources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lastword import batch
from lastword.errors import StorageError
from lastword.folder import state_file
from lastword.folder.paths import CONNECT_FOLDER, STAGING_FOLDER


def staged_with(data_folder: Path, topic_id: str, keys: pa.Array) -> Iterator[str]:
    """Report the staged files of a topic that have records of some keys."""
    for path in sorted((data_folder / STAGING_FOLDER / topic_id).glob("*/*.batches")):
        try:
            records = [batch.decode_many([data]) for _, data in batch.split(path.read_bytes())]
        except FileNotFoundError:
            continue
        except (OSError, batch.BadBatchError):
            yield f"{path}: it can't be looked into. A write that is in progress or was killed has left it. {_WAY_OUT}"
            continue
        if any(pc.any(pc.is_in(each.column("key"), keys)).as_py() for each in records):
            yield (
                f"{path}: a write that has not been appended, because it is in progress or was killed, has records of "
                f"these keys. {_WAY_OUT}"
            )


_WAY_OUT = (
    "The file is removed when the write is done, or a day after it was killed. A streaming query must be restarted. "
    "Records that are appended later are new records."
)


def positions_with(data_folder: Path, keys: Sequence[bytes]) -> Iterator[str]:
    """Report the sources whose position is at one of some keys: a snapshot resumes after the last key that it read."""
    texts = {text for key in keys for text in _spellings(key)}
    for path in sorted((data_folder / CONNECT_FOLDER).glob("*/*.json")):
        try:
            position = state_file.load_if_whole(path, lambda saved: saved["position"])
        except StorageError:
            continue
        if any(each in texts for each in _texts(position)):
            source = path.parent.name
            yield (
                f"{path}: the position of the source {source!r} is at one of these keys. It changes when the source "
                f"reads on. `lastword connect reset {source}` forgets it, and the source reads everything again."
            )


def _spellings(key: bytes) -> Iterator[tuple[str, ...]]:
    """Yield a key as positions have it: as it is, and if it is a JSON object, the values of its fields."""
    text = key.decode(errors="replace")
    yield (text,)
    try:
        found = json.loads(text)
    except ValueError:
        return
    if isinstance(found, dict) and found:
        yield tuple(each if isinstance(each, str) else json.dumps(each) for each in found.values())


def _texts(saved: Any) -> Iterator[tuple[str, ...]]:
    """Yield every string, and every list of strings, in a JSON value."""
    if isinstance(saved, str):
        yield (saved,)
    elif isinstance(saved, list):
        if all(isinstance(each, str) for each in saved):
            yield tuple(saved)
        else:
            for each in saved:
                yield from _texts(each)
    elif isinstance(saved, dict):
        for each in saved.values():
            yield from _texts(each)
