"""Kafka's record batches (format version 2), which it checks, places, decodes and encodes, and Kafka's partitioner.

header.py       the 61 bytes before the records, the CRC, the end of a batch
compression.py  Kafka's codecs, with bounded decompression
walk.py         finds the fields of the records in a batch
check.py        the checks that a batch must pass before it is acknowledged
columns.py      Arrow columns in the form of the compiled loops
decode.py       batches to Arrow and to records
encode.py       records and Arrow to batches
compiled/       the loops over record bytes, compiled by numba, imported at the first use
partitioner.py  the partition of a key, as Kafka's Java client chooses it
"""

from __future__ import annotations

from lastword.batch.check import Limits, VersionFormat, parse_version, validate
from lastword.batch.compression import BadBatchError, Buffer, Compression
from lastword.batch.decode import decode, decode_many, decode_records
from lastword.batch.encode import DEFAULT_BATCH_BYTES, empty_batch, empty_batches, encode, encode_arrow
from lastword.batch.header import (
    HEADER_BYTES,
    BatchHeader,
    check_crc,
    corrected_max_timestamp,
    place,
    read_header,
    split,
)

__all__ = [
    "DEFAULT_BATCH_BYTES",
    "HEADER_BYTES",
    "BadBatchError",
    "BatchHeader",
    "Buffer",
    "Compression",
    "Limits",
    "VersionFormat",
    "check_crc",
    "corrected_max_timestamp",
    "decode",
    "decode_many",
    "decode_records",
    "empty_batch",
    "empty_batches",
    "encode",
    "encode_arrow",
    "parse_version",
    "place",
    "read_header",
    "split",
    "validate",
    "warm_up",
]


def warm_up() -> None:
    """Load the compiled loops. A server calls it before it listens, so that the first request does not wait for it."""
    import lastword.batch.compiled.building
    import lastword.batch.compiled.parsing  # noqa: F401
