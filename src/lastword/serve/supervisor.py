"""The supervisor: starts the broker's and the worker's process (by way of template.py), and keeps both running.

Its steps: write `run/starting.json`, start the broker, wait until it listens, start the worker, write
`run/server.json` in place of the first file, announce that the server is ready. A process that ends by itself is
counted, logged, and restarted after a pause. The pause doubles while the process keeps ending. After a process has run
for longer than its last pause, the pause is the shortest again. An error that keeps a process from starting the first
time, such as a port or a data folder in use, ends the server with that error.

SIGTERM and SIGINT stop both in order. A second signal kills them. If the supervisor itself is killed, both notice and
end. The supervisor opens no part of the log and is never in the path of a record.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lastword.clock import Clock
from lastword.errors import LockedError, UnavailableError
from lastword.folder import running
from lastword.folder.paths import FORMAT_FILE, RUN_FOLDER
from lastword.folder.problems import from_problem
from lastword.folder.running import ChildProcess, RunningServer
from lastword.serve.child import ServeOptions
from lastword.serve.forked import Forked, Nursery, show_ending

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
STOP_S = 30.0
"""How long a process may take to stop before it is killed. A kill at any point loses no acknowledged record."""
KILLED_S = 5.0
START_S = 30.0
"""The interval of log messages about a process that is still starting. There is no time limit: recovery of a large WAL
takes long, and an aborted recovery would start over.
"""


@dataclass(slots=True)
class _Child:
    """A child process as the supervisor knows it."""

    name: str
    state: ChildProcess = field(default_factory=ChildProcess)
    process: Forked | None = None
    leash: asyncio.StreamWriter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The announcement that the server is ready."""

    server: RunningServer
    pids: dict[str, int]


