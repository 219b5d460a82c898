"""A topic of a log that is open in any role: reads, and the locations of its records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from lastword.compaction.holds import Downtimes, Readership, Uptime
from lastword.compaction.plan import Assessment
from lastword.compaction.strategy import strategy_of
from lastword.compaction.target import Target, assess
from lastword.config import TopicSettings
from lastword.errors import (
    InvalidError,
    NotOwnerError,
)
from lastword.log import describing
from lastword.log.context import LogContext
from lastword.log.describing import TopicDescription
from lastword.log.partition import Partition, Shared
from lastword.log.routing import check_partition
from lastword.reading import timetravel
from lastword.reading.reader import Extent, PartitionReader
from lastword.reading.streaming import Start, start_offset, stream
from lastword.reading.timetravel import AsOf
from lastword.reading.topic_reader import CommittedPositions, Reader, committed_positions, reader_names
from lastword.record import Record
from lastword.segments.model import Snapshot, TopicInfo, retry_if_moved
from lastword.segments.rows import to_records
from lastword.segments.sketch import Sketches
from lastword.wal import deleter
from lastword.wal.repair import DamagedRange

if TYPE_CHECKING:
    from lastword.compaction.service import TopicCompactionService
    from lastword.explain import Explanation, Known, Run
    from lastword.segments.table import SegmentTable


class ReadableTopic:
    """A topic that can be read. Nothing here needs a role."""

    def __init__(
        self,
        info: TopicInfo,
        table: SegmentTable,
        context: LogContext,
        *,
        kept_elsewhere: Callable[[str], TopicCompactionService | None],
        foreign: NotOwnerError | None,
    ) -> None:
        self.foreign = foreign
        """The error to raise for operations that only the topic's owner may perform; None if this folder owns it."""
        self._info = info
        self._settings = context.config.resolve(info.name, info.config)
        self._table = table
        self._context = context
        self._data_folder = context.data_folder
        self._config = context.config
        self._clock = context.clock
        self._kept_elsewhere = kept_elsewhere
        """Returns the service that keeps a topic's compacted records outside of its table, or None."""
        self._closed = False
        self._partitions: tuple[Partition, ...] = ()
        self._shared = Shared(
            topic=info.name,
            topic_id=info.id,
            table=table,
            context=context,
            is_foreign=foreign is not None,
        )

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
        """The settings in effect for the topic now."""
        return self._settings

    @property
    def config(self) -> Mapping[str, str]:
        """The topic's own settings."""
        return self._info.config

    @property
    def table(self) -> SegmentTable:
        """Its sealed segments."""
        return self._table

    def partition(self, number: int) -> Partition:
        """Return one of its partitions."""
        return self._partitions[self._check_partition(number)]

    def all_partitions(self) -> tuple[Partition, ...]:
        """Return all partitions, in order."""
        return self._partitions[: self.partitions]

    def partitions_in(self, snapshot: Snapshot) -> list[Partition]:
        """Return the partitions that a snapshot has, also those that were added since the topic was opened here."""
        known = self._partitions[: len(snapshot.positions)]
        added = range(len(known), len(snapshot.positions))
        return [*known, *(Partition(number, self._shared, self._settings) for number in added)]

    def open_partitions(self) -> list[Partition]:
        """Return the partitions that this process writes, also those that an alteration has opened and not yet shown."""
        return [each for each in self._partitions if each.is_open]

    # --------------------------------------------------------------------------------------------- read

    def read(
        self,
        start: Start | Mapping[int, Start] = "earliest",
        *,
        partition: int | None = None,
        follow: bool = False,
        compacted: bool = False,
    ) -> Iterator[Record]:
        """Read the records from `start` to the current log end; with `follow`, also those that come later.

        With `compacted` the compacted records are read through the compaction service, if the log has one that keeps
        them elsewhere; the rest is read as usual. A compaction that commits during the read may move the end.
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
        """Read as `read` does, in batches of record.RECORD_SCHEMA."""
        readers = self._readers(partition)
        return stream(
            readers,
            {each: start_offset(reader, start) for each, reader in readers.items()},
            service=self._kept_elsewhere(self.name) if compacted else None,
            follow_until=(lambda: self._closed) if follow else None,
            clock=self._clock,
        )

    def reader(
        self,
        name: str | None = None,
        *,
        start: Start | Mapping[int, Start] = "earliest",
        partition: int | None = None,
    ) -> Reader:
        """Return a reader. A named one begins at its committed position, or at `start` in partitions without one.

        If retention has removed the committed position, the reader begins at the log start. Without a name
        it begins at `start` and can't commit, and it may read a single partition.
        """
        if name is not None and partition is not None:
            raise InvalidError("A named reader reads every partition: its positions are committed together.")
        committed = CommittedPositions(self._data_folder, self.id.hex, name) if name is not None else None
        saved = committed.load() if committed is not None else {}
        readers = self._readers(partition)
        positions = {}
        for each, reader in readers.items():
            if each in saved:
                extent = reader.extent()
                positions[each] = min(max(saved[each], extent.log_start), extent.log_end)
            else:
                positions[each] = start_offset(reader, start)
        return Reader(readers, positions, self._clock, committed)

    def offsets_for_time(self, timestamp_ms: int) -> dict[int, Start]:
        """Return for each partition the first offset whose record is not older than a time."""
        found: dict[int, Start] = {}
        for each in self.all_partitions():
            with closing(each.reader()) as reader:
                found[each.number] = reader.offset_for_time(timestamp_ms)
        return found

    def extents(self) -> dict[int, Extent]:
        """Return for each partition the offsets that can be read."""
        snapshot = self._table.snapshot()
        # Partitions may be added meanwhile: then only the topic or only the snapshot knows them.
        known = self.all_partitions()[: len(snapshot.positions)]
        return {each.number: each.extent(snapshot) for each in known}

    def state(self, *, as_of: AsOf | None = None) -> pa.Table:
        """Return the newest record of each key, by the topic's strategy, without deleted keys.

        With `as_of`, return the state as it was then, or raise InvalidError if it can't be reproduced exactly any more.
        """
        # Loads compiled code, which other reads do without.
        from lastword.reading.state import state_view

        with ExitStack() as opened:
            readers = [opened.enter_context(closing(reader)) for reader in self.partition_readers()]
            return state_view(readers, strategy_of(self._settings), as_of)

    def read_as_of(self, as_of: AsOf, *, partition: int | None = None) -> Iterator[pa.RecordBatch]:
        """Read the records as of an offset, a time or a snapshot, in batches of record.RECORD_SCHEMA.

        Raise InvalidError, before the first record, if that state can't be reproduced exactly any more, and
        UnavailableError if compaction overtakes the read.
        """
        chosen = self.partition_readers()
        if partition is not None:
            chosen = [chosen[self._check_partition(partition)]]
        views = [(reader, timetravel.view_as_of(reader, as_of)) for reader in chosen]
        return (records for reader, view in views for records in timetravel.read(reader, as_of, view))

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
        """Explain the location of records, and whether a compaction that begins now would keep them, why and until when.

        The records are those from an offset on, of one key or all keys, partition by partition, at most `limit`
        (None: all). By default the run is that of `lastword topic compact`, which seals first unless `seal` is false.
        A `forced` run processes everything, a `worker` run only what is due. Nothing is changed.
        """
        from lastword.explain import Question, explain_topic

        question = Question(key=as_bytes(key), from_offset=from_offset, limit=limit, run=run, seals=seal)
        chosen = self.all_partitions() if partition is None else [self.partition(partition)]
        return explain_topic(
            self.name,
            {each.number: each.reader for each in chosen},
            self.known,
            question,
            self._clock.now_ms,
        )

    def known(self, partition: int) -> Known:
        """Return the facts about a partition that compaction gets, for an explanation."""
        from lastword.explain import Known

        own = self.partition(partition)
        return Known(
            round_memory_bytes=self._config.compaction_task_memory_bytes,
            topic=self.name,
            settings=self._settings,
            wal_folder=own.folder,
            facts=own.facts(self._readership()),
        )

    def dataframe(self, spark: Any, **options: object) -> Any:
        """Return the topic as a Spark DataFrame. Options are the data source's (docs/spark.md), with `_` for `.`.

        Spark's processes open the data folder themselves, with its lastword.yaml or the file that `config` names.
        """
        from lastword.spark import register

        register(spark)
        reader = (
            spark.read.format("lastword").option("path", str(self._data_folder)).option("topic", self.name)
        )
        for name, value in options.items():
            reader = reader.option(name.replace("_", "."), str(value))
        return reader.load()

    def history(self) -> list[Snapshot]:
        """Return the retained snapshots, oldest first, each with its operation."""
        return self._table.history()

    def partition_readers(self) -> list[PartitionReader]:
        """Return a reader of each partition. Close them."""
        return [each.reader() for each in self.all_partitions()]

    def partition_reader(self, partition: int) -> PartitionReader:
        """Return a reader of one partition. Close it."""
        return self.partition(partition).reader()

    # ------------------------------------------------------------------------------------- locations

    def describe(self, *, estimates: bool = False) -> TopicDescription:
        """Describe the topic and the locations of its records, from a fresh read of the table and the WAL.

        With `estimates`, include the bytes that compaction would reclaim. This reads the footer of every segment file.
        """
        return retry_if_moved(
            lambda: describing.describe(
                self,
                self._table.snapshot(),
                settings=tuple(self._config.explain(self.name, self._info.config)),
                readers=tuple(reader_names(self._data_folder, self.id.hex)),
                distinct=Sketches(self._table.files).distinct_keys if estimates else None,
            ),
            f"Topic {self.name!r}",
        )

    def target(
        self,
        table: SegmentTable | None = None,
        downtimes: Downtimes | None = None,
        snapshot: Snapshot | None = None,
    ) -> Target:
        """Return the input of planning: the table, the settings, each partition's positions and readers."""
        readership = self._readership(downtimes)
        if snapshot is None and not any(each.is_open for each in self._partitions):
            snapshot = self._table.snapshot()
        partitions = self.all_partitions() if snapshot is None else self.partitions_in(snapshot)
        return Target(
            topic=self.name,
            table=table or self._table,
            settings=self._settings,
            facts={each.number: each.facts(readership, snapshot) for each in partitions},
            settings_of=lambda info: self._config.resolve(info.name, info.config),
        )

    def assess(
        self,
        *,
        table: SegmentTable | None = None,
        snapshot: Snapshot | None = None,
        downtimes: Downtimes | None = None,
    ) -> list[Assessment]:
        """Return the dirty ratio of each partition, and the due run, if any, as the worker will find it."""
        target = self.target(table, downtimes, snapshot)
        return assess(target, now_ms=self._clock.now_ms(), snapshot=snapshot)

    def wal_damage(self) -> list[tuple[int, DamagedRange]]:
        """Return the damaged ranges of WAL files that are not sealed yet, with their partitions."""
        snapshot = self._table.snapshot()
        return [
            (each.number, found)
            for each in self.partitions_in(snapshot)
            for found in each.wal_damage(snapshot)
        ]

    def sealed_damage(self) -> list[tuple[int, DamagedRange]]:
        """Return the unreadable segments, with their partitions. Reads all segments, so use it for small topics."""
        snapshot = self._table.snapshot()
        damage = [
            (each.number, found)
            for each in self.partitions_in(snapshot)
            for found in each.sealed_damage(snapshot)
        ]
        if damage and (current := self._table.snapshot()).id != snapshot.id:
            # Some may not be damaged, only replaced meanwhile.
            live = {segment.path for segment in self._table.plan(current)}
            return [(number, each) for number, each in damage if each.path in live]
        return damage

    def local_wals(self, snapshot: Snapshot | None = None) -> list[deleter.LocalWal]:
        """Return the WAL of each partition, as the deleter sees it."""
        snapshot = snapshot or self._table.snapshot()
        found = [each.local_wal(snapshot) for each in self.partitions_in(snapshot)]
        return [each for each in found if each is not None]

    def _readers(self, partition: int | None) -> dict[int, PartitionReader]:
        chosen = self.all_partitions() if partition is None else [self.partition(partition)]
        return {each.number: each.reader() for each in chosen}

    def _readership(self, downtimes: Downtimes | None = None) -> Readership:
        now_ms = self._clock.now_ms()
        return Readership(
            readers=committed_positions(self._data_folder, self.id.hex),
            downtimes=Uptime(self._data_folder).downtimes(now_ms) if downtimes is None else downtimes,
            hold_ms=self._config.reader_hold_ms,
            hold_max_ms=self._config.reader_hold_max_ms,
            now_ms=now_ms,
        )

    def _check_partition(self, partition: int) -> int:
        return check_partition(self.name, partition, self.partitions)


def as_bytes(text: bytes | str | None) -> bytes | None:
    """Text as UTF-8; bytes as they are."""
    return text.encode() if isinstance(text, str) else text
