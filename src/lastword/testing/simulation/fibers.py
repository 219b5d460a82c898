"""Threads that a seed schedules: one runs at a time, and the scheduler decides every wait.

`install` replaces the primitives below `threading`, `queue` and `time`, before anything else is imported. From then on
a lock, a condition, an executor or an event loop of any library waits here, not in the kernel. This module imports only
modules that create no locks when they are loaded.

1. A fiber is a thread that holds the baton, or is parked. It passes the baton on when it waits, and at *points*: named
   steps, syncs, messages, locks.
2. The strategy chooses the next holder among all fibers that can run. Time stands still meanwhile.
3. If no fiber can run, the clock advances to the earliest deadline. So hours take no time.
4. A killed fiber never gets the baton again. Its locks are released, because they belonged to its process.

Nothing here depends on how fast anything is, so the same seed makes the same decisions.
"""

from __future__ import annotations

import _thread
import itertools
import sys
import time as real_time
from collections.abc import Callable
from typing import Any, Protocol

_NEVER = float("inf")
_MAX_TURNS = 200_000
"""How many turns fibers may take before the clock advances."""
_get_ident = _thread.get_ident
_new_gate = _thread.allocate_lock
_start_thread = _thread.start_new_thread


class Strategy(Protocol):
    """Decides which fiber runs."""

    def interrupts(self, fiber: Fiber, point: str) -> bool:
        """Return whether other fibers may run when a fiber has reached a point."""
        ...

    def choose(self, ready: list[Fiber], point: str) -> Fiber:
        """Choose one of several fibers that can run."""
        ...


class DeadlockError(Exception):
    """All fibers wait, and none has a deadline."""


class EndlessError(Exception):
    """The simulation does not end."""


class Fiber:
    """A thread of the simulation."""

    def __init__(self, name: str, number: int, owner: Any) -> None:
        self.name = name
        self.number = number
        self.owner = owner
        """The simulated process that it belongs to."""
        self.point = "start"
        """The last point that it reached."""
        self.step = ""
        """The last named step of a job that it reached."""
        self.step_s = -_NEVER
        self.is_held = False
        """Whether it is held at its step on purpose."""
        self.atomic = 0
        """While this is above zero, points don't pass the baton on."""
        self.is_dead = False
        self.was_woken = False
        self.deadline_s = _NEVER
        self.held: dict[Lock, None] = {}
        """Its locks, in the order in which it took them: a set would have the order of addresses."""
        self.gate = _new_gate()
        self.gate.acquire()

    def __repr__(self) -> str:
        return f"{self.name}#{self.number} at {self.point}"


