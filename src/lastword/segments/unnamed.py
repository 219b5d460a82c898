"""A note beside the table's metadata that says since when no live snapshot names a file.

A file that a snapshot named must outlive it by the grace, because other engines may be in the middle of a query. Its
age says nothing about that, so each collection notes the unnamed files that it sees for the first time. If the note
is lost, damaged or overwritten by another process, files stay longer, and are never removed sooner. The same holds
for a clock that is set back, by no more than the grace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from lastword.segments.fileio import FileTree, SyncedFileIO

NOTE = "metadata/lastword-unnamed.json"
"""The path of the note below the table's location. The paths in it are relative, so that a table may be moved."""


def load_note(file_io: SyncedFileIO, location: str) -> dict[str, int]:
    """Return since when files are unnamed, by path below the table's location."""
    try:
        with file_io.new_input(f"{location}/{NOTE}").open(seekable=False) as stream:
            saved = json.loads(stream.read())
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(saved, dict):
        return {}
    return {path: since_ms for path, since_ms in saved.items() if isinstance(since_ms, int)}


def save_note(file_io: SyncedFileIO, location: str, noted: Mapping[str, int]) -> None:
    """Replace the note. Remove it if it would be empty."""
    if not noted:
        tree = FileTree(file_io, location)
        tree.remove_file(f"{tree.path}/{NOTE}")
        return
    with file_io.new_output(f"{location}/{NOTE}").create(overwrite=True) as stream:
        stream.write(json.dumps(noted, separators=(",", ":")).encode())


def note_seen(noted: Mapping[str, int], unnamed: Iterable[str], now_ms: int) -> dict[str, int]:
    """Return since when each file that is unnamed now has been so. Files that are named again are forgotten."""
    return {path: min(noted.get(path, now_ms), now_ms) for path in unnamed}
