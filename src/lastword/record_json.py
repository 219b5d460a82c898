"""Records as JSON objects: the output of `consume --json`, the input of `produce --jsonl` and the admin API.

Keys and values that are not UTF-8 are in base64, under another name: `key_base64`, `value_base64`.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lastword.errors import InvalidError, InvalidRecordError

if TYPE_CHECKING:
    from lastword.record import Header, NewRecord, Record

Json = dict[str, Any]
"""A JSON object, as the command line and the admin API read and write it."""

_FIELDS = ("key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition")
# `record_data` writes these, but the log decides them.
_IGNORED_FIELDS = ("offset", "timestamp_type")

# The values of message.timestamp.type, by TimestampType. The third is Kafka's name for no timestamp.
_TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime", -1: "NoTimestampType"}


def snapshot_id_text(snapshot_id: int | None) -> str | None:
    """Return a snapshot's id for JSON: as text, because numbers in JavaScript and jq can't hold all its digits."""
    return None if snapshot_id is None else str(snapshot_id)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A record to append, and its partition, if one was given."""

    record: NewRecord
    partition: int | None = None


# ------------------------------------------------------------------------------------------------------- out


def record_data(record: Record) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestamp_type": _TIMESTAMP_TYPES[record.timestamp_type],
        **json_bytes("key", record.key),
        **json_bytes("value", record.value),
        "headers": [{"key": name, **json_bytes("value", value)} for name, value in record.headers],
    }


def parsed_data(parsed: Parsed) -> dict[str, Any]:
    """Return the JSON object from which `parse_record` makes the same record."""
    record = parsed.record
    data: dict[str, Any] = {**json_bytes("key", record.key), **json_bytes("value", record.value)}
    if record.headers:
        data["headers"] = [{"key": name, **json_bytes("value", value)} for name, value in record.headers]
    if record.timestamp_ms is not None:
        data["timestamp"] = record.timestamp_ms
    if parsed.partition is not None:
        data["partition"] = parsed.partition
    return data


def json_bytes(name: str, data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def bytes_of(data: dict[str, Any], name: str) -> bytes | None:
    """Return the bytes that `json_bytes` was given."""
    encoded = data.get(f"{name}_base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    given = data.get(name)
    return None if given is None else str(given).encode()


# -------------------------------------------------------------------------------------------------------- in


def parse_record(entry: object) -> Parsed:
    """Parse a record from a JSON value. Raise InvalidRecordError, which says what is wrong with it."""
    from lastword.record import NewRecord

    if not isinstance(entry, dict):
        raise InvalidRecordError(
            f'must be a JSON object, such as {{"key": "k", "value": "v"}}; is {_kind(entry)}'
        )
    for field in entry:
        if field not in (*_FIELDS, *_IGNORED_FIELDS):
            raise InvalidRecordError(f"unknown field {field!r}; allowed: {', '.join(_FIELDS)}")
    if "value" not in entry and "value_base64" not in entry:
        raise InvalidRecordError('has no "value"; a tombstone says "value": null')
    return Parsed(
        NewRecord(
            key=_bytes(entry, "key"),
            value=_bytes(entry, "value"),
            headers=_headers(entry.get("headers")),
            timestamp_ms=_timestamp(entry.get("timestamp")),
        ),
        _partition(entry.get("partition")),
    )


def parse_time(text: str) -> int:
    """Parse milliseconds since the epoch, or an ISO 8601 time, as milliseconds. A time without a zone is UTC."""
    try:
        if text.lstrip("-").isdigit():
            return int(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidError(
            f"{text!r} is not a time; allowed: milliseconds since 1970, or ISO 8601 such as 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def time_text(timestamp_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, to the millisecond. `parse_time` reads it back."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _bytes(entry: dict[str, Any], name: str) -> bytes | None:
    encoded = f"{name}_base64"
    if name in entry and encoded in entry:
        raise InvalidRecordError(f'has both "{name}" and "{encoded}"; give one of them')
    given = entry.get(encoded, entry.get(name))
    if given is None:
        return None
    if not isinstance(given, str):
        raise InvalidRecordError(
            f'"{encoded if encoded in entry else name}" must be text or null; is {_kind(given)}. '
            f"Write a value that is itself JSON as text"
        )
    try:
        return base64.b64decode(given, validate=True) if encoded in entry else given.encode()
    except binascii.Error as error:
        raise InvalidRecordError(f'"{encoded}" is not base64: {error}') from None
    except UnicodeEncodeError:
        raise InvalidRecordError(
            f'"{name}" has half of a surrogate pair, which is not valid in UTF-8'
        ) from None


def _headers(given: object) -> tuple[Header, ...]:
    allowed = 'allowed: {"name": "text"}, or [{"key": "name", "value": "text"}] if a name occurs twice'
    if given is None:
        return ()
    if isinstance(given, dict):
        given = [{"key": name, "value": value} for name, value in given.items()]
    if not isinstance(given, list):
        raise InvalidRecordError(f'"headers" is {_kind(given)}; {allowed}')
    headers: list[Header] = []
    for each in given:
        if (
            not isinstance(each, dict)
            or not isinstance(each.get("key"), str)
            or set(each) - {"key", "value", "value_base64"}
        ):
            raise InvalidRecordError(f'"headers" has {json.dumps(each)[:80]}; {allowed}')
        headers.append((each["key"], _bytes(each, "value")))
    return tuple(headers)


def _timestamp(given: object) -> int | None:
    if given is None:
        return None
    if isinstance(given, str):
        return parse_time(given)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    raise InvalidRecordError(
        f'"timestamp" is {_kind(given)}; allowed: milliseconds since 1970, or ISO 8601 text'
    )


def _partition(given: object) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    raise InvalidRecordError(f'"partition" is {_kind(given)}; allowed: a whole number')


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
    return "an object"
