"""Marks as tests make them: of ours, and of another engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record as PartitionRecord
from pyiceberg.types import StringType

from lastword.segments import mapping
from lastword.segments.commit import FencedTransaction
from lastword.segments.marking import mark
from lastword.segments.marks import DELETE_FILE_SCHEMA
from lastword.segments.model import Segment, Snapshot
from lastword.segments.producer import SnapshotProducer
from lastword.segments.raw import RawSegment
from lastword.segments.table import SegmentTable


def marked(
    table: SegmentTable, segment: Segment, offsets: Collection[int], *, now_ms: int = 1, job_id: str = "job-2"
) -> Segment:
    """A segment in which the records with these offsets are marked, too; nothing is committed."""
    with RawSegment(table.files, segment) as raw:
        own = raw.columns(["offset"]).column("offset").to_numpy()
        return mark(table.files, raw, ~np.isin(own, list(offsets)), job_id=job_id, now_ms=now_ms)


def mark_offsets(table: SegmentTable, offsets: Collection[int], partition: int = 0) -> Snapshot:
    """Commit marks for the records with these offsets, wherever they are."""
    base = table.snapshot()
    removed, added = [], []
    for segment in table.plan(base, partition):
        own = [each for each in offsets if segment.first_offset <= each <= segment.last_offset]
        if own:
            removed.append(segment)
            added.append(marked(table, segment, own))
    return table.replace(base, removed, added, {}, operation="compact")


def commit_foreign_deletes(
    table: SegmentTable, files: Sequence[Mapping[str, Sequence[int]]], *, bounded: bool = False
) -> None:
    """Commit delete files as other engines write them: each lists rows of data files by their paths."""
    entries = []
    for number, rows in enumerate(files):
        path = f"{table.location}/data/foreign-{number}-{abs(hash(tuple(rows)))}.parquet"
        listed = sorted((data_path, row) for data_path, own in rows.items() for row in own)
        content = pa.table(
            [[each for each, _ in listed], [row for _, row in listed]], schema=DELETE_FILE_SCHEMA
        )
        stream = table.files.file_io().new_output(path).create(overwrite=True)
        with stream:
            pq.write_table(content, stream)
            size_bytes = stream.tell()
        bounds = {}
        if bounded:
            bounds = {
                "lower_bounds": {mapping.FILE_PATH_FIELD: to_bytes(StringType(), listed[0][0])},
                "upper_bounds": {mapping.FILE_PATH_FIELD: to_bytes(StringType(), listed[-1][0])},
            }
        entry = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=PartitionRecord(0),
            record_count=len(listed),
            file_size_in_bytes=size_bytes,
            **bounds,
        )
        entry.spec_id = 0
        entries.append(entry)
    commit_entries(table, entries)


def commit_entries(table: SegmentTable, entries: Sequence[DataFile]) -> None:
    """Commit manifest entries past the product: its positions stay, and the snapshot has none."""
    iceberg = table._refresh()
    transaction = FencedTransaction(iceberg, iceberg.metadata.current_snapshot_id)
    SnapshotProducer(transaction, iceberg.io, added=entries, removed=(), summary={}).commit()
    transaction.commit_transaction()
