"""Produce: the batches of a request go to the WAL unchanged, and are answered when they are durable.

Requests and answers are decoded and encoded here, without the codec: they are frequent, and batches must not be copied.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from lastword import metrics
from lastword.broker.appends import Append, Appends
from lastword.broker.errors import ErrorCode, code_of
from lastword.broker.node import Node
from lastword.broker.partitions import TopicView, Views
from lastword.broker.wire import (
    CLOSE,
    PRODUCE,
    Cancel,
    Done,
    FastHandler,
    MalformedError,
    Peer,
    Request,
    count,
    count_bytes,
    skip_tags,
    text,
    text_bytes,
)
from lastword.config import check_not_internal
from lastword.errors import InvalidTopicError, UnknownTopicError
from lastword.log.topic import Topic

FLEXIBLE_FROM: Final = 9
ALLOWED_ACKS: Final = (-1, 0, 1)
LOG_START_S: Final = 60.0
"""The maximum age of the log start in an answer. Producers hardly use it."""

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_INDEX: Final = struct.Struct(">i")
_RESULT: Final = struct.Struct(">ihqq")
_LOG_START: Final = struct.Struct(">q")


@dataclass(slots=True)
class PartitionData:
    """The data of a request for one partition: one batch, or something else that is refused."""

    index: int
    records: memoryview


@dataclass(slots=True)
class ProduceMessage:
    transactional_id: str | None
    acks: int
    topics: list[tuple[str, list[PartitionData]]] = field(default_factory=list)


class ProduceHandler:
    """Queues the batches of requests, and answers a request when its last batch is done."""

    def __init__(self, node: Node, views: Views, appends: Appends) -> None:
        self._node = node
        self._views = views
        self._appends = appends

    def fast_handlers(self) -> dict[int, FastHandler]:
        return {PRODUCE: self._produce}

    def _produce(self, request: Request, _peer: Peer, done: Done) -> Cancel | None:
        version = request.api_version
        message = read_message(request.message, version)
        refused = self._refusal(message)
        waiting = _Waiting(message, version, done)
        appends: list[Append] = []
        for name, partitions in message.topics:
            topic, code, problem = self._topic(name) if refused is None else (None, *refused)
            view = None if topic is None else self._view(topic)
            for each in partitions:
                # Partitions of a missing topic are answered one by one, too.
                append = Append(topic, each.index, each.records, waiting.one_done, view=view)  # type: ignore[arg-type]
                if topic is None or not 0 <= each.index < topic.partitions:
                    append.code = code if topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    append.message = problem
                else:
                    appends.append(append)
                waiting.results.append(append)
        waiting.left = len(appends)
        if not appends:
            waiting.answer()
        for append in appends:
            self._appends.put(append)
        return None

    def _refusal(self, message: ProduceMessage) -> tuple[ErrorCode, str] | None:
        if message.transactional_id is not None:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported"
        if message.acks not in ALLOWED_ACKS:
            return ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {message.acks}; -1, 0 and 1 are allowed"
        return None

    def _view(self, topic: Topic) -> TopicView:
        view = self._views.topic(topic)
        # In the background: loading the table must not hold up a produce.
        view.refresh_within(LOG_START_S)
        return view

    def _topic(self, name: str) -> tuple[Topic | None, ErrorCode, str | None]:
        try:
            topic = self._node.topic(name)
            check_not_internal(name, "produced to")
            return topic, ErrorCode.NONE, None
        except (UnknownTopicError, InvalidTopicError) as error:
            return None, code_of(error), str(error)


class _Waiting:
    """A request whose batches are in progress."""

    __slots__ = ("_done", "_message", "_version", "left", "results")

    def __init__(self, message: ProduceMessage, version: int, done: Done) -> None:
        self._message = message
        self._version = version
        self._done = done
        self.left = 0
        self.results: list[Append] = []

    def one_done(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.answer()

    def answer(self) -> None:
        failed = [each for each in self.results if each.code is not ErrorCode.NONE]
        for each in failed:
            metrics.KAFKA_ERRORS.labels("Produce", each.code.name).inc()
        if self._message.acks == 0:
            # There is no answer. A client learns of a failure when its connection is closed.
            self._done(CLOSE if failed else None)
        else:
            self._done([write_answer(self._message, self.results, self._version)])


def read_message(data: memoryview, version: int) -> ProduceMessage:
    """Decode a Produce request of version 3 to 12. The batches are slices of `data`."""
    flexible = version >= FLEXIBLE_FROM
    transactional_id, position = text(data, 0, flexible=flexible)
    try:
        acks, _timeout_ms = _ACKS_TIMEOUT.unpack_from(data, position)
        message = ProduceMessage(transactional_id, acks)
        topics, position = count(data, position + _ACKS_TIMEOUT.size, flexible=flexible)
        for _ in range(topics):
            name, position = text(data, position, flexible=flexible)
            if name is None:
                raise MalformedError("a topic has no name")
            partitions, position = _read_partitions(data, position, flexible)
            message.topics.append((name, partitions))
            if flexible:
                position = skip_tags(data, position)
    except struct.error as error:
        raise MalformedError(f"a produce request can't be read: {error}") from None
    return message


def _read_partitions(data: memoryview, position: int, flexible: bool) -> tuple[list[PartitionData], int]:
    found: list[PartitionData] = []
    partitions, position = count(data, position, flexible=flexible)
    for _ in range(partitions):
        (index,) = _INDEX.unpack_from(data, position)
        size_bytes, position = count(data, position + 4, flexible=flexible)
        end = position + max(size_bytes, 0)
        if end > len(data):
            raise MalformedError("a batch extends beyond the frame")
        found.append(PartitionData(index, data[position:end]))
        position = end
        if flexible:
            position = skip_tags(data, position)
    return found, position


def write_answer(message: ProduceMessage, results: list[Append], version: int) -> bytes:
    """Encode an answer. `results` are those of all partitions, in the request's order."""
    flexible = version >= FLEXIBLE_FROM
    out = [count_bytes(len(message.topics), flexible=flexible)]
    remaining = iter(results)
    for name, partitions in message.topics:
        out += (text_bytes(name, flexible=flexible), count_bytes(len(partitions), flexible=flexible))
        for _ in partitions:
            _write_result(next(remaining), version, flexible, out.append)
        if flexible:
            out.append(b"\0")
    out.append(_INDEX.pack(0))
    if flexible:
        out.append(b"\0")
    return b"".join(out)


def _write_result(result: Append, version: int, flexible: bool, put: Callable[[bytes], None]) -> None:
    put(_RESULT.pack(result.partition, result.code, result.base_offset, result.append_time_ms))
    if version >= 5:
        put(_LOG_START.pack(_log_start(result)))
    if version >= 8:
        put(count_bytes(len(result.record_errors), flexible=flexible))
        for record, text in result.record_errors:
            put(_INDEX.pack(record))
            put(text_bytes(text, flexible=flexible))
            if flexible:
                put(b"\0")
        put(text_bytes(result.message, flexible=flexible))
    if flexible:
        put(b"\0")


def _log_start(result: Append) -> int:
    """Return the log start of the last loaded snapshot; before the first it is -1, 'not known' to clients."""
    is_refused = result.code is not ErrorCode.NONE and not result.record_errors
    if is_refused or result.view is None:
        return -1
    snapshot = result.view.snapshot
    if snapshot is None or result.partition >= len(snapshot.positions):
        return -1
    return snapshot.positions[result.partition].log_start
