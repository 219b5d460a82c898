"""Compacts one partition in one task: finds survivors on one thread while others rewrite.

This module ties the parts together, both in an executor's task and in this process. A failure leaves only files
that nothing refers to.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from lastword.clock import monotonic_s
from lastword.compaction import grouping
from lastword.compaction.grouping import Member
from lastword.compaction.pool import Pool
from lastword.compaction.rewrite import Ahead, Examined, Part, read_ahead, rewrite
from lastword.compaction.rules import oldest_of_all
from lastword.compaction.survivors import Mask, Survivors
from lastword.compaction.unit import Outcome, Rewritten, Unit
from lastword.segments.footer import FileMetadata
from lastword.segments.model import Segment

_PROGRESS = struct.Struct(">QQ")


def compact(unit: Unit) -> Outcome:
    """Run the only stage: find and rewrite at the same time."""
    started_s = monotonic_s()
    survivors = Survivors(unit)
    progress = ProgressFile(unit.progress_path)
    results = _rewrite_all(unit, survivors.masks(), progress, survivors.footers)
    return outcome(
        unit,
        results,
        read_bytes=survivors.read_bytes,
        set_bytes=survivors.set_bytes,
        duration_s=monotonic_s() - started_s,
    )


def rewrite_masked(unit: Unit, masks: Sequence[Mask]) -> Outcome:
    """Run the second of two stages: the masks are known."""
    started_s = monotonic_s()
    newest_first = reversed(list(enumerate(masks)))
    results = _rewrite_all(unit, iter(newest_first), ProgressFile(unit.progress_path))
    return outcome(unit, results, duration_s=monotonic_s() - started_s)


def split(unit: Unit, masks: Sequence[Mask], pieces: int) -> list[tuple[Unit, list[Mask]]]:
    """Distribute the groups of a unit over several units, so that several tasks can rewrite it."""
    members = [_member(unit, index, _kept(mask)) for index, mask in reversed(list(enumerate(masks)))]
    grouped = [list(reversed(group)) for group in _groups(unit, members)]
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
    unit: Unit,
    masks: Iterator[tuple[int, Mask]],
    progress: ProgressFile,
    footers: Mapping[int, FileMetadata] | None = None,
) -> list[Rewritten | Examined | bool]:
    """Rewrite group by group while the masks arrive. True stands for a segment that was spared."""
    results: list[Rewritten | Examined | bool] = []
    ahead = Ahead()

    def do(parts: list[Part]) -> None:
        if (done := rewrite(unit, parts, pool, ahead)) is not None:
            results.append(done)
        progress.add(
            sum(part.segment.records for part in parts), sum(part.segment.size_bytes for part in parts)
        )

    with Pool(unit.threads - 1) as pool:
        found: dict[int, Part] = {}

        def members() -> Iterator[Member]:
            for index, mask in masks:
                part = Part(unit.segments[index], mask, (footers or {}).get(index))
                member = _member(unit, index, _kept(mask))
                if member.loses:
                    read_ahead(unit, part, pool, ahead)
                found[index] = part
                yield member

        for group in _groups(unit, members()):
            parts = [found.pop(member.index) for member in reversed(group)]
            if _is_spared(group):
                results.append(True)
                progress.add(parts[0].segment.records, parts[0].segment.size_bytes)
            else:
                pool.put(partial(do, parts))
    return results


def spared(unit: Unit, kept: Sequence[int]) -> set[int]:
    """Return the indexes of segments that a run leaves alone although they would lose records.

    `kept` is the number of records that each would keep.
    """
    members = [_member(unit, index, each) for index, each in reversed(list(enumerate(kept)))]
    return {group[0].index for group in _groups(unit, members) if _is_spared(group)}


def may_spare(unit: Unit) -> bool:
    """Return whether a segment could be spared, without looking at its keys."""
    return any(_spares(unit, segment, segment.records - 1) for segment in unit.segments)


def _is_spared(group: Sequence[Member]) -> bool:
    """Return whether a group is left alone. A segment that is joined with others is always rewritten."""
    return len(group) == 1 and group[0].spared


def _kept(mask: Mask) -> int:
    return int(np.count_nonzero(mask))


def _groups(unit: Unit, members: Iterable[Member]) -> Iterator[list[Member]]:
    return grouping.groups(
        members,
        merge_bytes=unit.merge_bytes,
        enough_bytes=grouping.large_enough(unit.merge_bytes, unit.size_bytes),
        span_ms=unit.merge_span_ms,
    )


def _member(unit: Unit, index: int, kept: int) -> Member:
    segment = unit.segments[index]
    spared = _spares(unit, segment, kept)
    loses = kept < segment.records and not spared
    return Member(
        index=index,
        expected_bytes=segment.size_bytes if spared else segment.size_bytes * kept // segment.records,
        loses=loses,
        spared=spared,
        free_to_join=loses or not unit.keyed or not unit.is_clean(segment),
        min_timestamp_ms=segment.min_timestamp_ms,
        max_timestamp_ms=segment.max_timestamp_ms,
    )


def _spares(unit: Unit, segment: Segment, kept: int) -> bool:
    """Return whether a clean segment has too little garbage to be rewritten.

    If a winner may be removed, no record that it beats may stay behind: then nothing is spared.
    """
    garbage = segment.records - kept
    return (
        garbage > 0
        and unit.is_clean(segment)
        and not unit.rules.may_drop_winners
        and segment.first_offset >= unit.rules.log_start
        and garbage / segment.records < unit.min_rewrite_ratio
    )


class ProgressFile:
    """Counts the work of a task in a small file that the starting process reads. Without a path it does nothing."""

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
    """Return the records and bytes that a task has processed."""
    try:
        records, size_bytes = _PROGRESS.unpack(path.read_bytes())
    except (FileNotFoundError, struct.error):
        return 0, 0
    return records, size_bytes
