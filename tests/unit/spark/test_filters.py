"""What filters say about segments: never less than what matches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from lastword.segments.model import Segment
from lastword.spark.filters import EVERYTHING, wanted

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = round(NOON.timestamp() * 1000)
SEGMENT = Segment(
    path="a.parquet",
    partition=2,
    first_offset=100,
    last_offset=199,
    records=50,
    size_bytes=1,
    min_timestamp_ms=NOON_MS,
    max_timestamp_ms=NOON_MS + 1000,
    null_keys=0,
    null_values=0,
)


@pytest.mark.parametrize(
    ("given", "opened"),
    [
        (EqualTo(("partition",), 2), True),
        (EqualTo(("partition",), 1), False),
        (In(("partition",), [0, 2]), True),
        (In(("partition",), [0, 1]), False),
        (EqualTo(("offset",), 199), True),
        (EqualTo(("offset",), 200), False),
        (In(("offset",), [5, 99]), False),
        (In(("offset",), [5, 150, 900]), True),
        (GreaterThan(("offset",), 250), False),
        (GreaterThanOrEqual(("offset",), 199), True),
        (LessThan(("offset",), 50), False),
        (LessThanOrEqual(("offset",), 100), True),
        (GreaterThan(("timestamp",), NOON + timedelta(seconds=2)), False),
        (GreaterThan(("timestamp",), NOON + timedelta(milliseconds=1000)), True),
        (LessThan(("timestamp",), NOON - timedelta(microseconds=1)), False),
        (EqualTo(("timestamp",), NOON.astimezone(timezone(timedelta(hours=5)))), True),
        # Without a zone it is not known which time is meant.
        (LessThan(("timestamp",), datetime(1999, 1, 1)), True),  # noqa: DTZ001
        (EqualTo(("key",), b"k"), True),
        (Not(EqualTo(("partition",), 2)), True),
        (IsNull(("key",)), True),
        (IsNotNull(("partition",)), True),
        (EqualNullSafe(("partition",), 3), False),
        (EqualNullSafe(("partition",), None), True),
        (EqualTo(("headers", "key"), "x"), True),
    ],
)
def test_which_filter_opens_a_segment(given: Filter, opened: bool) -> None:
    assert wanted([given]).segment(SEGMENT) is opened


def test_filters_hold_together() -> None:
    found = wanted(
        [
            In(("partition",), [1, 2]),
            In(("partition",), [2, 3]),
            GreaterThan(("offset",), 10),
            LessThan(("offset",), 20),
            In(("key",), [b"a", b"b"]),
            EqualTo(("key",), bytearray(b"b")),
        ]
    )
    assert found.partitions == {2}
    assert (found.first_offset, found.last_offset) == (10, 20)
    assert found.keys == {b"b"}


def test_no_filter_is_everything() -> None:
    assert wanted([]) == EVERYTHING
    assert EVERYTHING.segment(SEGMENT)
