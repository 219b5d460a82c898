"""A topic as planning sees it, and the one answer to how dirty its partitions are, whether they are due, and why.

The command line, the dashboard, the metrics and the worker all ask here.
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
    """What only the log knows of a partition: how far it has come, and who reads it."""

    log_end: int
    hold: ReaderHold = field(default_factory=ReaderHold)
    readers: tuple[ReaderPosition, ...] = ()
    """The active ones."""
    first_append_ms: int | None = None
    """When the active WAL file got its first record, where that is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A topic to compact, with what only the log knows of its partitions."""

    topic: str
    table: SegmentTable
    settings: TopicSettings
    facts: Mapping[int, PartitionFacts] = field(default_factory=dict)
    """Of a partition that is not among them, what is sealed is all that there is."""
    looked_ms: int | None = None
    """When `facts` were gathered, or before; None: just now."""
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
    """What is due in a topic now, the most urgent first."""
    assessed = assess(
        target, clock=clock, partitions=partitions, asked_for=asked_for, force=force, estimates=estimates
    )
    return sorted((each.plan for each in assessed if each.plan is not None), key=planning.urgency)
