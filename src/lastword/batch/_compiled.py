"""The inner loops over record bytes, compiled by numba: walk, check, fill, measure, write, hash.

`walk` is the only function here that reads unchecked bytes. Before every read it compares the position with the end of
the record, and the end of the record with the end of the data. It builds an index with one row per record. The other
functions read only the fields in that index.

Importing this module compiles the functions, or loads them from numba's cache, so it is imported at the first use,
never at start-up. The functions release the interpreter lock. They stay in one file because numba takes a function
from its cache as long as that function's own file is unchanged, whatever it calls elsewhere.
"""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import int64, njit, types, uint8, uint64, void

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Bytes = npt.NDArray[np.uint8]
_Int32s = npt.NDArray[np.int32]
_Int64s = npt.NDArray[np.int64]

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
NO_TIMESTAMPS: Final = 9
TOTALS: Final = 10

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

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
NO_TIMESTAMP: Final = -1
MAX_TIMESTAMP_MS: Final = (2**63 - 1) // 1000
"""The last millisecond that a column of microseconds can hold."""

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class Column(NamedTuple):
    """An Arrow binary column, or the ranges of a list column (then `data` is empty).

    `validity` is Arrow's bitmap, empty if nothing is null. `first` is the position of the first row in it, because a
    slice keeps the bitmap of the whole array. `offsets` begins at the slice.
    """

    offsets: _Int32s
    data: _Bytes
    validity: _Bytes
    first: int


def _array(item: Any, *, dimensions: int = 1, readonly: bool = False) -> Any:
    return types.Array(item, dimensions, "C", readonly=readonly)


_DATA = _array(types.uint8, readonly=True)
_BYTES = _array(types.uint8)
_INT32S = _array(types.int32)
_INT64S = _array(types.int64)
_INDEX = _array(types.int64, dimensions=2)
_COLUMN = types.NamedTuple((_array(types.int32, readonly=True), _DATA, _DATA, types.int64), Column)
_LONGS = _array(types.int64, readonly=True)
_TYPES = _array(types.int32, readonly=True)


def _compiled(*signature: Any) -> Callable[[_Function], _Function]:
    """Apply njit. A function with a signature is called from Python: it is compiled here and kept in numba's cache.

    Without a place for the cache, or with damaged files in it (numba doesn't sync them, so a power failure can
    truncate them), each start compiles. An error that is not the cache's occurs again without it, and is raised.
    """

    def decorate(function: _Function) -> _Function:
        if signature:
            try:
                return cast(_Function, njit(*signature, nogil=True, cache=True)(function))
            except Exception:  # noqa: BLE001 - unpickling a damaged file can raise anything.
                pass
        return cast(_Function, njit(*signature, nogil=True)(function))

    return decorate


# ---------------------------------------------------------------------------------------------- reading


@_compiled()
def _read_varint(data: _Bytes, position: int, end: int) -> tuple[int, int]:
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


@_compiled()
def _read_varlong(data: _Bytes, position: int, end: int) -> tuple[int, int]:
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


@_compiled()
def _is_utf8(data: _Bytes, start: int, end: int) -> bool:
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


@_compiled(types.Tuple((int64, int64))(_DATA, int64, _INDEX, _INT64S))
def walk(data: _Bytes, count: int, index: _Int64s, totals: _Int64s) -> tuple[int, int]:
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


@_compiled()
def _sum_overflows(left: int, right: int) -> bool:
    total = left + right
    return ((left ^ total) & (right ^ total)) < 0


@_compiled()
def _is_decimal(data: _Bytes, start: int, size: int) -> bool:
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


@_compiled()
def _has_version(data: _Bytes, start: int, count: int, name: _Bytes, form: int) -> bool:
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


@_compiled(
    types.Tuple((int64, int64, int64))(
        _DATA, _INDEX, int64, int64, int64, types.boolean, types.boolean, int64, int64, types.boolean, _DATA,
        int64,
    )
)  # fmt: skip
def check(
    data: _Bytes,
    index: _Int64s,
    first: int,
    count: int,
    base_timestamp: int,
    gaps_allowed: bool,
    timestamps_checked: bool,
    oldest: int,
    newest: int,
    null_key_allowed: bool,
    version_name: _Bytes,
    version_format: int,
) -> tuple[int, int, int]:
    """Check a topic's rules, from a record on. Return the problem, the record that has it, the largest timestamp."""
    largest = int64(NO_TIMESTAMP)
    for record in range(first, count):
        if not gaps_allowed and index[record, OFFSET_DELTA] != record:
            return int64(BAD_OFFSET_DELTA), int64(record), largest
        if timestamps_checked:
            delta = index[record, TIMESTAMP_DELTA]
            timestamp = base_timestamp + delta
            if (
                _sum_overflows(base_timestamp, delta)
                or timestamp < NO_TIMESTAMP
                or timestamp > MAX_TIMESTAMP_MS
            ):
                return int64(BAD_TIMESTAMP), int64(record), largest
            if timestamp != NO_TIMESTAMP:
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


