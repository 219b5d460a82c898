"""Kafka's four codecs on top of Arrow's, with a bound on the decompressed size."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import pyarrow as pa

from lastword.errors import InvalidRecordError

Buffer = bytes | bytearray | memoryview


class BadBatchError(InvalidRecordError):
    """The bytes are not a record batch that can be read back. `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Compression(IntEnum):
    """Kafka's codecs, by their numbers in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_STREAMS: Final = {Compression.GZIP: "gzip", Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}
_FIRST_READ_BYTES: Final = 64 * 1024

_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_BLOCK_SIZE: Final = struct.Struct(">i")

# Magic; version 1 with independent blocks; blocks of 4 MiB; the checksum that goes with these two bytes.
_LZ4_HEADER: Final = bytes.fromhex("04224d18 6070 73")
_LZ4_BLOCK_BYTES: Final = 4 * 1024 * 1024
_LZ4_STORED_BIT: Final = 1 << 31
_LZ4_SIZE: Final = struct.Struct("<I")
_LZ4_INDEPENDENT_BIT: Final = 0x20


def compress(data: Buffer, compression: Compression) -> Buffer:
    """Compress the records of a batch so that every Kafka client can read them."""
    match compression:
        case Compression.NONE:
            return data
        case Compression.SNAPPY:
            return _compress_snappy(memoryview(data))
        case Compression.LZ4:
            return _compress_lz4(memoryview(data))
        case _:
            return memoryview(pa.compress(data, codec=_STREAMS[compression]))


def decompress(data: Buffer, compression: Compression, max_bytes: int) -> Buffer:
    """Decompress the records of a batch. More than `max_bytes` are refused when the bound is passed, not after."""
    if compression is Compression.NONE:
        return data
    try:
        if compression is Compression.SNAPPY:
            return _decompress_snappy(memoryview(data), max_bytes)
        return _decompress_stream(data, _STREAMS[compression], max_bytes)
    except (OSError, pa.ArrowException) as error:
        raise BadBatchError(f"the records are not valid {compression.name.lower()}: {error}") from error


def check_frame(data: Buffer, compression: Compression) -> None:
    """Refuse LZ4 frames with linked blocks: Arrow reads them, Kafka's Java client does not."""
    if compression is Compression.LZ4 and len(data) > 4 and not data[4] & _LZ4_INDEPENDENT_BIT:
        raise BadBatchError(
            "the records are an lz4 frame with linked blocks; only independent blocks are allowed"
        )


def _too_large(max_bytes: int) -> BadBatchError:
    return BadBatchError(f"the records have more than {max_bytes} bytes when decompressed")


def _decompress_stream(data: Buffer, codec: str, max_bytes: int) -> Buffer:
    """Decompress in growing pieces, because the sizes in a frame may be false and the bound may be large."""
    parts: list[bytes] = []
    total = 0
    ask = max(_FIRST_READ_BYTES, 4 * len(data))
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec) as stream:
        while part := stream.read(min(ask, max_bytes + 1 - total)):
            parts.append(part)
            total += len(part)
            if total > max_bytes:
                raise _too_large(max_bytes)
            ask = total
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_snappy(data: memoryview, max_bytes: int) -> Buffer:
    """Decompress one raw block, as librdkafka writes it, or Java's sequence of blocks in xerial's framing."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, max_bytes)
    blocks: list[Buffer] = []
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if len(data) - position < _BLOCK_SIZE.size:
            raise BadBatchError("the records are not valid snappy: a block's size is cut off")
        (size,) = _BLOCK_SIZE.unpack_from(data, position)
        position += _BLOCK_SIZE.size
        if not 0 < size <= len(data) - position:
            raise BadBatchError(
                f"the records are not valid snappy: a block of {size} bytes with {len(data) - position} left"
            )
        block = _decompress_snappy_block(data[position : position + size], max_bytes)
        max_bytes -= len(block)
        blocks.append(block)
        position += size
    return b"".join(blocks)


def _decompress_snappy_block(block: memoryview, max_bytes: int) -> Buffer:
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            break
    else:
        raise BadBatchError("the records are not valid snappy: a block without its size")
    if size > max_bytes:
        raise _too_large(max_bytes)
    return memoryview(pa.decompress(block, decompressed_size=size, codec="snappy"))


def _compress_snappy(data: memoryview) -> bytes:
    parts: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = pa.compress(data[start : start + _XERIAL_BLOCK_BYTES], codec="snappy", asbytes=True)
        parts += (_BLOCK_SIZE.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: memoryview) -> bytes:
    """Write an LZ4 frame with independent blocks: Arrow's has linked blocks, which Kafka's Java client refuses."""
    parts: list[Buffer] = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = pa.compress(plain, codec="lz4_raw", asbytes=True)
        if len(block) < len(plain):
            parts += (_LZ4_SIZE.pack(len(block)), block)
        else:
            parts += (_LZ4_SIZE.pack(len(plain) | _LZ4_STORED_BIT), plain)
    parts.append(_LZ4_SIZE.pack(0))
    return b"".join(parts)
