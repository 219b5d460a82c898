"""Removes files of a table that no live snapshot names.

1. All files below the table's location are listed.
2. The table is looked at, afresh, and every file that its metadata names is read from it.
3. Files of 1 that are old enough, of no live job and not in 2 are removed, one by one.

The listing comes first: a file that a commit names after it was listed is seen by 2. Killed at any point, it has
removed only files that nobody needs. If anything of 2 can't be read, nothing is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from pyiceberg.table import Table

from lastword import steps
from lastword.segments.fileio import FileTree, SyncedFileIO, bare_path
from lastword.segments.foreign import decoding
from lastword.segments.parquet import job_of
from lastword.segments.table import Collected


def collect(
    file_io: SyncedFileIO,
    location: str,
    reload: Callable[[], Table],
    *,
    older_than_ms: int,
    live_jobs: Collection[str],
    dry_run: bool,
    data_only: bool,
) -> Collected:
    tree = FileTree(file_io, location)
    candidates = [
        file
        for file in tree.files()
        if file.changed_ms is not None
        and file.changed_ms < older_than_ms
        and job_of(file.path) not in live_jobs
        and not (data_only and job_of(file.path) is None)
    ]
    if not candidates:
        return Collected()
    named = named_files(reload())
    garbage = [file for file in candidates if file.path not in named]
    if not dry_run:
        for file in garbage:
            tree.remove_file(file.path)
            steps.reached("collect.file.removed")
    return Collected(
        files=tuple(location + file.path.removeprefix(tree.path) for file in garbage),
        size_bytes=sum(file.size_bytes for file in garbage),
    )


def named_files(table: Table) -> set[str]:
    """Every file that the table needs, as a bare path: other engines may spell the scheme in another way."""
    metadata = table.metadata
    named = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    named.update(each.statistics_path for each in metadata.statistics)
    named.update(each.statistics_path for each in metadata.partition_statistics)
    manifests = {}
    for snapshot in metadata.snapshots:
        named.add(snapshot.manifest_list)
        with decoding(snapshot.manifest_list):
            manifests.update({manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)})
    named.update(manifests)
    for manifest in manifests.values():
        with decoding(manifest.manifest_path):
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        named.update(entry.data_file.file_path for entry in entries)
    return {bare_path(path) for path in named}
