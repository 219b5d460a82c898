"""Finds older states of a table whose current metadata file is damaged or missing.

A commit writes a new metadata file, and each such file names those before it. The table can go back to the newest of
them that can be read and whose files all exist. Files of commits that were never made are in the same folder. A file
has been the table's state only if the catalog or a later file names it as a predecessor, or if it is the only one of
its number and files of that number are still kept: a commit that failed leaves a second one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from lastword.errors import CorruptError, LastwordError
from lastword.segments import mapping
from lastword.segments.fileio import FileTree, SyncedFileIO, bare_path
from lastword.segments.foreign import decoding, mapped
from lastword.segments.manifests import files_of, manifests_of
from lastword.segments.model import Snapshot

_SUFFIX = ".metadata.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderState:
    """A state that a table had before. It can be used if it has no `problem`."""

    metadata_location: str
    snapshot: Snapshot | None
    """None if it can't be read."""
    problem: str | None = None


def older_states(file_io: SyncedFileIO, pointer: str, previous: str | None) -> list[OlderState]:
    """Return the states before the one at `pointer`, newest first. `previous` is the newest of them, if known."""
    folder = pointer.rpartition("/")[0]
    location = folder.removesuffix("/metadata")
    there = {file.path for file in FileTree(file_io, location).files()}
    names = [
        path.rpartition("/")[2] for path in there if path.endswith(_SUFFIX) and path != bare_path(pointer)
    ]
    read = {f"{folder}/{name}": _read(file_io, f"{folder}/{name}") for name in names}
    committed = {bare_path(previous)} if previous is not None else set()
    for found in read.values():
        if not isinstance(found, CorruptError):
            committed |= {bare_path(entry.metadata_file) for entry in found.metadata_log}
    numbers = Counter(_version(path)[0] for path in read)
    kept_from = _version(pointer)[0] - int(mapping.TABLE_PROPERTIES["write.metadata.previous-versions-max"])
    committed |= {
        bare_path(path)
        for path in read
        if numbers[_version(path)[0]] == 1 and kept_from <= _version(path)[0] < _version(pointer)[0]
    }
    in_order = sorted((path for path in read if bare_path(path) in committed), key=_version, reverse=True)
    return [_state(file_io, path, read[path], there) for path in in_order]


def _read(file_io: SyncedFileIO, path: str) -> TableMetadata | CorruptError:
    try:
        with mapped("Reading a metadata file", path), decoding(path):
            return FromInputFile.table_metadata(file_io.new_input(path))
    except CorruptError as error:
        return error


def _version(path: str) -> tuple[int, str]:
    """Return the number that begins the name of a metadata file, and the name."""
    name = path.rpartition("/")[2]
    number = name.partition("-")[0]
    return (int(number) if number.isdigit() else -1, name)


def _state(
    file_io: SyncedFileIO, path: str, found: TableMetadata | CorruptError, there: set[str]
) -> OlderState:
    if isinstance(found, CorruptError):
        return OlderState(metadata_location=path, snapshot=None, problem="it is damaged too")
    try:
        with decoding(path):
            current = found.current_snapshot()
            if current is None:
                return OlderState(metadata_location=path, snapshot=None, problem="it has no snapshot")
            snapshot = mapping.snapshot_from(found, current)
            named = {current.manifest_list}
        with mapped("Reading the manifests of an older state", path), decoding(current.manifest_list):
            for manifest in manifests_of(current, file_io):
                named.add(manifest.manifest_path)
                named.update(each.file_path for each in files_of(manifest, file_io))
    except LastwordError as error:
        return OlderState(metadata_location=path, snapshot=None, problem=str(error))
    gone = sorted({bare_path(each) for each in named} - there)
    problem = None
    if gone:
        are = "is" if len(gone) == 1 else "are"
        problem = f"{len(gone)} of its files {are} gone (the first is {gone[0]})"
    return OlderState(metadata_location=path, snapshot=snapshot, problem=problem)
