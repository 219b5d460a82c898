"""A topic of an open log: append, read, state, and what is where."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa

from lastword import batch, metrics
from lastword.batch import Compression
from lastword.batch.partitioner import Turns, partition_of, partitions_of
from lastword.clock import Clock
from lastword.compaction import plan
from lastword.compaction.holds import Downtimes, Uptime, active_readers, hold_of
from lastword.compaction.target import Assessment, Target, assess
from lastword.config import (
    BrokerConfig,
    EffectiveSetting,
    TopicSettings,
    WalSync,
    check_not_internal,
    is_internal,
)
from lastword.errors import (
    ClosedError,
    CorruptError,
    InvalidError,
    InvalidRecordError,
    LastwordError,
    NotOwnerError,
    OffsetOutOfRangeError,
    PartlyAppendedError,
    UnavailableError,
    UnknownPartitionError,
    WriteFailedError,
)
from lastword.folder.leases import LeaseKeeper
from lastword.folder.paths import WAL_FOLDER, wal_folder
from lastword.maintenance import tiering
from lastword.maintenance.lanes import Lane
from lastword.maintenance.retention import delete_records
from lastword.maintenance.tiering import SealReport
from lastword.reading import timetravel
from lastword.reading.compacted import read_compacted
from lastword.reading.reader import Extent, PartitionReader
from lastword.reading.readers import CommittedPositions, Reader, committed_positions, reader_names
from lastword.reading.state import state_view
from lastword.reading.timetravel import AsOf
from lastword.record import HEADERS_TYPE, PAYLOAD_SCHEMA, NewRecord, Record, TimestampType
from lastword.segments.rows import to_records
from lastword.segments.sketch import Sketches
from lastword.segments.table import LastRun, SegmentGoneError, SegmentTable, Snapshot, TopicInfo, look_again
from lastword.wal import checkpoint as checkpoints
from lastword.wal import deleter, staged
from lastword.wal.recovery import Floor, open_wal
from lastword.wal.repair import NOT_IN_WAL, DamagedRange
from lastword.wal.repair import inspect as inspect_wal
from lastword.wal.repair import skip as skip_damage
from lastword.wal.writer import PartitionWriter, Produced

if TYPE_CHECKING:
    from lastword.compaction.service import TopicCompactionService
    from lastword.explain import Explanation, Known, PartitionExplanation, Run

Start = int | Literal["earliest", "latest"]
"""Where a read begins: an offset, or an end of the log."""

MIN_DECOMPRESSED_BYTES = 128 << 20
MAX_EXPANSION = 8
"""A batch may decompress to this many times max.message.bytes, and at least to MIN_DECOMPRESSED_BYTES."""

BATCH_BYTES = 512 << 10
"""Records appended together are put into batches of at most this size, or of max.message.bytes if that is less."""

RECORD_OVERHEAD_BYTES = 36
"""The most that a record takes in a batch besides its key, value and headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPosition:
    """Where an appended record is."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """A partition: its positions, what is sealed, what is in the WAL, and what is wrong, if anything."""

    partition: int
    log_start: int
    first_dirty: int
    sealed_end: int
    log_end: int
    segments: int
    sealed_records: int
    sealed_bytes: int
    wal_start: int
    wal_files: int
    wal_bytes: int
    dirty_ratio: float | None
    due: str | None
    """Why compaction is due, or None."""
    estimate: plan.Estimate | None
    """An estimate of what a compaction would reclaim, if one was asked for and the topic is compacted."""
    last_run: LastRun | None
    leader_epoch: int
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic: what it is, what holds for it, where its sealed files are, and its partitions."""

    name: str
    id: UUID
    cleanup_policy: str
    location: str
    wal_folder: str
    settings: tuple[EffectiveSetting, ...]
    partitions: tuple[PartitionDescription, ...]
    readers: tuple[str, ...]


