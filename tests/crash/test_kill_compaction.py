"""Maintenance is killed, at every step of compaction and erasure and at random points, while others write and read.

After each kill the last word on every key is there, once; what was compacted away never comes back, and nobody who
reads notices anything.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.compaction_child import BROKER, PARTITIONS, TOPICS, Job
from tests.support.crash import Children, Running, clean_up, leftovers, named_steps, read_together
from tests.support.last_words import LastWords

import lastword

STEPS = [step for step in named_steps() if step.startswith(("compact.", "erase."))]
BESIDE = ["segment.file.closed", "commit.before", "commit.done", "expire.done", "collect.file.removed"]
"""Steps within those, which other work has too."""


@pytest.fixture(scope="module")
def server() -> Iterator[Children]:
    started = Children("tests.support.compaction_child")
    yield started
    started.close()


@pytest.fixture
def cast(server: Children) -> Iterator[Children]:
    yield server
    server.end_all()


class Chain:
    """Kills in a row on one folder, beside one reader who lives through all of them."""

    def __init__(self, cast: Children, folder: Path, seed: int) -> None:
        self.cast = cast
        self.folder = folder
        self.random = random.Random(seed)
        self.runs = iter(range(seed * 1000, (seed + 1) * 1000))
        self.words = LastWords()
        self.kills = self.writer_kills = self.compactions = 0
        with lastword.open(folder, config=BROKER) as log:
            for name, config in TOPICS.items():
                log.create_topic(name, partitions=PARTITIONS, config=config)
        self.reader_stop = folder.parent / "stop-reader"
        self.reader = self.start("read", self.reader_stop)

    def start(self, role: str, stop: Path, **settings: object) -> Running:
        return self.cast.start(
            Job(folder=str(self.folder), run=next(self.runs), role=role, stop_file=str(stop), **settings)  # type: ignore[arg-type]
        )

    def kill_at(self, step: str, count: int = 1) -> bool:
        """Whether the step was reached, and maintenance killed there."""
        [maintainer] = self.round(["maintain"], None, kill_step=step, kill_count=count)
        return maintainer.killed_at == step

    def kill_after(self, duration_s: float, roles: tuple[str, ...] = ("maintain",)) -> list[Running]:
        return self.round(list(roles), duration_s)

    def round(self, roles: list[str], duration_s: float | None, **settings: object) -> list[Running]:
        """Let a writer and others work until one of them kills itself, or for a while; kill, and check."""
        stop = self.folder.parent / f"stop-{next(self.runs)}"
        writer = self.start("write", stop)
        others = [self.start(role, stop, **settings) for role in roles]
        everybody = [*others, writer, self.reader]
        if duration_s is None:
            assert read_together(everybody), f"{settings} was not reached: {others[0].lines[-3:]}"
        else:
            assert read_together(everybody, lambda: writer.said("opened"))
            read_together(everybody, deadline_s=duration_s)
        for each in others:
            each.kill()
        if self.random.random() < 0.5:
            writer.kill()
            self.writer_kills += 1
        stop.touch()
        for each in [*others, writer]:
            assert read_together([each, self.reader])
            self.words.learn(each.finish())
        self.kills += len(others)
        self.compactions += sum(what == "compacted" for each in others for _, what, _ in each.lines)
        self.check()
        return others

    def check(self) -> None:
        assert not self.reader.ended, self.reader.finish()
        with lastword.open(self.folder, config=BROKER) as log:
            self.words.check(log)

    def finish(self) -> None:
        """What must hold when all is over: readers saw everything, the erased is nowhere, nothing is left behind."""
        self.reader_stop.touch()
        assert self.words.check_reader(self.reader.finish()) > 2 * self.words.checks
        with lastword.open(self.folder, config=BROKER) as log:
            log.finish_erasures()
            self.words.check(log)
        self.words.check_erased(self.folder)
        assert not list((self.folder / "erasing").glob("*"))
        clean_up(self.folder)
        with lastword.open(self.folder, config=BROKER) as log:
            self.words.check(log)
        self.words.check_erased(self.folder)
        assert leftovers(self.folder) == []
        assert self.words.appended > 0


@pytest.mark.parametrize("part", range(2))
def test_every_step(cast: Children, folder: Path, part: int) -> None:
    chain = Chain(cast, folder, seed=71 + part)
    for step in STEPS[part::2]:
        assert chain.kill_at(step, chain.random.randrange(1, 3)), f"{step} was not reached"
    chain.finish()
    assert chain.kills == len(STEPS[part::2])
    assert any(known.erased for known in chain.words.topics.values())


def test_random_points(cast: Children, folder: Path) -> None:
    chain = Chain(cast, folder, seed=81)
    for _ in range(4):
        chain.kill_after(0.2 + chain.random.random())
    chain.finish()
    assert chain.compactions > 0


def test_two_maintainers_take_turns(cast: Children, folder: Path) -> None:
    chain = Chain(cast, folder, seed=82)
    pairs = [chain.kill_after(1.0 + chain.random.random(), ("maintain", "maintain")) for _ in range(2)]
    chain.finish()
    assert any(each.said("locked") for pair in pairs for each in pair), "they never met"
    assert all(any(each.said("compacted") for each in pair) for pair in pairs)


def test_two_compactors_without_the_role(cast: Children, folder: Path) -> None:
    chain = Chain(cast, folder, seed=83)
    for _ in range(2):
        chain.kill_after(1.5 + chain.random.random(), ("keep", "compact", "compact"))
    chain.finish()
    assert chain.compactions > 0


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(100, 108))
def test_kills_in_a_row(cast: Children, folder: Path, seed: int) -> None:
    chain = Chain(cast, folder, seed)
    while chain.kills < 16:
        match chain.random.randrange(5):
            case 0 | 1:
                chain.kill_at(chain.random.choice(STEPS + BESIDE), chain.random.randrange(1, 6))
            case 2 | 3:
                chain.kill_after(chain.random.random() * 2)
            case _:
                roles = chain.random.choice([("maintain", "maintain"), ("keep", "compact", "compact")])
                chain.kill_after(chain.random.random() * 3, roles)
    chain.finish()
