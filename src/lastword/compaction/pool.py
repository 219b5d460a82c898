"""Threads that share the work of one compaction.

Work is a task. A caller that needs the result of a task that no thread has begun runs it at once. So nothing
waits for a thread to become free, and without any threads the caller does everything.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")

READS_AHEAD = 4
"""The number of tasks that are handed out ahead of the one whose result is needed."""


class Task(Generic[T]):
    """Work that is done once, by the first thread that gets to it. Its result can be taken once."""

    def __init__(self, do: Callable[[], T]) -> None:
        self._do: Callable[[], T] | None = do
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work, unless another thread has begun it."""
        with self._lock:
            do, self._do = self._do, None
        if do is None:
            return
        try:
            self._result = do()
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            self._error = error
        self._done.set()

    def take(self) -> T:
        self.run()
        self._done.wait()
        if self._error is not None:
            raise self._error
        result, self._result = self._result, None
        return result  # type: ignore[return-value]


class Pool:
    """Threads, and their tasks. Leaving the block waits for all tasks that were put; the first error ends it."""

    def __init__(self, threads: int) -> None:
        self._tasks: deque[tuple[Task[Any], bool]] = deque()
        self._changed = threading.Condition()
        self._open = 0
        self._error: BaseException | None = None
        self._closed = False
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def has_threads(self) -> bool:
        return bool(self._threads)

    def put(self, do: Callable[[], None]) -> None:
        """Add work that must be done before the block is left. Without threads, do it at once."""
        if self._error is not None:
            raise self._error
        if not self._threads:
            do()
            return
        with self._changed:
            self._open += 1
            # Ahead of tasks that are only offered: the sooner it begins, the more it can share.
            self._tasks.appendleft((Task(do), True))
            self._changed.notify()

    def offer(self, task: Task[Any], *, soon: bool = False) -> None:
        """Offer a task whose result will be taken later: a thread may do it before; `soon`: ahead of all others."""
        if not self._threads:
            return
        with self._changed:
            if soon:
                self._tasks.appendleft((task, False))
            else:
                self._tasks.append((task, False))
            self._changed.notify()

    def in_order(self, tasks: Sequence[Task[T]]) -> Iterator[T]:
        """Yield the results of tasks in order while threads work on the next ones. They may be offered already."""
        offered = 1
        for index, task in enumerate(tasks):
            while offered < min(index + 1 + READS_AHEAD, len(tasks)):
                self.offer(tasks[offered], soon=True)
                offered += 1
            yield task.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            # This thread has nothing else to do, so it helps.
            while (next_up := self._next(wait=True)) is not None:
                self._do(*next_up)
        with self._changed:
            self._closed = True
            if kind is not None:
                self._tasks.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (next_up := self._next(wait=False)) is not None:
            self._do(*next_up)

    def _next(self, *, wait: bool) -> tuple[Task[Any], bool] | None:
        """Return the next task; None if there will be none. With `wait`, also None once all tasks put are done."""
        with self._changed:
            while True:
                if self._error is not None or self._closed or (wait and self._open == 0):
                    return None
                if self._tasks:
                    return self._tasks.popleft()
                self._changed.wait()

    def _do(self, task: Task[Any], counted: bool) -> None:
        task.run()
        if not counted:
            return
        try:
            task.take()
        except BaseException as error:  # noqa: BLE001 - raised again when all threads have ended
            self._error = self._error or error
        with self._changed:
            self._open -= 1
            self._changed.notify_all()
