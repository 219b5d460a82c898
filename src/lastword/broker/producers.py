"""InitProducerId and DescribeProducers: unique ids for idempotent producers, and the producers that use them.

Ids are taken from a block that is reserved in a file before any of them is assigned. If the process is killed, the next
start reserves a new block, and the rest of the old one is never used.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from kafka.protocol.admin import DescribeProducersResponse
from kafka.protocol.producer import InitProducerIdResponse

from lastword.broker.errors import ErrorCode, code_of
from lastword.broker.node import Node
from lastword.broker.nulls import refusing_nulls
from lastword.broker.wire import Answer, Handler, Message, Peer, Request
from lastword.errors import CorruptError, LastwordError, StorageError
from lastword.folder import state_file
from lastword.folder.paths import PRODUCER_IDS_FILE
from lastword.wal.producers import ActiveProducer

INIT_PRODUCER_ID: Final = 22
DESCRIBE_PRODUCERS: Final = 61
BLOCK: Final = 1000


_WAY_OUT = (
    "Remove it only if no producer that has got an id is still running: a new one could get the same id."
)


class ProducerIds:
    """Assigns ids. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._path = folder / PRODUCER_IDS_FILE
        self._next = self._end = 0

    def next(self) -> int:
        """Return an id that was never assigned before. Raise StorageError if a new block can't be reserved."""
        with self._lock:
            if self._next == self._end:
                try:
                    first = state_file.load(self._path, lambda saved: int(saved["next"]), _WAY_OUT) or 0
                    state_file.save(self._path, {"version": 1, "next": first + BLOCK})
                except (OSError, CorruptError) as error:
                    raise StorageError(f"Can't reserve producer ids in {self._path}: {error}") from error
                self._next, self._end = first, first + BLOCK
            found, self._next = self._next, self._next + 1
            return found


class ProducersHandler:
    """Assigns ids to producers. Refuses transactions with an error after which clients don't retry."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ids = ProducerIds(node.log.path)

    def handlers(self) -> dict[int, Handler]:
        return {
            INIT_PRODUCER_ID: self._init_producer_id,
            **refusing_nulls({DESCRIBE_PRODUCERS: self._describe_producers}),
        }

    async def _init_producer_id(self, request: Request, _peer: Peer) -> Answer:
        if request.message.transactional_id is not None:
            return _answer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
        try:
            return _answer(ErrorCode.NONE, await self._node.call(self._ids.next), 0)
        except StorageError:
            return _answer(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)

    # ------------------------------------------------------------------------------------------ describe

    async def _describe_producers(self, request: Request, _peer: Peer) -> Answer:
        topic_class = DescribeProducersResponse.TopicResponse
        topics = []
        for wanted in request.message.topics:
            partitions = [await self._described(wanted.name, each) for each in wanted.partition_indexes]
            topics.append(topic_class(name=wanted.name, partitions=partitions))
        return DescribeProducersResponse(throttle_time_ms=0, topics=topics)

    async def _described(self, name: str, index: int) -> Message:
        code, text, producers = ErrorCode.NONE, None, []
        try:
            writer = self._node.topic(name).writer(index)
            # Read from the WAL if nothing was appended since it was opened.
            producers = await self._node.call(writer.active_producers)
        except LastwordError as error:
            code, text = code_of(error), str(error)
        return DescribeProducersResponse.TopicResponse.PartitionResponse(
            partition_index=index,
            error_code=int(code),
            error_message=text,
            active_producers=[_active(each) for each in producers],
        )


def _active(producer: ActiveProducer) -> Message:
    """Return a producer as Kafka describes it. Without transactions it has no coordinator and no open transaction."""
    return DescribeProducersResponse.TopicResponse.PartitionResponse.ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp_ms,
        coordinator_epoch=-1,
        current_txn_start_offset=-1,
    )


def _answer(code: ErrorCode, producer_id: int, epoch: int) -> Message:
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=int(code), producer_id=producer_id, producer_epoch=epoch
    )
