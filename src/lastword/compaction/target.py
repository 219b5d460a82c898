"""A topic as planning sees it, and the one answer to how dirty its partitions are, whether they are due, and why.

The command line, the dashboard, the metrics and the worker all ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lastword.clock import Clock
from lastword.compaction import plan as planning
from lastword.compaction.plan import PartitionPlan, PartitionView
from lastword.compaction.rules import ReaderHold
from lastword.config import TopicSettings
from lastword.segments.sketch import Sketches
from lastword.segments.table import SegmentTable, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A topic to compact, with what only the log knows of it: how far each partition has come, and who reads it."""

    topic: str
    table: SegmentTable
    settings: TopicSettings
    log_ends: Mapping[int, int]
    holds: Mapping[int, ReaderHold] = field(default_factory=dict)
    looked_ms: int | None = None
    """When `log_ends` were read, or before; None: just now."""
    look_again: Callable[[], Target] | None = None
    """A fresh look at all of this; None: it holds as long as the run lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """A partition: what planning looks at, how dirty it is, and the run that is due, if one is."""

    view: PartitionView
    dirty_ratio: float | None
    """None if the topic is not compacted."""
    plan: PartitionPlan | None


def assess(
    target: Target,
    *,
    clock: Clock,
    snapshot: Snapshot | None = None,
    partitions: Sequence[int] | None = None,
    asked_for: bool = False,
    force: bool = False,
    estimates: bool = False,
) -> list[Assessment]:
    """Each partition of a topic as it is now. With `estimates`, plans have what they would reclaim, from sketches."""
    now_ms = clock.now_ms()
    settings = target.settings
    snapshot = snapshot or target.table.snapshot()
    segments = target.table.plan(snapshot)
    by_records = settings.compacts and settings.dirty_ratio_basis == "records"
    distinct = Sketches(target.table.files).distinct_keys if estimates or by_records else None
    found: list[Assessment] = []
    for partition, at in enumerate(snapshot.positions):
        if partitions is not None and partition not in partitions:
            continue
        view = PartitionView(
            partition=partition,
            positions=at,
            segments=tuple(segment for segment in segments if segment.partition == partition),
            log_end=target.log_ends.get(partition, at.sealed_end),
            hold=target.holds.get(partition, ReaderHold()),
            looked_ms=target.looked_ms,
        )
        ratio = None
        if settings.compacts:
            ratio = planning.dirty_ratio(view.segments, at, settings, now_ms, distinct)
        plans = planning.propose(
            target.topic, [view], settings, now_ms, distinct=distinct, asked_for=asked_for, force=force
        )
        found.append(Assessment(view=view, dirty_ratio=ratio, plan=plans[0] if plans else None))
    return found


def plan_target(
    target: Target,
    *,
    clock: Clock,
    partitions: Sequence[int] | None = None,
    asked_for: bool = False,
    force: bool = False,
    estimates: bool = False,
) -> list[PartitionPlan]:
    """What is due in a topic now, the most urgent first."""
    assessed = assess(
        target, clock=clock, partitions=partitions, asked_for=asked_for, force=force, estimates=estimates
    )
    return sorted((each.plan for each in assessed if each.plan is not None), key=planning.urgency)
