"""Finds the segments, row groups and rows that can match Spark's filters.

Spark applies every filter again to the rows that it gets. So a filter that is not understood costs only time, and
every bound here may be wider than the filter, never narrower.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from lastword.segments.model import Segment

_LAST = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The bounds of the rows that can match. They are inclusive; None is no bound."""

    partitions: frozenset[int] | None = None
    first_offset: int = 0
    last_offset: int = _LAST
    first_us: int = -_LAST
    last_us: int = _LAST
    """Timestamps, in microseconds since the epoch."""
    keys: frozenset[bytes] | None = None

    def partition(self, partition: int) -> bool:
        return self.partitions is None or partition in self.partitions

    @property
    def by_time(self) -> bool:
        return self.first_us > -_LAST or self.last_us < _LAST

    def times(self, first_us: int, last_us: int) -> bool:
        """Return whether timestamps between two may match."""
        return self.first_us <= last_us and first_us <= self.last_us

    def segment(self, segment: Segment) -> bool:
        """Return whether a segment may have a row that matches, judged without opening it."""
        return (
            self.partition(segment.partition)
            and self.first_offset <= segment.last_offset
            and segment.first_offset <= self.last_offset
            and self.times(segment.min_timestamp_ms * 1000, segment.max_timestamp_ms * 1000 + 999)
            and (self.keys is None or segment.null_keys < segment.records)
        )


EVERYTHING = Wanted()


def wanted(filters: Iterable[Filter]) -> Wanted:
    """Return the bounds of the rows that pass all filters."""
    found = EVERYTHING
    for each in filters:
        found = _narrowed(found, each)
    return found


def _narrowed(found: Wanted, given: Filter) -> Wanted:
    attribute: tuple[str, ...] = getattr(given, "attribute", ())
    if len(attribute) != 1:
        return found
    match attribute[0]:
        case "partition":
            values = _values(given)
            if values is None:
                return found
            allowed = frozenset(value for value in values if isinstance(value, int))
            return replace(
                found, partitions=allowed if found.partitions is None else found.partitions & allowed
            )
        case "key":
            values = _values(given)
            if values is None:
                return found
            keys = frozenset(bytes(value) for value in values if isinstance(value, bytes | bytearray))
            return replace(found, keys=keys if found.keys is None else found.keys & keys)
        case "offset":
            low, high = _range(given, _whole)
            return replace(
                found,
                first_offset=max(found.first_offset, low),
                last_offset=min(found.last_offset, high),
            )
        case "timestamp":
            low, high = _range(given, _microseconds)
            return replace(found, first_us=max(found.first_us, low), last_us=min(found.last_us, high))
    return found


def _values(given: Filter) -> list[Any] | None:
    """Return the only values that pass; None if they can't be listed."""
    match given:
        case EqualTo(value=value):
            return [value]
        case EqualNullSafe(value=value) if value is not None:
            return [value]
        case In(value=values):
            return list(values)
        case IsNull():
            return None
    return None


def _range(given: Filter, number: Any) -> tuple[int, int]:
    """Return the lowest and the highest value that may pass."""
    anything = (-_LAST, _LAST)
    match given:
        case In(value=values):
            numbers = [number(value) for value in values if value is not None]
            if not numbers or None in numbers:
                return anything
            return min(numbers), max(numbers)
        case EqualTo(value=value) | EqualNullSafe(value=value):
            low = high = number(value)
        case GreaterThan(value=value) | GreaterThanOrEqual(value=value):
            low, high = number(value), _LAST
        case LessThan(value=value) | LessThanOrEqual(value=value):
            low, high = -_LAST, number(value)
        case _:
            return anything
    return anything if low is None or high is None else (low, high)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _microseconds(value: object) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    seconds = int(value.replace(microsecond=0).timestamp())
    return seconds * 1_000_000 + value.microsecond
