"""Round trips of batches, the compiled loops against a plain reader and writer, and hostile bytes."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword import batch as batches
from lastword.batch import BadBatchError, Compression, Limits
from lastword.batch.header import HEADER_BYTES, write_crc
from lastword.errors import InvalidRecordError
from lastword.record import PAYLOAD_SCHEMA, Header, NewRecord, Record, TimestampType

NOW_MS = 1_700_000_000_000
MAX_MS = (2**63 - 1) // 1000
LIMITS = Limits(max_message_bytes=1 << 20, now_ms=NOW_MS, max_decompressed_bytes=1 << 20)

blobs = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=70).map(lambda b: b * 3)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=9)), max_size=4).map(tuple)
timestamps = st.none() | st.just(-1) | st.integers(0, 2**42) | st.integers(-1, MAX_MS)
records = st.builds(NewRecord, key=blobs, value=blobs, headers=headers, timestamp_ms=timestamps)
some_records = st.lists(records, min_size=1, max_size=30)
compressions = st.sampled_from(Compression)


# ------------------------------------------------------------------------------------------ the plain twin


def zigzag(number: int) -> bytes:
    raw = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def plain_record(offset_delta: int, timestamp_delta: int, record: NewRecord) -> bytes:
    def field(item: bytes | None) -> bytes:
        return zigzag(-1) if item is None else zigzag(len(item)) + item

    body = b"\0" + zigzag(timestamp_delta) + zigzag(offset_delta) + field(record.key) + field(record.value)
    body += zigzag(len(record.headers))
    body += b"".join(field(name.encode()) + field(value) for name, value in record.headers)
    return zigzag(len(body)) + body


class PlainReader:
    """Reads records by the book, byte by byte. ValueError where they are not records."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def number(self, end: int, bits: int) -> int:
        raw = shift = 0
        while True:
            if self.position >= end or shift > bits:
                raise ValueError("cut number")
            byte = self.data[self.position]
            self.position += 1
            raw |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if raw >= 1 << bits:
            raise ValueError("large number")
        return raw >> 1 if raw % 2 == 0 else -(raw >> 1) - 1

    def field(self, end: int) -> bytes | None:
        size = self.number(end, 32)
        if size == -1:
            return None
        if size < 0 or self.position + size > end:
            raise ValueError("field")
        self.position += size
        return self.data[self.position - size : self.position]

    def record(self) -> tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]:
        size = self.number(len(self.data), 32)
        end = self.position + size
        if size < 1 or end > len(self.data):
            raise ValueError("size")
        self.position += 1
        timestamp_delta, offset_delta = self.number(end, 64), self.number(end, 32)
        key, value = self.field(end), self.field(end)
        count = self.number(end, 32)
        if count < 0:
            raise ValueError("headers")
        found: list[Header] = []
        for _ in range(count):
            name = self.field(end)
            if name is None:
                raise ValueError("header name")
            found.append((name.decode(), self.field(end)))
        if self.position != end:
            raise ValueError("left over")
        return timestamp_delta, offset_delta, key, value, tuple(found)


def plain_decode(batch: bytes) -> list[Record]:
    """What an uncompressed batch of CreateTime says; ValueError where it can't be read."""
    base_offset, base_ms = struct.unpack_from(">q", batch, 0)[0], struct.unpack_from(">q", batch, 27)[0]
    reader = PlainReader(batch[HEADER_BYTES:])
    found = []
    for _ in range(struct.unpack_from(">i", batch, 57)[0]):
        timestamp_delta, offset_delta, key, value, record_headers = reader.record()
        timestamp_ms = base_ms + timestamp_delta
        if not -1 <= timestamp_ms <= MAX_MS:
            raise ValueError("timestamp")
        found.append(
            Record(
                partition=0,
                offset=base_offset + offset_delta,
                timestamp_ms=timestamp_ms,
                timestamp_type=TimestampType.NONE if timestamp_ms == -1 else TimestampType.CREATE,
                key=key,
                value=value,
                headers=record_headers,
            )
        )
    if reader.position != len(reader.data):
        raise ValueError("left over")
    return found


def as_records(table: pa.RecordBatch) -> list[Record]:
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    return [
        Record(
            partition=0,
            offset=row["offset"],
            timestamp_ms=-1 if time is None else time // 1000,
            timestamp_type=TimestampType(row["timestamp_type"]),
            key=row["key"],
            value=row["value"],
            headers=tuple((h["key"], h["value"]) for h in row["headers"] or ()),
        )
        for row, time in zip(table.drop_columns(["timestamp"]).to_pylist(), times, strict=True)
    ]


# ---------------------------------------------------------------------------------------------- round trips


