"""A topic of an open log, with all its operations: appends, reads, sealing, deletion of records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from lastword.config import check_not_internal, is_internal
from lastword.errors import ClosedError, LastwordError, NotOwnerError, OffsetOutOfRangeError, UnavailableError
from lastword.folder.intents import is_erasing
from lastword.log.appendable import AppendableTopic
from lastword.log.context import LogContext
from lastword.log.partition import Partition
from lastword.maintenance import tiering
from lastword.maintenance.lanes import Lane
from lastword.maintenance.retention import delete_records
from lastword.maintenance.tiering import RoundSettings, SealReport
from lastword.segments.model import TopicInfo
from lastword.wal import deleter
from lastword.wal.repair import DamagedRange

if TYPE_CHECKING:
    from lastword.compaction.service import TopicCompactionService
    from lastword.segments.table import SegmentTable


class Topic(AppendableTopic):
    """A topic. Get one from `Log.topic` or `Log.create_topic`; appending is safe from several threads."""

    def __init__(
        self,
        info: TopicInfo,
        table: SegmentTable,
        context: LogContext,
        *,
        writes: bool,
        maintenance: Callable[..., AbstractContextManager[object]],
        ask_to_roll: Callable[[str, bool], list[tuple[int, str]]],
        kept_elsewhere: Callable[[str], TopicCompactionService | None],
        run_rounds: tiering.RunRounds,
        foreign: NotOwnerError | None = None,
        may_append: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            info,
            table,
            context,
            writes=writes,
            kept_elsewhere=kept_elsewhere,
            foreign=foreign,
            may_append=may_append,
        )
        self._maintenance = maintenance
        self._ask_to_roll = ask_to_roll
        self._run_rounds = run_rounds
        self._partitions_lock = threading.Lock()
        """Held while partitions are added, and while the topic is closed."""
        self._add_partitions(info.partitions)

    # --------------------------------------------------------------------------------------- maintenance

    def seal(self, *, progress: tiering.OnBytes | None = None) -> SealReport:
        """Roll the WAL and commit all its records as sealed segments."""
        return self._seal(progress, due_only=False)

    def seal_rolled(
        self, *, progress: tiering.OnBytes | None = None, stop: Callable[[], bool] = lambda: False
    ) -> SealReport:
        """Roll the WAL files that are due, and commit the rolled ones. `stop` is checked between two files."""
        return self._seal(progress, due_only=True, stop=stop)

    def delete_records(self, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records of partitions before an offset (-1: all). Return the new log start of each partition."""
        self._check_writer()
        check_not_internal(self.name, "deleted from")
        wanted: dict[int, int] = {}
        for partition, offset in before.items():
            extent = self.partition(partition).extent()
            wanted[partition] = extent.log_end if offset == -1 else offset
            if not 0 <= wanted[partition] <= extent.log_end:
                raise OffsetOutOfRangeError(
                    f"Can't delete the records of {self.name!r} partition {partition} before offset {offset}: "
                    f"its log end is {extent.log_end}. Use 0 to {extent.log_end}, or -1 for all."
                )
        snapshot = delete_records(self._table, wanted)
        return {partition: snapshot.positions[partition].log_start for partition in before}

    def reopen_partition(self, partition: int) -> None:
        """Make a partition writable again after a failed write or sync. No acknowledged record is lost."""
        self._check_writer()
        self.partition(partition).reopen()

    def leave_segments_behind(self) -> list[tuple[int, DamagedRange]]:
        """Move the log start of an internal topic past unreadable segments. Return the ranges that were skipped.

        Everything else before their end is removed too: the last record of each key must have been appended again.
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
        """Skip the damaged ranges, so that sealing and reading continue after them. Return the skipped ranges."""
        self._check_writer()
        with self._as_maintenance(Lane.TIDY, Lane.SEAL):
            # Only a rolled file can be rewritten.
            for partition in {each for each, _ in self.wal_damage()}:
                self.partition(partition).roll(due_only=False)
            found = self.wal_damage()
            for partition in sorted({each for each, _ in found}):
                self._check_writer()
                self.partition(partition).skip([damaged for each, damaged in found if each == partition])
            return found

    def removable_wals(self) -> list[deleter.LocalWal]:
        """Return `local_wals` for removing files. Raise NotOwnerError if the sealed records may be another folder's."""
        snapshot = self._table.snapshot()
        self._table.check_owned(snapshot)
        return self.local_wals(snapshot)

    def _seal(
        self,
        progress: tiering.OnBytes | None,
        *,
        due_only: bool,
        stop: Callable[[], bool] = lambda: False,
    ) -> SealReport:
        with self._as_maintenance(Lane.SEAL):
            failed = self.roll(due_only=due_only) if self._writes else self._ask_to_roll(self.name, due_only)
            folders = [each.folder for each in self.all_partitions()]
            report = tiering.seal(
                self._table,
                folders,
                leases=self._context.leases,
                codec=self._settings.segment_compression_type,
                rounds=self._rounds(),
                progress=progress,
                stop=stop,
            )
            return tiering.with_problems(report, failed)

    def _rounds(self) -> RoundSettings | None:
        if not (self._settings.compacts and self._settings.compaction_at_seal):
            return None
        if is_erasing(self._context.data_folder, self.id.hex):
            return None
        return RoundSettings(
            settings_of=lambda info: self._config.resolve(info.name, info.config),
            run=self._run_rounds,
            memory_bytes=self._config.compaction_task_memory_bytes,
            now_ms=self._clock.now_ms(),
        )

    # -------------------------------------------------------------------------------------- for the log

    def roll(self, *, due_only: bool) -> list[tuple[int, str]]:
        """Roll the WAL of each partition, or only those due. Return the partitions where that failed, and why."""
        self._check_writer()
        failed: list[tuple[int, str]] = []
        for partition in self._partitions:
            try:
                partition.roll(due_only=due_only)
            except UnavailableError as error:
                failed.append((partition.number, str(error)))
        return failed

    def changed(self, info: TopicInfo) -> None:
        """Apply the new state of the topic after the log has altered it."""
        if info == self._info:
            return
        self._settings = self._config.resolve(info.name, info.config)
        for each in self._partitions:
            each.apply(self._settings)
        # The new partitions can be appended to before others learn of them.
        self._add_partitions(info.partitions)
        if not self._closed:
            self._info = info

    def close(self) -> None:
        """Close the WAL cleanly. The first error is raised after every partition has been closed."""
        with self._partitions_lock:
            # No partition is added from here on.
            self._closed = True
        errors: list[LastwordError] = []
        for each in self._partitions:
            try:
                each.close()
            except LastwordError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _add_partitions(self, count: int) -> None:
        with self._partitions_lock:
            if self._closed:
                # It was deleted meanwhile: a file that is created now would be left behind.
                return
            added: list[Partition] = []
            try:
                for number in range(len(self._partitions), count):
                    partition = Partition(number, self._shared, self._settings)
                    if self._writes:
                        partition.open()
                    added.append(partition)
            finally:
                self._partitions = (*self._partitions, *added)

    def _as_maintenance(self, *lanes: Lane) -> AbstractContextManager[object]:
        if self._closed:
            # It may have been closed because another folder took it.
            self.check_owned()
            raise ClosedError(f"Topic {self.name!r} has been closed.")
        if self.foreign is not None:
            raise self.foreign
        return self._maintenance(*lanes, topic=self.name)
