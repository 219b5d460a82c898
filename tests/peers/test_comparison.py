"""The comparison of the differential test finds what differs, and allows only what the documentation does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.peers.comparison import Comparison, Partition
from tests.peers.traffic import Seen
from tests.peers.workload import SENTINEL, Change, Round

PLACE = ("topic", 0)
LEFT = [
    Seen(3, b"a", None, (), (1, 30)),
    Seen(4, b"b", b"4", (("h", None),), (1, 40)),
    Seen(5, SENTINEL, b"", (), (1, 50)),
    Seen(7, b"c", None, (), (1, 70)),
    Seen(8, SENTINEL, b"", (), (1, 80)),
]


def compared(found: list[Seen], *, start: int = 0, may_lack_tombstones: bool = False) -> str:
    at = Partition(end=9, round_start=6, expires_at_once=True)
    return Comparison({PLACE: at}).compare(
        PLACE, found, LEFT, start=start, may_lack_tombstones=may_lack_tombstones
    )


def test_the_same_records_are_the_same_with_or_without_sentinels() -> None:
    assert compared(LEFT) == ""
    assert compared([LEFT[0], LEFT[1], LEFT[3]]) == ""
    assert compared(LEFT[1:], start=4) == ""


@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_record_that_is_missing_is_found(index: int) -> None:
    assert "missing here" in compared([each for each in LEFT if each is not LEFT[index]])


@pytest.mark.parametrize(
    "other",
    [
        replace(LEFT[1], key=b"c"),
        replace(LEFT[1], value=b""),
        replace(LEFT[1], value=None),
        replace(LEFT[1], headers=(("h", b""),)),
        replace(LEFT[1], timestamp=(1, 41)),
        replace(LEFT[1], timestamp=(2, 40)),
    ],
)
def test_a_record_that_is_another_one_is_found(other: Seen) -> None:
    assert "in Kafka" in compared([LEFT[0], other, *LEFT[2:]])


def test_a_record_too_many_and_a_wrong_order_are_found() -> None:
    assert "gone in Kafka" in compared([Seen(2, b"b", b"2", (), (1, 20)), *LEFT])
    assert "order" in compared([LEFT[1], LEFT[0], *LEFT[2:]])
    assert "order" in compared([*LEFT[:2], *LEFT[1:]])


def test_a_tombstone_of_the_last_round_may_be_gone_if_the_worker_was_there() -> None:
    assert compared(LEFT[:3], may_lack_tombstones=True) == ""
    assert "missing here" in compared(LEFT[:3])
    assert "missing here" in compared(LEFT[1:], may_lack_tombstones=True)


def test_offsets_of_rounds() -> None:
    def a_round(*partitions: int, held: bool = False) -> Round:
        changes = [Change(each, b"k", b"v", (), 1) for each in partitions]
        sentinels = [Change(each, SENTINEL, b"", (), 9) for each in range(2)]
        return Round(
            changes=tuple(changes),
            sentinels=tuple(sentinels),
            compression="none",
            batch_records=1,
            idempotent=False,
            deleted={},
            config={},
            held=held,
        )

    at = Partition()
    rounds = [
        (a_round(1), 0, 0),
        (a_round(0, 0), 3, 1),
        (a_round(0, held=True), 4, 2),
        (a_round(0, held=True), 4, 2),
        (a_round(), 8, 3),
    ]
    for each, clean_end, passes in rounds:
        at.grow(each, 0)
        assert (at.clean_end, at.passes) == (clean_end, passes)
    assert at.end == 9