@given(some_records, compressions, st.integers(0, 2**50))
def test_what_is_encoded_is_valid_and_comes_back(
    given_records: list[NewRecord], compression: Compression, base_offset: int
) -> None:
    batch = batches.encode(
        given_records, now_ms=NOW_MS, base_offset=base_offset, compression=compression, leader_epoch=1
    )
    header = batches.validate(batch, LIMITS)
    assert header.compression is compression
    assert header.next_offset == base_offset + len(given_records)
    found = batches.decode_records(batch, 0)
    assert [(r.key, r.value, r.headers) for r in found] == [
        (r.key, r.value, r.headers) for r in given_records
    ]
    assert [r.timestamp_ms for r in found] == [
        NOW_MS if r.timestamp_ms is None else r.timestamp_ms for r in given_records
    ]
    table = batches.decode(batch)
    table.validate(full=True)
    assert as_records(table) == found
    theirs = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in DefaultRecordBatch(batch)]
    assert theirs == [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in found]


@given(some_records)
def test_writer_is_the_plain_writer(given_records: list[NewRecord]) -> None:
    batch = batches.encode(given_records, now_ms=NOW_MS)
    times = [NOW_MS if r.timestamp_ms is None else r.timestamp_ms for r in given_records]
    plain = [
        plain_record(row, time - times[0], record)
        for row, (time, record) in enumerate(zip(times, given_records, strict=True))
    ]
    assert batch[HEADER_BYTES:] == b"".join(plain)


