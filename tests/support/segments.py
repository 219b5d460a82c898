"""What tests of sealed segments share: records, and catalogs on every kind of storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
from tests.support.clock import ManualClock

from lastword.record import PAYLOAD_SCHEMA, TimestampType
from lastword.segments.catalog import SegmentCatalog, sqlite_properties
from lastword.segments.model import Segment, Snapshot, TopicInfo
from lastword.segments.table import SegmentTable

START_MS = 1_700_000_000_000


@dataclass(kw_only=True)
class Place:
    """A catalog's properties and a warehouse that nobody else uses."""

    properties: dict[str, str]
    warehouse: str
    file_system: pafs.FileSystem
    root: str
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS))
    opened: list[SegmentCatalog] = field(default_factory=list)

    def open(self) -> SegmentCatalog:
        catalog = SegmentCatalog.open(properties=self.properties, warehouse=self.warehouse, clock=self.clock)
        self.opened.append(catalog)
        return catalog

    def close(self) -> None:
        for catalog in self.opened:
            catalog.close()

    def files(self, below: str = "") -> list[str]:
        """All files of the warehouse, or those below a place in it (a URI), as bare paths."""
        root = bare(below) if below else self.root
        found = self.file_system.get_file_info(pafs.FileSelector(root, allow_not_found=True, recursive=True))
        return sorted(info.path for info in found if info.type == pafs.FileType.File)

    def remove_file(self, uri: str) -> None:
        self.file_system.delete_file(bare(uri))

    def read_bytes(self, uri: str) -> bytes:
        with self.file_system.open_input_file(bare(uri)) as stream:
            return bytes(stream.read())

    def write_bytes(self, uri: str, data: bytes) -> None:
        with self.file_system.open_output_stream(bare(uri)) as stream:
            stream.write(data)


def bare(uri: str) -> str:
    return uri.split("://", 1)[-1]


def local_place(folder: Path) -> Place:
    warehouse = folder / "warehouse"
    warehouse.mkdir(parents=True)
    return Place(
        properties=sqlite_properties(folder / "catalog.db"),
        warehouse=str(warehouse),
        file_system=pafs.LocalFileSystem(),
        root=str(warehouse),
    )


def new_topic(name: str = "events", partitions: int = 2, **config: str) -> TopicInfo:
    return TopicInfo(name=name, id=uuid4(), partitions=partitions, config=config)


def records(
    first: int,
    count: int = 10,
    *,
    keys: Sequence[bytes | None] | None = None,
    values: Sequence[bytes | None] | None = None,
    timestamps_ms: Sequence[int] | None = None,
    types: Sequence[TimestampType] | None = None,
    headers: Sequence[list[tuple[str, bytes | None]] | None] | None = None,
) -> pa.RecordBatch:
    """Records with offsets from `first` on, as a writer wants them."""
    offsets = range(first, first + count)
    stamps = timestamps_ms or [START_MS + offset for offset in offsets]
    rows = {
        "offset": list(offsets),
        "timestamp": [stamp * 1000 for stamp in stamps],
        "timestamp_type": [int(each) for each in types or [TimestampType.CREATE] * count],
        "key": keys or [b"key-%d" % (offset % 7) for offset in offsets],
        "value": values or [b"value-%d" % offset for offset in offsets],
        "headers": [
            None if each is None else [{"key": key, "value": value} for key, value in each]
            for each in headers or [None] * count
        ],
    }
    arrays = [
        pa.array(rows[column.name], pa.int64()).cast(column.type)
        if column.name == "timestamp"
        else pa.array(rows[column.name], column.type)
        for column in PAYLOAD_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=PAYLOAD_SCHEMA)


def write_segment(
    table: SegmentTable,
    batch: pa.RecordBatch,
    *,
    partition: int = 0,
    job_id: str = "job-1",
) -> Segment:
    with table.writer(partition, batch.column("offset")[0].as_py(), job_id) as writer:
        writer.write(batch)
        segment = writer.close()
    assert segment is not None
    return segment


def append(table: SegmentTable, first: int, count: int = 10, *, partition: int = 0) -> Segment:
    """Seal records of a partition, as the uploader does."""
    segment = write_segment(table, records(first, count), partition=partition)
    base = table.snapshot()
    sealed = replace(base.positions[partition], sealed_end=first + count)
    table.append(base, [segment], {partition: sealed}, operation="seal")
    return segment


def offsets_of(table: SegmentTable, snapshot: Snapshot, partition: int = 0) -> list[int]:
    return [
        offset
        for segment in table.plan(snapshot, partition)
        for batch in table.read(segment, columns=["offset"])
        for offset in batch.column(0).to_pylist()
    ]


def outside_catalog(folder: Path) -> dict[str, object]:
    """Settings of a log whose catalog (SQLite) and local warehouse lie outside of every data folder."""
    return {
        "compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory",
        "catalog": {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db?timeout=30"},
        "warehouse": str(folder / "warehouse"),
        "local.retention.ms": 0,
    }
