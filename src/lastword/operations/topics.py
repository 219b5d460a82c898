"""Topics: list, create, change, delete, seal, history, settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from lastword.errors import InvalidConfigError, InvalidError, UnknownTopicError
from lastword.operations.maintaining import wait_for_maintenance
from lastword.record_json import Json, snapshot_id_text

if TYPE_CHECKING:
    from lastword.config import BrokerConfig, EffectiveSetting
    from lastword.log import Log
    from lastword.maintenance.repairing import RepairPlan
    from lastword.segments.model import Snapshot

OnProgress = Callable[..., None]

POLICY = "cleanup.policy"


def no_progress(stage: str, *numbers: int | None) -> None:
    """Ignore progress. This is the default."""


def list_topics(log: Log) -> list[Json]:
    """List every topic, with the settings that it overrides."""
    listing = log.listing()
    readable = [
        {
            "name": info.name,
            "id": str(info.id),
            "state": "ready",
            "problem": None,
            "partitions": info.partitions,
            "cleanup_policy": _policy(log.config.explain(info.name, info.config)),
            "config": dict(info.config),
            "foreign_owner": str(info.owner) if log.is_foreign(info) else None,
        }
        for info in listing.infos
    ]
    unreadable: list[Json] = [
        {
            "name": each.name,
            "id": None if each.id is None else str(each.id),
            "state": "unreadable",
            "problem": each.problem,
            "partitions": None,
            "cleanup_policy": None,
            "config": {},
            "foreign_owner": None,
        }
        for each in listing.unreadable
    ]
    return sorted([*readable, *unreadable], key=lambda each: str(each["name"]))


def create_topic(
    log: Log, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None
) -> Json:
    """Create a topic."""
    topic = log.create_topic(name, partitions=partitions, config=config or {})
    return {
        "topic": topic.name,
        "id": str(topic.id),
        "partitions": topic.partitions,
        "cleanup_policy": _policy(log.explain_config(name)),
        "config": dict(topic.config),
    }


def alter_topic(
    log: Log,
    name: str,
    *,
    set_config: Mapping[str, object],
    unset: Iterable[str],
    partitions: int | None,
) -> Json:
    """Set or unset settings of a topic, or add partitions."""
    from lastword.log.topics import warning_of_more_partitions

    unset = list(unset)
    if not set_config and not unset and partitions is None:
        raise InvalidError(
            "There is nothing to change: no settings to set or unset, and no number of partitions."
        )
    if both := sorted(set(set_config) & set(unset)):
        raise InvalidConfigError(f"{both[0]!r} is both set and unset; do one of them")
    before = {each.key: each for each in log.explain_config(name)}
    partitions_before = log.topic(name).partitions
    topic = log.alter_topic(name, set_config=set_config, unset=unset, partitions=partitions)
    after = {each.key: each for each in log.explain_config(name)}
    changed = [key for key in after if before.get(key) != after[key]]
    has_grown = topic.partitions > partitions_before and topic.settings.compacts
    return {
        "topic": name,
        "warning": warning_of_more_partitions(name, topic.partitions) if has_grown else None,
        "partitions": {"before": partitions_before, "after": topic.partitions},
        "changed": {
            key: {"before": _setting_data(before[key]), "after": _setting_data(after[key])} for key in changed
        },
    }


def delete_topic(log: Log, name: str) -> Json:
    """Delete a topic with all its records and the positions of its readers."""
    if name not in log.topics():
        raise UnknownTopicError(f"There is no topic {name!r}.")
    log.delete_topic(name)
    return {"topic": name, "deleted": True}


def repair_plan(log: Log, name: str) -> Json:
    """Show the problem with a topic's table, its older states, and the one that a repair would go back to."""
    return _repair_data(log.plan_repair(name), repaired=False)


def repair_topic(log: Log, name: str) -> Json:
    """Repair a topic whose table can't be read, by going back to an older state of the table."""
    with wait_for_maintenance(log):
        return _repair_data(log.repair_topic(name), repaired=True)


def delete_records(log: Log, name: str, *, partition: int, before: int) -> Json:
    """Delete the records of a partition below an offset."""
    topic = log.topic(name)
    old_start = topic.extents()[partition].log_start if 0 <= partition < topic.partitions else 0
    log_start = topic.delete_records({partition: before})[partition]
    return {"topic": name, "partition": partition, "log_start_before": old_start, "log_start": log_start}


def seal(log: Log, name: str, *, progress: OnProgress = no_progress) -> Json:
    """Commit all records that are only in the WAL as sealed segments."""
    report = log.topic(name).seal(progress=lambda done, total: progress("seal", done, total))
    return {
        "topic": report.topic,
        "segments": [asdict(each) for each in report.segments],
        "records": report.records,
        "beaten": report.beaten,
        "size_bytes": report.size_bytes,
        "wal_files": report.files,
        "wal_bytes": report.wal_bytes,
        "duration_s": round(report.duration_s, 3),
        "snapshot_id": snapshot_id_text(report.snapshot_id),
        "problems": [{"partition": partition, "problem": why} for partition, why in report.problems],
    }


def history(log: Log, name: str) -> Json:
    """List the retained snapshots of a topic, oldest first, with the operation that made each."""
    return {"topic": name, "snapshots": [_snapshot_data(each) for each in log.topic(name).history()]}


def topic_settings(log: Log, name: str) -> list[Json]:
    """List the effective settings of a topic, each with its source."""
    return [asdict(each) for each in log.explain_config(name)]


def broker_settings(config: BrokerConfig) -> list[Json]:
    """List the settings that topics inherit and the broker's own, each with its source. Secrets are masked."""
    return [asdict(each) for each in config.explain()]


def _repair_data(plan: RepairPlan, *, repaired: bool) -> Json:
    return {
        "topic": plan.topic,
        "problem": plan.problem,
        "repaired": repaired,
        "states": [
            {
                "metadata_location": each.metadata_location,
                "committed_ms": None if each.snapshot is None else each.snapshot.committed_ms,
                "operation": None if each.snapshot is None else each.snapshot.operation,
                "problem": each.problem,
            }
            for each in plan.states
        ],
        "chosen": None if plan.chosen is None else plan.chosen.metadata_location,
        "lost": [asdict(each) for each in plan.lost],
    }


def _policy(effective: Iterable[EffectiveSetting]) -> str:
    return next(each.value for each in effective if each.key == POLICY)


def _setting_data(setting: EffectiveSetting) -> dict[str, str]:
    return {"value": setting.value, "source": setting.source}


def _snapshot_data(snapshot: Snapshot) -> Json:
    return {
        "snapshot_id": snapshot_id_text(snapshot.id),
        "parent_id": snapshot_id_text(snapshot.parent_id),
        "committed_ms": snapshot.committed_ms,
        "operation": snapshot.operation,
        "details": dict(snapshot.details),
        "partitions": [
            {
                "partition": partition,
                "log_start": at.log_start,
                "first_dirty": at.first_dirty,
                "sealed_end": at.sealed_end,
            }
            for partition, at in enumerate(snapshot.positions)
        ],
    }
