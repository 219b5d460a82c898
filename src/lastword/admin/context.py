"""Shared state for the request handlers of the admin API, and the client of the worker's process.

Short requests are handled here, on the broker's open log, in a thread of the admin API. Heavy ones (sealing,
compaction, retention, verify, erase) are handled by the worker's process, which is asked through its channel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastword.errors import UnavailableError
from lastword.folder.channel import ReportProgress, ask_job
from lastword.log import Log

PING_S = 2.0
MOST_SEARCHES = 2
SEARCH_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class WorkerClient:
    """The worker's process, reached through its channel."""

    channel: Path

    def ask(
        self,
        do: str,
        arguments: dict[str, Any],
        progress: ReportProgress | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Any:
        return ask_job(self.channel, {"do": do, **arguments}, progress=progress, cancelled=cancelled)

    def job(self, do: str, **arguments: Any) -> Callable[[ReportProgress, Callable[[], bool]], Any]:
        """Return a job for `Jobs`."""
        return lambda progress, gone: self.ask(do, arguments, progress, gone)

    def metrics(self) -> str:
        return str(ask_job(self.channel, {"do": "metrics"}, timeout_s=PING_S))

    def ping(self) -> None:
        """Raise UnavailableError if the worker does not answer."""
        ask_job(self.channel, {"do": "ping"}, timeout_s=PING_S)


class Searches:
    """Lets few requests at a time search all keys of a topic: they share the broker's memory and processors."""

    def __init__(self) -> None:
        self._turns = threading.BoundedSemaphore(MOST_SEARCHES)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, but not for long: a waiting request occupies a thread."""
        if not self._turns.acquire(timeout=SEARCH_WAIT_S):
            raise UnavailableError(
                f"{MOST_SEARCHES} other requests are searching the keys of topics; try again in a moment."
            )
        try:
            yield
        finally:
            self._turns.release()


@dataclass(frozen=True, slots=True)
class AdminContext:
    """Shared state for the request handlers."""

    log: Log
    worker: WorkerClient
    searches: Searches = field(default_factory=Searches)
