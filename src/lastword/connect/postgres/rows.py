"""Rows and changes of one table as records: the key as JSON, the row as JSON, or Debezium's envelope."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from json.decoder import JSONDecoder
from typing import Any, Final

from lastword.connect.postgres.pgoutput import UNCHANGED, Unchanged, Value
from lastword.connect.postgres.position import OrderKey
from lastword.connect.postgres.values import FromJson, ToJson, Type, converter, reverse
from lastword.errors import InvalidError

UNAVAILABLE: Final = b'"__debezium_unavailable_value"'
"""Debezium's placeholder, for a value that was not sent and is not filled in."""

_decoder = JSONDecoder()


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a table at one time, and how each becomes JSON."""

    table: str
    """Its name in positions."""
    schema: str
    name: str
    topic: str
    names: tuple[str, ...]
    prefixes: tuple[bytes, ...]
    converters: tuple[ToJson, ...]
    key_indexes: tuple[int, ...]
    key_is_integer: tuple[bool, ...]
    key_parsers: tuple[FromJson, ...]
    """Convert the JSON of a key back to the texts that PostgreSQL has sent."""

    @classmethod
    def make(
        cls,
        *,
        table: str,
        schema: str,
        name: str,
        topic: str,
        columns: Sequence[tuple[str, int]],
        key: Sequence[str],
        types: Callable[[int], Type],
        is_integer: Callable[[int], bool],
    ) -> Shape:
        names = tuple(each for each, _ in columns)
        missing = [each for each in key if each not in names]
        if missing or not key:
            raise InvalidError(
                f"{table} no longer has the column {missing[0]!r}, which was part of its key."
                if missing
                else f"{table} no longer has a key, so its rows can't be told apart."
            )
        indexes = tuple(index for index, each in enumerate(names) if each in key)
        return cls(
            table=table,
            schema=schema,
            name=name,
            topic=topic,
            names=names,
            prefixes=tuple(json.dumps(each, ensure_ascii=False).encode() + b":" for each in names),
            converters=tuple(converter(oid, types) for _, oid in columns),
            key_indexes=indexes,
            key_is_integer=tuple(is_integer(columns[index][1]) for index in indexes),
            key_parsers=tuple(reverse(columns[index][1], types) for index in indexes),
        )

    def key(self, values: Sequence[Value]) -> bytes:
        parts = []
        for index in self.key_indexes:
            value = values[index]
            if isinstance(value, Unchanged):
                raise InvalidError(
                    f"{self.table}: the key column {self.names[index]!r} is so large that PostgreSQL does not send it. "
                    f"ALTER TABLE … REPLICA IDENTITY FULL changes that."
                )
            if value is None:
                raise InvalidError(
                    f"{self.table}: a change came without the key column {self.names[index]!r}, so its row is unknown: the "
                    f"table, or a partition of it, had another REPLICA IDENTITY. Set it to DEFAULT, drop the slot, and let "
                    f"the source start over with `lastword connect reset`."
                )
            parts.append(self.prefixes[index] + self.converters[index](value))
        return b"{" + b",".join(parts) + b"}"

    def order_key(self, values: Sequence[Value]) -> OrderKey:
        key: list[int | bytes] = []
        for index, integer in zip(self.key_indexes, self.key_is_integer, strict=True):
            value = values[index]
            assert isinstance(value, bytes)
            key.append(int(value) if integer else value)
        return tuple(key)

    def key_texts(self, key: bytes) -> list[str] | None:
        """Return the texts of a key that is known only as JSON; None if it is not a key of this table."""
        try:
            found = slices(key.decode(), [self.names[index] for index in self.key_indexes])
            return [
                parse(found[self.names[index]].encode()).decode()
                for index, parse in zip(self.key_indexes, self.key_parsers, strict=True)
            ]
        except (ValueError, LookupError):
            return None

    def order_key_texts(self, values: Sequence[Value]) -> list[str]:
        return [(values[index] or b"").decode() for index in self.key_indexes]  # type: ignore[union-attr]

    def row(self, values: Sequence[Value], fill: Mapping[str, bytes] | None = None) -> bytes:
        """Return the row as a JSON object. `fill` has the JSON of columns that were not sent."""
        if UNCHANGED in values:
            found = fill or {}
            parts = [
                prefix
                + (found.get(name, UNAVAILABLE) if isinstance(value, Unchanged) else _json(value, to_json))
                for prefix, to_json, value, name in zip(
                    self.prefixes, self.converters, values, self.names, strict=True
                )
            ]
        else:
            parts = [
                prefix + (b"null" if value is None else to_json(value))  # type: ignore[arg-type]
                for prefix, to_json, value in zip(self.prefixes, self.converters, values, strict=True)
            ]
        return b"{" + b",".join(parts) + b"}"

    def unchanged(self, values: Sequence[Value]) -> list[str]:
        return [name for name, value in zip(self.names, values, strict=True) if value is UNCHANGED]

    def filled_from(self, new: Sequence[Value], old: Sequence[Value]) -> list[Value]:
        """Return the new row, with values that were not sent taken from the old one."""
        return [after if after is not UNCHANGED else before for after, before in zip(new, old, strict=True)]


def _json(value: bytes | None, to_json: ToJson) -> bytes:
    return b"null" if value is None else to_json(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Debezium's form of a change: the row before and after it, the operation, and the source."""

    source: str
    database: str

    def value(
        self,
        op: str,
        shape: Shape,
        *,
        before: bytes | None,
        after: bytes | None,
        lsn: int | None,
        xid: int | None,
        time_ms: int,
    ) -> bytes:
        source: dict[str, Any] = {
            "connector": "postgresql",
            "name": self.source,
            "ts_ms": time_ms,
            "snapshot": "true" if op == "r" else "false",
            "db": self.database,
            "schema": shape.schema,
            "table": shape.name,
            "txId": xid,
            "lsn": lsn,
        }
        return b"".join(
            (
                b'{"before":',
                before or b"null",
                b',"after":',
                after or b"null",
                b',"source":',
                json.dumps(source, separators=(",", ":"), ensure_ascii=False).encode(),
                b',"op":"',
                op.encode(),
                b'","ts_ms":',
                str(time_ms).encode(),
                b"}",
            )
        )


def slices(text: str, names: Iterable[str]) -> dict[str, str]:
    """Return fields of a JSON object as they are in the text, so that no digit changes. Spaces around them don't matter."""
    wanted = set(names)
    found: dict[str, str] = {}
    if not text.startswith("{") or text == "{}":
        return found
    at = 1
    while True:
        name, at = _decoder.raw_decode(text, at)
        begin = _past_spaces(text, at + 1)
        _, end = _decoder.raw_decode(text, begin)
        if name in wanted:
            found[name] = text[begin:end]
        end = _past_spaces(text, end)
        if text[end] == "}":
            return found
        at = end + 1


def _past_spaces(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at