class Supervisor:
    """One run of `lastword serve`."""

    def __init__(self, options: ServeOptions, clock: Clock, *, ready: Callable[[Started], None]) -> None:
        # A socket's path is limited to about 100 characters, so it can't be in the data folder.
        self._folder = tempfile.mkdtemp(prefix="lastword-")
        self._options = replace(options, channel=str(Path(self._folder) / "worker.sock"))
        self._clock = clock
        self._data = Path(options.data)
        self._say_ready = ready
        self._stop = asyncio.Event()
        self._signals = 0
        self._last_signal = signal.SIGTERM
        self._made_folder = False
        self._nursery = Nursery()
        self._broker = _Child("broker")
        self._worker = _Child("worker")
        self._server: RunningServer | None = None

    async def run(self) -> int:
        """Run until stopped, and return the exit code. Raise LastwordError if the server could not be started."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        try:
            if (other := running.load(self._data)) is not None:
                raise LockedError(
                    f"{self._data} is in use: process {other.pid} on {other.host} (`lastword serve`) is its server, "
                    f"with Kafka at {other.kafka} and the admin API at {other.admin}."
                )
            if (starting := running.load_starting(self._data)) is not None:
                raise LockedError(
                    f"{self._data} is in use: process {starting.pid} on {starting.host} (`lastword serve`) is being "
                    f"started as its server; it waits for {starting.waits_for}."
                )
            return await self._run()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _run(self) -> int:
        keepers: list[asyncio.Task[None]] = []
        began_ms = self._clock.now_ms()
        try:
            self._note_start(began_ms, "the broker, which recovers the write-ahead logs")
            addresses = await self._start(self._broker)
            if addresses is not None:
                self._note_start(began_ms, "the worker")
                self._take_addresses(addresses)
                keepers.append(asyncio.create_task(self._keep(self._broker)))
                if await self._start(self._worker) is not None:
                    keepers.append(asyncio.create_task(self._keep(self._worker)))
                    self._save()
                    self._announce()
            await self._stop.wait()
        finally:
            self._stop.set()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await self._end()
            running.remove(self._data, os.getpid())
            if self._made_folder:
                # Unless there is a log in it now.
                with suppress(OSError):
                    self._data.rmdir()
        return 128 + self._last_signal if self._signals > 1 else 0

    # ---------------------------------------------------------------------------------------- children

    async def _start(self, child: _Child) -> dict[str, Any] | None:
        """Start a process and wait for its first message, or raise its error. None if the server is being stopped."""
        ours, theirs = socket.socketpair()
        with theirs:
            forking = self._nursery.fork(child.name, asdict(self._options), theirs)
            try:
                process = await self._unless_stopped(forking)
            except BaseException:
                ours.close()
                raise
        if process is None:
            ours.close()
            return None
        child.process = process
        reader, child.leash = await asyncio.open_connection(sock=ours)
        said = await self._unless_stopped(_first_word(child.name, child.process.pid, reader))
        if said is None:
            return None
        message = json.loads(said) if said else {}
        if "ready" in message:
            child.state = replace(child.state, pid=child.process.pid, since_ms=self._clock.now_ms())
            details: dict[str, Any] = message["ready"]
            return details
        code = await child.process.wait()
        if "failed" in message:
            raise from_problem(message["failed"])
        raise UnavailableError(
            f"The {child.name}'s process ended before it was ready: {show_ending(code)}. Its log, above, may say why."
        )

    async def _keep(self, child: _Child) -> None:
        """Restart a process whenever it ends by itself."""
        pause_s = 0.0
        while True:
            assert child.process is not None
            began_ms = self._clock.now_ms()
            code = await child.process.wait()
            if self._stop.is_set():
                return
            ran_s, ending = (self._clock.now_ms() - began_ms) / 1000, show_ending(code)
            while True:
                pause_s = next_pause_s(pause_s, ran_s)
                child.state = ChildProcess(restarts=child.state.restarts + 1, last_end=ending)
                logger.error(
                    "the %s ended by itself (%s); restart %d in %.1f s",
                    child.name,
                    ending,
                    child.state.restarts,
                    pause_s,
                )
                self._save()
                if await self._unless_stopped(asyncio.sleep(pause_s, "go on")) is None:
                    return
                try:
                    if await self._start(child) is None:
                        return
                except Exception as error:  # noqa: BLE001
                    _send(child, signal.SIGKILL)
                    ran_s, ending = 0.0, f"could not start: {error or type(error).__name__}"
                    continue
                break
            logger.info("the %s has been restarted as process %d", child.name, child.process.pid)
            self._save()

    async def _unless_stopped(self, waiting: Any) -> Any:
        """Return the result of an awaitable, or None if a stop comes first."""
        waiter, stopper = asyncio.ensure_future(waiting), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([waiter, stopper], return_when=asyncio.FIRST_COMPLETED)
            return waiter.result() if waiter.done() else None
        finally:
            for each in (waiter, stopper):
                each.cancel()

    async def _end(self) -> None:
        """Stop both processes: in order, then by force."""
        for child in (self._worker, self._broker):
            _send(child, signal.SIGTERM if self._signals < 2 else signal.SIGKILL)
        for child in (self._worker, self._broker):
            if child.process is not None:
                await self._see_end(child, child.process)
            if child.leash is not None:
                child.leash.close()
        await self._nursery.close()

    async def _see_end(self, child: _Child, process: Forked) -> None:
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            logger.warning("the %s has not stopped within %d s; killing it", child.name, STOP_S)
            process.send_signal(signal.SIGKILL)
            # On a timeout its end is no longer reported, and the nursery kills it.
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), KILLED_S)

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        self._last_signal = number
        if self._signals == 1:
            logger.info("stopping on %s; a second signal kills at once", signal.Signals(number).name)
            self._stop.set()
            return
        for child in (self._worker, self._broker):
            _send(child, signal.SIGKILL)

    # ----------------------------------------------------------------------------------------- reporting

    def _take_addresses(self, addresses: dict[str, Any]) -> None:
        """Note the actual ports: a restarted broker must listen on the same ones."""
        kafka, admin = addresses["kafka"], addresses["admin"]
        self._options = replace(self._options, kafka_port=kafka[1], admin_port=admin[1], restarted=True)
        self._server = running.this_process(
            since_ms=self._clock.now_ms(),
            kafka=show_address(*kafka),
            admin=show_address(*admin),
            token_file=self._options.token_file,
        )

    def _note_start(self, since_ms: int, waits_for: str) -> None:
        """Note in the data folder what the start waits for. Don't touch a folder that can't hold a log."""
        try:
            if not (self._data / FORMAT_FILE).exists() and running.strangers(self._data):
                return
            self._made_folder = self._made_folder or not self._data.exists()
            running.save(self._data, running.this_process_starting(since_ms=since_ms, waits_for=waits_for))
        except OSError as error:
            logger.warning("could not write %s: %s", self._data / RUN_FOLDER, error)

    def _save(self) -> None:
        if self._server is None:
            return
        states = {child.name: child.state for child in (self._broker, self._worker)}
        self._server = replace(self._server, children=states)
        try:
            running.save(self._data, self._server)
        except OSError as error:
            logger.warning("could not write %s: %s", self._data / RUN_FOLDER, error)

    def _announce(self) -> None:
        assert self._server is not None
        pids = {child.name: child.state.pid or 0 for child in (self._broker, self._worker)}
        self._say_ready(Started(server=self._server, pids=pids))


async def _first_word(name: str, pid: int, reader: asyncio.StreamReader) -> bytes:
    """Return the first message of a process, empty if it ends before sending one."""
    saying = asyncio.ensure_future(reader.readline())
    waited_s = 0.0
    try:
        while not (await asyncio.wait([saying], timeout=START_S))[0]:
            waited_s += START_S
            logger.warning(
                "the %s (process %d) has been starting for %.0f s; a large WAL takes long to recover",
                name,
                pid,
                waited_s,
            )
        return await saying
    finally:
        saying.cancel()


def next_pause_s(paused_s: float, ran_s: float) -> float:
    """Return the pause before a restart: the shortest, unless the process ran no longer than the last pause."""
    return FIRST_PAUSE_S if ran_s > paused_s else min(max(FIRST_PAUSE_S, paused_s * 2), LONGEST_PAUSE_S)


def show_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _send(child: _Child, number: signal.Signals) -> None:
    if child.process is not None:
        child.process.send_signal(number)
