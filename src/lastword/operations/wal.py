"""The contents of the write-ahead logs, and the way out if one is damaged."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lastword.clock import SystemClock
from lastword.config import is_internal
from lastword.folder.paths import ASIDE_FOLDER
from lastword.operations.maintaining import wait_for_maintenance

if TYPE_CHECKING:
    from lastword.log import Log
    from lastword.log.topic import Topic
    from lastword.wal.deleter import LocalFile, LocalWal
    from lastword.wal.repair import DamagedRange


def show_wal(log: Log, name: str | None = None) -> list[dict[str, Any]]:
    """Show the WAL files of each partition, the files kept aside, and known damage."""
    now_ms = SystemClock().now_ms()
    if name is not None:
        return [_topic_data(log.topic(name), now_ms)]
    visited = log.visit(lambda each: _topic_data(log.topic(each), now_ms), log.topics())
    unreadable = [
        {"topic": each, "partitions": [], "problem": str(error)} for each, error in visited.problems.items()
    ]
    return sorted([*visited.found.values(), *unreadable], key=lambda each: str(each["topic"]))


def wal_damage(log: Log, name: str) -> dict[str, Any]:
    """List the damaged ranges of a topic's WAL and, for an internal topic, of its segments."""
    topic = log.topic(name)
    found = [*(topic.sealed_damage() if is_internal(name) else ()), *topic.wal_damage()]
    return _damage_data(name, found, skipped=False)


def skip_damage(log: Log, name: str) -> dict[str, Any]:
    """Permanently skip the damaged ranges. The damaged files are kept aside."""
    from lastword.broker.groups.replay import GROUPS_TOPIC, write_again

    if name == GROUPS_TOPIC:
        write_again(log)
    return skip_lost_ranges(log, name)


def skip_lost_ranges(log: Log, name: str) -> dict[str, Any]:
    """Skip the damaged ranges. Of an internal topic, everything that is known must have been appended again before."""
    topic = log.topic(name)
    with wait_for_maintenance(log):
        found = topic.leave_segments_behind() if is_internal(name) else []
        return _damage_data(name, [*found, *topic.skip_wal_damage()], skipped=True)


def _topic_data(topic: Topic, now_ms: int) -> dict[str, Any]:
    extents = topic.extents()
    return {
        "topic": topic.name,
        "problem": None,
        "partitions": [
            _partition_data(wal, extents[wal.partition].log_end, now_ms)
            for wal in topic.local_wals()
            if wal.partition in extents
        ],
    }


def _partition_data(wal: LocalWal, log_end: int, now_ms: int) -> dict[str, Any]:
    from lastword.wal import checkpoint as checkpoints
    from lastword.wal.files import file_name

    saved = checkpoints.load_writer(wal.folder)
    opened_ms = {file.seq: file.opened_ms for file in saved.files} if saved else {}
    aside = wal.folder / ASIDE_FOLDER
    return {
        "partition": wal.partition,
        "folder": str(wal.folder),
        "sealed_end": wal.sealed_end,
        "log_end": log_end,
        "size_bytes": wal.size_bytes,
        "files": [
            {
                "seq": file.seq,
                "file": file_name(file.seq),
                "first_offset": file.first_offset,
                "end_offset": file.end_offset if file.end_offset is not None else log_end,
                "size_bytes": file.size_bytes,
                "age_ms": now_ms - (file.rolled_ms or opened_ms.get(file.seq, now_ms)),
                "state": _state(file, wal.sealed_end),
            }
            for file in wal.files
        ],
        "aside": [
            {"file": path.name, "size_bytes": path.stat().st_size}
            for path in (sorted(aside.iterdir()) if aside.exists() else [])
        ],
        "damage": [asdict(each) for each in saved.damage] if saved else [],
    }


def _state(file: LocalFile, sealed_end: int) -> str:
    if file.size_bytes is None:
        return "gone"
    if file.end_offset is None:
        return "active"
    if file.end_offset <= sealed_end:
        return "sealed"
    return "partly sealed" if file.first_offset < sealed_end else "not sealed"


def _damage_data(name: str, found: list[tuple[int, DamagedRange]], *, skipped: bool) -> dict[str, Any]:
    return {
        "topic": name,
        "skipped": skipped,
        "damage": [
            {"partition": partition, **asdict(each), "path": str(each.path)} for partition, each in found
        ],
    }
