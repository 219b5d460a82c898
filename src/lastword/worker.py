"""The one background loop: seals, compacts, applies retention, deletes, expires, collects and measures, each in its time.

The worker only decides when. What is done is the log's: every job is a call that could be made by hand, is
isolated from the others, and leaves a whole state behind at each commit. A stop request ends the loop between two
commits. A job that fails is tried again after a pause that doubles, up to an hour; so is each partition whose
compaction fails, while the others go on.

`worker.json` in the data folder says what it did last and what keeps failing, for `describe` and for operators.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

from lastword import disk, metrics
from lastword.clock import Clock, monotonic_s
from lastword.config import BrokerConfig
from lastword.errors import LastwordError
from lastword.listing import Visited
from lastword.locks import Role, RoleLock

if TYPE_CHECKING:
    from lastword.compaction.job import CompactionReport
    from lastword.tiering import SealReport

logger = logging.getLogger(__name__)

T = TypeVar("T")

STATUS_FILE = "worker.json"

RetentionStep = Literal["retention", "delete", "expire", "collect"]
"""What a round of retention consists of: sealed segments, WAL files, snapshots, files that nothing names."""
LONGEST_PAUSE_MS = 3_600_000
FIRST_PAUSE_MS = 10_000
MEASURE_INTERVAL_MS = 30_000
_LONGEST_WAIT_MS = 1_000


@dataclass(slots=True)
class JobStatus:
    """When a job ran last, and how it went."""

    last_run_ms: int | None = None
    last_duration_s: float | None = None
    failures: int = 0
    last_error: str | None = None
    next_run_ms: int = 0


@dataclass(slots=True)
class FailingCompaction:
    """A partition whose compaction keeps failing, or without a partition a whole topic."""

    topic: str
    partition: int | None
    failures: int
    message: str
    retry_ms: int


@dataclass(slots=True)
class WorkerStatus:
    """What the worker is doing; the content of `worker.json`."""

    pid: int
    started_ms: int
    jobs: dict[str, JobStatus] = field(default_factory=dict)
    failing: list[FailingCompaction] = field(default_factory=list)


class MaintainedTopic(Protocol):
    """What the worker asks of a topic."""

    def seal_rolled(self) -> SealReport: ...


class RetentionOutcome(Protocol):
    """What the worker looks at in the report of a retention round."""

    @property
    def problems(self) -> tuple[tuple[str, str], ...]: ...


class Maintained(Protocol):
    """What the worker asks of a log."""

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> BrokerConfig: ...

    def topics(self, *, include_internal: bool = False) -> list[str]: ...

    def topic(self, name: str) -> MaintainedTopic: ...

    def visit(self, act: Callable[[str], T]) -> Visited[T]: ...

    def compact(
        self, *, exclude: Collection[tuple[str, int | None]], stop: Callable[[], bool]
    ) -> CompactionReport: ...

    def measure(self) -> None: ...

    def run_retention(self, *, steps: Iterable[RetentionStep]) -> RetentionOutcome: ...

    def finish_erasures(self) -> None: ...


def load_status(data_folder: Path) -> WorkerStatus | None:
    """What the worker of a data folder said last; None if there has been none."""
    try:
        saved = json.loads((data_folder / STATUS_FILE).read_bytes())
        return WorkerStatus(
            pid=saved["pid"],
            started_ms=saved["started_ms"],
            jobs={name: JobStatus(**job) for name, job in saved["jobs"].items()},
            failing=[FailingCompaction(**each) for each in saved["failing"]],
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def pause_ms(failures: int) -> int:
    """How long to wait after so many failures in a row."""
    return min(FIRST_PAUSE_MS << min(failures - 1, 20), LONGEST_PAUSE_MS)


def schedule(config: BrokerConfig) -> dict[str, tuple[int, int]]:
    """Each job's delay after the start and the pause between two runs, in milliseconds."""
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


