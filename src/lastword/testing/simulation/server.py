"""The server of the simulation, as `lastword serve` runs it: a broker process and a worker process over one data folder.

The classes are the product's own. Only their surroundings in a real process are missing: kernel sockets, signals, the
admin API. A process that ends is restarted after a moment, until the server is stopped.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from lastword.broker.server import Broker
from lastword.errors import LastwordError
from lastword.log import Log
from lastword.log import open as open_log
from lastword.testing.history import Recorder, RestartKind
from lastword.testing.history.recorder import Pending
from lastword.testing.simulation.client import BROKER
from lastword.testing.simulation.fibers import Fiber
from lastword.testing.simulation.machine import Machine, Process
from lastword.testing.simulation.sockets import Loop

Role = Literal["broker", "worker"]
ROLES: Final[tuple[Role, ...]] = ("broker", "worker")
RESTART_S: Final = (0.2, 5.0)


class Server:
    """The two processes, and the restarts in the history."""

    def __init__(
        self,
        machine: Machine,
        recorder: Recorder,
        folder: Path,
        config: Mapping[str, Any],
        chance: random.Random,
        problem: Callable[[str], None],
    ) -> None:
        self.logs: dict[Role, Log] = {}
        """The logs that the processes have opened."""
        self.is_serving = False
        """Whether the broker takes requests."""
        self.is_stopped = False
        """Whether restarts have ended."""
        self._machine = machine
        self._scheduler = machine.scheduler
        self._recorder = recorder
        self._folder = folder
        self._config = config
        self._chance = chance
        self._problem = problem
        self._processes: dict[Role, Process] = {}
        self._restarts: list[Pending] = []
        self._changed: list[Fiber] = []
        self._has_changed = False
        self._mains: dict[Role, Callable[[], None]] = {"broker": self._serve, "worker": self._work}

    def role_of(self, process: Process) -> Role | None:
        """Return the role of a process, or None if it is not, or no longer, part of the server."""
        return next((role for role, own in self._processes.items() if own is process), None)

    def supervise(self) -> None:
        """Start the processes, and restart each one that ends. This does not return."""
        while True:
            self._has_changed = False
            for role, main in self._mains.items():
                before = self._processes.get(role)
                if self.is_stopped or (before is not None and before.is_alive):
                    continue
                if before is not None:
                    self._scheduler.sleep(self._chance.uniform(*RESTART_S))
                if not self.is_stopped:
                    self._processes[role] = self._machine.start(role, main)
            # The other process may have ended while this one was started.
            if not self._has_changed:
                self._scheduler.wait(self._changed, float("inf"))

    def changed(self) -> None:
        """Make the supervisor check the processes."""
        self._has_changed = True
        self._scheduler.wake(self._changed, 1_000)

    def kill(self, role: Role) -> None:
        """Kill a process. If the caller is part of it, this does not return."""
        process = self._processes.get(role)
        if process is None or not process.is_alive:
            return
        self.died(role, RestartKind.KILL)
        self._machine.kill(process)

    def died(self, role: Role, kind: RestartKind) -> None:
        """Record that a process was killed, or is about to be."""
        self.logs.pop(role, None)
        if role == "broker":
            self.is_serving = False
            self._restarts.append(self._recorder.restart(kind, process="faults").__enter__())
        self.changed()

    def ask(self, role: Role, do: Callable[[Log], object]) -> object | None:
        """Make a process call `do` with its log, as for a request of an operator. Return None if that failed."""
        process, log = self._processes.get(role), self.logs.get(role)
        if process is None or log is None or not process.is_alive:
            return None
        results: list[object] = []
        queue: list[Fiber] = []

        def work() -> None:
            try:
                results.append(do(log) or True)
            except (LastwordError, OSError) as error:
                results.append(error)
            except Exception as error:  # noqa: BLE001
                self._problem(f"a request to the {role} ended with {error!r}")
                results.append(error)
            self._scheduler.wake(queue)

        self._scheduler.spawn(work, "request", process)
        while not results and process.is_alive:
            self._scheduler.wait(queue, self._scheduler.now_s + 1)
        return results[0] if results and not isinstance(results[0], Exception) else None

    # ------------------------------------------------------------------------------------------ processes

    def _serve(self) -> None:
        try:
            with (
                open_log(self._folder, config=self._config, clock=self._machine.clock) as log,
                asyncio.Runner(loop_factory=lambda: Loop(self._machine.network)) as runner,
            ):
                runner.run(self._serve_clients(log))
        except Exception as error:  # noqa: BLE001
            self._ended("broker", error)

    async def _serve_clients(self, log: Log) -> None:
        await Broker(log, host=BROKER[0], port=BROKER[1]).start()
        self.logs["broker"], self.is_serving = log, True
        self._machine.is_recovered = True
        while self._restarts:
            restart = self._restarts.pop()
            restart.ok()
            restart.__exit__(None, None, None)
        await asyncio.Event().wait()

    def _work(self) -> None:
        try:
            log = open_log(
                self._folder, config=self._config, clock=self._machine.clock, maintain_only=True, create=False
            )
            self.logs["worker"] = log
            log.worker().run()
        except Exception as error:  # noqa: BLE001
            self._scheduler.sleep(1)
            self._ended("worker", error)

    def _ended(self, role: Role, error: Exception) -> None:
        # A process that can't open the log is restarted, as the product's supervisor does.
        if not isinstance(error, LastwordError | OSError):
            self._problem(f"the {role} ended with {error!r}")
        self.logs.pop(role, None)
        self.changed()
