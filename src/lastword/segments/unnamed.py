"""Since when files of a table are named by no live snapshot: a note beside the table's metadata.

A file that a snapshot named must outlive it by the grace, because other engines may be in the middle of a query. Its
age says nothing about that, so each collection notes the unnamed files that it sees for the first time. A note that is
lost, damaged or overwritten by another process makes files stay for longer, never go sooner; so does a clock that is
put back, by no more than the grace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from lastword.segments.fileio import FileTree, SyncedFileIO

NOTE = "metadata/lastword-unnamed.json"
"""Where it is, below the table's location. The paths in it are relative, so that a table may be moved."""


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
    """Replace the note; one that says nothing goes."""
    if not noted:
        tree = FileTree(file_io, location)
        tree.remove_file(f"{tree.path}/{NOTE}")
        return
    with file_io.new_output(f"{location}/{NOTE}").create(overwrite=True) as stream:
        stream.write(json.dumps(noted, separators=(",", ":")).encode())


def note_seen(noted: Mapping[str, int], unnamed: Iterable[str], now_ms: int) -> dict[str, int]:
    """Return since when each of the files that are unnamed now is; those that are named again are forgotten."""
    return {path: min(noted.get(path, now_ms), now_ms) for path in unnamed}
