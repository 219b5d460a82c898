"""Turns the changes of a stream into records, transaction by transaction, with the position after each.

Changes that are in the log already are skipped: whole transactions by the place of their commit, the beginning of an
interrupted one by the number of its changes, and changes that a snapshot has seen by the transaction's id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from lastword.connect.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    Relation,
    Truncate,
    Update,
    Value,
)
from lastword.connect.postgres.position import Filter, OrderKey, PgPosition, order_key
from lastword.connect.postgres.rows import Envelope, Shape
from lastword.connect.postgres.toast import Incomplete
from lastword.connect.protocol import Chunk, SourceRecord

MAX_RECORDS: Final = 8_000
MAX_BYTES: Final = 4 << 20
FIRST_FILLS: Final = 64
"""How many records of a chunk may wait for values that were not sent, before the size of those is known. After that, as
many as have about FILL_BYTES together: more at a time are looked up faster."""
LEAST_FILLS: Final = 16
FILL_BYTES: Final = 32 << 20


class Tables(Protocol):
    """The source that changes belong to, as they need it."""

    @property
    def envelope(self) -> Envelope | None: ...

    @property
    def fills(self) -> bool:
        """Whether values that were not sent are filled in."""
        ...

    def shape_of(self, relation: Relation) -> Shape | None:
        """Return the shape of a relation's rows as records; None if it is not one of the source's tables."""
        ...

    def pass_over(self, relation: int) -> None:
        """Handle a change of a relation that is not one of the source's tables."""
        ...

    def complete(self, records: list[SourceRecord], incomplete: dict[int, Incomplete]) -> None: ...

    def live_keys(self, topic: str) -> Iterator[bytes]: ...


