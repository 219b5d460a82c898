"""The simulated machine: killable processes, a jumping clock, a disk that loses unsynced bytes, a failing object store.

`Machine` installs itself below the product: in `disk`, `steps` and `processes` of `lastword.folder`, in the sockets of two
modules, and in pyiceberg's choice of a file system. Everything above is the product's own code.
"""

from __future__ import annotations

import fcntl
import os
import random
import sqlite3
import time
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pyarrow.fs as pafs

from lastword.broker import binding, connection
from lastword.folder import channel, disk, processes, steps
from lastword.log import worker
from lastword.segments.fileio import SyncedFileIO, bare_path
from lastword.testing.simulation.fibers import Scheduler
from lastword.testing.simulation.power import PowerCut
from lastword.testing.simulation.sockets import Network, SelectModule, Socket, SocketModule
from lastword.testing.simulation.store import Store

_FIRST_PID = 1_000_000
_REMOVING = ("erase.", "topic.deletion.")
"""The prefixes of steps of jobs that remove files at once."""
_start_ms = 1_800_000_000_000


class Faults(Protocol):
    """Decides which faults occur."""

    def at_step(self, process: Process, name: str) -> None:
        """Kill or hold a process that has reached a step, or do nothing."""
        ...

    def at_sync(self, process: Process) -> None:
        """Raise OSError if the sync fails."""
        ...

    def at_request(self, process: Process, what: str) -> str:
        """Return the fault of a request to the object store, or an empty string."""
        ...


class Process:
    """A process of the simulation."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.is_alive = True
        self.flocks: set[int] = set()
        self.databases: weakref.WeakSet[sqlite3.Connection] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"{self.name} (process {self.pid})"


class _Database(sqlite3.Connection):
    """A connection that supports weak references."""


class Clock:
    """The wall clock of the machine: the scheduler's time plus the jumps."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._start_s = scheduler.now_s
        self.jumped_ms = 0

    def now_ms(self) -> int:
        return _start_ms + self.jumped_ms + int((self._scheduler.now_s - self._start_s) * 1000)

    def sleep_ms(self, duration_ms: float) -> None:
        self._scheduler.sleep(duration_ms / 1000)


