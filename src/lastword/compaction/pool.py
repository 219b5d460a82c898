"""Threads that share the work of one compaction.

What is to be done is a task. Whoever needs a task's result and finds that nobody has begun it does it at once, so
nothing waits for a thread to become free, and without any threads everything still gets done, by the caller.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")

READS_AHEAD = 4
"""So many tasks are handed out before the one whose result is needed."""


class Task(Generic[T]):
    """Something to be done once, by whoever comes first. Its result can be taken once."""

    def __init__(self, do: Callable[[], T]) -> None:
        self._do: Callable[[], T] | None = do
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it, unless somebody has begun."""
        with self._lock:
            do, self._do = self._do, None
        if do is None:
            return
        try:
            self._result = do()
        except BaseException as error:  # noqa: BLE001 - raised where the result is wanted
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
    """Some threads, and the tasks for them. Leaving the block waits for all tasks; the first error ends it."""

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
        """Something that must have been done when the block is left. Without threads it is done at once."""
        if self._error is not None:
            raise self._error
        if not self._threads:
            do()
            return
        with self._changed:
            self._open += 1
            # Before what is only offered: the sooner it begins, the more it can share.
            self._tasks.appendleft((Task(do), True))
            self._changed.notify()

    def offer(self, task: Task[Any], *, soon: bool = False) -> None:
        """A task whose result somebody will take: it may be done before; `soon`: ahead of all others."""
        if not self._threads:
            return
        with self._changed:
            if soon:
                self._tasks.appendleft((task, False))
            else:
                self._tasks.append((task, False))
            self._changed.notify()

    def in_order(self, tasks: Sequence[Task[T]]) -> Iterator[T]:
        """The results of tasks in their order, while the next ones are worked on. Those offered before don't mind."""
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
            # The thread that is here has nothing else to do: it helps.
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
        """The next task; None when there will be none. `wait`: until all that must be done is done."""
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
