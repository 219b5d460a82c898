"""The data folder, opened read-only beside the server, by one client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.real_history.clock import ServerClock

import lastword
from lastword.log.topic import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The positions of a partition in a snapshot of its topic's table."""

    topic_id: str
    log_start: int
    first_dirty: int
    sealed_end: int


class Embedded:
    """Keeps the log open, and opens it again after an error. One thread at a time uses it."""

    def __init__(self, folder: Path, clock: ServerClock) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._log: lastword.Log | None = None

    @contextmanager
    def topic(self, name: str) -> Iterator[Topic]:
        """Open a topic. After any error the log is opened anew."""
        with self._lock:
            try:
                if self._log is None:
                    self._log = lastword.open(self._folder, read_only=True, create=False, clock=self._clock)
                yield self._log.topic(name)
            except BaseException:
                self._close()
                raise

    def look(self, name: str, partition: int) -> Look:
        """Return the positions of a partition."""
        with self.topic(name) as topic:
            at = topic.table.snapshot().positions[partition]
            return Look(
                topic_id=topic.id.hex,
                log_start=at.log_start,
                first_dirty=at.first_dirty,
                sealed_end=at.sealed_end,
            )

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._log is not None:
            log, self._log = self._log, None
            log.close()
