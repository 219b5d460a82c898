"""Entries: the records that are or may be in a partition's log."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.testing.history.events import Header, Operation, Produce, SeenRecord
from lastword.testing.history.truth.clockline import NEVER
from lastword.testing.history.truth.settings import (
    ANY_HIGH,
    ANY_LOW,
    UNRANKED,
    Rank,
    Strategy,
    parse_version,
)


@dataclass(slots=True, eq=False)
class Entry:
    """A record of one life's log.

    It was appended between `since` and `known_by`, the first completion that proves it. If `offset` is None, the record
    may be in the log, at an unknown offset.
    """

    offset: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int | None
    since: int
    known_by: int = NEVER
    until: int = NEVER
    """The number by which it is in the log, if it ever is."""
    produce: Produce | None = None
    sighting: Operation | None = None
    """The first operation that returned it."""
    is_acknowledged: bool = False
    gone_from: int = NEVER
    """The number from which a rule permits its removal."""
    taken_from: int = NEVER
    """The number from which a rule other than compaction permits its removal: its age, the log start, an erasure."""
    expired_from: int = NEVER
    """The number from which it may be an expired tombstone."""

    @property
    def is_tombstone(self) -> bool:
        return self.key is not None and self.value is None

    def is_same_as(self, record: SeenRecord | Entry) -> bool:
        return self.key == record.key and self.value == record.value


def ranks(entry: Entry, strategy: Strategy) -> tuple[Rank, Rank]:
    """Return the lowest and the highest version that an entry may have."""
    if strategy.name == "timestamp":
        if entry.timestamp_ms is None:
            return ANY_LOW, ANY_HIGH
        rank = UNRANKED if entry.timestamp_ms < 0 else (1, entry.timestamp_ms)
        return rank, rank
    if strategy.name == "header":
        value = next((value for name, value in reversed(entry.headers) if name == strategy.header), None)
        version = parse_version(value, strategy.header_format)
        rank = UNRANKED if version is None else (1, version)
        return rank, rank
    return ANY_LOW, ANY_HIGH


def beats(one: Entry, other: Entry, strategy: Strategy) -> bool:
    """Return whether one entry of a key certainly beats another. Both have offsets."""
    assert one.offset is not None and other.offset is not None
    if strategy.name == "first":
        return one.offset < other.offset
    if not strategy.is_versioned:
        return one.offset > other.offset
    return (ranks(one, strategy)[0], one.offset) > (ranks(other, strategy)[1], other.offset)