class Worker:
    """Runs a log's maintenance when it is due."""

    def __init__(self, log: Maintained, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # The loop and whoever wants every job at once take turns.
        self._turn = threading.RLock()
        now_ms = clock.now_ms()
        self._schedule = schedule(log.config)
        self.status = WorkerStatus(pid=os.getpid(), started_ms=now_ms)
        if earlier := load_status(log.path):
            # A partition that kept failing goes on waiting: a restart is no reason to think that it will do now. It is
            # one where a whole topic failed: most likely Spark could not be started, and somebody has seen to that.
            self.status.failing = [
                each if each.partition is not None else replace(each, retry_ms=now_ms)
                for each in earlier.failing
            ]
        for name, (delay_ms, _) in self._schedule.items():
            self.status.jobs[name] = JobStatus(next_run_ms=now_ms + delay_ms)
        self._do: dict[str, Callable[[], None]] = {
            "seal": self._seal,
            "compact": self._compact,
            "retention": lambda: self._retain("retention"),
            "delete": lambda: self._retain("delete"),
            "expire": lambda: self._retain("expire"),
            "collect": lambda: self._retain("collect"),
            "measure": self._log.measure,
        }

    # ------------------------------------------------------------------------------------------ running

    def run_due(self) -> list[str]:
        """Run the jobs whose time has come; their names."""
        done: list[str] = []
        for name, job in self.status.jobs.items():
            if self._stop.is_set():
                break
            with self._turn:
                if job.next_run_ms <= self._clock.now_ms():
                    self._run_job(name, job)
                    done.append(name)
        return done

    def run_all(self) -> None:
        """Run every job once, now. The loop, if it runs, waits meanwhile."""
        with self._turn:
            for name, job in self.status.jobs.items():
                if not self._stop.is_set():
                    self._run_job(name, job)

    def run(self) -> None:
        """Run jobs as they fall due, until `stop`. LockedError if the log has a worker already."""
        with RoleLock.acquire(self._log.path, Role.WORKER, self._clock):
            while not self._stop.is_set():
                self.run_due()
                next_ms = min(job.next_run_ms for job in self.status.jobs.values())
                wait_ms = min(max(next_ms - self._clock.now_ms(), 1), _LONGEST_WAIT_MS)
                self._stop.wait(wait_ms / 1000)

    def start(self) -> Self:
        """Run in a thread of this process."""
        self._thread = threading.Thread(target=self.run, name="lastword-worker", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask the worker to end; it does between two commits."""
        self._stop.set()

    def close(self) -> None:
        """Stop, and wait until it has."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------- jobs

    def _run_job(self, name: str, job: JobStatus) -> None:
        started_s = monotonic_s()
        try:
            self._do[name]()
            job.failures, job.last_error = 0, None
        except LastwordError as error:
            self._failed(name, job, error)
        except Exception as error:
            # A bug in one job must not end the others.
            logger.exception("the %s job met an unexpected error", name)
            self._failed(name, job, error)
        now_ms = self._clock.now_ms()
        job.last_run_ms, job.last_duration_s = now_ms, monotonic_s() - started_s
        interval_ms = self._schedule[name][1]
        job.next_run_ms = now_ms + (max(interval_ms, pause_ms(job.failures)) if job.failures else interval_ms)
        metrics.WORKER_LAST_RUN.labels(name).set(now_ms / 1000)
        metrics.UNCLEANABLE_PARTITIONS.set(len(self.status.failing))
        self._save()

    def _failed(self, name: str, job: JobStatus, error: Exception) -> None:
        job.failures += 1
        job.last_error = str(error) or type(error).__name__
        metrics.WORKER_FAILURES.labels(name).inc()
        logger.error(
            "the %s job failed and is tried again in %d s: %s", name, pause_ms(job.failures) // 1000, error
        )

    def _seal(self) -> None:
        def seal(name: str) -> list[str]:
            if self._stop.is_set():
                return []
            report = self._log.topic(name).seal_rolled()
            return [f"{name} partition {partition}: {what}" for partition, what in report.problems]

        visited = self._log.visit(seal)
        problems = [each for own in visited.found.values() for each in own]
        problems += [f"{name}: {error}" for name, error in visited.problems.items()]
        if problems:
            raise _WorkError("; ".join(problems))

    def _compact(self) -> None:
        self._log.finish_erasures()
        now_ms = self._clock.now_ms()
        waiting = frozenset(
            (each.topic, each.partition) for each in self.status.failing if each.retry_ms > now_ms
        )
        report = self._log.compact(exclude=waiting, stop=self._stop.is_set)
        tried = {(each.topic, each.partition) for each in report.partitions}
        counts = {(each.topic, each.partition): each.failures for each in self.status.failing}
        left = set(self._log.topics(include_internal=True)) if self.status.failing else set()
        self.status.failing = [
            each
            for each in self.status.failing
            if each.topic in left and (each.topic, each.partition) in waiting - tried
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

    def _retain(self, step: RetentionStep) -> None:
        report = self._log.run_retention(steps=[step])
        if report.problems:
            raise _WorkError("; ".join(f"{topic}: {what}" for topic, what in report.problems))

    def _save(self) -> None:
        content: dict[str, Any] = asdict(self.status)
        try:
            disk.replace_file(self._log.path / STATUS_FILE, json.dumps(content, indent=1).encode())
        except OSError as error:
            logger.warning("could not write %s: %s", self._log.path / STATUS_FILE, error)


class _WorkError(LastwordError):
    """A job that was done but for some topics or partitions, which the message names."""
