"""Syncs every partition's WAL at an interval, for `wal.sync=interval:<ms>`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from lastword.errors import ClosedError, WriteFailedError
from lastword.wal.writer import PartitionWriter

logger = logging.getLogger(__name__)


class Flusher:
    """A thread that syncs the writers that `writers` returns every `interval_ms`."""

    def __init__(self, writers: Callable[[], Iterable[PartitionWriter]], interval_ms: int) -> None:
        self._writers = writers
        self._interval_s = interval_ms / 1000
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lastword-wal-flusher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            for writer in self._writers():
                try:
                    writer.sync()
                except (WriteFailedError, ClosedError) as error:
                    # The writer has marked itself as failed: its next append gets the error.
                    logger.debug("not synced: %s", error)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
