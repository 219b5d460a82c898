"""Pages of records over all partitions, the newest first."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.logs import open_log

from lastword.errors import CorruptError
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.operations import record_page as pages
from lastword.operations.record_page import RecordPage, place_of_offset, place_of_time, record_page
from lastword.reading.timetravel import AsOf
from lastword.record import NewRecord, Record


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with open_log(tmp_path / "data", clock, INLINE_CONFIG) as opened:
        yield opened


def filled(log: Log, *, ordered: bool = True, partitions: int = 3) -> Topic:
    """A topic with sealed, compacted and unsealed records, each of a time of its own, on keys a to e."""
    topic = log.create_topic("t", partitions=partitions, config={"cleanup.policy": "compact"})
    chance = random.Random(7)
    numbers = list(range(90))
    if not ordered:
        chance.shuffle(numbers)
    for index, number in enumerate(numbers):
        record = NewRecord(
            key=chance.choice("abcde").encode(), value=b"%d" % number, timestamp_ms=1_000_000 + number
        )
        topic.append_many([record], partition=chance.randrange(partitions))
        if index in (20, 40, 60):
            topic.seal()
        if index == 40:
            log.compact(asked_for=True)
    return topic


def all_records(topic: Topic) -> list[Record]:
    return list(topic.read())


def down(topic: Topic, *, limit: int = 7, **asked: object) -> list[RecordPage]:
    found = [record_page(topic, limit=limit, max_bytes=1 << 20, **asked)]  # type: ignore[arg-type]
    while found[-1].before is not None:
        found.append(
            record_page(topic, before=found[-1].before, limit=limit, max_bytes=1 << 20, **asked)  # type: ignore[arg-type]
        )
    return found


def up(topic: Topic, *, limit: int = 7, **asked: object) -> list[RecordPage]:
    found = [record_page(topic, since={}, limit=limit, max_bytes=1 << 20, **asked)]  # type: ignore[arg-type]
    while found[-1].since is not None:
        found.append(
            record_page(topic, since=found[-1].since, limit=limit, max_bytes=1 << 20, **asked)  # type: ignore[arg-type]
        )
    return found[::-1]


def together(found: list[RecordPage]) -> list[Record]:
    return [record for page in found for record in page.records]


def check_counts(found: list[RecordPage]) -> None:
    total = len(together(found))
    newer = 0
    for page in found:
        assert (page.total, page.newer) == (total, newer)
        newer += len(page.records)


@pytest.mark.parametrize("key", [None, b"c", b"nobody's"])
@pytest.mark.parametrize("partition", [None, 1])
def test_pages_hold_every_record_once_by_time_with_true_counts(
    log: Log, monkeypatch: pytest.MonkeyPatch, partition: int | None, key: bytes | None
) -> None:
    monkeypatch.setattr(pages, "TAIL_OFFSETS", 3)
    topic = filled(log)
    wanted = [
        each
        for each in all_records(topic)
        if (key is None or each.key == key) and (partition is None or each.partition == partition)
    ]
    expected = sorted(wanted, key=lambda each: -each.timestamp_ms)
    for found in (down(topic, partition=partition, key=key), up(topic, partition=partition, key=key)):
        assert together(found) == expected
        check_counts(found)


def test_times_that_go_back_change_no_partition_s_order_and_lose_nothing(log: Log) -> None:
    topic = filled(log, ordered=False)
    everything = all_records(topic)
    for found in (down(topic), up(topic)):
        records = together(found)
        assert sorted(records, key=lambda each: (each.partition, each.offset)) == everything
        for partition in range(3):
            offsets = [each.offset for each in records if each.partition == partition]
            assert offsets == sorted(offsets, reverse=True)
        check_counts(found)


def test_a_page_up_to_an_offset_or_a_time_has_newer_and_older_ones(log: Log) -> None:
    topic = filled(log)
    everything = sorted(all_records(topic), key=lambda each: -each.timestamp_ms)
    middle = everything[30]
    page = record_page(topic, before=place_of_time(topic, middle.timestamp_ms), limit=5, max_bytes=1 << 20)
    assert list(page.records) == everything[30:35]
    assert (page.newer, page.total) == (30, len(everything))
    newer = record_page(topic, since=page.since, limit=5, max_bytes=1 << 20)
    assert list(newer.records) == everything[25:30]
    page = record_page(topic, before=place_of_offset(topic, 11), limit=100, max_bytes=1 << 20)
    assert list(page.records) == [each for each in everything if each.offset <= 11]


def test_a_page_stays_where_it_is_when_records_come(log: Log) -> None:
    topic = filled(log)
    second = down(topic)[0].before
    before = record_page(topic, before=second, limit=7, max_bytes=1 << 20)
    topic.append("a", "new")
    after = record_page(topic, before=second, limit=7, max_bytes=1 << 20)
    assert after.records == before.records
    assert after.newer == (before.newer or 0) + 1


def test_what_is_below_the_log_start_is_neither_shown_nor_counted(log: Log) -> None:
    topic = log.create_topic("t")
    for number in range(20):
        topic.append("k", str(number))
        if number == 12:
            topic.seal()
    for start in (5, 15):
        topic.delete_records({0: start})
        for asked in ({}, {"key": b"k"}):
            found = down(topic, **asked)
            assert [each.offset for each in together(found)] == list(range(19, start - 1, -1))
            check_counts(found)


def test_large_records_make_short_pages_that_say_that_there_are_more(log: Log) -> None:
    topic = log.create_topic("t")
    for _ in range(5):
        topic.append("k", "x" * 99)
    page = record_page(topic, limit=50, max_bytes=150)
    assert [each.offset for each in page.records] == [4, 3]
    assert (page.total, page.newer) == (5, 0)
    assert page.before == {0: 3}
    page = record_page(topic, since={0: 1}, limit=50, max_bytes=150)
    assert [each.offset for each in page.records] == [2, 1]
    assert (page.newer, page.before, page.since) == (2, {0: 1}, {0: 3})


def test_the_past_has_pages_too(log: Log) -> None:
    topic = filled(log)
    for snapshot in topic.history()[1:]:
        point = AsOf(snapshot_id=snapshot.id)
        then = [row for batch in topic.read_as_of(point) for row in batch.to_pylist()]
        for found in (down(topic, as_of=point), up(topic, as_of=point)):
            records = together(found)
            assert {(each.partition, each.offset) for each in records} == {
                (row["partition"], row["offset"]) for row in then
            }
            assert [each.timestamp_ms for each in records] == sorted(
                (each.timestamp_ms for each in records), reverse=True
            )
            check_counts(found)


def test_records_without_a_time_stand_beside_their_neighbours(log: Log) -> None:
    topic = log.create_topic("t")
    times = [5_000, -1, 6_000, -1, -1]
    topic.append_many([NewRecord(key=b"k", value=None, timestamp_ms=each) for each in times])
    for seals in (False, True):
        if seals:
            topic.seal()
        for found in (down(topic, limit=2), up(topic, limit=2)):
            assert [each.offset for each in together(found)] == [4, 3, 2, 1, 0]


def test_partitions_that_were_added_later_are_newer_than_a_place_and_the_past(log: Log) -> None:
    topic = filled(log, partitions=2)
    points = [AsOf(snapshot_id=each.id) for each in topic.history()[1:]]
    page = down(topic)[0]
    log.alter_topic("t", partitions=3)
    topic.append_many([NewRecord(key=b"a", value=b"new")], partition=2)
    for _ in range(2):
        for point in points:
            assert {each.partition for each in together(down(topic, as_of=point))} <= {0, 1}
        older = record_page(topic, before=page.before, limit=7, max_bytes=1 << 20)
        assert {each.partition for each in older.records} <= {0, 1}
        assert older.newer == 8
        check_counts(down(topic))
        topic.seal()


def test_damage_ends_a_page_and_keeps_nothing_back_that_comes_before_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t")
        for number in range(20):
            topic.append("k", f"value {number}")
    (file,) = (tmp_path / "data").rglob("wal.*.log")
    data = bytearray(file.read_bytes())
    data[data.index(b"value 8")] ^= 1
    file.write_bytes(data)
    with open_log(tmp_path / "data", clock, read_only=True) as log:
        topic = log.topic("t")
        page = record_page(topic, limit=7, max_bytes=1 << 20)
        assert [each.offset for each in page.records] == list(range(19, 12, -1))
        assert (page.total, page.newer) == (None, None)
        page = record_page(topic, before=page.before, limit=7, max_bytes=1 << 20)
        assert [each.offset for each in page.records] == [12, 11, 10, 9]
        with pytest.raises(CorruptError, match=r"offset 8"):
            record_page(topic, before=page.before, limit=7, max_bytes=1 << 20)
        page = record_page(topic, before={0: 8}, limit=7, max_bytes=1 << 20)
        assert [each.offset for each in page.records] == list(range(7, 0, -1))
        page = record_page(topic, since={}, limit=20, max_bytes=1 << 20)
        assert [each.offset for each in page.records] == list(range(7, -1, -1))
