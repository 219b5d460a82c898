"""Kafka's frames and messages: the APIs and versions that are served, and how their bytes are read and written.

A frame is a length and that many bytes: a header (API, version, correlation id, client id) and the message.
kafka-python's codec reads and writes the messages. Handlers of large or frequent messages read and write the bytes themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeAclsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeQuorumRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ListGroupsRequest,
    ListPartitionReassignmentsRequest,
)
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

Message = Any
"""A message of kafka-python, or a part of one. Its classes are made when they are imported, without types."""

Piece = bytes | bytearray | memoryview
"""Bytes of an answer. Those after the response header may come in several pieces, so that nothing is copied."""

API_VERSIONS: Final = 18
PRODUCE: Final = 0
FETCH: Final = 1

_HEADER: Final = struct.Struct(">hhih")
_CORRELATION: Final = struct.Struct(">i")
_FRAME: Final = struct.Struct(">ii")
_FLEXIBLE_FRAME: Final = struct.Struct(">iib")


class MalformedError(Exception):
    """A frame that can't be served as a request. The connection that sent it is closed."""


@dataclass(frozen=True, slots=True)
class Api:
    """An API: the versions that are advertised, and the lowest that is actually served."""

    key: int
    name: str
    min_version: int
    max_version: int
    request: Any
    served_from: int
    flexible_from: int


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `message` is kafka-python's object; for APIs whose handler reads the bytes itself, a memoryview."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    message: Message


@dataclass(frozen=True, slots=True)
class Peer:
    """The client of a connection: its address, and the local address that it reached."""

    client_host: str
    reached_at: str = ""


Answer = Any
"""A kafka-python response, the pieces of an encoded one, or None if there is no answer (acks=0)."""

CLOSE: Final = object()
"""Replaces an answer: the connection is closed instead."""

Handler = Callable[[Request, Peer], Awaitable[Answer]]

Done = Callable[[Answer], None]
Cancel = Callable[[], None]
FastHandler = Callable[[Request, Peer, Done], Cancel | None]
"""A handler without its own task. It calls `done` on the loop, now or later. `Cancel` is for a client that is gone."""


def _api(request: Any, low: int, high: int, *, served_from: int | None = None) -> Api:
    flexible = request._flexible_versions  # noqa: SLF001
    return Api(
        key=request.API_KEY,
        name=request.name.removesuffix("Request"),
        min_version=low,
        max_version=high,
        request=request,
        served_from=low if served_from is None else served_from,
        flexible_from=flexible[0] if flexible and flexible[0] >= 0 else 1 << 15,
    )


APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        # Old clients assume that a broker without Produce 0 does not support compression.
        _api(ProduceRequest, 0, 12, served_from=3),
        _api(FetchRequest, 4, 17),
        _api(ListOffsetsRequest, 1, 9),
        _api(MetadataRequest, 0, 12),
        _api(OffsetCommitRequest, 2, 9),
        _api(OffsetFetchRequest, 1, 9),
        _api(FindCoordinatorRequest, 0, 4),
        _api(JoinGroupRequest, 0, 9),
        _api(HeartbeatRequest, 0, 4),
        _api(LeaveGroupRequest, 0, 5),
        _api(SyncGroupRequest, 0, 5),
        _api(DescribeGroupsRequest, 0, 5),
        _api(ListGroupsRequest, 0, 5),
        _api(ApiVersionsRequest, 0, 4),
        _api(CreateTopicsRequest, 2, 7),
        _api(DeleteTopicsRequest, 1, 6),
        _api(DeleteRecordsRequest, 0, 2),
        _api(InitProducerIdRequest, 0, 4),
        _api(OffsetForLeaderEpochRequest, 2, 4),
        _api(DescribeAclsRequest, 1, 3),
        _api(DescribeConfigsRequest, 1, 4),
        _api(AlterConfigsRequest, 0, 2),
        _api(AlterReplicaLogDirsRequest, 1, 2),
        _api(DescribeLogDirsRequest, 1, 4),
        _api(CreatePartitionsRequest, 0, 3),
        _api(DeleteGroupsRequest, 0, 2),
        _api(ElectLeadersRequest, 0, 2),
        _api(IncrementalAlterConfigsRequest, 0, 1),
        _api(AlterPartitionReassignmentsRequest, 0, 1),
        _api(ListPartitionReassignmentsRequest, 0, 0),
        _api(OffsetDeleteRequest, 0, 0),
        _api(DescribeQuorumRequest, 0, 2),
        _api(DescribeClusterRequest, 0, 1),
        _api(DescribeProducersRequest, 0, 0),
        _api(ListConfigResourcesRequest, 0, 1),
        _api(DescribeTopicPartitionsRequest, 0, 0),
    )
}
"""Every API that can be served. Those with a handler are."""


