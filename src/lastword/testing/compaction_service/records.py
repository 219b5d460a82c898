"""Records that the tests write, and the expected ones."""

from __future__ import annotations

from collections.abc import Iterable

from lastword.record import Header, NewRecord, Record


def put(
    key: str, value: str, *, headers: tuple[Header, ...] = (), timestamp_ms: int | None = None
) -> NewRecord:
    return NewRecord(key=key.encode(), value=value.encode(), headers=headers, timestamp_ms=timestamp_ms)


def gone(key: str) -> NewRecord:
    """Return a tombstone."""
    return NewRecord(key=key.encode(), value=None)


def newest(written: Iterable[Record]) -> list[Record]:
    """Return the newest record of each key, and all records without a key, in offset order."""
    records = list(written)
    last = {record.key: record.offset for record in records}
    return [record for record in records if record.key is None or last[record.key] == record.offset]


def without(records: Iterable[Record], *keys: str) -> list[Record]:
    """Return the records except those of some keys."""
    return [record for record in records if record.key not in {key.encode() for key in keys}]
