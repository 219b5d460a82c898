"""Operations as JSON lines, in two forms.

A line with an `op` is an operation of that kind. A line without one completes the operation in the same file with the same
`invoked`: it holds the fields that were unknown before. A recorder writes both, so the file of a killed process has
every request that it sent. Bytes are encoded in base64. A truncated last line is ignored.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, TextIO

from lastword.errors import InvalidError
from lastword.testing.history.events import (
    KINDS,
    Header,
    Operation,
    Outcome,
    Point,
    ProducedRecord,
    RestartKind,
    SeenRecord,
)

_NAMES = {kind: name for name, kind in KINDS.items()}


def write_operation(file: TextIO, operation: Operation) -> None:
    """Write an operation as one line."""
    file.write(_dumps(operation_data(operation)))


def operation_data(operation: Operation) -> dict[str, Any]:
    """Return an operation as a JSON object."""
    return {"op": _NAMES[type(operation)], **_values(operation)}


def write_completion(file: TextIO, before: Operation, after: Operation) -> None:
    """Write the fields of an operation that have changed since it was written."""
    earlier = _values(before)
    changed = {name: value for name, value in _values(after).items() if earlier.get(name) != value}
    file.write(_dumps({"invoked": after.invoked, **changed}))


def operations_of(lines: Iterable[str], *, name: str = "the history") -> list[Operation]:
    """Read the operations of one file. Raise InvalidError, with the line number, for an invalid line."""
    found: dict[int, Operation] = {}
    open_ones: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
            if "op" not in data:
                data = {**open_ones.pop(data["invoked"]), **data}
            operation = _operation(data)
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
            if not line.endswith("\n"):
                break
            raise InvalidError(f"{name}, line {number}: not an operation ({error!r})") from error
        if operation.completed is None:
            open_ones[operation.invoked] = data
        found[operation.invoked] = operation
    return list(found.values())


# ----------------------------------------------------------------------------------------------------- write


def _dumps(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"


def _values(operation: Operation) -> dict[str, Any]:
    """Return the fields that are not at their defaults, as JSON values."""
    found: dict[str, Any] = {}
    for name, default, _ in _fields(type(operation)):
        value = getattr(operation, name)
        if value is not default and value != default:
            found[name] = _WRITERS[name](value) if name in _WRITERS else value
    return found


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _record_out(record: ProducedRecord | SeenRecord) -> list[Any]:
    row: list[Any] = [_text(record.key), _text(record.value), record.timestamp_ms]
    row.append([[name, _text(value)] for name, value in record.headers])
    return [record.offset, *row] if isinstance(record, SeenRecord) else row


def _point_out(point: Point) -> dict[str, Any]:
    return {
        "offsets": None if point.offsets is None else {str(p): o for p, o in point.offsets.items()},
        "time_ms": point.time_ms,
    }


_WRITERS: dict[str, Callable[[Any], Any]] = {
    "records": lambda records: [_record_out(each) for each in records],
    "state": lambda state: [[_text(key), _text(value)] for key, value in state.items()],
    "keys": lambda keys: [_text(key) for key in keys],
    "as_of": _point_out,
    "settings": dict,
}

# ------------------------------------------------------------------------------------------------------ read


def _fields(kind: type[Operation]) -> tuple[tuple[str, Any, bool], ...]:
    """Return the name and the default of each field, and whether its JSON form differs."""
    known = _FIELDS.get(kind)
    if known is None:
        known = tuple((each.name, each.default, each.name in _READERS) for each in fields(kind))
        _FIELDS[kind] = known
    return known


_FIELDS: dict[type[Operation], tuple[tuple[str, Any, bool], ...]] = {}


def _operation(data: dict[str, Any]) -> Operation:
    kind = KINDS[data["op"]]
    given: dict[str, Any] = {}
    for name, _, converted in _fields(kind):
        if name in data:
            value = data[name]
            given[name] = _READERS[name](value, kind) if converted and value is not None else value
    return kind(**given)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def _headers(rows: list[list[Any]]) -> tuple[Header, ...]:
    return tuple((name, _bytes(value)) for name, value in rows)


def _records(rows: list[list[Any]], kind: type[Operation]) -> tuple[Any, ...]:
    if kind is KINDS["produce"]:
        return tuple(
            ProducedRecord(
                key=None if key is None else b64decode(key),
                value=None if value is None else b64decode(value),
                timestamp_ms=timestamp_ms,
                headers=_headers(headers) if headers else (),
            )
            for key, value, timestamp_ms, headers in rows
        )
    return tuple(
        SeenRecord(
            offset=offset,
            key=None if key is None else b64decode(key),
            value=None if value is None else b64decode(value),
            timestamp_ms=timestamp_ms,
            headers=_headers(headers) if headers else (),
        )
        for offset, key, value, timestamp_ms, headers in rows
    )


def _point(data: dict[str, Any]) -> Point:
    offsets = data.get("offsets")
    return Point(
        offsets=None
        if offsets is None
        else {int(partition): offset for partition, offset in offsets.items()},
        time_ms=data.get("time_ms"),
    )


_READERS: dict[str, Callable[[Any, type[Operation]], Any]] = {
    "outcome": lambda text, _: Outcome(text),
    "kind": lambda text, _: RestartKind(text),
    "records": _records,
    "state": lambda rows, _: {b64decode(key): b64decode(value) for key, value in rows},
    "keys": lambda keys, _: tuple(b64decode(key) for key in keys),
    "as_of": lambda data, _: _point(data),
    "partitions": lambda value, _: tuple(value) if isinstance(value, list) else value,
    "topics": lambda names, _: tuple(names),
}
