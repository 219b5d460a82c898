"""Queries of other engines: each plans with the files of a snapshot, and reads them as late as permitted."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from lastword.testing.simulation.fibers import Fiber
from lastword.testing.simulation.machine import Machine
from lastword.testing.simulation.reader import Reader

LONGEST_QUERY_MS: Final = 200_000


class Queries:
    """Runs queries concurrently with everything else."""

    def __init__(
        self, machine: Machine, reader: Reader, problem: Callable[[str], None], chance: random.Random
    ) -> None:
        self._machine = machine
        self._scheduler = machine.scheduler
        self._reader = reader
        self._problem = problem
        self._chance = chance
        self._running = 0
        self._ended: list[Fiber] = []

    def start(self) -> None:
        """Plan a query now. It reads its files shortly before they may be removed, or earlier."""
        before = self._machine.disturbances
        planned = self._reader.plan()
        if planned is None or planned.stay_ms > LONGEST_QUERY_MS:
            return
        self._running += 1
        duration_s = self._chance.choice([self._chance.random(), 0.99]) * planned.stay_ms / 1000

        def read() -> None:
            self._scheduler.sleep(duration_s)
            lost = [path for path in planned.paths if not self._machine.has_file(path)]
            # The deletion of the topic may have begun earlier.
            after = self._reader.plan() if lost else None
            is_same = after is not None and after.topic_id == planned.topic_id
            if is_same and self._machine.disturbances == before:
                self._problem(f"another engine lost {lost[0]} in the middle of a query")
            self._running -= 1
            self._scheduler.wake(self._ended)

        self._scheduler.spawn(read, "query", None)

    def wait(self) -> None:
        """Wait until all queries have ended."""
        while self._running:
            self._scheduler.wait(self._ended, float("inf"))
