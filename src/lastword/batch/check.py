"""The checks that a batch must pass before it is acknowledged, so that everything in the log can be read back."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from lastword.batch.compression import BadBatchError, Buffer, check_frame
from lastword.batch.header import HEADER_BYTES, BatchHeader, check_crc, whole_header
from lastword.batch.walk import Walked, walk
from lastword.errors import InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from lastword.record import MAX_TIMESTAMP_MS, NO_TIMESTAMP_MS, TimestampType

VersionFormat = Literal["long", "text"]

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
MAX_RECORDS_NAMED: Final = 1000
"""The most records of a refused batch to name: the answer must not be much larger than the batch."""

_DECIMAL: Final = re.compile(rb"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The rules of a topic, and the time that timestamps are compared with.

    `version_header` is the name and format of a header that every record must have. Kafka corrects a wrong max
    timestamp instead of refusing the batch. With `max_timestamp_corrected` so do we: `validate` then returns a header
    with the correct one, to be passed to `place`. `gaps_allowed` is for batches that keep the offsets of another log:
    then both the records' offsets and the batch's last offset may have gaps.
    """

    max_message_bytes: int
    now_ms: int
    timestamp_before_max_ms: int | None = None
    timestamp_after_max_ms: int | None = None
    null_key_allowed: bool = True
    version_header: tuple[str, VersionFormat] | None = None
    log_append_time: bool = False
    max_decompressed_bytes: int
    max_timestamp_corrected: bool = False
    gaps_allowed: bool = False


def validate(batch: Buffer, limits: Limits) -> BatchHeader:
    """Check one whole batch as it came from a producer, and return its header."""
    header = _one_header(batch)
    if header.size_bytes > limits.max_message_bytes:
        raise RecordTooLargeError(
            f"the batch has {header.size_bytes} bytes; max.message.bytes allows {limits.max_message_bytes}"
        )
    if not check_crc(batch, header):
        raise BadBatchError("the batch does not match its CRC")
    _check_header(header, limits)
    check_frame(memoryview(batch)[HEADER_BYTES:], header.compression)
    largest_ms = _check_records(walk(batch, header, limits.max_decompressed_bytes), limits)
    if limits.log_append_time or header.max_timestamp_ms == largest_ms:
        return header
    if limits.max_timestamp_corrected:
        return replace(header, max_timestamp_ms=largest_ms)
    raise BadBatchError(
        f"the header's max timestamp is {header.max_timestamp_ms}; the largest of its records is {largest_ms}"
    )


def _one_header(batch: Buffer) -> BatchHeader:
    """Return the header of the single expected batch. Kafka calls none, or several, invalid, not corrupt."""
    if len(batch) == 0:
        raise InvalidRecordError("there is no batch; exactly one is allowed")
    header = whole_header(batch)
    if header.size_bytes != len(batch):
        raise InvalidRecordError(
            f"{len(batch) - header.size_bytes} bytes follow the batch; exactly one is allowed"
        )
    return header


def parse_version(value: bytes | None, version_format: VersionFormat) -> int | None:
    """Return a version header's value as a number, or None if it isn't one. Both formats are signed 64-bit numbers."""
    if value is None:
        return None
    if version_format == "long":
        return int.from_bytes(value, "big", signed=True) if len(value) == 8 else None
    # Leading zeros are removed first, because Python refuses to convert thousands of digits.
    if not _DECIMAL.fullmatch(value):
        return None
    digits = value.lstrip(b"+-").lstrip(b"0")
    if len(digits) > 19:
        return None
    number = int(digits or b"0") * (-1 if value.startswith(b"-") else 1)
    return number if _INT64_MIN <= number <= _INT64_MAX else None


