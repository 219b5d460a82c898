"""Maintenance is killed, at every step of compaction and erasure and at random points, while others write and read.

After each kill the last word on every key is there, once; what was compacted away never comes back, and nobody who
reads notices anything.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from tests.support.compaction_child import BIG_TOPIC, BROKER, PARTITIONS, TOPICS, Job
from tests.support.crash import Children, Running, clean_up, leftovers, named_steps, read_together
from tests.support.last_words import LastWords

import lastword
from lastword.clock import SystemClock
from lastword.compaction.engine import InlineEngine, Result
from lastword.compaction.engine import Job as EngineJob
from lastword.compaction.job import CompactionReport, Compactor

STEPS = [step for step in named_steps() if step.startswith(("compact.", "erase."))]
BESIDE = ["segment.file.closed", "commit.before", "commit.done", "expire.done", "collect.file.removed"]
"""Steps within those, which other work has too."""


@pytest.fixture(scope="module")
def server() -> Iterator[Children]:
    started = Children("tests.support.compaction_child")
    yield started
    started.close()


@pytest.fixture
def cast(server: Children, folder: Path) -> Iterator[Children]:
    """Children who end with the test, before their folder goes."""
    assert not folder.exists()
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
        self.kills = 0
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

    def kill_after(
        self,
        duration_s: float,
        roles: tuple[str, ...] = ("maintain",),
        until: Callable[[list[Running]], bool] = lambda _: True,
    ) -> list[Running]:
        """Kill a while after `until` holds."""
        return self.round(list(roles), duration_s, until)

    def round(
        self,
        roles: list[str],
        duration_s: float | None,
        until: Callable[[list[Running]], bool] = lambda _: True,
        **settings: object,
    ) -> list[Running]:
        """Let a writer and others work until one of them kills itself, or for a while; kill, and check."""
        stop = self.folder.parent / f"stop-{next(self.runs)}"
        writer = self.start("write", stop)
        others = [self.start(role, stop, **settings) for role in roles]
        everybody = [*others, writer, self.reader]
        if duration_s is None:
            assert read_together(everybody), f"{settings} was not reached: {others[0].lines[-3:]}"
        else:
            assert read_together(everybody, lambda: writer.said("opened") and until(others)), "not in time"
            read_together(everybody, deadline_s=duration_s)
        for each in others:
            each.kill()
        if self.random.random() < 0.5:
            writer.kill()
        stop.touch()
        for each in [*others, writer]:
            assert read_together([each, self.reader])
            self.words.learn(each.finish())
        self.kills += len(others)
        self.check()
        return others

    def check(self) -> None:
        assert not self.reader.ended, self.reader.finish()
        with lastword.open(self.folder, config=BROKER) as log:
            self.words.check(log)

    def finish(self) -> None:
        """What must hold when all is over: readers saw everything, the erased is nowhere, nothing is left behind."""
        self.reader_stop.touch()
        assert self.words.check_reader(self.reader.finish()) > self.words.checks
        with lastword.open(self.folder, config=BROKER) as log:
            # As one leaves it who is killed while the intent is written.
            (self.folder / "erasing").mkdir(exist_ok=True)
            (self.folder / "erasing" / "any.json.tmp").touch()
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
    for _ in range(2):
        chain.kill_after(chain.random.random())
        chain.kill_after(chain.random.random(), until=lambda others: _has_compacted(others[0]))
    chain.finish()


def test_two_maintainers_take_turns(cast: Children, folder: Path) -> None:
    chain = Chain(cast, folder, seed=82)
    for _ in range(2):
        chain.kill_after(
            chain.random.random(),
            ("maintain", "maintain"),
            until=lambda pair: all(each.said("compacted") and each.said("locked") for each in pair),
        )
    chain.finish()


def test_two_compactors_without_the_role(cast: Children, folder: Path) -> None:
    chain = Chain(cast, folder, seed=83)
    for _ in range(2):
        chain.kill_after(
            chain.random.random(),
            ("keep", "compact", "compact"),
            until=lambda others: all(_has_compacted(each) for each in others[1:]),
        )
    chain.finish()


def _has_compacted(running: Running) -> bool:
    return any(what == "compacted" and details["partitions"] for _, what, details in running.lines)


class MeetingEngine(InlineEngine):
    """When it has done its first jobs, and before anybody can commit them, it lets something else happen."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile: Callable[[], object] | None = meanwhile

    def run(self, jobs: Sequence[EngineJob]) -> list[Result]:
        results = super().run(jobs)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return results


