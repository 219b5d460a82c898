"""Frames: what is read, and what is refused before a handler sees it."""

from __future__ import annotations

import struct

import pytest

from lastword import batch
from lastword.broker import produce, wire
from lastword.broker.appends import Append
from lastword.broker.errors import ErrorCode
from lastword.broker.wire import APIS, MalformedError, Request, read_request
from lastword.record import NewRecord

NO_RAW: frozenset[int] = frozenset()


def frame(api_key: int, version: int, body: bytes = b"", client: bytes | None = b"me") -> memoryview:
    head = struct.pack(">hhih", api_key, version, 7, -1 if client is None else len(client)) + (client or b"")
    flexible = api_key in APIS and version >= APIS[api_key].flexible_from
    return memoryview(head + (b"\0" if flexible else b"") + body)


@pytest.mark.parametrize("version", range(13))
def test_metadata_of_every_version(version: int) -> None:
    message = APIS[3].request(
        version=version, topics=[APIS[3].request.MetadataRequestTopic(name="t", version=version)]
    )
    found = read_request(frame(3, version, bytes(message.encode(version=version))), NO_RAW)
    assert (found.correlation_id, found.client_id) == (7, "me")
    assert [each.name for each in found.message.topics] == ["t"]


def test_an_unknown_version_of_api_versions_is_left_to_its_handler() -> None:
    assert read_request(frame(18, 99), NO_RAW).message is None


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (memoryview(b"\0\x03\0"), "header"),
        (frame(999, 0), "API 999 is not served"),
        (frame(0, 2), "Produce version 2 is not served; 3 to 12 are"),
        (frame(1, 18), "Fetch version 18"),
        (frame(3, 1, b"\0\0\0\x05\0\x01t"), "Metadata version 1"),
        (frame(3, 1, b"\0\0\0\x01\0\x09t"), "more bytes than the frame has"),
        (frame(3, 9, b"\xff\xff\xff\xff\xff\xff"), "Metadata version 9"),
        (frame(3, 1, b"\0\0\0\x01\0\x02\xff\xfe"), "Metadata version 1"),
        (memoryview(struct.pack(">hhih", 3, 1, 7, 1000) + b"x"), "extends beyond the frame"),
    ],
)
def test_what_is_no_request(data: memoryview, what: str) -> None:
    with pytest.raises(MalformedError, match=what):
        read_request(data, NO_RAW)


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_by_hand_reads_what_the_codec_writes(version: int) -> None:
    records = batch.encode([NewRecord(key=b"k", value=b"v")], now_ms=1)
    request = APIS[0].request
    topic = request.TopicProduceData
    message = request(
        version=version,
        transactional_id=None,
        acks=-1,
        timeout_ms=5,
        topic_data=[
            topic(
                version=version,
                name=name,
                partition_data=[
                    topic.PartitionProduceData(version=version, index=index, records=records)
                    for index in range(3)
                ],
            )
            for name in ("a", "b" * 200)
        ],
    )
    read = produce.read_message(memoryview(bytes(message.encode(version=version))), version)
    assert (read.transactional_id, read.acks) == (None, -1)
    assert [name for name, _ in read.topics] == ["a", "b" * 200]
    assert [(each.index, bytes(each.records)) for each in read.topics[1][1]] == [
        (index, records) for index in range(3)
    ]


@pytest.mark.parametrize("version", range(3, 13))
def test_produce_by_hand_writes_what_the_codec_reads(version: int) -> None:
    from kafka.protocol.producer import ProduceResponse

    message = produce.ProduceMessage(None, -1, [("t", [produce.PartitionData(4, memoryview(b""))])])
    result = Append(None, 4, memoryview(b""), lambda: None)  # type: ignore[arg-type]
    result.code, result.message, result.base_offset = ErrorCode.INVALID_RECORD, "no", 17
    data = produce.write_answer(message, [result], version)
    read = ProduceResponse.decode(data, version=version)
    (topic,) = read.responses
    (partition,) = topic.partition_responses
    assert (topic.name, partition.index, partition.error_code, partition.base_offset) == ("t", 4, 87, 17)
    if version >= 8:
        assert partition.error_message == "no"


@pytest.mark.parametrize("cut", range(1, 60, 3))
def test_a_produce_request_that_is_cut_is_refused(cut: int) -> None:
    records = batch.encode([NewRecord(key=b"k", value=b"v")], now_ms=1)
    body = (
        b"\xff\xff\xff\xff\0\0\0\x01\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\0"
        + struct.pack(">i", len(records))
        + records
    )
    with pytest.raises(MalformedError):
        produce.read_message(memoryview(body[:-cut]), 3)


def test_an_answer_is_framed_with_its_correlation_id() -> None:
    pieces = wire.frame_of(Request(1, 4, 9, None, object()), [b"abc", memoryview(b"def")])
    assert b"".join(pieces) == struct.pack(">ii", 10, 9) + b"abcdef"
    pieces = wire.frame_of(Request(1, 12, 9, None, object()), [b"abc"])
    assert b"".join(pieces) == struct.pack(">iib", 8, 9, 0) + b"abc"


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 1 << 20, (1 << 31) - 1])
def test_varints(value: int) -> None:
    assert wire.unsigned_varint(memoryview(wire.varint_bytes(value)), 0)[0] == value
