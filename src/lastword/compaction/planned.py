"""A run of a partition that is about to be carried out, and its unit of work."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.clock import new_uuid
from lastword.compaction.engine import Job
from lastword.compaction.plan import PartitionPlan
from lastword.compaction.target import Target
from lastword.compaction.unit import Unit
from lastword.config import TopicSettings
from lastword.folder.leases import HeldLease
from lastword.segments.parquet import SegmentFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run of a partition that is about to be carried out."""

    plan: PartitionPlan
    target: Target
    job: Job
    lease: HeldLease


def unit_of(
    plan: PartitionPlan,
    settings: TopicSettings,
    files: SegmentFiles,
    *,
    job_id: str,
    max_set_bytes: int | None = None,
) -> Unit:
    """Return the unit of work for a plan."""
    return Unit(
        topic=plan.topic,
        partition=plan.partition,
        files=files,
        segments=plan.segments,
        first_dirty=plan.positions.first_dirty,
        clean_is_unique=not plan.positions.spared,
        keyed=plan.keyed,
        rules=plan.rules,
        merge_bytes=settings.segment_bytes,
        merge_span_ms=settings.segment_ms if settings.deletes else None,
        min_rewrite_ratio=settings.min_rewrite_ratio,
        rewrite_marked_ms=plan.rewrite_marked_ms,
        now_ms=plan.now_ms,
        job_id=job_id,
        seed=new_uuid().int & (2**64 - 1),
        max_set_bytes=max_set_bytes,
    )
