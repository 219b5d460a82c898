"""`lastword topic describe`: what a topic is, where its records are, what compaction has to do, what is wrong."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from lastword.cli.options import Session, TopicArgument, command
from lastword.cli.output import age, facts, heading, size, styled, table
from lastword.errors import CorruptError, UnavailableError

if TYPE_CHECKING:
    from lastword.config import EffectiveSetting
    from lastword.topic import PartitionDescription, Topic, TopicDescription
    from lastword.worker import FailingPartition

MOST_FOOTERS = 256
"""Garbage is estimated from the footers of segments, each a small read; of more segments it would take too long."""


def register(group: typer.Typer) -> None:
    command(
        group,
        "describe",
        examples=["lastword topic describe users", "lastword topic describe users --json"],
    )(describe)


def describe(session: Session, name: TopicArgument) -> None:
    """Show what a topic is, where its records are, and what is wrong with it, if anything."""
    from lastword.locks import Role, holder
    from lastword.readers import CommittedPositions
    from lastword.worker import load_status

    with session.read() as log:
        found = _look(session, log.topic(name))
        readers = {each: CommittedPositions(log.path, found.id.hex, each).load() for each in found.readers}
        worker = holder(log.path, Role.WORKER)
        status = load_status(log.path)
    failing = [each for each in status.failing if each.topic == name] if status is not None else []
    session.output.show(
        {
            **_description_data(found, readers),
            "worker": worker,
            "failing_compactions": [asdict(each) for each in failing],
        },
        *_description_parts(found, readers, worker),
        *_failing_parts(failing),
    )


def _look(session: Session, topic: Topic) -> TopicDescription:
    found = topic.describe()
    if topic.settings.compacts and 0 < sum(each.segments for each in found.partitions) <= MOST_FOOTERS:
        try:
            return topic.describe(estimates=True)
        except (CorruptError, UnavailableError) as error:
            # What is wrong is what people look here for.
            session.output.warn(f"garbage can't be estimated: {error}")
    return found


def _description_data(found: TopicDescription, readers: dict[str, dict[int, int]]) -> dict[str, Any]:
    return {
        "topic": found.name,
        "id": str(found.id),
        "cleanup_policy": found.cleanup_policy,
        "location": found.location,
        "wal_folder": found.wal_folder,
        "partitions": [
            {
                **asdict(each),
                "unsealed_records": _unsealed(each),
                "last_run": None if each.last_run is None else each.last_run._asdict(),
            }
            for each in found.partitions
        ],
        "settings": [asdict(each) for each in found.settings],
        "readers": {
            name: {
                "positions": {str(partition): offset for partition, offset in sorted(positions.items())},
                "behind": _behind(found, positions),
            }
            for name, positions in readers.items()
        },
    }


def _description_parts(
    found: TopicDescription, readers: dict[str, dict[int, int]], worker: str | None
) -> list[Any]:
    of_topic = found.settings
    given = [each for each in of_topic if each.source != "default"]
    parts: list[Any] = [
        facts(
            [
                ("topic", found.name),
                ("id", str(found.id)),
                ("cleanup.policy", found.cleanup_policy),
                ("partitions", str(len(found.partitions))),
                ("sealed in", found.location),
                ("WAL in", found.wal_folder),
                ("worker", worker or "none is running"),
            ]
        ),
        heading("Offsets"),
        table(
            [">partition", ">log start", ">first dirty", ">sealed end", ">log end", ">leader epoch", ""],
            [
                (
                    each.partition,
                    each.log_start,
                    each.first_dirty,
                    each.sealed_end,
                    each.log_end,
                    each.leader_epoch,
                    styled("PROBLEM, see below", "bold red") if each.problem else "",
                )
                for each in found.partitions
            ],
        ),
        heading("Storage"),
        _storage_table(found),
        *_compaction_parts(found),
        heading("Settings"),
    ]
    if given:
        parts.append(table(["setting", "value", "from"], [_setting_row(each) for each in given]))
    parts.append(
        f"{'The others have' if given else 'All have'} their defaults; "
        f"`lastword config show --topic {found.name}` shows them."
    )
    if readers:
        parts += [
            heading("Named readers"),
            table(
                ["reader", ">records behind"],
                [(name, _behind(found, positions)) for name, positions in readers.items()],
            ),
        ]
    if problems := [each for each in found.partitions if each.problem]:
        parts += [
            heading("Problems"),
            table(
                [">partition", "problem"],
                [(each.partition, styled(each.problem or "", "red")) for each in problems],
            ),
        ]
    return parts


def _storage_table(found: TopicDescription) -> Any:
    each_of = found.partitions
    rows = [
        (
            each.partition,
            each.segments,
            each.sealed_records,
            size(each.sealed_bytes),
            _unsealed(each),
            each.wal_files,
            size(each.wal_bytes),
        )
        for each in each_of
    ]
    total = (
        "all",
        sum(each.segments for each in each_of),
        sum(each.sealed_records for each in each_of),
        size(sum(each.sealed_bytes for each in each_of)),
        sum(_unsealed(each) for each in each_of),
        sum(each.wal_files for each in each_of),
        size(sum(each.wal_bytes for each in each_of)),
    )
    columns = [
        ">\npartition",
        ">\nsegments",
        ">sealed\nrecords",
        ">sealed\nsize",
        ">unsealed\nrecords",
        ">WAL\nfiles",
        ">WAL\nsize",
    ]
    return table(columns, rows, total=total if len(each_of) > 1 else None)


def _compaction_parts(found: TopicDescription) -> list[Any]:
    """How dirty each partition is, what its last run did, and which are due, if compaction has to do with them."""
    if not any(each.dirty_ratio is not None or each.due or each.last_run for each in found.partitions):
        return []
    now_ms = time.time_ns() // 1_000_000
    columns = [
        ">\npartition",
        ">dirty\nratio",
        ">garbage\n(about)",
        ">\n",
        ">last\ncompacted",
        ">\ntook",
        ">\nreclaimed",
        "\n",
    ]
    parts: list[Any] = [
        heading("Compaction"),
        table(columns, [_compaction_row(each, now_ms) for each in found.partitions]),
    ]
    for reason in dict.fromkeys(each.due for each in found.partitions if each.due):
        which = ", ".join(str(each.partition) for each in found.partitions if each.due == reason)
        parts.append(f"Due because of {reason}: partition {which}.")
    return parts


def _compaction_row(partition: PartitionDescription, now_ms: int) -> tuple[object, ...]:
    # Of what is clean nothing is garbage, whatever an estimate says.
    garbage = partition.estimate if partition.first_dirty < partition.sealed_end else None
    last = partition.last_run
    return (
        partition.partition,
        None if partition.dirty_ratio is None else f"{partition.dirty_ratio:.2f}",
        None if garbage is None else garbage.garbage_records,
        None if garbage is None else size(garbage.reclaimed_bytes),
        None if last is None else f"{age(now_ms - last.time_ms)} ago",
        None if last is None else f"{last.duration_ms / 1000:.1f} s",
        None if last is None else size(max(0, last.reclaimed_bytes)),
        styled("due", "bold yellow") if partition.due else "",
    )


def _failing_parts(failing: list[FailingPartition]) -> list[Any]:
    if not failing:
        return []
    now_ms = time.time_ns() // 1_000_000
    return [
        heading("Compaction keeps failing"),
        table(
            [">partition", ">times", ">next try in", "problem"],
            [
                (each.partition, each.failures, age(each.retry_ms - now_ms), styled(each.message, "red"))
                for each in failing
            ],
        ),
    ]


def _unsealed(partition: PartitionDescription) -> int:
    return max(0, partition.log_end - max(partition.sealed_end, partition.log_start))


def _behind(found: TopicDescription, positions: dict[int, int]) -> int:
    return sum(
        each.log_end - max(positions.get(each.partition, each.log_start), each.log_start)
        for each in found.partitions
    )


def _setting_row(setting: EffectiveSetting) -> tuple[str, str, str]:
    return setting.key, setting.value or "not set", " ".join(filter(None, (setting.source, setting.where)))
