"""Deadlines by name. Moving one is cheap, because heartbeats move theirs all the time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Timers(Generic[Name]):
    """Each name has at most one deadline.

    A deadline that moves to a later time keeps its old place in the heap. When it gets there, it is queued again.
    """

    def __init__(self) -> None:
        self._deadlines: dict[Name, int] = {}
        self._queued: dict[Name, int] = {}
        self._heap: list[tuple[int, int, Name]] = []
        self._numbers = itertools.count()

    def set(self, name: Name, deadline_ms: int) -> None:
        self._deadlines[name] = deadline_ms
        queued = self._queued.get(name)
        if queued is None or queued > deadline_ms:
            self._queue(name, deadline_ms)

    def cancel(self, name: Name) -> None:
        self._deadlines.pop(name, None)

    def next_ms(self) -> int | None:
        """Return the time to check again: never too late, sometimes too early."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[Name]:
        """Remove and yield the names whose deadline has expired, the earliest first."""
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, _, name = heapq.heappop(self._heap)
            if self._queued.get(name) != queued_ms:
                continue
            del self._queued[name]
            deadline_ms = self._deadlines.get(name)
            if deadline_ms is None:
                continue
            if deadline_ms > now_ms:
                self._queue(name, deadline_ms)
                continue
            del self._deadlines[name]
            yield name

    def __len__(self) -> int:
        return len(self._deadlines)

    def _queue(self, name: Name, deadline_ms: int) -> None:
        self._queued[name] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, next(self._numbers), name))
