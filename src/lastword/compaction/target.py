"""A topic as planning sees it: how dirty its partitions are, whether they are due, and why.

This is the only place that decides that. The command line, the dashboard, the metrics and the worker all use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lastword.clock import Clock
from lastword.compaction import plan as planning
from lastword.compaction.holds import ReaderPosition
from lastword.compaction.plan import PartitionPlan, PartitionView
from lastword.compaction.rules import ReaderHold
from lastword.config import TopicSettings
from lastword.segments.model import Snapshot
from lastword.segments.sketch import Sketches

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """The facts about a partition that only the log knows: its log end and its readers."""

    log_end: int
    hold: ReaderHold = field(default_factory=ReaderHold)
    readers: tuple[ReaderPosition, ...] = ()
    """The active readers."""
    first_append_ms: int | None = None
    """The time when the active WAL file got its first record, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A topic to compact, with the facts about its partitions that only the log knows."""

    topic: str
    table: SegmentTable
    settings: TopicSettings
    facts: Mapping[int, PartitionFacts] = field(default_factory=dict)
    """A partition that is not among them ends at its sealed end."""
    looked_ms: int | None = None
    """The time when `facts` were gathered, or an earlier one; None: just now."""
    look_again: Callable[[], Target] | None = None
    """Returns a fresh look at all of this; None: it holds as long as the run lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """A partition as planning sees it, how dirty it is, and the run that is due, if one is."""

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
    """Assess each partition of a topic now. With `estimates`, plans tell what they would reclaim, from sketches."""
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
        facts = target.facts.get(partition) or PartitionFacts(log_end=at.sealed_end)
        view = PartitionView(
            partition=partition,
            positions=at,
            segments=tuple(segment for segment in segments if segment.partition == partition),
            log_end=facts.log_end,
            hold=facts.hold,
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
    """Return the plans that are due in a topic now, the most urgent first."""
    assessed = assess(
        target, clock=clock, partitions=partitions, asked_for=asked_for, force=force, estimates=estimates
    )
    return sorted((each.plan for each in assessed if each.plan is not None), key=planning.urgency)
