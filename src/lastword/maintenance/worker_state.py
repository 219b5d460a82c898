"""`worker.json` in the data folder: what the worker did, what keeps failing, and where its next life goes on.

It is written whenever a job ends, and before each piece of work that may take long, so that a worker that is killed
again and again still gets round: each job's next run is kept, the topic that has waited longest has the next turn, and a
compaction that was killed is tried after all others. It is not synced: after a power cut the worker begins anew.
"""

from __future__ import annotations

import json
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
"""A topic and a partition of it; None: the whole topic."""


@dataclass(slots=True)
class JobStatus:
    """When a job ran last, how it went, and when it is due."""

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

    @property
    def place(self) -> TopicOrPartition:
        return self.topic, self.partition


@dataclass(slots=True)
class WorkerStatus:
    """What the worker is doing; the content of `worker.json`."""

    pid: int
    started_ms: int
    jobs: dict[str, JobStatus] = field(default_factory=dict)
    failing: list[FailingCompaction] = field(default_factory=list)
    erasures_left: list[str] = field(default_factory=list)
    """What erasures that were asked for could not remove so far, and why."""
    turns: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each job the topics that have had a turn, with numbers that rise."""
    in_hand: list[TopicOrPartition] = field(default_factory=list)
    """What is being compacted."""
    interrupted: list[TopicOrPartition] = field(default_factory=list)
    """What was being compacted when a worker was killed, and has not been since; the longest ago first."""


def load_status(data_folder: Path) -> WorkerStatus | None:
    """What the worker of a data folder said last; None if there has been none."""
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
    """What is written. It is often, so the turns of thousands of topics are not copied first."""
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
    """The status of a worker in this process. May be used by several threads."""

    def __init__(self, data_folder: Path, status: WorkerStatus) -> None:
        self._path = data_folder / WORKER_FILE
        self.status = status
        self.lock = threading.RLock()
        """Held by whoever changes the status by what it is."""

    def save(self) -> None:
        with self.lock:
            temporary = self._path.with_suffix(".tmp")
            try:
                temporary.write_text(json.dumps(_content(self.status)))
                temporary.replace(self._path)
            except OSError as error:
                logger.warning("could not write %s: %s", self._path, error)

    # --------------------------------------------------------------------------------------- compaction

    def take_in_hand(self, places: Sequence[TopicOrPartition]) -> None:
        """Note what is compacted next: if the worker is killed now, that has had its turn."""
        with self.lock:
            self.status.in_hand = list(places)
            self.save()

    def put_down(self, done: Iterable[TopicOrPartition], *, all_of_it: bool) -> None:
        """A run has ended, with `all_of_it` after everything that was due."""
        with self.lock:
            self.status.in_hand = []
            gone = set(done)
            self.status.interrupted = (
                [] if all_of_it else [each for each in self.status.interrupted if each not in gone]
            )


class TopicOrder:
    """Whose turn it is in one job over all topics: the one that has waited longest. Kept over restarts."""

    def __init__(self, keeper: StatusKeeper, job: str) -> None:
        self._keeper = keeper
        self._job = job
        self._saved_s = float("-inf")

    def in_order(self, topics: Iterable[str]) -> list[str]:
        """Topics by how long they have waited; those that never had a turn are first."""
        with self._keeper.lock:
            names = set(topics)
            all_turns = self._keeper.status.turns
            # Those that are gone are forgotten.
            own = {name: at for name, at in all_turns.get(self._job, {}).items() if name in names}
            all_turns[self._job] = own
            return sorted(names, key=lambda name: (own.get(name, 0), name))

    def take(self, topic: str, *, save: bool = True) -> None:
        """Note that a topic has its turn now, whether its work will be done or killed.

        It is written for the first topic of a run, and then every TURNS_SAVED_EVERY_S: where thousands of topics take a
        moment each, writing would take longer than they do. So a worker that is killed loses turns of the last moment
        only, and the one that it did not survive is the first, and written, in a later life. Without `save` nothing is
        written: enough where there is nothing to do.
        """
        with self._keeper.lock:
            own = self._keeper.status.turns.setdefault(self._job, {})
            own[topic] = max(own.values(), default=0) + 1
            if save and monotonic_s() - self._saved_s >= TURNS_SAVED_EVERY_S:
                self._keeper.save()
                self._saved_s = monotonic_s()
