"""Views of the past: exact as long as a snapshot from before the compaction in between is kept, else an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.clock import ManualClock

import lastword
from lastword.errors import InvalidError, UnavailableError, UnknownTopicError
from lastword.log import Log
from lastword.reading.timetravel import AsOf
from lastword.record import NewRecord, Record
from lastword.record_json import parse_time
from lastword.segments.model import Snapshot
from lastword.segments.table import SegmentTable

INLINE = {"compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    config = {**INLINE, "snapshot.retention.ms": 60_000, "collect.grace.ms": 0}
    with lastword.open(tmp_path / "data", config=config, clock=clock) as opened:
        yield opened


@pytest.fixture
def written(log: Log, clock: ManualClock) -> list[Record]:
    """Thirty records in three segments and ten in the tail, a second apart."""
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "compaction.at.seal": False})
    for number in range(40):
        topic.append_many(
            [NewRecord(key=b"k%d" % (number % 4), value=None if number == 21 else b"%d" % number)]
        )
        clock.sleep_ms(1000)
        if number in (9, 19, 29):
            topic.seal()
    return list(topic.read())


def offsets(log: Log, as_of: AsOf) -> list[int]:
    return [
        offset
        for records in log.topic("t").read_as_of(as_of)
        for offset in records.column("offset").to_pylist()
    ]


def state(log: Log, as_of: AsOf | None = None) -> dict[bytes, bytes]:
    rows = log.topic("t").state(as_of=as_of).to_pylist()
    return {row["key"]: row["value"] for row in rows}


def model(records: list[Record]) -> dict[bytes, bytes]:
    found = {record.key: record.value for record in records}
    return {key: value for key, value in found.items() if key is not None and value is not None}


def test_as_of_any_offset_before_compaction_every_record_is_shown(log: Log, written: list[Record]) -> None:
    for offset in (0, 5, 9, 10, 21, 25, 29, 30, 39):
        assert offsets(log, AsOf(offset=offset)) == list(range(offset + 1))
        assert state(log, AsOf(offset=offset)) == model(written[: offset + 1])


def test_after_compaction_the_state_is_exact_and_what_it_did_not_overtake_is_shown_whole(
    log: Log, written: list[Record]
) -> None:
    log.compact(asked_for=True)
    assert len(list(log.topic("t").read())) == 14
    for offset in (0, 5, 9, 10, 21, 25, 28):
        assert offsets(log, AsOf(offset=offset)) == list(range(offset + 1))
    for offset in (29, 30, 39):
        assert offsets(log, AsOf(offset=offset)) == list(range(26, offset + 1))
    for offset in range(40):
        assert state(log, AsOf(offset=offset)) == model(written[: offset + 1])


def test_as_of_a_time_is_as_of_the_last_record_that_is_not_younger(log: Log, written: list[Record]) -> None:
    for number in (3, 17, 34):
        time_ms = written[number].timestamp_ms
        assert offsets(log, AsOf(time_ms=time_ms)) == list(range(number + 1))
        assert offsets(log, AsOf(time_ms=time_ms + 999)) == list(range(number + 1))
        assert state(log, AsOf(time_ms=time_ms)) == model(written[: number + 1])
    assert offsets(log, AsOf(time_ms=written[0].timestamp_ms - 1)) == []


def test_as_of_a_time_is_the_same_after_a_compaction_has_taken_the_record_that_marks_it(
    log: Log, written: list[Record]
) -> None:
    before = {record.timestamp_ms: offsets(log, AsOf(time_ms=record.timestamp_ms)) for record in written[:29]}
    log.compact(asked_for=True)
    for time_ms, shown in before.items():
        assert offsets(log, AsOf(time_ms=time_ms)) == shown
    assert offsets(log, AsOf(time_ms=written[29].timestamp_ms)) == [26, 27, 28, 29]
    for record in written:
        expected = model(written[: record.offset + 1])
        assert state(log, AsOf(time_ms=record.timestamp_ms)) == expected


def test_past_the_kept_snapshots_the_error_names_the_oldest_time(
    log: Log, clock: ManualClock, written: list[Record]
) -> None:
    log.compact(asked_for=True)
    clock.sleep_ms(120_000)
    log.run_retention()
    oldest_ms = written[29].timestamp_ms
    with pytest.raises(InvalidError, match=r"compacted beyond .*oldest time.*exactly is (\S+Z)\.") as caught:
        offsets(log, AsOf(time_ms=oldest_ms - 1))
    assert parse_time(str(caught.value).split()[-1].rstrip(".")) == oldest_ms
    assert state(log, AsOf(time_ms=oldest_ms)) == model(written[:30])
    assert offsets(log, AsOf(time_ms=written[33].timestamp_ms)) == [26, 27, 28, 29, 30, 31, 32, 33]


def test_a_younger_record_that_compaction_took_still_marks_its_time(log: Log, clock: ManualClock) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "compaction.at.seal": False})
    began_ms = clock.now_ms()
    topic.append("a", "1", timestamp_ms=began_ms)
    topic.append("b", "ahead", timestamp_ms=began_ms + 1_800_000)
    topic.append("c", "3", timestamp_ms=began_ms + 1000)
    topic.append("b", "4", timestamp_ms=began_ms + 2000)
    topic.seal()
    log.compact(asked_for=True)
    assert offsets(log, AsOf(time_ms=began_ms + 2000)) == [0]
    clock.sleep_ms(120_000)
    log.run_retention()
    with pytest.raises(InvalidError, match="oldest time that can be shown"):
        offsets(log, AsOf(time_ms=began_ms + 2000))
    assert offsets(log, AsOf(time_ms=began_ms + 1_800_000)) == [0, 2, 3]


def test_a_table_compacted_by_a_version_that_kept_no_times_is_not_guessed_at(
    log: Log, clock: ManualClock, written: list[Record]
) -> None:
    log.compact(asked_for=True)
    clock.sleep_ms(120_000)
    log.run_retention()
    table = log.topic("t").table
    base = table.snapshot()
    table.append(base, [], {0: replace(base.positions[0], clean_max_timestamp_ms=None)}, operation="seal")
    clock.sleep_ms(120_000)
    log.run_retention()
    with pytest.raises(InvalidError, match="is not known; as of an offset or a snapshot"):
        offsets(log, AsOf(time_ms=written[39].timestamp_ms))
    log.compact(asked_for=True, seal=True)
    assert table.snapshot().positions[0].clean_max_timestamp_ms is None
    assert state(log, AsOf(offset=39)) == model(written)


def test_where_neither_snapshot_nor_wal_has_what_follows_the_error_names_what_can_be_shown(
    tmp_path: Path, clock: ManualClock
) -> None:
    config = {**INLINE, "snapshot.retention.ms": 0, "collect.grace.ms": 0, "local.retention.ms": 0}
    with lastword.open(tmp_path / "other", config=config, clock=clock) as log:
        topic = log.create_topic("t", config={"cleanup.policy": "compact", "compaction.at.seal": False})
        began_ms = clock.now_ms()
        for number in range(4):
            topic.append("k", str(number))
            clock.sleep_ms(1000)
            if number == 1:
                topic.seal()
                first = topic.partition_reader(0)
                pin = first.pin(first.table.snapshot())
        with pin:
            topic.seal()
            log.compact(asked_for=True)
            clock.sleep_ms(1000)
            log.run_retention()
            assert len(topic.history()) == 2
            assert offsets(log, AsOf(offset=1)) == [0, 1]
            with pytest.raises(InvalidError, match=r"ends at offset 1.*The next offset .* is 3\."):
                offsets(log, AsOf(offset=2))
            with pytest.raises(InvalidError, match=r"ends at offset 1.*The oldest time"):
                offsets(log, AsOf(time_ms=began_ms + 2000))
        first.close()


@pytest.mark.parametrize("at_an_offset", [True, False])
def test_records_that_are_sealed_while_their_wal_is_looked_for_are_found(
    log: Log, written: list[Record], clock: ManualClock, monkeypatch: pytest.MonkeyPatch, at_an_offset: bool
) -> None:
    """The snapshots are listed first, the WAL is looked at after that. In between it is sealed, and deleted."""
    log.alter_topic("t", set_config={"local.retention.ms": "0"})
    history = SegmentTable.history

    def listed_before_it_is_sealed(table: SegmentTable) -> list[Snapshot]:
        found = history(table)
        monkeypatch.setattr(SegmentTable, "history", history)
        log.topic("t").seal()
        log.run_retention(steps=["delete"])
        return found

    monkeypatch.setattr(SegmentTable, "history", listed_before_it_is_sealed)
    as_of = AsOf(offset=35) if at_an_offset else AsOf(time_ms=written[35].timestamp_ms)
    assert offsets(log, as_of) == list(range(36))


@pytest.mark.parametrize("read_before", [0, 1, 3], ids=["nothing", "a segment", "all segments"])
def test_records_that_are_sealed_while_the_past_is_read_are_read_from_there(
    log: Log, written: list[Record], read_before: int
) -> None:
    """The tail of the view is sealed, and its WAL is deleted, before the reader comes to it."""
    log.alter_topic("t", set_config={"local.retention.ms": "0"})
    rows = log.topic("t").read_as_of(AsOf(offset=35))
    found = [next(rows) for _ in range(read_before)]
    log.topic("t").seal()
    log.run_retention(steps=["delete"])
    assert [at for each in [*found, *rows] for at in each.column("offset").to_pylist()] == list(range(36))


def test_records_that_are_compacted_while_the_past_is_read_end_it_with_an_error(
    log: Log, written: list[Record], clock: ManualClock
) -> None:
    """What was read so far has records that the rest no longer tells to be gone."""
    log.alter_topic("t", set_config={"local.retention.ms": "0", "delete.retention.ms": "0"})
    rows = log.topic("t").read_as_of(AsOf(offset=39))
    assert len(next(rows)) == 10
    log.compact(asked_for=True, seal=True)
    log.run_retention(steps=["delete"])
    with pytest.raises(UnavailableError, match="compacted while its past was read; read it again"):
        list(rows)
    assert len(offsets(log, AsOf(offset=39))) < 40


def test_a_topic_that_is_deleted_while_its_past_is_read_is_unknown(log: Log, written: list[Record]) -> None:
    rows = log.topic("t").read_as_of(AsOf(offset=35))
    next(rows)
    log.delete_topic("t")
    with pytest.raises(UnknownTopicError):
        list(rows)


def test_as_of_a_snapshot_is_what_it_holds(log: Log, written: list[Record]) -> None:
    log.compact(asked_for=True)
    history = log.topic("t").history()
    assert [each.operation for each in history] == ["create", "seal", "seal", "seal", "compact"]
    assert offsets(log, AsOf(snapshot_id=history[2].id)) == list(range(20))
    assert offsets(log, AsOf(snapshot_id=history[4].id)) == [26, 27, 28, 29]
    with pytest.raises(InvalidError, match="no snapshot 12345"):
        offsets(log, AsOf(snapshot_id=12345))


def test_past_the_kept_snapshots_the_error_names_the_oldest_offset(
    log: Log, clock: ManualClock, written: list[Record]
) -> None:
    log.compact(asked_for=True)
    clock.sleep_ms(120_000)
    log.run_retention()
    with pytest.raises(InvalidError, match=r"beyond offset 5.*next offset that can be shown exactly is 29"):
        offsets(log, AsOf(offset=5))
    assert state(log, AsOf(offset=29)) == model(written[:30])
    assert state(log, AsOf(offset=33)) == model(written[:34])


def test_no_view_goes_below_the_log_start(log: Log, written: list[Record]) -> None:
    log.topic("t").delete_records({0: 12})
    assert offsets(log, AsOf(offset=20)) == list(range(12, 21))
    with pytest.raises(InvalidError, match="out of range"):
        offsets(log, AsOf(offset=5))
    with pytest.raises(InvalidError, match="out of range"):
        offsets(log, AsOf(offset=40))


@pytest.mark.parametrize("given", [{}, {"offset": 1, "time_ms": 2}])
def test_one_point_and_only_one(given: dict[str, int]) -> None:
    with pytest.raises(InvalidError, match="exactly one"):
        AsOf(**given)


# ------------------------------------------------------------------------------- compacted while it was sealed


def compacted_at_seal(log: Log, clock: ManualClock) -> None:
    """Three rounds of ten records with four keys, a second apart."""
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "local.retention.ms": 0})
    for number in range(30):
        topic.append(f"k{number % 4}", str(number))
        clock.sleep_ms(1000)
        if number % 10 == 9:
            assert topic.seal().beaten == 6


def test_a_view_that_ends_inside_a_round_is_read_from_the_wal(log: Log, clock: ManualClock) -> None:
    began_ms = clock.now_ms()
    compacted_at_seal(log, clock)
    for last in range(30):
        whole = 10 * (last // 10)
        # Of earlier rounds only the winners are left.
        before = [first + each for first in range(0, whole, 10) for each in (6, 7, 8, 9)]
        expected = (
            [*before, *range(whole, last + 1)] if last % 10 != 9 else [*before, *range(whole + 6, last + 1)]
        )
        assert offsets(log, AsOf(offset=last)) == expected
        newest = {b"k%d" % (number % 4): b"%d" % number for number in range(last + 1)}
        assert state(log, AsOf(offset=last)) == newest
        assert state(log, AsOf(time_ms=began_ms + 1000 * last)) == newest


def test_without_the_wal_it_is_an_error_that_names_what_can_be_shown(log: Log, clock: ManualClock) -> None:
    began_ms = clock.now_ms()
    compacted_at_seal(log, clock)
    clock.move(120_000)
    log.run_retention()
    for last in range(30):
        point = AsOf(offset=last)
        if last % 10 == 9:
            assert state(log, point)[b"k%d" % (last % 4)] == b"%d" % last
            continue
        with pytest.raises(
            InvalidError, match=f"next offset that can be shown exactly is {10 * (last // 10) + 9}"
        ):
            offsets(log, point)
    with pytest.raises(InvalidError, match="A time that can be shown exactly is"):
        offsets(log, AsOf(time_ms=began_ms + 4000))
    assert state(log, AsOf(time_ms=began_ms + 9000))[b"k1"] == b"9"


def test_the_time_that_is_named_can_be_shown_where_rounds_overlap(log: Log, clock: ManualClock) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "local.retention.ms": 0})
    began_ms = clock.now_ms()
    for times in ((0, 1000), (900, 2000), (1900, 3000)):
        topic.append_many([NewRecord(key=b"a", value=b"v", timestamp_ms=began_ms + each) for each in times])
        topic.seal()
    clock.move(3_600_000)
    log.run_retention()
    with pytest.raises(InvalidError) as caught:
        offsets(log, AsOf(time_ms=began_ms + 500))
    named = str(caught.value).rpartition(" is ")[2].removesuffix(".")
    assert offsets(log, AsOf(time_ms=parse_time(named))) == [1, 3, 5]
