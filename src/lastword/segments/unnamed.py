"""A note beside the table's metadata: when each file was first found to be named by no live snapshot.

A file that a snapshot named must outlive it by the grace, because other engines may be in the middle of a query. Its
age does not show that, so each collection notes the unnamed files that it sees for the first time. If the note
is lost, damaged or overwritten by another process, files stay longer, and are never removed sooner. The same holds
for a clock that is set back, by no more than the grace.

The note also has the snapshot that was the current one then. A commit in progress that is about to name the file was
planned on that snapshot or an older one, so it will fail once another snapshot is the current one, however long it takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lastword.segments.fileio import FileTree, SyncedFileIO

NOTE = "metadata/lastword-unnamed.json"
"""The path of the note below the table's location. The paths in it are relative, so that a table may be moved."""


class Noted(NamedTuple):
    """When a file was first found unnamed, and the snapshot that was the current one then."""

    since_ms: int
    snapshot_id: int | None


def load_note(file_io: SyncedFileIO, location: str) -> dict[str, Noted]:
    """Return the note of each file, by path below the table's location."""
    try:
        with file_io.new_input(f"{location}/{NOTE}").open(seekable=False) as stream:
            saved = json.loads(stream.read())
        return {path: Noted(int(since_ms), snapshot_id) for path, (since_ms, snapshot_id) in saved.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        # A note of the first version had no snapshots. It counts for nothing, as a damaged one.
        return {}


def save_note(file_io: SyncedFileIO, location: str, noted: Mapping[str, Noted]) -> None:
    """Replace the note. Remove it if it would be empty."""
    if not noted:
        tree = FileTree(file_io, location)
        tree.remove_file(f"{tree.path}/{NOTE}")
        return
    with file_io.new_output(f"{location}/{NOTE}").create(overwrite=True) as stream:
        stream.write(json.dumps(noted, separators=(",", ":")).encode())


def note_seen(
    noted: Mapping[str, Noted], unnamed: Iterable[str], *, now_ms: int, snapshot_id: int | None
) -> dict[str, Noted]:
    """Return the notes for the current unnamed files. Files that are named again are forgotten."""
    first = Noted(now_ms, snapshot_id)
    return {
        path: before
        if (before := noted.get(path, first)).since_ms <= now_ms
        else before._replace(since_ms=now_ms)
        for path in unnamed
    }
