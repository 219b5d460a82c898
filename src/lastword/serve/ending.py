"""Ends a process in bounded time, also in the middle of a job that can't be asked to end.

Such a job is one that waits for Spark: to start, or to give results. Until it commits it has changed nothing, so the
process may go at any point; its files are collected later. Spark's JVM ends when the process that started it is gone.
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
"""How long a job may take from a stop request to its end, before the process ends without it."""
_LOOK_S = 0.5
"""How long the main thread may block before it looks whether a signal came."""


class StopRequest:
    """A request to end, made by a signal handler or by a thread, that the main thread waits for.

    An Event won't do, for two reasons. A handler runs in the main thread, perhaps while that is entering `wait` and holds
    the event's lock: `set` then waits for ever. SimpleQueue.put may interrupt itself and `get`. And a signal that
    arrives just before the main thread blocks, or in another thread, does not wake it: its handler runs when the main
    thread runs again. So it never blocks for long.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM ask while the block runs. Other threads than the main one get no signals."""
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
        """Ask; also as a signal handler or a callback."""
        self._asked.put(None)

    def wait(self) -> None:
        """Return when somebody has asked."""
        while True:
            with suppress(queue.Empty):
                return self._asked.get(timeout=_LOOK_S)


def in_thread(act: Callable[[], T], name: str) -> Future[T]:
    """Run something in a thread that does not keep the process from ending."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(act())
        except BaseException as error:  # noqa: BLE001
            ended.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return ended
