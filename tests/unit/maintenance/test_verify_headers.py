"""The digest of a record: the same in every file, whatever stands around it there, and another one for any change."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lastword.maintenance.verify import _digests
from lastword.record import PAYLOAD_SCHEMA


def rows(*headers: list[dict[str, object]] | None) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "offset": offset,
                "timestamp": 1000,
                "timestamp_type": 0,
                "key": b"k",
                "value": b"v",
                "headers": each,
            }
            for offset, each in enumerate(headers)
        ],
        schema=PAYLOAD_SCHEMA,
    )


SOME = [{"key": "trace", "value": b"1"}]


@pytest.mark.parametrize("none", [None, []])
def test_no_headers_are_the_same_beside_records_with_and_without(
    none: list[dict[str, object]] | None,
) -> None:
    alone = _digests(rows(None), 7)[0]
    assert _digests(rows(none, None), 7).tolist() == [alone, alone]
    assert _digests(rows(none, SOME), 7)[0] == alone
    assert _digests(rows(none, []), 7)[0] == alone


def test_headers_that_come_go_or_change_are_seen() -> None:
    other = [{"key": "trace", "value": b"2"}]
    found = [
        _digests(rows(each), 7)[0]
        for each in (None, SOME, other, SOME * 2, [{"key": "trace", "value": None}])
    ]
    assert len(set(found)) == 5
