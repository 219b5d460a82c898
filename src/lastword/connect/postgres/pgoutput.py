"""The messages of `pgoutput`, protocol version 1, as PostgreSQL sends them to a logical subscriber."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

from lastword.errors import CorruptError

_BEGIN = Struct(">QqI")
_COMMIT = Struct(">BQQq")
_UINT32 = Struct(">I")
_UINT16 = Struct(">H")
_COLUMN = Struct(">Ii")

PG_EPOCH_MS: Final = 946_684_800_000
"""PostgreSQL counts microseconds from the year 2000."""


class Unchanged:
    """The value of a column that was not sent because it is stored out of line (TOAST) and did not change."""


UNCHANGED: Final = Unchanged()

Value = bytes | None | Unchanged
Values = list[Value]


@dataclass(frozen=True, slots=True)
class Begin:
    commit_lsn: int
    time_ms: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    commit_lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type_oid: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it was at this point in the stream."""

    oid: int
    schema: str
    name: str
    identity: str
    """d: the primary key, i: an index, f: the whole row, n: nothing."""
    columns: tuple[Column, ...]


class Insert(NamedTuple):
    relation: int
    new: Values


class Update(NamedTuple):
    relation: int
    old_key: Values | None
    """Only the key's columns are filled."""
    old_row: Values | None
    new: Values


class Delete(NamedTuple):
    relation: int
    old_key: Values | None
    old_row: Values | None


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]


Message = Begin | Commit | Relation | Insert | Update | Delete | Truncate


def parse(data: bytes) -> Message | None:
    """Parse a message; return None for those that say nothing about rows (types, origins, logical messages)."""
    try:
        return _parse(data)
    except (IndexError, ValueError, StructError) as error:
        raise CorruptError(
            f"PostgreSQL sent a pgoutput message that can't be read ({data[:1]!r}, {len(data)} bytes): {error}",
            path="pgoutput",
        ) from error


def _parse(data: bytes) -> Message | None:
    kind = data[0]
    if kind == 0x49:  # I
        return Insert(_UINT32.unpack_from(data, 1)[0], _values(data, 6)[0])
    if kind == 0x55:  # U
        return _update(data)
    if kind == 0x44:  # D
        values, _ = _values(data, 6)
        relation = _UINT32.unpack_from(data, 1)[0]
        return Delete(relation, values, None) if data[5] == 0x4B else Delete(relation, None, values)
    if kind == 0x42:  # B
        lsn, time_us, xid = _BEGIN.unpack_from(data, 1)
        return Begin(lsn, PG_EPOCH_MS + time_us // 1000, xid)
    if kind == 0x43:  # C
        _, lsn, end_lsn, _ = _COMMIT.unpack_from(data, 1)
        return Commit(lsn, end_lsn)
    if kind == 0x52:  # R
        return _relation(data)
    if kind == 0x54:  # T
        count = _UINT32.unpack_from(data, 1)[0]
        return Truncate(tuple(_UINT32.unpack_from(data, 6 + 4 * each)[0] for each in range(count)))
    return None


def _update(data: bytes) -> Update:
    relation = _UINT32.unpack_from(data, 1)[0]
    marker = data[5]
    if marker == 0x4E:  # N
        return Update(relation, None, None, _values(data, 6)[0])
    old, at = _values(data, 6)
    new, _ = _values(data, at + 1)
    return Update(relation, old, None, new) if marker == 0x4B else Update(relation, None, old, new)


def _values(data: bytes, at: int) -> tuple[Values, int]:
    count = _UINT16.unpack_from(data, at)[0]
    at += 2
    values: Values = []
    append, size_at = values.append, _UINT32.unpack_from
    for _ in range(count):
        kind = data[at]
        if kind == 0x74:  # t
            start = at + 5
            at = start + size_at(data, at + 1)[0]
            append(data[start:at])
        elif kind == 0x6E:  # n
            append(None)
            at += 1
        elif kind == 0x75:  # u
            append(UNCHANGED)
            at += 1
        else:
            raise ValueError(f"it has a column of kind {chr(kind)!r}")
    if at > len(data):
        raise ValueError("it is truncated")
    return values, at


def _relation(data: bytes) -> Relation:
    oid = _UINT32.unpack_from(data, 1)[0]
    schema, at = _string(data, 5)
    name, at = _string(data, at)
    identity = chr(data[at])
    count = _UINT16.unpack_from(data, at + 1)[0]
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _string(data, at + 1)
        type_oid, _ = _COLUMN.unpack_from(data, at)
        at += 8
        columns.append(Column(column, type_oid, bool(flags & 1)))
    # An empty schema is pg_catalog.
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1
