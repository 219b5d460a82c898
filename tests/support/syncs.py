"""Syncs of WAL data that a test counts, holds up or lets fail, and the threads that wait for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from lastword.wal.writer import PartitionWriter


class Syncs:
    """Counts the syncs of WAL data; a test may hold one up or let it fail."""

    def __init__(self) -> None:
        self.count = 0
        self.error: OSError | None = None
        self.entered = threading.Event()
        self.may_go = threading.Event()
        self.may_go.set()

    def __call__(self, fd: int) -> None:
        self.count += 1
        self.entered.set()
        assert self.may_go.wait(180)
        if self.error is not None:
            raise self.error
        os.fdatasync(fd)


def in_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def waiting(writer: PartitionWriter) -> int:
    return len(writer._changed._waiters)  # type: ignore[attr-defined]
