"""Makes the manifests of a new snapshot: data files and delete files in and out.

pyiceberg's own producers can't add delete files, remove them, or merge manifests when files are removed. This is the
only module that uses its private names.

Each commit writes at most one manifest of data files (new, removed, and those that shared a manifest with removed ones)
and one of delete files. Once there are many manifests of data files, the small ones are merged into it.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Final

from pyiceberg.exceptions import ValidationException
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _SnapshotProducer

from lastword.segments.fileio import bare_path
from lastword.segments.manifests import entries_of, manifests_of

MERGE_COUNT: Final = 16
"""Merge small manifests of data files once there are this many."""
SMALL_BYTES: Final = 8 << 20

# A release of pyiceberg that renames one of these must not be found out by a commit.
for _owner, _names in (
    (_SnapshotProducer, ("_manifests", "_deleted_entries", "_existing_manifests", "_summary", "_commit")),
    (ManifestWriterV2, ("content", "_meta", "prepare_entry")),
):
    for _name in _names:
        assert hasattr(_owner, _name), f"pyiceberg's {_owner.__name__} has no {_name}"
for _name in ("_added_data_files", "_deleted_data_files", "_parent_snapshot_id", "_snapshot_id", "_io"):
    assert _name in inspect.getsource(_SnapshotProducer.__init__), f"pyiceberg's producers have no {_name}"


class DeleteManifestWriter(ManifestWriterV2):
    """Writes a manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class SnapshotProducer(_SnapshotProducer["SnapshotProducer"]):
    """Adds and removes data files and delete files. The transaction's snapshot is the one to change."""

    def __init__(
        self,
        transaction: Transaction,
        file_io: FileIO,
        *,
        added: Sequence[DataFile],
        removed: Collection[str],
        summary: dict[str, str],
    ) -> None:
        """`added` are data files and delete files, `removed` the paths of such files."""
        # Other engines look for new deletes only in snapshots that are no appends.
        only_adds = not removed and all(each.content == DataFileContent.DATA for each in added)
        operation = Operation.APPEND if only_adds else Operation.OVERWRITE
        super().__init__(operation, transaction, file_io, snapshot_properties=summary)
        self._added_data_files = list(added)
        self._removed = {bare_path(path) for path in removed}

    def _deleted_entries(self) -> list[ManifestEntry]:
        raise NotImplementedError("see _manifests")

    def _existing_manifests(self) -> list[ManifestFile]:
        raise NotImplementedError("see _manifests")

    def _manifests(self) -> list[ManifestFile]:
        parent = (
            self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id)
            if self._parent_snapshot_id is not None
            else None
        )
        # Manifests with nothing but deleted entries have told it once.
        before = [
            each
            for each in (manifests_of(parent, self._io) if parent is not None else ())
            if each.has_added_files() or each.has_existing_files()
        ]
        kept: list[ManifestFile] = []
        for content in ManifestContent:
            own = [each for each in before if each.content == content]
            added = [each for each in self._added_data_files if _content_of(each) == content]
            kept += self._rewritten(content, own, added)
        missing = self._removed - {bare_path(each.file_path) for each in self._deleted_data_files}
        if missing:
            raise ValidationException(f"Missing required files to delete: {', '.join(sorted(missing))}")
        return kept

    def _rewritten(
        self, content: ManifestContent, manifests: Sequence[ManifestFile], added: Sequence[DataFile]
    ) -> list[ManifestFile]:
        """Return the manifests of one kind after the change. What is in a touched one moves to a new one."""
        kept: list[ManifestFile] = []
        moved = [self._entry(ManifestEntryStatus.ADDED, data_file=each) for each in added]
        for manifest in manifests:
            entries = list(entries_of(manifest, self._io)) if self._removed else []
            if any(bare_path(each.data_file.file_path) in self._removed for each in entries):
                moved += [self._moved(each) for each in entries]
            else:
                kept.append(manifest)
        small = [each for each in kept if each.manifest_length < SMALL_BYTES]
        # Deletes are listed by one manifest: each commit replaces many of them.
        if moved and (content == ManifestContent.DELETES or len(small) + 1 >= MERGE_COUNT):
            moved += [self._moved(each) for manifest in small for each in entries_of(manifest, self._io)]
            kept = [each for each in kept if each not in small]
        return [*kept, self._written(content, moved)] if moved else kept

    def _moved(self, entry: ManifestEntry) -> ManifestEntry:
        is_removed = bare_path(entry.data_file.file_path) in self._removed
        if is_removed:
            self._deleted_data_files.add(entry.data_file)
        return self._entry(
            ManifestEntryStatus.DELETED if is_removed else ManifestEntryStatus.EXISTING,
            data_file=entry.data_file,
            of=entry,
        )

    def _entry(
        self, status: ManifestEntryStatus, *, data_file: DataFile, of: ManifestEntry | None = None
    ) -> ManifestEntry:
        is_existing = status == ManifestEntryStatus.EXISTING and of is not None
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=of.snapshot_id if is_existing and of is not None else self._snapshot_id,
            sequence_number=None if of is None else of.sequence_number,
            file_sequence_number=None if of is None else of.file_sequence_number,
            data_file=data_file,
        )

    def _written(self, content: ManifestContent, entries: Sequence[ManifestEntry]) -> ManifestFile:
        by_spec = {each.data_file.spec_id for each in entries}
        assert len(by_spec) == 1, f"a topic's table has one partition spec, not {sorted(by_spec)}"
        with self._writer(content) as writer:
            for each in entries:
                writer.add_entry(each)
        return writer.to_manifest_file()

    def _writer(self, content: ManifestContent) -> ManifestWriter:
        spec = self._transaction.table_metadata.spec()
        if content == ManifestContent.DATA:
            return self.new_manifest_writer(spec)
        return DeleteManifestWriter(
            spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression
        )


def _content_of(data_file: DataFile) -> ManifestContent:
    is_data = data_file.content == DataFileContent.DATA
    return ManifestContent.DATA if is_data else ManifestContent.DELETES
