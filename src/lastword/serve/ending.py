"""Ends a process in bounded time, also in the middle of a job that can't be asked to end.

Such a job is one that waits for Spark: to start, or to give results. Until it commits it has changed nothing, so the
process may go at any point; its files are collected later. Spark's JVM ends when the process that started it is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

STOP_S = 10.0
"""How long a job may take from a stop request to its end, before the process ends without it."""


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