@st.composite
def payloads(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows with gaps, all timestamp types, and a slice that begins anywhere."""
    rows = []
    offset = draw(st.integers(0, 100))
    for record in draw(st.lists(records, max_size=25)):
        kind = draw(st.sampled_from(TimestampType))
        time_ms = draw(st.integers(0, 3) | st.integers(0, MAX_MS))
        rows.append(
            {
                "offset": offset,
                "timestamp": None if kind is TimestampType.NONE else time_ms * 1000,
                "timestamp_type": kind,
                "key": record.key,
                "value": record.value,
                "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
            }
        )
        offset += draw(st.sampled_from([1, 1, 1, 2, 1000, 2**31 - 1, 2**31, 2**40]))
    table = pa.RecordBatch.from_pylist(rows, schema=PAYLOAD_SCHEMA)
    return table.slice(draw(st.integers(0, len(rows))))


@given(payloads(), compressions, st.sampled_from([1, 100, 300, 1 << 20]))
def test_arrow_comes_back(table: pa.RecordBatch, compression: Compression, size: int) -> None:
    found = batches.encode_arrow(table, compression=compression, batch_bytes=size)
    assert pa.Table.from_batches([batches.decode_many(found)]).equals(pa.Table.from_batches([table]))
    assert [record for batch in found for record in batches.decode_records(batch, 0)] == as_records(table)
    reached = 0
    for batch in found:
        header = batches.read_header(batch)
        assert header is not None
        assert batches.check_crc(batch, header)
        assert header.base_offset >= reached
        reached = header.next_offset
    assert not table.num_rows or reached == table["offset"][-1].as_py() + 1


@given(st.none() | st.binary(max_size=24) | st.from_regex(rb"[+-]?[0-9]{1,22}", fullmatch=True))
def test_version_rule_is_the_plain_one(value: bytes | None) -> None:
    batch = batches.encode([NewRecord(headers=(("v", value),))], now_ms=NOW_MS)
    for form in ("long", "text"):
        limits = Limits(
            max_message_bytes=1 << 20,
            now_ms=NOW_MS,
            max_decompressed_bytes=1 << 20,
            version_header=("v", form),
        )
        try:
            batches.validate(batch, limits)
            readable = True
        except InvalidRecordError:
            readable = False
        assert readable is (batches.parse_version(value, form) is not None)


@given(st.binary(max_size=12) | names.map(str.encode))
def test_header_names_are_utf8_as_python_reads_it(name: bytes) -> None:
    body = b"\0\0\0\x01\x01\x02" + zigzag(len(name)) + name + b"\x01"
    batch = rebuilt(batches.encode([NewRecord()], now_ms=NOW_MS), zigzag(len(body)) + body)
    try:
        expected: str | None = name.decode()
    except UnicodeDecodeError:
        expected = None
    if expected is None:
        with pytest.raises(BadBatchError, match="UTF-8"):
            batches.validate(batch, LIMITS)
    else:
        batches.validate(batch, LIMITS)
        assert batches.decode_records(batch, 0)[0].headers == ((expected, None),)


# --------------------------------------------------------------------------------------------- hostile bytes


def rebuilt(batch: bytes, record_bytes: bytes) -> bytes:
    changed = bytearray(batch[:HEADER_BYTES] + record_bytes)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    write_crc(changed)
    return bytes(changed)


@pytest.fixture(scope="module")
def edge() -> Iterator[memoryview]:
    """Memory with an unreadable page right behind it: one byte read too many ends the process."""
    pages = mmap.mmap(-1, 17 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    guard = ctypes.c_void_p(start + 16 * mmap.PAGESIZE)
    assert ctypes.CDLL(None).mprotect(guard, mmap.PAGESIZE, 0) == 0
    yield memoryview(pages)[: 16 * mmap.PAGESIZE]
    ctypes.CDLL(None).mprotect(guard, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)


def at_the_edge(edge: memoryview, batch: bytes) -> memoryview:
    edge[len(edge) - len(batch) :] = batch
    return edge[len(edge) - len(batch) :]


def agrees_with_the_twin(batch: bytes, view: memoryview) -> None:
    """The compiled reader takes exactly what the plain one takes, and validate never takes more."""
    try:
        expected: list[Record] | None = plain_decode(batch)
    except ValueError:
        expected = None
    if expected is None:
        for read in (batches.decode, lambda b: batches.decode_records(b, 0)):
            with pytest.raises(BadBatchError):
                read(view)
        with pytest.raises(InvalidRecordError):
            batches.validate(view, LIMITS)
        return
    assert batches.decode_records(view, 0) == expected
    assert as_records(batches.decode(view)) == expected
    try:
        batches.validate(view, LIMITS)
    except InvalidRecordError:
        return
    assert [r.offset - expected[0].offset for r in expected] == list(range(len(expected)))


@settings(max_examples=1500)
@given(some_records, st.data())
def test_changed_record_bytes_with_a_right_crc(
    edge: memoryview, given_records: list[NewRecord], data: st.DataObject
) -> None:
    batch = batches.encode(given_records, now_ms=NOW_MS)
    body = bytearray(batch[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        match data.draw(st.sampled_from(["flip", "set", "number", "cut", "insert", "drop"])):
            case "flip":
                body[at] ^= 1 << data.draw(st.integers(0, 7))
            case "set":
                body[at] = data.draw(st.integers(0, 255))
            case "number":
                number = data.draw(st.sampled_from([-(2**31), -2, -1, 2**31 - 1, 2**35, 2**62, len(body)]))
                body[at : at + 1] = zigzag(number)
            case "cut":
                del body[max(at, 1) :]
            case "insert":
                body[at:at] = data.draw(st.binary(min_size=1, max_size=4))
            case "drop":
                del body[at]
        if not body:
            body = bytearray(b"\0")
    changed = rebuilt(batch, bytes(body))
    agrees_with_the_twin(changed, at_the_edge(edge, changed))


@settings(max_examples=500)
@given(st.binary(max_size=60), st.integers(-1, 8))
def test_noise_with_a_right_crc(edge: memoryview, noise: bytes, count: int) -> None:
    changed = bytearray(rebuilt(batches.encode([NewRecord()], now_ms=NOW_MS), noise))
    struct.pack_into(">i", changed, 57, count)
    struct.pack_into(">i", changed, 23, count - 1)
    write_crc(changed)
    view = at_the_edge(edge, bytes(changed))
    if count < 0:
        with pytest.raises(BadBatchError):
            batches.validate(view, LIMITS)
        return
    if count == 0:
        with pytest.raises(BadBatchError):
            batches.validate(view, LIMITS)
    else:
        agrees_with_the_twin(bytes(changed), view)


@settings(max_examples=500)
@given(some_records, st.sampled_from(list(Compression)[1:]), st.data())
def test_changed_compressed_bytes_with_a_right_crc(
    edge: memoryview, given_records: list[NewRecord], compression: Compression, data: st.DataObject
) -> None:
    batch = batches.encode(given_records, now_ms=NOW_MS, compression=compression)
    body = bytearray(batch[HEADER_BYTES:])
    at = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        body[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del body[at:]
    view = at_the_edge(edge, rebuilt(batch, bytes(body)))
    try:
        batches.validate(view, LIMITS)
    except InvalidRecordError:
        return
    # What is accepted can be read, in every way.
    assert as_records(batches.decode(view)) == batches.decode_records(view, 0)


@given(some_records, compressions, st.data())
def test_cut_or_flipped_batch_is_refused(
    given_records: list[NewRecord], compression: Compression, data: st.DataObject
) -> None:
    batch = batches.encode(given_records, now_ms=NOW_MS, compression=compression)
    with pytest.raises(BadBatchError):
        batches.validate(batch[: data.draw(st.integers(1, len(batch) - 1))], LIMITS)
    changed = bytearray(batch)
    # Base offset and leader epoch are the broker's to set, and no CRC covers them.
    at = data.draw(st.sampled_from([*range(8, 12), *range(16, len(batch))]))
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    # A length that is too small leaves bytes behind the batch, which are taken for a second one.
    with pytest.raises(InvalidRecordError if at < 12 else BadBatchError):
        batches.validate(changed, LIMITS)
