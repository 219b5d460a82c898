"""The worker: its jobs don't wait for each other, each topic gets its turn, and what one life began the next goes on with."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.waiting import wait_until

import lastword
from lastword.admin.health import job_problems
from lastword.errors import LockedError, StorageError, UnavailableError
from lastword.folder import steps
from lastword.log import Log, worker
from lastword.log.topic import Topic
from lastword.maintenance import retention, worker_state
from lastword.maintenance.lanes import Lane
from lastword.maintenance.worker_state import (
    FailingCompaction,
    StatusKeeper,
    TopicOrder,
    WorkerStatus,
    load_status,
)
from lastword.record import NewRecord

TOPICS = ("a", "b", "c", "d")
OFTEN = {
    **INLINE_CONFIG,
    "worker.initial.delay.ms": 1,
    "worker.interval.ms": 100,
    "seal.interval.ms": 100,
    "retention.interval.ms": 100,
    "deleter.interval.ms": 100,
    "expire.interval.ms": 100,
    "collect.interval.ms": 100,
    "tiering.lag.ms": 1,
}


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    steps.install(None)


class Stopped:
    """Stops whoever reaches a step, until it is let go."""

    def __init__(self, step: str) -> None:
        self._step = step
        self.seen: list[str] = []
        self.is_there = threading.Event()
        self._go = threading.Event()
        steps.install(self._reached)

    def _reached(self, name: str) -> None:
        self.seen.append(name)
        if name == self._step:
            self.is_there.set()
            assert self._go.wait(180)

    def wait(self) -> None:
        assert self.is_there.wait(180)

    def let_go(self) -> None:
        self._go.set()


# ---------------------------------------------------------------------------------------------------- schedule


@pytest.mark.parametrize("ratio", [0, 0.5])
def test_an_exact_topic_is_compacted_after_each_sealing(tmp_path: Path, ratio: float) -> None:
    """With the next round of compaction an hour away."""
    config = {**OFTEN, "worker.interval.ms": 3_600_000, "min.cleanable.dirty.ratio": ratio}
    with lastword.open(tmp_path / "data", config=config) as log:
        topic = log.create_topic("t", config={"cleanup.policy": "compact"})
        topic.append_many([NewRecord(key=b"k%d" % each, value=b"0") for each in range(100)])
        topic.seal()
        with log.worker() as working:
            wait_until(lambda: working.status.jobs["compact"].last_run_ms is not None)
            for number in range(2):
                topic.append("k1", str(number))
                end = topic.extents()[0].log_end
                wait_until(lambda end=end: topic.table.snapshot().positions[0].sealed_end == end)
                if ratio == 0:
                    wait_until(lambda end=end: topic.table.snapshot().positions[0].first_dirty == end)
            assert (working.status.jobs["compact"].next_run_ms > log.clock.now_ms() + 1_000_000) or ratio == 0
        if ratio:
            assert topic.table.snapshot().positions[0].first_dirty == 100


def test_what_is_sealed_during_a_compaction_is_compacted_after_it(tmp_path: Path) -> None:
    config = {**OFTEN, "worker.interval.ms": 3_600_000, "min.cleanable.dirty.ratio": 0}
    with lastword.open(tmp_path / "data", config=config) as log:
        topic = log.create_topic("t", config={"cleanup.policy": "compact"})
        topic.append("k", "0")
        topic.seal()
        stopped = Stopped("compact.before_commit")
        with log.worker():
            stopped.wait()
            topic.append("k", "1")
            wait_until(lambda: topic.table.snapshot().positions[0].sealed_end == 2)
            stopped.let_go()
            wait_until(lambda: topic.table.snapshot().positions[0].first_dirty == 2)


# ------------------------------------------------------------------------------------------------------- lanes


def test_a_compaction_holds_up_neither_sealing_nor_retention_nor_metrics(tmp_path: Path) -> None:
    with lastword.open(tmp_path / "data", config=OFTEN) as log:
        big = log.create_topic("big", config={"cleanup.policy": "compact", "compaction.at.seal": False})
        small = log.create_topic("small", config={"retention.ms": 1, "local.retention.ms": 0})
        big.append_many([NewRecord(key=b"k", value=b"%d" % each) for each in range(100)])
        big.seal()
        stopped = Stopped("compact.before_commit")
        with log.worker() as working:
            stopped.wait()
            jobs = working.status.jobs
            before = {name: job.last_run_ms for name, job in jobs.items()}
            big.append(b"other", b"x")
            small.append(b"k", b"v", timestamp_ms=log.clock.now_ms() - 60_000)
            wait_until(lambda: big.table.snapshot().positions[0].sealed_end == 101)
            # Sealed, and then removed by retention.
            wait_until(lambda: small.table.snapshot().positions[0].log_start == 1)
            wait_until(
                lambda: all(
                    jobs[name].last_run_ms != before[name]
                    for name in jobs
                    if name not in ("compact", "measure")
                )
            )
            assert big.table.snapshot().positions[0].first_dirty == 0
            stopped.let_go()
            wait_until(lambda: big.table.snapshot().positions[0].first_dirty >= 100)
    # What was sealed meanwhile cost it no more than another try to commit.
    first_commit = stopped.seen.index("compact.committed")
    assert stopped.seen[:first_commit].count("compact.segment.written") == 1


def test_metrics_are_taken_while_a_compaction_runs(tmp_path: Path) -> None:
    with lastword.open(tmp_path / "data", config=INLINE_CONFIG, clock=ManualClock()) as log:
        topic = log.create_topic("t", config={"cleanup.policy": "compact"})
        topic.append(b"k", b"v")
        topic.seal()
        stopped = Stopped("compact.before_commit")
        working = log.worker()
        compacting = threading.Thread(target=working.run_all)
        compacting.start()
        stopped.wait()
        assert working.run_due("measure") == ["measure"]
        assert working.run_due("seal") == []
        stopped.let_go()
        compacting.join()


def test_the_role_is_a_process_s_and_lanes_are_its_own(tmp_path: Path) -> None:
    with (
        lastword.open(tmp_path / "data") as log,
        lastword.open(tmp_path / "data", maintain_only=True) as other,
    ):
        entered = threading.Event()
        with log.maintenance(Lane.CLEAN):
            with (
                log.maintenance(Lane.CLEAN, Lane.SEAL, topic="t"),
                pytest.raises(LockedError),
                other.maintenance(),
            ):
                pass

            def tidy() -> None:
                with log.maintenance(Lane.TIDY):
                    entered.set()

            beside = threading.Thread(target=tidy)
            beside.start()
            assert entered.wait(180)
            beside.join()
            # One that has left gives nothing back that another still needs.
            with pytest.raises(LockedError), other.maintenance():
                pass
        with other.maintenance(*Lane, topic="t"):
            pass


def test_lanes_are_taken_in_their_order(log: Log) -> None:
    with (
        log.maintenance(Lane.SEAL, topic="t"),
        pytest.raises(AssertionError),
        log.maintenance(Lane.CLEAN),
    ):
        pass
    with (
        log.maintenance(*Lane, topic="t"),
        log.maintenance(Lane.CLEAN),
        log.maintenance(Lane.SEAL, topic="t"),
    ):
        pass


def test_an_erasure_holds_up_the_sealing_of_its_own_topic_only(tmp_path: Path) -> None:
    with lastword.open(tmp_path / "data") as log:
        erased, other = log.create_topic("erased"), log.create_topic("other")
        erased.append(b"k", b"v")
        stopped = Stopped("erase.rewritten")
        with ThreadPoolExecutor(2) as pool:
            erasing = pool.submit(log.erase, "erased", [b"k"])
            stopped.wait()
            for topic in (erased, other):
                topic.append(b"x", b"new")
            assert other.seal().files == 1
            own = pool.submit(erased.seal)
            with pytest.raises(TimeoutError):
                own.result(0.2)
            stopped.let_go()
            assert erasing.result(180).left == ()
            assert own.result(180).files == 1
    last_seal = len(stopped.seen) - stopped.seen[::-1].index("seal.committed") - 1
    assert last_seal > stopped.seen.index("erase.wal_removed")


# ------------------------------------------------------------------------------------------------------- turns


def test_turns_of_topics_that_take_a_moment_each_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(worker_state, "monotonic_s", lambda: now_s)
    keeper = StatusKeeper(tmp_path, WorkerStatus(pid=1, started_ms=0))
    turns = TopicOrder(keeper, "expire")

    def written() -> list[str]:
        saved = load_status(tmp_path)
        assert saved is not None
        return list(saved.turns["expire"])

    turns.take("a")
    assert written() == ["a"]
    turns.take("b")
    assert written() == ["a"]
    now_s += worker_state.TURNS_SAVED_EVERY_S
    turns.take("c")
    assert written() == ["a", "b", "c"]
    # The first of the next run may be one that no worker survives.
    TopicOrder(keeper, "expire").take("d")
    assert written() == ["a", "b", "c", "d"]


def test_the_topic_that_has_waited_longest_is_first(tmp_path: Path) -> None:
    keeper = StatusKeeper(tmp_path, WorkerStatus(pid=1, started_ms=0))
    turns = TopicOrder(keeper, "seal")
    assert turns.in_order(["c", "a", "b"]) == ["a", "b", "c"]
    turns.take("a")
    turns.take("c", save=False)
    assert turns.in_order(["c", "a", "b"]) == ["b", "a", "c"]
    saved = load_status(tmp_path)
    assert saved is not None and saved.turns == {"seal": {"a": 1}}
    # One that comes back has waited, too.
    assert turns.in_order(["c", "b"]) == ["b", "c"]
    assert turns.in_order(["c", "a", "b"]) == ["a", "b", "c"]


def test_a_job_that_waits_is_not_put_off_by_a_restart(log: Log, clock: ManualClock) -> None:
    first = log.worker()
    due_ms = {name: job.next_run_ms for name, job in first.status.jobs.items()}
    first.run_due()
    clock.move(50_000)
    second = log.worker()
    for name in ("compact", "retention", "expire", "collect"):
        assert second.status.jobs[name].next_run_ms == due_ms[name]
    clock.move(10_000)
    assert "compact" in second.run_due()


def test_a_clock_that_was_put_back_keeps_no_job_waiting(log: Log, clock: ManualClock) -> None:
    log.worker().run_due()
    clock.move(-86_400_000)
    delays = worker.schedule(log.config)
    for name, job in log.worker().status.jobs.items():
        assert job.next_run_ms <= clock.now_ms() + delays[name][0]


def test_a_clock_that_is_put_back_keeps_no_job_of_a_running_worker_waiting(
    log: Log, clock: ManualClock
) -> None:
    working = log.worker()
    clock.move(worker.LONGEST_PAUSE_MS)
    every = working.run_due()
    assert set(every) == set(working.status.jobs)
    assert working.run_due() == []
    clock.move(-worker.LONGEST_PAUSE_MS)
    assert working.run_due() == every
    assert working.run_due() == []


def test_a_clock_that_is_put_back_does_not_prolong_the_pause_after_a_failure(
    log: Log, clock: ManualClock
) -> None:
    log.create_topic("t").append(b"k", b"v")
    working = log.worker()
    (file,) = log.path.glob("wal/default/t/*/0/wal.*.log")
    whole = file.read_bytes()
    clock.move(400_000)
    file.write_bytes(whole[:40] + b"\xff" + whole[41:])
    working.run_due("seal")
    file.write_bytes(whole)
    clock.move(-300_000)
    working.run_due("seal")
    assert log.topic("t").table.snapshot().positions[0].sealed_end == 1


def test_a_topic_that_can_not_be_sealed_does_not_put_the_others_off(log: Log, clock: ManualClock) -> None:
    for name in ("bad", "good"):
        log.create_topic(name).append(b"k", b"v")
    (file,) = log.path.glob("wal/default/bad/*/0/wal.*.log")
    clock.move(400_000)
    working = log.worker()
    with file.open("r+b") as opened:
        opened.seek(40)
        opened.write(b"\xff")
    for number in range(5):
        log.topic("good").append(b"k", b"v")
        clock.move(400_000)
        assert working.run_due("seal") == ["seal"]
        assert log.topic("good").table.snapshot().positions[0].sealed_end == number + 2
    job = working.status.jobs["seal"]
    assert job.failures == 5
    assert job.last_error is not None and job.last_error.startswith("bad partition 0: ")
    # It is not tried with every round, but its failure is not forgotten in between either.
    clock.move(10_000)
    assert working.run_due("seal") == ["seal"]
    assert (job.failures, job.last_error is None) == (5, False)
    (problem,) = job_problems(log.path)
    assert problem.startswith("sealing fails: bad partition 0: ")


def test_a_job_that_fails_for_a_topic_is_told_until_it_no_longer_does(
    log: Log, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageError("the object store does not answer.")

    log.create_topic("t")
    working = log.worker()
    with monkeypatch.context() as broken:
        for step in ("apply", "expire", "collect"):
            broken.setattr(retention, step, fail)
        broken.setattr(Topic, "removable_wals", fail)
        working.run_all()
    problem = "fails: t: the object store does not answer"
    assert job_problems(log.path) == [
        f"{job} {problem}"
        for job in (
            "retention",
            "the expiry of snapshots",
            "the collection of files",
            "the deletion of WAL files",
        )
    ]
    working.run_all()
    assert job_problems(log.path) == []


def test_a_process_that_has_the_role_for_long_does_not_make_jobs_wait_longer_and_longer(
    log: Log, clock: ManualClock
) -> None:
    working = log.worker()
    job = working.status.jobs["compact"]
    with lastword.open(log.path, maintain_only=True) as other, other.maintenance():
        for failures in range(1, 11):
            clock.move(log.config.worker_interval_ms)
            assert working.run_due("clean") == ["compact"]
            assert job.failures == failures
            assert job.last_error is not None and "is its maintenance" in job.last_error
    clock.move(log.config.worker_interval_ms)
    assert working.run_due("clean") == ["compact"]
    assert (job.failures, job.last_error) == (0, None)


def test_an_erasure_that_can_not_go_on_is_told_and_keeps_nothing_from_being_compacted(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise UnavailableError("the object store does not answer")

    with lastword.open(tmp_path / "data", config=INLINE_CONFIG, clock=clock) as log:
        topic = log.create_topic("t", config={"cleanup.policy": "compact"})
        topic.append(b"k", b"v")
        topic.seal()
        monkeypatch.setattr(log, "finish_erasures", fail)
        working = log.worker()
        clock.move(log.config.worker_initial_delay_ms)
        assert working.run_due("clean") == ["compact"]
        assert working.status.jobs["compact"].last_error == "the object store does not answer"
        assert topic.table.snapshot().positions[0].first_dirty == 1


def test_what_an_erasure_could_not_remove_is_shown_until_it_is_done(log: Log, clock: ManualClock) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    topic.append(b"k", b"v")
    damaged = log.path / "erasing" / f"{topic.id.hex}.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    working = log.worker()
    clock.move(log.config.worker_initial_delay_ms)
    assert working.run_due("clean") == ["compact"]
    # Compaction does not wait longer for it.
    assert working.status.jobs["compact"].failures == 0
    (problem,) = job_problems(log.path)
    assert problem.startswith("an erasure is not done: ") and str(damaged) in problem
    log.erase("t", [b"k"])
    clock.move(log.config.worker_interval_ms)
    working.run_due("clean")
    assert job_problems(log.path) == []


def test_what_was_compacted_by_hand_fails_no_longer(log: Log) -> None:
    working = log.worker()
    for topic, partition in (("a", None), ("a", 0), ("b", 0), ("b", None)):
        working.status.failing.append(FailingCompaction(topic, partition, 1, "no Spark", 0))
    working.compacted([("a", 0)])
    assert [each.place for each in working.status.failing] == [("b", 0), ("b", None)]
    saved = load_status(log.path)
    assert saved is not None and saved.failing == working.status.failing


# ------------------------------------------------------------------------------------------------------- kills


@contextmanager
def opened(folder: Path, clock: ManualClock, **options: bool) -> Iterator[Log]:
    config = {**INLINE_CONFIG, "retention.interval.ms": 30_000}
    with lastword.open(folder, config=config, clock=clock, **options) as log:
        yield log


class Lives:
    """Workers on one folder, each of which lives for 15 seconds at most. Every topic has something new for each."""

    def __init__(self, folder: Path, **config: object) -> None:
        self.folder = folder
        self.config = config
        self.now_ms = time.time_ns() // 1_000_000
        with opened(folder, ManualClock(self.now_ms)) as log:
            for name in TOPICS:
                log.create_topic(name, config=config)

    def live(self, kills: Callable[[str, worker.Worker], bool], *, seals: bool) -> None:
        """Append to each topic, and let a worker run until `kills` says of a step that it is killed there."""
        with opened(self.folder, ManualClock(self.now_ms)) as log:
            for name in TOPICS:
                for _ in range(2):
                    log.topic(name).append(b"k", b"v" * 100, timestamp_ms=self.now_ms - 60_000)
                if seals:
                    log.topic(name).seal()
        # Whatever was appended is due to be rolled.
        self.now_ms += 300_000 if not seals else 15_000
        child = os.fork()
        if child == 0:
            try:
                self._live(kills)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    def _live(self, kills: Callable[[str, worker.Worker], bool]) -> None:
        # Lanes look at the clock, which stands still, as often as that.
        worker._LONGEST_WAIT_MS = 10
        clock = ManualClock(self.now_ms - 15_000)
        with opened(self.folder, clock, maintain_only=True) as log:
            working = log.worker()

            def hook(step: str) -> None:
                if kills(step, working):
                    os.kill(os.getpid(), signal.SIGKILL)

            steps.install(hook)
            working.start()
            for _ in range(3):
                clock.move(5_000)
                while any(job.next_run_ms <= clock.now_ms() for job in working.status.jobs.values()):
                    time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)

    def positions(self) -> dict[str, tuple[int, int, int]]:
        """Of each topic: its log start, first dirty offset and sealed end."""
        with opened(self.folder, ManualClock(self.now_ms), read_only=True) as log:
            found = {name: log.topic(name).table.snapshot().positions[0] for name in TOPICS}
        return {name: (at.log_start, at.first_dirty, at.sealed_end) for name, at in found.items()}


def test_every_topic_is_sealed_by_workers_that_are_killed_after_each_commit(tmp_path: Path) -> None:
    lives = Lives(tmp_path / "data")
    for _ in TOPICS:
        lives.live(lambda step, _: step == "seal.committed", seals=False)
    assert all(sealed_end > 0 for _, _, sealed_end in lives.positions().values()), lives.positions()


def test_every_topic_is_compacted_by_workers_that_are_killed_after_each_commit(tmp_path: Path) -> None:
    lives = Lives(tmp_path / "data", **{"cleanup.policy": "compact"})
    # The first compaction is due after a minute, so after four lives; then each does one.
    for _ in range(4 + len(TOPICS)):
        lives.live(lambda step, _: step == "compact.committed", seals=True)
    assert all(first_dirty > 0 for _, first_dirty, _ in lives.positions().values()), lives.positions()


def test_one_that_no_worker_survives_does_not_keep_the_others_from_their_turn(tmp_path: Path) -> None:
    lives = Lives(tmp_path / "data", **{"cleanup.policy": "compact"})

    def kills(step: str, working: worker.Worker) -> bool:
        return step == "compact.segment.written" and ("a", 0) in working.status.in_hand

    for _ in range(4 + 2):
        lives.live(kills, seals=True)
    found = lives.positions()
    assert found["a"][1] == 0
    assert all(found[name][1] > 0 for name in TOPICS if name != "a"), found
    saved = load_status(lives.folder)
    assert saved is not None and saved.in_hand == [("a", 0)]
    lives.live(lambda *_: False, seals=True)
    assert lives.positions()["a"][1] > 0
    saved = load_status(lives.folder)
    assert saved is not None and (saved.in_hand, saved.interrupted) == ([], [])


def test_every_topic_has_retention_by_workers_that_are_killed_after_each_commit(tmp_path: Path) -> None:
    lives = Lives(tmp_path / "data", **{"retention.ms": 1000, "local.retention.ms": 1000})
    for _ in range(2 + len(TOPICS)):
        lives.live(lambda step, _: step == "retention.committed", seals=True)
    assert all(log_start > 0 for log_start, _, _ in lives.positions().values()), lives.positions()
