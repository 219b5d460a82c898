"""Backups of a log, and restores from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lastword.operations.compaction import Stop, never
from lastword.operations.topics import OnProgress, no_progress
from lastword.record_json import Json

if TYPE_CHECKING:
    from pathlib import Path

    from lastword.log import Log
    from lastword.maintenance.backup.manifest import Manifest, SavedTopic


def make_backup(
    log: Log,
    to: str,
    *,
    keep: int | None = None,
    properties: Mapping[str, str] | None = None,
    progress: OnProgress = no_progress,
    stop: Stop = never,
) -> Json:
    """Back up the whole log while it is being served."""
    report = log.backup(
        to,
        keep=keep,
        properties=properties,
        progress=lambda done, total: progress("backup", done, total),
        stop=stop,
    )
    return {
        **_backup_data(report.backup),
        "place": report.place,
        "copied_files": report.copied_files,
        "copied_bytes": report.copied_bytes,
        "reused_files": report.reused_files,
        "removed_backups": list(report.removed_backups),
        "removed_files": report.removed_files,
        "duration_s": round(report.duration_s, 3),
        "problems": list(report.problems),
    }


def list_backups(place: str, *, properties: Mapping[str, str] | None = None) -> Json:
    """List the backups at a place, oldest first."""
    from lastword.maintenance.backup.restoring import backups

    found, problems = backups(place, properties=properties)
    return {"place": place, "backups": [_backup_data(each) for each in found], "problems": problems}


def restore_backup(
    source: str,
    folder: Path,
    *,
    backup: str | None,
    warehouse: str | None,
    config: Path | None,
    properties: Mapping[str, str] | None,
    progress: OnProgress = no_progress,
) -> Json:
    """Restore a log from a backup."""
    from lastword.maintenance.backup.restoring import restore

    report = restore(
        source,
        folder,
        backup=backup,
        warehouse=warehouse,
        config=config,
        properties=properties,
        progress=lambda done, total: progress("restore", done, total),
    )
    return {
        **_backup_data(report.backup),
        "place": report.place,
        "data": str(report.path),
        "warehouse": report.warehouse,
        "files": report.files,
        "duration_s": round(report.duration_s, 3),
    }


def _backup_data(backup: Manifest) -> dict[str, Any]:
    return {
        "backup": backup.id,
        "began_ms": backup.began_ms,
        "made_ms": backup.made_ms,
        "version": backup.version,
        "folder": backup.folder,
        "host": backup.host,
        "size_bytes": backup.size_bytes,
        "topics": [_topic_data(each) for each in backup.topics],
        "problems": list(backup.problems),
    }


def _topic_data(topic: SavedTopic) -> dict[str, Any]:
    return {
        "topic": topic.info.name,
        "sealed_bytes": sum(each.size_bytes for each in topic.pieces),
        "wal_bytes": sum(piece.size_bytes for wal in topic.wals for piece in wal.pieces),
        "partitions": [
            {"partition": partition, "log_start": at.log_start, "log_end": topic.log_end(partition)}
            for partition, at in enumerate(topic.positions)
        ],
    }
