"""A Kafka client of the simulation: single requests over a simulated connection, one at a time."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from lastword import batch
from lastword.broker.wire import APIS, decode, skip_tags
from lastword.record import NewRecord
from lastword.testing.history import SeenRecord
from lastword.testing.simulation.sockets import Socket

BROKER = ("127.0.0.1", 9092)
TIMEOUT_S = 40.0
TOPIC_CONFIG = 2
SET = 0

UNKNOWN_TOPIC = 3
REFUSALS = {
    1: "offset out of range",
    UNKNOWN_TOPIC: "unknown topic or partition",
    10: "message too large",
    17: "invalid topic",
    32: "invalid timestamp",
    36: "topic exists",
    40: "invalid config",
    42: "invalid request",
    44: "policy violation",
    87: "invalid record",
}
"""Errors that certainly leave the request without effect."""
STORAGE_ERROR = 56
"""After this error, a topic that was to be deleted is still whole."""


class RefusedError(Exception):
    """The broker refused the request, without any effect."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what}: {REFUSALS.get(code, f'error {code}')}")
        self.code = code


class UnclearError(Exception):
    """The outcome of the request is unknown: there is no answer, or an ambiguous one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """An answer to a fetch."""

    records: tuple[SeenRecord, ...]
    next_offset: int
    log_start: int
    high_watermark: int


class KafkaClient:
    """A connection that opens when it is needed, and reopens after an error."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._socket: Socket | None = None
        self._number = 0

    def ask(self, request: Any, response_class: Any, version: int) -> Any:
        """Send a request and return the answer. Raise UnclearError if there is none."""
        try:
            return self._ask(request, response_class, version)
        except OSError as error:
            self.close()
            raise UnclearError(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, request: Any, response_class: Any, version: int) -> Any:
        api = APIS[request.API_KEY]
        self._number += 1
        header = struct.pack(">hhih", api.key, version, self._number, len(self._name)) + self._name
        flexible = version >= api.flexible_from
        body = header + (b"\0" if flexible else b"") + bytes(request.encode(version=version))
        self._send(struct.pack(">i", len(body)) + body)
        answer = memoryview(self._read(struct.unpack(">i", self._read(4))[0]))
        position = skip_tags(answer, 4) if flexible else 4
        return decode(response_class, version, answer, position)

    def _send(self, request: bytes) -> None:
        if self._socket is not None:
            try:
                return self._socket.sendall(request)
            except OSError:
                # The previous broker has ended, so it has not received the request.
                self.close()
        self._socket = Socket()
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect(BROKER)
        return self._socket.sendall(request)

    def _read(self, size_bytes: int) -> bytes:
        assert self._socket is not None
        data = b""
        while len(data) < size_bytes:
            received = self._socket.recv(size_bytes - len(data))
            if not received:
                raise ConnectionResetError("the broker closed the connection")
            data += received
        return data

    # ---------------------------------------------------------------------------------------- records

    def produce(self, topic: str, partition: int, records: Sequence[NewRecord], now_ms: int) -> int:
        """Append records, and return the offset of the first one."""
        topic_class = ProduceRequest.TopicProduceData
        part = topic_class.PartitionProduceData(index=partition, records=batch.encode(records, now_ms=now_ms))
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[topic_class(name=topic, partition_data=[part])],
        )
        answer = self.ask(request, ProduceResponse, 8).responses[0].partition_responses[0]
        _check(answer.error_code, "produce")
        offset: int = answer.base_offset
        return offset

    def fetch(self, topic: str, partition: int, offset: int, *, max_bytes: int, wait_ms: int = 0) -> Fetched:
        """Fetch the next records."""
        topic_class = FetchRequest.FetchTopic
        part = topic_class.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[topic_class(topic=topic, partitions=[part])],
            forgotten_topics_data=[],
            rack_id="",
        )
        answer = self.ask(request, FetchResponse, 11).responses[0].partitions[0]
        _check(answer.error_code, "fetch")
        records: list[SeenRecord] = []
        next_offset = offset
        data = memoryview(answer.records or b"")
        while data:
            header = batch.read_header(data)
            if header is None or header.size_bytes > len(data):
                break
            one, data = data[: header.size_bytes], data[header.size_bytes :]
            batch.check_crc(one, header)
            if header.record_count:
                records += [
                    _seen(each) for each in batch.decode_records(one, partition) if each.offset >= offset
                ]
            next_offset = header.base_offset + header.last_offset_delta + 1
        return Fetched(
            records=tuple(records),
            next_offset=next_offset,
            log_start=answer.log_start_offset,
            high_watermark=answer.high_watermark,
        )

    def list_offset(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """Return an offset by time; -2 is the log start, -1 the log end."""
        topic_class = ListOffsetsRequest.ListOffsetsTopic
        part = topic_class.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=-1, timestamp=timestamp_ms
        )
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[topic_class(name=topic, partitions=[part])]
        )
        answer = self.ask(request, ListOffsetsResponse, 5).topics[0].partitions[0]
        _check(answer.error_code, "list offsets")
        offset: int = answer.offset
        return offset

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        """Move the log start, and return it."""
        topic_class = DeleteRecordsRequest.DeleteRecordsTopic
        part = topic_class.DeleteRecordsPartition(partition_index=partition, offset=before)
        request = DeleteRecordsRequest(topics=[topic_class(name=topic, partitions=[part])], timeout_ms=30_000)
        answer = self.ask(request, DeleteRecordsResponse, 1).topics[0].partitions[0]
        _check(answer.error_code, "delete records")
        low: int = answer.low_watermark
        return low

    # ----------------------------------------------------------------------------------------- groups

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Commit an offset of a group without members."""
        topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
        part = topic_class.OffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[topic_class(name=topic, partitions=[part])],
        )
        answer = self.ask(request, OffsetCommitResponse, 7)
        _check(answer.topics[0].partitions[0].error_code, "commit an offset")

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """Return the committed offset of a group; None if there is none."""
        topic_class = OffsetFetchRequest.OffsetFetchRequestTopic
        request = OffsetFetchRequest(
            group_id=group, topics=[topic_class(name=topic, partition_indexes=[partition])]
        )
        answer = self.ask(request, OffsetFetchResponse, 5)
        _check(answer.error_code, "fetch an offset")
        found = answer.topics[0].partitions[0]
        _check(found.error_code, "fetch an offset")
        return None if found.committed_offset < 0 else found.committed_offset

    # ----------------------------------------------------------------------------------------- topics

    def create_topic(self, topic: str, partitions: int, config: dict[str, str]) -> None:
        topic_class = CreateTopicsRequest.CreatableTopic
        wanted = topic_class(
            name=topic,
            num_partitions=partitions,
            replication_factor=1,
            assignments=[],
            configs=[
                topic_class.CreatableTopicConfig(name=key, value=value) for key, value in config.items()
            ],
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000, validate_only=False)
        _check(self.ask(request, CreateTopicsResponse, 4).topics[0].error_code, "create a topic")

    def delete_topic(self, topic: str) -> None:
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000)
        code = self.ask(request, DeleteTopicsResponse, 3).responses[0].error_code
        if code == STORAGE_ERROR:
            raise RefusedError(code, "delete a topic")
        _check(code, "delete a topic")

    def alter_topic(self, topic: str, config: dict[str, str]) -> None:
        resource_class = IncrementalAlterConfigsRequest.AlterConfigsResource
        changes = [
            resource_class.AlterableConfig(name=key, config_operation=SET, value=value)
            for key, value in config.items()
        ]
        resource = resource_class(resource_type=TOPIC_CONFIG, resource_name=topic, configs=changes)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        _check(self.ask(request, IncrementalAlterConfigsResponse, 0).responses[0].error_code, "alter a topic")


def _check(code: int, what: str) -> None:
    if code in REFUSALS:
        raise RefusedError(code, what)
    if code:
        raise UnclearError(f"{what}: error {code}")


def _seen(record: Any) -> SeenRecord:
    return SeenRecord(
        offset=record.offset,
        key=record.key,
        value=record.value,
        timestamp_ms=record.timestamp_ms,
        headers=tuple(record.headers),
    )
