"""Views of the past: exact as long as a snapshot from before the compaction in between is kept, else an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clock import ManualClock

import lastword
from lastword.errors import InvalidError
from lastword.log import Log
from lastword.record import NewRecord, Record
from lastword.timetravel import AsOf

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
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
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
    with pytest.raises(InvalidError, match=r"beyond offset 5.*oldest offset that can be shown exactly is 29"):
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
    with pytest.raises(InvalidError, match="only one"):
        AsOf(**given)
