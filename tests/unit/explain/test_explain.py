"""What explain says of single records: the rule, what they wait for, and until when. The clock proves the `until`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clock import DAY_MS, HOUR_MS, ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.logs import offsets, open_log, roll, wal_path

from lastword.errors import InvalidError, UnknownPartitionError
from lastword.explain import ExplainedRecord, Run
from lastword.explain.data import explanation_data
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.record import NewRecord

MINUTE_MS = 60_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with open_log(tmp_path / "data", clock, INLINE_CONFIG) as opened:
        yield opened


def compacted(log: Log, **config: object) -> Topic:
    own = {key.replace("_", "."): value for key, value in config.items()}
    return log.create_topic("t", config={"cleanup.policy": "compact", **own})


def explained(topic: Topic, *, run: Run = "asked for", seal: bool = True) -> dict[int, ExplainedRecord]:
    return {each.offset: each for each in topic.explain(limit=None, run=run, seal=seal).records}


def said(topic: Topic, offset: int, *, run: Run = "asked for", seal: bool = True) -> tuple[bool, str, object]:
    """Whether a record goes, by which rule, and what it waits for."""
    found = explained(topic, run=run, seal=seal)[offset]
    return found.goes, found.verdict.rule, found.verdict.waits_for


def compact(log: Log) -> None:
    assert not log.compact(["t"], seal=True, asked_for=True).problems


# ------------------------------------------------------------------------------------------------ where it is


def test_it_says_where_each_record_is(log: Log) -> None:
    topic = compacted(log)
    topic.append("a", "1")
    compact(log)
    topic.append("b", "1")
    topic.seal()
    topic.append("c", "1")
    roll(topic)
    topic.append("d", "1")
    found = explained(topic)
    kinds = ["sealed clean", "sealed dirty", "wal rolled", "wal active"]
    assert [found[offset].place.kind for offset in range(4)] == kinds
    assert found[0].place.file.endswith(".parquet")
    assert found[3].place.file == sorted(path.name for path in wal_path(topic).glob("*.log"))[-1]
    assert (found[2].place.first_offset, found[2].place.last_offset) == (2, 2)


def test_nothing_is_changed_or_left_behind(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    topic = compacted(log)
    topic.append("a", "1")
    before = {path: path.stat().st_size for path in log.path.rglob("*") if "leases" not in path.parts}
    topic.explain()
    assert {path: path.stat().st_size for path in log.path.rglob("*") if "leases" not in path.parts} == before
    assert list(scratch.iterdir()) == []


def test_another_process_may_ask_beside_the_writer(log: Log, clock: ManualClock) -> None:
    topic = compacted(log)
    topic.append("a", "1")
    topic.append("a", "2")
    with open_log(log.path, clock, INLINE_CONFIG, read_only=True) as other:
        assert said(other.topic("t"), 0) == (True, "beaten", None)


def test_damage_in_the_wal_is_told_and_the_rest_is_shown(log: Log) -> None:
    topic = compacted(log)
    topic.append("a", "1")
    topic.seal()
    topic.append("a", "2")
    roll(topic)
    path = sorted(wal_path(topic).glob("*.log"))[-2]
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    (found,) = topic.explain().partitions
    assert found.problem is not None and "damaged" in found.problem
    assert [each.offset for each in found.records] == [0]


# -------------------------------------------------------------------------------------------------- the rules


def test_a_newer_record_of_the_key_beats(log: Log) -> None:
    topic = compacted(log)
    for value in "123":
        topic.append("a", value)
    topic.append(None, "x")
    found = explained(topic)
    assert [found[offset].verdict.beaten_by for offset in range(4)] == [2, 2, None, None]
    assert [found[offset].goes for offset in range(4)] == [True, True, False, False]
    assert found[0].reason == "beaten by offset 2, a newer record of its key, when both are sealed"
    assert found[2].reason == "the newest record of its key"
    assert found[3].reason == "it has no key, so nothing replaces it"
    topic.seal()
    assert [each.offset for each in topic.explain().records] == [2, 3]


def test_what_sealing_leaves_out_goes_even_if_no_run_is_due(log: Log) -> None:
    topic = compacted(log, min_cleanable_dirty_ratio=1, tiering_lag_ms=1)
    topic.append("b", "0")
    topic.seal()
    log.compact(asked_for=True)
    topic.append("a", "1")
    topic.append("a", "2")
    log.clock.sleep_ms(10)
    found = explained(topic, run="worker")
    assert (found[1].goes, found[1].reason) == (
        True,
        "beaten by offset 2, a newer record of its key, when both are sealed",
    )
    assert not found[2].goes
    topic.seal_rolled()
    assert log.compact().partitions == ()
    assert offsets(topic.read()) == [0, 2]


def test_with_first_a_tombstone_behind_has_no_effect_and_that_is_said(log: Log) -> None:
    topic = compacted(log, compaction_strategy="first")
    topic.append("a", "1")
    topic.append("a", None)
    found = explained(topic)[1]
    assert (found.goes, found.verdict.beaten_by) == (True, 0)
    assert "has no effect" in found.reason


def test_versions_decide_where_the_strategy_says_so(log: Log, clock: ManualClock) -> None:
    topic = compacted(log, compaction_strategy="timestamp")
    topic.append("a", "1", timestamp_ms=clock.now_ms())
    topic.append("a", "2", timestamp_ms=clock.now_ms() - 5)
    found = explained(topic)
    assert (found[1].goes, found[1].verdict.beaten_by) == (True, 0)
    assert "later timestamp" in found[1].reason


def test_what_was_deleted_is_not_shown(log: Log) -> None:
    topic = compacted(log)
    topic.append("secret", "hush")
    topic.append("b", "1")
    topic.seal()
    topic.delete_records({0: 1})
    found = explained(topic)[0]
    assert (found.goes, found.verdict.rule, found.is_hidden) == (True, "below the log start", True)
    assert (found.key, found.value, found.value_bytes) == (None, None, None)
    assert topic.explain(key="secret").records == ()


def test_old_records_go_where_the_policy_has_delete(log: Log, clock: ManualClock) -> None:
    topic = compacted(log, cleanup_policy="compact,delete", retention_ms=HOUR_MS)
    topic.append("a", "1")
    topic.append(None, "x")
    clock.move(MINUTE_MS)
    topic.append("b", "1")
    found = explained(topic)
    assert {each.verdict.waits_for for each in found.values()} == {"retention.ms"}
    until_ms = found[0].verdict.until_ms
    assert until_ms is not None and until_ms == found[1].verdict.until_ms
    clock.move(until_ms - 1 - clock.now_ms())
    assert not explained(topic)[0].goes
    clock.move(1)
    assert [explained(topic)[offset].goes for offset in range(3)] == [True, True, False]
    assert said(topic, 1) == (True, "too old", None)


def test_without_compact_only_retention_takes_records(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "delete", "retention.ms": HOUR_MS})
    topic.append("a", "1")
    topic.append("a", "2")
    (found,) = topic.explain().partitions
    assert found.due is None and found.not_due is not None and "not compacted" in found.not_due
    first = found.records[0]
    assert (first.goes, first.verdict.rule, first.verdict.beaten_by) == (False, "not compacted", None)
    assert first.verdict.until_ms == found.records[1].timestamp_ms + HOUR_MS + 1


# ------------------------------------------------------------------------------------------------- for now


def test_a_tombstone_waits_for_its_deadline_and_says_which(log: Log, clock: ManualClock) -> None:
    topic = compacted(log, delete_retention_ms=HOUR_MS)
    topic.append("a", "1")
    topic.append("a", None)
    first = explained(topic)[1]
    assert (first.goes, first.verdict.waits_for) == (False, "first run")
    assert first.verdict.until_ms == clock.now_ms() + HOUR_MS
    compact(log)
    waiting = explained(topic)[1]
    assert (waiting.goes, waiting.verdict.waits_for) == (False, "expiry")
    assert waiting.verdict.until_ms == first.verdict.until_ms
    clock.move(HOUR_MS - 1)
    assert said(topic, 1) == (False, "tombstone", "expiry")
    clock.move(1)
    assert said(topic, 1) == (True, "expired tombstone", None)


def test_by_the_records_clock_it_expires_by_its_own_timestamp(log: Log, clock: ManualClock) -> None:
    topic = compacted(log, delete_retention_ms=HOUR_MS, tombstone_clock="record")
    topic.append("a", None)
    stamp = clock.now_ms()
    clock.move(2 * HOUR_MS)
    lingering = explained(topic)[0]
    assert (lingering.goes, lingering.verdict.waits_for) == (False, "first run")
    topic.append("b", None)
    compact(log)
    assert said(topic, 0) == (True, "expired tombstone", None)
    waiting = explained(topic)[1].verdict
    assert (waiting.waits_for, waiting.until_ms) == ("expiry", stamp + 3 * HOUR_MS)


def test_a_tombstone_waits_for_readers_by_name_and_not_for_ever(log: Log, clock: ManualClock) -> None:
    topic = compacted(log, delete_retention_ms=0)
    topic.append("a", "1")
    topic.append("a", None)
    with topic.reader("slow") as slow, topic.reader("fast") as fast:
        fast.seek(0, 2)
        slow.commit()
        fast.commit()
    compact(log)
    found = explained(topic)[1]
    assert (found.goes, found.verdict.waits_for) == (False, "reader")
    assert [(each.reader, each.position) for each in found.verdict.readers] == [("slow", 0)]
    assert "'slow' is at 0" in found.reason
    until_ms = found.verdict.until_ms
    assert until_ms == clock.now_ms() + log.config.reader_hold_max_ms + 1
    with topic.reader("slow") as slow:
        slow.seek(0, 2)
        slow.commit()
    assert said(topic, 1) == (True, "expired tombstone", None)


def test_a_tombstone_waits_where_a_late_older_version_may_come(log: Log, clock: ManualClock) -> None:
    topic = compacted(
        log, compaction_strategy="timestamp", delete_retention_ms=0, min_compaction_lag_ms=HOUR_MS
    )
    topic.append("a", None, timestamp_ms=clock.now_ms() - 2 * HOUR_MS)
    compact(log)
    topic.append("b", "1")
    topic.seal()
    assert said(topic, 0) == (False, "tombstone", "late records")


def test_min_compaction_lag_holds_a_segment_and_all_behind_it(log: Log, clock: ManualClock) -> None:
    topic = compacted(log, min_compaction_lag_ms=HOUR_MS)
    topic.append("a", "1")
    topic.append("a", "2", timestamp_ms=clock.now_ms() + MINUTE_MS)
    topic.seal()
    topic.append("a", "3", timestamp_ms=clock.now_ms() - DAY_MS)
    topic.seal()
    until_ms = clock.now_ms() + MINUTE_MS + HOUR_MS
    (found,) = topic.explain().partitions
    assert found.not_due is not None and "min.compaction.lag.ms" in found.not_due
    for each in found.records:
        verdict = each.verdict
        assert (each.goes, verdict.rule, verdict.waits_for) == (
            False,
            "not in the run",
            "min.compaction.lag.ms",
        )
        assert verdict.until_ms == until_ms
    assert [each.verdict.beaten_by for each in found.records] == [2, 2, None]
    clock.move(until_ms - 1 - clock.now_ms())
    assert not explained(topic)[0].goes
    clock.move(1)
    assert [explained(topic)[offset].goes for offset in range(3)] == [True, True, False]


def test_what_beats_it_may_not_be_compactable_yet(log: Log, clock: ManualClock) -> None:
    topic = compacted(log, min_compaction_lag_ms=HOUR_MS)
    topic.append("a", "1")
    topic.seal()
    clock.move(2 * HOUR_MS)
    topic.append("a", "2")
    found = explained(topic)[0]
    assert (found.goes, found.verdict.rule, found.verdict.beaten_by) == (False, "last word", 1)
    assert (found.verdict.waits_for, found.verdict.until_ms) == ("newer record", clock.now_ms() + HOUR_MS)
    clock.move(HOUR_MS)
    assert said(topic, 0) == (True, "beaten", None)


def test_a_record_that_is_only_marked_goes_like_one_that_is_rewritten(log: Log) -> None:
    topic = compacted(log, min_rewrite_ratio=1, segment_bytes=1 << 21)
    topic.append_many(
        [NewRecord(key=b"k%d" % number, value=random.randbytes(40_000)) for number in range(40)]
    )
    compact(log)
    topic.append("k0", "2")
    assert said(topic, 0) == (True, "beaten", None)
    compact(log)
    assert sorted(explained(topic)) == list(range(1, 41))
    assert topic.table.plan(topic.table.snapshot())[0].marks is not None


# --------------------------------------------------------------------------------------------- which run


def test_a_run_that_does_not_seal_leaves_the_wal_alone(log: Log) -> None:
    topic = compacted(log)
    topic.append("a", "1")
    topic.seal()
    topic.append("a", "2")
    assert said(topic, 0, seal=False) == (False, "last word", "newer record")
    assert said(topic, 1, seal=False) == (False, "not in the run", "sealing")
    assert said(topic, 0) == (True, "beaten", None)


def test_the_worker_seals_and_compacts_what_is_due(log: Log, clock: ManualClock) -> None:
    topic = compacted(log, tiering_lag_ms=MINUTE_MS)
    topic.append("a", "1")
    waiting = explained(topic, run="worker")[0].verdict
    assert (waiting.waits_for, waiting.until_ms) == ("sealing", clock.now_ms() + MINUTE_MS)
    clock.move(MINUTE_MS)
    assert said(topic, 0, run="worker") == (False, "last word", None)


def test_below_the_dirty_ratio_there_is_no_run(log: Log) -> None:
    topic = compacted(log, min_cleanable_dirty_ratio=0.9)
    topic.append_many([NewRecord(key=b"k%d" % number, value=b"x" * 100) for number in range(20)])
    compact(log)
    topic.append("k0", "2")
    topic.seal()
    (found,) = topic.explain(run="worker").partitions
    assert found.due is None
    assert found.not_due is not None and "is below min.cleanable.dirty.ratio=0.9" in found.not_due
    assert said(topic, 0, run="worker") == (False, "beaten", "a run")
    assert said(topic, 0) == (True, "beaten", None)


def test_with_nothing_dirty_there_is_a_run_only_by_force(log: Log) -> None:
    topic = compacted(log)
    topic.append("a", "1")
    compact(log)
    assert topic.explain().partitions[0].due is None
    assert topic.explain(run="forced").partitions[0].due == "asked for"


# ------------------------------------------------------------------------------------------ which records


def test_some_records_at_a_time_over_all_partitions(log: Log) -> None:
    topic = log.create_topic("t", partitions=3, config={"cleanup.policy": "compact"})
    for partition in range(3):
        for number in range(4):
            topic.append("k", str(number), partition=partition)
    seen: list[tuple[int, int]] = []
    where: tuple[int, int] | None = (0, 0)
    while where is not None:
        found = topic.explain(partition=where[0], from_offset=where[1], limit=3)
        seen += [(each.partition, each.offset) for each in found.records]
        where = found.next or ((where[0] + 1, 0) if where[0] < 2 else None)
    assert seen == [(partition, number) for partition in range(3) for number in range(4)]
    assert topic.explain(limit=4).next == (1, 0)
    assert topic.explain(limit=6).next == (1, 2)
    assert topic.explain(limit=12).next is None


def test_a_key_is_looked_for_alone_and_judged_against_all_its_records(log: Log) -> None:
    topic = compacted(log, compaction_at_seal=False)
    for number in range(30):
        topic.append(f"k{number % 3}", str(number))
        if number % 10 == 9:
            topic.seal()
    found = topic.explain(key="k1", limit=2, from_offset=5)
    assert [(each.offset, each.verdict.beaten_by) for each in found.records] == [(7, 28), (10, 28)]
    assert found.next == (0, 13)
    assert {each.key for each in topic.explain(key=b"k1").records} == {b"k1"}


def test_what_can_not_be_asked_is_said(log: Log) -> None:
    topic = compacted(log)
    assert topic.explain().records == ()
    with pytest.raises(InvalidError, match="at least 1"):
        topic.explain(limit=0)
    with pytest.raises(InvalidError, match="at least 0"):
        topic.explain(from_offset=-1)
    with pytest.raises(UnknownPartitionError, match="no partition 7"):
        topic.explain(partition=7)


def test_as_data_it_is_json_and_long_values_are_cut_between_characters(log: Log) -> None:
    topic = compacted(log)
    topic.append("a", "x" + "ü" * 1000)
    topic.append(b"\xff\xfe", b"\xff" * 1000)
    records = json.loads(json.dumps(explanation_data(topic.explain())))["partitions"][0]["records"]
    assert (records[0]["value"], records[0]["value_bytes"]) == ("x" + "ü" * 127, 2001)
    assert "key_base64" in records[1] and "value_base64" in records[1]
