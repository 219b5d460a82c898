"""A compaction service that also keeps the compacted records as plain Parquet, by hash of the key, in another place.

Lastword's inline engine compacts the topic's table. After that each partition's compacted records are copied to a
folder that any tool can read, and compacted reads are served from there:

    <folder>/<topic>/<topic id>/partition=0.json                         which copy counts, and what it was made of
    <folder>/<topic>/<topic id>/partition=0/<copy>/bucket=07/records.parquet    records of some keys, by offset

The folder is $LASTWORD_COPY_FOLDER, or `compacted-copy` in the data folder.

A copy, by its steps: write the files of a new copy and sync them; replace partition=0.json, which makes it count;
remove the old copy. Killed before the second: the old copy counts, and the next compaction begins a new one.

The table stays the truth. A copy counts only as long as the table has the very segments that it was made of. When a
compaction, retention or an erasure has changed them and the copy is not done again yet, the service has no
compacted data to offer, and readers read the log itself.
"""

from __future__ import annotations

import heapq
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lastword.compaction.inline import InlineCompactionServiceFactory
from lastword.compaction.reports import PartitionReport
from lastword.compaction.service import (
    WHAT_IS_DUE,
    CompactionRequest,
    ServiceContext,
    TopicCompactionService,
)
from lastword.errors import StorageError
from lastword.record import PAYLOAD_SCHEMA, Record
from lastword.segments.model import Segment, Snapshot
from lastword.segments.rows import clip, to_records, with_partition

FOLDER_VARIABLE = "LASTWORD_COPY_FOLDER"
BUCKETS = 16
NO_KEY = "none"
ROW_GROUP_ROWS = 4096


def bucket_of(key: bytes | None) -> str:
    """Where the records of a key are: `bucket=<this>`."""
    return NO_KEY if key is None else f"{zlib.crc32(key) % BUCKETS:02d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What partition=<n>.json says: the copy that counts, how far it reaches, and the segments it was made of."""

    name: str
    position: int
    last_offset: int
    buckets: list[str]
    segments: list[str]


class ParquetCopyServiceFactory:
    """For `compaction.service.factory`.

    It has an inline factory and is not one: a subclass would inherit `compact_topics`, and a log would compact
    through that, past the services.
    """

    def __init__(self) -> None:
        self._inline = InlineCompactionServiceFactory()
        self._context: ServiceContext | None = None

    def initialize(self, context: ServiceContext) -> None:
        self._inline.initialize(context)
        self._context = context

    def new_topic_compaction_service(self, topic: str) -> ParquetCopyService:
        assert self._context is not None, "initialize() comes first"
        folder = os.environ.get(FOLDER_VARIABLE) or self._context.data_folder / "compacted-copy"
        return ParquetCopyService(
            self._inline.new_topic_compaction_service(topic), topic, Path(folder), self._context
        )

    def close(self) -> None:
        self._inline.close()