def test_a_compactor_that_is_overtaken_plans_again(folder: Path) -> None:
    """Two on two connections, planned on the same snapshot. The slower one must not bring back what the other took."""
    with lastword.open(folder, config=BROKER) as log:
        topic = log.create_topic("words", partitions=2, config=TOPICS["words"])
        for number in range(400):
            topic.append(f"key-{number % 40}", None if number % 7 == 0 else str(number))
            if number % 100 == 99:
                topic.seal()
        expected = topic.state()
        with (
            lastword.open(folder, config=BROKER, maintain_only=True) as first,
            lastword.open(folder, config=BROKER, maintain_only=True) as second,
        ):
            faster = compact_of(second, InlineEngine())
            reports = []

            def overtake() -> None:
                reports.append(faster())
                # And there is something new to do, so that planning again has a result.
                for number in range(400, 440):
                    topic.append(f"key-{number % 40}", str(number))
                topic.seal()

            reports.append(compact_of(first, MeetingEngine(overtake))())
        for report in reports:
            assert [each.problem for each in report.partitions] == [None, None]
        # What the faster one had left, and not what the slower one had found at first.
        assert sum(each.records_before for each in reports[1].partitions) == 40 + 40
        assert [each.offset for each in topic.read(partition=0)] == sorted(
            {each.offset for each in topic.read(partition=0)}
        )
        assert sorted((each.key, each.value) for each in topic.read()) == sorted(
            (b"key-%d" % (number % 40), b"%d" % number) for number in range(400, 440)
        )
        assert expected.num_rows < 40
        assert topic.state().num_rows == 40


def compact_of(log: lastword.Log, engine: InlineEngine) -> Callable[[], CompactionReport]:
    compactor = Compactor(engine, config=log.config, clock=SystemClock(), leases=log._leases)
    return lambda: compactor.run([log.compaction._target("words")], asked_for=True)


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


# ----------------------------------------------------------------------------------------------- on Spark


class Driver:
    """A process that compacts with Spark, and the processes that Spark has started for it."""

    def __init__(self, cast: Children, folder: Path, number: int) -> None:
        self._asks = folder.parent / f"asks-{number}"
        os.mkfifo(self._asks)
        self.running = cast.start(
            Job(
                folder=str(folder),
                run=number,
                role="drive",
                stop_file="-",
                asks_from=str(self._asks),
            )
        )
        self._fd = os.open(self._asks, os.O_WRONLY)
        self._closed = False
        self._known: set[psutil.Process] = set()
        self.lasted_s = 0.0

    def ask(self) -> None:
        os.write(self._fd, b"compact\n")
        answers = self._count("compacting")
        assert self.running.read_until(lambda _: self._count("compacting") > answers), self.running.finish()

    def answer(self) -> dict[str, Any]:
        """What became of the last compaction that was asked for."""
        while self.is_compacting:
            assert self.running.read_until(lambda line: line[1] == "answer", 120), self.running.finish()
        found: dict[str, Any] = self.running.lines[-1][2]
        return found

    def compact(self) -> dict[str, Any]:
        self.ask()
        asked_s = time.monotonic()
        answer = self.answer()
        if answer["compacted"]:
            self.lasted_s = time.monotonic() - asked_s
        return answer

    @property
    def is_compacting(self) -> bool:
        return self._count("answer") < self._count("compacting")

    def processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            self._known |= set(psutil.Process(self.running.pid).children(recursive=True))
        return [each for each in self._known if each.is_running()]

    def java(self) -> list[psutil.Process]:
        return [each for each in self.processes() if each.name() == "java"]

    def python(self) -> list[psutil.Process]:
        """The workers of Spark and the daemon that forks them."""
        return [each for each in self.processes() if each.name().startswith("python")]

    def close(self) -> None:
        """Kill it, with everything that it has started."""
        left = self.processes()
        self.running.kill()
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(left, timeout=60)
        self.running.read_until()
        if not self._closed:
            os.close(self._fd)
            self._closed = True

    def _count(self, what: str) -> int:
        return sum(line[1] == what for line in self.running.lines)


