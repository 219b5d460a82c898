"""Compacts one partition in one task: finds survivors on one thread, rewrites on others meanwhile.

This is where the parts meet, wherever it runs: in an executor's task, or in this process. A failure leaves files
that nothing names, and nothing else.
"""

from __future__ import annotations

import os
import queue
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lastword.clock import monotonic_s
from lastword.compaction import grouping
from lastword.compaction.grouping import Member
from lastword.compaction.rewrite import Examined, Part, rewrite
from lastword.compaction.rules import oldest_of_all
from lastword.compaction.survivors import Mask, Survivors
from lastword.compaction.unit import Outcome, Rewritten, Unit

_PROGRESS = struct.Struct(">QQ")


def compact(unit: Unit) -> Outcome:
    """One stage: find and rewrite at the same time."""
    started_s = monotonic_s()
    survivors = Survivors(unit)
    progress = Progress(unit.progress_path)
    results = _rewrite_all(unit, survivors.masks(), progress)
    return outcome(
        unit,
        results,
        read_bytes=survivors.read_bytes,
        set_bytes=survivors.set_bytes,
        duration_s=monotonic_s() - started_s,
    )


def rewrite_masked(unit: Unit, masks: Sequence[Mask]) -> Outcome:
    """The second of two stages: the masks are known."""
    started_s = monotonic_s()
    newest_first = reversed(list(enumerate(masks)))
    results = _rewrite_all(unit, iter(newest_first), Progress(unit.progress_path))
    return outcome(unit, results, duration_s=monotonic_s() - started_s)


def split(unit: Unit, masks: Sequence[Mask], pieces: int) -> list[tuple[Unit, list[Mask]]]:
    """The groups of a unit dealt out to several units, so that several tasks can rewrite it."""
    grouped = [list(reversed(group)) for group, _ in _groups(unit, iter(reversed(list(enumerate(masks)))))]
    grouped.reverse()
    share = max(1, -(-len(grouped) // pieces))
    dealt = []
    for start in range(0, len(grouped), share):
        indexes = [member.index for group in grouped[start : start + share] for member in group]
        dealt.append(
            (
                replace(unit, segments=tuple(unit.segments[index] for index in indexes)),
                [masks[index] for index in indexes],
            )
        )
    return dealt


def outcome(
    unit: Unit,
    results: Sequence[Rewritten | Examined | bool],
    *,
    read_bytes: int = 0,
    set_bytes: int = 0,
    duration_s: float = 0.0,
) -> Outcome:
    rewritten = tuple(each for each in results if isinstance(each, Rewritten))
    examined = [each for each in results if isinstance(each, Examined)]
    return Outcome(
        topic=unit.topic,
        partition=unit.partition,
        segments=unit.segments,
        rewritten=rewritten,
        spared=any(each is True for each in results),
        read_bytes=read_bytes
        + sum(each.read_bytes for each in rewritten)
        + sum(each.read_bytes for each in examined),
        duration_s=duration_s,
        peak_set_bytes=set_bytes,
        examined=tuple(each.segment.path for each in examined),
        oldest_examined=oldest_of_all(each.oldest for each in examined),
    )


def _rewrite_all(
    unit: Unit, masks: Iterator[tuple[int, Mask]], progress: Progress
) -> list[Rewritten | Examined | bool]:
    """Rewrite group by group while the masks come in. True stands for a segment that was spared."""
    results: list[Rewritten | Examined | bool] = []

    def do(parts: list[Part]) -> None:
        if (done := rewrite(unit, parts)) is not None:
            results.append(done)
        progress.add(
            sum(part.segment.records for part in parts), sum(part.segment.size_bytes for part in parts)
        )

    with _Workers(unit.threads - 1, do) as workers:
        for group, found in _groups(unit, masks):
            if len(group) == 1 and _spares(unit, group[0].index, int(found[group[0].index].sum())):
                results.append(True)
                spared = unit.segments[group[0].index]
                progress.add(spared.records, spared.size_bytes)
                continue
            workers.put(
                [Part(unit.segments[member.index], found.pop(member.index)) for member in reversed(group)]
            )
    return results


def _groups(unit: Unit, masks: Iterator[tuple[int, Mask]]) -> Iterator[tuple[list[Member], dict[int, Mask]]]:
    found: dict[int, Mask] = {}

    def members() -> Iterator[Member]:
        for index, mask in masks:
            found[index] = mask
            yield _member(unit, index, mask)

    for group in grouping.groups(members(), merge_bytes=unit.merge_bytes, span_ms=unit.merge_span_ms):
        yield group, found


def _member(unit: Unit, index: int, mask: Mask) -> Member:
    segment = unit.segments[index]
    kept = int(np.count_nonzero(mask))
    spared = _spares(unit, index, kept)
    loses = kept < segment.records and not spared
    return Member(
        index=index,
        expected_bytes=segment.size_bytes if spared else segment.size_bytes * kept // segment.records,
        free_to_join=loses or not unit.keyed or not unit.is_clean(segment),
        min_timestamp_ms=segment.min_timestamp_ms,
        max_timestamp_ms=segment.max_timestamp_ms,
    )


def _spares(unit: Unit, index: int, kept: int) -> bool:
    """Whether a clean segment has too little garbage to be rewritten.

    Where a winner may go, no record that it beats may stay behind: then nothing is spared.
    """
    segment = unit.segments[index]
    garbage = segment.records - kept
    return (
        garbage > 0
        and unit.is_clean(segment)
        and not unit.rules.may_drop_winners
        and segment.first_offset >= unit.rules.log_start
        and garbage / segment.records < unit.min_rewrite_ratio
    )


class _Workers:
    """Threads that do what is put, or the calling thread if there are none. The first error ends all."""

    def __init__(self, count: int, do: Callable[[list[Part]], None]) -> None:
        self._do = do
        self._queue: queue.SimpleQueue[list[Part] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def put(self, parts: list[Part]) -> None:
        if self._error is not None:
            raise self._error
        if self._threads:
            self._queue.put(parts)
        else:
            self._do(parts)

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            # This thread has found all masks: it helps with what is left.
            while self._error is None:
                try:
                    parts = self._queue.get_nowait()
                except queue.Empty:
                    break
                if parts is not None:
                    self._try(parts)
        else:
            self._error = self._error or RuntimeError("stopped")
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (parts := self._queue.get()) is not None:
            if self._error is None:
                self._try(parts)

    def _try(self, parts: list[Part]) -> None:
        try:
            self._do(parts)
        except BaseException as error:  # noqa: BLE001 - raised again when all threads have ended
            self._error = self._error or error


class Progress:
    """Counts what a task has done in a small file that whoever started it reads; without a path nowhere."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._records = self._bytes = 0
        self._lock = threading.Lock()

    def add(self, records: int, size_bytes: int) -> None:
        if self._path is None:
            return
        with self._lock:
            self._records += records
            self._bytes += size_bytes
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(fd, _PROGRESS.pack(self._records, self._bytes), 0)
            finally:
                os.close(fd)


def read_progress(path: Path) -> tuple[int, int]:
    """Records and bytes that a task has been through."""
    try:
        records, size_bytes = _PROGRESS.unpack(path.read_bytes())
    except (FileNotFoundError, struct.error):
        return 0, 0
    return records, size_bytes