def read_request(frame: memoryview, raw: frozenset[int]) -> Request:
    """Decode the request in a frame. Messages of the APIs in `raw` are left to their handlers.

    Raise MalformedError if it is not a request, or if its API or version is not served. An ApiVersions request of an
    unknown version has None as its message: it is answered, so that the client can try another version.
    """
    try:
        api_key, version, correlation_id, client_length = _HEADER.unpack_from(frame)
        position = _HEADER.size
        client_id = None
        if client_length >= 0:
            client_id = _text(frame, position, client_length)
            position += client_length
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedError(f"the request header can't be read: {error}") from None
    api = APIS.get(api_key)
    if api is None:
        raise MalformedError(f"API {api_key} is not served")
    if not api.served_from <= version <= api.max_version:
        if api_key == API_VERSIONS:
            return Request(api_key, version, correlation_id, client_id, None)
        raise MalformedError(
            f"{api.name} version {version} is not served; {api.served_from} to {api.max_version} are"
        )
    try:
        if version >= api.flexible_from:
            position = skip_tags(frame, position)
        if api_key in raw:
            return Request(api_key, version, correlation_id, client_id, frame[position:])
        message = decode(api.request, version, frame, position)
    except MalformedError as error:
        raise MalformedError(f"{api.name} version {version}: {error}") from None
    return Request(api_key, version, correlation_id, client_id, message)


def decode(request_class: Any, version: int, data: memoryview, position: int = 0) -> Message:
    """Decode a message with kafka-python's codec. Raise MalformedError if it is cut off, or is another message."""
    flexible = request_class.flexible_version_q(version)
    read = request_class._struct.compiled_decode_from(  # noqa: SLF001
        version, compact=flexible, tagged=flexible, data_class=request_class[None]
    )
    try:
        message, end = read(data, position)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error, MemoryError) as error:
        raise MalformedError(f"the message can't be read: {error}") from None
    if end > len(data):
        raise MalformedError(f"the message needs {end - len(data)} more bytes than the frame has")
    # Code that reads a message must know its version, and not every path of the codec sets it.
    message._version = version  # noqa: SLF001
    return message


def frame_of(request: Request, answer: Answer) -> list[Piece]:
    """Return an answer as the pieces of a frame, its length and header first."""
    if isinstance(answer, list):
        body: Sequence[Piece] = answer
    else:
        # ApiVersions of an unknown version is answered in version 0.
        version = request.api_version if request.message is not None else 0
        body = (answer.encode(version=version),)
    size_bytes = sum(map(len, body))
    api = APIS[request.api_key]
    if request.api_version >= api.flexible_from and request.api_key != API_VERSIONS:
        head = _FLEXIBLE_FRAME.pack(size_bytes + 5, request.correlation_id, 0)
    else:
        head = _FRAME.pack(size_bytes + 4, request.correlation_id)
    if size_bytes < 4096:
        return [head + b"".join(body)]
    return [head, *body]


# ------------------------------------------------------------------------ the pieces of messages


def skip_tags(data: memoryview, position: int) -> int:
    """Return the position after tagged fields, all of which are ignored."""
    count, position = unsigned_varint(data, position)
    for _ in range(count):
        _, position = unsigned_varint(data, position)
        size_bytes, position = unsigned_varint(data, position)
        position += size_bytes
        if position > len(data):
            raise MalformedError("a tagged field extends beyond the frame")
    return position


def unsigned_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7
            if shift > 28:
                raise MalformedError("a number is longer than 32 bits")
    except IndexError:
        raise MalformedError("the frame ends within a number") from None


def varint_bytes(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def text(data: memoryview, position: int, *, flexible: bool) -> tuple[str | None, int]:
    """Read a nullable string. Return it and the position after it."""
    try:
        if flexible:
            length, position = unsigned_varint(data, position)
            length -= 1
        else:
            (length,) = struct.unpack_from(">h", data, position)
            position += 2
        if length < 0:
            return None, position
        return _text(data, position, length), position + length
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedError(f"a string can't be read: {error}") from None


def text_bytes(value: str | None, *, flexible: bool) -> bytes:
    """Encode a nullable string."""
    if value is None:
        return b"\0" if flexible else b"\xff\xff"
    encoded = value.encode()
    return (varint_bytes(len(encoded) + 1) if flexible else struct.pack(">h", len(encoded))) + encoded


def count(data: memoryview, position: int, *, flexible: bool) -> tuple[int, int]:
    """Read the length of an array or of bytes, -1 for null. Return it and the position after it."""
    if flexible:
        length, position = unsigned_varint(data, position)
        return length - 1, position
    try:
        (length,) = struct.unpack_from(">i", data, position)
    except struct.error as error:
        raise MalformedError(f"a length can't be read: {error}") from None
    return length, position + 4


def count_bytes(length: int, *, flexible: bool) -> bytes:
    return varint_bytes(length + 1) if flexible else _CORRELATION.pack(length)


def _text(data: memoryview, position: int, length: int) -> str:
    if position + length > len(data):
        raise MalformedError("a string extends beyond the frame")
    return str(data[position : position + length], "utf-8")
