"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: find offsets in a partition's log, and move its start."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import closing
from typing import Final

from kafka.protocol.admin import DeleteRecordsResponse
from kafka.protocol.consumer import ListOffsetsResponse, OffsetForLeaderEpochResponse

from lastword import metrics
from lastword.broker.errors import ErrorCode, RefusedError, code_of
from lastword.broker.node import NO_EPOCH, Node
from lastword.broker.partitions import PartitionView, TopicView, Views
from lastword.broker.wire import Answer, Handler, Message, Peer, Request
from lastword.config import is_internal
from lastword.errors import LastwordError
from lastword.log.topic import Topic

LIST_OFFSETS: Final = 2
DELETE_RECORDS: Final = 21
OFFSET_FOR_LEADER_EPOCH: Final = 23

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5

SINCE_VERSION: Final = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The special timestamps, and the first version of ListOffsets that allows each."""

NO_OFFSET: Final = -1

_ListedTopic: Final = ListOffsetsResponse.ListOffsetsTopicResponse
_Listed: Final = _ListedTopic.ListOffsetsPartitionResponse
_EpochTopic: Final = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_EpochEnd: Final = _EpochTopic.EpochEndOffset
_DeletedTopic: Final = DeleteRecordsResponse.DeleteRecordsTopicResult
_Deleted: Final = _DeletedTopic.DeleteRecordsPartitionResult


class OffsetsHandler:
    """Answers from the writers where that is enough, else from the table's current snapshot."""

    def __init__(self, node: Node, views: Views) -> None:
        self._node = node
        self._views = views

    def handlers(self) -> dict[int, Handler]:
        return {
            LIST_OFFSETS: self._list_offsets,
            OFFSET_FOR_LEADER_EPOCH: self._offset_for_leader_epoch,
            DELETE_RECORDS: self._delete_records,
        }

    # -------------------------------------------------------------------------------------- ListOffsets

    async def _list_offsets(self, request: Request, _peer: Peer) -> Answer:
        topics = []
        # One load of a table's snapshot is enough for all of its partitions.
        refreshed: set[TopicView] = set()
        for wanted in request.message.topics or ():
            partitions = [
                await self._listed(wanted.name, each, request.api_version, refreshed)
                for each in wanted.partitions or ()
            ]
            topics.append(_ListedTopic(name=wanted.name, partitions=partitions))
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    async def _listed(self, name: str, wanted: Message, version: int, refreshed: set[TopicView]) -> Message:
        code, timestamp_ms, offset, epoch = ErrorCode.NONE, -1, NO_OFFSET, NO_EPOCH
        try:
            _check_timestamp(wanted.timestamp, version)
            view = self._view(name, wanted.partition_index)
            code = _epoch_problem(view, wanted.current_leader_epoch)
            if code is ErrorCode.NONE:
                found = await self._find(view, wanted.timestamp, refreshed)
                if found is not None:
                    offset, timestamp_ms = found
                    epoch = _epoch_at(view.writer.epochs, offset)
        except LastwordError as error:
            code = code_of(error)
            metrics.KAFKA_ERRORS.labels("ListOffsets", code.name).inc()
        return _Listed(
            partition_index=wanted.partition_index,
            error_code=int(code),
            timestamp=timestamp_ms,
            offset=offset,
            leader_epoch=epoch,
        )

    async def _find(
        self, view: PartitionView, timestamp_ms: int, refreshed: set[TopicView]
    ) -> tuple[int, int] | None:
        """Return the offset, and the timestamp of its record or -1. Return None if no record is that late."""
        topic = view.topic.topic
        if timestamp_ms == LATEST:
            return view.writer.shown.offset, -1
        if timestamp_ms in (EARLIEST, EARLIEST_LOCAL, LATEST_TIERED):
            if view.topic not in refreshed or view.positions is None:
                await view.topic.refresh()
                refreshed.add(view.topic)
            positions = view.positions
            assert positions is not None
            if timestamp_ms == EARLIEST:
                return positions.log_start, -1
            if timestamp_ms == EARLIEST_LOCAL:
                extent = await self._node.call(_wal_start, view)
                return max(positions.log_start, extent), -1
            return (positions.sealed_end - 1, -1) if positions.sealed_end > positions.log_start else None
        if timestamp_ms == MAX_TIMESTAMP:
            return await self._node.call_slow(_find_latest, topic, view.index)
        return await self._node.call_slow(_find_time, topic, view.index, timestamp_ms)

    # ------------------------------------------------------------------------------- OffsetForLeaderEpoch

    async def _offset_for_leader_epoch(self, request: Request, _peer: Peer) -> Answer:
        topics = [
            _EpochTopic(
                topic=wanted.topic,
                partitions=[self._epoch_end(wanted.topic, each) for each in wanted.partitions or ()],
            )
            for wanted in request.message.topics or ()
        ]
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)

    def _epoch_end(self, name: str, wanted: Message) -> Message:
        code, epoch, offset = ErrorCode.NONE, NO_EPOCH, NO_OFFSET
        try:
            view = self._view(name, wanted.partition)
            code = _epoch_problem(view, wanted.current_leader_epoch)
            if code is ErrorCode.NONE:
                epoch, offset = end_of_epoch(
                    view.writer.epochs, wanted.leader_epoch, view.writer.shown.offset
                )
                if view.positions is not None and offset != NO_OFFSET:
                    # Offsets below the log start belong to no epoch any more.
                    offset = max(offset, view.positions.log_start)
        except LastwordError as error:
            code = code_of(error)
        return _EpochEnd(
            error_code=int(code), partition=wanted.partition, leader_epoch=epoch, end_offset=offset
        )

    # -------------------------------------------------------------------------------------- DeleteRecords

    async def _delete_records(self, request: Request, _peer: Peer) -> Answer:
        topics = []
        for wanted in request.message.topics or ():
            partitions = [await self._deleted(wanted.name, each) for each in wanted.partitions or ()]
            topics.append(_DeletedTopic(name=wanted.name, partitions=partitions))
        return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)

    async def _deleted(self, name: str, wanted: Message) -> Message:
        code, log_start = ErrorCode.NONE, -1
        index = wanted.partition_index
        try:
            view = self._view(name, index)
            _check_deletable(view.topic.topic)
            # When this returns, fetches no longer return these records: the commit has been announced to them.
            starts = await self._node.call_slow(view.topic.topic.delete_records, {index: wanted.offset})
            log_start = starts[index]
        except LastwordError as error:
            code = code_of(error)
        return _Deleted(partition_index=index, low_watermark=log_start, error_code=int(code))

    def _view(self, name: str, index: int) -> PartitionView:
        return self._views.topic(self._node.topic(name)).partition(index)


