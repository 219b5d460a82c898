"""Runs simulations. Each is a fork of this process, which has loaded everything and started nothing."""

from __future__ import annotations

import faulthandler
import os
import pickle
import selectors
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lastword.testing.history import Options, check
from lastword.testing.history.story import story
from lastword.testing.simulation.fibers import real_monotonic_s
from lastword.testing.simulation.mutations import MUTATIONS
from lastword.testing.simulation.plan import Plan
from lastword.testing.simulation.world import simulate

MAX_RUN_S: Final = 300.0
"""How much real time a simulation may take, on a busy machine. Waits outside the scheduler never end."""
SHARED_MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a simulation, as plain data."""

    seed: int
    trace: str = ""
    stories: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str, int], ...] = ()
    checked: int = 0
    operations: int = 0
    simulated_s: int = 0
    run_s: float = 0.0

    @property
    def is_good(self) -> bool:
        return not self.stories and not self.problems

    def has_failed_like(self, other: Outcome) -> bool:
        """Return whether it fails in a way in which another outcome fails."""
        return bool(set(self.rules) & set(other.rules)) or bool(self.problems and other.problems)


def outcome_of(plan: Plan, history_file: str | None = None) -> Outcome:
    """Simulate a plan in this process, and check its history."""
    started_s = real_monotonic_s()
    place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    # The simulation has its own process ids.
    pid = Path("/proc/self").readlink().name
    result = simulate(plan, place / f"lastword-simulation-{pid}")
    report = check(result.history, Options())
    if history_file is not None:
        Path(history_file).unlink(missing_ok=True)
        result.history.write(history_file)
    return Outcome(
        seed=plan.seed,
        trace=result.trace,
        stories=tuple(story(each) for each in report.anomalies),
        rules=tuple(each.rule for each in report.anomalies),
        problems=result.problems,
        pairs=tuple((*pair, count) for pair, count in sorted(result.pairs.items())),
        checked=sum(report.checked.values()),
        operations=len(result.history),
        simulated_s=round(result.seconds),
        run_s=round(real_monotonic_s() - started_s, 2),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A requested simulation."""

    plan: Plan
    mutation: str | None = None
    """The defect to put into the product."""
    history_file: str | None = None


class Forks:
    """Runs simulations concurrently, each in its own process."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, runs: Iterable[Run]) -> Iterator[tuple[Run, Outcome]]:
        """Run simulations. Yield each with its outcome, in the order in which they end."""
        waiting = iter(runs)
        running: dict[int, tuple[Run, int, bytearray]] = {}
        with selectors.DefaultSelector() as selector:
            while True:
                while len(running) < self._jobs and (run := next(waiting, None)) is not None:
                    fd, pid = _begin(run)
                    running[fd] = (run, pid, bytearray())
                    selector.register(fd, selectors.EVENT_READ)
                if not running:
                    return
                for key, _ in selector.select():
                    run, pid, data = running[key.fd]
                    received = os.read(key.fd, 1 << 20)
                    data += received
                    if not received:
                        selector.unregister(key.fd)
                        os.close(key.fd)
                        del running[key.fd]
                        os.waitpid(pid, 0)
                        yield run, _received(run.plan, bytes(data))

    def one(self, run: Run) -> Outcome:
        """Run one simulation."""
        ((_, outcome),) = self.run([run])
        return outcome


def _begin(run: Run) -> tuple[int, int]:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write_fd)
        return read_fd, pid
    os.close(read_fd)
    faulthandler.dump_traceback_later(MAX_RUN_S, exit=True)
    try:
        if run.mutation is not None:
            MUTATIONS[run.mutation].apply()
        outcome = outcome_of(run.plan, run.history_file)
    except BaseException:  # noqa: BLE001 - it is the outcome of this simulation
        outcome = Outcome(seed=run.plan.seed, problems=(traceback.format_exc(),))
    with os.fdopen(write_fd, "wb") as out:
        pickle.dump(outcome, out)
    os._exit(0)


def _received(plan: Plan, data: bytes) -> Outcome:
    if not data:
        return Outcome(seed=plan.seed, problems=("the process of the simulation hung or died",))
    outcome: Outcome = pickle.loads(data)
    return outcome
