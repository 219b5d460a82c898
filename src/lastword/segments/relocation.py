"""Rewrites the metadata of tables whose files were moved to another location. Data files stay as they are.

Iceberg's paths are absolute: the metadata file names manifest lists, these name manifests, these name data files and
delete files, and delete files name data files. After the files of a table were moved, copied or restored (each to the
same path below the table's location as before), `rewrite` writes new files of all these kinds but data files:

1. every delete file, once, with the same rows and new paths;
2. every manifest, once, with the same entries (status, snapshot, sequence numbers, partition, bounds) and new paths;
3. every snapshot's manifest list;
4. one metadata file, with an empty log of older ones: those name the old location.

Nothing is replaced: each new file has a new name. If killed at any point, it leaves orphans, and the old metadata
is as it was. The catalog's pointer moves afterwards: `SegmentCatalog.register` for a catalog that does not have the
table, `SegmentCatalog.relocate` for one that has. A file that is missing or damaged is not repaired here: the new
metadata names it at its new location, and reading it fails there as it did before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from lastword.clock import new_uuid
from lastword.errors import CorruptError, StorageError
from lastword.folder import steps
from lastword.segments.fileio import bare_path
from lastword.segments.foreign import decoding, mapped
from lastword.segments.mapping import FILE_PATH_FIELD, listed_deletes
from lastword.segments.marks import rewrite_paths
from lastword.segments.model import DeleteFile
from lastword.segments.producer import DeleteManifestWriter

_FILE_PATH = 1
_FILE_BYTES = 5
_LOWER_BOUNDS = 10
_UPPER_BOUNDS = 11
_MANIFEST_PATH = 0
_MANIFEST_LENGTH = 1
_CODEC: Literal["deflate"] = "deflate"

# pyiceberg has no setters for these fields. If a release moves them, this fails before any table is rewritten.
assert DataFile.from_args(file_path="here")[_FILE_PATH] == "here"
assert DataFile.from_args(file_size_in_bytes=7)[_FILE_BYTES] == 7
assert DataFile.from_args(lower_bounds={1: b"low"})[_LOWER_BOUNDS] == {1: b"low"}
assert DataFile.from_args(upper_bounds={1: b"high"})[_UPPER_BOUNDS] == {1: b"high"}
assert ManifestFile.from_args(manifest_path="here")[_MANIFEST_PATH] == "here"
assert ManifestFile.from_args(manifest_length=7)[_MANIFEST_LENGTH] == 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The new metadata of a table. `damaged` are files that could not be read, at their new locations."""

    metadata_location: str
    damaged: tuple[str, ...] = ()


def rewrite(
    file_io: FileIO, metadata_file: str, *, location: str, properties: Mapping[str, str] | None = None
) -> Rewritten:
    """Write the metadata of a table for `location`, where its files are now.

    `metadata_file` is the URI of its newest metadata file at its current location. `properties` are set in the table
    with it. If everything is already as wanted, nothing is written.
    """
    with mapped(f"Rewriting {metadata_file} for {location}"):
        try:
            with decoding(metadata_file):
                metadata = FromInputFile.table_metadata(file_io.new_input(metadata_file))
        except (CorruptError, FileNotFoundError):
            return Rewritten(metadata_location=metadata_file, damaged=(metadata_file,))
        wanted = {**metadata.properties, **(properties or {})}
        if metadata.location == location and metadata.properties == wanted:
            return Rewritten(metadata_location=metadata_file)
        return _Rewriter(file_io, metadata, location).run(metadata_file, wanted)


