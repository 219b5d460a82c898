"""Plans what compaction does, and says why: pure functions of metadata, settings and the time.

Under a policy with `compact`, a partition is *due* when it has dirty segments that may be compacted, and its dirty
ratio reaches min.cleanable.dirty.ratio or a dirty record is older than max.compaction.lag.ms. It is also due when
tombstones can actually be removed now. Under `delete` alone it is due when enough small segments can be joined. Under any
policy it is due when marks are too old.
It is never due for something that a run can't change.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal

from lastword.compaction import rules as rule
from lastword.compaction.request import WHAT_IS_DUE, Scope
from lastword.compaction.rules import ReaderHold, Rules
from lastword.compaction.strategy import strategy_of
from lastword.config import TopicSettings
from lastword.segments.model import Positions, Segment, SegmentTotals

Reason = Literal[
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "superseded records",
    "tombstones",
    "garbage",
    "small segments",
    "asked for",
]
Way = Literal["one stage", "two stages", "Spark SQL"]

JOIN_COUNT = 8
"""The number of small neighbours that makes a partition due."""

BYTES_PER_KEY = 48
"""The memory that a set needs per key beside the key's bytes, at the worst moment of growing: slots that are at
least three tenths full, an entry's head, and half of the entries once more."""

BYTES_PER_VERSION = 42
"""The memory that the best version of a key needs beside the set, at the worst moment of growing: its row, the
version and whether it is known, with twice the room that is used, and one of them once more."""

MAX_RUNS_KEPT = 16
MAX_SHARES = 16