class SparkChain:
    """Kills of parts of Spark on one log, whose one topic gets as much new to compact before each of them."""

    RECORDS = 100_000
    KEYS = 20_000

    def __init__(self, cast: Children, folder: Path, seed: int) -> None:
        self.cast = cast
        self.folder = folder
        self.random = random.Random(seed)
        self.drivers: list[Driver] = []
        self.last: dict[bytes, bytes | None] = {}
        self.appends = 0
        with lastword.open(folder, config=BROKER | {"wal.sync": "none"}) as log:
            log.create_topic(BIG_TOPIC, partitions=2, config={"cleanup.policy": "compact"})
        for _ in range(2):
            self.append()

    def append(self) -> None:
        numbers = np.random.default_rng(self.random.randrange(1 << 30)).integers(0, self.KEYS, self.RECORDS)
        keys = [b"user-%06d" % number for number in numbers.tolist()]
        values = [None if row % 20 == 0 else b"%d of %d" % (row, self.appends) for row in range(self.RECORDS)]
        self.appends += 1
        self.last.update(zip(keys, values, strict=True))
        with lastword.open(self.folder, config=BROKER | {"wal.sync": "none"}) as log:
            topic = log.topic(BIG_TOPIC)
            topic.append_arrow(
                pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
            )
            topic.seal()

    def driver(self) -> Driver:
        """One that has compacted already, so that Spark runs, and it is known how long that takes."""
        self.drivers.append(Driver(self.cast, self.folder, len(self.drivers)))
        for _ in range(2):
            self.append()
            assert self.drivers[-1].compact() == {"problems": [], "compacted": 2}
        return self.drivers[-1]

    def kill(self, driver: Driver, which: Callable[[], list[psutil.Process]]) -> None:
        """Let a compaction begin, and kill somebody while it runs."""
        for _ in range(10):
            self.append()
            self.append()
            driver.ask()
            driver.running.read_for(self.random.random() * driver.lasted_s)
            if driver.is_compacting:
                break
            driver.lasted_s /= 2
        assert driver.is_compacting, "it was always done before it could be killed"
        for each in which():
            with suppress(psutil.NoSuchProcess):
                each.kill()

    def check(self, *, compacted: bool) -> None:
        with lastword.open(self.folder, config=BROKER, read_only=True) as log:
            topic = log.topic(BIG_TOPIC)
            state = topic.state()
            found = dict(zip(state.column("key").to_pylist(), state.column("value").to_pylist(), strict=True))
            assert len(found) == state.num_rows, "a key is there twice"
            assert found == {key: value for key, value in self.last.items() if value is not None}
            last: dict[bytes, bytes | None] = {}
            records = 0
            for partition in range(2):
                offset = -1
                for batch in topic.read_arrow(partition=partition):
                    offsets = batch.column("offset").to_numpy()
                    assert offsets[0] > offset and (np.diff(offsets) > 0).all(), "out of order or twice"
                    offset = offsets[-1]
                    records += batch.num_rows
                    pairs = zip(
                        batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
                    )
                    last.update(pairs)
            assert last == self.last
            assert not compacted or records == len(self.last)

    def finish(self) -> None:
        for each in self.drivers:
            each.close()
        clean_up(self.folder)
        self.check(compacted=True)
        assert leftovers(self.folder) == []


@pytest.fixture
def spark_chain(cast: Children, folder: Path, request: pytest.FixtureRequest) -> Iterator[SparkChain]:
    chain = SparkChain(cast, folder, getattr(request, "param", 91))
    yield chain
    for each in chain.drivers:
        each.close()


def kill_workers(chain: SparkChain, driver: Driver) -> None:
    """A task whose process dies is done again; at the worst the run is reported as failed."""
    chain.kill(driver, lambda: chain.random.sample(found := driver.python(), min(len(found), 2)))
    failed = driver.answer()["problems"]
    chain.check(compacted=not failed)
    assert driver.compact()["problems"] == []
    chain.check(compacted=True)


def kill_jvm(chain: SparkChain, driver: Driver) -> None:
    """The run fails, and the next one in the same process has a new JVM."""
    dead = driver.java()
    chain.kill(driver, lambda: dead)
    failed = driver.answer()["problems"]
    chain.check(compacted=not failed)
    for problem in failed:
        assert "Spark" in problem, problem
    answer = driver.compact()
    assert answer == {"problems": [], "compacted": 2 if failed else 0}
    chain.check(compacted=True)
    chain.append()
    assert driver.compact() == {"problems": [], "compacted": 2}
    assert driver.java() and not set(driver.java()) & set(dead)


def kill_driver(chain: SparkChain, driver: Driver) -> None:
    """Nothing of it goes on, and another process does what it had not done."""
    processes = driver.processes()
    chain.kill(driver, lambda: [psutil.Process(driver.running.pid)])
    driver.running.finish()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive, f"what a dead driver had started goes on: {alive}"
    chain.check(compacted=False)
    chain.driver()
    chain.check(compacted=True)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_spark_is_killed_part_by_part(spark_chain: SparkChain) -> None:
    driver = spark_chain.driver()
    kill_workers(spark_chain, driver)
    kill_jvm(spark_chain, driver)
    kill_driver(spark_chain, driver)
    spark_chain.finish()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("spark_chain", [92, 93], indirect=True)
def test_spark_is_killed_again_and_again(spark_chain: SparkChain) -> None:
    driver = spark_chain.driver()
    for _ in range(12):
        kind = spark_chain.random.choice([kill_workers, kill_workers, kill_jvm, kill_driver])
        kind(spark_chain, driver)
        driver = spark_chain.drivers[-1]
    spark_chain.finish()