def _check_header(header: BatchHeader, limits: Limits) -> None:
    if header.is_control:
        raise BadBatchError("control batches are written by brokers only")
    if header.is_transactional:
        raise BadBatchError("transactions are not supported")
    if header.record_count < 1:
        raise BadBatchError(f"the batch says it has {header.record_count} records; at least 1 is required")
    if not limits.gaps_allowed and header.last_offset_delta != header.record_count - 1:
        raise BadBatchError(
            f"the last offset delta is {header.last_offset_delta}; with {header.record_count} records it must be"
            f" {header.record_count - 1}"
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise BadBatchError(
            f"producer {header.producer_id} has epoch {header.producer_epoch} and base sequence"
            f" {header.base_sequence}; neither may be negative"
        )
    if header.timestamp_type is TimestampType.LOG_APPEND and not limits.log_append_time:
        raise InvalidTimestampError("the batch says LogAppendTime; the topic's timestamps are CreateTime")


def _check_records(walked: Walked, limits: Limits) -> int:
    """Check the rules for each record. Return the largest timestamp."""
    from lastword.batch.compiled import parsing

    version_name, version_format = b"", 0
    if limits.version_header is not None:
        version_name = limits.version_header[0].encode()
        version_format = parsing.VERSION_LONG if limits.version_header[1] == "long" else parsing.VERSION_TEXT
    before_ms, after_ms = limits.timestamp_before_max_ms, limits.timestamp_after_max_ms
    oldest_ms = _INT64_MIN if before_ms is None else max(_INT64_MIN, limits.now_ms - before_ms)
    newest_ms = _INT64_MAX if after_ms is None else min(_INT64_MAX, limits.now_ms + after_ms)
    name = np.frombuffer(version_name, np.uint8)

    def check(first: int) -> tuple[int, int, int]:
        """Find the first record from there on that breaks a rule."""
        return parsing.check(
            walked.data,
            walked.index,
            first,
            walked.header.record_count,
            walked.header.base_timestamp_ms,
            limits.gaps_allowed,
            not limits.log_append_time,
            oldest_ms,
            newest_ms,
            limits.null_key_allowed,
            name,
            version_format,
        )

    code, record, largest_ms = check(0)
    if code != parsing.FINE:
        broken: list[tuple[int, int]] = []
        while code not in (parsing.FINE, parsing.BAD_OFFSET_DELTA) and len(broken) < MAX_RECORDS_NAMED:
            broken.append((code, record))
            code, record, _ = check(record + 1)
        if not broken or code == parsing.BAD_OFFSET_DELTA:
            raise BadBatchError(
                f"record {record}: the offset delta is {walked.index[record, parsing.OFFSET_DELTA]}; "
                f"it must be {record}"
            )
        raise _broken_rules(broken, walked, limits)
    return largest_ms


def _broken_rules(broken: list[tuple[int, int]], walked: Walked, limits: Limits) -> InvalidRecordError:
    """Return the error for the records of a batch that break rules. It names each of them."""
    from lastword.batch.compiled import parsing

    records = tuple((record, _broken_rule(code, record, walked, limits)) for code, record in broken)
    first, text = records[0]
    message = f"record {first}: {text}"
    if len(records) > 1:
        message += f"; refused records of the batch: {len(records)}"
    # As in Kafka, a wrong timestamp takes precedence over other problems.
    is_time = any(code not in (parsing.NULL_KEY, parsing.NO_VERSION) for code, _ in broken)
    return (InvalidTimestampError if is_time else InvalidRecordError)(message, records=records)


def _broken_rule(code: int, record: int, walked: Walked, limits: Limits) -> str:
    from lastword.batch.compiled import parsing

    timestamp_ms = walked.header.base_timestamp_ms + int(walked.index[record, parsing.TIMESTAMP_DELTA])
    match code:
        case parsing.BAD_TIMESTAMP:
            return (
                f"timestamp {timestamp_ms} can't be stored; {NO_TIMESTAMP_MS} (none) to"
                f" {MAX_TIMESTAMP_MS} is allowed"
            )
        case parsing.TIMESTAMP_TOO_OLD:
            return (
                f"timestamp {timestamp_ms} is more than {limits.timestamp_before_max_ms} ms"
                f" before now ({limits.now_ms}), which message.timestamp.before.max.ms does not allow"
            )
        case parsing.TIMESTAMP_TOO_NEW:
            return (
                f"timestamp {timestamp_ms} is more than {limits.timestamp_after_max_ms} ms"
                f" after now ({limits.now_ms}), which message.timestamp.after.max.ms does not allow"
            )
        case parsing.NULL_KEY:
            return "the key is null; the topic requires a key"
    assert limits.version_header is not None
    name, version_format = limits.version_header
    allowed = "8 bytes, big-endian" if version_format == "long" else "a decimal number of 64 bits"
    return f"header {name!r} must be there and be {allowed}"
