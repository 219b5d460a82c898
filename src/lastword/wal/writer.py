"""The writer of a partition's WAL, the only one that appends to it.

Steps of an append:
1. the batch gets its offsets and the leader epoch, and is written to the active file;
2. with `wal.sync=group` the appender waits until a sync covers it. The first waiter syncs for all batches written
   before the sync began, the others sleep. With `interval` and `none` the appender does not wait;
3. `wal.state` makes the batch visible to readers, and only then is the append acknowledged.

Steps of a roll: sync the active file, save the producer state, create and sync the next file and its name, replace
`writer.json`, continue in the next file.

If the process is killed, everything that step 3 made visible is in the file. Bytes after that are whole batches, which
recovery keeps, or a torn one, which it cuts. A next file that `writer.json` does not name is empty and is removed.

After a failed write or sync it is not known what the file holds on disk, whatever reading it back returns. So the
writer marks it as failed and answers every waiting and later append with WriteFailedError. Only reopening, which copies
the acknowledged part to a new file, makes the partition writable again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from lastword import batch
from lastword.clock import Clock
from lastword.config import TopicSettings, WalSync
from lastword.errors import ClosedError, InvalidRecordError, OffsetOutOfRangeError, WriteFailedError
from lastword.folder import disk
from lastword.folder.paths import PRODUCERS_FILE
from lastword.folder.steps import reached
from lastword.wal import checkpoint as checkpoints
from lastword.wal import producers
from lastword.wal.checkpoint import WriterCheckpoint
from lastword.wal.files import WalFile
from lastword.wal.producers import ActiveProducer, ProducerStates
from lastword.wal.state import Phase, StateFile, WalState

logger = logging.getLogger(__name__)

RollReason = Literal["segment.bytes", "segment.ms", "tiering.lag.ms", "max.compaction.lag.ms", "asked for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedWal:
    """The result of recovery: where to continue. With `failed` set the partition can be read, not written."""

    checkpoint: WriterCheckpoint
    end_offset: int
    end_position: int
    failed: str | None = None


class Shown(NamedTuple):
    """The end of the visible part: the active file, and the first offset and byte in it that readers may not see."""

    seq: int
    offset: int
    position: int


class Produced(NamedTuple):
    """A checked batch of a client. `max_timestamp_ms` corrects the header's."""

    header: batch.BatchHeader
    data: bytearray | memoryview
    append_time_ms: int | None
    max_timestamp_ms: int | None


class Staged(NamedTuple):
    """A batch that has been written now or earlier, and its offsets. `end_offset` is the one to wait for."""

    base_offset: int
    end_offset: int
    is_duplicate: bool
    timestamp_ms: int


class _Run:
    """Batches that have their offsets and are written together, and the log end after them."""

    __slots__ = ("batches", "end_offset", "end_position")

    def __init__(self, end_offset: int, end_position: int) -> None:
        self.end_offset = end_offset
        self.end_position = end_position
        self.batches: list[bytearray | memoryview] = []


def roll_reason(
    settings: TopicSettings, *, size_bytes: int, incoming_bytes: int, first_append_ms: int, now_ms: int
) -> RollReason | None:
    """Return why a non-empty file must be rolled before more is appended, or None."""
    if incoming_bytes and size_bytes + incoming_bytes > settings.segment_bytes:
        return "segment.bytes"
    age_ms = now_ms - first_append_ms
    if age_ms >= settings.segment_ms:
        return "segment.ms"
    if age_ms >= settings.tiering_lag_ms:
        return "tiering.lag.ms"
    max_lag_ms = settings.max_compaction_lag_ms if settings.compacts else None
    if max_lag_ms is not None and age_ms >= max_lag_ms:
        return "max.compaction.lag.ms"
    return None


