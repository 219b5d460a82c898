"""Compaction, its proof, and erasure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lastword.errors import UnknownPartitionError
from lastword.operations.topics import OnProgress, no_progress
from lastword.record_json import Json, json_bytes, snapshot_id_text

if TYPE_CHECKING:
    from lastword.compaction.plan import Assessment, PartitionPlan
    from lastword.compaction.reports import CompactionReport, PartitionReport
    from lastword.log import Log
    from lastword.log.topic import Topic
    from lastword.segments.model import Snapshot

Stop = Callable[[], bool]

SUMMED = (
    "segments_before",
    "segments_compacted",
    "segments_after",
    "records_before",
    "records_after",
    "bytes_before",
    "bytes_after",
    "reclaimed_bytes",
    "tombstones_kept",
    "tombstones_removed",
    "read_bytes",
    "written_bytes",
)


def never() -> bool:
    return False


def _plan_topic(topic: Topic, log: Log, partitions: Sequence[int] | None, *, force: bool, seal: bool) -> Json:
    plans = log.plan_compaction([topic.name], partitions=partitions, asked_for=True, force=force)
    assessed = _assess(topic, partitions)
    return {
        "topic": topic.name,
        "nothing_to_compact": None if plans else _nothing_to_compact(topic, assessed),
        "unsealed_records": sum(each.view.unsealed_records for each in assessed) if seal else 0,
        "dry_run": True,
        "partitions": [_plan_data(plan) for plan in plans],
    }


def compact_topic(
    log: Log,
    name: str,
    *,
    partitions: Sequence[int] | None = None,
    force: bool = False,
    seal: bool = True,
    dry_run: bool = False,
    progress: OnProgress = no_progress,
    stop: Stop = never,
) -> Json:
    """Compact a topic regardless of its dirty ratio, or show what that would do."""
    topic = log.topic(name)
    # No partition at all means all of them.
    partitions = partitions or None
    _check_partitions(topic, partitions)
    if dry_run:
        return _plan_topic(topic, log, partitions, force=force, seal=seal)
    with log.maintenance():
        sealed = topic.seal(progress=lambda done, total: progress("seal", done, total)) if seal else None
        report = log.compact(
            [name],
            partitions=partitions,
            asked_for=True,
            force=force,
            progress=lambda *numbers: progress("compact", *numbers),
            stop=stop,
        )
    problems = sealed.problems if sealed is not None else ()
    return {
        "topic": name,
        "sealed": None
        if sealed is None
        else {
            "records": sealed.records,
            "beaten": sealed.beaten,
            "bytes": sealed.size_bytes,
        },
        "not_sealed": [{"partition": each, "problem": why} for each, why in problems],
        "nothing_to_compact": None
        if report.partitions or report.failures
        else _nothing_to_compact(topic, _assess(topic, partitions)),
        **_report_data(report),
    }


def compact_all(
    log: Log,
    *,
    all_dirty: bool = False,
    dry_run: bool = False,
    progress: OnProgress = no_progress,
    stop: Stop = never,
) -> Json:
    """Compact all partitions that are due, or all that are dirty, or show what that would do."""
    if dry_run:
        plans = log.plan_compaction(asked_for=all_dirty)
        return {"dry_run": True, "partitions": [_plan_data(plan) for plan in plans]}
    return _report_data(
        log.compact(asked_for=all_dirty, progress=lambda *numbers: progress("compact", *numbers), stop=stop)
    )


def verify(log: Log, name: str, *, before: int | None = None, after: int | None = None) -> Json:
    """Prove on Spark that compaction lost nothing, by comparing two snapshots."""
    report = log.verify(name, before=before, after=after)
    return {
        "topic": report.topic,
        "holds": report.holds,
        "before": _snapshot_data(report.before, report.records_before),
        "after": _snapshot_data(report.after, report.records_after),
        "keys": report.keys,
        "wal_records": report.wal_records,
        "unproven": [
            {"partition": partition, "first_offset": first, "last_offset": last}
            for partition, first, last in report.unproven
        ],
        "gone": dict(report.gone),
        "problem_count": report.problem_count,
        "problems": [
            {
                "partition": each.partition,
                "offset": each.offset,
                **json_bytes("key", each.key),
                "problem": each.what,
            }
            for each in report.problems
        ],
    }


def erase(log: Log, name: str, keys: Sequence[bytes], *, progress: OnProgress = no_progress) -> Json:
    """Permanently remove every record of some keys from all files of a topic."""
    report = log.erase(name, keys, progress=lambda done, total: progress("erase", done, total))
    return {"erased": not report.left, **asdict(report), "left": list(report.left)}


def _check_partitions(topic: Topic, partitions: Sequence[int] | None) -> None:
    for each in partitions or ():
        if not 0 <= each < topic.partitions:
            raise UnknownPartitionError(
                f"Topic {topic.name!r} has no partition {each}; it has 0 to {topic.partitions - 1}."
            )


def _assess(topic: Topic, partitions: Sequence[int] | None) -> list[Assessment]:
    from lastword.segments.model import retry_if_moved

    return [
        each
        for each in retry_if_moved(topic.assess, f"Topic {topic.name!r}")
        if partitions is None or each.view.partition in partitions
    ]


def _nothing_to_compact(topic: Topic, assessed: Sequence[Assessment]) -> str:
    """Return why a requested compaction has nothing to do."""
    from lastword.compaction.plan import why_not
    from lastword.compaction.request import Scope

    return f"{why_not(assessed, topic.settings, Scope(asked_for=True))}."


def _plan_data(plan: PartitionPlan) -> Json:
    return {
        "topic": plan.topic,
        "partition": plan.partition,
        "reason": plan.reason,
        "dirty_ratio": plan.dirty_ratio,
        "first_dirty": plan.positions.first_dirty,
        "compactable_end": plan.compactable_end,
        "segments": len(plan.segments),
        "records": plan.records,
        "dirty_records": plan.dirty_records,
        "size_bytes": plan.size_bytes,
        "estimate": None if plan.estimate is None else asdict(plan.estimate),
    }


def _report_data(report: CompactionReport) -> Json:
    partitions = [_partition_data(each) for each in report.partitions]
    done = [each for each in partitions if each["problem"] is None]
    return {
        "engine": report.engine,
        "duration_s": round(report.duration_s, 3),
        "partitions": partitions,
        "failed_topics": [{"topic": topic, "problem": why} for topic, why in report.failed_topics],
        "total": {name: sum(each[name] for each in done) for name in SUMMED},
    }


def _partition_data(report: PartitionReport) -> dict[str, Any]:
    return {
        **asdict(report),
        "reclaimed_bytes": report.reclaimed_bytes,
        "duration_s": round(report.duration_s, 3),
    }


def _snapshot_data(snapshot: Snapshot, records: int) -> Json:
    return {
        "snapshot_id": snapshot_id_text(snapshot.id),
        "committed_ms": snapshot.committed_ms,
        "operation": snapshot.operation,
        "records": records,
    }
