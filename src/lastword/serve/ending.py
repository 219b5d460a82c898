"""Ends a process in bounded time, even in the middle of a job that can't be asked to stop.

Such a job waits for Spark, to start or to return results. Until it commits it has changed nothing, so the process may
end at any point. The job's files are collected later. Spark's JVM ends when the process that started it is gone.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")

STOP_S = 10.0
"""How long a job may take to end after a stop request, before the process ends without waiting for it."""
_POLL_S = 0.5
"""How long the main thread may block before it checks for signals."""


class StopRequest:
    """A request to stop, made by a signal handler or by a thread. The main thread waits for it.

    An Event won't do, for two reasons. A handler runs in the main thread, perhaps while that is entering `wait` and
    holds the event's lock: `set` then waits forever. SimpleQueue.put may interrupt itself and `get`. And a signal that
    arrives just before the main thread blocks, or in another thread, does not wake the main thread: the handler runs
    when the main thread runs again. So the main thread never blocks for long.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM request a stop while the block runs. Only the main thread gets signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def ask(self, *_: object) -> None:
        """Request a stop. Can be used as a signal handler or a callback."""
        self._asked.put(None)

    def wait(self) -> None:
        """Wait for a request."""
        while True:
            with suppress(queue.Empty):
                return self._asked.get(timeout=_POLL_S)


def in_thread(act: Callable[[], T], name: str) -> Future[T]:
    """Run a function in a thread that does not keep the process from ending."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(act())
        except BaseException as error:  # noqa: BLE001
            ended.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return ended
