"""`worker.json` in the data folder: the worker's past runs, repeated failures, and where a restarted worker resumes.

It is written whenever a job ends, and before each piece of work that may take long, so that a worker that is killed
repeatedly still reaches every topic: each job's next run is kept, the topic that has waited longest is next, and a
compaction that was killed is tried after all others. It is not synced: after a power cut the worker starts afresh.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lastword.clock import monotonic_s
from lastword.folder import state_file
from lastword.folder.paths import WORKER_FILE

logger = logging.getLogger(__name__)

TURNS_SAVED_EVERY_S = 1.0

TopicOrPartition = tuple[str, int | None]
"""A topic and one of its partitions, or None for the whole topic."""


@dataclass(slots=True)
class JobStatus:
    """The last run of a job, its failures, and when it is due next."""

    last_run_ms: int | None = None
    last_duration_s: float | None = None
    failures: int = 0
    last_error: str | None = None
    next_run_ms: int = 0


@dataclass(slots=True)
class FailingCompaction:
    """A partition whose compaction keeps failing, or a whole topic if `partition` is None."""

    topic: str
    partition: int | None
    failures: int
    message: str
    retry_ms: int

    @property
    def place(self) -> TopicOrPartition:
        return self.topic, self.partition


@dataclass(slots=True)
class WorkerStatus:
    """The status of the worker, which is the content of `worker.json`."""

    pid: int
    started_ms: int
    jobs: dict[str, JobStatus] = field(default_factory=dict)
    failing: list[FailingCompaction] = field(default_factory=list)
    erasures_left: list[str] = field(default_factory=list)
    """Copies of keys that requested erasures could not remove so far, with the reasons."""
    turns: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each job, the topics that have had a turn. Later turns have higher numbers."""
    in_hand: list[TopicOrPartition] = field(default_factory=list)
    """The topics and partitions that are being compacted."""
    interrupted: list[TopicOrPartition] = field(default_factory=list)
    """Those being compacted when a worker was killed, and not compacted since, longest ago first."""


def load_status(data_folder: Path) -> WorkerStatus | None:
    """Return the last saved status of a data folder's worker, or None if there has been none."""
    return state_file.load_if_whole(data_folder / WORKER_FILE, _status_from)


def _status_from(saved: dict[str, Any]) -> WorkerStatus:
    return WorkerStatus(
        pid=saved["pid"],
        started_ms=saved["started_ms"],
        jobs={name: JobStatus(**job) for name, job in saved["jobs"].items()},
        failing=[FailingCompaction(**each) for each in saved["failing"]],
        erasures_left=[str(each) for each in saved.get("erasures_left", [])],
        turns={job: dict(turns) for job, turns in saved.get("turns", {}).items()},
        in_hand=[(topic, partition) for topic, partition in saved.get("in_hand", [])],
        interrupted=[(topic, partition) for topic, partition in saved.get("interrupted", [])],
    )


def _content(status: WorkerStatus) -> dict[str, object]:
    """Return the content to write. It is written often, so the turns of thousands of topics are not copied first."""
    return {
        "pid": status.pid,
        "started_ms": status.started_ms,
        "jobs": {name: asdict(job) for name, job in status.jobs.items()},
        "failing": [asdict(each) for each in status.failing],
        "erasures_left": status.erasures_left,
        "in_hand": status.in_hand,
        "interrupted": status.interrupted,
        "turns": status.turns,
    }


class StatusKeeper:
    """The status of a worker in this process. Thread-safe."""

    def __init__(self, data_folder: Path, status: WorkerStatus) -> None:
        self._path = data_folder / WORKER_FILE
        self.status = status
        self.lock = threading.RLock()
        """Held by a thread that changes the status based on its current value."""

    def save(self) -> None:
        with self.lock:
            try:
                state_file.save(self._path, _content(self.status), synced=False)
            except OSError as error:
                logger.warning("could not write %s: %s", self._path, error)

    # --------------------------------------------------------------------------------------- compaction

    def take_in_hand(self, places: Sequence[TopicOrPartition]) -> None:
        """Note what is compacted next. If the worker is killed now, that has had its turn."""
        with self.lock:
            self.status.in_hand = list(places)
            self.save()

    def put_down(self, done: Iterable[TopicOrPartition], *, all_of_it: bool) -> None:
        """Note that a run has ended. With `all_of_it`, it has done everything that was due."""
        with self.lock:
            self.status.in_hand = []
            gone = set(done)
            self.status.interrupted = (
                [] if all_of_it else [each for each in self.status.interrupted if each not in gone]
            )


class TopicOrder:
    """The order of the topics in one job: the one that has waited longest is next. It survives restarts."""

    def __init__(self, keeper: StatusKeeper, job: str) -> None:
        self._keeper = keeper
        self._job = job
        self._saved_s = float("-inf")

    def in_order(self, topics: Iterable[str]) -> list[str]:
        """Sort topics by how long they have waited. Those that never had a turn are first."""
        with self._keeper.lock:
            names = set(topics)
            all_turns = self._keeper.status.turns
            # Forget deleted topics.
            own = {name: at for name, at in all_turns.get(self._job, {}).items() if name in names}
            all_turns[self._job] = own
            return sorted(names, key=lambda name: (own.get(name, 0), name))

    def take(self, topic: str, *, save: bool = True) -> None:
        """Note that a topic has its turn now, whether its work is finished or killed.

        The turn is saved for the first topic of a run, and then every TURNS_SAVED_EVERY_S: with thousands of topics
        that take a moment each, saving would take longer than the work. So a killed worker loses only the turns of the
        last moment, and the topic that killed it is eventually first in a run, and so saved. Without `save` nothing is
        written, which is enough if the topic needs no work.
        """
        with self._keeper.lock:
            own = self._keeper.status.turns.setdefault(self._job, {})
            own[topic] = max(own.values(), default=0) + 1
            if save and monotonic_s() - self._saved_s >= TURNS_SAVED_EVERY_S:
                self._keeper.save()
                self._saved_s = monotonic_s()