class Scheduler:
    """Passes the baton."""

    def __init__(self, strategy: Strategy, start_s: float = 1_000.0) -> None:
        self.strategy = strategy
        self.now_s = start_s
        """Seconds of a clock that never jumps."""
        self.until_s = _NEVER
        """The time by which the simulation must have ended."""
        self.switches = 0
        self._turned = 0
        self._ready: list[Fiber] = []
        self._waiting: dict[Fiber, None] = {}
        self._by_ident: dict[int, Fiber] = {}
        self._numbers = 0
        self._main_gate = _new_gate()
        self._main_gate.acquire()
        self._error: BaseException | None = None
        self._is_over = False

    # -------------------------------------------------------------------------------------------- fibers

    def current(self) -> Fiber | None:
        """Return the calling fiber, or None if the thread is not a fiber, such as a thread of a C library."""
        return self._by_ident.get(_get_ident())

    def fibers(self) -> list[Fiber]:
        """Return the fibers that are alive."""
        return [*self._ready, *self._waiting]

    def between_steps(self) -> list[Fiber]:
        """Return the fibers that are probably in the middle of a job: no time has passed since their last step."""
        return [
            each
            for each in self.fibers()
            if each.step and (each.step_s == self.now_s or each.is_held or each not in self._waiting)
        ]

    def spawn(self, function: Callable[[], object], name: str, owner: Any) -> Fiber:
        """Start a fiber. It runs once it gets the baton."""
        self._numbers += 1
        fiber = Fiber(name, self._numbers, owner)
        self._ready.append(fiber)

        def run() -> None:
            fiber.gate.acquire()
            ident = _get_ident()
            _forget_thread(ident)
            self._by_ident[ident] = fiber
            try:
                function()
            except BaseException as error:  # noqa: BLE001 - raised where the simulation was started
                self.end(error)
            finally:
                self._forget(fiber)
                del self._by_ident[ident]
                self._hand_over(None, "end")

        _start_thread(run, ())
        return fiber

    def run(self, first: Callable[[], object]) -> None:
        """Run `first` as a fiber, with all fibers that it starts, until `end`. Raise the error that ended the simulation, if any."""
        self.spawn(first, "main", None)
        self._hand_over(None, "begin")
        self._main_gate.acquire()
        if self._error is not None:
            raise self._error

    def end(self, error: BaseException | None = None) -> None:
        """End the simulation. No fiber gets the baton again."""
        if not self._is_over:
            self._is_over = True
            self._error = error

    def kill(self, owner: Any) -> None:
        """Stop every fiber of a process where it stands. If the caller is one of them, this does not return."""
        for fiber in [each for each in self.fibers() if each.owner is owner]:
            self._forget(fiber)
            # Fibers of other processes can wait only for locks of libraries, which all simulated processes share.
            for lock in list(fiber.held):
                lock.release()
        me = self.current()
        if me is not None and me.is_dead:
            self._hand_over(None, "killed")
            me.gate.acquire()

    def _forget(self, fiber: Fiber) -> None:
        fiber.is_dead = True
        self._waiting.pop(fiber, None)
        if fiber in self._ready:
            self._ready.remove(fiber)

    # -------------------------------------------------------------------------------------------- waiting

    def point(self, name: str) -> None:
        """Let another fiber run here, or not."""
        me = self.current()
        if me is None:
            return
        me.point = name
        if me.atomic == 0 and self.strategy.interrupts(me, name):
            self._hand_over(me, name)

    def wait(self, queue: list[Fiber], deadline_s: float) -> bool:
        """Wait in a queue until the fiber is woken or a deadline passes. Return whether it was woken."""
        me = self.current()
        assert me is not None, "a thread that is not a fiber waits"
        me.was_woken, me.deadline_s = False, deadline_s
        if deadline_s > self.now_s:
            self._ready.remove(me)
            self._waiting[me] = None
        queue.append(me)
        self._hand_over(me, me.point)
        if not me.was_woken:
            queue.remove(me)
        return me.was_woken

    def wake(self, queue: list[Fiber], count: int = 1) -> None:
        """Wake fibers of a queue, in the order in which they began to wait."""
        while queue and count:
            fiber = queue.pop(0)
            if not fiber.is_dead:
                fiber.was_woken = True
                count -= 1
                if fiber in self._waiting:
                    del self._waiting[fiber]
                    self._ready.append(fiber)

    def sleep(self, duration_s: float) -> None:
        self.wait([], self.now_s + max(duration_s, 0.0))

    def _hand_over(self, me: Fiber | None, point: str) -> None:
        """Pass the baton to the next fiber, and wait to get it back."""
        following: Fiber | None = None
        if not self._is_over:
            try:
                following = self._next(point)
            except BaseException as error:  # noqa: BLE001 - raised where the simulation was started
                self.end(error)
        if following is None:
            self._main_gate.release()
        elif following is me:
            return
        else:
            self.switches += 1
            following.gate.release()
        if me is not None:
            me.gate.acquire()

    def _next(self, point: str) -> Fiber:
        self._turned += 1
        if self._turned > _MAX_TURNS or self.now_s > self.until_s:
            raise EndlessError(f"after {self.now_s:.3f} s: {'; '.join(map(repr, self.fibers()))}")
        if not self._ready:
            self._turned = 0
            self.now_s = max(self.now_s, min((each.deadline_s for each in self._waiting), default=_NEVER))
            if self.now_s == _NEVER:
                raise DeadlockError("; ".join(map(repr, self._waiting)))
            for each in [each for each in self._waiting if each.deadline_s <= self.now_s]:
                del self._waiting[each]
                self._ready.append(each)
        if len(self._ready) == 1:
            return self._ready[0]
        return self.strategy.choose(self._ready, point)