class PartitionWriter:
    """Appends to one partition. Safe to use from several threads."""

    def __init__(
        self,
        folder: Path,
        opened: OpenedWal,
        *,
        settings: TopicSettings,
        sync: WalSync,
        clock: Clock,
        producer_expiration_ms: int | None = None,
    ) -> None:
        self.settings = settings
        self.on_shown: Callable[[], None] | None = None
        """Called, from any thread, after more has become visible to readers. It must not block."""
        self.is_synced_by_append = sync.mode == "group"
        self._folder = folder
        self._sync_mode = sync.mode
        self._clock = clock
        # Held by the thread that is writing, even while a roll releases the other lock: its batches stay contiguous.
        self._appending = threading.Lock()
        self._changed = threading.Condition()
        self._checkpoint = opened.checkpoint
        self._epoch = opened.checkpoint.epochs[-1][0]
        self._end_offset = self._visible_offset = self._durable_offset = opened.end_offset
        self._end_position = self._visible_position = self._durable_position = opened.end_position
        self._shown = Shown(opened.checkpoint.active.seq, opened.end_offset, opened.end_position)
        self._first_append_ms = opened.checkpoint.active.opened_ms
        self._producer_expiration_ms = producer_expiration_ms
        # Loaded when needed: most open partitions never get a batch.
        self._producers: ProducerStates | None = None
        self._has_producers = False
        self._failed = opened.failed
        self._syncing = False
        self._closed = False
        # The first append opens the files, so that idle partitions cost no file descriptors.
        self._fd: int | None = None
        self._state_file: StateFile | None = None

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._end_offset

    @property
    def visible_end(self) -> int:
        """The first offset that readers may not see yet."""
        return self._visible_offset

    @property
    def shown(self) -> Shown:
        """The end of the visible part, as one consistent value."""
        return self._shown

    @property
    def files(self) -> tuple[WalFile, ...]:
        """The files, the active one last. The deleter may have removed some of the first ones."""
        return self._checkpoint.files

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        return self._checkpoint.epochs

    @property
    def failed(self) -> str | None:
        """Why the partition refuses appends, or None."""
        return self._failed

    def active_producers(self) -> list[ActiveProducer]:
        """Return the idempotent producers that this partition knows."""
        with self._changed:
            return self._producer_states().active()

    def append(self, data: bytes | memoryview, *, append_time_ms: int | None = None) -> int:
        """Append one checked batch and wait until it may be acknowledged. Return the offset of its first record."""
        base_offset, end_offset = self.stage(data, append_time_ms=append_time_ms)
        self.wait_durable(end_offset)
        return base_offset

    def stage(self, data: bytes | memoryview, *, append_time_ms: int | None = None) -> tuple[int, int]:
        """Write one checked batch. Return its first offset and the end offset to pass to `wait_durable`."""
        staged = self.stage_all([data], append_time_ms=append_time_ms)
        return staged.start, staged.stop

    def stage_all(self, batches: Sequence[bytes | memoryview], *, append_time_ms: int | None = None) -> range:
        """Write checked batches contiguously. Return their offsets. Pass the end offset to `wait_durable`."""
        with self._appending:
            first_offset = end_offset = -1
            for data in batches:
                base_offset, end_offset = self._stage(data, append_time_ms)
                first_offset = base_offset if first_offset < 0 else first_offset
            return range(first_offset, end_offset)

    def stage_noted(
        self,
        batches: Iterable[bytes | memoryview],
        note: Callable[[int], None],
        *,
        append_time_ms: int | None = None,
        start: int | None = None,
    ) -> int:
        """Call `note` with the first offset, then write batches as `stage_all` does. Return the end offset.

        Batches that keep the offsets of another log belong at `start`. Raise OffsetOutOfRangeError if the log ends
        elsewhere: then nothing has happened. After any other failure the partition must be reopened, because the note
        may be wrong.
        """
        with self._appending:
            with self._changed:
                self._check_writable()
            if start is not None and start != self._end_offset:
                raise OffsetOutOfRangeError(
                    f"records belong at offset {start} of {self._folder}, whose log end is {self._end_offset}"
                )
            try:
                end_offset = self._end_offset
                note(end_offset)
                for data in batches:
                    _, end_offset = self._stage(data, append_time_ms)
                return end_offset
            except BaseException as error:
                with self._changed:
                    if self._failed is None:
                        self._fail("append noted batches to", error)
                raise

    def refuse(self, why: str) -> None:
        """Take no appends until the partition is reopened."""
        with self._changed:
            self._failed = why
            logger.error("%s", why)

    def _stage(self, data: bytes | memoryview, append_time_ms: int | None) -> tuple[int, int]:
        header = batch.read_header(data)
        assert header is not None and header.last_offset_delta >= 0
        with self._changed:
            self._check_writable()
            if header.producer_id >= 0 and not self._has_producers:
                self._expect_producers()
            run = _Run(self._end_offset, self._end_position)
            base_offset = self._put(run, header, bytearray(data), append_time_ms, None)
            self._write(run)
            return base_offset, self._end_offset

    def stage_produced(self, produced: Sequence[Produced]) -> list[Staged | InvalidRecordError]:
        """Write checked batches as clients sent them, modifying their bytes in place. Skip those already in the log.

        An idempotent producer's batch that does not follow its last one gets an error in place of a result.
        """
        results: list[Staged | InvalidRecordError] = []
        with self._appending, self._changed:
            self._check_writable()
            if not self._has_producers and any(each.header.producer_id >= 0 for each in produced):
                self._expect_producers()
            run = _Run(self._end_offset, self._end_position)
            for header, data, append_time_ms, max_timestamp_ms in produced:
                if header.producer_id >= 0:
                    try:
                        sent = self._producer_states().find_duplicate(header)
                    except InvalidRecordError as error:
                        results.append(error)
                        continue
                    if sent is not None:
                        results.append(
                            Staged(sent.first_offset, sent.last_offset + 1, True, sent.timestamp_ms)
                        )
                        continue
                base_offset = self._put(run, header, data, append_time_ms, max_timestamp_ms)
                timestamp_ms = -1 if append_time_ms is None else append_time_ms
                results.append(Staged(base_offset, base_offset + header.record_count, False, timestamp_ms))
            self._write(run)
        return results

    def _put(
        self,
        run: _Run,
        header: batch.BatchHeader,
        data: bytearray | memoryview,
        append_time_ms: int | None,
        max_timestamp_ms: int | None,
    ) -> int:
        """Add a batch to the run and return its first offset. If a roll is due, write the run before it."""
        now_ms = self._clock.now_ms()
        if self._reason_to_roll(run.end_position, header.size_bytes, now_ms) is not None:
            self._write(run)
            self._roll_if_due(header.size_bytes, now_ms)
            run.end_offset, run.end_position = self._end_offset, self._end_position
        base_offset = run.end_offset
        batch.place_over(
            data,
            base_offset=base_offset,
            leader_epoch=self._epoch,
            append_time_ms=append_time_ms,
            max_timestamp_ms=max_timestamp_ms,
        )
        if run.end_position == 0:
            self._first_append_ms = now_ms
        run.batches.append(data)
        # By the offsets that it spans: a batch that keeps those of another log may have gaps.
        run.end_offset += header.last_offset_delta + 1
        run.end_position += len(data)
        if header.producer_id >= 0:
            # If the write fails, the partition must be reopened, and the producer state is read from the file.
            self._producer_states().appended(header, base_offset, now_ms)
        return base_offset

    def _write(self, run: _Run) -> None:
        """Write the batches of a run. Both locks are held."""
        if not run.batches:
            return
        fd = self._opened()
        try:
            disk.write_pieces(fd, run.batches)
            reached("wal.written")
            self._end_offset, self._end_position = run.end_offset, run.end_position
        except OSError as error:
            raise self._fail("write to", error) from error
        except BaseException as error:
            # An interrupt may have come between the write and the update of the end.
            self._fail("write to", error)
            raise
        run.batches = []
        if self._sync_mode != "group":
            self._show(self._end_offset, self._end_position)

    def wait_durable(self, end_offset: int) -> None:
        """Wait until everything before `end_offset` may be acknowledged under this `wal.sync`."""
        if self._sync_mode == "group":
            self._sync_up_to(end_offset)

    def sync(self) -> None:
        """Make everything that has been appended durable."""
        self._sync_up_to(self._end_offset)

    @property
    def first_append_ms(self) -> int:
        """The time from which the active file's age counts."""
        return self._first_append_ms

    def roll(self) -> bool:
        """Close the active file and continue in a new one. Return False if it is empty."""
        with self._changed:
            self._wait_for_sync()
            self._check_writable()
            if self._end_position == 0:
                return False
            self._roll("asked for", self._clock.now_ms())
            return True

    def roll_if_due(self) -> bool:
        """Roll if the active file has been open for longer than the settings allow."""
        with self._changed:
            self._check_writable()
            return self._roll_if_due(0, self._clock.now_ms())

    def close(self) -> None:
        """Sync, note that nothing is left to recover, and close the files."""
        with self._changed:
            if self._closed:
                return
            self._wait_for_sync()
            try:
                if self._fd is not None and self._failed is None:
                    self._sync_active()
                    self._save_producers()
                    self._write_state(Phase.CLEAN, sync=True)
                    reached("wal.closed")
            except OSError as error:
                raise self._fail("close", error) from error
            finally:
                self._closed = True
                self._release()
                self._changed.notify_all()

    def _check_writable(self) -> None:
        if self._closed:
            raise ClosedError(f"The WAL in {self._folder} has been closed.")
        if self._failed is not None:
            raise WriteFailedError(self._failed)

    def _opened(self) -> int:
        if self._fd is None:
            try:
                self._fd = os.open(self._active_path(), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                self._state_file = StateFile(self._folder)
                # If appends are acknowledged before a sync, a power failure may lose them without a trace in
                # the file. So it must be known for sure that the file was being written.
                self._write_state(sync=self._sync_mode != "group")
            except OSError as error:
                raise self._fail("open", error) from error
        return self._fd

    def _active_path(self) -> Path:
        return self._folder / self._checkpoint.active.name

    def _sync_up_to(self, end_offset: int) -> None:
        with self._changed:
            while True:
                if self._durable_offset >= end_offset:
                    return
                self._check_writable()
                if not self._syncing:
                    break
                self._changed.wait()
            fd, target_offset, target_position = self._opened(), self._end_offset, self._end_position
            self._syncing = True
        try:
            disk.sync_data(fd)
            reached("wal.synced")
        except BaseException as error:
            with self._changed:
                self._syncing = False
                if isinstance(error, OSError):
                    raise self._fail("sync", error) from error
                # Interrupted: one of the waiters takes over.
                self._changed.notify_all()
                raise
        with self._changed:
            self._syncing = False
            self._durable_offset, self._durable_position = target_offset, target_position
            self._show(max(self._visible_offset, target_offset), max(self._visible_position, target_position))

    def _show(self, offset: int, position: int) -> None:
        self._visible_offset, self._visible_position = offset, position
        try:
            self._write_state()
        except OSError as error:
            raise self._fail("note the end of", error) from error
        self._shown = Shown(self._checkpoint.active.seq, offset, position)
        self._changed.notify_all()
        if self.on_shown is not None:
            self.on_shown()

    def _producer_states(self) -> ProducerStates:
        if self._producers is None:
            self._producers = producers.load(
                self._folder,
                checkpoints.left_files(self._folder, self._checkpoint),
                end_offset=self._end_offset,
                end_position=self._end_position,
            )
        return self._producers

    def _expect_producers(self) -> None:
        """Note on disk, before the first batch of a producer, that there are some, so that a crash loses none."""
        if not producers.exists(self._folder):
            try:
                self._producer_states().save(self._folder, self._end_offset)
            except OSError as error:
                raise WriteFailedError(
                    f"Can't write {self._folder / PRODUCERS_FILE}: {error.strerror or error}. "
                    f"Nothing was appended; free some space and try again."
                ) from error
        self._has_producers = True

    def _save_producers(self) -> None:
        """Save the producer state. If that fails, the deleter keeps the files that still have it."""
        try:
            known = self._producer_states()
            if self._producer_expiration_ms is not None:
                known.expire(self._clock.now_ms() - self._producer_expiration_ms)
            if len(known) or producers.exists(self._folder):
                known.save(self._folder, self._end_offset)
        except OSError as error:
            logger.warning("can't save the producer state to %s: %s", self._folder, error)

    def _sync_active(self) -> None:
        if self._fd is not None and self._durable_offset < self._end_offset:
            disk.sync_data(self._fd)
            self._durable_offset, self._durable_position = self._end_offset, self._end_position
            self._show(self._end_offset, self._end_position)

    def _wait_for_sync(self) -> None:
        while self._syncing:
            self._changed.wait()

    def _roll_if_due(self, incoming_bytes: int, now_ms: int) -> bool:
        if self._reason_to_roll(self._end_position, incoming_bytes, now_ms) is None:
            return False
        self._wait_for_sync()
        self._check_writable()
        # Waiting released the lock, so another thread may have rolled the file meanwhile.
        reason = self._reason_to_roll(self._end_position, incoming_bytes, now_ms)
        if reason is None:
            return False
        self._roll(reason, now_ms)
        return True

    def _reason_to_roll(self, size_bytes: int, incoming_bytes: int, now_ms: int) -> RollReason | None:
        if size_bytes == 0:
            return None
        return roll_reason(
            self.settings,
            size_bytes=size_bytes,
            incoming_bytes=incoming_bytes,
            first_append_ms=self._first_append_ms,
            now_ms=now_ms,
        )

    def _roll(self, reason: RollReason, now_ms: int) -> None:
        """Roll the active file. No sync is under way: the lock has been held since that was checked."""
        try:
            self._go_to_next_file(reason, now_ms)
        except WriteFailedError:
            raise
        except BaseException as error:
            # Interrupted midway: the checkpoint may name one file while the other is open.
            self._fail("roll", error)
            raise

    def _go_to_next_file(self, reason: RollReason, now_ms: int) -> None:
        try:
            self._sync_active()
            reached("wal.roll.synced")
        except OSError as error:
            raise self._fail("sync", error) from error
        self._save_producers()
        reached("wal.roll.producers_saved")
        old = self._checkpoint.active
        new = WalFile(seq=old.seq + 1, first_offset=self._end_offset, opened_ms=now_ms)
        try:
            fd = create_file(self._folder, new)
            reached("wal.roll.created")
        except OSError as error:
            # The active file is intact, and nothing names the new one: the next append tries again.
            raise WriteFailedError(
                f"Can't start a new WAL file {self._folder / new.name}: {error.strerror or error}. "
                f"Nothing was appended; free some space and try again."
            ) from error
        files = (*self._checkpoint.files[:-1], old.rolled(size_bytes=self._end_position, now_ms=now_ms), new)
        if deleter := checkpoints.load_deleter(self._folder):
            files = checkpoints.without_deleted(files, deleter)
        try:
            self._save(files)
            reached("wal.roll.named")
        except OSError as error:
            os.close(fd)
            raise self._fail("roll", error) from error
        if self._fd is not None:
            os.close(self._fd)
        self._fd = fd
        size_bytes, self._end_position = self._end_position, 0
        self._visible_position = self._durable_position = 0
        self._shown = Shown(new.seq, self._visible_offset, 0)
        self._first_append_ms = now_ms
        try:
            if self._state_file is None:
                self._state_file = StateFile(self._folder)
            self._write_state()
        except OSError as error:
            raise self._fail("note the end of", error) from error
        logger.info(
            "rolled %s at offset %d, %d bytes: %s",
            self._folder / old.name,
            self._end_offset,
            size_bytes,
            reason,
        )

    def _save(self, files: tuple[WalFile, ...]) -> None:
        damage = tuple(each for each in self._checkpoint.damage if each.seq >= files[0].seq)
        saved = WriterCheckpoint(
            topic_id=self._checkpoint.topic_id,
            partition=self._checkpoint.partition,
            files=files,
            epochs=self._checkpoint.epochs,
            damage=damage,
        )
        checkpoints.save_writer(self._folder, saved)
        self._checkpoint = saved

    def _write_state(self, phase: Phase = Phase.OPEN, *, sync: bool = False) -> None:
        assert self._state_file is not None
        self._state_file.write(
            WalState(
                # A sync that was under way when a write failed must not clear the mark.
                phase=phase if self._failed is None else Phase.FAILED,
                seq=self._checkpoint.active.seq,
                visible_offset=self._visible_offset,
                visible_position=self._visible_position,
                durable_offset=self._durable_offset,
                durable_position=self._durable_position,
            ),
            sync=sync,
        )

    def _fail(self, action: str, error: BaseException) -> WriteFailedError:
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
        self._failed = (
            f"Can't {action} the WAL file {self._active_path()}: {cause}. "
            f"The partition takes no more appends until it is reopened; acknowledged records are kept."
        )
        logger.error("%s", self._failed)
        try:
            if self._state_file is not None:
                self._write_state()
        except OSError:
            # The disk refuses even a block that is already allocated. Reopening then finds an unclean WAL
            # and syncs it again, which is all that can be done.
            logger.exception("could not mark %s as failed", self._folder)
        self._changed.notify_all()
        return WriteFailedError(self._failed)

    def _release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._state_file is not None:
            self._state_file.close()
            self._state_file = None


def create_file(folder: Path, file: WalFile) -> int:
    """Create an empty WAL file, synced with its name, open for appending."""
    fd = os.open(
        folder / file.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
    )
    try:
        disk.fsync(fd)
        disk.sync_folder(folder)
    except OSError:
        os.close(fd)
        raise
    return fd
