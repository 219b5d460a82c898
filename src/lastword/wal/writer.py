"""The writer of a partition's WAL, the only one that appends to it.

Steps of an append:
1. the batch gets its offsets and the leader epoch, and is written to the active file;
2. with `wal.sync=group` the appender waits until a sync covers it (active.py). With `interval` and `none` it does not
   wait;
3. `wal.state` makes the batch visible to readers, and only then is the append acknowledged.

Steps of a roll: sync the active file, save the producer state, create and sync the next file and its name, replace
`writer.json`, continue in the next file.

If the process is killed, everything that step 3 made visible is in the file. Bytes after that are whole batches, which
recovery keeps, or a torn one, which it cuts. A next file that `writer.json` does not name is empty and is removed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from lastword import batch
from lastword.clock import Clock
from lastword.config import TopicSettings, WalSync
from lastword.errors import InvalidRecordError, OffsetOutOfRangeError, WriteFailedError
from lastword.folder.steps import reached
from lastword.wal import checkpoint as checkpoints
from lastword.wal import producers
from lastword.wal.active import ActiveFile, Shown
from lastword.wal.files import WalFile, create_file
from lastword.wal.producers import ActiveProducer, KnownProducers, ProducerStates
from lastword.wal.recovery import OpenedWal

logger = logging.getLogger(__name__)

RollReason = Literal[
    "segment.bytes",
    "segment.ms",
    "tiering.lag.ms",
    "max.compaction.lag.ms",
    "the clock was put back",
    "asked for",
]
CLOCK_JITTER_MS = 60_000
"""A clock that is put back by no more than this does not make a file roll."""


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
    if age_ms < -CLOCK_JITTER_MS:
        # Its records would wait for as long as the clock was put back.
        return "the clock was put back"
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
        self._clock = clock
        # Held by the thread that is writing, even while a roll releases the other lock: its batches stay contiguous.
        self._appending = threading.Lock()
        self._active = ActiveFile(
            folder, opened, syncs_before_showing=self.is_synced_by_append, on_shown=self._tell_shown
        )
        self._changed = self._active.changed
        self._checkpoint = opened.checkpoint
        self._epoch = opened.checkpoint.epochs[-1][0]
        self._producers = KnownProducers(folder, self._load_producers, producer_expiration_ms)

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._active.end_offset

    @property
    def visible_end(self) -> int:
        """The first offset that readers may not see yet."""
        return self._active.visible_offset

    @property
    def shown(self) -> Shown:
        """The end of the visible part, as one consistent value."""
        return self._active.shown

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
        return self._active.failed

    def active_producers(self) -> list[ActiveProducer]:
        """Return the idempotent producers that this partition knows."""
        with self._changed:
            return self._producers.states.active()

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
                self._active.check_writable()
            if start is not None and start != self.end_offset:
                raise OffsetOutOfRangeError(
                    f"records belong at offset {start} of {self._folder}, whose log end is {self.end_offset}"
                )
            try:
                end_offset = self.end_offset
                note(end_offset)
                for data in batches:
                    _, end_offset = self._stage(data, append_time_ms)
                return end_offset
            except BaseException as error:
                with self._changed:
                    if self.failed is None:
                        self._active.fail("append noted batches to", error)
                raise

    def refuse(self, why: str) -> None:
        """Take no appends until the partition is reopened."""
        with self._changed:
            self._active.failed = why
            logger.error("%s", why)

    def _stage(self, data: bytes | memoryview, append_time_ms: int | None) -> tuple[int, int]:
        header = batch.read_header(data)
        assert header is not None and header.last_offset_delta >= 0
        with self._changed:
            self._active.check_writable()
            if header.producer_id >= 0:
                self._producers.expect(self.end_offset)
            run = self._run()
            base_offset = self._put(run, header, bytearray(data), append_time_ms, None)
            self._write(run)
            return base_offset, self.end_offset

    def stage_produced(self, produced: Sequence[Produced]) -> list[Staged | InvalidRecordError]:
        """Write checked batches as clients sent them, modifying their bytes in place. Skip those already in the log.

        An idempotent producer's batch that does not follow its last one gets an error in place of a result.
        """
        results: list[Staged | InvalidRecordError] = []
        with self._appending, self._changed:
            self._active.check_writable()
            if any(each.header.producer_id >= 0 for each in produced):
                self._producers.expect(self.end_offset)
            run = self._run()
            for header, data, append_time_ms, max_timestamp_ms in produced:
                if header.producer_id >= 0:
                    try:
                        sent = self._producers.states.find_duplicate(header)
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
            run.end_offset, run.end_position = self.end_offset, self._active.end_position
        base_offset = run.end_offset
        batch.place(
            data,
            base_offset=base_offset,
            leader_epoch=self._epoch,
            append_time_ms=append_time_ms,
            max_timestamp_ms=max_timestamp_ms,
        )
        if run.end_position == 0:
            self._active.first_append_ms = now_ms
        run.batches.append(data)
        # By the offsets that it spans: a batch that keeps those of another log may have gaps.
        run.end_offset += header.last_offset_delta + 1
        run.end_position += len(data)
        if header.producer_id >= 0:
            # If the write fails, the partition must be reopened, and the producer state is read from the file.
            self._producers.states.appended(header, base_offset, now_ms)
        return base_offset

    def _write(self, run: _Run) -> None:
        """Write the batches of a run. Both locks are held."""
        if run.batches:
            self._active.write(run.batches, run.end_offset, run.end_position)
            run.batches = []

    def wait_durable(self, end_offset: int) -> None:
        """Wait until everything before `end_offset` may be acknowledged under this `wal.sync`."""
        if self.is_synced_by_append:
            self._active.sync_up_to(end_offset)

    def sync(self) -> None:
        """Make everything that has been appended durable."""
        self._active.sync_up_to(self.end_offset)

    @property
    def first_append_ms(self) -> int:
        """The time from which the active file's age counts."""
        return self._active.first_append_ms

    def roll(self) -> bool:
        """Close the active file and continue in a new one. Return False if it is empty."""
        with self._changed:
            self._active.wait_for_sync()
            self._active.check_writable()
            if self._active.end_position == 0:
                return False
            self._roll("asked for", self._clock.now_ms())
            return True

    def roll_if_due(self) -> bool:
        """Roll if the active file has been open for longer than the settings allow."""
        with self._changed:
            self._active.check_writable()
            return self._roll_if_due(0, self._clock.now_ms())

    def close(self) -> None:
        """Sync, note that nothing is left to recover, and close the files."""
        with self._changed:
            if self._active.is_closed:
                return
            self._active.wait_for_sync()
            try:
                if self._active.is_open and self.failed is None:
                    self._active.sync()
                    self._producers.save(self.end_offset, self._clock.now_ms())
                    self._active.mark_clean()
                    reached("wal.closed")
            except OSError as error:
                raise self._active.fail("close", error) from error
            finally:
                self._active.close()

    def _tell_shown(self) -> None:
        if self.on_shown is not None:
            self.on_shown()

    def _run(self) -> _Run:
        return _Run(self.end_offset, self._active.end_position)

    def _load_producers(self) -> ProducerStates:
        return producers.load(
            self._folder,
            checkpoints.left_files(self._folder, self._checkpoint),
            end_offset=self.end_offset,
            end_position=self._active.end_position,
        )

    def _roll_if_due(self, incoming_bytes: int, now_ms: int) -> bool:
        if self._reason_to_roll(self._active.end_position, incoming_bytes, now_ms) is None:
            return False
        self._active.wait_for_sync()
        self._active.check_writable()
        # Waiting released the lock, so another thread may have rolled the file meanwhile.
        reason = self._reason_to_roll(self._active.end_position, incoming_bytes, now_ms)
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
            first_append_ms=self._active.first_append_ms,
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
            self._active.fail("roll", error)
            raise

    def _go_to_next_file(self, reason: RollReason, now_ms: int) -> None:
        try:
            self._active.sync()
            reached("wal.roll.synced")
        except OSError as error:
            raise self._active.fail("sync", error) from error
        self._producers.save(self.end_offset, self._clock.now_ms())
        reached("wal.roll.producers_saved")
        old = self._checkpoint.active
        new = WalFile(seq=old.seq + 1, first_offset=self.end_offset, opened_ms=now_ms)
        try:
            fd = create_file(self._folder, new)
            reached("wal.roll.created")
        except OSError as error:
            # The active file is intact, and nothing names the new one: the next append tries again.
            raise WriteFailedError(
                f"Can't start a new WAL file {self._folder / new.name}: {error.strerror or error}. "
                f"Nothing was appended; free some space and try again."
            ) from error
        size_bytes = self._active.end_position
        files = (*self._checkpoint.files[:-1], old.rolled(size_bytes=size_bytes, now_ms=now_ms), new)
        if deleter := checkpoints.load_deleter(self._folder):
            files = checkpoints.without_deleted(files, deleter)
        try:
            self._save(files)
            reached("wal.roll.named")
        except OSError as error:
            os.close(fd)
            raise self._active.fail("roll", error) from error
        self._active.go_to(new, fd)
        logger.info(
            "rolled %s at offset %d, %d bytes: %s",
            self._folder / old.name,
            self.end_offset,
            size_bytes,
            reason,
        )

    def _save(self, files: tuple[WalFile, ...]) -> None:
        damage = tuple(each for each in self._checkpoint.damage if each.seq >= files[0].seq)
        saved = replace(self._checkpoint, files=files, damage=damage)
        checkpoints.save_writer(self._folder, saved)
        self._checkpoint = saved
