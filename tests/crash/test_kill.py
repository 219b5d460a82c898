"""A process that works on a log is killed, at every named step and at random points, again and again.

After each kill the log opens by itself, and everything that was acknowledged is there, once and in order.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.crash import Children, Known, Running, clean_up, leftovers, named_steps
from tests.support.crash_child import Job, broker_config

import lastword

SYNC_MODES = ("group", "interval:5", "none")

TORN = {"wal.recover.kept_aside", "wal.recover.cut"}
"""Reached by an open that finds the beginning of a batch at the end of a file."""

DAMAGED = {"wal.recover.created", "wal.repair.written", "wal.repair.replaced", "wal.repair.noted"}
"""Reached where acknowledged bytes are damaged: test_damage.py kills there."""

ELSEWHERE = (
    *("compact.", "seal.round.", "segment.marks.", "erase.", "staged.", "connect.", "sink.", "relocate."),
    *("register.", "go_back.", "backup.", "place.", "restore.", "own.", "takeover."),
)
"""Steps of work that changes what is to be found: it has kill tests of its own, and a model that knows its rules."""

WORK = sorted(step for step in set(named_steps()) - DAMAGED if not step.startswith(ELSEWHERE))


class Chain:
    """Kills in a row on one folder. What was acknowledged before any of them must outlive all of them."""

    def __init__(self, children: Children, folder: Path, seed: int) -> None:
        self.children = children
        self.folder = folder
        self.random = random.Random(seed)
        self.seed = seed
        self.known = Known()
        self.runs = 0
        self.kills = 0

    def job(self, **settings: object) -> Job:
        self.runs += 1
        sync = self.random.choice(SYNC_MODES)
        # With the others nobody waits for a sync, so it is a matter of luck whether there is one.
        if settings.get("kill_step") == "wal.synced":
            sync = "group"
        return Job(folder=str(self.folder), run=self.seed * 1000 + self.runs, sync=sync, **settings)

    def kill_at(self, step: str, count: int = 1) -> bool:
        """Whether the step was reached, and the process killed there."""
        running = self.children.start(self.job(kill_step=step, kill_count=count, tear=step in TORN, rounds=2))
        self.known.learn(running.finish())
        self.kills += running.killed_at is not None
        return running.killed_at == step

    def kill_after_lines(self, lines: int) -> None:
        running = self.children.start(self.job())
        while len(running.lines) < lines and running.read_until(lambda _: True):
            pass
        self._kill(running)

    def kill_after(self, duration_s: float) -> None:
        running = self.children.start(self.job(tear=self.random.random() < 0.2))
        running.read_for(duration_s)
        self._kill(running)

    def _kill(self, running: Running) -> None:
        running.kill()
        self.known.learn(running.finish())
        self.kills += not running.said("done")

    def check(self) -> None:
        with lastword.open(self.folder, config=broker_config(self.random.choice(SYNC_MODES))) as log:
            self.known.check(log)

    def check_nothing_is_left(self) -> None:
        self.check()
        clean_up(self.folder)
        with lastword.open(self.folder, config=broker_config()) as log:
            self.known.check(log)
        assert leftovers(self.folder) == []


@pytest.mark.parametrize("part", range(4))
def test_every_named_step(children: Children, folder: Path, part: int) -> None:
    chain = Chain(children, folder, seed=part + 1)
    for step in WORK[part::4]:
        assert chain.kill_at(step), f"{step} was not reached"
        # Every other time the next process finds what the last one left: it recovers, and is killed as well.
        if chain.random.random() < 0.5:
            chain.check()
    chain.check_nothing_is_left()
    assert chain.kills == len(WORK[part::4])
    assert chain.known.records > 0


@pytest.mark.parametrize("seed", [11, 12])
def test_random_points(children: Children, folder: Path, seed: int) -> None:
    chain = Chain(children, folder, seed)
    for _ in range(3):
        chain.kill_after_lines(chain.random.randrange(1, 120))
        chain.kill_after(chain.random.random() * 0.5)
        if chain.random.random() < 0.6:
            chain.check()
    chain.check_nothing_is_left()


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(20, 40))
def test_kills_in_a_row(children: Children, folder: Path, seed: int) -> None:
    """A dozen kills on one folder each, a third of them at named steps that come for the n-th time."""
    chain = Chain(children, folder, seed)
    while chain.kills < 12:
        match chain.random.randrange(3):
            case 0:
                chain.kill_at(chain.random.choice(WORK), chain.random.randrange(1, 4))
            case 1:
                chain.kill_after_lines(chain.random.randrange(1, 120))
            case _:
                chain.kill_after(chain.random.random())
        if chain.random.random() < 0.5:
            chain.check()
    chain.check_nothing_is_left()
