"""Record batches are read: walk, check, fill Arrow's buffers.

`walk` is the only function here that reads unchecked bytes. Before every read it compares the position with the end of
the record, and the end of the record with the end of the data. It builds an index with one row per record. The other
functions read only the fields in that index.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Final

from numba import int64, types, uint8, uint64, void

from lastword.batch.compiled.compiler import (
    BYTES,
    DATA,
    INT32S,
    INT64S,
    Bytes,
    Int32s,
    Int64s,
    array_of,
    compiled,
)
from lastword.record import MAX_TIMESTAMP_MS, NO_TIMESTAMP_MS

# The columns of the index.
TIMESTAMP_DELTA: Final = 0
OFFSET_DELTA: Final = 1
KEY_START: Final = 2
KEY_SIZE: Final = 3
VALUE_START: Final = 4
VALUE_SIZE: Final = 5
HEADERS_START: Final = 6
HEADER_COUNT: Final = 7
INDEX_WIDTH: Final = 8

# The totals that `walk` computes, so that `fill` gets buffers of the right size.
KEY_BYTES: Final = 0
VALUE_BYTES: Final = 1
NULL_KEYS: Final = 2
NULL_VALUES: Final = 3
RECORDS_WITH_HEADERS: Final = 4
HEADERS: Final = 5
HEADER_NAME_BYTES: Final = 6
HEADER_VALUE_BYTES: Final = 7
NULL_HEADER_VALUES: Final = 8
TOTALS: Final = 9

# The problems that a record can have.
FINE: Final = 0
BAD_LENGTH: Final = 1
BAD_FIELD: Final = 2
BAD_KEY: Final = 3
BAD_VALUE: Final = 4
BAD_HEADERS: Final = 5
BAD_HEADER_NAME: Final = 6
LEFT_IN_RECORD: Final = 7
LEFT_IN_BATCH: Final = 8
BAD_OFFSET_DELTA: Final = 9
BAD_TIMESTAMP: Final = 10
TIMESTAMP_TOO_OLD: Final = 11
TIMESTAMP_TOO_NEW: Final = 12
NULL_KEY: Final = 13
NO_VERSION: Final = 14

VERSION_LONG: Final = 1
VERSION_TEXT: Final = 2

_CREATE_TIME: Final = 0
_LOG_APPEND_TIME: Final = 1
_INT64_MAX: Final = 2**63 - 1

_INDEX = array_of(types.int64, dimensions=2)


@compiled()
def _read_varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Return a zigzag int32 and the position after it, which is -1 if it doesn't end in time or is too large."""
    raw = uint64(0)
    shift = uint64(0)
    while position < end and shift < uint64(35):
        byte = data[position]
        position += 1
        raw |= uint64(byte & uint8(0x7F)) << shift
        if byte < uint8(0x80):
            if raw > uint64(0xFFFFFFFF):
                return int64(0), int64(-1)
            return int64(raw >> uint64(1)) ^ -int64(raw & uint64(1)), position
        shift += uint64(7)
    return int64(0), int64(-1)


