"""Streaming reads: one position per partition, which Spark keeps in its checkpoint.

A micro-batch is a range of offsets of each partition, fixed before it is read. So a batch that Spark repeats after a
crash has the same ranges; records that compaction has removed from them meanwhile were superseded by records that are
still ahead. Positions and ranges only ever move up, whatever is sealed, compacted or rolled.

Records that retention has removed before they were read are an error, or are skipped with `on.data.loss=skip`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lastword.errors import InvalidError, OffsetOutOfRangeError
from lastword.log.topic import Topic
from lastword.reading.reader import PartitionReader
from lastword.reading.timetravel import View, view_now
from lastword.segments.model import SegmentGoneError
from lastword.spark import plan, tasks
from lastword.spark.filters import EVERYTHING
from lastword.spark.opened import opened
from lastword.spark.options import ReadOptions
from lastword.spark.process import prepare_process
from lastword.spark.schema import arrow_schema

Positions = dict[int, int]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. It lives as long as its query, on the driver; executors read with copies of it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._last: Positions | None = None

    def initialOffset(self) -> dict[str, Any]:
        topic = self._topic()
        return _saved(topic, plan.first_offsets(topic, self._options))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        topic = self._topic()
        with _readers(topic) as readers:
            views = [view_now(reader) for reader in readers]
            begun = self._positions(topic, start)
            first = {each: max(begun.get(each, 0), view.start) for each, view in enumerate(views)}
            ends = {each: max(views[each].end, begun.get(each, 0)) for each in first}
            if self._last is not None:
                ends = {
                    each: max(min(ends[each], self._last.get(each, 0)), begun.get(each, 0)) for each in ends
                }
            if isinstance(limit, ReadMaxRows):
                ends = bounded(readers, views, first, ends, limit.max_rows)
        return _saved(topic, ends)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_records_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any]:
        topic = self._topic()
        return _saved(topic, _ends(topic))

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = _ends(self._topic())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        topic = self._topic()
        begun, ends = self._positions(topic, start), self._positions(topic, end)
        skips = self._options.on_data_loss == "skip"
        views: dict[int, View] = {}
        with _readers(topic) as readers:
            for partition, stop in ends.items():
                view = view_now(readers[partition])
                first = begun.get(partition, 0)
                if first >= stop:
                    continue
                # A partition that is new to the query begins at its log start.
                if not skips and partition in begun:
                    tasks.check_not_lost(topic.name, partition, first, view.start)
                if stop > view.end and not skips:
                    raise OffsetOutOfRangeError(
                        f"Records of {topic.name!r} partition {partition} are lost: this query has seen it up to offset "
                        f"{stop}, but the log ends at {view.end}. Set option 'on.data.loss' to 'skip' to continue."
                    )
                views[partition] = replace(view, start=max(first, view.start), end=min(stop, view.end))
            return plan.plan_ranges(
                opened(self._options.where),
                topic,
                readers,
                views,
                self._options,
                EVERYTHING,
                on_data_loss=self._options.on_data_loss,
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        prepare_process()
        return tasks.read(partition, self._schema)

    def _topic(self) -> Topic:
        return opened(self._options.where).topic(self._options.where.topic)

    def _positions(self, topic: Topic, saved: Mapping[str, Any]) -> Positions:
        """Return the positions of a checkpoint; those of another topic of that name mean nothing."""
        if saved["topic_id"] == topic.id.hex:
            return {int(partition): offset for partition, offset in saved["offsets"].items()}
        if self._options.on_data_loss == "skip":
            return {}
        raise InvalidError(
            f"The topic {topic.name!r} has been deleted and recreated since the checkpoint was written. Begin with a "
            f"new checkpoint, or set option 'on.data.loss' to 'skip' to read the new topic from its start."
        )


def bounded(
    readers: Sequence[PartitionReader],
    views: Sequence[View],
    first: Mapping[int, int],
    ends: Mapping[int, int],
    most_records: int,
) -> Positions:
    """Return the ends of a read of at most `most_records`: each partition gets its share of the waiting records."""
    waiting = {each: max(ends[each] - first[each], 0) for each in ends}
    total = sum(waiting.values())
    if total <= most_records:
        return dict(ends)
    left = most_records
    reached: Positions = {}
    # The smallest first, so that the rest from rounding goes to the largest.
    for partition in sorted(waiting, key=lambda each: waiting[each]):
        share = min(max(most_records * waiting[partition] // total, 1), left) if waiting[partition] else 0
        if partition == max(waiting, key=lambda each: waiting[each]):
            share = left
        left -= share
        reached[partition] = (
            _reach(readers[partition], views[partition], first[partition], ends[partition], share)
            if share
            else min(first[partition], ends[partition])
        )
    return {each: reached[each] for each in sorted(reached)}


def _reach(reader: PartitionReader, view: View, first: int, end: int, most_records: int) -> int:
    """Return an offset after `first` with at most `most_records` in between. Gaps don't count: there may be far more
    offsets than records after a compaction, and in a mirror of a log that does not begin at 0."""
    counted, at = 0, first
    for segment in reader.table.plan(view.snapshot, reader.partition, first):
        begin = max(segment.first_offset, at)
        if begin >= end:
            return end
        if counted == most_records:
            return at
        there, behind = segment.records, segment.last_offset + 1
        if counted + there > most_records:
            try:
                there, behind = tasks.passed(reader.table.files, segment, begin, most_records - counted)
            except SegmentGoneError:
                # Each offset may have a record.
                there, behind = most_records - counted, begin + most_records - counted
        counted += there
        at = behind
        if at >= end:
            return end
    if counted == most_records:
        return at
    at = max(at, view.sealed_end)
    with closing(reader.replay(at, end)) as tail:
        at = next((records.column("offset")[0].as_py() for records in tail if records.num_rows), end)
    return min(at + most_records - counted, end)


def _ends(topic: Topic) -> Positions:
    return {partition: extent.log_end for partition, extent in topic.extents().items()}


def _saved(topic: Topic, positions: Mapping[int, int]) -> dict[str, Any]:
    return {"topic_id": topic.id.hex, "offsets": {str(each): positions[each] for each in sorted(positions)}}


@contextmanager
def _readers(topic: Topic) -> Iterator[list[PartitionReader]]:
    """Yield the readers of a topic's partitions, and close them at the end."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(each)) for each in topic.partition_readers()]
