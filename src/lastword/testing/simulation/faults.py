"""Faults of a simulation: kills, power cuts, failing syncs and requests, clock jumps, held processes."""

from __future__ import annotations

import errno
import random
from typing import Final

from lastword.testing.history import RestartKind
from lastword.testing.simulation.fibers import Fiber
from lastword.testing.simulation.machine import Machine, Process
from lastword.testing.simulation.plan import Act
from lastword.testing.simulation.server import ROLES, Role, Server

HOLD_S: Final = 50.0
"""The longest time that a process is held at a step."""


class PlannedFaults:
    """Injects the faults of a plan when the machine reaches their points."""

    def __init__(self, machine: Machine, server: Server, chance: random.Random) -> None:
        self.is_over = False
        """Whether fault injection has ended."""
        self._machine = machine
        self._scheduler = machine.scheduler
        self._server = server
        self._chance = chance
        self._kills: list[tuple[Role, str | None, int]] = []
        self._holds: list[tuple[str, str]] = []
        self._held: list[tuple[str, list[Fiber]]] = []
        self._failing_syncs: list[bool] = []
        """For each of the next syncs, whether it fails."""
        self._failing_requests = 0
        self._slow_requests = 0

    def do(self, act: Act) -> None:
        """Inject a fault now, or arm it for its point."""
        chance = random.Random(act.args["n"])
        match act.do:
            case "kill" if chance.random() < 0.4:
                self._server.kill(act.args["role"])
            case "kill":
                self._kills.append((act.args["role"], None, int(40 * chance.random() ** 2)))
            case "kill_at":
                self._kills.append((act.args["role"], act.args["step"], chance.randint(0, 2)))
            case "hold_at":
                self._holds.append((act.args["step"], act.args["until"]))
            case "fail_syncs":
                self._failing_syncs += [False] * act.args.get("after", 0) + [True] * chance.randint(1, 3)
            case "fail_store":
                self._failing_requests += chance.randint(1, 4)
            case "slow_store":
                self._slow_requests += chance.randint(1, 8)
            case "jump":
                self._machine.disturbances += 1
                self._machine.clock.jumped_ms += chance.choice([-3_600_000, -5_000, 5_000, 600_000])
            case "cut_power":
                self._cut_power()

    def _cut_power(self) -> None:
        if self._machine.power is None:
            return
        self._machine.disturbances += 1
        for role in ROLES:
            self._server.died(role, RestartKind.POWER_LOSS)
        self._machine.cut_power()
        self._server.changed()

    # ---------------------------------------------------------------------------------------- injection

    def at_step(self, process: Process, name: str) -> None:
        """Kill or hold a process that has reached a step, if that is armed."""
        if self.is_over:
            return
        for until, queue in self._held:
            if until == name:
                self._scheduler.wake(queue, 1_000)
        own = self._server.role_of(process)
        for number, (role, step, left) in enumerate(self._kills):
            if role == own and step in (name, None):
                if left:
                    self._kills[number] = (role, step, left - 1)
                    break
                del self._kills[number]
                self._server.kill(role)
                return
        for hold in [each for each in self._holds if each[0] == name][:1]:
            self._holds.remove(hold)
            held: tuple[str, list[Fiber]] = (hold[1], [])
            self._held.append(held)
            if (fiber := self._scheduler.current()) is not None:
                fiber.is_held = True
            self._scheduler.wait(held[1], self._scheduler.now_s + HOLD_S)
            if fiber is not None:
                fiber.is_held = False
            self._held.remove(held)

    def at_sync(self, process: Process) -> None:
        """Fail a sync, if that is armed."""
        if self.is_over or not self._server.role_of(process):
            return
        if self._failing_syncs and self._failing_syncs.pop(0):
            raise OSError(errno.EIO, "Input/output error")

    def at_request(self, process: Process, what: str) -> str:
        """Return the fault of a request to the object store, after a pause if it is slow."""
        if self.is_over or not self._server.role_of(process):
            return ""
        if self._slow_requests:
            self._slow_requests -= 1
            self._scheduler.sleep(self._chance.choice([0.1, 2.0, 40.0]))
        if self._failing_requests and self._chance.random() < 0.5:
            self._failing_requests -= 1
            return self._chance.choice(["fails", "fails after"])
        return ""