class ParquetCopyService:
    """Compacts one topic by another service, copies what that compacted, and reads the copies."""

    def __init__(
        self, compactor: TopicCompactionService, topic: str, folder: Path, context: ServiceContext
    ) -> None:
        self._compactor = compactor
        self._leases = context.leases
        self._table = context.table(topic)
        # A topic that is deleted and created again gets another id, and with it another folder.
        self._topic_id = self._table.snapshot().topic.id.hex
        self._folder = folder / topic / self._topic_id

    def compact(self, request: CompactionRequest = WHAT_IS_DUE) -> Sequence[PartitionReport]:
        reports = self._compactor.compact(request)
        self._remove_copies_of_deleted_topics()
        for partition in range(len(self._table.snapshot().positions)):
            if request.stop():
                break
            if request.partitions is None or partition in request.partitions:
                self._copy(partition)
        return reports

    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record] | None:
        snapshot = self._table.snapshot()
        copy = self._current(snapshot, partition)
        if copy is None:
            return None
        start = max(start, snapshot.positions[partition].log_start)
        buckets = [
            _read(self._file(partition, copy.name, bucket), partition, start) for bucket in copy.buckets
        ]
        try:
            return list(islice(heapq.merge(*buckets, key=lambda record: record.offset), count))
        except FileNotFoundError:
            # A new copy has replaced this one just now.
            return None

    def last_compacted_entry(self, partition: int) -> Record | None:
        copy = self._current(self._table.snapshot(), partition)
        if copy is None:
            return None
        return next(iter(self.read_compacted_entries(partition, copy.last_offset, 1) or ()), None)

    def last_compacted_position(self, partition: int) -> int | None:
        copy = self._current(self._table.snapshot(), partition)
        return None if copy is None else copy.position

    def close(self) -> None:
        self._compactor.close()

    def _current(self, snapshot: Snapshot, partition: int) -> Copy | None:
        """The copy that counts, if it is one of what is compacted now."""
        copy = self._saved(partition)
        at = snapshot.positions[partition]
        paths = [segment.path for segment in self._compacted(snapshot, partition)]
        return (
            copy if copy is not None and (copy.position, copy.segments) == (at.first_dirty, paths) else None
        )

    def _saved(self, partition: int) -> Copy | None:
        try:
            return Copy(**json.loads(self._note(partition).read_bytes()))
        except FileNotFoundError:
            return None

    def _compacted(self, snapshot: Snapshot, partition: int) -> list[Segment]:
        first_dirty = snapshot.positions[partition].first_dirty
        return [each for each in self._table.plan(snapshot, partition) if each.first_offset < first_dirty]

    def _copy(self, partition: int) -> None:
        snapshot = self._table.snapshot()
        position = snapshot.positions[partition].first_dirty
        if position == 0 or self._current(snapshot, partition) is not None:
            return
        replaced = self._saved(partition)
        name = uuid.uuid4().hex
        try:
            # The lease keeps the snapshot's files until they are copied.
            with self._leases.hold(topic_id=self._topic_id, job="copy", snapshot_id=snapshot.id):
                copy = self._write(snapshot, partition, name)
            self._make_it_count(partition, copy)
            for old in self._note(partition).with_suffix("").iterdir():
                if old.name != name:
                    shutil.rmtree(old)
        except OSError as error:
            what = "is none" if replaced is None else f"reaches up to offset {replaced.position}"
            raise StorageError(
                f"Can't copy partition {partition} to {self._folder}: {error}. The topic itself has been compacted; "
                f"its last copy {what}, and the next compaction makes a new one."
            ) from error

    def _write(self, snapshot: Snapshot, partition: int, name: str) -> Copy:
        at = snapshot.positions[partition]
        segments = self._compacted(snapshot, partition)
        last_offset = at.log_start
        self._note(partition).with_suffix("").mkdir(parents=True, exist_ok=True)
        with ExitStack() as files:
            writers: dict[str, pq.ParquetWriter] = {}
            for segment in segments:
                for records in self._table.read(segment, None, at.log_start):
                    for bucket, own in _by_bucket(clip(records, at.first_dirty)):
                        if bucket not in writers:
                            file = self._file(partition, name, bucket)
                            file.parent.mkdir(parents=True)
                            sink = files.enter_context(file.open("wb"))
                            # Left in reverse order: the footer is written, then everything is synced.
                            files.callback(_sync, sink.fileno())
                            files.callback(sink.flush)
                            writers[bucket] = files.enter_context(pq.ParquetWriter(sink, PAYLOAD_SCHEMA))
                        writers[bucket].write_batch(own, row_group_size=ROW_GROUP_ROWS)
                        last_offset = max(last_offset, own.column("offset")[-1].as_py())
        return Copy(
            name=name,
            position=at.first_dirty,
            last_offset=last_offset,
            buckets=sorted(writers),
            segments=[segment.path for segment in segments],
        )

    def _make_it_count(self, partition: int, copy: Copy) -> None:
        note = self._note(partition)
        with note.with_suffix(".tmp").open("w") as file:
            json.dump(asdict(copy), file)
            file.flush()
            _sync(file.fileno())
        note.with_suffix(".tmp").replace(note)

    def _remove_copies_of_deleted_topics(self) -> None:
        """Those of topics that had this name before."""
        if self._folder.parent.exists():
            for other in self._folder.parent.iterdir():
                if other != self._folder:
                    shutil.rmtree(other)

    def _note(self, partition: int) -> Path:
        return self._folder / f"partition={partition}.json"

    def _file(self, partition: int, name: str, bucket: str) -> Path:
        return self._folder / f"partition={partition}" / name / f"bucket={bucket}" / "records.parquet"


def _by_bucket(records: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    buckets = np.array([bucket_of(key) for key in records.column("key").to_pylist()])
    for bucket in np.unique(buckets):
        yield str(bucket), records.filter(pa.array(buckets == bucket))


def _read(file: Path, partition: int, start: int) -> Iterator[Record]:
    """The records of a file from an offset on; what lies before it is skipped by row groups."""
    with pq.ParquetFile(file) as parquet:
        offset = parquet.schema_arrow.get_field_index("offset")
        for group in range(parquet.num_row_groups):
            if parquet.metadata.row_group(group).column(offset).statistics.max >= start:
                for records in parquet.read_row_group(group).cast(PAYLOAD_SCHEMA).to_batches():
                    for record in to_records(with_partition(records, partition)):
                        if record.offset >= start:
                            yield record


def _sync(fd: int) -> None:
    os.fsync(fd)
