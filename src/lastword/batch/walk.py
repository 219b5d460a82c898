"""Finds the fields of the records in a batch, within bounds. Checking and decoding both start here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lastword.batch.compression import BadBatchError, Buffer, decompress
from lastword.batch.header import HEADER_BYTES, BatchHeader

MAX_RECORD_DATA_BYTES: Final = 2**31 - 1
"""The bytes that an Arrow column of binary values can address, and so the most that a batch may decompress to."""

_MIN_RECORD_BYTES: Final = 7  # One byte each for length, attributes, two deltas, key, value, header count.


@dataclass(frozen=True, slots=True, kw_only=True)
class Walked:
    """The bytes of the records, with `parsing`'s index and totals of them."""

    header: BatchHeader
    data: npt.NDArray[np.uint8]
    index: npt.NDArray[np.int64]
    totals: npt.NDArray[np.int64]


def walk(batch: Buffer, header: BatchHeader, max_decompressed_bytes: int = MAX_RECORD_DATA_BYTES) -> Walked:
    """Find every field of every record. Raise BadBatchError if the bytes are not what they claim to be."""
    from lastword.batch.compiled import parsing

    count = header.record_count
    records = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    # A batch that spans a gap has nothing to decompress, whatever codec its records had.
    plain: Buffer = records
    if len(records):
        plain = decompress(records, header.compression, min(max_decompressed_bytes, MAX_RECORD_DATA_BYTES))
    # Checked before the index is allocated, because the count may be any number.
    if not 0 <= count <= len(plain) // _MIN_RECORD_BYTES:
        raise BadBatchError(f"{count} records can't be in {len(plain)} bytes")
    data = np.frombuffer(memoryview(plain).toreadonly(), np.uint8)
    index = np.empty((count, parsing.INDEX_WIDTH), np.int64)
    totals = np.zeros(parsing.TOTALS, np.int64)
    code, record = parsing.walk(data, count, index, totals)
    if code != parsing.FINE:
        raise BadBatchError(_reason(code, record, count))
    return Walked(header=header, data=data, index=index, totals=totals)


def _reason(code: int, record: int, count: int) -> str:
    from lastword.batch.compiled import parsing

    if code == parsing.LEFT_IN_BATCH:
        return f"bytes are left over after the batch's {count} records"
    return (
        f"record {record}: "
        + {
            parsing.BAD_LENGTH: "its length is not that of a record inside the batch",
            parsing.BAD_FIELD: "its timestamp or offset delta is not a number of that size",
            parsing.BAD_KEY: "the key's length is below -1 or extends beyond the record",
            parsing.BAD_VALUE: "the value's length is below -1 or extends beyond the record",
            parsing.BAD_HEADERS: "the headers' count or a length is invalid or extends beyond the record",
            parsing.BAD_HEADER_NAME: "a header's name is not valid UTF-8",
            parsing.LEFT_IN_RECORD: "bytes are left over after its headers",
        }[code]
    )