class Machine:
    """Processes, clock, disk and network of a simulation."""

    def __init__(self, scheduler: Scheduler, seed: int, folder: Path) -> None:
        self.scheduler = scheduler
        self.folder = folder
        (folder / "machine").mkdir(parents=True)
        (folder / "elsewhere").mkdir()
        self.random = random.Random(seed)
        self.clock = Clock(scheduler)
        self.network = Network(scheduler, self.current)
        self.faults: Faults | None = None
        self.lives = 0
        """How often the data folder was replaced by another one. Readers that have it open miss files."""
        self.disturbances = 0
        """How many events have permitted early removal of files, such as an erasure or a jump of the clock."""
        self.is_recovered = True
        """Whether the log was opened for writing since the last power cut. Until then its end may be unknown."""
        self.on_step: Callable[[Process, str], None] | None = None
        self.processes: list[Process] = []
        self.clients: list[Process] = []
        """Processes on other machines, which a power cut does not end."""
        self.power: PowerCut | None = None
        self._outside = Process("outside", _FIRST_PID)
        self._uuids = random.Random(seed ^ 0x5EED)
        self.store = Store(folder / "elsewhere" / "bucket", self._request, self.clock.now_ms)
        """The object store, which holds a warehouse at s3://."""
        self._install()

    # ------------------------------------------------------------------------------------------ processes

    def current(self) -> Process:
        """Return the calling process."""
        fiber = self.scheduler.current()
        owner = None if fiber is None else fiber.owner
        return owner if isinstance(owner, Process) else self._outside

    def client(self, name: str) -> Process:
        """Return a process for a client that opens the data folder itself."""
        self.clients.append(Process(name, _FIRST_PID + 500_000 + len(self.clients)))
        return self.clients[-1]

    def start(self, name: str, main: Callable[[], object]) -> Process:
        """Start a process."""
        process = Process(name, _FIRST_PID + 1 + len(self.processes))
        self.processes.append(process)

        def run() -> None:
            try:
                main()
            finally:
                process.is_alive = False

        self.scheduler.spawn(run, name, process)
        return process

    def kill(self, process: Process) -> None:
        """Kill a process. If the caller belongs to it, this does not return."""
        if not process.is_alive:
            return
        process.is_alive = False
        for fd in process.flocks:
            self._real[2](fd, fcntl.LOCK_UN)
        for database in process.databases:
            # The kernel would release its locks, and the next process to open the file would roll it back.
            with suppress(sqlite3.Error):
                database.close()
        self.network.killed(process)
        self.scheduler.kill(process)

    def cut_power(self) -> None:
        """Kill every process, and leave the disk in a state that a power cut may produce."""
        assert self.power is not None
        power, self.power = self.power, None
        power.cut()
        for process in list(self.processes):
            if process is not self.current():
                self.kill(process)
        power.__exit__()
        power.restore()
        self.lives += 1
        self.is_recovered = False
        self.watch_power()

    def has_file(self, location: str) -> bool:
        """Return whether a file of a table exists."""
        path = bare_path(location)
        return self.store.has(path) if location.startswith("s3:") else Path(path).exists()

    def watch_power(self) -> None:
        """Record every sync from now on."""
        self.power = PowerCut(self.folder / "machine", seed=self.random.getrandbits(32))
        self.power.__enter__()

    # ------------------------------------------------------------------------------------------- installing

    def _install(self) -> None:
        self._real = (disk.fdatasync, disk.fsync, fcntl.flock, os.close)
        Socket.network = self.network
        steps.install(self._reached)
        replaced: list[tuple[Any, str, Any]] = [
            (os, "getpid", lambda: self.current().pid),
            (os, "close", self._close),
            (uuid, "uuid4", lambda: uuid.UUID(int=self._uuids.getrandbits(128), version=4)),
            (time, "clock_gettime", lambda _: self.scheduler.now_s),
            (time, "time", lambda: self.clock.now_ms() / 1000),
            (time, "time_ns", lambda: self.clock.now_ms() * 1_000_000),
            (fcntl, "flock", self._flock),
            (sqlite3.dbapi2, "connect", self._connect),
            (processes, "start_ticks", self._start_ticks),
            (SyncedFileIO, "_initialize_fs", self._file_system(SyncedFileIO._initialize_fs)),
            (disk, "fdatasync", self._fdatasync),
            (disk, "fsync", self._fsync),
            (channel, "socket", SocketModule()),
            (channel, "select", SelectModule(self.scheduler)),
            (connection, "socket", SocketModule()),
            (binding, "socket", SocketModule()),
            # An idle worker wakes every second, to detect a jump of the clock. That would be most of the work here.
            (worker, "_LONGEST_WAIT_MS", 30_000),
        ]
        self._replaced = [(module, name, getattr(module, name)) for module, name, _ in replaced]
        for module, name, value in replaced:
            setattr(module, name, value)

    def _file_system(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(io: SyncedFileIO, scheme: str, netloc: str | None = None) -> Any:
            return pafs.PyFileSystem(self.store) if scheme == "s3" else real(io, scheme, netloc)

        return initialize

    def _request(self, what: str) -> str:
        self.scheduler.point(what)
        return "" if self.faults is None else self.faults.at_request(self.current(), what)

    def close(self) -> None:
        """Kill the remaining processes, and restore the real primitives."""
        for process in (*self.processes, *self.clients):
            self.kill(process)
        if self.power is not None:
            self.power.__exit__()
        steps.install(None)
        for module, name, value in self._replaced:
            setattr(module, name, value)

    def _connect(self, *args: Any, **kwargs: Any) -> sqlite3.Connection:
        made = _Database(*args, **kwargs)
        self.current().databases.add(made)
        return made

    def _start_ticks(self, pid: int) -> int | None:
        return next(
            (each.pid for each in (*self.processes, *self.clients) if each.pid == pid and each.is_alive), None
        )

    def _reached(self, name: str) -> None:
        process = self.current()
        self.disturbances += name.startswith(_REMOVING)
        if self.on_step is not None:
            self.on_step(process, name)
        if (fiber := self.scheduler.current()) is not None:
            fiber.step, fiber.step_s = name, self.scheduler.now_s
        if self.faults is not None:
            self.faults.at_step(process, name)
        self.scheduler.point(name)

    def _fdatasync(self, fd: int) -> None:
        self._synced(fd)
        self._real[0](fd)

    def _fsync(self, fd: int) -> None:
        self._synced(fd)
        self._real[1](fd)

    def _synced(self, fd: int) -> None:
        self.scheduler.point("sync")
        if self.faults is not None:
            self.faults.at_sync(self.current())
        now_ns = self.clock.now_ms() * 1_000_000
        # Ages of files are compared with the clock.
        os.utime(fd, ns=(now_ns, now_ns))

    def _flock(self, fd: int, operation: int) -> None:
        process = self.current()
        self._real[2](fd, operation)
        if process is not self._outside:
            if operation & fcntl.LOCK_UN:
                process.flocks.discard(fd)
            else:
                process.flocks.add(fd)

    def _close(self, fd: int) -> None:
        self.current().flocks.discard(fd)
        self._real[3](fd)
