"""Plans tasks from a topic, the options and Spark's filters. Segments that can't have a matching row get no task."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import numpy as np
from pyspark.sql.datasource import InputPartition

from lastword.clock import new_uuid
from lastword.compaction.strategy import strategy_of
from lastword.errors import InvalidError, OffsetOutOfRangeError
from lastword.folder.leases import Lease, LeaseKeeper
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.reading import timetravel, winners
from lastword.reading.reader import PartitionReader
from lastword.reading.timetravel import View
from lastword.segments.model import retry_if_moved
from lastword.spark.filters import Wanted
from lastword.spark.opened import opened
from lastword.spark.options import Bound, ReadOptions
from lastword.spark.tasks import EmptyTask, Pin, SealedPart, SealedTask, TailTask

TASKS_A_CORE: Final = 2
MIN_SPLIT_BYTES: Final = 4 << 20
"""A read with less than `split.bytes` per core is split so that all cores have work, but not below this size."""

WAIT_MS: Final = 600_000
"""How long files are kept for tasks that have not begun yet, whatever snapshot.retention.ms is."""


def plan_batch(options: ReadOptions, wanted: Wanted) -> list[InputPartition]:
    """Return the tasks of a batch read."""
    log = opened(options.where)
    topic = log.topic(options.where.topic)
    _check_as_of(topic, options)
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(reader)) for reader in topic.partition_readers()]
        if options.view == "state":
            tasks = _plan_state(log, topic, readers, options, wanted)
        else:
            tasks = _plan_records(log, topic, readers, options, wanted)
    return tasks or [EmptyTask()]


def _plan_records(
    log: Log, topic: Topic, readers: Sequence[PartitionReader], options: ReadOptions, wanted: Wanted
) -> list[InputPartition]:
    _check_partitions(topic, options.start)
    _check_partitions(topic, options.end)
    views: dict[int, View] = {}
    for reader in readers:
        if wanted.partition(reader.partition):
            views[reader.partition] = _bounded(reader, options, end=options.end)
    follows = options.as_of is None and options.end == Bound()
    return plan_ranges(
        log,
        topic,
        readers,
        views,
        options,
        wanted,
        follows_compaction=follows,
        exact=options.as_of is not None,
    )


def first_offsets(topic: Topic, options: ReadOptions) -> dict[int, int]:
    """Return the offset at which the read of each partition begins."""
    _check_partitions(topic, options.start)
    found = {}
    for reader in topic.partition_readers():
        with closing(reader):
            found[reader.partition] = _bounded(reader, options, end=Bound()).start
    return found


def plan_ranges(
    log: Log,
    topic: Topic,
    readers: Sequence[PartitionReader],
    views: Mapping[int, View],
    options: ReadOptions,
    wanted: Wanted,
    *,
    follows_compaction: bool = False,
    exact: bool = False,
    on_data_loss: Literal["fail", "skip"] = "skip",
) -> list[InputPartition]:
    """Return the tasks for a range of offsets of each partition."""
    parts: list[SealedPart] = []
    tails: list[InputPartition] = []
    for partition, view in views.items():
        if view.start >= view.end:
            continue
        parts += [
            SealedPart(segment=segment, start=view.start, end=view.sealed_to)
            for segment in timetravel.sealed_segments(readers[partition], view)
            if wanted.segment(segment)
        ]
        first = view.tail_start
        if first < view.end and first <= wanted.last_offset and view.end > wanted.first_offset:
            tails.append(
                TailTask(
                    where=options.where,
                    topic_id=topic.id.hex,
                    partition=partition,
                    start=first,
                    end=view.end,
                    follows_compaction=follows_compaction,
                    exact=exact,
                    on_data_loss=on_data_loss,
                )
            )
    return [*_sealed_tasks(log, topic, readers, parts, views.values(), options), *tails]


def _plan_state(
    log: Log, topic: Topic, readers: Sequence[PartitionReader], options: ReadOptions, wanted: Wanted
) -> list[InputPartition]:
    def attempt() -> list[InputPartition]:
        with ExitStack() as pins:
            found = winners.find(
                readers,
                lambda reader: timetravel.view(reader, options.as_of),
                strategy_of(topic.settings),
                pins,
                wanted.keys,
            )
            return _state_tasks(log, topic, readers, found, options, wanted)

    return retry_if_moved(attempt, f"Topic {topic.name!r}")


def _state_tasks(
    log: Log,
    topic: Topic,
    readers: Sequence[PartitionReader],
    found: Sequence[winners.PartitionWinners],
    options: ReadOptions,
    wanted: Wanted,
) -> list[InputPartition]:
    parts: list[SealedPart] = []
    tails: list[InputPartition] = []
    for partition, own in enumerate(found):
        view = own.view
        for rows, mask in zip(own.sealed, own.masks, strict=False):
            if mask.any() and wanted.segment(rows.segment):
                packed = np.packbits(mask).tobytes()
                parts.append(
                    SealedPart(segment=rows.segment, start=view.start, end=view.sealed_to, mask=packed)
                )
        won = own.tail.offsets[own.masks[-1].view(np.bool_)]
        if len(won) and wanted.partition(partition):
            tails.append(
                TailTask(
                    where=options.where,
                    topic_id=topic.id.hex,
                    partition=partition,
                    start=int(won[0]),
                    end=int(won[-1]) + 1,
                    exact=True,
                    winners=won.tobytes(),
                )
            )
    views = [each.view for each in found]
    return [*_sealed_tasks(log, topic, readers, parts, views, options), *tails]


def _sealed_tasks(
    log: Log,
    topic: Topic,
    readers: Sequence[PartitionReader],
    parts: Sequence[SealedPart],
    views: Iterable[View],
    options: ReadOptions,
) -> list[InputPartition]:
    if not parts:
        return []
    snapshot_ids = sorted({view.snapshot.id for view in views if view.snapshot.id is not None})
    for each in snapshot_ids:
        _keep_for_a_while(log, topic, each)
    pin = Pin(
        data_folder=str(log.path),
        topic_id=topic.id.hex,
        snapshot_ids=tuple(snapshot_ids),
        ttl_ms=log.config.lease_ttl_ms,
    )
    files = readers[0].table.files
    return [
        SealedTask(files=files, parts=tuple(group), pin=pin) for group in _grouped(parts, options.split_bytes)
    ]


def _grouped(parts: Sequence[SealedPart], split_bytes: int) -> Iterator[list[SealedPart]]:
    """Yield the parts in groups of about one size: small ones together, large ones cut at offsets."""
    total_bytes = sum(part.segment.size_bytes for part in parts)
    even_bytes = -(-total_bytes // (TASKS_A_CORE * (os.cpu_count() or 1)))
    most_bytes = min(split_bytes, max(even_bytes, MIN_SPLIT_BYTES))
    group: list[SealedPart] = []
    size_bytes = 0
    for part in parts:
        for cut, cut_bytes in _cut(part, most_bytes):
            # Better to exceed the size a little than to leave a small rest for one more task.
            if group and size_bytes + cut_bytes // 2 > most_bytes:
                yield group
                group, size_bytes = [], 0
            group.append(cut)
            size_bytes += cut_bytes
    if group:
        yield group


def _cut(part: SealedPart, most_bytes: int) -> Iterator[tuple[SealedPart, int]]:
    segment = part.segment
    start, end = max(part.start, segment.first_offset), min(part.end, segment.last_offset + 1)
    share = (end - start) / (segment.last_offset + 1 - segment.first_offset)
    pieces = max(1, min(round(segment.size_bytes * share / most_bytes), end - start))
    bounds = [start + (end - start) * index // pieces for index in range(pieces + 1)]
    for first, last in pairwise(bounds):
        yield replace(part, start=first, end=last), int(segment.size_bytes * share / pieces)


def _keep_for_a_while(log: Log, topic: Topic, snapshot_id: int) -> None:
    """Write a lease that is not renewed: it lasts from the plan until the tasks take their own."""
    keeper = LeaseKeeper(Path(log.path), log.clock, WAIT_MS)
    lease = Lease(
        id=new_uuid().hex[:16],
        topic_id=topic.id.hex,
        job="spark",
        snapshot_id=snapshot_id,
        expires_ms=log.clock.now_ms() + WAIT_MS,
    )
    try:
        keeper.write(lease)
    except OSError:
        # The folder is read-only; snapshot.retention.ms must suffice.
        return


def _bounded(reader: PartitionReader, options: ReadOptions, *, end: Bound) -> View:
    """Return the view of a partition from the beginning to the end of its read."""

    def attempt() -> View:
        view = timetravel.view(reader, options.as_of)
        with reader.pin(view.snapshot):
            return replace(
                view,
                start=_offset_of(reader, view, options.start, "start", view.start),
                end=_offset_of(reader, view, end, "end", view.end),
            )

    return retry_if_moved(attempt, f"Partition {reader.partition}")


def _offset_of(reader: PartitionReader, view: View, bound: Bound, name: str, default: int) -> int:
    """Return the offset at which a partition's read begins or ends."""
    if bound.time_ms is not None:
        # Searched in the snapshot that is read: a later one may lack the record.
        return timetravel.offset_for_time(reader, view, bound.time_ms)
    match bound.offsets:
        case "earliest":
            return view.start
        case "latest":
            return view.end
        case int() as offset:
            return min(max(offset, view.start), view.end)
        case None:
            return default
        case given:
            offset = given.get(reader.partition, default)
            if not view.start <= offset <= view.end:
                raise OffsetOutOfRangeError(
                    f"option {name!r}: offset {offset} of partition {reader.partition} is out of range; allowed: "
                    f"{view.start} (log start) to {view.end} (log end)"
                )
            return offset


def _check_partitions(topic: Topic, bound: Bound) -> None:
    if isinstance(bound.offsets, Mapping) and (unknown := set(bound.offsets) - set(range(topic.partitions))):
        raise InvalidError(
            f"topic {topic.name!r} has no partition {min(unknown)}; it has 0 to {topic.partitions - 1}"
        )


def _check_as_of(topic: Topic, options: ReadOptions) -> None:
    if options.as_of is not None and options.as_of.offset is not None and topic.partitions > 1:
        raise InvalidError(
            f"option 'as.of' is {options.as_of.offset}: {topic.name!r} has {topic.partitions} partitions, and an "
            f"offset belongs to one partition; give a time or snapshot:ID"
        )
