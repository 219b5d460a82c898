"""The header of a record batch: reading it, its CRC, and the fields that a broker may change."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import crc32c

from lastword.batch.compression import BadBatchError, Buffer, Compression
from lastword.record import TimestampType

HEADER_BYTES: Final = 61
MAGIC: Final = 2

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_TIMESTAMP: Final = struct.Struct(">q")

_LENGTH_END: Final = 12  # The length field counts the bytes after it.
_LEADER_EPOCH_AT: Final = 12
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21  # The CRC covers the batch from here on.
_MAX_TIMESTAMP_AT: Final = 35


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """The fields of a header. `size_bytes` is the size of the whole batch, header and records."""

    base_offset: int
    size_bytes: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        try:
            return Compression(self.attributes & COMPRESSION_MASK)
        except ValueError as error:
            raise BadBatchError(
                f"compression type {self.attributes & COMPRESSION_MASK} is unknown; 0 to 4 are allowed"
            ) from error

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND if self.attributes & LOG_APPEND_TIME_BIT else TimestampType.CREATE

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader | None:
    """Return the header at `position`, or None if the buffer ends before the header does. The CRC is not checked.

    The batch itself may be longer than the buffer.
    """
    if len(buffer) - position < HEADER_BYTES:
        return None
    (
        base_offset,
        length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = _HEADER.unpack_from(buffer, position)
    if magic != MAGIC:
        raise BadBatchError(
            f"magic byte {magic} at byte {position}: only record batches of version 2 are supported"
        )
    if length < HEADER_BYTES - _LENGTH_END:
        raise BadBatchError(
            f"batch length {length} at byte {position}: at least {HEADER_BYTES - _LENGTH_END} is required"
        )
    return BatchHeader(
        base_offset=base_offset,
        size_bytes=_LENGTH_END + length,
        leader_epoch=leader_epoch,
        crc=crc,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )


def check_crc(buffer: Buffer, header: BatchHeader, position: int = 0) -> bool:
    """Return whether the batch at `position` is whole and matches the CRC in its header."""
    end = position + header.size_bytes
    if end > len(buffer):
        return False
    with memoryview(buffer) as view, view[position + _ATTRIBUTES_AT : end] as covered:
        crc: int = crc32c.crc32c(covered)
    return crc == header.crc


def split(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches of one payload, in order, each after checking its length, magic and CRC."""
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        header = whole_header(view, position)
        if not check_crc(view, header, position):
            raise BadBatchError(f"the batch at byte {position} does not match its CRC")
        yield header, view[position : position + header.size_bytes]
        position += header.size_bytes


def whole_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read a header as `read_header` does, for a batch that must exist and end within the buffer."""
    header = read_header(buffer, position)
    left = len(buffer) - position
    if header is None:
        raise BadBatchError(f"{left} bytes at byte {position}: a batch has at least {HEADER_BYTES}")
    if header.size_bytes > left:
        raise BadBatchError(
            f"the batch at byte {position} says it has {header.size_bytes} bytes, but {left} are left"
        )
    return header


def only_header(batch: Buffer) -> BatchHeader:
    """Read a header as `whole_header` does, for a buffer that holds one batch and nothing else."""
    header = whole_header(batch)
    if header.size_bytes != len(batch):
        raise BadBatchError(f"{len(batch) - header.size_bytes} bytes follow the batch")
    return header


def place(
    placed: bytearray | memoryview,
    *,
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int | None,
    max_timestamp_ms: int | None,
) -> None:
    """Write the base offset and leader epoch into a validated batch.

    The CRC does not cover these two. With `append_time_ms` the batch becomes one of LogAppendTime: the bit and the max
    timestamp say so, and readers ignore the records' own timestamps. `max_timestamp_ms` writes the correct max
    timestamp into a batch whose producer left it out.
    """
    _BASE_OFFSET.pack_into(placed, 0, base_offset)
    _LEADER_EPOCH.pack_into(placed, _LEADER_EPOCH_AT, leader_epoch)
    if append_time_ms is not None:
        (attributes,) = _ATTRIBUTES.unpack_from(placed, _ATTRIBUTES_AT)
        _ATTRIBUTES.pack_into(placed, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_BIT)
        max_timestamp_ms = append_time_ms
    if max_timestamp_ms is not None:
        _TIMESTAMP.pack_into(placed, _MAX_TIMESTAMP_AT, max_timestamp_ms)
        write_crc(placed)


def corrected_max_timestamp(batch: Buffer, header: BatchHeader) -> int | None:
    """Return the max timestamp that `validate` found, to pass to `place`; None if the batch has the same one."""
    (written_ms,) = _TIMESTAMP.unpack_from(batch, _MAX_TIMESTAMP_AT)
    return None if written_ms == header.max_timestamp_ms else header.max_timestamp_ms


def write_header(
    batch: bytearray | memoryview,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> None:
    """Write the header of a batch whose records are in place, with its length and CRC."""
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - _LENGTH_END,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    write_crc(batch)


def write_crc(batch: bytearray | memoryview) -> None:
    """Recompute the CRC of a batch."""
    with memoryview(batch) as view, view[_ATTRIBUTES_AT:] as covered:
        crc = crc32c.crc32c(covered)
    _CRC.pack_into(batch, _CRC_AT, crc)
