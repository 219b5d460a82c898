"""Lines on their way in: read as they come, each made a record or refused with the reason."""

from __future__ import annotations

import base64
import binascii
import json
import os
import select
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lastword.errors import InvalidError, InvalidRecordError

if TYPE_CHECKING:
    from lastword.record import Header, NewRecord

READ_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 28

_FIELDS = ("key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition")
# `lastword consume --json` prints these; they are for the log to decide.
_IGNORED_FIELDS = ("offset", "timestamp_type")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A record, and the partition that the line names, if it does."""

    record: NewRecord
    partition: int | None = None


Format = Callable[[bytes], Parsed | None]
"""Makes a record of a line, None of one that says nothing; InvalidRecordError says what is wrong with it."""


def read_runs(fd: int, max_lines: int) -> Iterator[list[bytes]]:
    """Lines without their ends, in runs: those that are there already, up to `max_lines`.

    So a file is read in large runs, and what a person types is handed on line by line.
    """
    lines: list[bytes] = []
    begun: list[bytes] = []
    while chunk := os.read(fd, READ_BYTES):
        first, *rest = chunk.split(b"\n")
        begun.append(first)
        if rest:
            lines += [b"".join(begun), *rest[:-1]]
            begun = [rest[-1]]
        elif sum(map(len, begun)) > MAX_LINE_BYTES:
            raise InvalidRecordError(f"a line has more than {MAX_LINE_BYTES} bytes")
        while len(lines) >= max_lines:
            yield lines[:max_lines]
            del lines[:max_lines]
        if lines and not select.select([fd], [], [], 0)[0]:
            yield lines
            lines = []
    if last := b"".join(begun):
        lines.append(last)
    if lines:
        yield lines


def key_value_format(separator: str, null_value: str | None) -> Format:
    """`key:value`, split at the first separator."""
    from lastword.record import NewRecord

    split_at, null = separator.encode(), _encoded(null_value)

    def parse(line: bytes) -> Parsed:
        key, found, value = line.partition(split_at)
        if not found:
            raise InvalidRecordError(
                f"there is no {separator!r} between key and value; allowed: KEY{separator}VALUE, "
                f"another --separator, or --no-key for lines that are values alone"
            )
        return Parsed(NewRecord(key=key, value=None if value == null else value))

    return parse


def value_format(null_value: str | None) -> Format:
    """The whole line is the value, and there is no key."""
    from lastword.record import NewRecord

    null = _encoded(null_value)
    return lambda line: Parsed(NewRecord(value=None if line == null else line))


def json_format(line: bytes) -> Parsed | None:
    """A JSON object a line."""
    from lastword.record import NewRecord

    if not line.strip():
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(f"is not JSON: {error}") from None
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
    """Milliseconds since the epoch, from themselves or from an ISO 8601 time; one without a zone is UTC."""
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


def _bytes(entry: dict[str, Any], name: str) -> bytes | None:
    encoded = f"{name}_base64"
    if name in entry and encoded in entry:
        raise InvalidRecordError(f'has both "{name}" and "{encoded}"; give one of them')
    given = entry.get(encoded, entry.get(name))
    if given is None:
        return None
    if not isinstance(given, str):
        raise InvalidRecordError(
            f'"{encoded if encoded in entry else name}" must be a text or null; is {_kind(given)}. '
            f"A value that is itself JSON is given as text"
        )
    try:
        return base64.b64decode(given, validate=True) if encoded in entry else given.encode()
    except binascii.Error as error:
        raise InvalidRecordError(f'"{encoded}" is not base64: {error}') from None
    except UnicodeEncodeError:
        raise InvalidRecordError(
            f'"{name}" has half of a surrogate pair, which no UTF-8 text can have'
        ) from None


def _headers(given: object) -> tuple[Header, ...]:
    allowed = 'allowed: {"name": "text"}, or [{"key": "name", "value": "text"}] where a name comes twice'
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
            return "a text"
        case list():
            return "a list"
    return "an object"


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)
