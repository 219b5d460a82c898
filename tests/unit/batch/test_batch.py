"""Record batches: header, rules, places, Arrow, and other clients' batches."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace

import pyarrow as pa
import pytest
from aiokafka.codec import snappy_encode
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from tests.support.alone import alone

from lastword import batch as batches
from lastword.batch import BadBatchError, Compression, Limits
from lastword.batch.header import HEADER_BYTES, write_crc
from lastword.errors import InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from lastword.record import PAYLOAD_SCHEMA, NewRecord, Record, TimestampType

NOW_MS = 1_700_000_000_000
LIMITS = Limits(max_message_bytes=1 << 20, now_ms=NOW_MS, max_decompressed_bytes=1 << 24)

RECORDS = (
    NewRecord(key=b"a", value=b"1", headers=(("trace", b"x"), ("trace", None), ("", b""))),
    NewRecord(key=b"a", value=None, timestamp_ms=NOW_MS - 5),
    NewRecord(key=None, value=b"", timestamp_ms=NOW_MS + 7),
    NewRecord(key=b"", value=b"v" * 300, timestamp_ms=-1),
)


def make(records: Iterable[NewRecord] = RECORDS, **options: object) -> bytes:
    return batches.encode(tuple(records), now_ms=NOW_MS, **options)  # type: ignore[arg-type]


def patched(batch: bytes, at: int, form: str, value: int) -> bytes:
    """The batch with one field of its header changed, and the CRC to go with it."""
    changed = bytearray(batch)
    struct.pack_into(form, changed, at, value)
    write_crc(changed)
    return bytes(changed)


def with_records(batch: bytes, records: bytes, count: int | None = None) -> bytes:
    """The batch with other record bytes, and length and CRC to go with them."""
    changed = bytearray(batch[:HEADER_BYTES] + records)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    if count is not None:
        struct.pack_into(">i", changed, 57, count)
        struct.pack_into(">i", changed, 23, count - 1)
    write_crc(changed)
    return bytes(changed)


def payload(rows: list[dict[str, object]]) -> pa.RecordBatch:
    empty = {"timestamp": None, "timestamp_type": -1, "key": None, "value": None, "headers": None}
    return pa.RecordBatch.from_pylist([empty | row for row in rows], schema=PAYLOAD_SCHEMA)


# ------------------------------------------------------------------------------------------------ header


def test_header_has_every_field() -> None:
    batch = make(base_offset=40, leader_epoch=3, producer_id=9, producer_epoch=2, base_sequence=11)
    header = batches.read_header(batch)
    assert header is not None
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 43, 44)
    assert header.size_bytes == len(batch)
    assert header.record_count == 4
    assert header.leader_epoch == 3
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 11)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (NOW_MS, NOW_MS + 7)
    assert header.compression is Compression.NONE
    assert header.timestamp_type is TimestampType.CREATE
    assert not header.is_control
    assert not header.is_transactional


def test_header_is_read_at_a_position_and_needs_61_bytes() -> None:
    buffer = b"xx" + make(base_offset=7)
    header = batches.read_header(buffer, 2)
    assert header is not None
    assert header.base_offset == 7
    assert batches.read_header(buffer[: 2 + HEADER_BYTES - 1], 2) is None
    assert batches.read_header(b"") is None


def test_header_of_another_magic_or_length_is_refused() -> None:
    with pytest.raises(BadBatchError, match="magic byte 1") as caught:
        batches.read_header(patched(make(), 16, ">b", 1))
    assert caught.value.reason == str(caught.value)
    with pytest.raises(BadBatchError, match="batch length 48"):
        batches.read_header(patched(make(), 8, ">i", 48))
    with pytest.raises(BadBatchError, match="batch length -1"):
        batches.read_header(patched(make(), 8, ">i", -1))


def test_crc_covers_attributes_and_all_after_them() -> None:
    batch = make()
    header = batches.read_header(batch)
    assert header is not None
    assert batches.check_crc(batch, header)
    assert batches.check_crc(memoryview(b"12" + batch), header, 2)
    assert not batches.check_crc(batch[:-1], header)
    for at in range(len(batch)):
        changed = bytearray(batch)
        changed[at] ^= 1
        assert batches.check_crc(changed, header) is (at < 21)


def test_split_yields_each_batch() -> None:
    one, two = make(), make(compression=Compression.ZSTD)
    found = list(batches.split(one + two))
    assert [bytes(view) for _, view in found] == [one, two]
    assert [header.size_bytes for header, _ in found] == [len(one), len(two)]
    assert list(batches.split(b"")) == []


def test_split_refuses_a_cut_or_damaged_batch() -> None:
    batch = make()
    for size in (1, HEADER_BYTES - 1, HEADER_BYTES, len(batch) - 1):
        with pytest.raises(BadBatchError):
            list(batches.split(batch + batch[:size]))
    with pytest.raises(BadBatchError, match=f"byte {len(batch)} does not match its CRC"):
        list(batches.split(batch + batch[:-1] + b"\xff"))


# ----------------------------------------------------------------------------------------------- validate


@pytest.mark.parametrize("compression", Compression)
def test_good_batch_is_valid(compression: Compression) -> None:
    batch = make(compression=compression)
    assert batches.validate(batch, LIMITS) == batches.read_header(batch)
    assert batches.validate(memoryview(bytearray(batch)), LIMITS).compression is compression


BROKEN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "shorter than a header": (lambda b: b[:60], "60 bytes"),
    "cut": (lambda b: b[:-1], "says it has"),
    "wrong CRC": (lambda b: b[:-1] + b"\x7f", "CRC"),
    "control batch": (lambda b: patched(b, 21, ">h", 0x20), "control"),
    "transactional": (lambda b: patched(b, 21, ">h", 0x10), "transactions"),
    "unknown codec": (lambda b: patched(b, 21, ">h", 5), "compression type 5"),
    "not gzip": (lambda b: patched(b, 21, ">h", 1), "not valid gzip"),
    "not snappy": (lambda b: patched(b, 21, ">h", 2), "snappy|decompressed"),
    "not lz4": (lambda b: patched(b, 21, ">h", 3), "lz4"),
    "not zstd": (lambda b: patched(b, 21, ">h", 4), "not valid zstd"),
    "no records": (lambda b: patched(b, 57, ">i", 0), "0 records"),
    "negative count": (lambda b: patched(b, 57, ">i", -3), "-3 records"),
    "count too low": (lambda b: with_records(b, b[HEADER_BYTES:], 3), "left over after the batch's 3"),
    "count too high": (lambda b: with_records(b, b[HEADER_BYTES:], 5), "record 4: its length"),
    "hostile count": (lambda b: with_records(b, b[HEADER_BYTES:], 2**31 - 1), "can't be in"),
    "last offset delta": (lambda b: patched(b, 23, ">i", 9), "last offset delta is 9"),
    "max timestamp": (lambda b: patched(b, 35, ">q", NOW_MS), f"largest of its records is {NOW_MS + 7}"),
    "no base sequence": (lambda b: patched(b, 43, ">q", 5), "producer 5"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_batch_is_refused(case: str) -> None:
    damage, message = BROKEN[case]
    with pytest.raises(BadBatchError, match=message):
        batches.validate(damage(make()), LIMITS)


@pytest.mark.parametrize(
    ("sent", "message"),
    [(b"", "there is no batch"), (make() + b"x", "1 bytes follow"), (make() * 2, "follow")],
)
def test_anything_but_one_batch_is_invalid_not_corrupt(sent: bytes, message: str) -> None:
    """Clients send what is corrupt again."""
    with pytest.raises(InvalidRecordError, match=message) as error:
        batches.validate(sent, LIMITS)
    assert not isinstance(error.value, BadBatchError)


# One record: length, attributes, timestamp delta, offset delta, key, value, headers.
HOSTILE = {
    "length beyond the batch": (b"\x7e\0\0\0\x01\x01\0", "length"),
    "negative length": (b"\x01\0\0\0\x01\x01\0", "length"),
    "length of nothing": (b"\0\0\0\0\x01\x01\0", "length"),
    "endless varint": (b"\x80" * 7, "length"),
    "varint over 32 bits": (b"\xfe\xff\xff\xff\x7f\0\0", "length"),
    "timestamp over 64 bits": (b"\x1c" + b"\0" + b"\xff" * 9 + b"\x02" + b"\0\x01\x01\0"[:3], "delta"),
    "key below -1": (b"\x0c\0\0\0\x03\x01\0", "key"),
    "key beyond the record": (b"\x0c\0\0\0\x08\x01\0", "key"),
    "largest key": (b"\x14\0\0\0\xfe\xff\xff\xff\x0f\x01\0", "key"),
    "value below -1": (b"\x0c\0\0\0\x01\x03\0", "value"),
    "value beyond the record": (b"\x0c\0\0\0\x01\x04\0", "value"),
    "negative header count": (b"\x0c\0\0\0\x01\x01\x01", "headers"),
    "hostile header count": (b"\x14\0\0\0\x01\x01\xfe\xff\xff\xff\x0f", "headers"),
    "null header name": (b"\x10\0\0\0\x01\x01\x02\x01\0", "headers"),
    "header name beyond the record": (b"\x10\0\0\0\x01\x01\x02\x06\0", "headers"),
    "header value beyond the record": (b"\x10\0\0\0\x01\x01\x02\0\x06", "headers"),
    "header name not UTF-8": (b"\x12\0\0\0\x01\x01\x02\x02\xff\0", "UTF-8"),
    "header name a surrogate": (b"\x16\0\0\0\x01\x01\x02\x06\xed\xa0\x80\0", "UTF-8"),
    "left over in the record": (b"\x0e\0\0\0\x01\x01\0\0", "left over after its headers"),
    "left over in the batch": (b"\x0c\0\0\0\x01\x01\0\0", "left over after the batch's"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_record_is_refused(case: str) -> None:
    records, message = HOSTILE[case]
    batch = with_records(make([NewRecord()]), records)
    for read in (lambda: batches.validate(batch, LIMITS), lambda: batches.decode(batch)):
        with pytest.raises(BadBatchError, match=message):
            read()
    with pytest.raises(BadBatchError):
        batches.decode_records(batch, 0)


def test_the_smallest_record_is_valid() -> None:
    assert batches.validate(with_records(make([NewRecord()]), b"\x0c\0\0\0\x01\x01\0"), LIMITS)


def test_offset_deltas_must_count_up_from_zero() -> None:
    gap = batches.encode_arrow(payload([{"offset": 0}, {"offset": 2}, {"offset": 3}]))[0]
    with pytest.raises(BadBatchError, match="record 1: the offset delta is 2; it must be 1"):
        batches.validate(patched(gap, 23, ">i", 2), LIMITS)


def test_size_limit_names_the_setting() -> None:
    batch = make()
    assert batches.validate(batch, replace(LIMITS, max_message_bytes=len(batch)))
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
        batches.validate(batch, replace(LIMITS, max_message_bytes=len(batch) - 1))


def test_timestamps_stay_within_the_limits() -> None:
    limits = replace(LIMITS, timestamp_before_max_ms=5, timestamp_after_max_ms=7)
    assert batches.validate(make(), limits)
    with pytest.raises(InvalidTimestampError, match=r"record 1: .*message\.timestamp\.before\.max\.ms"):
        batches.validate(make(), replace(limits, timestamp_before_max_ms=4))
    with pytest.raises(InvalidTimestampError, match=r"record 2: .*message\.timestamp\.after\.max\.ms"):
        batches.validate(make(), replace(limits, timestamp_after_max_ms=6))


def test_absent_timestamp_is_within_any_limits() -> None:
    limits = replace(LIMITS, timestamp_before_max_ms=0, timestamp_after_max_ms=0)
    batch = make([NewRecord(timestamp_ms=-1), NewRecord(timestamp_ms=-1)])
    assert batches.validate(batch, limits).max_timestamp_ms == -1


@pytest.mark.parametrize("base", [-2, (2**63 - 1) // 1000 + 1, 2**63 - 1, -(2**63)])
def test_timestamp_that_cannot_be_stored_is_refused(base: int) -> None:
    batch = patched(make([NewRecord()]), 27, ">q", base)
    with pytest.raises(InvalidTimestampError, match="record 0"):
        batches.validate(batch, LIMITS)
    with pytest.raises(BadBatchError):
        batches.decode(batch)
    with pytest.raises(BadBatchError):
        batches.decode_records(batch, 0)
    assert batches.validate(batch, replace(LIMITS, log_append_time=True))


def test_timestamp_sum_that_overflows_is_refused() -> None:
    batch = patched(make(RECORDS[:3]), 27, ">q", 2**63 - 1)
    with pytest.raises(InvalidTimestampError, match="record 0"):
        batches.validate(batch, LIMITS)
    wrapping = patched(make([NewRecord(timestamp_ms=0), NewRecord(timestamp_ms=9)]), 27, ">q", 2**63 - 1)
    with pytest.raises(BadBatchError, match="record 0"):
        batches.decode(wrapping)


def test_append_time_from_a_client_is_refused_where_the_topic_has_create_time() -> None:
    batch = make(log_append_time=True)
    assert batches.validate(batch, replace(LIMITS, log_append_time=True))
    with pytest.raises(InvalidTimestampError, match="LogAppendTime"):
        batches.validate(batch, LIMITS)


def test_wrong_max_timestamp_can_be_corrected() -> None:
    batch = patched(make(), 35, ">q", -1)
    header = batches.validate(batch, replace(LIMITS, max_timestamp_corrected=True))
    assert header.max_timestamp_ms == NOW_MS + 7
    placed = bytearray(batch)
    batches.place(
        placed,
        base_offset=0,
        leader_epoch=0,
        append_time_ms=None,
        max_timestamp_ms=header.max_timestamp_ms,
    )
    assert placed == make()


def test_every_record_that_is_refused_is_named() -> None:
    records = [replace(RECORDS[0], key=key) for key in (b"a", None, b"c", None)]
    with pytest.raises(InvalidRecordError) as error:
        batches.validate(make(records), replace(LIMITS, null_key_allowed=False))
    text = "the key is null; the topic requires a key"
    assert error.value.records == ((1, text), (3, text))
    assert str(error.value) == f"record 1: {text}; refused records of the batch: 2"


def test_a_wrong_time_is_told_before_anything_else() -> None:
    records = [replace(RECORDS[0], key=None), replace(RECORDS[0], timestamp_ms=NOW_MS - 10_000)]
    limits = replace(LIMITS, null_key_allowed=False, timestamp_before_max_ms=1_000)
    with pytest.raises(InvalidTimestampError) as error:
        batches.validate(make(records), limits)
    assert [record for record, _ in error.value.records] == [0, 1]


def test_of_a_large_batch_a_thousand_records_are_named() -> None:
    records = [replace(RECORDS[0], key=None)] * 3000
    with pytest.raises(InvalidRecordError) as error:
        batches.validate(make(records), replace(LIMITS, null_key_allowed=False, max_message_bytes=1 << 20))
    assert [record for record, _ in error.value.records] == list(range(1000))


def test_null_keys() -> None:
    with pytest.raises(InvalidRecordError, match="record 2: the key is null"):
        batches.validate(make(), replace(LIMITS, null_key_allowed=False))
    assert batches.validate(make(RECORDS[:2]), replace(LIMITS, null_key_allowed=False))


@pytest.mark.parametrize(
    ("form", "value", "number"),
    [
        ("long", b"\xff" * 8, -1),
        ("long", b"\0" * 7, None),
        ("long", b"\0" * 9, None),
        ("long", None, None),
        ("text", b"17", 17),
        ("text", b"-9223372036854775808", -(2**63)),
        ("text", b"-9223372036854775809", None),
        ("text", b"+9223372036854775807", 2**63 - 1),
        ("text", b"9223372036854775808", None),
        ("text", b"18446744073709551617", None),
        ("text", b"0" * 5000 + b"8", 8),
        ("text", b"-0", 0),
        ("text", b"", None),
        ("text", b"-", None),
        ("text", b"1.5", None),
        ("text", b" 1", None),
        ("text", b"1\n", None),
        ("text", "१".encode(), None),
        ("text", None, None),
    ],
)
def test_version_header(form: batches.VersionFormat, value: bytes | None, number: int | None) -> None:
    assert batches.parse_version(value, form) == number
    limits = replace(LIMITS, version_header=("v", form))
    # The last one of the name counts, and a longer or shorter name is another header.
    good = b"\0" * 7 + b"\1" if form == "long" else b"1"
    batch = make([NewRecord(headers=(("v", good), ("v", value), ("ve", b""), ("", b"")))])
    if number is None:
        with pytest.raises(InvalidRecordError, match="record 0: header 'v'"):
            batches.validate(batch, limits)
    else:
        assert batches.validate(batch, limits)


def test_record_without_the_version_header_is_refused() -> None:
    limits = replace(LIMITS, version_header=("version", "text"))
    batch = make([NewRecord(headers=(("version", b"3"),)), NewRecord()])
    with pytest.raises(InvalidRecordError, match="record 1: header 'version'"):
        batches.validate(batch, limits)


# ----------------------------------------------------------------------------------------------- codecs


def zeros_compressed(codec: str, mebibytes: int) -> bytes:
    """A bomb, made in pieces so that making it takes no memory either."""
    chunk = bytes(1 << 20)
    if codec == "gzip":
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        return b"".join([*(packer.compress(chunk) for _ in range(mebibytes)), packer.flush()])
    if codec == "lz4":
        block = pa.compress(chunk[: 1 << 16], codec="lz4_raw", asbytes=True)
        framed = struct.pack("<I", len(block)) + block
        return bytes.fromhex("04224d18604082") + framed * (16 * mebibytes) + bytes(4)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        for _ in range(mebibytes):
            stream.write(chunk)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_bomb_is_refused_without_its_memory(codec: str) -> None:
    alone(_refuse_bomb, codec)


def _refuse_bomb(codec: str) -> None:
    bomb = with_records(
        make([NewRecord()], compression=Compression[codec.upper()]), zeros_compressed(codec, 512)
    )
    limits = replace(LIMITS, max_message_bytes=1 << 30, max_decompressed_bytes=1 << 20)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadBatchError, match="more than 1048576 bytes"):
        batches.validate(bomb, limits)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x40"])
def test_snappy_bomb_is_refused(size: bytes) -> None:
    block = size + b"\0\0"
    framed = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block
    for records in (block, framed):
        batch = with_records(make([NewRecord()], compression=Compression.SNAPPY), records)
        with pytest.raises(BadBatchError):
            batches.validate(batch, replace(LIMITS, max_decompressed_bytes=1 << 20))


@pytest.mark.parametrize("compression", list(Compression)[1:])
def test_decompression_bound_is_exact(compression: Compression) -> None:
    records = [NewRecord(value=b"abc" * 40_000)]
    size = len(make(records)) - HEADER_BYTES
    batch = make(records, compression=compression)
    assert batches.validate(batch, replace(LIMITS, max_decompressed_bytes=size))
    with pytest.raises(BadBatchError, match="when decompressed"):
        batches.validate(batch, replace(LIMITS, max_decompressed_bytes=size - 1))


def test_snappy_is_read_raw_and_framed() -> None:
    plain = make(RECORDS * 500)
    empty = make(RECORDS * 500, compression=Compression.SNAPPY)
    for xerial in (True, False):
        packed = snappy_encode(plain[HEADER_BYTES:], xerial_compatible=xerial)
        batch = with_records(empty, packed)
        assert batches.validate(batch, LIMITS)
        assert batches.decode(batch).equals(batches.decode(plain))


@pytest.mark.parametrize("cut", [17, 19, 20, 25])
def test_cut_snappy_frame_is_refused(cut: int) -> None:
    batch = make(compression=Compression.SNAPPY)
    with pytest.raises(BadBatchError, match="snappy"):
        batches.validate(with_records(batch, batch[HEADER_BYTES : HEADER_BYTES + cut]), LIMITS)


def test_lz4_blocks_are_independent_and_linked_ones_refused() -> None:
    records = [NewRecord(value=bytes(range(256)) * 1000)] * 20
    batch = make(records, compression=Compression.LZ4)
    assert batch[HEADER_BYTES + 4] & 0x20
    assert batches.decode(batch).equals(batches.decode(make(records)))
    linked = with_records(batch, pa.compress(make(records)[HEADER_BYTES:], codec="lz4", asbytes=True))
    with pytest.raises(BadBatchError, match="linked blocks"):
        batches.validate(linked, replace(LIMITS, max_message_bytes=1 << 30))


# ------------------------------------------------------------------------------------------------ place


def test_place_leaves_the_crc_alone() -> None:
    batch = make()
    placed = bytearray(batch)
    batches.place(placed, base_offset=1 << 40, leader_epoch=6, append_time_ms=None, max_timestamp_ms=None)
    header = batches.read_header(placed)
    assert header is not None
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 6)
    assert batches.check_crc(placed, header)
    assert placed[16:] == batch[16:]


def test_place_with_append_time_gives_it_to_every_record() -> None:
    placed = bytearray(make(compression=Compression.GZIP))
    batches.place(placed, base_offset=100, leader_epoch=0, append_time_ms=NOW_MS + 99, max_timestamp_ms=None)
    header = batches.read_header(placed)
    assert header is not None
    assert batches.check_crc(placed, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND
    assert header.compression is Compression.GZIP
    records = batches.decode_records(placed, 0)
    assert {(r.timestamp_ms, r.timestamp_type) for r in records} == {(NOW_MS + 99, TimestampType.LOG_APPEND)}
    table = batches.decode(placed)
    assert set(table["timestamp"].cast(pa.int64()).to_pylist()) == {(NOW_MS + 99) * 1000}
    assert set(table["timestamp_type"].to_pylist()) == {1}
    assert [r.timestamp for r in DefaultRecordBatch(bytes(placed))] == [NOW_MS + 99] * 4


# ----------------------------------------------------------------------------------------- decode, encode


@pytest.mark.parametrize("compression", Compression)
def test_records_come_back(compression: Compression) -> None:
    batch = make(base_offset=10, compression=compression)
    assert batches.decode_records(batch, 2) == [
        Record(
            partition=2,
            offset=10 + row,
            timestamp_ms=NOW_MS if record.timestamp_ms is None else record.timestamp_ms,
            timestamp_type=TimestampType.NONE if record.timestamp_ms == -1 else TimestampType.CREATE,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
        for row, record in enumerate(RECORDS)
    ]


def test_decoded_arrow_is_sound_and_has_the_schema() -> None:
    table = batches.decode(make(base_offset=10))
    table.validate(full=True)
    assert table.schema == PAYLOAD_SCHEMA
    assert table["offset"].to_pylist() == [10, 11, 12, 13]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [
        NOW_MS * 1000,
        (NOW_MS - 5) * 1000,
        (NOW_MS + 7) * 1000,
        None,
    ]
    assert table["timestamp_type"].to_pylist() == [0, 0, 0, -1]
    assert table["key"].to_pylist() == [b"a", b"a", None, b""]
    assert table["value"].to_pylist() == [b"1", None, b"", b"v" * 300]
    names = [{"key": "trace", "value": b"x"}, {"key": "trace", "value": None}, {"key": "", "value": b""}]
    assert table["headers"].to_pylist() == [names, None, None, None]


def test_batches_decode_together_as_they_do_one_by_one() -> None:
    several = [
        make(RECORDS[1:3]),
        make(base_offset=2, compression=Compression.LZ4),
        batches.empty_batch(6, 9, 0),
        make(base_offset=10, log_append_time=True),
        make([NewRecord(key=b"last", headers=(("n", b""),))], base_offset=14),
    ]
    together = batches.decode_many(several)
    together.validate(full=True)
    one_by_one = pa.Table.from_batches([batches.decode(batch) for batch in several])
    assert pa.Table.from_batches([together]).equals(one_by_one.combine_chunks())
    assert batches.decode_many([]).num_rows == 0


def test_empty_batch_spans_the_gap_and_has_no_rows() -> None:
    batch = batches.empty_batch(5, 5 + 2**31 - 1, 4)
    header = batches.read_header(batch)
    assert header is not None
    assert batches.check_crc(batch, header)
    assert (header.base_offset, header.next_offset, header.record_count) == (5, 5 + 2**31, 0)
    assert header.leader_epoch == 4
    assert batches.decode(batch).num_rows == 0
    assert batches.decode_records(batch, 0) == []
    assert batches.decode(patched(batch, 21, ">h", Compression.SNAPPY)).num_rows == 0
    for last in (4, 5 + 2**31):
        with pytest.raises(InvalidRecordError):
            batches.empty_batch(5, last, 0)


def test_arrow_keeps_gaps() -> None:
    table = payload([{"offset": 3, "key": b"a"}, {"offset": 90, "value": b"b"}, {"offset": 91}])
    (batch,) = batches.encode_arrow(table, leader_epoch=2)
    header = batches.read_header(batch)
    assert header is not None
    assert batches.check_crc(batch, header)
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (3, 92, 2)
    assert batches.decode(batch).equals(table)


def test_a_gap_beyond_an_int32_takes_several_empty_batches() -> None:
    far = 2**31
    found = batches.empty_batches(7, 2 * far + 8, lambda offset: offset // far)
    headers = [batches.read_header(batch) for batch in found]
    assert [(h.base_offset, h.next_offset, h.record_count, h.leader_epoch) for h in headers if h] == [
        (7, far + 7, 0, 1),
        (far + 7, 2 * far + 7, 0, 2),
        (2 * far + 7, 2 * far + 8, 0, 2),
    ]
    assert batches.empty_batches(7, 7, lambda _: 0) == []


def test_offsets_beyond_an_int32_begin_another_batch() -> None:
    far = 2**31
    table = payload([{"offset": 0}, {"offset": far - 1}, {"offset": far}, {"offset": 9 * far}])
    found = batches.encode_arrow(table)
    headers = [batches.read_header(batch) for batch in found]
    spans = [(h.base_offset, h.next_offset, h.record_count) for h in headers if h]
    assert spans == [(0, far, 2), (far, far + 1, 1), (9 * far, 9 * far + 1, 1)]
    assert batches.decode_many(found).equals(table)


def test_batches_are_cut_at_a_size_and_hold_one_record_at_least() -> None:
    table = payload([{"offset": row, "value": b"x" * 1000} for row in range(10)])
    found = batches.encode_arrow(table, batch_bytes=3100)
    assert [batches.read_header(b).record_count for b in found] == [3, 3, 3, 1]  # type: ignore[union-attr]
    assert max(map(len, found)) <= 3100
    assert len(batches.encode_arrow(table, batch_bytes=1)) == 10
    assert batches.decode_many(found).equals(table)


def test_a_batch_has_one_timestamp_type_and_append_time_one_timestamp() -> None:
    when = [(0, 5), (0, 6), (-1, None), (1, 7), (1, 7), (1, 8), (0, 8)]
    table = payload(
        [
            {"offset": row, "timestamp_type": kind, "timestamp": None if ms is None else ms * 1000}
            for row, (kind, ms) in enumerate(when)
        ]
    )
    found = batches.encode_arrow(table)
    assert [batches.read_header(b).record_count for b in found] == [3, 2, 1, 1]  # type: ignore[union-attr]
    assert batches.decode_many(found).equals(table)


def test_sliced_arrow_is_encoded_as_its_rows() -> None:
    table = batches.decode(make(RECORDS * 9))
    for start, size in ((1, 3), (5, 9), (11, 25), (35, 1), (36, 0)):
        part = table.slice(start, size)
        found = batches.encode_arrow(part, compression=Compression.ZSTD)
        assert batches.decode_many(found).equals(part)


def test_arrow_that_is_not_a_payload_is_refused() -> None:
    table = payload([{"offset": 1}, {"offset": 0}])
    with pytest.raises(InvalidRecordError, match="order"):
        batches.encode_arrow(table)
    text = table.set_column(3, "key", pa.array(["a", "b"]))
    with pytest.raises(InvalidRecordError, match="column key is string"):
        batches.encode_arrow(text)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (NewRecord(key="text"), "key is str"),  # type: ignore[arg-type]
        (NewRecord(value=5), "value is int"),  # type: ignore[arg-type]
        (NewRecord(headers=(("a", "text"),)), "header is str"),  # type: ignore[arg-type]
        (NewRecord(headers=((None, b""),)), "name is None"),  # type: ignore[arg-type]
        (NewRecord(headers=(("\ud800", b""),)), "not text"),
        (NewRecord(timestamp_ms=-2), "timestamp -2"),
        (NewRecord(timestamp_ms=2**70), "can't be stored"),
    ],
)
def test_record_that_cannot_be_encoded_is_refused(record: NewRecord, message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        make([NewRecord(), record])


def test_batch_without_records_is_not_encoded() -> None:
    with pytest.raises(BadBatchError):
        make([])


# ---------------------------------------------------------------------------------------- other clients


@pytest.mark.parametrize("compression", Compression)
def test_aiokafka_reads_our_batches(compression: Compression) -> None:
    batch = make(RECORDS * 100, compression=compression)
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    assert theirs.compression_type == compression
    found = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs]
    ours = batches.decode_records(batch, 0)
    assert found == [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in ours]


@pytest.mark.parametrize("compression", Compression)
def test_we_read_aiokafkas_batches(compression: Compression) -> None:
    builder = DefaultRecordBatchBuilder(2, compression, 0, 4, 0, 0, 1 << 20)
    records = RECORDS * 100
    for offset, record in enumerate(records):
        builder.append(offset, record.timestamp_ms or NOW_MS, record.key, record.value, list(record.headers))
    batch = bytes(builder.build())
    header = batches.validate(batch, LIMITS)
    assert header.compression is compression
    assert header.producer_id == 4
    assert batches.decode(batch).equals(batches.decode(make(records)))


def test_importing_the_package_does_not_load_the_compiler() -> None:
    code = "import sys, lastword.batch.partitioner; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