# ---------------------------------------------------------------------------------------------- to Arrow


@_compiled()
def _copy(source: _Bytes, start: int, size: int, target: _Bytes, at: int) -> None:
    # With unsigned positions numba omits its test for negative indexes, and LLVM turns the loop into wide moves.
    from_byte = uint64(start)
    to_byte = uint64(at)
    for byte in range(uint64(size)):
        target[to_byte + byte] = source[from_byte + byte]


@_compiled()
def _set_bit(bitmap: _Bytes, row: int) -> None:
    bitmap[row >> 3] |= uint8(1) << uint8(row & 7)


@_compiled(
    int64(
        _DATA, _INDEX, int64, int64, int64, int64, int64, _INT64S, _INT64S, _BYTES, _INT32S,
        _INT32S, _BYTES, _BYTES, _INT32S, _BYTES, _BYTES,
    )
)  # fmt: skip
def fill(
    data: _Bytes,
    index: _Int64s,
    count: int,
    row: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int,
    offsets: _Int64s,
    timestamps: _Int64s,
    timestamp_validity: _Bytes,
    timestamp_types: _Int32s,
    key_offsets: _Int32s,
    key_data: _Bytes,
    key_validity: _Bytes,
    value_offsets: _Int32s,
    value_data: _Bytes,
    value_validity: _Bytes,
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
            kind = CREATE_TIME
            if _sum_overflows(base_timestamp, delta):
                return int64(-1 - record)
        else:
            timestamp = append_time
            kind = LOG_APPEND_TIME
        if timestamp > MAX_TIMESTAMP_MS or timestamp < NO_TIMESTAMP:
            return int64(-1 - record)
        if timestamp == NO_TIMESTAMP:
            without += 1
            timestamps[row] = 0
            timestamp_types[row] = NO_TIMESTAMP
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


@_compiled(
    void(
        _DATA, _INDEX, int64, int64, _INT32S, _BYTES, _INT32S, _BYTES, _INT32S, _BYTES, _BYTES,
    )
)  # fmt: skip
def fill_headers(
    data: _Bytes,
    index: _Int64s,
    count: int,
    row: int,
    list_offsets: _Int32s,
    list_validity: _Bytes,
    name_offsets: _Int32s,
    name_data: _Bytes,
    value_offsets: _Int32s,
    value_data: _Bytes,
    value_validity: _Bytes,
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


# -------------------------------------------------------------------------------------------- from Arrow


@_compiled()
def _varint_size(value: int) -> int:
    raw = (uint64(value) << uint64(1)) ^ uint64(value >> 63)
    size = int64(1)
    while raw >= uint64(0x80):
        raw >>= uint64(7)
        size += 1
    return size


@_compiled()
def _write_varint(out: _Bytes, position: int, value: int) -> int:
    raw = (uint64(value) << uint64(1)) ^ uint64(value >> 63)
    while raw >= uint64(0x80):
        out[position] = uint8(raw & uint64(0x7F)) | uint8(0x80)
        position += 1
        raw >>= uint64(7)
    out[position] = uint8(raw)
    return position + 1


@_compiled()
def _is_valid(column: Column, row: int) -> bool:
    if column.validity.size == 0:
        return True
    bit = column.first + row
    return (column.validity[bit >> 3] >> uint8(bit & 7)) & uint8(1) != uint8(0)


@_compiled()
def _field_size(column: Column, row: int) -> int:
    if not _is_valid(column, row):
        return int64(1)
    size = int64(column.offsets[row + 1]) - int64(column.offsets[row])
    return _varint_size(size) + size


@_compiled()
def _write_field(out: _Bytes, position: int, column: Column, row: int) -> int:
    if not _is_valid(column, row):
        return _write_varint(out, position, -1)
    start = int64(column.offsets[row])
    size = int64(column.offsets[row + 1]) - start
    position = _write_varint(out, position, size)
    _copy(column.data, start, size, out, position)
    return position + size


@_compiled(
    types.UniTuple(int64, 3)(
        _LONGS, _LONGS, _TYPES, _COLUMN, _COLUMN, _COLUMN, _COLUMN, _COLUMN, int64, int64, _INT32S
    )
)
def measure(
    offsets: _Int64s,
    timestamps: _Int64s,
    timestamp_types: _Int32s,
    keys: Column,
    values: Column,
    headers: Column,
    names: Column,
    header_values: Column,
    first: int,
    limit_bytes: int,
    sizes: _Int32s,
) -> tuple[int, int, int]:
    """Measure the rows from `first` on that make one batch. Return their end, their bytes, their largest timestamp.

    The size of each row goes to `sizes`. A batch has one timestamp type, and with LogAppendTime one timestamp. Its
    offsets span at most an int32. The end is `first` itself if that record does not fit into any batch.
    """
    total = int64(0)
    largest = int64(NO_TIMESTAMP)
    base_offset = offsets[first]
    base_timestamp = timestamps[first]
    appended = timestamp_types[first] == LOG_APPEND_TIME
    rows = int64(offsets.size)
    row = int64(first)
    while row < rows:
        timestamp = timestamps[row]
        if (
            offsets[row] - base_offset > _INT32_MAX
            or (timestamp_types[row] == LOG_APPEND_TIME) != appended
            or (appended and timestamp != base_timestamp)
        ):
            break
        size = 1 + _varint_size(timestamp - base_timestamp) + _varint_size(offsets[row] - base_offset)
        size += _field_size(keys, row) + _field_size(values, row)
        if _is_valid(headers, row):
            start = int64(headers.offsets[row])
            end = int64(headers.offsets[row + 1])
            size += _varint_size(end - start)
            for header in range(start, end):
                size += _field_size(names, header) + _field_size(header_values, header)
        else:
            size += 1
        whole = size + _varint_size(size)
        if total + whole > _INT32_MAX - 1024 or (row > first and total + whole > limit_bytes):
            break
        sizes[row] = size
        total += whole
        largest = max(largest, timestamp)
        row += 1
    return row, total, largest


@_compiled(
    int64(_LONGS, _LONGS, _COLUMN, _COLUMN, _COLUMN, _COLUMN, _COLUMN, int64, int64, _INT32S, _BYTES, int64)
)
def write(
    offsets: _Int64s,
    timestamps: _Int64s,
    keys: Column,
    values: Column,
    headers: Column,
    names: Column,
    header_values: Column,
    first: int,
    end: int,
    sizes: _Int32s,
    out: _Bytes,
    position: int,
) -> int:
    """Write rows `first` to `end` as `measure` has measured them. Return the position after them."""
    base_offset = offsets[first]
    base_timestamp = timestamps[first]
    for row in range(first, end):
        position = _write_varint(out, position, int64(sizes[row]))
        out[position] = uint8(0)
        position = _write_varint(out, position + 1, timestamps[row] - base_timestamp)
        position = _write_varint(out, position, offsets[row] - base_offset)
        position = _write_field(out, position, keys, row)
        position = _write_field(out, position, values, row)
        if _is_valid(headers, row):
            from_header = int64(headers.offsets[row])
            to_header = int64(headers.offsets[row + 1])
            position = _write_varint(out, position, to_header - from_header)
            for header in range(from_header, to_header):
                position = _write_field(out, position, names, header)
                position = _write_field(out, position, header_values, header)
        else:
            position = _write_varint(out, position, 0)
    return position


# ------------------------------------------------------------------------------------------- partitioner


@_compiled(void(_COLUMN, _array(types.uint32)))
def murmur2_all(keys: Column, hashes: npt.NDArray[np.uint32]) -> None:
    """Compute Kafka's hash of each key. The hash of a null key is left unchanged."""
    multiplier = np.uint32(0x5BD1E995)
    for row in range(hashes.size):
        if not _is_valid(keys, row):
            continue
        position = int64(keys.offsets[row])
        end = int64(keys.offsets[row + 1])
        mixed = np.uint32(0x9747B28C) ^ np.uint32(end - position)
        while end - position >= 4:
            word = (
                np.uint32(keys.data[position])
                | np.uint32(keys.data[position + 1]) << np.uint32(8)
                | np.uint32(keys.data[position + 2]) << np.uint32(16)
                | np.uint32(keys.data[position + 3]) << np.uint32(24)
            )
            word = np.uint32(word * multiplier)
            word ^= word >> np.uint32(24)
            mixed = np.uint32(mixed * multiplier) ^ np.uint32(word * multiplier)
            position += 4
        if end > position:
            if end - position == 3:
                mixed ^= np.uint32(keys.data[position + 2]) << np.uint32(16)
            if end - position >= 2:
                mixed ^= np.uint32(keys.data[position + 1]) << np.uint32(8)
            mixed = np.uint32((mixed ^ np.uint32(keys.data[position])) * multiplier)
        mixed ^= mixed >> np.uint32(13)
        mixed = np.uint32(mixed * multiplier)
        hashes[row] = mixed ^ (mixed >> np.uint32(15))
