"""The active file of a partition's WAL: it takes the batches, makes them durable, and shows them to readers.

Steps of a sync, which the appenders that wait for it share:
1. the first of them notes the end of everything written so far, and releases the lock;
2. it syncs the file. Meanwhile others append, or wait, but none rolls the file;
3. it takes the lock, moves the durable end to the noted one, and writes `wal.state`, which makes the batches visible;
4. it wakes the others. The first one whose batch the sync did not cover starts the next sync.

If the process is killed before step 3, no reader has seen the batches, and no append of them has been acknowledged.

After a failed write or sync it is not known what the file holds on disk, whatever reading it back returns. So the file
is marked as failed, and every waiting and later append is answered with WriteFailedError. Only reopening, which copies
the acknowledged part to a new file, makes the partition writable again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lastword.errors import ClosedError, WriteFailedError
from lastword.folder import disk
from lastword.folder.steps import reached
from lastword.wal.files import WalFile
from lastword.wal.recovery import OpenedWal
from lastword.wal.state import Phase, StateFile, WalState

logger = logging.getLogger(__name__)


class Shown(NamedTuple):
    """The end of the visible part: the active file, and the first offset and byte in it that readers may not see."""

    seq: int
    offset: int
    position: int


class ActiveFile:
    """The active file of one partition, whichever that is. Hold `changed` to call it, except for `sync_up_to`."""

    def __init__(
        self, folder: Path, opened: OpenedWal, *, syncs_before_showing: bool, on_shown: Callable[[], None]
    ) -> None:
        self.changed = threading.Condition()
        """The lock of the partition, which a wait for a sync releases. Notified when a sync or the writing ends."""
        self.file = opened.checkpoint.active
        self.first_append_ms = self.file.opened_ms
        """The time from which the file's age counts."""
        self.failed = opened.failed
        self.is_closed = False
        self.end_offset = self.visible_offset = self._durable_offset = opened.end_offset
        self.end_position = self._visible_position = self._durable_position = opened.end_position
        self.shown = Shown(self.file.seq, opened.end_offset, opened.end_position)
        self._folder = folder
        self._syncs_before_showing = syncs_before_showing
        self._on_shown = on_shown
        self._syncing = False
        # The first append opens the files, so that idle partitions cost no file descriptors.
        self._fd: int | None = None
        self._state_file: StateFile | None = None

    @property
    def is_open(self) -> bool:
        return self._fd is not None

    def check_writable(self) -> None:
        if self.is_closed:
            raise ClosedError(f"The WAL in {self._folder} has been closed.")
        if self.failed is not None:
            raise WriteFailedError(self.failed)

    def write(self, batches: Sequence[bytearray | memoryview], end_offset: int, end_position: int) -> None:
        """Write batches, after which the file ends there."""
        fd = self._opened()
        try:
            disk.write_pieces(fd, batches)
            reached("wal.written")
            self.end_offset, self.end_position = end_offset, end_position
        except OSError as error:
            raise self.fail("write to", error) from error
        except BaseException as error:
            # An interrupt may have come between the write and the update of the end.
            self.fail("write to", error)
            raise
        if not self._syncs_before_showing:
            self._show(self.end_offset, self.end_position)

    def sync_up_to(self, end_offset: int) -> None:
        """Make everything before `end_offset` durable, or wait for a sync that does. Don't hold the lock."""
        with self.changed:
            while True:
                if self._durable_offset >= end_offset:
                    return
                self.check_writable()
                if not self._syncing:
                    break
                self.changed.wait()
            fd, target_offset, target_position = self._opened(), self.end_offset, self.end_position
            self._syncing = True
        try:
            disk.sync_data(fd)
            reached("wal.synced")
        except BaseException as error:
            with self.changed:
                self._syncing = False
                if isinstance(error, OSError):
                    raise self.fail("sync", error) from error
                # Interrupted: one of the waiters takes over.
                self.changed.notify_all()
                raise
        with self.changed:
            self._syncing = False
            self._durable_offset, self._durable_position = target_offset, target_position
            self._show(max(self.visible_offset, target_offset), max(self._visible_position, target_position))

    def wait_for_sync(self) -> None:
        """Wait until no sync is under way, which releases the lock. None begins before the caller releases it."""
        while self._syncing:
            self.changed.wait()

    def sync(self) -> None:
        """Make everything that has been written durable, holding the lock. No sync may be under way."""
        if self._fd is not None and self._durable_offset < self.end_offset:
            disk.sync_data(self._fd)
            self._durable_offset, self._durable_position = self.end_offset, self.end_position
            self._show(self.end_offset, self.end_position)

    def go_to(self, file: WalFile, fd: int) -> None:
        """Continue in a new, empty file that the checkpoint names. Everything before it is durable."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = fd
        # Before the file: an interrupt in between must not leave positions of one file with the name of the next.
        self.end_position = self._visible_position = self._durable_position = 0
        self.file = file
        self.shown = Shown(file.seq, self.visible_offset, 0)
        self.first_append_ms = file.opened_ms
        try:
            if self._state_file is None:
                self._state_file = StateFile(self._folder)
            self._write_state()
        except OSError as error:
            raise self.fail("note the end of", error) from error

    def mark_clean(self) -> None:
        """Note that nothing is left to recover."""
        self._write_state(Phase.CLEAN, sync=True)

    def fail(self, action: str, error: BaseException) -> WriteFailedError:
        """Mark the file as failed, and return the error that every append gets from now on."""
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
        self.failed = (
            f"Can't {action} the WAL file {self._path}: {cause}. "
            f"The partition takes no more appends until it is reopened; acknowledged records are kept."
        )
        logger.error("%s", self.failed)
        try:
            if self._state_file is not None:
                self._write_state()
        except OSError:
            # The disk refuses even a block that is already allocated. Reopening then finds an unclean WAL
            # and syncs it again, which is all that can be done.
            logger.exception("could not mark %s as failed", self._folder)
        self.changed.notify_all()
        return WriteFailedError(self.failed)

    def close(self) -> None:
        """Close the files, without a sync."""
        self.is_closed = True
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._state_file is not None:
            self._state_file.close()
            self._state_file = None
        self.changed.notify_all()

    @property
    def _path(self) -> Path:
        return self._folder / self.file.name

    def _opened(self) -> int:
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                self._state_file = StateFile(self._folder)
                # If appends are acknowledged before a sync, a power failure may lose them without a trace in
                # the file. So it must be known for sure that the file was being written.
                self._write_state(sync=not self._syncs_before_showing)
            except OSError as error:
                raise self.fail("open", error) from error
        return self._fd

    def _show(self, offset: int, position: int) -> None:
        self.visible_offset, self._visible_position = offset, position
        try:
            self._write_state()
        except OSError as error:
            raise self.fail("note the end of", error) from error
        self.shown = Shown(self.file.seq, offset, position)
        self.changed.notify_all()
        self._on_shown()

    def _write_state(self, phase: Phase = Phase.OPEN, *, sync: bool = False) -> None:
        assert self._state_file is not None
        self._state_file.write(
            WalState(
                # A sync that was under way when a write failed must not clear the mark.
                phase=phase if self.failed is None else Phase.FAILED,
                seq=self.file.seq,
                visible_offset=self.visible_offset,
                visible_position=self._visible_position,
                durable_offset=self._durable_offset,
                durable_position=self._durable_position,
            ),
            sync=sync,
        )
