"""A description of a topic and the locations of its records, as of one snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from lastword.compaction import plan
from lastword.config import EffectiveSetting
from lastword.segments.model import LastRun, Snapshot
from lastword.wal.checkpoint import WriterCheckpoint

if TYPE_CHECKING:
    from lastword.log.partition import Partition
    from lastword.log.readable import ReadableTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """A partition: its positions, its sealed segments, its WAL, and its problem, if it has one."""

    partition: int
    log_start: int
    first_dirty: int
    sealed_end: int
    log_end: int
    unsealed_records: int
    segments: int
    sealed_records: int
    sealed_bytes: int
    wal_start: int
    wal_files: int
    wal_bytes: int
    dirty_ratio: float | None
    due: str | None
    """Why compaction is due, or None."""
    estimate: plan.Estimate | None
    """An estimate of the bytes that a compaction would reclaim, if requested and the topic is compacted."""
    last_run: LastRun | None
    leader_epoch: int
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic: its identity, its settings, the location of its sealed files, and its partitions."""

    name: str
    id: UUID
    cleanup_policy: str
    location: str
    wal_folder: str
    settings: tuple[EffectiveSetting, ...]
    partitions: tuple[PartitionDescription, ...]
    readers: tuple[str, ...]


def describe(
    topic: ReadableTopic,
    snapshot: Snapshot,
    *,
    settings: tuple[EffectiveSetting, ...],
    readers: tuple[str, ...],
    distinct: plan.Distinct | None,
) -> TopicDescription:
    """Describe a topic. With `distinct`, estimate the bytes that a run would reclaim, if the topic is compacted."""
    if not topic.settings.compacts:
        distinct = None
    partitions = topic.partitions_in(snapshot)
    return TopicDescription(
        name=topic.name,
        id=topic.id,
        cleanup_policy=next(each.value for each in settings if each.key == "cleanup.policy"),
        location=topic.table.location,
        wal_folder=str(topic.partition(0).folder.parent),
        settings=settings,
        partitions=tuple(
            _describe(topic, partitions[each.view.partition], each, snapshot, distinct)
            for each in topic.assess(snapshot=snapshot)
        ),
        readers=readers,
    )


def _describe(
    topic: ReadableTopic,
    partition: Partition,
    assessed: plan.Assessment,
    snapshot: Snapshot,
    distinct: plan.Distinct | None,
) -> PartitionDescription:
    at, segments = assessed.view.positions, assessed.view.segments
    local = partition.local_wal(snapshot)
    saved = partition.checkpoint()
    epochs = saved.epochs if saved else at.epochs
    estimate = None
    if distinct is not None:
        estimate = plan.estimate(assessed.ready, distinct(assessed.ready))
    return PartitionDescription(
        partition=partition.number,
        log_start=at.log_start,
        first_dirty=at.first_dirty,
        sealed_end=at.sealed_end,
        log_end=assessed.view.log_end,
        unsealed_records=assessed.view.unsealed_records,
        segments=len(segments),
        sealed_records=sum(segment.records for segment in segments),
        sealed_bytes=sum(segment.size_bytes for segment in segments),
        wal_start=local.files[0].first_offset if local else at.sealed_end,
        wal_files=len(local.files) if local else 0,
        wal_bytes=local.size_bytes if local else 0,
        dirty_ratio=assessed.dirty_ratio,
        due=None if assessed.plan is None else assessed.plan.reason,
        estimate=estimate,
        last_run=at.last_run,
        leader_epoch=epochs[-1][0] if epochs else 0,
        problem=partition.failed or _damage(topic.name, saved),
    )


def _damage(topic: str, saved: WriterCheckpoint | None) -> str | None:
    if saved is None or not saved.damage:
        return None
    first = saved.damage[0]
    return (
        f"offsets {first.first_offset} to {first.end_offset - 1} are damaged in the WAL: "
        f"`lastword wal repair {topic}` shows what can be kept"
    )
