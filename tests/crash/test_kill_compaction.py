"""Maintenance is killed, at every step of compaction and erasure and at random points, while others write and read.

After each kill the last word on every key is there, once; what was compacted away never comes back, and nobody who
reads notices anything.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pytest
from tests.support.cli import Cli
from tests.support.compaction_child import (
    BIG_TOPIC,
    BROKER,
    PARTITIONS,
    STRATEGIES,
    TOPICS,
    VERSION_HEADER,
    WAYS,
    Job,
)
from tests.support.crash import Children, Running, clean_up, leftovers, named_steps, read_together
from tests.support.last_words import LastWords
from tests.support.waiting import wait_until

import lastword
from lastword.clock import SystemClock
from lastword.compaction.engine import InlineEngine, Result
from lastword.compaction.engine import Job as EngineJob
from lastword.compaction.job import Compactor
from lastword.compaction.reports import CompactionReport
from lastword.compaction.request import CompactionRequest
from lastword.maintenance.worker_state import load_status
from lastword.record import HEADERS_TYPE

STEPS = [
    step for step in named_steps() if step.startswith(("compact.", "erase.", "seal.round.", "segment.marks."))
]
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
        self.way = self.random.choice(sorted(WAYS))
        with lastword.open(folder, config=BROKER) as log:
            for name, config in TOPICS.items():
                # With these the newest record is the best one; what `first` keeps is another model.
                strategy = self.random.choice(["offset", "timestamp", "header"])
                log.create_topic(name, partitions=PARTITIONS, config=config | STRATEGIES[strategy])
        self.reader_stop = folder.parent / "stop-reader"
        self.reader = self.start("read", self.reader_stop)

    def start(self, role: str, stop: Path, **settings: object) -> Running:
        return self.cast.start(
            Job(
                folder=str(self.folder),
                run=next(self.runs),
                role=role,
                stop_file=str(stop),
                way=self.way,
                **settings,  # type: ignore[arg-type]
            )
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
    return lambda: compactor.run([log.compaction._target("words")], CompactionRequest(asked_for=True))


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


# ------------------------------------------------------------------------------------------- the real worker

WORKER_SETTINGS = """\
worker.nice: 0
worker.initial.delay.ms: 1
worker.interval.ms: 20
seal.interval.ms: 20
retention.interval.ms: 100
expire.interval.ms: 100
collect.interval.ms: 100
deleter.interval.ms: 100
min.cleanable.dirty.ratio: 0.01
"""


def test_a_worker_is_killed_while_another_process_appends(cast: Children, folder: Path) -> None:
    chain = Chain(cast, folder, seed=84)
    settings = "".join(f"{key}: {value}\n" for key, value in BROKER.items())
    (folder / "lastword.yaml").write_text(settings + WORKER_SETTINGS)
    cli = Cli(folder)
    stop = folder.parent / "stop-writer"
    # Starting a worker takes its time; a log that does not grow much meanwhile is checked faster.
    writer = chain.start("write", stop, pace_s=0.03)
    assert read_together([writer, chain.reader], lambda: writer.said("opened"))
    for _ in range(2):
        with cli.spawn("worker") as worker:
            try:
                has_run = partial(_has_run, folder, worker.pid)
                assert read_together([writer, chain.reader], has_run, deadline_s=120), (
                    "it does not come to compact"
                )
                read_together([writer, chain.reader], deadline_s=chain.random.random())
            finally:
                worker.kill()
            _, said = worker.communicate()
        assert worker.returncode == -signal.SIGKILL
        assert said == b""
    assert not writer.ended
    stop.touch()
    assert read_together([writer, chain.reader])
    chain.words.learn(writer.finish())
    chain.check()
    last = cli.real("worker", "--once")
    assert (last.code, last.err) == (0, ""), last
    with lastword.open(folder, config=BROKER, read_only=True) as log:
        for name in TOPICS:
            assert all(each.last_run is not None for each in log.topic(name).describe().partitions)
    chain.finish()


def _has_run(folder: Path, pid: int) -> bool:
    """Whether this worker has finished a round of compaction."""
    status = load_status(folder)
    return status is not None and status.pid == pid and status.jobs["compact"].last_run_ms is not None


# ----------------------------------------------------------------------------------------------- on Spark


class Driver:
    """A process that compacts with Spark, and the processes that Spark has started for it."""

    def __init__(self, cast: Children, folder: Path, number: int, way: str) -> None:
        self._asks = folder.parent / f"asks-{number}"
        os.mkfifo(self._asks)
        self.running = cast.start(
            Job(
                folder=str(folder),
                run=number,
                role="drive",
                stop_file="-",
                way=way,
                asks_from=str(self._asks),
            )
        )
        self._fd = os.open(self._asks, os.O_WRONLY)
        self._closed = False
        self._known: set[psutil.Process] = set()
        self.lasted_s = 0.0

    @property
    def terminal(self) -> str:
        """What it wrote to where a person would have read it."""
        return Path(f"{self._asks}.err").read_text()

    def ask(self) -> None:
        os.write(self._fd, b"compact\n")
        answers = self._count("compacting")
        assert self.running.read_until(lambda _: self._count("compacting") > answers), self.running.finish()

    def answer(self) -> Answer:
        """What became of the last compaction that was asked for."""
        while self.is_compacting:
            assert self.running.read_until(lambda line: line[1] == "answer", 120), self.running.finish()
        return Answer(**self.running.lines[-1][2])

    def compact(self) -> Answer:
        self.ask()
        asked_s = time.monotonic()
        answer = self.answer()
        if answer.compacted:
            self.lasted_s = time.monotonic() - asked_s
        return answer

    @property
    def is_compacting(self) -> bool:
        return self._count("answer") < self._count("compacting")

    def processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            self._known |= set(psutil.Process(self.running.pid).children(recursive=True))
        return [each for each in self._known if is_alive(each)]

    def java(self) -> list[psutil.Process]:
        return [each for each in self.processes() if name_of_process(each) == "java"]

    def python(self) -> list[psutil.Process]:
        """The workers of Spark and the daemon that forks them."""
        return [each for each in self.processes() if name_of_process(each).startswith("python")]

    def close(self) -> None:
        """Kill it, with everything that it has started."""
        left = self.processes()
        self.running.kill()
        kill_all(left)
        wait_until(lambda: not any(map(is_alive, left)), lambda: left)
        self.running.read_until()
        if not self._closed:
            os.close(self._fd)
            self._closed = True

    def _count(self, what: str) -> int:
        return sum(line[1] == what for line in self.running.lines)


@dataclass(frozen=True)
class Answer:
    """What a driver says of a compaction: how many partitions were compacted, and what went wrong with others."""

    problems: list[str]
    compacted: int


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs. One whose parent has died may wait for long until somebody takes note of its end."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def name_of_process(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def kill_all(processes: Sequence[psutil.Process]) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.kill()


class SparkChain:
    """Kills of parts of Spark on one log, whose one topic gets as much new to compact before each of them.

    The strategy, and the way that compactions take, follow from the seed.
    """

    def __init__(self, cast: Children, folder: Path, seed: int, records: int) -> None:
        self.cast = cast
        self.folder = folder
        self.random = random.Random(seed)
        self.records = records
        self.strategy = self.random.choice(sorted(STRATEGIES))
        self.way = self.random.choice(sorted(WAYS))
        self.drivers: list[Driver] = []
        self.best: dict[bytes, tuple[int, bytes | None]] = {}
        """The version and the value of each key's winner."""
        self.appended: set[tuple[bytes, bytes | None]] = set()
        self.appends = 0
        with lastword.open(folder, config=BROKER | {"wal.sync": "none"}) as log:
            log.create_topic(
                BIG_TOPIC, partitions=2, config={"cleanup.policy": "compact"} | STRATEGIES[self.strategy]
            )
        for _ in range(2):
            self.append()

    def append(self) -> None:
        generator = np.random.default_rng(self.random.randrange(1 << 30))
        numbers = generator.integers(0, self.records // 5, self.records)
        keys = [b"user-%06d" % number for number in numbers.tolist()]
        values = [None if row % 20 == 0 else b"%d of %d" % (row, self.appends) for row in range(self.records)]
        versions = self._versions(generator)
        self.appends += 1
        for key, value, version in zip(keys, values, versions.tolist(), strict=True):
            if key not in self.best or self.best[key][0] <= version:
                self.best[key] = version, value
        self.appended.update(zip(keys, values, strict=True))
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        if self.strategy == "timestamp":
            columns["timestamp"] = pa.array(versions * 1000, pa.timestamp("us", tz="UTC"))
        elif self.strategy == "header":
            columns["headers"] = pa.array(
                [[(VERSION_HEADER, each.to_bytes(8, "big"))] for each in versions.tolist()], HEADERS_TYPE
            )
        with lastword.open(self.folder, config=BROKER | {"wal.sync": "none"}) as log:
            topic = log.topic(BIG_TOPIC)
            topic.append_arrow(pa.table(columns))
            topic.seal()

    def _versions(self, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        rows = self.appends * self.records + np.arange(self.records)
        match self.strategy:
            case "offset":
                return rows
            case "first":
                return -rows
            case _:
                return generator.integers(1, 1 << 40, self.records)

    def driver(self) -> Driver:
        """One that has compacted already, so that Spark runs, and it is known how long that takes."""
        self.drivers.append(Driver(self.cast, self.folder, len(self.drivers), self.way))
        for _ in range(2):
            self.append()
            assert self.drivers[-1].compact() == Answer([], 2)
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
        kill_all(which())

    def compact_here(self) -> None:
        """Compact in this process, without Spark."""
        with lastword.open(self.folder, config=BROKER, maintain_only=True) as log:
            assert not log.compact([BIG_TOPIC], asked_for=True).problems

    def check(self, *, compacted: bool) -> None:
        """Every key's winner is there, once in the state; nothing is that nobody appended; order is kept."""
        winners = {key: value for key, (_, value) in self.best.items()}
        with lastword.open(self.folder, config=BROKER, read_only=True) as log:
            topic = log.topic(BIG_TOPIC)
            state = topic.state()
            found = dict(zip(state.column("key").to_pylist(), state.column("value").to_pylist(), strict=True))
            assert len(found) == state.num_rows, "a key is there twice"
            assert found == {key: value for key, value in winners.items() if value is not None}
            read: list[tuple[bytes, bytes | None]] = []
            for partition in range(2):
                offset = -1
                for batch in topic.read_arrow(partition=partition):
                    offsets = batch.column("offset").to_numpy()
                    assert offsets[0] > offset and (np.diff(offsets) > 0).all(), "out of order or twice"
                    offset = offsets[-1]
                    read += zip(
                        batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
                    )
            assert set(winners.items()) <= set(read) <= self.appended
            assert not compacted or len(read) == len(winners)

    def finish(self) -> None:
        for each in self.drivers:
            each.close()
        clean_up(self.folder)
        self.check(compacted=True)
        assert leftovers(self.folder) == []


@pytest.fixture
def spark_chain(cast: Children, folder: Path, request: pytest.FixtureRequest) -> Iterator[SparkChain]:
    seed, records = request.param
    chain = SparkChain(cast, folder, seed, records)
    yield chain
    for each in chain.drivers:
        each.close()


def kill_workers(chain: SparkChain, driver: Driver) -> None:
    """A task whose process dies is done again; at the worst the run is reported as failed."""
    chain.kill(driver, lambda: chain.random.sample(found := driver.python(), min(len(found), 2)))
    chain.check(compacted=not driver.answer().problems)
    assert driver.compact().problems == []
    chain.check(compacted=True)


def kill_jvm(chain: SparkChain, driver: Driver) -> None:
    """What was running fails, or is done again; whatever comes next in the same process has a new JVM."""
    dead = driver.java()
    chain.kill(driver, lambda: dead)
    answer = driver.answer()
    chain.check(compacted=not answer.problems)
    for problem in answer.problems:
        assert "Spark" in problem, problem
    # One of the partitions may have been done by the new JVM already.
    assert driver.compact() == Answer([], 2 - answer.compacted)
    chain.check(compacted=True)
    chain.append()
    assert driver.compact() == Answer([], 2)
    assert driver.java() and not set(driver.java()) & set(dead)
    assert "Traceback" not in driver.terminal, driver.terminal


def kill_driver(chain: SparkChain, driver: Driver) -> None:
    """Nothing of it goes on."""
    processes = driver.processes()
    chain.kill(driver, lambda: [psutil.Process(driver.running.pid)])
    driver.running.finish()
    wait_until(
        lambda: not any(map(is_alive, processes)),
        lambda: f"what a dead driver had started goes on: {[each for each in processes if is_alive(each)]}",
    )
    chain.check(compacted=False)


SHORT, LONG = 20_000, 100_000
"""Records of an append."""


@pytest.mark.parametrize("spark_chain", [(98, SHORT)], indirect=True)
def test_the_jvm_is_killed(spark_chain: SparkChain) -> None:
    kill_jvm(spark_chain, spark_chain.driver())
    spark_chain.finish()


@pytest.mark.parametrize("spark_chain", [(92, SHORT)], indirect=True)
def test_the_driver_is_killed(spark_chain: SparkChain) -> None:
    kill_driver(spark_chain, spark_chain.driver())
    spark_chain.compact_here()
    spark_chain.finish()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("spark_chain", [(91, LONG)], indirect=True)
def test_spark_is_killed_part_by_part(spark_chain: SparkChain) -> None:
    driver = spark_chain.driver()
    kill_workers(spark_chain, driver)
    kill_jvm(spark_chain, driver)
    kill_driver(spark_chain, driver)
    spark_chain.driver()
    spark_chain.finish()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("spark_chain", [(seed, LONG) for seed in (93, 94, 96, 98, 113)], indirect=True)
def test_spark_is_killed_again_and_again(spark_chain: SparkChain) -> None:
    driver = spark_chain.driver()
    for _ in range(6):
        kind = spark_chain.random.choice([kill_workers, kill_workers, kill_jvm, kill_driver])
        kind(spark_chain, driver)
        if kind is kill_driver:
            driver = spark_chain.driver()
            spark_chain.check(compacted=True)
    spark_chain.finish()