class Topic:
    """A topic. Get one from `Log.topic` or `Log.create_topic`; appending is safe from several threads."""

    def __init__(
        self,
        info: TopicInfo,
        table: SegmentTable,
        *,
        data_folder: Path,
        config: BrokerConfig,
        clock: Clock,
        leases: LeaseKeeper | None,
        writes: bool,
        maintenance: Callable[..., AbstractContextManager[object]] | None,
        ask_to_roll: Callable[[bool], list[tuple[int, str]]],
        compaction_service: Callable[[], TopicCompactionService],
        foreign: NotOwnerError | None = None,
        may_append: Callable[[], None] | None = None,
    ) -> None:
        self.foreign = foreign
        """What is raised where a topic would have to be ours to do something; None if it is."""
        self._may_append = may_append
        self._info = info
        self._settings = config.resolve(info.name, info.config)
        self._table = table
        self._data_folder = data_folder
        self._config = config
        self._clock = clock
        self._leases = leases
        self._writes = writes
        self._maintenance = maintenance
        self._ask_to_roll = ask_to_roll
        self._compaction_service = compaction_service
        self._turns = Turns()
        self._turns_lock = threading.Lock()
        self._closed = False
        self._writers: list[PartitionWriter] = []
        self._writers_lock = threading.Lock()
        self._staged_lock = threading.Lock()
        if writes:
            self._open_writers(info.partitions)

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def id(self) -> UUID:
        return self._info.id

    @property
    def partitions(self) -> int:
        return self._info.partitions

    @property
    def settings(self) -> TopicSettings:
        """What holds for the topic now."""
        return self._settings

    @property
    def config(self) -> Mapping[str, str]:
        """The settings that the topic has of its own."""
        return self._info.config

    # ------------------------------------------------------------------------------------------- append

    def append(
        self,
        key: bytes | str | None,
        value: bytes | str | None,
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordPosition:
        """Append one record, and return when it may be relied on (`wal.sync`). A null value is a tombstone."""
        record = NewRecord(
            key=_bytes(key), value=_bytes(value), headers=tuple(headers), timestamp_ms=timestamp_ms
        )
        return self.append_many([record], partition=partition)[0]

    def append_many(
        self,
        records: Iterable[NewRecord],
        *,
        partition: int | Sequence[int | None] | None = None,
        compression: Compression = Compression.NONE,
    ) -> list[RecordPosition]:
        """Append records in their order, and return where each one is. All are checked before any is written.

        `partition` is one for all of them or one for each; where there is none, a record goes where its key belongs.
        PartlyAppendedError if a disk fails when other partitions have been written.
        """
        check_not_internal(self.name, "appended to")
        return self._append_records(records, partition, compression)

    def append_internal(self, records: Iterable[NewRecord]) -> list[RecordPosition]:
        """As `append_many`, for topics of Lastword's own."""
        assert is_internal(self.name), self.name
        return self._append_records(records, None, Compression.NONE)

    def _append_records(
        self,
        records: Iterable[NewRecord],
        partition: int | Sequence[int | None] | None,
        compression: Compression,
    ) -> list[RecordPosition]:
        by_partition: dict[int, list[int]] = {}
        given = list(records)
        for index, (record, own) in enumerate(zip(given, _one_each(partition, len(given)), strict=True)):
            by_partition.setdefault(self._partition_for(record.key, own), []).append(index)
        now_ms = self._clock.now_ms()
        batches: list[tuple[int, bytes]] = []
        for each, indexes in by_partition.items():
            for chunk in _chunks([given[index] for index in indexes], self._batch_bytes):
                batches.append((each, batch.encode(chunk, now_ms=now_ms, compression=compression)))
        positions: list[RecordPosition | None] = [None] * len(given)
        for each, offsets in self._append_batches(batches, now_ms).items():
            for index, offset in zip(by_partition[each], offsets, strict=True):
                positions[index] = RecordPosition(partition=each, offset=offset)
        return [position for position in positions if position is not None]

    def check_many(
        self,
        records: Iterable[NewRecord],
        *,
        partition: int | Sequence[int | None] | None = None,
        compression: Compression = Compression.NONE,
    ) -> None:
        """Raise what `append_many` would raise because of the records, and append nothing."""
        given = list(records)
        for each in {each for each in _one_each(partition, len(given)) if each is not None}:
            self._check_partition(each)
        now_ms = self._clock.now_ms()
        limits = self.limits(now_ms)
        for chunk in _chunks(given, self._batch_bytes):
            batch.validate(batch.encode(chunk, now_ms=now_ms, compression=compression), limits)

    def append_arrow(
        self,
        records: pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        compression: Compression = Compression.NONE,
    ) -> dict[int, range]:
        """Append the rows of an Arrow table; for each partition the offsets that they got.

        Columns: `key` and `value` (binary or string, may be null), and if wanted `timestamp`, `headers` (as in
        record.RECORD_SCHEMA) and `partition`. Rows without a partition go where their key belongs.
        """
        check_not_internal(self.name, "appended to")
        batches = self.encode_arrow(records, partition=partition, compression=compression)
        return self._append_batches(batches, self._clock.now_ms())

    def encode_arrow(
        self,
        records: pa.Table | pa.RecordBatch,
        *,
        partition: int | None = None,
        compression: Compression = Compression.NONE,
    ) -> list[tuple[int, bytes]]:
        """Record batches with the rows of an Arrow table, each with its partition, as `append_arrow` appends them."""
        table = records if isinstance(records, pa.Table) else pa.Table.from_batches([records])
        payload = _payload(table, self._clock.now_ms())
        targets = self._partitions_for(table, payload.column("key"), partition)
        batches: list[tuple[int, bytes]] = []
        used = np.unique(targets).tolist()
        for each in used:
            own = payload.filter(pa.array(targets == each)) if len(used) > 1 else payload
            batches += [(each, data) for data in _encode_rows(own, compression, self._batch_bytes)]
        return batches

    def append_batch(self, partition: int, data: bytes | memoryview) -> int:
        """Append one record batch as a Kafka producer made it; the offset of its first record.

        A batch of an idempotent producer that is there already is not appended again. OutOfOrderSequenceError if batches
        before it are missing, FencedProducerError if a newer producer has its id.
        """
        check_not_internal(self.name, "appended to")
        self._check_writer()
        writer = self._writer(partition)
        now_ms = self._clock.now_ms()
        limits = self.limits(now_ms)
        batch.validate(data, limits)
        header = batch.read_header(data)
        assert header is not None
        append_time_ms = now_ms if limits.log_append_time else None
        (result,) = writer.stage_produced([Produced(header, bytearray(data), append_time_ms, None)])
        if isinstance(result, InvalidRecordError):
            raise result
        writer.settle(result.end_offset)
        self.check_owned()
        if not result.is_duplicate:
            metrics.RECORDS_APPENDED.labels(self.name).inc(header.record_count)
            metrics.BYTES_APPENDED.labels(self.name).inc(len(data))
        return result.base_offset

    def append_staged(self, sink: str, number: int) -> int:
        """Append a unit that was staged, exactly once; how many records this call has appended. See staged.py."""
        check_not_internal(self.name, "appended to")
        self._check_writer()
        now_ms = self._clock.now_ms()
        limits = self.limits(now_ms)
        with self._staged_lock:
            appended = staged.append(
                staged.Sink(self._data_folder, self.id, sink),
                number,
                self._writer,
                limits,
                now_ms if limits.log_append_time else None,
                self.check_owned,
            )
        metrics.RECORDS_APPENDED.labels(self.name).inc(appended)
        return appended

    def _append_batches(
        self, batches: Sequence[tuple[int, bytes | memoryview]], now_ms: int
    ) -> dict[int, range]:
        """Check all of them, then write; the offsets that the batches of each partition got together."""
        self._check_writer()
        limits = self.limits(now_ms)
        by_partition: dict[int, list[bytes | memoryview]] = {}
        for partition, data in batches:
            by_partition.setdefault(self._check_partition(partition), []).append(data)
            batch.validate(data, limits)
        writers = {partition: self._writer(partition) for partition in by_partition}
        for writer in writers.values():
            # Before anything is written: then nothing is.
            if writer.failed is not None:
                raise WriteFailedError(writer.failed)
        append_time_ms = now_ms if limits.log_append_time else None
        offsets: dict[int, range] = {}
        failed: LastwordError | None = None
        for partition, own in by_partition.items():
            try:
                offsets[partition] = writers[partition].stage_all(own, append_time_ms=append_time_ms)
            except LastwordError as error:
                failed = error
                break
        for partition, span in list(offsets.items()):
            try:
                writers[partition].settle(span.stop)
            except LastwordError as error:
                failed = failed or error
                del offsets[partition]
        # A sync may take long: what was lost meanwhile is not acknowledged.
        self.check_owned()
        metrics.RECORDS_APPENDED.labels(self.name).inc(sum(map(len, offsets.values())))
        metrics.BYTES_APPENDED.labels(self.name).inc(
            sum(len(data) for each in offsets for data in by_partition[each])
        )
        if failed is not None:
            raise _partly(offsets, by_partition.keys() - offsets.keys(), failed) if offsets else failed
        return offsets

    @property
    def _batch_bytes(self) -> int:
        return min(BATCH_BYTES, self._settings.max_message_bytes)

    def limits(self, now_ms: int, *, max_timestamp_corrected: bool = False) -> batch.Limits:
        """What must hold for a batch that is appended now."""
        settings = self._settings
        version_header = None
        if (
            settings.compacts
            and settings.compaction_strategy == "header"
            and settings.compaction_strategy_header_missing == "reject"
        ):
            assert settings.compaction_strategy_header and settings.compaction_strategy_header_format
            version_header = (settings.compaction_strategy_header, settings.compaction_strategy_header_format)
        return batch.Limits(
            max_message_bytes=settings.max_message_bytes,
            now_ms=now_ms,
            timestamp_before_max_ms=settings.message_timestamp_before_max_ms,
            timestamp_after_max_ms=settings.message_timestamp_after_max_ms,
            null_key_allowed=not (settings.compacts and settings.null_key == "reject"),
            version_header=version_header,
            log_append_time=settings.message_timestamp_type == "LogAppendTime",
            max_decompressed_bytes=max(MIN_DECOMPRESSED_BYTES, settings.max_message_bytes * MAX_EXPANSION),
            max_timestamp_corrected=max_timestamp_corrected,
        )

    def _partition_for(self, key: bytes | None, partition: int | None) -> int:
        if partition is not None:
            return self._check_partition(partition)
        if key is not None:
            if not isinstance(key, bytes):
                raise InvalidRecordError(f"a key is {type(key).__name__}; bytes or None are allowed")
            return partition_of(key, self.partitions) if self.partitions > 1 else 0
        with self._turns_lock:
            return self._turns.next(self.partitions)

    def _partitions_for(
        self, table: pa.Table, keys: pa.ChunkedArray, partition: int | None
    ) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        if partition is not None:
            return np.full(len(table), self._check_partition(partition), np.int32)
        with self._turns_lock:
            chosen = partitions_of(keys.combine_chunks(), self.partitions, self._turns)
        if "partition" in table.column_names:
            try:
                given = table.column("partition").cast(pa.int32())
            except pa.ArrowException as error:
                raise InvalidRecordError(f"The Arrow table's partition can't be used: {error}") from error
            for each in given.unique().drop_null().to_pylist():
                self._check_partition(each)
            where_given = given.is_valid().to_numpy()
            chosen[where_given] = given.drop_null().to_numpy()
        return chosen

    # --------------------------------------------------------------------------------------------- read

    def read(
        self,
        start: Start | Mapping[int, Start] = "earliest",
        *,
        partition: int | None = None,
        follow: bool = False,
        compacted: bool = False,
    ) -> Iterator[Record]:
        """The records from `start` up to the end of the log as of now; with `follow`, and those that come later.

        With `compacted` what has been compacted is read through the compaction service, which may keep it
        elsewhere and in another form; the rest as usual. A compaction that commits meanwhile may move the end.
        """
        batches = self.read_arrow(start, partition=partition, follow=follow, compacted=compacted)
        return (record for records in batches for record in to_records(records))

    def read_arrow(
        self,
        start: Start | Mapping[int, Start] = "earliest",
        *,
        partition: int | None = None,
        follow: bool = False,
        compacted: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """As `read`, in batches of record.RECORD_SCHEMA."""
        partitions = [self._check_partition(partition)] if partition is not None else range(self.partitions)
        readers = {each: self._partition_reader(each) for each in partitions}
        positions = {each: self._offset(readers[each], _start_of(start, each)) for each in partitions}
        ends = {each: reader.extent().log_end for each, reader in readers.items()}
        service = self._compaction_service() if compacted else None
        return self._stream(readers, positions, ends, follow, service)

    def reader(
        self,
        name: str | None = None,
        *,
        start: Start | Mapping[int, Start] = "earliest",
        partition: int | None = None,
    ) -> Reader:
        """A reader: named, it begins where it last committed, and at `start` in partitions where it never did.

        Where retention has removed the position that it committed, it begins at the log start. Without a name
        it begins at `start` and can't commit, and it may read one partition alone.
        """
        if name is not None and partition is not None:
            raise InvalidError("A named reader reads every partition: its positions are committed together.")
        committed = CommittedPositions(self._data_folder, self.id.hex, name) if name is not None else None
        saved = committed.load() if committed is not None else {}
        partitions = [self._check_partition(partition)] if partition is not None else range(self.partitions)
        readers = {each: self._partition_reader(each) for each in partitions}
        positions = {}
        for each, reader in readers.items():
            if each in saved:
                extent = reader.extent()
                positions[each] = min(max(saved[each], extent.log_start), extent.log_end)
            else:
                positions[each] = self._offset(reader, _start_of(start, each))
        return Reader(readers, positions, self._clock, committed)

    def offsets_for_time(self, timestamp_ms: int) -> dict[int, Start]:
        """For each partition the first offset whose record is not older than a time."""
        found: dict[int, Start] = {}
        for each in range(self.partitions):
            with closing(self._partition_reader(each)) as reader:
                found[each] = reader.offset_for_time(timestamp_ms)
        return found

    def extents(self) -> dict[int, Extent]:
        """For each partition the offsets that can be read."""
        snapshot = self._table.snapshot()
        # Partitions may be added meanwhile, and be known to one of both only.
        known = min(self.partitions, len(snapshot.positions))
        return {each: self._partition_reader(each).extent(snapshot) for each in range(known)}

    def state(self, *, as_of: AsOf | None = None) -> pa.Table:
        """The newest record of each key, by the topic's strategy, without the keys that were deleted.

        With `as_of`, as it was then; InvalidError if that can't be shown exactly any more.
        """
        with ExitStack() as opened:
            readers = [opened.enter_context(closing(reader)) for reader in self.partition_readers()]
            return state_view(readers, self._settings, as_of)

    def read_as_of(self, as_of: AsOf, *, partition: int | None = None) -> Iterator[pa.RecordBatch]:
        """The records as they were as of an offset, a time or a snapshot, in batches of record.RECORD_SCHEMA.

        InvalidError, before any record is given, if that can't be shown exactly any more.
        """
        chosen = self.partition_readers()
        if partition is not None:
            chosen = [chosen[self._check_partition(partition)]]
        views = [(reader, timetravel.view_as_of(reader, as_of)) for reader in chosen]
        return (records for reader, view in views for records in timetravel.read(reader, view))

    def explain(
        self,
        *,
        partition: int | None = None,
        key: bytes | str | None = None,
        from_offset: int = 0,
        limit: int | None = 100,
        run: Run = "asked for",
        seal: bool = True,
    ) -> Explanation:
        """Where records are, and whether they stay or go in a compaction that begins now, why and until when.

        The records from an offset on, of a key or of all, `limit` of them (None: all), partition by partition.
        By default the run is as `lastword topic compact` makes it, which seals first unless `seal` is false;
        with `forced` it goes through everything, as `worker` it does what is due. Nothing is changed.
        """
        from lastword.explain import Explanation, Question, explain_partition

        if limit is not None and limit < 1:
            raise InvalidError(f"limit is {limit}; it must be at least 1")
        if from_offset < 0:
            raise InvalidError(f"the offset to begin at is {from_offset}; it must be at least 0")
        question = Question(key=_bytes(key), from_offset=from_offset, limit=limit, run=run, seals=seal)
        found: list[PartitionExplanation] = []
        more: tuple[int, int] | None = None
        for each in [self._check_partition(partition)] if partition is not None else range(self.partitions):
            if question.limit == 0:
                more = (each, from_offset)
                break
            with closing(self._partition_reader(each)) as reader:
                found.append(explain_partition(reader, self.known(each), question, self._clock.now_ms))
            if question.limit is not None:
                question = replace(question, limit=question.limit - len(found[-1].records))
            if found[-1].next_offset is not None:
                more = (each, found[-1].next_offset)
                break
        return Explanation(
            topic=self.name,
            run=run,
            seals=seal,
            now_ms=self._clock.now_ms(),
            partitions=tuple(found),
            next=more,
        )

    def known(self, partition: int) -> Known:
        """What compaction is told of a partition, for an explanation."""
        from lastword.explain import Known

        now_ms = self._clock.now_ms()
        readers = committed_positions(self._data_folder, self.id.hex)
        downtimes = Uptime(self._data_folder).downtimes(now_ms)
        hold_ms = self._config.reader_hold_ms
        return Known(
            topic=self.name,
            settings=self._settings,
            wal_folder=self._wal_folder(partition),
            hold=hold_of(
                partition,
                readers,
                downtimes,
                hold_ms=hold_ms,
                hold_max_ms=self._config.reader_hold_max_ms,
                now_ms=now_ms,
            ),
            readers=active_readers(partition, readers, downtimes, hold_ms=hold_ms, now_ms=now_ms),
            first_append_ms=self._writers[partition].first_append_ms
            if partition < len(self._writers)
            else None,
            task_memory_bytes=self._config.compaction_task_memory_bytes,
        )

    def dataframe(self, spark: Any, **options: object) -> Any:
        """The topic as a Spark DataFrame. Options are those of the data source (docs/spark.md), with `_` for `.`.

        Spark's processes open the data folder themselves: with its lastword.yaml, or the file that `config` names.
        """
        # This module stands below the one that knows Spark.
        import_module("lastword.spark").register(spark)
        reader = (
            spark.read.format("lastword").option("path", str(self._data_folder)).option("topic", self.name)
        )
        for name, value in options.items():
            reader = reader.option(name.replace("_", "."), str(value))
        return reader.load()

    def history(self) -> list[Snapshot]:
        """The snapshots that are kept, oldest first, with what each did."""
        return self._table.history()

    def partition_readers(self) -> list[PartitionReader]:
        """A reader of each partition. Close them."""
        return [self._partition_reader(each) for each in range(self.partitions)]

    def _stream(
        self,
        readers: dict[int, PartitionReader],
        positions: dict[int, int],
        ends: dict[int, int],
        follow: bool,
        service: TopicCompactionService | None,
    ) -> Iterator[pa.RecordBatch]:
        try:
            for each, reader in readers.items():
                offset = positions[each]
                if service is not None:
                    offset = yield from read_compacted(service, reader, offset)
                    ends[each] = max(ends[each], offset)
                ends[each] = max(ends[each], (yield from reader.replay(offset, ends[each])))
            if follow:
                with Reader(
                    readers, {each: max(ends[each], positions[each]) for each in readers}, self._clock
                ) as tail:
                    while not self._closed:
                        if (records := tail.poll_arrow(timeout_s=1.0)) is not None:
                            yield records
        finally:
            for reader in readers.values():
                reader.close()

    def _offset(self, reader: PartitionReader, start: Start) -> int:
        extent = reader.extent()
        if start == "earliest":
            return extent.log_start
        if start == "latest":
            return extent.log_end
        assert isinstance(start, int)
        reader.check(start)
        return start

    def _partition_reader(self, partition: int) -> PartitionReader:
        if self._closed:
            raise ClosedError(f"Topic {self.name!r} has been closed.")
        return PartitionReader(self._table, partition, self._wal_folder(partition), self._leases)

    # --------------------------------------------------------------------------------------- maintenance

    def seal(self, *, progress: tiering.Progress | None = None) -> SealReport:
        """Roll the WAL and commit everything in it as sealed segments."""
        return self._seal(progress, due_only=False)

    def seal_rolled(
        self, *, progress: tiering.Progress | None = None, stop: Callable[[], bool] = lambda: False
    ) -> SealReport:
        """Roll what is due by the settings, and commit what is rolled. `stop` is asked between two files."""
        return self._seal(progress, due_only=True, stop=stop)

    def delete_records(self, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records of partitions before an offset (-1: all); the new log start of each of them."""
        self._check_writer()
        check_not_internal(self.name, "deleted from")
        wanted: dict[int, int] = {}
        for partition, offset in before.items():
            extent = self._partition_reader(self._check_partition(partition)).extent()
            wanted[partition] = extent.log_end if offset == -1 else offset
            if not 0 <= wanted[partition] <= extent.log_end:
                raise OffsetOutOfRangeError(
                    f"Can't delete the records of {self.name!r} partition {partition} before offset {offset}: "
                    f"its log end is {extent.log_end}; allowed are 0 to {extent.log_end}, and -1 for all."
                )
        snapshot = delete_records(self._table, wanted)
        return {partition: snapshot.positions[partition].log_start for partition in before}

    def reopen_partition(self, partition: int) -> None:
        """Make a partition writable again after a failed write or sync. Nothing acknowledged is lost."""
        self._check_writer()
        with self._writers_lock:
            self._check_writer()
            # What its closing can't sync any more was not acknowledged.
            with suppress(WriteFailedError):
                self._writer(partition).close()
            self._writers[partition] = self._open_writer(partition)
        if failed := self._writers[partition].failed:
            raise UnavailableError(failed)

    def wal_damage(self) -> list[tuple[int, DamagedRange]]:
        """Damaged ranges of WAL files that are not sealed yet, with their partitions."""
        snapshot = self._table.snapshot()
        found: list[tuple[int, DamagedRange]] = []
        for partition, at in enumerate(snapshot.positions):
            folder = self._wal_folder(partition)
            if saved := checkpoints.load_writer(folder):
                from_offset = max(at.sealed_end, at.log_start)
                found += [(partition, each) for each in inspect_wal(folder, saved, from_offset=from_offset)]
        return found

    def sealed_damage(self) -> list[tuple[int, DamagedRange]]:
        """The segments that can't be read, with their partitions. All are read: for small topics."""
        found: list[tuple[int, DamagedRange]] = []
        snapshot = self._table.snapshot()
        for partition, at in enumerate(snapshot.positions):
            for segment in self._table.plan(snapshot, partition, at.log_start):
                try:
                    for _ in self._table.read(segment, None, at.log_start):
                        pass
                except (CorruptError, SegmentGoneError) as error:
                    if self._table.snapshot().id != snapshot.id:
                        # Not damaged, but replaced meanwhile.
                        return self.sealed_damage()
                    damaged = DamagedRange(
                        path=segment.path,
                        seq=NOT_IN_WAL,
                        position=0,
                        end_position=segment.size_bytes,
                        first_offset=max(segment.first_offset, at.log_start),
                        end_offset=segment.last_offset + 1,
                        problem=str(error),
                    )
                    found.append((partition, damaged))
        return found

    def leave_segments_behind(self) -> list[tuple[int, DamagedRange]]:
        """Move the log start of an internal topic behind segments that can't be read; what was left behind.

        Everything else before their end goes, too: the last record of each key must have been appended again.
        """
        self._check_writer()
        assert is_internal(self.name)
        found = self.sealed_damage()
        ends: dict[int, int] = {}
        for partition, damaged in found:
            ends[partition] = max(ends.get(partition, 0), damaged.end_offset)
        if ends:
            delete_records(self._table, ends)
        return found

    def skip_wal_damage(self) -> list[tuple[int, DamagedRange]]:
        """Leave the damaged ranges behind, so that sealing and reading go on after them; what was left behind."""
        self._check_writer()
        with self._as_maintenance(Lane.TIDY, Lane.SEAL):
            # Only a rolled file can be written anew.
            for partition in {each for each, _ in self.wal_damage()}:
                self._writers[partition].roll()
            found = self.wal_damage()
            for partition in sorted({each for each, _ in found}):
                folder = self._wal_folder(partition)
                with self._writers_lock:
                    self._check_writer()
                    self._writers[partition].close()
                    saved = checkpoints.load_writer(folder)
                    assert saved is not None
                    try:
                        skip_damage(folder, saved, [damaged for each, damaged in found if each == partition])
                    finally:
                        self._writers[partition] = self._open_writer(partition)
            return found

    def removable_wals(self) -> list[deleter.LocalWal]:
        """As `local_wals`, for whoever removes files. NotOwnerError where another folder's records may be the sealed ones."""
        snapshot = self._table.snapshot()
        self._table.check_owned(snapshot)
        return self._local_wals(snapshot)

    def local_wals(self) -> list[deleter.LocalWal]:
        """The WAL of each partition, as the deleter sees it."""
        return self._local_wals(self._table.snapshot())

    def _local_wals(self, snapshot: Snapshot) -> list[deleter.LocalWal]:
        looks = [
            deleter.look(
                self.name,
                partition,
                self._wal_folder(partition),
                sealed_end=at.sealed_end,
                settings=self._settings,
            )
            for partition, at in enumerate(snapshot.positions)
        ]
        return [each for each in looks if each is not None]

    def describe(self, *, estimates: bool = False) -> TopicDescription:
        """What the topic is and where its records are, by a fresh look at table and WAL.

        With `estimates` also what compaction would reclaim: the footer of every segment's file is read for it.
        """
        distinct = Sketches(self._table.files).distinct_keys if estimates else None
        return look_again(lambda: self._describe(self._table.snapshot(), distinct), f"Topic {self.name!r}")

    def target(self, table: SegmentTable | None = None, downtimes: Downtimes | None = None) -> Target:
        """What planning looks at: the table, the settings, how far each partition has come and who reads it."""
        now_ms = self._clock.now_ms()
        readers = committed_positions(self._data_folder, self.id.hex)
        if downtimes is None:
            downtimes = Uptime(self._data_folder).downtimes(now_ms)
        log_ends = self.log_ends()
        return Target(
            topic=self.name,
            table=table or self._table,
            settings=self._settings,
            log_ends=log_ends,
            holds={
                partition: hold_of(
                    partition,
                    readers,
                    downtimes,
                    hold_ms=self._config.reader_hold_ms,
                    hold_max_ms=self._config.reader_hold_max_ms,
                    now_ms=now_ms,
                )
                for partition in log_ends
            },
        )

    def log_ends(self) -> dict[int, int]:
        """The log end of each partition: from the writers' memory where there are writers."""
        if self._writers:
            return {partition: writer.visible_end for partition, writer in enumerate(self._writers)}
        return {partition: extent.log_end for partition, extent in self.extents().items()}

    def assess(
        self,
        *,
        table: SegmentTable | None = None,
        snapshot: Snapshot | None = None,
        downtimes: Downtimes | None = None,
    ) -> list[Assessment]:
        """How dirty each partition is, and the run that is due, if one is: as the worker will find it."""
        return assess(self.target(table, downtimes), clock=self._clock, snapshot=snapshot)

    def _describe(self, snapshot: Snapshot, distinct: plan.Distinct | None) -> TopicDescription:
        policy = next(
            each.value
            for each in self._config.explain(self.name, self._info.config)
            if each.key == "cleanup.policy"
        )
        return TopicDescription(
            name=self.name,
            id=self.id,
            cleanup_policy=policy,
            location=self._table.location,
            wal_folder=str(self._wal_folder(0).parent),
            settings=tuple(self._config.explain(self.name, self._info.config)),
            partitions=tuple(
                self._describe_partition(each, snapshot, distinct) for each in self.assess(snapshot=snapshot)
            ),
            readers=tuple(reader_names(self._data_folder, self.id.hex)),
        )

    def _describe_partition(
        self, assessed: Assessment, snapshot: Snapshot, distinct: plan.Distinct | None
    ) -> PartitionDescription:
        partition, at, segments = assessed.view.partition, assessed.view.positions, assessed.view.segments
        local = deleter.look(
            self.name,
            partition,
            self._wal_folder(partition),
            sealed_end=at.sealed_end,
            settings=self._settings,
        )
        saved = checkpoints.load_writer(self._wal_folder(partition))
        extent = self._partition_reader(partition).extent(snapshot)
        now_ms = self._clock.now_ms()
        problem = self._writers[partition].failed if partition < len(self._writers) else None
        if problem is None and saved is not None and saved.damage:
            first = saved.damage[0]
            problem = (
                f"offsets {first.first_offset} to {first.end_offset - 1} are damaged in the WAL: "
                f"`lastword wal repair {self.name}` shows what can be kept"
            )
        epochs = saved.epochs if saved else at.epochs
        return PartitionDescription(
            partition=partition,
            log_start=at.log_start,
            first_dirty=at.first_dirty,
            sealed_end=at.sealed_end,
            log_end=extent.log_end,
            segments=len(segments),
            sealed_records=sum(segment.records for segment in segments),
            sealed_bytes=sum(segment.size_bytes for segment in segments),
            wal_start=local.files[0].first_offset if local else at.sealed_end,
            wal_files=len(local.files) if local else 0,
            wal_bytes=local.size_bytes if local else 0,
            dirty_ratio=assessed.dirty_ratio,
            due=None if assessed.plan is None else assessed.plan.reason,
            estimate=plan.estimate(plan.compactable(segments, self._settings, now_ms), distinct)
            if distinct is not None and self._settings.compacts
            else None,
            last_run=at.last_run,
            leader_epoch=epochs[-1][0] if epochs else 0,
            problem=problem,
        )

    def _seal(
        self,
        progress: tiering.Progress | None,
        *,
        due_only: bool,
        stop: Callable[[], bool] = lambda: False,
    ) -> SealReport:
        with self._as_maintenance(Lane.SEAL):
            assert self._leases is not None
            failed = self.roll(due_only=due_only) if self._writes else self._ask_to_roll(due_only)
            folders = [self._wal_folder(each) for each in range(self.partitions)]
            report = tiering.seal(
                self._table,
                folders,
                leases=self._leases,
                codec=self._settings.segment_compression_type,
                progress=progress,
                stop=stop,
            )
            return tiering.with_problems(report, failed)

    # -------------------------------------------------------------------------------------- for the log

    def roll(self, *, due_only: bool) -> list[tuple[int, str]]:
        """Roll the WAL of each partition, or only what is due; the partitions where that failed, and why."""
        self._check_writer()
        failed: list[tuple[int, str]] = []
        for partition, writer in enumerate(self._writers):
            try:
                if due_only:
                    writer.roll_if_due()
                else:
                    writer.roll()
            except UnavailableError as error:
                failed.append((partition, str(error)))
        return failed

    def changed(self, info: TopicInfo) -> None:
        """The log has altered the topic: take over what it is now."""
        self._settings = self._config.resolve(info.name, info.config)
        for each in self._writers:
            each.settings = self._settings
        if self._writes:
            # Before others know that there are more partitions, there is something to append to.
            self._open_writers(info.partitions)
        self._info = info

    def partition_reader(self, partition: int) -> PartitionReader:
        """A reader of one partition. Close it."""
        return self._partition_reader(self._check_partition(partition))

    @property
    def table(self) -> SegmentTable:
        """Its sealed segments."""
        return self._table

    def writer(self, partition: int) -> PartitionWriter:
        """The writer of a partition, for one that checks batches itself."""
        self._check_writer()
        return self._writer(partition)

    def writers(self) -> tuple[PartitionWriter, ...]:
        return tuple(self._writers)

    def close(self) -> None:
        """Close the WAL in order. The first error is raised after every partition has been closed."""
        with self._writers_lock:
            # Nobody opens another one from here on.
            self._closed = True
        errors: list[LastwordError] = []
        for each in self._writers:
            try:
                each.close()
            except LastwordError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _open_writers(self, partitions: int) -> None:
        with self._writers_lock:
            if self._closed:
                # It was deleted meanwhile: a file that is made now would stay.
                return
            for partition in range(len(self._writers), partitions):
                self._writers.append(self._open_writer(partition))

    def _open_writer(self, partition: int) -> PartitionWriter:
        at = self._table.snapshot().positions[partition]
        folder = self._wal_folder(partition)
        opened = open_wal(
            folder,
            topic_id=self.id,
            partition=partition,
            floor=Floor(sealed_end=at.sealed_end, log_start=at.log_start, epochs=at.epochs),
            now_ms=self._clock.now_ms(),
        )
        # What Lastword keeps for itself is acknowledged to its users, whatever they chose for their own records.
        sync = WalSync(mode="group") if is_internal(self.name) else self._config.wal_sync
        writer = PartitionWriter(
            folder,
            opened,
            settings=self._settings,
            sync=sync,
            clock=self._clock,
            producer_expiration_ms=self._config.producer_id_expiration_ms,
        )
        # Before anybody else can append to it.
        now_ms = self._clock.now_ms() if self._settings.message_timestamp_type == "LogAppendTime" else None
        staged.finish(self._data_folder, self.id, partition, writer, now_ms)
        return writer

    def _writer(self, partition: int) -> PartitionWriter:
        return self._writers[self._check_partition(partition)]

    def _wal_folder(self, partition: int) -> Path:
        if self.foreign is not None:
            # Its WAL is in its owner's folder. What an earlier time as its owner has left here is no part of it.
            return self._data_folder / WAL_FOLDER / ".foreign" / self.id.hex / str(partition)
        return wal_folder(self._data_folder, self.name, self.id) / str(partition)

    def _check_partition(self, partition: int) -> int:
        if not 0 <= partition < self.partitions:
            raise UnknownPartitionError(
                f"Topic {self.name!r} has no partition {partition}; it has 0 to {self.partitions - 1}."
            )
        return partition

    def _check_writer(self) -> None:
        self.check_owned()
        if self._closed:
            raise ClosedError(f"Topic {self.name!r} has been closed.")
        if not self._writes:
            raise InvalidError(
                "The log was opened for reading or maintenance only; open it as its writer to change it."
            )

    def check_owned(self) -> None:
        """Raise NotOwnerError where another data folder has, or may have taken, the topic: nothing is acknowledged."""
        if self.foreign is not None:
            raise self.foreign
        if self._may_append is not None:
            self._may_append()

    def _as_maintenance(self, *lanes: Lane) -> AbstractContextManager[object]:
        if self._closed:
            # It may have been closed because it was lost.
            self.check_owned()
            raise ClosedError(f"Topic {self.name!r} has been closed.")
        if self.foreign is not None:
            raise self.foreign
        if self._maintenance is None:
            raise InvalidError("The log was opened for reading only; open it without read_only to change it.")
        return self._maintenance(*lanes)


def _bytes(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _one_each(partition: int | Sequence[int | None] | None, count: int) -> Sequence[int | None]:
    return [partition] * count if partition is None or isinstance(partition, int) else partition


def _partly(
    appended: Mapping[int, range], others: Iterable[int], failed: LastwordError
) -> PartlyAppendedError:
    places = ", ".join(f"{each} (offsets {own.start} to {own.stop - 1})" for each, own in appended.items())
    left = ", ".join(map(str, sorted(others)))
    return PartlyAppendedError(
        f"The records for partition {places} were appended, those for partition {left} were not acknowledged: {failed} "
        f"Send only the latter again; of a partition that has failed, some may turn out to be in the log.",
        appended={each: (own.start, own.stop - 1) for each, own in appended.items()},
    )


def _start_of(start: Start | Mapping[int, Start], partition: int) -> Start:
    return start.get(partition, "earliest") if isinstance(start, Mapping) else start


def _chunks(records: Sequence[NewRecord], batch_bytes: int) -> Iterator[Sequence[NewRecord]]:
    """Records in runs that make batches of at most `batch_bytes`, but for a record that is larger by itself."""
    first, size_bytes = 0, batch.HEADER_BYTES
    for index, record in enumerate(records):
        own_bytes = _most_bytes(record)
        if index > first and size_bytes + own_bytes > batch_bytes:
            yield records[first:index]
            first, size_bytes = index, batch.HEADER_BYTES
        size_bytes += own_bytes
    if first < len(records):
        yield records[first:]


def _most_bytes(record: NewRecord) -> int:
    try:
        size_bytes = len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
        return size_bytes + sum(len(name.encode()) + len(value or b"") + 10 for name, value in record.headers)
    except (AttributeError, TypeError, ValueError) as error:
        # What the types rule out, or text that is no Unicode.
        raise InvalidRecordError(f"a record can't be appended: {error}") from error


def _payload(table: pa.Table, now_ms: int) -> pa.Table:
    """The rows of a table that a user handed in, in record.PAYLOAD_SCHEMA, with offsets from 0 on."""
    missing = {"key", "value"} - set(table.column_names)
    if missing:
        raise InvalidRecordError(
            f"The Arrow table has no column {sorted(missing)[0]!r}; it needs key and value."
        )
    rows = len(table)
    now = pa.scalar(now_ms * 1000, pa.timestamp("us", tz="UTC"))
    try:
        if "timestamp" in table.column_names:
            timestamps = table.column("timestamp").cast(pa.timestamp("us", tz="UTC")).fill_null(now)
        else:
            timestamps = pa.repeat(now, rows)
        headers = (
            table.column("headers").cast(HEADERS_TYPE)
            if "headers" in table.column_names
            else pa.nulls(rows, HEADERS_TYPE)
        )
        return pa.table(
            [
                pa.array(np.arange(rows)),
                timestamps,
                pa.repeat(pa.scalar(int(TimestampType.CREATE), pa.int32()), rows),
                table.column("key").cast(pa.binary()),
                table.column("value").cast(pa.binary()),
                headers,
            ],
            schema=PAYLOAD_SCHEMA,
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise InvalidRecordError(f"The Arrow table can't be appended: {error}") from error


def _encode_rows(payload: pa.Table, compression: Compression, batch_bytes: int) -> Iterator[bytes]:
    offset = payload.schema.get_field_index("offset")
    numbered = payload.set_column(offset, PAYLOAD_SCHEMA.field("offset"), pa.array(np.arange(len(payload))))
    for records in numbered.to_batches(max_chunksize=65536):
        yield from batch.encode_arrow(records, compression=compression, batch_bytes=batch_bytes)
