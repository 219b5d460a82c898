"""The background worker: seals, compacts, applies retention, deletes, expires, collects and measures on schedule.

The worker only decides when a job runs. The log does the work: every job is a call that a user could make too, is
isolated from the others, and leaves a consistent state at each commit.

Each thread runs its jobs one after the other, so that no job waits for those of another thread (lanes.py says which jobs
may run at the same time):

    seal      sealing
    clean     unfinished erasures, then compaction
    tidy      retention, the WAL deleter, expiry, collection
    measure   metrics

A topic with `min.cleanable.dirty.ratio=0` is compacted as soon as it has been sealed. Other due compactions run then, too.

A stop request ends each thread between two commits. A failed job is retried after a pause that doubles, up to an hour. So
is each partition whose compaction fails, and each topic that can't be sealed. They don't hold up the others.

If the worker is killed, the next one continues from there: `worker.json` (worker_state.py) keeps when each job is due,
the topic that has waited longest for it, and the partitions that were being compacted.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from lastword import metrics
from lastword.clock import Clock, monotonic_s
from lastword.config import BrokerConfig
from lastword.errors import LastwordError, LockedError
from lastword.folder.locks import Role, RoleLock
from lastword.maintenance.worker_state import (
    FailingCompaction,
    JobStatus,
    StatusKeeper,
    TopicOrder,
    TopicOrPartition,
    WorkerStatus,
    load_status,
)

if TYPE_CHECKING:
    from lastword.log.log import Log

logger = logging.getLogger(__name__)

RetentionStep = Literal["retention", "delete", "expire", "collect"]
"""The steps of a round of retention: sealed segments, WAL files, snapshots, files that nothing references."""
LONGEST_PAUSE_MS = 3_600_000
LONGEST_SEAL_PAUSE_MS = 60_000
FIRST_PAUSE_MS = 10_000
MEASURE_INTERVAL_MS = 30_000
_LONGEST_WAIT_MS = 1_000


ThreadName = Literal["seal", "clean", "tidy", "measure"]


def pause_ms(failures: int) -> int:
    """Return how long to wait after this many failures in a row."""
    return min(FIRST_PAUSE_MS << min(failures - 1, 20), LONGEST_PAUSE_MS)


def must_wait(until_ms: int, now_ms: int, longest_ms: int) -> bool:
    """Return whether a time is in the future. A time further ahead than any pause means that the clock was set back."""
    return now_ms < until_ms <= now_ms + longest_ms


def schedule(config: BrokerConfig) -> dict[str, tuple[int, int]]:
    """Return each job's delay after the start and the pause between two runs, in milliseconds."""
    jobs = {
        "seal": (0, config.seal_interval_ms),
        "compact": (config.worker_initial_delay_ms, config.worker_interval_ms),
        "retention": (config.retention_interval_ms, config.retention_interval_ms),
        "expire": (config.expire_interval_ms, config.expire_interval_ms),
        "collect": (config.collect_interval_ms, config.collect_interval_ms),
        "measure": (0, MEASURE_INTERVAL_MS),
    }
    if config.deleter_enabled:
        jobs["delete"] = (config.deleter_interval_ms, config.deleter_interval_ms)
    return jobs


_THREADS: dict[str, ThreadName] = {
    "seal": "seal",
    "compact": "clean",
    "retention": "tidy",
    "delete": "tidy",
    "expire": "tidy",
    "collect": "tidy",
    "measure": "measure",
}


@dataclass(slots=True)
class _Unsealed:
    """A topic that can't be sealed, or only in part, and when it is retried."""

    failures: int
    message: str
    retry_ms: int

    def must_wait(self, now_ms: int) -> bool:
        return must_wait(self.retry_ms, now_ms, LONGEST_SEAL_PAUSE_MS)


