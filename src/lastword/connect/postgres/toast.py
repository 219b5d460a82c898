"""Fills in the values that PostgreSQL does not send: large ones, stored out of line (TOAST), that an update left as is.

The last value of the row is in the log, because every change before this one is. Rows of tables where this happens are
kept in memory up to a limit; others are looked up in the log, all those of a chunk together, backwards from its end. A
column that the last record does not have, because it was renamed since, is read from the database.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lastword.connect.postgres.database import Database
from lastword.connect.postgres.pgoutput import Value
from lastword.connect.postgres.rows import Shape, slices
from lastword.connect.protocol import SourceRecord, TopicReads
from lastword.errors import InvalidError

KEPT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A record whose value is not known yet: the row as it was sent, and the way to finish it."""

    shape: Shape
    values: Sequence[Value]
    lookup: bytes
    """The key that the row had before."""
    finish: Callable[[bytes], bytes]
    """Converts the row to the record's value."""


class Filler:
    """Completes the records of each chunk, in order."""

    def __init__(
        self,
        topics: TopicReads,
        fetch: Callable[[Shape, Sequence[Value], Sequence[str]], dict[str, bytes]],
        *,
        is_envelope: bool,
    ) -> None:
        self._topics = topics
        self._fetch = fetch
        self._is_envelope = is_envelope
        self._kept: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        self._kept_bytes = 0
        self._used: set[str] = set()
        self._ended: tuple[bytes, bytes] | None = None

    def complete(self, records: list[SourceRecord], incomplete: dict[int, Incomplete]) -> None:
        """Fill the records at these indexes, and keep the rows of their topics for later."""
        self._used |= {each.shape.topic for each in incomplete.values()}
        if not self._used:
            return
        self._look_up(records, incomplete)
        for index, record in enumerate(records):
            if record.topic not in self._used or record.key is None or self._tells_of_end(records, index):
                continue
            value = record.value
            if (each := incomplete.get(index)) is not None:
                value = each.finish(self._row(each))
                records[index] = record._replace(value=value)
            ended = self._keep(record.topic, record.key, value)
            # If the row got another key, it is the next record.
            self._ended = None if value is not None or ended is None else (record.key, ended)
        while self._kept_bytes > KEPT_BYTES:
            (_, key), value = self._kept.popitem(last=False)
            self._kept_bytes -= len(key) + len(value)

    def _look_up(self, records: Sequence[SourceRecord], incomplete: dict[int, Incomplete]) -> None:
        """Read from the log the rows that are neither kept nor in this chunk itself."""
        wanted: dict[str, set[bytes]] = {}
        seen: set[tuple[str, bytes | None]] = set()
        for index, record in enumerate(records):
            each = incomplete.get(index)
            if each is not None:
                place = (each.shape.topic, each.lookup)
                if place not in seen and place not in self._kept:
                    wanted.setdefault(each.shape.topic, set()).add(each.lookup)
            if record.value is not None and not self._tells_of_end(records, index):
                seen.add((record.topic, record.key))
        for topic, keys in wanted.items():
            for key, value in self._topics.newest(topic, keys).items():
                self._keep(topic, key, value)

    def _tells_of_end(self, records: Sequence[SourceRecord], index: int) -> bool:
        """Return whether a record is the envelope of a delete, right before its tombstone: neither row nor tombstone."""
        if not self._is_envelope or index + 1 >= len(records):
            return False
        record, following = records[index], records[index + 1]
        return following.value is None and (record.topic, record.key) == (following.topic, following.key)

    def _row(self, each: Incomplete) -> bytes:
        missing = each.shape.unchanged(each.values)
        last = self._kept.get((each.shape.topic, each.lookup))
        if last is None and self._ended is not None and self._ended[0] == each.lookup:
            last = self._ended[1]
        found = self._columns(last, missing) if last is not None else {}
        rest = [name for name in missing if name not in found]
        if rest:
            found |= self._fetch(each.shape, each.values, rest)
        return each.shape.row(each.values, found)

    def _columns(self, value: bytes, names: Sequence[str]) -> dict[str, bytes]:
        text = value.decode()
        if self._is_envelope:
            text = slices(text, ["after"]).get("after", "null")
        return {name: found.encode() for name, found in slices(text, names).items()}

    def _keep(self, topic: str, key: bytes, value: bytes | None) -> bytes | None:
        """Keep a row, or forget it if `value` is None; return the value that was kept before."""
        before = self._kept.pop((topic, key), None)
        if before is not None:
            self._kept_bytes -= len(key) + len(before)
        if value is not None:
            self._kept[topic, key] = value
            self._kept_bytes += len(key) + len(value)
        return before


def current_values(
    database: Database, shape: Shape, values: Sequence[Value], names: Sequence[str]
) -> dict[str, bytes]:
    """Return the values of columns as the database has them now."""

    def quoted(name: str) -> str:
        # The query has arguments, so a % in a name is doubled.
        return database.quote(name).replace("%", "%%")

    columns = ", ".join(f"format('%%s', {quoted(name)}), {quoted(name)} IS NULL" for name in names)
    condition = " AND ".join(f"{quoted(shape.names[index])} = %s" for index in shape.key_indexes)
    try:
        row = database.one(
            f"SELECT {columns} FROM {shape.table.replace('%', '%%')} WHERE {condition}",
            shape.order_key_texts(values),
        )
    except InvalidError:
        # The table has other columns by now; the values that it had can't be found any more.
        row = None
    if row is None:
        return {}
    found: dict[str, bytes] = {}
    for index, name in enumerate(names):
        text, is_null = row[2 * index], row[2 * index + 1]
        to_json = shape.converters[shape.names.index(name)]
        found[name] = b"null" if is_null else to_json(text.encode())
    return found
