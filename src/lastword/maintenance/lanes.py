"""The lanes of maintenance: which jobs of one process run concurrently, and which take turns.

The maintenance role belongs to a process (locks.py). Inside that process each job holds a lane, or several:

    CLEAN   compaction and erasure, which rewrite sealed segments
    TIDY    retention, the WAL deleter, expiry and collection, which remove data that is no longer needed
    SEAL    sealing, and the repair of a WAL: each topic has its own

So a long compaction blocks neither sealing nor retention. Jobs of different lanes meet only in the table, where
commits are fenced: the second one looks again. A seal that overtakes a compaction costs it one more attempt to commit,
because only the segments that it was planned with count. If retention removes one of these, that partition is planned
again. Leases protect files that are being written from TIDY, and sealed WAL files are below the sealed end, where a
seal begins. An erasure removes files without regard to leases, and the repair of a table goes back to an older state
of it, so both hold every lane of their topic. Other topics are sealed meanwhile.

Lanes are taken in the order of this list, to avoid deadlocks: a compaction may seal, but a seal may not compact.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import IntEnum

from lastword.folder.locks import RoleLock


class Lane(IntEnum):
    """The lanes, in the order in which they are taken."""

    CLEAN = 0
    TIDY = 1
    SEAL = 2


_Key = tuple[Lane, str]
"""A lane, and its topic if each topic has its own. Keys are taken in ascending order."""


class _Held(threading.local):
    """The lanes that this thread holds. A lane that was taken twice is listed twice."""

    def __init__(self) -> None:
        self.lanes: list[_Key] = []


class Lanes:
    """The lanes of an open log, and its maintenance role while a job needs it."""

    def __init__(self, acquire: Callable[[], RoleLock]) -> None:
        self._acquire = acquire
        self._locks: dict[_Key, threading.RLock] = {}
        self._held = _Held()
        self._role: RoleLock | None = None
        self._users = 0
        self._role_lock = threading.Lock()

    @contextmanager
    def hold(self, *lanes: Lane, topic: str = "") -> Iterator[None]:
        """Hold the maintenance role and these lanes, for SEAL the topic's.

        Raise LockedError if another process has the role.
        """
        assert topic or Lane.SEAL not in lanes
        with ExitStack() as stack:
            for lane in sorted(lanes):
                stack.enter_context(self._lane((lane, topic if lane is Lane.SEAL else "")))
            stack.enter_context(self._maintenance())
            yield

    @contextmanager
    def _lane(self, key: _Key) -> Iterator[None]:
        mine = self._held.lanes
        assert key in mine or all(key > other for other in mine), f"{key} is taken after {mine}"
        with self._role_lock:
            lock = self._locks.setdefault(key, threading.RLock())
        with lock:
            mine.append(key)
            try:
                yield
            finally:
                mine.remove(key)

    @contextmanager
    def _maintenance(self) -> Iterator[None]:
        with self._role_lock:
            if self._users == 0:
                self._role = self._acquire()
            self._users += 1
        try:
            yield
        finally:
            with self._role_lock:
                self._users -= 1
                if self._users == 0 and self._role is not None:
                    self._role.release()
                    self._role = None
