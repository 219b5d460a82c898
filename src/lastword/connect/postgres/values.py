"""Converts PostgreSQL's text of a value to JSON. The texts are those of a session with the settings of `SESSION`.

| type | JSON |
|---|---|
| smallint, integer, bigint, oid, real, double precision | a number; NaN and infinities are strings |
| numeric, money | a string, so that no digit is lost |
| boolean | true, false |
| json, jsonb | as it is |
| bytea | base64 |
| timestamp, timestamptz | ISO 8601; with a time zone in UTC, with Z |
| arrays | lists, nested if necessary |
| domains | as their base type |
| all others (text, uuid, enum, date, range, interval, inet, composite …) | a string, as PostgreSQL writes it |
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

SESSION: Final = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
    # Reading a large table takes a long time.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
"""The settings of a session whose texts are understood here."""

ToJson = Callable[[bytes], bytes]
FromJson = Callable[[bytes], bytes]

_PLAIN = re.compile(rb'[\x00-\x1f"\\]')
_QUOTED_IN_ARRAYS = re.compile(r'["\\{}\s]')
_NULL: Final = b"null"


@dataclass(frozen=True, slots=True)
class Type:
    """A type, as described in the catalog."""

    oid: int
    base: int = 0
    """The base type of a domain."""
    element: int = 0
    """The element type of an array."""
    delimiter: str = ","


def text(value: bytes) -> bytes:
    if _PLAIN.search(value) is None:
        return b'"' + value + b'"'
    return json.dumps(value.decode("utf-8", "replace"), ensure_ascii=False).encode()


def _as_is(value: bytes) -> bytes:
    return value


def _json(value: bytes) -> bytes:
    # The type json keeps the spaces around a value.
    return value.strip()


def _boolean(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def _float(value: bytes) -> bytes:
    # NaN, Infinity and -Infinity are not numbers in JSON.
    return value if value[-1:].isdigit() else b'"' + value + b'"'


def _bytea(value: bytes) -> bytes:
    return b'"' + base64.b64encode(bytes.fromhex(value[2:].decode())) + b'"'


def _timestamp(value: bytes) -> bytes:
    return b'"' + value.replace(b" ", b"T", 1) + b'"'


def _timestamptz(value: bytes) -> bytes:
    moment, zone, rest = value.partition(b"+00")
    if not zone:
        return b'"' + value + b'"'
    return b'"' + moment.replace(b" ", b"T", 1) + b"Z" + rest + b'"'


_BY_OID: Final[Mapping[int, ToJson]] = {
    16: _boolean,
    17: _bytea,
    20: _as_is,
    21: _as_is,
    23: _as_is,
    26: _as_is,
    114: _json,
    3802: _as_is,
    700: _float,
    701: _float,
    1114: _timestamp,
    1184: _timestamptz,
}

INTEGERS: Final = frozenset({20, 21, 23, 26})
UUID: Final = 2950


def converter(oid: int, types: Callable[[int], Type]) -> ToJson:
    """Return the function that converts the text of a type to JSON. `types` looks up a type in the catalog."""
    known = _BY_OID.get(oid)
    if known is not None:
        return known
    found = types(oid)
    if found.base:
        return converter(found.base, types)
    if found.element:
        element = converter(found.element, types)
        delimiter = found.delimiter.encode()
        return lambda value: _array(value, element, delimiter)
    return text


def _array(value: bytes, element: ToJson, delimiter: bytes) -> bytes:
    """Convert `{1,NULL,"a b",{…}}`. An array with explicit bounds begins with them: `[0:1]={…}`."""
    if value.startswith(b"["):
        value = value.partition(b"=")[2]
    out = bytearray()
    at, end = 0, len(value)
    brace, close, quote, escape, comma = b"{"[0], b"}"[0], b'"'[0], b"\\"[0], delimiter[0]
    while at < end:
        byte = value[at]
        if byte == brace:
            out += b"["
            at += 1
        elif byte == close:
            out += b"]"
            at += 1
        elif byte == comma:
            out += b","
            at += 1
        elif byte == quote:
            item = bytearray()
            at += 1
            while value[at] != quote:
                if value[at] == escape:
                    at += 1
                item.append(value[at])
                at += 1
            at += 1
            out += element(bytes(item))
        else:
            start = at
            while at < end and value[at] not in (comma, close):
                at += 1
            item_bytes = value[start:at]
            out += _NULL if item_bytes == b"NULL" else element(item_bytes)
    return bytes(out)


def reverse(oid: int, types: Callable[[int], Type]) -> FromJson:
    """Return the function that converts the JSON of a type back to PostgreSQL's text: the inverse of `converter`.

    It raises ValueError if the JSON is not of that type. Only the bounds of an array that does not begin at 1 are lost.
    """
    known = _BACK_BY_OID.get(oid)
    if known is not None:
        return known
    found = types(oid)
    if found.base:
        return reverse(found.base, types)
    if found.element:
        element = reverse(found.element, types)
        return lambda raw: _array_text(raw.decode(), element, found.delimiter).encode()
    return _plain_text


def _unquoted(raw: bytes) -> str:
    value = json.loads(raw)
    if not isinstance(value, str):
        raise ValueError(f"{raw[:80]!r} is not a string")
    return value


def _plain_text(raw: bytes) -> bytes:
    return _unquoted(raw).encode()


def _whole_number(raw: bytes) -> bytes:
    return b"%d" % int(raw)


def _number(raw: bytes) -> bytes:
    return _plain_text(raw) if raw.startswith(b'"') else raw


def _truth(raw: bytes) -> bytes:
    return {b"true": b"t", b"false": b"f"}.get(raw) or _plain_text(raw)


def _hex(raw: bytes) -> bytes:
    return b"\\x" + base64.b64decode(_unquoted(raw), validate=True).hex().encode()


def _moment(raw: bytes) -> bytes:
    return _unquoted(raw).replace("T", " ", 1).encode()


def _moment_in_zone(raw: bytes) -> bytes:
    moment, zone, rest = _unquoted(raw).partition("Z")
    return (moment.replace("T", " ", 1) + "+00" + rest if zone else moment).encode()


_BACK_BY_OID: Final[Mapping[int, FromJson]] = {
    16: _truth,
    17: _hex,
    20: _whole_number,
    21: _whole_number,
    23: _whole_number,
    26: _whole_number,
    114: _as_is,
    3802: _as_is,
    700: _number,
    701: _number,
    1114: _moment,
    1184: _moment_in_zone,
}


def _array_text(raw: str, element: FromJson, delimiter: str) -> str:
    """Return a list as PostgreSQL writes an array: with quotes only where they are necessary."""
    parts = []
    at = 1
    decoder = json.JSONDecoder()
    while raw[at] != "]":
        _, end = decoder.raw_decode(raw, at)
        item = raw[at:end]
        if item.startswith("["):
            parts.append(_array_text(item, element, delimiter))
        elif item == "null":
            parts.append("NULL")
        else:
            parts.append(_array_item(element(item.encode()).decode(), delimiter))
        at = end + (raw[end] == ",")
    return "{" + delimiter.join(parts) + "}"


def _array_item(item: str, delimiter: str) -> str:
    if item and item.upper() != "NULL" and delimiter not in item and not _QUOTED_IN_ARRAYS.search(item):
        return item
    return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
