"""Removes files of a table that no live snapshot names.

1. List all files below the table's location.
2. Load the table afresh, and read from it every file that its metadata names.
3. Files of 1 that belong to no live job and are not in 2 are unnamed. Note since when beside the table (unnamed.py).
4. Remove those that have been unnamed for long enough, one by one. Metadata must wait until another snapshot has been
   committed since it was noted: a commit in progress, whose files carry no job that a lease could protect, is fenced then.

The listing comes first: a file that a commit names after it was listed is seen by 2. If killed at any point, it has
removed only unused files. If anything of 2 can't be read, nothing is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from pyiceberg.table import Table

from lastword.folder import steps
from lastword.segments.fileio import FileTree, SyncedFileIO, bare_path
from lastword.segments.foreign import decoding
from lastword.segments.manifests import files_of, manifests_of
from lastword.segments.model import Collected
from lastword.segments.parquet import job_of
from lastword.segments.unnamed import NOTE, Noted, load_note, note_seen, save_note

MAX_MS = 2**62
SETTLED_MS = 600_000
"""A younger file may be one that a commit in progress is about to name: it is not noted as unnamed yet."""


def collect(
    file_io: SyncedFileIO,
    location: str,
    reload: Callable[[], Table],
    *,
    now_ms: int,
    grace_ms: int | None,
    live_jobs: Collection[str],
    dry_run: bool,
    data_only: bool,
) -> Collected:
    tree = FileTree(file_io, location)
    # Without a grace, files that are from the future by this clock are removed too: the store has its own clock.
    before_ms = MAX_MS if grace_ms is None else now_ms - grace_ms
    settled_ms = max(before_ms, now_ms - SETTLED_MS)
    below = {
        file.path.removeprefix(f"{tree.path}/"): file
        for file in tree.files()
        if file.changed_ms is not None and file.changed_ms < settled_ms and job_of(file.path) not in live_jobs
    }
    below.pop(NOTE, None)
    if not below:
        return Collected()
    table = reload()
    current_id = table.metadata.current_snapshot_id
    named = named_files(table)
    noted = load_note(file_io, location)
    unnamed = (path for path, file in below.items() if file.path not in named)
    seen = note_seen(noted, unnamed, now_ms=now_ms, snapshot_id=current_id)

    def is_free(path: str, since: Noted) -> bool:
        if job_of(path) is not None:
            # The job's lease has protected it until now, and no job commits without one.
            return True
        return not data_only and since.snapshot_id != current_id

    garbage = [
        below[path]
        for path, since in seen.items()
        if since.since_ms <= before_ms and (below[path].changed_ms or 0) < before_ms and is_free(path, since)
    ]
    if not dry_run:
        gone = {file.path for file in garbage}
        left = {path: since for path, since in seen.items() if below[path].path not in gone}
        if left != noted:
            save_note(file_io, location, left)
            steps.reached("collect.noted")
        for file in garbage:
            tree.remove_file(file.path)
            steps.reached("collect.file.removed")
    return Collected(
        files=tuple(location + file.path.removeprefix(tree.path) for file in garbage),
        size_bytes=sum(file.size_bytes for file in garbage),
    )


def named_files(table: Table) -> set[str]:
    """Return every file that the table needs, as a bare path: other engines may spell the scheme differently."""
    metadata = table.metadata
    named = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    named.update(each.statistics_path for each in metadata.statistics)
    named.update(each.statistics_path for each in metadata.partition_statistics)
    manifests = {}
    for snapshot in metadata.snapshots:
        named.add(snapshot.manifest_list)
        with decoding(snapshot.manifest_list):
            manifests.update({each.manifest_path: each for each in manifests_of(snapshot, table.io)})
    named.update(manifests)
    for manifest in manifests.values():
        with decoding(manifest.manifest_path):
            named.update(each.file_path for each in files_of(manifest, table.io))
    return {bare_path(path) for path in named}