def end_of_epoch(epochs: tuple[tuple[int, int], ...], epoch: int, log_end: int) -> tuple[int, int]:
    """Return the largest epoch up to `epoch`, and the offset where it ends, or -1 and -1 if there is none.

    `epochs` are pairs of an epoch and its first offset, oldest first. An epoch older than the oldest known one ends
    where that begins: no record of it, or of any epoch in between, comes later.
    """
    if epoch == NO_EPOCH:
        return NO_EPOCH, NO_OFFSET
    at = bisect_right(epochs, epoch, key=lambda each: each[0]) - 1
    if at < 0:
        return epoch, epochs[0][1]
    if at == len(epochs) - 1:
        # An epoch that is not known yet has no end; the current one ends at the log end.
        return (epoch, log_end) if epochs[at][0] == epoch else (NO_EPOCH, NO_OFFSET)
    return epochs[at][0], epochs[at + 1][1]


def _check_timestamp(timestamp_ms: int, version: int) -> None:
    if timestamp_ms < 0 and version < SINCE_VERSION.get(timestamp_ms, version + 1):
        raise RefusedError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"timestamp {timestamp_ms} can't be requested in version {version}; allowed: a time, or one of "
            f"{', '.join(str(each) for each, since in SINCE_VERSION.items() if since <= version)}",
        )


def _check_deletable(topic: Topic) -> None:
    """Refuse a compacted topic: it promises the last record of each key, so only its rules remove any, as in Kafka."""
    if topic.settings.compacts and not topic.settings.deletes and not is_internal(topic.name):
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"Records of {topic.name!r} can't be deleted, because its cleanup.policy is compact. It must be "
            f"delete or compact,delete.",
        )


def _epoch_problem(view: PartitionView, epoch: int | None) -> ErrorCode:
    current = view.writer.epochs[-1][0]
    if epoch is None or epoch < 0 or epoch == current:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if epoch < current else ErrorCode.UNKNOWN_LEADER_EPOCH


def _epoch_at(epochs: tuple[tuple[int, int], ...], offset: int) -> int:
    at = bisect_right(epochs, offset, key=lambda each: each[1]) - 1
    return epochs[max(at, 0)][0]


def _wal_start(view: PartitionView) -> int:
    folder = view.writer.folder
    return next((file.first_offset for file in view.writer.files if (folder / file.name).exists()), 0)


def _find_time(topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
    with closing(topic.partition_reader(partition)) as reader:
        return reader.find_time(timestamp_ms)


def _find_latest(topic: Topic, partition: int) -> tuple[int, int] | None:
    with closing(topic.partition_reader(partition)) as reader:
        return reader.find_latest()
