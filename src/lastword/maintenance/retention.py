"""Bounds the sealed data: removes old segments, expires old snapshots, collects unreferenced files.

The steps of retention: look at the table, propose (pure) which whole segments to remove, oldest first, and commit
their removal together with the new log start. The files themselves stay until no live snapshot names them.

Expiry forgets snapshots that were superseded `snapshot.retention.ms` ago, except those that a replay has a lease on.
Collection removes files that no live snapshot has named for `collect.grace.ms`, and that belong to no running job:
files that retention and compaction removed from the table, and files that crashed jobs left. Both count from the end
of use, not from the time of writing, because readers of other engines hold no leases.

Killed at any point: each step is one commit, or the removal of unreferenced files.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lastword.config import BrokerConfig, TopicSettings
from lastword.folder.leases import live_leases
from lastword.folder.steps import reached
from lastword.segments.model import Collected, Positions, Segment, Snapshot, retry_on_conflict

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable

logger = logging.getLogger(__name__)

Rule = Literal["retention.ms", "retention.bytes", "below the log start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A segment to remove, and the rule that requires it."""

    segment: Segment
    rule: Rule
    age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """The effect of retention on a topic: the segments to remove, and the log starts that move."""

    topic: str
    removals: tuple[Removal, ...] = ()
    log_starts: tuple[tuple[int, int], ...] = ()
    """Pairs of partition and its new log start."""

    @property
    def records(self) -> int:
        return sum(each.segment.records for each in self.removals)

    @property
    def size_bytes(self) -> int:
        return sum(each.segment.size_bytes for each in self.removals)


def propose(
    topic: str,
    positions: Sequence[Positions],
    segments: Sequence[Segment],
    unsealed_bytes: Mapping[int, int],
    settings: TopicSettings,
    now_ms: int,
) -> RetentionPlan:
    """Choose the segments to remove now. `unsealed_bytes` are the bytes of each partition that only the WAL has."""
    removals: list[Removal] = []
    log_starts: list[tuple[int, int]] = []
    by_partition: dict[int, list[Segment]] = {}
    for segment in segments:
        by_partition.setdefault(segment.partition, []).append(segment)
    for partition, at in enumerate(positions):
        own = by_partition.get(partition, [])
        gone = _propose_partition(own, at, unsealed_bytes.get(partition, 0), settings, now_ms)
        removals += gone
        if any(each.rule != "below the log start" for each in gone):
            left = own[len(gone) :]
            log_starts.append((partition, max(at.log_start, left[0].first_offset if left else at.sealed_end)))
    return RetentionPlan(topic=topic, removals=tuple(removals), log_starts=tuple(log_starts))


def _propose_partition(
    segments: Sequence[Segment], at: Positions, unsealed_bytes: int, settings: TopicSettings, now_ms: int
) -> list[Removal]:
    gone: list[Removal] = []
    left_bytes = unsealed_bytes + sum(segment.size_bytes for segment in segments)
    for segment in segments:
        rule: Rule | None = None
        age_ms = now_ms - segment.max_timestamp_ms
        if segment.last_offset < at.log_start:
            rule = "below the log start"
        elif settings.deletes and settings.retention_ms is not None and age_ms > settings.retention_ms:
            rule = "retention.ms"
        elif (
            settings.deletes
            and settings.retention_bytes is not None
            and left_bytes > settings.retention_bytes
        ):
            rule = "retention.bytes"
        if rule is None:
            break
        gone.append(Removal(segment=segment, rule=rule, age_ms=age_ms))
        left_bytes -= segment.size_bytes
    return gone


def apply(
    table: SegmentTable,
    unsealed_bytes: Mapping[int, int],
    settings: TopicSettings,
    now_ms: int,
    *,
    dry_run: bool = False,
) -> RetentionPlan:
    """Propose and, unless it is a dry run, commit. Propose again on a conflict."""

    def attempt() -> RetentionPlan:
        base = table.snapshot()
        plan = propose(base.topic.name, base.positions, table.plan(base), unsealed_bytes, settings, now_ms)
        if plan.removals and not dry_run:
            _commit(table, base, plan)
        return plan

    return retry_on_conflict(attempt)


def _commit(table: SegmentTable, base: Snapshot, plan: RetentionPlan) -> None:
    moved = {
        partition: replace(
            base.positions[partition],
            log_start=log_start,
            first_dirty=max(base.positions[partition].first_dirty, log_start),
        )
        for partition, log_start in plan.log_starts
    }
    table.replace(
        base,
        [each.segment for each in plan.removals],
        [],
        moved,
        operation="retention",
        details={"segments": str(len(plan.removals)), "records": str(plan.records)},
    )
    reached("retention.committed")
    for each in plan.removals:
        logger.info(
            "%s partition %d: removed the segment with offsets %d to %d, %d bytes, %d s old, by %s",
            plan.topic,
            each.segment.partition,
            each.segment.first_offset,
            each.segment.last_offset,
            each.segment.size_bytes,
            each.age_ms // 1000,
            each.rule,
        )


def delete_records(table: SegmentTable, before: dict[int, int]) -> Snapshot:
    """Move the log start of partitions up. After the commit, no read shows records below it."""

    def attempt() -> Snapshot:
        base = table.snapshot()
        moved = {
            partition: replace(
                base.positions[partition],
                log_start=offset,
                first_dirty=max(
                    base.positions[partition].first_dirty, min(offset, base.positions[partition].sealed_end)
                ),
            )
            for partition, offset in before.items()
            if offset > base.positions[partition].log_start
        }
        if not moved:
            return base
        gone = [
            segment
            for segment in table.plan(base)
            if segment.partition in moved and segment.last_offset < moved[segment.partition].log_start
        ]
        details = {str(partition): str(at.log_start) for partition, at in moved.items()}
        return table.replace(base, gone, [], moved, operation="delete-records", details=details)

    return retry_on_conflict(attempt)


def expire(
    table: SegmentTable, data_folder: Path, config: BrokerConfig, now_ms: int, *, dry_run: bool = False
) -> list[int]:
    """Forget old snapshots that no replay has a lease on. Return their ids."""
    topic_id = table.snapshot().topic.id.hex
    leased = {
        lease.snapshot_id
        for lease in live_leases(data_folder, now_ms)
        if lease.topic_id == topic_id and lease.snapshot_id is not None
    }
    expired = table.expire(retention_ms=config.snapshot_retention_ms, keep=leased, dry_run=dry_run)
    if not dry_run:
        reached("expire.committed")
    return expired


def collect(
    table: SegmentTable, data_folder: Path, config: BrokerConfig, now_ms: int, *, dry_run: bool = False
) -> Collected:
    """Remove files that no live snapshot has named for the grace period, except those of running jobs."""
    jobs = {lease.id for lease in live_leases(data_folder, now_ms)}
    collected = table.collect(grace_ms=config.collect_grace_ms, live_jobs=jobs, dry_run=dry_run)
    reached("collect.done")
    return collected
