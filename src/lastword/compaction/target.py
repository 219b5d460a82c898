"""A topic as planning sees it: how dirty its partitions are, whether they are due, and why.

The command line, the dashboard, the metrics, explanations and the worker all ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lastword.clock import Clock
from lastword.compaction import plan as planning
from lastword.compaction.holds import ReaderPosition
from lastword.compaction.plan import Assessment, PartitionPlan, PartitionView
from lastword.compaction.request import WHAT_IS_DUE, Scope
from lastword.compaction.rules import ReaderHold
from lastword.compaction.strategy import has_same_rules
from lastword.config import TopicSettings
from lastword.segments.model import Segment, Snapshot, TopicInfo
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
    settings_of: Callable[[TopicInfo], TopicSettings] | None = None
    """Returns the settings of the topic as a snapshot has it; None: `settings` hold as long as the run lasts."""
    refresh: Callable[[], Target] | None = None
    """Returns a fresh look at all of this; None: it holds as long as the run lasts."""

    def has_same_rules(self, snapshot: Snapshot) -> bool:
        """Return whether the topic still has the policy and the strategy that `settings` have."""
        if self.settings_of is None:
            return True
        return has_same_rules(self.settings, self.settings_of(snapshot.topic))


def assess(
    target: Target,
    scope: Scope = WHAT_IS_DUE,
    *,
    now_ms: int,
    snapshot: Snapshot | None = None,
    segments: Sequence[Segment] | None = None,
    estimates: bool = False,
) -> list[Assessment]:
    """Assess each partition of a topic, from a fresh look at its table, or as a snapshot and its segments are.

    With `estimates`, plans tell what they would reclaim, from sketches.
    """
    settings = target.settings
    snapshot = snapshot or target.table.snapshot()
    segments = target.table.plan(snapshot) if segments is None else segments
    by_records = settings.compacts and settings.dirty_ratio_basis == "records"
    distinct = Sketches(target.table.files).distinct_keys if estimates or by_records else None
    found: list[Assessment] = []
    for partition, at in enumerate(snapshot.positions):
        if scope.partitions is not None and partition not in scope.partitions:
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
        found.append(planning.propose(target.topic, view, settings, now_ms, scope, distinct=distinct))
    return found


def plan_target(
    target: Target, scope: Scope = WHAT_IS_DUE, *, clock: Clock, estimates: bool = False
) -> list[PartitionPlan]:
    """Return the plans that are due in a topic now, the most urgent first."""
    assessed = assess(target, scope, now_ms=clock.now_ms(), estimates=estimates)
    return sorted((each.plan for each in assessed if each.plan is not None), key=planning.urgency)