class _Rewriter:
    """The rewriting of one table."""

    def __init__(self, file_io: FileIO, metadata: TableMetadata, location: str) -> None:
        if metadata.format_version > 2:
            raise StorageError(
                f"The table at {location} has Iceberg's format {metadata.format_version}; "
                "only tables of format 1 and 2 can be relocated."
            )
        self._io = file_io
        self._metadata = metadata
        self._location = location
        self._old = bare_path(metadata.location).rstrip("/") + "/"
        self._id = new_uuid().hex
        self._manifests: dict[str, ManifestFile | None] = {}
        self._delete_files: dict[str, tuple[str, int]] = {}
        self._damaged: list[str] = []

    def run(self, metadata_file: str, properties: Mapping[str, str]) -> Rewritten:
        lists = {each.snapshot_id: self._manifest_list(each) for each in self._metadata.snapshots}
        steps.reached("relocate.manifests.written")
        # Go through the JSON form, which keeps everything that the models of pyiceberg carry.
        document: dict[str, Any] = self._metadata.model_dump(mode="json", by_alias=True, exclude_none=True)
        document["location"] = self._location
        document["metadata-log"] = []
        document["properties"] = {
            key: self._moved(value) if key.endswith(".path") else value for key, value in properties.items()
        }
        for snapshot in document.get("snapshots", []):
            snapshot["manifest-list"] = lists[snapshot["snapshot-id"]]
        for statistics in (*document.get("statistics", []), *document.get("partition-statistics", [])):
            statistics["statistics-path"] = self._moved(statistics["statistics-path"])
        version = _version_of(metadata_file) + 1
        target = f"{self._location}/metadata/{version:05d}-{new_uuid()}.metadata.json"
        ToOutputFile.table_metadata(type(self._metadata)(**document), self._io.new_output(target))
        steps.reached("relocate.metadata.written")
        return Rewritten(metadata_location=target, damaged=tuple(dict.fromkeys(self._damaged)))

    def _moved(self, path: str) -> str:
        """Return the current location of a file of the table. A file outside the table's location has not moved."""
        bare = bare_path(path)
        return f"{self._location}/{bare.removeprefix(self._old)}" if bare.startswith(self._old) else path

    def _manifest_list(self, snapshot: IcebergSnapshot) -> str:
        source = self._moved(snapshot.manifest_list)
        try:
            with decoding(source):
                listed = list(read_manifest_list(self._io.new_input(source)))
        except (CorruptError, FileNotFoundError):
            self._damaged.append(source)
            return source
        kept = [moved for each in listed if (moved := self._manifest(each)) is not None]
        target = f"{self._location}/metadata/snap-{snapshot.snapshot_id}-0-{self._id}.avro"
        with write_manifest_list(
            format_version=self._metadata.format_version,
            output_file=self._io.new_output(target),
            snapshot_id=snapshot.snapshot_id,
            parent_snapshot_id=snapshot.parent_snapshot_id,
            sequence_number=snapshot.sequence_number,
            avro_compression=_CODEC,
        ) as writer:
            writer.add_manifests(kept)
        return target

    def _manifest(self, manifest: ManifestFile) -> ManifestFile | None:
        """Return the manifest with new paths; None if it is empty. Snapshots share manifests, written once each."""
        path = manifest.manifest_path
        if path not in self._manifests:
            self._manifests[path] = self._new_manifest(manifest)
        return self._manifests[path]

    def _new_manifest(self, manifest: ManifestFile) -> ManifestFile | None:
        source = _changed(manifest, path=self._moved(manifest.manifest_path))
        try:
            with decoding(source.manifest_path):
                entries = source.fetch_manifest_entry(self._io, discard_deleted=False)
        except (CorruptError, FileNotFoundError):
            self._damaged.append(source.manifest_path)
            return source
        if not entries:
            return None
        target = f"{self._location}/metadata/{self._id}-m{len(self._manifests)}.avro"
        for entry in entries:
            if manifest.content == ManifestContent.DATA:
                entry.data_file[_FILE_PATH] = self._moved(entry.data_file.file_path)
            else:
                self._move_delete_file(entry)
        self._write_manifest(manifest, entries, target)
        return _changed(manifest, path=target, length=len(self._io.new_input(target)))

    def _write_manifest(self, manifest: ManifestFile, entries: list[ManifestEntry], target: str) -> None:
        assert manifest.added_snapshot_id is not None
        spec, schema = self._metadata.specs()[manifest.partition_spec_id], self._metadata.schema()
        output, snapshot_id = self._io.new_output(target), manifest.added_snapshot_id
        writer: ManifestWriter
        if manifest.content == ManifestContent.DATA:
            writer = write_manifest(
                self._metadata.format_version, spec, schema, output, snapshot_id, avro_compression=_CODEC
            )
        else:
            writer = DeleteManifestWriter(spec, schema, output, snapshot_id, _CODEC)
        with writer:
            for entry in entries:
                writer.add_entry(entry)

    def _move_delete_file(self, entry: ManifestEntry) -> None:
        """Let the entry name a new delete file, which lists the same rows of the files at their new location."""
        file = entry.data_file
        if entry.status == ManifestEntryStatus.DELETED:
            # It may be gone, and nobody reads it.
            file[_FILE_PATH] = self._moved(file.file_path)
        else:
            listed = listed_deletes(file).file
            if listed.path not in self._delete_files:
                self._delete_files[listed.path] = self._new_delete_file(listed)
            file[_FILE_PATH], file[_FILE_BYTES] = self._delete_files[listed.path]
        for bounds in (file[_LOWER_BOUNDS], file[_UPPER_BOUNDS]):
            if bounds and (path := bounds.get(FILE_PATH_FIELD)) is not None:
                bounds[FILE_PATH_FIELD] = self._moved(path.decode()).encode()

    def _new_delete_file(self, listed: DeleteFile) -> tuple[str, int]:
        """Return the location and the size of a delete file with new paths."""
        source = self._moved(listed.path)
        try:
            return rewrite_paths(self._io, source, self._moved)
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            self._damaged.append(source)
            return source, listed.size_bytes


def _changed(manifest: ManifestFile, *, path: str, length: int | None = None) -> ManifestFile:
    changed = ManifestFile(*(manifest[field] for field in range(len(manifest))))
    changed[_MANIFEST_PATH] = path
    if length is not None:
        changed[_MANIFEST_LENGTH] = length
    return changed


def _version_of(metadata_file: str) -> int:
    """Return the number that a metadata file's name begins with; -1 if it has none."""
    number = metadata_file.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdigit() else -1
