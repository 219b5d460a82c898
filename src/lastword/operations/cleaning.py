"""One round of everything that bounds disk usage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastword.log import Log


def run_retention(log: Log, *, dry_run: bool = False, topics: Sequence[str] | None = None) -> dict[str, Any]:
    """Run one round of retention, or show what it would remove."""
    report = log.run_retention(dry_run=dry_run, topics=topics or None)
    return {
        "dry_run": dry_run,
        "segments": [
            {
                "topic": plan.topic,
                "partition": each.segment.partition,
                "first_offset": each.segment.first_offset,
                "last_offset": each.segment.last_offset,
                "records": each.segment.records,
                "size_bytes": each.segment.size_bytes,
                "path": each.segment.path,
                "age_ms": each.age_ms,
                "rule": each.rule,
            }
            for plan in report.removed
            for each in plan.removals
        ],
        "log_starts": [
            {"topic": plan.topic, "partition": partition, "log_start": log_start}
            for plan in report.removed
            for partition, log_start in plan.log_starts
        ],
        "wal_files": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "path": str(each.path),
                "first_offset": each.file.first_offset,
                "end_offset": each.file.end_offset,
                "size_bytes": each.file.size_bytes,
                "age_ms": each.age_ms,
                "rule": each.rule,
            }
            for each in report.wal.deletions
        ],
        "snapshots": dict(report.expired_snapshots),
        "files": {
            topic: {"files": list(each.files), "size_bytes": each.size_bytes}
            for topic, each in report.collected.items()
        },
        "problems": [
            *({"topic": topic, "problem": why} for topic, why in report.problems),
            *({"topic": None, "problem": why} for why in report.wal.errors),
        ],
    }
