"""Arrow columns are read: measure and write record batches, hash keys."""

# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import int64, types, uint8, uint64, void

from lastword.batch.compiled.compiler import BYTES, DATA, INT32S, Bytes, Int32s, Int64s, array_of, compiled
from lastword.record import NO_TIMESTAMP_MS

_LOG_APPEND_TIME: Final = 1
_INT32_MAX: Final = 2**31 - 1


class Column(NamedTuple):
    """An Arrow binary column, or the ranges of a list column (then `data` is empty).

    `validity` is Arrow's bitmap, empty if nothing is null. `first` is the position of the first row in it, because a
    slice keeps the bitmap of the whole array. `offsets` begins at the slice.
    """

    offsets: Int32s
    data: Bytes
    validity: Bytes
    first: int


_COLUMN = types.NamedTuple((array_of(types.int32, readonly=True), DATA, DATA, types.int64), Column)
_LONGS = array_of(types.int64, readonly=True)
_TYPES = array_of(types.int32, readonly=True)


@compiled()
def _varint_size(value: int) -> int:
    raw = (uint64(value) << uint64(1)) ^ uint64(value >> 63)
    size = int64(1)
    while raw >= uint64(0x80):
        raw >>= uint64(7)
        size += 1
    return size


@compiled()
def _write_varint(out: Bytes, position: int, value: int) -> int:
    raw = (uint64(value) << uint64(1)) ^ uint64(value >> 63)
    while raw >= uint64(0x80):
        out[position] = uint8(raw & uint64(0x7F)) | uint8(0x80)
        position += 1
        raw >>= uint64(7)
    out[position] = uint8(raw)
    return position + 1


@compiled()
def _is_valid(column: Column, row: int) -> bool:
    if column.validity.size == 0:
        return True
    bit = column.first + row
    return (column.validity[bit >> 3] >> uint8(bit & 7)) & uint8(1) != uint8(0)


@compiled()
def _field_size(column: Column, row: int) -> int:
    if not _is_valid(column, row):
        return int64(1)
    size = int64(column.offsets[row + 1]) - int64(column.offsets[row])
    return _varint_size(size) + size


@compiled()
def _write_field(out: Bytes, position: int, column: Column, row: int) -> int:
    if not _is_valid(column, row):
        return _write_varint(out, position, -1)
    start = int64(column.offsets[row])
    size = int64(column.offsets[row + 1]) - start
    position = _write_varint(out, position, size)
    # With unsigned positions numba omits its test for negative indexes, and LLVM turns the loop into wide moves.
    from_byte = uint64(start)
    to_byte = uint64(position)
    for byte in range(uint64(size)):
        out[to_byte + byte] = column.data[from_byte + byte]
    return position + size


@compiled(
    types.UniTuple(int64, 3)(
        _LONGS, _LONGS, _TYPES, _COLUMN, _COLUMN, _COLUMN, _COLUMN, _COLUMN, int64, int64, INT32S
    )
)
def measure(
    offsets: Int64s,
    timestamps: Int64s,
    timestamp_types: Int32s,
    keys: Column,
    values: Column,
    headers: Column,
    names: Column,
    header_values: Column,
    first: int,
    limit_bytes: int,
    sizes: Int32s,
) -> tuple[int, int, int]:
    """Measure the rows from `first` on that make one batch. Return their end, their bytes, their largest timestamp.

    The size of each row goes to `sizes`. A batch has one timestamp type, and with LogAppendTime one timestamp. Its
    offsets span at most an int32. The end is `first` itself if that record does not fit into any batch.
    """
    total = int64(0)
    largest = int64(NO_TIMESTAMP_MS)
    base_offset = offsets[first]
    base_timestamp = timestamps[first]
    appended = timestamp_types[first] == _LOG_APPEND_TIME
    rows = int64(offsets.size)
    row = int64(first)
    while row < rows:
        timestamp = timestamps[row]
        if (
            offsets[row] - base_offset > _INT32_MAX
            or (timestamp_types[row] == _LOG_APPEND_TIME) != appended
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


@compiled(
    int64(_LONGS, _LONGS, _COLUMN, _COLUMN, _COLUMN, _COLUMN, _COLUMN, int64, int64, INT32S, BYTES, int64)
)
def write(
    offsets: Int64s,
    timestamps: Int64s,
    keys: Column,
    values: Column,
    headers: Column,
    names: Column,
    header_values: Column,
    first: int,
    end: int,
    sizes: Int32s,
    out: Bytes,
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


@compiled(void(_COLUMN, array_of(types.uint32)))
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