class Changes:
    """Gathers records until they are taken."""

    def __init__(self, at: PgPosition, tables: Tables) -> None:
        self._at = at
        self._tables = tables
        self._filter = Filter(at.epochs) if at.epochs else None
        self._shapes: dict[int, Shape | None] = {}
        self._records: list[SourceRecord] = []
        self._incomplete: dict[int, Incomplete] = {}
        self._bytes = 0
        self._most_fills = FIRST_FILLS
        self._begin: Begin | None = None
        self._index = 0
        self._skipped = 0
        """The number of changes of this transaction that are in the log already."""

    @property
    def in_transaction(self) -> bool:
        return self._begin is not None

    @property
    def is_empty(self) -> bool:
        return not self._records

    @property
    def is_full(self) -> bool:
        return (
            len(self._records) >= MAX_RECORDS
            or self._bytes >= MAX_BYTES
            or len(self._incomplete) >= self._most_fills
        )

    def take(self) -> Chunk:
        if self._begin is not None and self._index > self._skipped:
            self._at.open_lsn, self._at.open_index = self._begin.commit_lsn, self._index
        records, incomplete = self._records, self._incomplete
        self._records, self._incomplete, self._bytes = [], {}, 0
        if self._tables.fills:
            self._tables.complete(records, incomplete)
            if incomplete:
                mean_bytes = sum(len(records[each].value or b"") for each in incomplete) // len(incomplete)
                self._most_fills = min(max(FILL_BYTES // max(mean_bytes, 1), LEAST_FILLS), MAX_RECORDS)
        return Chunk(records, self._at.to_json())

    def add(self, message: Begin | Commit | Relation | Insert | Update | Delete) -> None:
        match message:
            case Insert() | Update() | Delete():
                self._index += 1
                if self._index <= self._skipped:
                    return
                shape = self._shapes.get(message.relation)
                if shape is not None:
                    self._change(message, shape)
                else:
                    self._tables.pass_over(message.relation)
            case Begin():
                self._begin, self._index, self._skipped = message, 0, 0
                if message.commit_lsn <= self._at.commit_lsn:
                    self._skipped = 1 << 62
                elif message.commit_lsn == self._at.open_lsn:
                    self._skipped = self._at.open_index
            case Commit():
                self._commit(message)
            case Relation():
                self._shapes[message.oid] = self._tables.shape_of(message)

    def truncate(self, message: Truncate, wanted: bool) -> Iterator[Chunk]:
        """Yield a tombstone for each key that is left. After a crash this is repeated, for those that are left then."""
        if self._index + 1 <= self._skipped:
            self._index += 1
            return
        if self._records:
            yield self.take()
        assert self._begin is not None
        if wanted:
            for relation in message.relations:
                shape = self._shapes.get(relation)
                for key in self._tables.live_keys(shape.topic) if shape is not None else ():
                    assert shape is not None
                    if not self._has_read(shape, key):
                        self._put(SourceRecord(shape.topic, key, None, self._begin.time_ms))
                    if self.is_full:
                        yield self.take()
        self._index += 1

    def _commit(self, message: Commit) -> None:
        at = self._at
        at.lsn = max(at.lsn, message.end_lsn)
        at.commit_lsn = max(at.commit_lsn, message.commit_lsn)
        at.open_lsn = at.open_index = 0
        self._begin = None
        if self._filter is not None and at.commit_lsn >= max(each.until_lsn for each in at.epochs):
            self._filter, at.epochs = None, []

    def _change(self, message: Insert | Update | Delete, shape: Shape) -> None:
        match message:
            case Insert(new=new):
                self._new("c", shape, new, None, None)
            case Update(old_row=old, new=new) if old is not None:
                whole = shape.filled_from(new, old)
                self._moved(shape, old, whole)
                self._new("u", shape, whole, old, None)
            case Update(old_key=old, new=new):
                lookup = None
                if old is not None:
                    self._moved(shape, old, new)
                    lookup = shape.key(old)
                self._new("u", shape, new, None, lookup)
            case Delete(old_key=old_key, old_row=old_row):
                old = old_row if old_row is not None else old_key
                assert old is not None
                self._gone(shape, old, old_row)

    def _new(
        self,
        op: str,
        shape: Shape,
        values: Sequence[Value],
        before: Sequence[Value] | None,
        lookup: bytes | None,
    ) -> None:
        if self._filter is not None and self._has_seen(shape, lambda: shape.order_key(values)):
            return
        assert self._begin is not None
        begin, envelope, key = self._begin, self._tables.envelope, shape.key(values)
        incomplete = self._tables.fills and UNCHANGED in values
        if envelope is None:
            value = b"" if incomplete else shape.row(values)
            finish = _same
        else:

            def finish(row: bytes) -> bytes:
                old = None if before is None else shape.row(before)
                return envelope.value(
                    op,
                    shape,
                    before=old,
                    after=row,
                    lsn=begin.commit_lsn,
                    xid=begin.xid,
                    time_ms=begin.time_ms,
                )

            value = b"" if incomplete else finish(shape.row(values))
        if incomplete:
            self._incomplete[len(self._records)] = Incomplete(shape, values, lookup or key, finish)
        self._put(SourceRecord(shape.topic, key, value, begin.time_ms))

    def _moved(self, shape: Shape, old: Sequence[Value], new: Sequence[Value]) -> None:
        """End the old key if an update changes it."""
        if shape.key(old) != shape.key(new):
            self._gone(shape, old, None)

    def _gone(self, shape: Shape, old: Sequence[Value], old_row: Sequence[Value] | None) -> None:
        if self._has_seen(shape, lambda: shape.order_key(old)):
            return
        assert self._begin is not None
        begin, key = self._begin, shape.key(old)
        if self._tables.envelope is not None:
            value = self._tables.envelope.value(
                "d",
                shape,
                before=key if old_row is None else shape.row(old_row),
                after=None,
                lsn=begin.commit_lsn,
                xid=begin.xid,
                time_ms=begin.time_ms,
            )
            self._put(SourceRecord(shape.topic, key, value, begin.time_ms))
        self._put(SourceRecord(shape.topic, key, None, begin.time_ms))

    def _put(self, record: SourceRecord) -> None:
        self._records.append(record)
        self._bytes += len(record.key or b"") + len(record.value or b"")

    def _has_seen(self, shape: Shape, key: Callable[[], OrderKey]) -> bool:
        if self._filter is None:
            return False
        assert self._begin is not None
        return self._filter.has_seen(self._begin.xid, shape.table, key(), shape.key_is_integer)

    def _has_read(self, shape: Shape, key: bytes) -> bool:
        """Return the same for a key that is known only as JSON; one that is not of the table was not read."""
        texts = shape.key_texts(key) if self._filter is not None else None
        return texts is not None and self._has_seen(shape, lambda: order_key(texts, shape.key_is_integer))


def _same(row: bytes) -> bytes:
    return row
