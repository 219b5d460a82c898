"""The power is cut at any sync: whatever a disk may lose then, nothing that was acknowledged is lost."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.crash import Known, Line, clean_up, leftovers
from tests.support.crash_child import Child, Job, broker_config

import lastword
from lastword.testing.simulation.power import CutError, PowerCut


class Worker(Child):
    """The child of the kill tests, in this process: what it says goes to a model at once."""

    def __init__(self, folder: Path, run: int, known: Known, sync: str, power: PowerCut) -> None:
        super().__init__(Job(folder=str(folder), run=run, rounds=1, sync=sync), fd=-1)
        self.known = known
        self.power = power
        self.log: lastword.Log | None = None

    def say(self, mark: str, what: str, **details: object) -> None:
        if self.power.is_cut:
            raise CutError
        # As through JSON: the keys of a mapping are text.
        if "positions" in details:
            details["positions"] = {str(key): value for key, value in details["positions"].items()}
        self.known.learn([(mark, what, details)])

    def let_go(self) -> None:
        """Give back what a dead process no longer has. The image of the disk has been taken before."""
        if self.log is not None:
            with suppress(CutError, lastword.LastwordError):
                self.log.close()


def work_until_cut(folder: Path, run: int, known: Known, at: int, sync: str = "group") -> bool:
    """Whether the power was cut before the work was done."""
    with PowerCut(folder, at, seed=run) as power:
        worker = Worker(folder, run, known, sync, power)
        try:
            worker.work()
            return False
        except CutError:
            pass
        finally:
            power.cut()
            worker.let_go()
    power.restore()
    return True


class KnownToLast(Known):
    """Without a sync an acknowledgement promises nothing after a power cut; what was found afterwards stays."""

    def learn(self, lines: list[Line]) -> None:
        unsure = ("append", "positions", "position")
        super().learn([line for line in lines if line[1] not in unsure])


def lose_power(folder: Path, seed: int, cuts: int, sync: str = "group") -> int:
    chosen = random.Random(seed)
    known = Known() if sync == "group" else KnownToLast()
    done = 0
    for number in range(cuts):
        at = chosen.choice([chosen.randrange(1, 40), chosen.randrange(1, 400)])
        done += work_until_cut(folder, seed * 100 + number, known, at, sync)
        if chosen.random() < 0.7:
            with lastword.open(folder, config=broker_config()) as log:
                known.check(log)
    with lastword.open(folder, config=broker_config()) as log:
        known.check(log)
    clean_up(folder)
    with lastword.open(folder, config=broker_config()) as log:
        known.check(log)
    assert [path for path in leftovers(folder) if not path.endswith(".tmp")] == []
    return done


@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost(folder: Path, seed: int) -> None:
    assert lose_power(folder, seed, cuts=5) > 0


@pytest.mark.parametrize("sync", ["none", "interval:5"])
@pytest.mark.parametrize("seed", range(50, 52))
def test_without_syncs_the_log_opens_and_is_whole(folder: Path, seed: int, sync: str) -> None:
    assert lose_power(folder, seed, cuts=5, sync=sync) > 0


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_cuts(folder: Path, seed: int) -> None:
    lose_power(folder, seed, cuts=8)


def test_the_catalog_makes_its_commits_last(folder: Path) -> None:
    """SQLite's commit is the removal of its journal: it lasts only if the folder is synced after it.

    The disk that forgets can't show it, because SQLite's syncs don't go through lastword.disk.
    """
    with lastword.open(folder) as log, log._catalog._catalog.engine.connect() as connection:
        [(synchronous,)] = connection.exec_driver_sql("PRAGMA synchronous")
        [(journal,)] = connection.exec_driver_sql("PRAGMA journal_mode")
        assert (synchronous, journal) == (3, "delete")
