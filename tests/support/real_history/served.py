"""`lastword serve`, which is started again when it ends, always at the same addresses. Kills and restarts are recorded.

The kill of the worker is no restart in the history: the broker keeps what clients have asked, and goes on with it.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import httpx
import psutil
from tests.support.real_history.place import PlaceAtHand
from tests.support.real_history.plan import Role
from tests.support.server import Server
from tests.support.waiting import PATIENCE_S, wait_until

from lastword.testing.history import Recorder, RestartKind

PORTS: Final = range(20_000, 32_000)
"""Below those that the kernel gives to clients, so that nobody takes one while the server is down."""
EXPECTED: Final = ("is in use", "Address already in use", "No space left on device")
"""Why a server may refuse to start while the processes of the last one are ending, or its disk is full."""


class Served:
    """The server of a run."""

    def __init__(self, place: PlaceAtHand, recorder: Recorder) -> None:
        self.counts: Counter[str] = Counter()
        self._place = place
        self._recorder = recorder
        self._lock = threading.Lock()
        self._logs: list[Server] = []
        self._kafka_port, self._admin_port = _free_ports(2)
        self._server = self._start()

    @property
    def kafka(self) -> str:
        return f"127.0.0.1:{self._kafka_port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._admin_port}"

    @property
    def log(self) -> str:
        """What all servers have logged."""
        return "".join(each.log for each in self._logs)

    def pid(self, role: Role) -> int | None:
        """Return the id of a process; None if it is not running just now."""
        if role == "supervisor":
            return self._server.process.pid
        try:
            every = psutil.Process(self._server.process.pid).children(recursive=True)
            return next((each.pid for each in every if each.name() == f"lastword-{role}"), None)
        except psutil.NoSuchProcess:
            return None

    # ---------------------------------------------------------------------------------------- misfortunes

    def kill(self, role: Role, times: int, pause_s: Callable[[], float]) -> None:
        """Kill a process, perhaps again as soon as it is back, and wait until it serves again."""
        with self._lock:
            if role == "worker":
                self._kill_child(role, times, pause_s)
                return
            with self._recorder.restart(RestartKind.KILL, process="misfortune") as restart:
                if role == "supervisor":
                    self._kill_supervisor()
                else:
                    self._kill_child(role, times, pause_s)
                    self.wait_until_it_listens()
                restart.ok()

    def restart(self) -> None:
        """Stop the server in order, and start it again."""
        with self._lock, self._recorder.restart(RestartKind.CLEAN, process="misfortune") as restart:
            self.counts["restart"] += 1
            self.stop()
            self._server = self._start()
            restart.ok()

    def pause(self, role: Role, for_s: float) -> None:
        """Stop a process for some seconds, as a debugger or an overloaded machine does."""
        pid = self.pid(role)
        if pid is None:
            return
        self.counts[f"pause {role}"] += 1
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(for_s)
            finally:
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """Stop the server in order."""
        code = self._server.stop()
        assert code == 0, f"the server ended with {code}: {self._server.log[-3000:]}"

    def move(self, place: PlaceAtHand) -> None:
        """Serve another folder at the same addresses. The server must be stopped."""
        self._place = place
        self._server = self._start()

    def end(self) -> None:
        """Stop the server, whatever state a failed run has left it in."""
        if self._server.process.poll() is None:
            self._server.process.send_signal(signal.SIGTERM)
        # Those that were killed have left their pipes open.
        for each in self._logs:
            each.wait()

    # -------------------------------------------------------------------------------------------- waiting

    def wait_until_it_listens(self) -> None:
        wait_until(self._listens, lambda: self.log[-3000:])

    def wait_until_ready(self) -> None:
        """Wait until the server has no problems."""
        told = ""

        def is_ready() -> bool:
            nonlocal told
            try:
                answer = httpx.get(f"{self.url}/readyz", timeout=30)
            except httpx.HTTPError as error:
                told = repr(error)
                return False
            told = answer.text
            return answer.status_code == httpx.codes.OK

        wait_until(is_ready, lambda: f"{told}\n{self.log[-3000:]}", patience_s=2 * PATIENCE_S)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._kafka_port), timeout=1).close()
        except OSError:
            return False
        return True

    # ------------------------------------------------------------------------------------------ processes

    def _start(self) -> Server:
        """Start a server, again and again while the processes of the last one are still ending."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                server = Server(
                    self._place.data,
                    settings="",
                    kafka=self.kafka,
                    admin=f"127.0.0.1:{self._admin_port}",
                    environment=self._place.environment,
                )
            except AssertionError as error:
                if not any(each in str(error) for each in EXPECTED) or time.monotonic() > deadline_s:
                    raise
                self.counts["start refused"] += 1
                continue
            self._logs.append(server)
            return server

    def _kill_child(self, role: Role, times: int, pause_s: Callable[[], float]) -> None:
        for _ in range(times):
            wait_until(lambda: self.pid(role) is not None, lambda: self.log[-3000:])
            pid = self.pid(role)
            assert pid is not None
            self.counts[f"kill {role}"] += 1
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: self.pid(role) not in (pid, None), lambda: self.log[-3000:])
            time.sleep(pause_s())

    def _kill_supervisor(self) -> None:
        self.counts["kill supervisor"] += 1
        last = self._server
        last.process.kill()
        # Its processes notice that on their leashes, and may take a moment to end.
        last.process.wait()
        self._server = self._start()


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        port = random.choice(PORTS)
        with suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            found.append(port)
    return found