class Worker:
    """Runs a log's maintenance when it is due."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._schedule = schedule(log.config)
        self._keeper = StatusKeeper(log.path, _first_status(log.path, self._schedule, clock.now_ms()))
        self._unsealed: dict[str, _Unsealed] = {}
        self._ended: list[BaseException] = []
        self._compact_soon = False
        """Whether something was sealed, since the last compaction began, that is to be compacted at once."""
        self._do: dict[str, Callable[[], None]] = {
            "seal": self._seal,
            "compact": self._compact,
            "retention": lambda: self._retain("retention"),
            "delete": lambda: self._retain("delete"),
            "expire": lambda: self._retain("expire"),
            "collect": lambda: self._retain("collect"),
            "measure": self._log.measure,
        }
        # A thread and callers of `run_all` take turns.
        self._thread_locks: dict[ThreadName, threading.RLock] = {
            each: threading.RLock() for each in _THREADS.values()
        }

    @property
    def status(self) -> WorkerStatus:
        return self._keeper.status

    # ------------------------------------------------------------------------------------------ running

    def run_due(self, thread: ThreadName | None = None) -> list[str]:
        """Run the jobs that are due, of a thread or of all. Return their names."""
        done: list[str] = []
        for name, job in self.status.jobs.items():
            if self._stop.is_set():
                break
            if thread not in (None, _THREADS[name]):
                continue
            with self._thread_locks[_THREADS[name]]:
                if not must_wait(job.next_run_ms, self._clock.now_ms(), self._longest_wait_ms(name, job)):
                    self._run_job(name, job)
                    done.append(name)
        return done

    def run_all(self) -> None:
        """Run every job once, now, one after the other. Wait for a thread that is busy with a job."""
        for name, job in self.status.jobs.items():
            with self._thread_locks[_THREADS[name]]:
                if not self._stop.is_set():
                    self._run_job(name, job)

    def run(self) -> None:
        """Run jobs as they fall due, until `stop`. LockedError if the log has a worker already."""
        with RoleLock.acquire(self._log.path, Role.WORKER, self._clock):
            # Saved now: a worker that is killed before its first job ends has still begun to wait for the others.
            self._keeper.save()
            threads = [
                threading.Thread(target=self._run_thread, args=(each,), name=f"lastword-{each}", daemon=True)
                for each in self._thread_locks
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for error in self._ended:
            raise error

    def start(self) -> Self:
        """Run in threads of this process."""
        self._thread = threading.Thread(target=self.run, name="lastword-worker", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask the worker to end. Each thread ends between two commits."""
        self._stop.set()

    def close(self) -> None:
        """Stop the worker and wait until it has ended."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run_thread(self, thread: ThreadName) -> None:
        own = [job for name, job in self.status.jobs.items() if _THREADS[name] == thread]
        try:
            while not self._stop.is_set():
                self.run_due(thread)
                next_ms = min(job.next_run_ms for job in own)
                wait_ms = min(max(next_ms - self._clock.now_ms(), 1), _LONGEST_WAIT_MS)
                self._stop.wait(wait_ms / 1000)
        except BaseException as error:  # noqa: BLE001
            # A worker that has lost one of its threads would look healthy.
            self._ended.append(error)
            self._stop.set()

    def _longest_wait_ms(self, name: str, job: JobStatus) -> int:
        """Return how long a job waits at most, from when it was last run or the worker began."""
        return max(*self._schedule[name], pause_ms(job.failures) if job.failures else 0)

    # --------------------------------------------------------------------------------------------- jobs

    def _run_job(self, name: str, job: JobStatus) -> None:
        started_s = monotonic_s()
        error: Exception | None = None
        try:
            self._do[name]()
        except LastwordError as caught:
            error = caught
        except Exception as caught:
            # A bug in one job must not end the others.
            logger.exception("the %s job failed with an unexpected error", name)
            error = caught
        now_ms = self._clock.now_ms()
        interval_ms = self._schedule[name][1]
        with self._keeper.lock:
            if self._stop.is_set() and error is None:
                # It may have been interrupted: the next worker resumes it at once.
                interval_ms = 0
            if name == "compact" and self._compact_soon:
                interval_ms = 0
            wait_ms = interval_ms if error is None else self._failed(name, job, error, interval_ms)
            if error is None:
                job.failures, job.last_error = 0, None
            job.last_run_ms, job.last_duration_s = now_ms, monotonic_s() - started_s
            job.next_run_ms = now_ms + wait_ms
            metrics.WORKER_LAST_RUN.labels(name).set(now_ms / 1000)
            metrics.UNCLEANABLE_PARTITIONS.set(len(self.status.failing))
            self._keeper.save()

    def _failed(self, name: str, job: JobStatus, error: Exception, interval_ms: int) -> int:
        """Note a failure. Return how long to wait."""
        if isinstance(error, _PartlyDoneError):
            # Each topic that failed has its own pause. The others must not wait for it.
            job.failures, wait_ms = error.failures or job.failures + 1, interval_ms
        else:
            job.failures += 1
            # The process that has the role releases it at some time, and an attempt costs nothing.
            count = 1 if isinstance(error, LockedError) else job.failures
            wait_ms = max(interval_ms, pause_ms(count))
        said, job.last_error = job.last_error, str(error) or type(error).__name__
        metrics.WORKER_FAILURES.labels(name).inc()
        # A failure that repeats every few seconds is logged once.
        is_old = isinstance(error, _PartlyDoneError | LockedError) and said == job.last_error
        level = logging.DEBUG if is_old else logging.ERROR
        logger.log(level, "the %s job failed and will be retried in %d s: %s", name, wait_ms // 1000, error)
        return wait_ms

    def _seal(self) -> None:
        turns = TopicOrder(self._keeper, "seal")
        now_ms = self._clock.now_ms()

        def seal(name: str) -> list[str]:
            waiting = self._unsealed.get(name)
            if self._stop.is_set() or (waiting is not None and waiting.must_wait(now_ms)):
                return [waiting.message] if waiting is not None else []
            turns.take(name, save=False)
            report = self._log.topic(name).seal_rolled(
                # Called before the first file is written, if there is one.
                progress=lambda done, _total: self._keeper.save() if done == 0 else None,
                stop=self._stop.is_set,
            )
            settings = self._log.topic(name).settings
            if report.segments and settings.compacts and settings.min_cleanable_dirty_ratio == 0:
                self._ask_for_compaction()
            return [f"{name} partition {partition}: {what}" for partition, what in report.problems]

        visited = self._log.visit(seal, turns.in_order(self._log.own_topics()))
        problems = {name: "; ".join(own) for name, own in visited.found.items() if own}
        problems |= {name: f"{name}: {error}" for name, error in visited.problems.items()}
        self._note_unsealed(problems, now_ms)
        if problems:
            failures = max(each.failures for each in self._unsealed.values())
            raise _PartlyDoneError("; ".join(problems.values()), failures)

    def _ask_for_compaction(self) -> None:
        """Let the next compaction begin at once, unless the first one has not begun or the last one failed."""
        job = self.status.jobs["compact"]
        with self._keeper.lock:
            self._compact_soon = True
            if job.last_run_ms is not None and not job.failures:
                job.next_run_ms = min(job.next_run_ms, self._clock.now_ms())

    def _note_unsealed(self, problems: Mapping[str, str], now_ms: int) -> None:
        found: dict[str, _Unsealed] = {}
        for name, message in problems.items():
            before = self._unsealed.get(name)
            if before is not None and before.must_wait(now_ms):
                found[name] = before
                continue
            count = 1 if before is None else before.failures + 1
            # Its other partitions may be sealable, so it never waits for long.
            found[name] = _Unsealed(count, message, now_ms + min(pause_ms(count), LONGEST_SEAL_PAUSE_MS))
        self._unsealed = found

    def _compact(self) -> None:
        self._compact_soon = False
        try:
            self.status.erasures_left = self._log.finish_erasures()
        finally:
            # An erasure that can't continue is reported, but does not prevent compaction.
            self._compact_what_is_due()

    def _compact_what_is_due(self) -> None:
        now_ms = self._clock.now_ms()
        waiting = frozenset(
            each.place
            for each in self.status.failing
            if must_wait(each.retry_ms, now_ms, pause_ms(each.failures))
        )
        report = self._log.compact(
            exclude=waiting,
            last=tuple(self.status.interrupted),
            begin=self._keeper.take_in_hand,
            stop=self._stop.is_set,
        )
        tried = {(each.topic, each.partition) for each in report.partitions}
        left = set(self._log.own_topics()) if self.status.failing else set()
        with self._keeper.lock:
            counts = {each.place: each.failures for each in self.status.failing}
            self.status.failing = [
                each for each in self.status.failing if each.topic in left and each.place in waiting - tried
            ]
            for failure in report.failures:
                count = counts.get((failure.topic, failure.partition), 0) + 1
                self.status.failing.append(
                    FailingCompaction(
                        topic=failure.topic,
                        partition=failure.partition,
                        failures=count,
                        message=failure.message,
                        retry_ms=now_ms + pause_ms(count),
                    )
                )
            self._keeper.put_down(tried, all_of_it=not self._stop.is_set())

    def compacted(self, done: Collection[TopicOrPartition]) -> None:
        """Clear the failures of partitions that a user has compacted, and those of their topics as a whole."""
        topics = {topic for topic, _ in done}
        with self._keeper.lock:
            self.status.failing = [
                each
                for each in self.status.failing
                if each.place not in done and (each.partition is not None or each.topic not in topics)
            ]
            metrics.UNCLEANABLE_PARTITIONS.set(len(self.status.failing))
            self._keeper.save()

    def _retain(self, step: RetentionStep) -> None:
        # The deleter looks at all topics before it removes anything, because it removes the oldest files first.
        turns = None if step == "delete" else TopicOrder(self._keeper, step)
        report = self._log.run_retention(steps=[step], turns=turns, stop=self._stop.is_set)
        if report.problems:
            raise _PartlyDoneError("; ".join(f"{topic}: {what}" for topic, what in report.problems))


def _first_status(data_folder: Path, jobs: Mapping[str, tuple[int, int]], now_ms: int) -> WorkerStatus:
    """Return the first status of a new worker, which continues from the previous worker's."""
    status = WorkerStatus(pid=os.getpid(), started_ms=now_ms)
    earlier = load_status(data_folder)
    for name, (delay_ms, _) in jobs.items():
        status.jobs[name] = JobStatus(next_run_ms=now_ms + delay_ms)
    if earlier is None:
        return status
    for name, job in status.jobs.items():
        if (before := earlier.jobs.get(name)) is not None:
            # Otherwise a worker that is restarted repeatedly would put off each job that has to wait.
            job.next_run_ms = min(job.next_run_ms, before.next_run_ms)
    # A partition that kept failing still waits: a restart is no reason to expect that it will succeed now. It is one if
    # a whole topic failed: most likely Spark could not be started, and that has been fixed.
    status.failing = [
        each if each.partition is not None else replace(each, retry_ms=now_ms) for each in earlier.failing
    ]
    status.turns = earlier.turns
    status.interrupted = [
        *(each for each in earlier.interrupted if each not in earlier.in_hand),
        *earlier.in_hand,
    ]
    return status


class _PartlyDoneError(LastwordError):
    """The error of a job that failed for some topics, named in the message. `failures`: how often one has failed."""

    def __init__(self, message: str, failures: int | None = None) -> None:
        super().__init__(message)
        self.failures = failures
