"""A partition of a topic: its WAL and writer, its readers, its damaged ranges, and the facts that planning needs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from lastword.compaction.holds import Readership
from lastword.compaction.target import PartitionFacts
from lastword.config import TopicSettings, WalSync, is_internal
from lastword.errors import ClosedError, CorruptError, UnavailableError, WriteFailedError
from lastword.folder.paths import foreign_wal_folder, wal_folder
from lastword.log.context import LogContext
from lastword.reading.reader import Extent, PartitionReader
from lastword.segments.model import SegmentGoneError, Snapshot
from lastword.wal import checkpoint as checkpoints
from lastword.wal import deleter, repair, staged
from lastword.wal.checkpoint import WriterCheckpoint
from lastword.wal.recovery import Floor, open_wal
from lastword.wal.repair import NOT_IN_WAL, DamagedRange
from lastword.wal.writer import PartitionWriter

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The state that the partitions of a topic share while the topic is open."""

    topic: str
    topic_id: UUID
    table: SegmentTable
    context: LogContext
    is_foreign: bool
    """Whether another data folder owns the topic. Its WAL is there, not here."""


class Partition:
    """One partition. The process that writes the log opens its WAL. Every other process reads the WAL's files."""

    def __init__(self, number: int, shared: Shared, settings: TopicSettings) -> None:
        self.number = number
        self._shared = shared
        self._settings = settings
        self._writer: PartitionWriter | None = None
        self._closed = False
        self._lock = threading.Lock()
        """Held while the writer is opened, replaced or closed. Appends and reads don't need it."""

    @property
    def folder(self) -> Path:
        """The folder of its WAL."""
        data_folder, topic_id = self._shared.context.data_folder, self._shared.topic_id
        if self._shared.is_foreign:
            # Files left here from when this folder owned the topic are not part of it.
            return foreign_wal_folder(data_folder, topic_id) / str(self.number)
        return wal_folder(data_folder, self._shared.topic, topic_id) / str(self.number)

    # ------------------------------------------------------------------------------------------- writing

    @property
    def is_open(self) -> bool:
        """Whether this process writes it."""
        return self._writer is not None

    @property
    def writer(self) -> PartitionWriter:
        """The writer that appends to it in this process."""
        assert self._writer is not None, f"{self._shared.topic} {self.number} is not written by this process"
        return self._writer

    @property
    def failed(self) -> str | None:
        """Why it refuses appends in this process, or None."""
        return None if self._writer is None else self._writer.failed

    def open(self) -> None:
        """Open the WAL for appends, and recover it if its last writer was killed."""
        with self._lock:
            self._check_not_closed()
            self._open_writer()

    def reopen(self) -> None:
        """Make it writable again after a failed write or sync. No acknowledged record is lost."""
        with self._lock:
            self._check_not_closed()
            # Records that closing can't sync any more were not acknowledged.
            with suppress(WriteFailedError):
                self.writer.close()
            self._open_writer()
        if failed := self.failed:
            raise UnavailableError(failed)

    def roll(self, *, due_only: bool) -> None:
        """Begin a new WAL file, or only if one is due. Raise UnavailableError if it can't be written."""
        if due_only:
            self.writer.roll_if_due()
        else:
            self.writer.roll()

    def apply(self, settings: TopicSettings) -> None:
        """Use new settings from now on."""
        self._settings = settings
        if self._writer is not None:
            self._writer.settings = settings

    def close(self) -> None:
        """Close the WAL cleanly. It is never reopened."""
        with self._lock:
            self._closed = True
            if self._writer is not None:
                self._writer.close()

    def _open_writer(self) -> None:
        shared, settings, folder = self._shared, self._settings, self.folder
        clock, config = shared.context.clock, shared.context.config
        at = shared.table.snapshot().positions[self.number]
        opened = open_wal(
            folder,
            topic_id=shared.topic_id,
            partition=self.number,
            floor=Floor(sealed_end=at.sealed_end, log_start=at.log_start, epochs=at.epochs),
            now_ms=clock.now_ms(),
        )
        writer = PartitionWriter(
            folder,
            opened,
            settings=settings,
            # Lastword acknowledges its internal records to clients, whatever they chose for their own records.
            sync=WalSync(mode="group") if is_internal(shared.topic) else config.wal_sync,
            clock=clock,
            producer_expiration_ms=config.producer_id_expiration_ms,
        )
        # No other thread can append to it yet.
        now_ms = clock.now_ms() if settings.message_timestamp_type == "LogAppendTime" else None
        staged.finish(shared.context.data_folder, shared.topic_id, self.number, writer, now_ms)
        self._writer = writer
        # They may have changed while the WAL was recovered.
        writer.settings = self._settings

    def _check_not_closed(self) -> None:
        if self._closed:
            raise ClosedError(f"Topic {self._shared.topic!r} has been closed.")

    # ------------------------------------------------------------------------------------------- reading

    def reader(self) -> PartitionReader:
        """Return a reader of the partition. Close it."""
        self._check_not_closed()
        return PartitionReader(self._shared.table, self.number, self.folder, self._shared.context.leases)

    def extent(self, snapshot: Snapshot | None = None) -> Extent:
        """Return the offsets that can be read, from a fresh look at the WAL and the table, or at a given snapshot."""
        return self.reader().extent(snapshot)

    def log_end(self, snapshot: Snapshot | None = None) -> int:
        """Return the offset that the next record gets, from the writer's memory or as `extent` finds it."""
        return self.extent(snapshot).log_end if self._writer is None else self._writer.visible_end

    def facts(self, readership: Readership, snapshot: Snapshot | None = None) -> PartitionFacts:
        """Return the facts that planning needs besides the table."""
        return PartitionFacts(
            log_end=self.log_end(snapshot),
            hold=readership.hold(self.number),
            readers=tuple(readership.active(self.number)),
            first_append_ms=None if self._writer is None else self._writer.first_append_ms,
        )

    def checkpoint(self) -> WriterCheckpoint | None:
        """Return the last checkpoint of its writer; None if it never had one."""
        return checkpoints.load_writer(self.folder)

    def local_wal(self, snapshot: Snapshot) -> deleter.LocalWal | None:
        """Return its WAL files as the deleter sees them; None if it has none yet."""
        return deleter.local_wal(
            self._shared.topic,
            self.number,
            self.folder,
            sealed_end=snapshot.positions[self.number].sealed_end,
            settings=self._settings,
        )

    def open_files(self, snapshot: Snapshot) -> deleter.LocalFiles:
        """Return its WAL files from the writer's memory; none if another process writes it. No checkpoint is read."""
        return deleter.LocalFiles(
            sealed_end=snapshot.positions[self.number].sealed_end,
            files=() if self._writer is None else deleter.local_files(self.folder, self._writer.files),
        )

    # -------------------------------------------------------------------------------------------- damage

    def wal_damage(self, snapshot: Snapshot) -> list[DamagedRange]:
        """Return the damaged ranges of WAL files that are not sealed yet."""
        saved = self.checkpoint()
        if saved is None:
            return []
        at = snapshot.positions[self.number]
        return repair.inspect(self.folder, saved, from_offset=max(at.sealed_end, at.log_start))

    def sealed_damage(self, snapshot: Snapshot) -> list[DamagedRange]:
        """Return the unreadable segments of a snapshot. Reads all segments, so use it for small topics."""
        table, at = self._shared.table, snapshot.positions[self.number]
        found: list[DamagedRange] = []
        for segment in table.plan(snapshot, self.number, at.log_start):
            try:
                for _ in table.read(segment, None, at.log_start):
                    pass
            except (CorruptError, SegmentGoneError) as error:
                found.append(
                    DamagedRange(
                        path=segment.path,
                        seq=NOT_IN_WAL,
                        position=0,
                        end_position=segment.size_bytes,
                        first_offset=max(segment.first_offset, at.log_start),
                        end_offset=segment.last_offset + 1,
                        problem=str(error),
                    )
                )
        return found

    def skip(self, damaged: Sequence[DamagedRange]) -> None:
        """Skip damaged ranges of rolled WAL files, so that sealing and reading continue after them."""
        with self._lock:
            self._check_not_closed()
            self.writer.close()
            saved = self.checkpoint()
            assert saved is not None
            try:
                repair.skip(self.folder, saved, damaged)
            finally:
                self._open_writer()
