"""Commits finished runs of a topic as one snapshot: files out, files in, positions.

A partition that changed since it was planned, or whose topic has another policy or strategy now, is left out, to be
planned again. If the process is killed before the
commit, nothing has changed, and the collector removes the files. After it, everything has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lastword.compaction import plan as planning
from lastword.compaction import rules as rule
from lastword.compaction.plan import PartitionPlan
from lastword.compaction.planned import Planned
from lastword.compaction.reports import PartitionReport
from lastword.compaction.rules import OldestTombstones
from lastword.compaction.target import Target
from lastword.compaction.unit import Outcome
from lastword.config import TopicSettings
from lastword.folder.steps import reached
from lastword.segments.model import (
    LastRun,
    Positions,
    Segment,
    Snapshot,
    check_not_deleted,
    retry_on_conflict,
)

JOB_DETAIL = "job"
"""The snapshot detail that all commits of one run over a topic have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A run of a partition that was carried out, and what came of it."""

    planned: Planned
    outcome: Outcome


def commit(target: Target, done: Sequence[Done], now_ms: int) -> tuple[list[PartitionReport], list[Planned]]:
    """Commit the outcomes of a topic that fit what is there now. Return their reports, and the stale plans."""

    def attempt() -> tuple[list[PartitionReport], list[Planned]]:
        for each in done:
            each.planned.lease.check()
        base = target.table.snapshot()
        check_not_deleted(base)
        live = set(target.table.plan(base))
        fitting = [each for each in done if fits(each.planned, base, live)]
        stale = [each.planned for each in done if each not in fitting]
        if not fitting:
            return [], stale
        positions = {
            each.planned.plan.partition: _moved(
                base.positions[each.planned.plan.partition], each, target.settings, now_ms
            )
            for each in fitting
        }
        removed = [segment for each in fitting for segment in each.outcome.removed]
        added = [segment for each in fitting for segment in each.outcome.added]
        reports = [_report(each) for each in fitting]
        details = {
            "partitions": str(len(fitting)),
            JOB_DETAIL: done[0].planned.lease.id,
            "segments": f"{len(removed)} -> {len(added)}",
            "records": f"{sum(r.records_before for r in reports)} -> {sum(r.records_after for r in reports)}",
            "bytes": f"{sum(r.bytes_before for r in reports)} -> {sum(r.bytes_after for r in reports)}",
        }
        reached("compact.before_commit")
        target.table.replace(base, removed, added, positions, operation="compact", details=details)
        return reports, stale

    reports, stale = retry_on_conflict(attempt)
    reached("compact.committed")
    return reports, stale


def fits(planned: Planned, base: Snapshot, live: set[Segment]) -> bool:
    """Return whether a partition, and the rules of its topic, are still as they were when it was planned."""
    plan = planned.plan
    at = base.positions[plan.partition]
    # Records that fell below the log start in the meantime may have beaten later records, which must stay then.
    competitors_are_there = (
        plan.rules.strategy.order == "newest" or not plan.keyed or at.log_start == plan.positions.log_start
    )
    return (
        competitors_are_there
        and planned.target.has_same_rules(base)
        and at.first_dirty == plan.positions.first_dirty
        and live.issuperset(plan.segments)
    )


def _moved(at: Positions, done: Done, settings: TopicSettings, now_ms: int) -> Positions:
    """Return the positions after a commit: the compacted range is clean now, and its tombstones have deadlines."""
    plan, outcome = done.planned.plan, done.outcome
    report = _report(done)
    last_run = LastRun(now_ms, round(outcome.duration_s * 1000), report.reclaimed_bytes)
    if not plan.keyed:
        return replace(at, last_run=last_run)
    at = rule.on_clock(settings, at)
    runs = at.runs
    if plan.rules.strategy.is_versioned:
        runs = rule.next_runs(
            at.runs, plan.seen, compactable_end=plan.compactable_end, most=planning.MAX_RUNS_KEPT
        )
    return replace(
        at,
        first_dirty=max(at.first_dirty, plan.compactable_end),
        deadlines=rule.next_deadlines(
            settings,
            at,
            plan.rules,
            compactable_end=plan.compactable_end,
            dirty_tombstones=any(segment.null_values for segment in plan.dirty),
            left_behind=_left_behind(plan, outcome, settings),
            now_ms=now_ms,
        ),
        runs=runs,
        spared=False,
        last_run=last_run,
        clean_max_timestamp_ms=_clean_max_timestamp_ms(at, plan),
    )


def _clean_max_timestamp_ms(at: Positions, plan: PartitionPlan) -> int | None:
    if at.clean_max_timestamp_ms is None and at.first_dirty > at.log_start:
        # Earlier runs did not note it, and the records are gone.
        return None
    # The latest one may have been left out when it was sealed.
    rounds = [each.max_timestamp_ms for each in at.rounds if each.start < plan.compactable_end]
    return max((at.clean_max_timestamp_ms or -1, *rounds, *(each.max_timestamp_ms for each in plan.dirty)))


def _left_behind(plan: PartitionPlan, outcome: Outcome, settings: TopicSettings) -> OldestTombstones:
    """Return lower bounds of the timestamps of the tombstones that are left."""
    known = {each.added.path for each in outcome.rewritten if each.added is not None} | set(outcome.examined)
    found = [outcome.oldest_examined, *(each.oldest for each in outcome.rewritten)]
    for marked in outcome.marked:
        if marked.oldest is not None:
            known.add(marked.after.path)
            found.append(marked.oldest)
    for segment in outcome.left:
        if segment.path not in known and segment.null_values:
            # It is clean: the bounds that earlier runs found still hold.
            found += [
                rule.oldest_within(
                    plan.rules,
                    max(deadline.start, segment.first_offset),
                    min(deadline.end, segment.last_offset + 1),
                    max(segment.min_timestamp_ms, deadline.deadline_ms - settings.delete_retention_ms),
                )
                for deadline in plan.positions.deadlines
            ]
    return rule.oldest_of_all(found)


def _report(done: Done) -> PartitionReport:
    plan, outcome = done.planned.plan, done.outcome
    left = outcome.left
    return PartitionReport(
        topic=plan.topic,
        partition=plan.partition,
        reason=plan.reason,
        way=done.planned.job.way,
        segments_before=len(plan.segments),
        segments_compacted=sum(len(each.removed) for each in outcome.rewritten),
        segments_marked=len(outcome.marked),
        segments_after=len(left),
        records_before=plan.records,
        records_after=_sum(left, "records"),
        records_marked=outcome.records_marked,
        bytes_before=plan.file_bytes,
        bytes_after=_sum(left, "file_bytes"),
        garbage_bytes=_sum(left, "garbage_bytes"),
        tombstones_removed=outcome.tombstones_removed,
        tombstones_kept=outcome.tombstones_kept,
        read_bytes=outcome.read_bytes,
        written_bytes=outcome.written_bytes,
        peak_set_bytes=outcome.peak_set_bytes,
        duration_s=outcome.duration_s,
    )


def _sum(segments: Sequence[Segment], attribute: str) -> int:
    return sum(getattr(segment, attribute) for segment in segments)
