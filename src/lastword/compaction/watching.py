"""The progress of the units of a compaction, for the caller that asked for it."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lastword.compaction.engine import Job
from lastword.compaction.planned import Planned
from lastword.compaction.progress import read_progress
from lastword.compaction.request import OnRecordsAndBytes


class Watch:
    """Adds up the progress of all units, from the small files that tasks on this machine write."""

    def __init__(self, planned: Sequence[Planned], progress: OnRecordsAndBytes | None) -> None:
        self._progress = progress
        self._records = sum(each.plan.records for each in planned)
        self._bytes = sum(each.plan.size_bytes for each in planned)
        self._done_records = self._done_bytes = 0

    def watching(self, planned: Sequence[Planned]) -> _Watching:
        return _Watching(self, planned)

    @property
    def wanted(self) -> bool:
        return self._progress is not None

    def show(self, records: int, size_bytes: int) -> None:
        if self._progress is not None:
            self._progress(
                min(self._done_records + records, self._records),
                self._records,
                min(self._done_bytes + size_bytes, self._bytes),
                self._bytes,
            )

    def done(self, planned: Sequence[Planned]) -> None:
        self._done_records += sum(each.plan.records for each in planned)
        self._done_bytes += sum(each.plan.size_bytes for each in planned)
        self.show(0, 0)

    def begin_again(self, stale: Sequence[Planned], replanned: Sequence[Planned]) -> None:
        """Take the stale plans out of the counts, and add the new ones, which may be more or less work."""
        for sign, some in ((-1, stale), (1, replanned)):
            self._records += sign * sum(each.plan.records for each in some)
            self._bytes += sign * sum(each.plan.size_bytes for each in some)
        self._done_records -= sum(each.plan.records for each in stale)
        self._done_bytes -= sum(each.plan.size_bytes for each in stale)

    def finish(self) -> None:
        self._done_records, self._done_bytes = self._records, self._bytes
        self.show(0, 0)


class _Watching:
    """A context in which a thread reports the progress of the jobs."""

    def __init__(self, watch: Watch, planned: Sequence[Planned]) -> None:
        self._watch = watch
        self._planned = planned
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> list[Job]:
        if not self._watch.wanted:
            return [each.job for each in self._planned]
        self._folder = tempfile.TemporaryDirectory(prefix="lastword-progress-")
        self._thread.start()
        return [
            replace(each.job, unit=replace(each.job.unit, progress_path=str(self._path(index))))
            for index, each in enumerate(self._planned)
        ]

    def __exit__(self, *exc: object) -> None:
        if self._folder is not None:
            self._stop.set()
            self._thread.join()
            self._folder.cleanup()

    def _path(self, index: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / str(index)

    def _run(self) -> None:
        assert self._folder is not None
        while not self._stop.wait(0.1):
            # A unit that several tasks rewrite has a file for each of them.
            counts = [read_progress(path) for path in Path(self._folder.name).iterdir()]
            self._watch.show(sum(records for records, _ in counts), sum(size for _, size in counts))
