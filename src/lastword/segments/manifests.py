"""Reads manifest lists and manifests.

pyiceberg works out how to read the schema of every file that it opens, which takes ten times longer than reading it.
All files of a kind have the same schema, so here that is done once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Self

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader
from pyiceberg.io import FileIO, InputFile
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

_READ_AS: Final[Mapping[str, tuple[Any, ...]]] = {
    "list": (
        MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION],
        {-1: ManifestFile, 508: PartitionFieldSummary},
        {517: ManifestContent},
    ),
    "manifest": (
        MANIFEST_ENTRY_SCHEMAS[DEFAULT_READ_VERSION],
        {-1: ManifestEntry, 2: DataFile},
        {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ),
}


def manifests_of(snapshot: IcebergSnapshot, file_io: FileIO) -> list[ManifestFile]:
    """Return the manifests that a snapshot's list names."""
    with _AvroFile(file_io.new_input(snapshot.manifest_list), "list") as manifests:
        return list(manifests)


def files_of(manifest: ManifestFile, file_io: FileIO) -> Iterator[DataFile]:
    """Yield the files that a manifest names, without those that it marks as deleted."""
    return (entry.data_file for entry in entries_of(manifest, file_io))


def entries_of(manifest: ManifestFile, file_io: FileIO) -> Iterator[ManifestEntry]:
    """Yield the entries of a manifest, without deleted ones, with what they inherit from it."""
    with _AvroFile(file_io.new_input(manifest.manifest_path), "manifest") as entries:
        for entry in entries:
            if entry.status == ManifestEntryStatus.DELETED:
                continue
            if entry.snapshot_id is None:
                entry.snapshot_id = manifest.added_snapshot_id
            if entry.status == ManifestEntryStatus.ADDED or manifest.sequence_number == 0:
                if entry.sequence_number is None:
                    entry.sequence_number = manifest.sequence_number
                if entry.file_sequence_number is None:
                    entry.file_sequence_number = manifest.sequence_number
            entry.data_file.spec_id = manifest.partition_spec_id
            yield entry


class _AvroFile(AvroFile[Any]):
    def __init__(self, input_file: InputFile, kind: str) -> None:
        super().__init__(input_file)
        self._kind = kind

    def __enter__(self) -> Self:
        with self.input_file.open() as stream:
            self.decoder = new_decoder(stream.read())
        self.header = self._read_header()
        self.schema, self.reader = _reader(self._kind, self.header.meta.get("avro.schema", ""))
        return self


@lru_cache(maxsize=32)
def _reader(kind: str, avro_schema: str) -> tuple[Schema, Reader]:
    schema = AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema))
    return schema, resolve_reader(schema, *_READ_AS[kind])
