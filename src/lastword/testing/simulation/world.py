"""A simulated world: a machine, a server, its clients, an operator, faults, and the history.

1. Create the topic.
2. Run all scripts at once.
3. Stop injecting faults, wait until idle, and check that the log takes records, compacts and returns correct ones.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lastword.testing.history import History, Recorder
from lastword.testing.simulation.client import RefusedError
from lastword.testing.simulation.clients import Client, Numbers, Surroundings
from lastword.testing.simulation.faults import PlannedFaults
from lastword.testing.simulation.fibers import DeadlockError, EndlessError, Fiber, Lock, Scheduler
from lastword.testing.simulation.machine import Machine, Process
from lastword.testing.simulation.operating import Operator
from lastword.testing.simulation.plan import Act, Plan, Script
from lastword.testing.simulation.query import Queries
from lastword.testing.simulation.reader import Reader
from lastword.testing.simulation.server import Server

PATIENCE_S: Final = 300.0
"""How long the final checks may take."""
MAX_S: Final = 3_600.0
"""How long a simulation may take, in simulated time."""
TRACES: Final = bool(os.environ.get("LASTWORD_SIMULATION_TRACE"))
"""Whether steps and log messages are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a simulation."""

    history: History
    trace: str
    """A digest of all steps, equal for equal runs."""
    pairs: Counter[tuple[str, str]]
    """For each pair of steps, how often a job reached the second while another job was right after the first."""
    problems: tuple[str, ...]
    """Errors that the product should never raise, and work that never ends."""
    switches: int
    seconds: float
    """Simulated seconds."""


class Chance:
    """The strategy: it interrupts at random, and chooses fibers with equal probability."""

    def __init__(self, plan: Plan) -> None:
        self._random = random.Random(plan.schedule)
        self._switching = plan.switching

    def interrupts(self, fiber: Fiber, point: str) -> bool:
        # Locks are taken a hundred times as often as steps are reached.
        return self._random.random() < self._switching * (0.05 if point == "lock" else 1.0)

    def choose(self, ready: list[Fiber], point: str) -> Fiber:
        return ready[int(self._random.random() * len(ready))]


class World:
    """Carries out a plan."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._scheduler = Scheduler(Chance(plan))
        Lock.scheduler = self._scheduler
        self._machine = Machine(self._scheduler, plan.seed, folder)
        self._recorder = Recorder(clock=self._machine.clock, order=lambda: 0, refusals=(RefusedError,))
        self._random = random.Random(plan.seed ^ 0xACE)
        self._folder = folder / "machine" / "data"
        self._config = dict(plan.broker)
        if "catalog" in self._config:
            catalog = folder / "elsewhere" / "catalog.db"
            self._config["catalog"] = {"type": "sql", "uri": f"sqlite:///{catalog}"}
        self._server = Server(
            self._machine, self._recorder, self._folder, self._config, self._random, self._problem
        )
        self._faults = PlannedFaults(self._machine, self._server, self._random)
        self._around = Surroundings(
            machine=self._machine,
            recorder=self._recorder,
            numbers=Numbers(),
            oracle=self._reader("oracle"),
            partitions=plan.partitions,
            keys=tuple(f"k{number}" for number in range(plan.keys)),
            is_late=plan.is_late,
            chance=self._random,
        )
        self._queries = Queries(self._machine, self._reader("query"), self._problem, self._random)
        self._problems: list[str] = []
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._trace = hashlib.blake2b(digest_size=8)
        self._doing: dict[str, str] = {}

    def run(self) -> Result:
        """Run the plan from beginning to end."""
        started_s = self._scheduler.now_s
        threading.excepthook = lambda args: self._problem(f"a thread ended with {args.exc_value!r}")
        listener = _Listener(self._problem)
        logging.getLogger().addHandler(listener)
        self._machine.faults = self._faults
        self._machine.on_step = self._note
        self._scheduler.until_s = started_s + MAX_S
        try:
            self._scheduler.run(self._direct)
        except (DeadlockError, EndlessError) as error:
            self._problem(f"the simulation does not end: {self._doing}: {error!r}")
        finally:
            self._machine.close()
            Lock.scheduler = None
            logging.getLogger().removeHandler(listener)
        return Result(
            history=self._recorder.history(),
            trace=self._trace.hexdigest(),
            pairs=self._pairs,
            problems=tuple(dict.fromkeys(self._problems)),
            switches=self._scheduler.switches,
            seconds=self._scheduler.now_s - started_s,
        )

    def _direct(self) -> None:
        if self._plan.loses_power:
            self._machine.watch_power()
        self._scheduler.spawn(self._server.supervise, "supervisor", None)
        self._operator("setup").create_topic()
        left = len(self._plan.scripts)
        ended: list[Fiber] = []

        def follow(script: Script) -> None:
            nonlocal left
            self._follow(script)
            left -= 1
            self._scheduler.wake(ended)

        for script in self._plan.scripts:
            owner = self._machine.client("reader") if script.name == "reader" else None
            self._scheduler.spawn(lambda script=script: follow(script), script.name, owner)  # type: ignore[misc]
        while left:
            self._scheduler.wait(ended, float("inf"))
        self._queries.wait()
        self._faults.is_over = True
        self._finish()
        self._scheduler.end()

    def _follow(self, script: Script) -> None:
        do: Callable[[str, random.Random], None]
        match script.name.split()[0]:
            case "reader":
                do = self._reader(script.name).do
            case "operator":
                do = self._operator(script.name).do
            case _:
                do = Client(script.name, self._around).do
        for act in script.acts:
            self._scheduler.sleep(act.after_s)
            self._doing[script.name] = act.do
            if (accident := act.args.get("accident")) is not None:
                self._faults.do(Act(after_s=0.0, do=accident["do"], args=accident["args"]))
            if script.name in ("faults", "meeting"):
                self._faults.do(act)
            else:
                do(act.do, random.Random(act.args["n"]))
        self._doing.pop(script.name, None)

    def _finish(self) -> None:
        """Check that the server takes, compacts and returns records, without faults."""
        self._doing["last"] = "finish"
        until_s = self._scheduler.now_s + PATIENCE_S
        last = self._operator("last")
        while not last.produce(0, [last.record(self._around.keys[0])]):
            if self._scheduler.now_s > until_s:
                self._problem("the topic took no more records, even without faults")
                return
            if not last.exists():
                last.create_topic()
            self._scheduler.sleep(5)
        compacted = read = 0
        while (compacted < 2 or read < 2) and self._scheduler.now_s < until_s:
            compacted += last.compact(seal=True, force=True)
            if not last.exists():
                # A deletion whose client had timed out.
                last.create_topic()
            passes = [
                last.read_all(partition, max_bytes=1 << 20) for partition in range(self._plan.partitions)
            ]
            read += all(passes)
            self._scheduler.sleep(20)
        if compacted < 2:
            self._problem("compaction kept failing, even without faults")
        if read < 2:
            self._problem("the topic could not be read, even without faults")
        last.do("committed", self._random)
        reader = self._reader("last reader")
        reader.look()
        reader.state()
        reader.close()

    # -------------------------------------------------------------------------------------------- parts

    def _operator(self, name: str) -> Operator:
        return Operator(
            name,
            self._around,
            self._server,
            folder=self._folder,
            elsewhere=self._machine.folder / "elsewhere",
            config=self._config,
            topic=self._plan.topic,
            queries=self._queries,
            problem=self._problem,
        )

    def _reader(self, name: str) -> Reader:
        return Reader(
            name,
            self._recorder,
            self._folder,
            self._config,
            self._machine,
            self._plan.partitions,
            self._problem,
        )

    # -------------------------------------------------------------------------------------------- notes

    def _problem(self, what: str) -> None:
        self._problems.append(what)

    def _note(self, process: Process, name: str) -> None:
        if TRACES:
            sys.stderr.write(f"{self._scheduler.now_s:.3f} {process.name} {name} {self._doing}\n")
        self._trace.update(f"{process.name} {name} {self._scheduler.now_s:.3f};".encode())
        me = self._scheduler.current()
        for other in self._scheduler.between_steps():
            if other is not me:
                self._pairs[other.step, name] += 1


class _Listener(logging.Handler):
    """Reports errors that the product did not expect."""

    def __init__(self, problem: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING if TRACES else logging.ERROR)
        self._problem = problem

    def emit(self, record: logging.LogRecord) -> None:
        error: Any = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, OSError):
            self._problem(f"{record.getMessage()}: {error!r}")
        if TRACES:
            sys.stderr.write(f"LOG {record.getMessage()}\n")


def simulate(plan: Plan, folder: Path) -> Result:
    """Run a plan in a folder that is removed afterwards.

    Call it once per process: the threads of killed simulated processes stay parked.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return World(plan, folder).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