class Lock:
    """A lock for fibers. Other threads can take it only while it is free."""

    __slots__ = ("__weakref__", "_held_by", "_is_held", "_waiting")

    scheduler: Scheduler | None = None

    def __init__(self) -> None:
        self._is_held = False
        self._held_by: Fiber | None = None
        self._waiting: list[Fiber] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = Lock.scheduler
        me = None if scheduler is None else scheduler.current()
        if scheduler is None or me is None:
            assert not self._is_held or not blocking, "a thread that is not a fiber waits for a lock"
            if self._is_held:
                return False
        elif blocking:
            scheduler.point("lock")
            deadline_s = _NEVER if timeout < 0 else scheduler.now_s + timeout
            while self._is_held:
                if not scheduler.wait(self._waiting, deadline_s) and scheduler.now_s >= deadline_s:
                    return False
        elif self._is_held:
            return False
        self._is_held, self._held_by = True, me
        if me is not None:
            me.held[self] = None
        return True

    def release(self) -> None:
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        if self._held_by is not None:
            self._held_by.held.pop(self, None)
        self._is_held, self._held_by = False, None
        if self._waiting and Lock.scheduler is not None:
            Lock.scheduler.wake(self._waiting)

    def locked(self) -> bool:
        return self._is_held

    acquire_lock, release_lock, locked_lock = acquire, release, locked

    def _at_fork_reinit(self) -> None:
        self._is_held, self._held_by = False, None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _begin_thread(
    function: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> int:
    scheduler = Lock.scheduler
    if scheduler is None:
        return _start_thread(function, args, kwargs or {})
    me = scheduler.current()
    name = getattr(getattr(function, "__self__", None), "name", "thread")

    def run() -> None:
        try:
            function(*args, **(kwargs or {}))
        finally:
            sentinel = _sentinels.pop(_get_ident(), None)
            if sentinel is not None and sentinel.locked():
                sentinel.release()

    scheduler.spawn(run, name, None if me is None else me.owner)
    return 0


def _forget_thread(ident: int) -> None:
    """Remove what `threading` knows of an earlier thread with this ident.

    The kernel reuses the ident if that thread has ended by now, which depends on real time.
    """
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._active.pop(ident, None)


_sentinels: dict[int, Lock] = {}


def _new_sentinel() -> Lock:
    """Return the lock that `Thread.join` waits for. It is released when the calling thread ends."""
    sentinel = Lock()
    _sentinels[_get_ident()] = sentinel
    return sentinel


def _monotonic_s() -> float:
    return real_monotonic_s() if Lock.scheduler is None else Lock.scheduler.now_s


def _sleep(duration_s: Any) -> None:
    if Lock.scheduler is None or Lock.scheduler.current() is None:
        real_sleep(duration_s)
    else:
        Lock.scheduler.sleep(duration_s)


def _number(kind: Any) -> None:
    """Give objects of a class numbers as hashes, so that sets of them have the same order in each run."""
    begin = kind.__init__

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        self._simulated_number = next(_numbers)
        begin(self, *args, **kwargs)

    # Some objects, such as the main thread, are there already.
    kind._simulated_number = -1
    kind.__init__ = initialize
    kind.__hash__ = lambda self: self._simulated_number


_numbers = itertools.count()

real_monotonic_s = real_time.monotonic
real_sleep = real_time.sleep


def install() -> None:
    """Replace the primitives of threads and time. Call it before anything else, in its own process."""
    early = {
        "queue",
        "asyncio",
        "concurrent.futures",
        "lastword",
        "selectors",
        "sqlalchemy",
        "pyarrow",
    } & set(sys.modules)
    assert not early, f"loaded too early: {early}"
    real_time.monotonic = _monotonic_s
    real_time.perf_counter = _monotonic_s
    real_time.sleep = _sleep
    real_time.monotonic_ns = lambda: int(_monotonic_s() * 1e9)
    import threading

    threading._allocate_lock = threading.Lock = Lock  # type: ignore
    threading._CRLock = None  # type: ignore
    threading._start_new_thread = _begin_thread  # type: ignore
    threading._set_sentinel = _new_sentinel  # type: ignore
    threading._time = _monotonic_s  # type: ignore
    _number(threading.Thread)
    import queue

    queue.SimpleQueue = queue._PySimpleQueue  # type: ignore
    from concurrent.futures import Future

    _number(Future)
