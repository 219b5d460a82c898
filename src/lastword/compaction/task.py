"""Compacts one partition in one task: finds survivors on one thread while others rewrite.

This module ties the parts together, both in an executor's task and in this process. A failure leaves only files
that nothing refers to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from lastword.clock import monotonic_s
from lastword.compaction import grouping
from lastword.compaction.grouping import Member
from lastword.compaction.pool import Pool
from lastword.compaction.progress import ProgressFile
from lastword.compaction.rewrite import Ahead, Examined, Part, read_ahead, rewrite
from lastword.compaction.rules import oldest_of_all
from lastword.compaction.survivors import Mask, Survivors
from lastword.compaction.unit import Marked, Outcome, Rewritten, Unit
from lastword.segments.footer import FileMetadata

Result = Rewritten | Marked | Examined


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
    results: Sequence[Result],
    *,
    read_bytes: int = 0,
    set_bytes: int = 0,
    duration_s: float = 0.0,
) -> Outcome:
    rewritten = tuple(each for each in results if isinstance(each, Rewritten))
    marked = tuple(each for each in results if isinstance(each, Marked))
    examined = [each for each in results if isinstance(each, Examined)]
    return Outcome(
        topic=unit.topic,
        partition=unit.partition,
        segments=unit.segments,
        rewritten=rewritten,
        marked=marked,
        read_bytes=read_bytes + sum(each.read_bytes for each in results),
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
) -> list[Result]:
    """Rewrite or mark group by group while the masks arrive."""
    results: list[Result] = []
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
                if member.is_rewritten:
                    read_ahead(unit, part, pool, ahead)
                found[index] = part
                yield member

        for group in _groups(unit, members()):
            pool.put(partial(do, [found.pop(member.index) for member in reversed(group)]))
    return results


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
    is_rewritten = unit.rewrites(segment, kept)
    is_small = segment.whole.size_bytes <= grouping.SMALL_BYTES
    return Member(
        index=index,
        expected_bytes=segment.whole.size_bytes * kept // segment.rows,
        is_rewritten=is_rewritten,
        free_to_join=is_rewritten or not unit.keyed or (is_small and not unit.is_clean(segment)),
        min_timestamp_ms=segment.min_timestamp_ms,
        max_timestamp_ms=segment.max_timestamp_ms,
    )