@compiled()
def _read_varlong(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Return a zigzag int64 and the position after it, which is -1 if it doesn't end in time or is too large."""
    raw = uint64(0)
    shift = uint64(0)
    while position < end and shift < uint64(70):
        byte = data[position]
        position += 1
        if shift == uint64(63) and byte > uint8(1):
            return int64(0), int64(-1)
        raw |= uint64(byte & uint8(0x7F)) << shift
        if byte < uint8(0x80):
            return int64(raw >> uint64(1)) ^ -int64(raw & uint64(1)), position
        shift += uint64(7)
    return int64(0), int64(-1)


@compiled()
def _is_utf8(data: Bytes, start: int, end: int) -> bool:
    """Check for strict UTF-8, as Python and Arrow read it: no surrogates, overlong forms or code above U+10FFFF."""
    position = start
    while position < end:
        byte = int64(data[position])
        if byte < 0x80:
            position += 1
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = 0xA0
            elif byte == 0xED:
                high = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return False
        if position + more >= end:
            return False
        second = int64(data[position + 1])
        if second < low or second > high:
            return False
        for further in range(2, more + 1):
            if data[position + further] & uint8(0xC0) != uint8(0x80):
                return False
        position += more + 1
    return True


@compiled(types.Tuple((int64, int64))(DATA, int64, _INDEX, INT64S))
def walk(data: Bytes, count: int, index: Int64s, totals: Int64s) -> tuple[int, int]:
    """Find the fields of `count` records. Return the problem, or FINE, and the record that has it."""
    size = int64(data.size)
    position = int64(0)
    for record in range(count):
        length, position = _read_varint(data, position, size)
        if position < 0 or length < 0 or length > size - position:
            return int64(BAD_LENGTH), int64(record)
        end = position + length
        if length == 0:
            return int64(BAD_LENGTH), int64(record)
        position += 1  # The record's attributes: none is defined, and Kafka ignores them.

        timestamp_delta, position = _read_varlong(data, position, end)
        if position < 0:
            return int64(BAD_FIELD), int64(record)
        offset_delta, position = _read_varint(data, position, end)
        if position < 0:
            return int64(BAD_FIELD), int64(record)

        key_size, position = _read_varint(data, position, end)
        if position < 0 or key_size < -1 or key_size > end - position:
            return int64(BAD_KEY), int64(record)
        index[record, KEY_START] = position
        index[record, KEY_SIZE] = key_size
        if key_size >= 0:
            position += key_size
            totals[KEY_BYTES] += key_size
        else:
            totals[NULL_KEYS] += 1

        value_size, position = _read_varint(data, position, end)
        if position < 0 or value_size < -1 or value_size > end - position:
            return int64(BAD_VALUE), int64(record)
        index[record, VALUE_START] = position
        index[record, VALUE_SIZE] = value_size
        if value_size >= 0:
            position += value_size
            totals[VALUE_BYTES] += value_size
        else:
            totals[NULL_VALUES] += 1

        header_count, position = _read_varint(data, position, end)
        # A header takes at least two bytes, so a hostile count is refused before the walk.
        if position < 0 or header_count < 0 or header_count > (end - position) // 2:
            return int64(BAD_HEADERS), int64(record)
        index[record, TIMESTAMP_DELTA] = timestamp_delta
        index[record, OFFSET_DELTA] = offset_delta
        index[record, HEADERS_START] = position
        index[record, HEADER_COUNT] = header_count
        if header_count > 0:
            totals[RECORDS_WITH_HEADERS] += 1
            totals[HEADERS] += header_count
            for _ in range(header_count):
                name_size, position = _read_varint(data, position, end)
                if position < 0 or name_size < 0 or name_size > end - position:
                    return int64(BAD_HEADERS), int64(record)
                if not _is_utf8(data, position, position + name_size):
                    return int64(BAD_HEADER_NAME), int64(record)
                position += name_size
                totals[HEADER_NAME_BYTES] += name_size
                header_size, position = _read_varint(data, position, end)
                if position < 0 or header_size < -1 or header_size > end - position:
                    return int64(BAD_HEADERS), int64(record)
                if header_size >= 0:
                    position += header_size
                    totals[HEADER_VALUE_BYTES] += header_size
                else:
                    totals[NULL_HEADER_VALUES] += 1
        if position != end:
            return int64(LEFT_IN_RECORD), int64(record)
    if position != size:
        return int64(LEFT_IN_BATCH), int64(count)
    return int64(FINE), int64(count)


@compiled()
def _sum_overflows(left: int, right: int) -> bool:
    total = left + right
    return ((left ^ total) & (right ^ total)) < 0


@compiled()
def _is_decimal(data: Bytes, start: int, size: int) -> bool:
    """Check for digits, with at most one sign before them, that make an int64."""
    position = start
    end = start + size
    negative = False
    if size > 0 and (data[position] == uint8(0x2D) or data[position] == uint8(0x2B)):
        negative = data[position] == uint8(0x2D)
        position += 1
    if position == end:
        return False
    largest = uint64(_INT64_MAX) + uint64(1 if negative else 0)
    number = uint64(0)
    while position < end:
        digit = uint64(data[position]) - uint64(
            0x30
        )  # Anything but a digit is above 9, or wraps around to above 9.
        if digit > uint64(9):
            return False
        if number > (largest - digit) // uint64(10):
            return False
        number = number * uint64(10) + digit
        position += 1
    return True


@compiled()
def _has_version(data: Bytes, start: int, count: int, name: Bytes, form: int) -> bool:
    """Return whether the last header of that name is a version. `walk` has checked these headers."""
    size = int64(data.size)
    position = start
    found = int64(0)
    found_size = int64(-1)
    for _ in range(count):
        name_size, position = _read_varint(data, position, size)
        same = name_size == name.size
        if same:
            for at in range(name_size):
                if data[position + at] != name[at]:
                    same = False
                    break
        position += name_size
        value_size, position = _read_varint(data, position, size)
        if same:
            found = position
            found_size = value_size
        if value_size > 0:
            position += value_size
    if form == VERSION_LONG:
        return found_size == 8
    return found_size > 0 and _is_decimal(data, found, found_size)


@compiled(
    types.Tuple((int64, int64, int64))(
        DATA, _INDEX, int64, int64, int64, types.boolean, types.boolean, int64, int64, types.boolean, DATA,
        int64,
    )
)  # fmt: skip
def check(
    data: Bytes,
    index: Int64s,
    first: int,
    count: int,
    base_timestamp: int,
    gaps_allowed: bool,
    timestamps_checked: bool,
    oldest: int,
    newest: int,
    null_key_allowed: bool,
    version_name: Bytes,
    version_format: int,
) -> tuple[int, int, int]:
    """Check a topic's rules, from a record on. Return the problem, the record that has it, the largest timestamp."""
    largest = int64(NO_TIMESTAMP_MS)
    for record in range(first, count):
        if not gaps_allowed and index[record, OFFSET_DELTA] != record:
            return int64(BAD_OFFSET_DELTA), int64(record), largest
        if timestamps_checked:
            delta = index[record, TIMESTAMP_DELTA]
            timestamp = base_timestamp + delta
            if (
                _sum_overflows(base_timestamp, delta)
                or timestamp < NO_TIMESTAMP_MS
                or timestamp > MAX_TIMESTAMP_MS
            ):
                return int64(BAD_TIMESTAMP), int64(record), largest
            if timestamp != NO_TIMESTAMP_MS:
                if timestamp < oldest:
                    return int64(TIMESTAMP_TOO_OLD), int64(record), largest
                if timestamp > newest:
                    return int64(TIMESTAMP_TOO_NEW), int64(record), largest
                largest = max(largest, timestamp)
        if not null_key_allowed and index[record, KEY_SIZE] < 0:
            return int64(NULL_KEY), int64(record), largest
        if version_format != 0 and not _has_version(
            data, index[record, HEADERS_START], index[record, HEADER_COUNT], version_name, version_format
        ):
            return int64(NO_VERSION), int64(record), largest
    return int64(FINE), int64(count), largest


@compiled()
def _copy(source: Bytes, start: int, size: int, target: Bytes, at: int) -> None:
    # With unsigned positions numba omits its test for negative indexes, and LLVM turns the loop into wide moves.
    from_byte = uint64(start)
    to_byte = uint64(at)
    for byte in range(uint64(size)):
        target[to_byte + byte] = source[from_byte + byte]


@compiled()
def _set_bit(bitmap: Bytes, row: int) -> None:
    bitmap[row >> 3] |= uint8(1) << uint8(row & 7)


@compiled(
    int64(
        DATA, _INDEX, int64, int64, int64, int64, int64, INT64S, INT64S, BYTES, INT32S,
        INT32S, BYTES, BYTES, INT32S, BYTES, BYTES,
    )
)  # fmt: skip
def fill(
    data: Bytes,
    index: Int64s,
    count: int,
    row: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int,
    offsets: Int64s,
    timestamps: Int64s,
    timestamp_validity: Bytes,
    timestamp_types: Int32s,
    key_offsets: Int32s,
    key_data: Bytes,
    key_validity: Bytes,
    value_offsets: Int32s,
    value_data: Bytes,
    value_validity: Bytes,
) -> int:
    """Write the records that `walk` has found as rows from `row` on. An `append_time` other than -2 applies to all.

    Return how many have no timestamp, or -1 - record for one whose timestamp can't be stored.
    """
    key_at = int64(key_offsets[row])
    value_at = int64(value_offsets[row])
    without = int64(0)
    for record in range(count):
        offsets[row] = base_offset + index[record, OFFSET_DELTA]
        if append_time == -2:
            delta = index[record, TIMESTAMP_DELTA]
            timestamp = base_timestamp + delta
            kind = _CREATE_TIME
            if _sum_overflows(base_timestamp, delta):
                return int64(-1 - record)
        else:
            timestamp = append_time
            kind = _LOG_APPEND_TIME
        if timestamp > MAX_TIMESTAMP_MS or timestamp < NO_TIMESTAMP_MS:
            return int64(-1 - record)
        if timestamp == NO_TIMESTAMP_MS:
            without += 1
            timestamps[row] = 0
            timestamp_types[row] = NO_TIMESTAMP_MS
        else:
            timestamps[row] = timestamp * 1000
            timestamp_types[row] = kind
            _set_bit(timestamp_validity, row)

        size = index[record, KEY_SIZE]
        if size >= 0:
            _copy(data, index[record, KEY_START], size, key_data, key_at)
            key_at += size
            _set_bit(key_validity, row)
        key_offsets[row + 1] = key_at

        size = index[record, VALUE_SIZE]
        if size >= 0:
            _copy(data, index[record, VALUE_START], size, value_data, value_at)
            value_at += size
            _set_bit(value_validity, row)
        value_offsets[row + 1] = value_at
        row += 1
    return without


@compiled(
    void(
        DATA, _INDEX, int64, int64, INT32S, BYTES, INT32S, BYTES, INT32S, BYTES, BYTES,
    )
)  # fmt: skip
def fill_headers(
    data: Bytes,
    index: Int64s,
    count: int,
    row: int,
    list_offsets: Int32s,
    list_validity: Bytes,
    name_offsets: Int32s,
    name_data: Bytes,
    value_offsets: Int32s,
    value_data: Bytes,
    value_validity: Bytes,
) -> None:
    """Write the headers, as `fill` does for the other fields. A record without headers has a null list."""
    size = int64(data.size)
    header = int64(list_offsets[row])
    name_at = int64(name_offsets[header])
    value_at = int64(value_offsets[header])
    for record in range(count):
        position = index[record, HEADERS_START]
        for _ in range(index[record, HEADER_COUNT]):
            name_size, position = _read_varint(data, position, size)
            _copy(data, position, name_size, name_data, name_at)
            position += name_size
            name_at += name_size
            name_offsets[header + 1] = name_at
            value_size, position = _read_varint(data, position, size)
            if value_size >= 0:
                _copy(data, position, value_size, value_data, value_at)
                position += value_size
                value_at += value_size
                _set_bit(value_validity, header)
            value_offsets[header + 1] = value_at
            header += 1
        if index[record, HEADER_COUNT] > 0:
            _set_bit(list_validity, row)
        list_offsets[row + 1] = header
        row += 1