Distinct = Callable[[Sequence[Segment]], float]
"""Estimates the number of distinct keys of some segments, from their sketches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition as planning sees it."""

    partition: int
    positions: Positions
    segments: tuple[Segment, ...]
    log_end: int
    hold: ReaderHold
    looked_ms: int | None = None
    """The time when `log_end` was read, or an earlier one; None: just now."""

    @property
    def unsealed_records(self) -> int:
        return max(0, self.log_end - max(self.positions.sealed_end, self.positions.log_start))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimate of what a run will reclaim."""

    records: int
    distinct_keys: int
    garbage_records: int
    reclaimed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan(SegmentTotals):
    """A run of one partition: its segments, from the oldest to the last that may be compacted."""

    topic: str
    partition: int
    reason: Reason
    dirty_ratio: float
    positions: Positions
    segments: tuple[Segment, ...]
    compactable_end: int
    """This run covers everything sealed below this offset."""
    seen: tuple[int, int]
    """The time when the log was looked at, and its end then."""
    rules: Rules
    keyed: bool
    now_ms: int
    rewrite_marked_ms: int = -1
    """Segments with marks from this time or before are rewritten; -1: none."""
    estimate: Estimate | None = None

    @property
    def dirty(self) -> tuple[Segment, ...]:
        return _dirty(self.segments, self.positions)

    @property
    def dirty_records(self) -> int:
        return sum(segment.records for segment in self.dirty)

    @property
    def dirty_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.dirty)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """A partition as planning sees it, how dirty it is, and the run that is due, if one is."""

    view: PartitionView
    ready: tuple[Segment, ...] = ()
    """The segments that may be compacted; none if the topic is not compacted."""
    dirty_ratio: float | None = None
    """None if the topic is not compacted."""
    overdue_ms: int = 0
    """How much older its oldest dirty record is than max.compaction.lag.ms."""
    plan: PartitionPlan | None = None


def compactable(segments: Sequence[Segment], settings: TopicSettings, now_ms: int) -> tuple[Segment, ...]:
    """Return the segments of a partition, in offset order, before the first that min.compaction.lag.ms holds back."""
    return tuple(segments[: bisect_right(compactable_from(segments, settings), now_ms)])


def compactable_from(segments: Sequence[Segment], settings: TopicSettings) -> list[int]:
    """Return when each segment of a partition may first be compacted: it and all before it must be old enough."""
    if settings.min_compaction_lag_ms == 0:
        # Records with timestamps in the future are not held back either.
        return [0] * len(segments)
    ready_ms = (segment.max_timestamp_ms + settings.min_compaction_lag_ms for segment in segments)
    return list(itertools.accumulate(ready_ms, max))


def urgency(plan: PartitionPlan) -> tuple[bool, float]:
    """Return a sort key for plans of any topics: overdue before all others, then by dirty ratio."""
    return plan.reason != "max.compaction.lag.ms", -plan.dirty_ratio


def propose(
    topic: str,
    view: PartitionView,
    settings: TopicSettings,
    now_ms: int,
    scope: Scope = WHAT_IS_DUE,
    *,
    distinct: Distinct | None = None,
) -> Assessment:
    """Assess a partition, and propose a run if one is due in this scope."""
    if not settings.compacts:
        unkeyed = _propose_rewrite(topic, view, settings, now_ms) or _propose_join(
            topic, view, settings, now_ms
        )
        return Assessment(view=view, plan=unkeyed)
    at = rule.on_clock(settings, view.positions)
    ready = compactable(view.segments, settings, now_ms)
    if not ready:
        return Assessment(view=view, dirty_ratio=0.0, plan=_propose_rewrite(topic, view, settings, now_ms))
    # The run covers everything up to the next segment, even if the last records are gone.
    following = view.segments[len(ready)].first_offset if len(ready) < len(view.segments) else at.sealed_end
    seen = (now_ms if view.looked_ms is None else view.looked_ms, view.log_end)
    rules = rule.rules_for(
        settings,
        at,
        compactable_end=following,
        all_compactable=len(ready) == len(view.segments),
        seen=seen,
        hold=view.hold,
        now_ms=now_ms,
    )
    dirty = _dirty(ready, at)
    keys = None if distinct is None else cache(partial(distinct, ready))
    ratio = _dirty_ratio(ready, dirty, settings, keys)
    overdue_ms = 0
    if dirty and settings.max_compaction_lag_ms is not None:
        age_ms = now_ms - min(segment.min_timestamp_ms for segment in dirty)
        overdue_ms = max(0, age_ms - settings.max_compaction_lag_ms)
    plan = _propose_rewrite(topic, replace(view, segments=view.segments[len(ready) :]), settings, now_ms)
    marked_ms = rewrite_marked_ms(view.segments, settings, now_ms)
    reason = _reason(ready, bool(dirty), overdue_ms, at, settings, rules, ratio, marked_ms, scope)
    if reason is not None:
        plan = PartitionPlan(
            topic=topic,
            partition=view.partition,
            reason=reason,
            dirty_ratio=ratio,
            positions=at,
            segments=ready,
            compactable_end=following,
            seen=seen,
            rules=rules,
            keyed=True,
            now_ms=now_ms,
            rewrite_marked_ms=marked_ms,
            estimate=None if keys is None else estimate(ready, keys()),
        )
    return Assessment(view=view, ready=ready, dirty_ratio=ratio, overdue_ms=overdue_ms, plan=plan)


def _dirty(segments: Sequence[Segment], at: Positions) -> tuple[Segment, ...]:
    return tuple(segment for segment in segments if segment.is_dirty(at.first_dirty))


def _dirty_ratio(
    ready: Sequence[Segment],
    dirty: Sequence[Segment],
    settings: TopicSettings,
    keys: Callable[[], float] | None,
) -> float:
    """Return the dirty ratio by bytes, or by records if the setting says so and sketches are available."""
    if not dirty:
        return 0.0
    if settings.dirty_ratio_basis == "records" and keys is not None:
        keyed = sum(segment.records - segment.null_keys for segment in ready)
        return max(0.0, keyed - keys()) / sum(segment.records for segment in ready) if keyed else 0.0
    total = sum(segment.size_bytes for segment in ready)
    return sum(segment.size_bytes for segment in dirty) / total if total else 0.0


def _reason(
    ready: Sequence[Segment],
    has_dirty: bool,
    overdue_ms: int,
    at: Positions,
    settings: TopicSettings,
    rules: Rules,
    ratio: float,
    marked_ms: int,
    scope: Scope,
) -> Reason | None:
    if overdue_ms:
        return "max.compaction.lag.ms"
    if has_dirty and ratio >= settings.min_cleanable_dirty_ratio:
        return "min.cleanable.dirty.ratio"
    if at.spared:
        return "superseded records"
    if _has_expiring(ready, rules):
        return "tombstones"
    if any(segment.marks is not None and segment.marks.since_ms <= marked_ms for segment in ready):
        return "garbage"
    if scope.force or (scope.asked_for and has_dirty):
        return "asked for"
    return None


def why_not(assessed: Sequence[Assessment], settings: TopicSettings, scope: Scope = WHAT_IS_DUE) -> str:
    """Return why there is no run in any of these partitions of a topic, as a clause."""
    if not settings.compacts:
        policy = ",".join(sorted(settings.cleanup_policy))
        return (
            f"cleanup.policy={policy}: the topic is not compacted, and it has too few small segments to join"
        )
    if not any(each.view.segments for each in assessed):
        return "nothing is sealed"
    ratios = [each.dirty_ratio or 0.0 for each in assessed if _dirty(each.ready, each.view.positions)]
    if ratios and not scope.asked_for:
        return (
            f"the dirty ratio {max(ratios):.2f} is below "
            f"min.cleanable.dirty.ratio={settings.min_cleanable_dirty_ratio}"
        )
    held_back = (
        f"is held back: it has records younger than min.compaction.lag.ms={settings.min_compaction_lag_ms}"
    )
    if not any(each.ready for each in assessed):
        return f"everything {held_back}"
    if any(_dirty(each.view.segments[len(each.ready) :], each.view.positions) for each in assessed):
        return f"the dirty part {held_back}"
    return "nothing that may be compacted is dirty, and no tombstone may go"


def rewrite_marked_ms(segments: Sequence[Segment], settings: TopicSettings, now_ms: int) -> int:
    """Return the time from which marks, or earlier ones, cause their segment to be rewritten; -1 if none do."""
    size_bytes = sum(segment.file_bytes for segment in segments)
    if settings.deletes and settings.retention_bytes is not None and size_bytes > settings.retention_bytes:
        # Space is short: garbage goes before anything that is live.
        return now_ms
    limits_ms = [
        each for each in (settings.garbage_max_ms, settings.max_compaction_lag_ms) if each is not None
    ]
    return max(now_ms - min(limits_ms), -1) if limits_ms else -1


def _has_expiring(ready: Sequence[Segment], rules: Rules) -> bool:
    due = replace(rules, expiring=tuple(each for each in rules.expiring if each.due))
    return any(
        segment.null_values
        and rule.may_expire(due, segment.first_offset, segment.last_offset, segment.min_timestamp_ms)
        for segment in ready
    )


def _propose_join(
    topic: str, view: PartitionView, settings: TopicSettings, now_ms: int
) -> PartitionPlan | None:
    """Plan a join of small neighbours under `delete` alone, within a span of segment.ms so that retention works."""
    run = next((run for run in _runs(view.segments, settings) if len(run) >= JOIN_COUNT), None)
    if run is None:
        return None
    return _unkeyed(topic, view, settings, now_ms, run, "small segments")


def _propose_rewrite(
    topic: str, view: PartitionView, settings: TopicSettings, now_ms: int
) -> PartitionPlan | None:
    """Plan a rewrite of neighbours whose marks are too old, whatever the policy is or a lag holds back."""
    marked_ms = rewrite_marked_ms(view.segments, settings, now_ms)
    is_old = [each.marks is not None and each.marks.since_ms <= marked_ms for each in view.segments]
    if not any(is_old):
        return None
    first = is_old.index(True)
    run = [
        each
        for each, _ in itertools.takewhile(
            lambda pair: pair[1], zip(view.segments[first:], is_old[first:], strict=True)
        )
    ]
    return _unkeyed(topic, view, settings, now_ms, run, "garbage", marked_ms)


def _unkeyed(
    topic: str,
    view: PartitionView,
    settings: TopicSettings,
    now_ms: int,
    run: Sequence[Segment],
    reason: Reason,
    marked_ms: int = -1,
) -> PartitionPlan:
    """Plan a run over some neighbours in which no record competes."""
    at = view.positions
    return PartitionPlan(
        topic=topic,
        partition=view.partition,
        reason=reason,
        dirty_ratio=0.0,
        positions=at,
        segments=tuple(run),
        rewrite_marked_ms=marked_ms,
        compactable_end=at.first_dirty,
        seen=(now_ms, view.log_end),
        rules=Rules(
            strategy=strategy_of(settings),
            log_start=at.log_start,
            expiring=(),
            retention_before_ms=None,
        ),
        keyed=False,
        now_ms=now_ms,
    )


def _runs(segments: Sequence[Segment], settings: TopicSettings) -> Iterator[list[Segment]]:
    """Yield neighbours that fit into one segment, without those at the front that outweigh the rest.

    So a file that was joined before is rewritten only when it at least doubles, and no record is rewritten often.
    """
    run: list[Segment] = []
    for segment in segments:
        joined = [*run, segment]
        fits = (
            sum(each.size_bytes for each in joined) <= settings.segment_bytes
            and max(each.max_timestamp_ms for each in joined) - min(each.min_timestamp_ms for each in joined)
            <= settings.segment_ms
        )
        if not fits:
            yield _without_heavy_front(run)
        run = joined if fits else [segment]
    yield _without_heavy_front(run)


def _without_heavy_front(run: list[Segment]) -> list[Segment]:
    while run and run[0].size_bytes > sum(each.size_bytes for each in run[1:]):
        run = run[1:]
    return run


def estimate(ready: Sequence[Segment], distinct_keys: float) -> Estimate:
    """Estimate what a run over these segments will reclaim, from an estimate of the number of their keys."""
    records = sum(segment.records for segment in ready)
    keyed = sum(segment.records - segment.null_keys for segment in ready)
    keys = min(keyed, round(distinct_keys))
    garbage = keyed - keys
    size_bytes = sum(segment.size_bytes for segment in ready)
    return Estimate(
        records=records,
        distinct_keys=keys,
        garbage_records=garbage,
        reclaimed_bytes=size_bytes * garbage // records if records else 0,
    )


def room_for_keys(memory_bytes: int, records: int) -> int:
    """Return the memory of a task that the masks leave, at one byte per record; at least a quarter."""
    return max(memory_bytes - records, memory_bytes // 4)


def key_memory(keys: int, key_bytes: int, *, versioned: bool) -> int:
    """Estimate the memory that the search for this many keys needs, with their versions if those decide."""
    return int(keys * (_set_bytes_per_key(key_bytes) + (BYTES_PER_VERSION if versioned else 0)))


def set_share(room_bytes: int, key_bytes: int, *, versioned: bool) -> int:
    """Return the part of the room for keys that the set may use, so that the versions beside it have theirs."""
    own = _set_bytes_per_key(key_bytes)
    return int(room_bytes * own / (own + BYTES_PER_VERSION)) if versioned else room_bytes


def _set_bytes_per_key(key_bytes: int) -> float:
    return BYTES_PER_KEY + key_bytes * 3 / 2


def choose_way(
    *, needed_bytes: int, room_bytes: int, size_bytes: int, task_bytes: int, parallel: int
) -> tuple[Way, int]:
    """Return how a partition is compacted, and into how many shares its keys are divided.

    One task, if its keys fit into a task's room for them and it is not too large for one. Otherwise by shares of
    the keys, as many as the memory or the machine requires. Past MAX_SHARES the keys would be read too often, and
    Spark sorts.
    """
    shares = -(-needed_bytes // room_bytes)
    if shares <= 1 and (size_bytes <= task_bytes or parallel <= 1):
        return "one stage", 1
    if shares <= MAX_SHARES:
        return "two stages", max(shares, min(parallel, MAX_SHARES))
    return "Spark SQL", 1
