"""Each rule on histories of a few operations: what is just legal, and what is not."""

from __future__ import annotations

import pytest
from tests.unit.testing.history.scene import COMPACT, Scene

from lastword.testing.history import Options, Point, RestartKind

DELETE = {"cleanup.policy": "delete", "retention.ms": "60000"}


# --------------------------------------------------------------------------------------- durable, gaps, tombstones


def test_a_superseded_record_may_be_missing_and_the_last_one_may_not() -> None:
    scene = Scene()
    scene.produce("alice=v1", "alice=v2")
    scene.fetch({1: "alice=v2"})
    scene.is_legal()
    scene.fetch({0: "alice=v1"})
    scene.violates("durable")


def test_nothing_is_superseded_without_compaction() -> None:
    scene = Scene(DELETE)
    scene.produce("alice=v1", "alice=v2")
    scene.fetch({1: "alice=v2"})
    scene.violates("durable")


def test_what_supersedes_must_have_been_sent() -> None:
    scene = Scene()
    scene.produce("alice=v1", "bob=v2")
    scene.fetch({1: "bob=v2"})
    scene.produce("alice=v3")
    scene.violates("durable")


def test_a_doubt_supersedes_too() -> None:
    scene = Scene()
    scene.produce("alice=v1", "bob=v2")
    scene.doubt("alice=v3")
    scene.fetch({1: "bob=v2"})
    scene.is_legal()


def test_a_doubt_ends_with_the_server() -> None:
    scene = Scene()
    scene.doubt("alice=v0")
    scene.restart()
    scene.produce("alice=v1", "bob=v2", at=0)
    scene.fetch({1: "bob=v2"})
    scene.violates("durable")


@pytest.mark.parametrize(
    ("strategy", "left", "lost"),
    [
        ("first", {0: "alice=v1"}, {1: "alice=v2"}),
        ("timestamp", {0: "alice=v1"}, {1: "alice=v2"}),
        ("offset", {1: "alice=v2"}, {0: "alice=v1"}),
    ],
)
def test_the_strategy_decides_who_is_superseded(
    strategy: str, left: dict[int, str], lost: dict[int, str]
) -> None:
    for shown in (left, lost):
        scene = Scene({**COMPACT, "compaction.strategy": strategy})
        scene.produce("alice=v1")
        scene.wait(-1000)
        scene.produce("alice=v2")
        scene.fetch(shown)
        scene.is_legal() if shown is left else scene.violates("durable")


def test_the_version_in_a_header_decides() -> None:
    for shown, legal in (({0: "alice=v1"}, True), ({1: "alice=v2"}, False)):
        scene = Scene(
            {
                **COMPACT,
                "compaction.strategy": "header",
                "compaction.strategy.header": "v",
                "compaction.strategy.header.format": "text",
            }
        )
        scene.produce("alice=v1", headers=(("v", b"2"),))
        scene.produce("alice=v2", headers=(("v", b"1"),))
        scene.fetch(shown, headers=(("v", b"2" if legal else b"1"),))
        scene.is_legal() if legal else scene.violates("durable")


def test_min_compaction_lag_protects_superseded_records() -> None:
    scene = Scene({**COMPACT, "min.compaction.lag.ms": "10000"})
    scene.produce("alice=v1", "alice=v2")
    scene.wait(10_000)
    scene.fetch({1: "alice=v2"})
    scene.is_legal()
    early = Scene({**COMPACT, "min.compaction.lag.ms": "10000"})
    early.produce("alice=v1", "alice=v2")
    early.wait(9_999)
    early.fetch({1: "alice=v2"})
    early.violates("durable")


def test_a_tombstone_stays_for_delete_retention() -> None:
    for waited, legal in ((59_999, False), (60_000, True)):
        scene = Scene()
        scene.produce("alice=v1", "alice")
        scene.wait(waited)
        scene.fetch({})
        scene.is_legal() if legal else scene.violates("tombstones")


def test_a_tombstone_by_its_own_clock_may_go_at_once() -> None:
    scene = Scene({**COMPACT, "tombstone.clock": "record"})
    scene.wait(-60_000)
    records = scene.records("alice")
    scene.wait(60_000)
    with scene.recorder.produce("users", 0, records, process="p") as op:
        op.acknowledged(0)
    scene.end = 1
    scene.fetch({})
    scene.is_legal()


def test_a_clock_that_jumps_forward_and_back_lets_a_tombstone_go() -> None:
    scene = Scene()
    scene.produce("alice")
    scene.wait(60_000)
    scene.positions(log_end=1)
    scene.wait(-60_000)
    scene.fetch({})
    scene.is_legal()


def test_retention_lets_go_by_age_and_compaction_does_not_move_the_log_start() -> None:
    for waited, legal in ((59_999, False), (60_000, True)):
        scene = Scene(DELETE)
        scene.produce("alice=v1")
        scene.wait(waited)
        scene.positions(log_start=1)
        scene.is_legal() if legal else scene.violates("durable")


def test_deleted_records_are_gone_below_the_offset_only() -> None:
    for offset, legal in ((1, True), (0, False)):
        scene = Scene()
        scene.produce("alice=v1", "bob=v2")
        scene.delete_before(offset)
        scene.fetch({1: "bob=v2"}, log_start=offset)
        scene.is_legal() if legal else scene.violates("durable")


def test_a_setting_counts_from_its_change() -> None:
    scene = Scene(DELETE)
    scene.produce("alice=v1", "alice=v2")
    scene.change(cleanup_policy="compact")
    scene.fetch({1: "alice=v2"})
    scene.is_legal()


def test_a_record_that_was_only_seen_stays() -> None:
    scene = Scene()
    scene.doubt("alice=v1")
    scene.fetch({0: "alice=v1"}, end=1, high_watermark=1)
    scene.fetch({}, end=1, high_watermark=1)
    scene.violates("gaps")


def test_a_record_is_there_once() -> None:
    scene = Scene()
    scene.doubt("alice=v1")
    scene.fetch({0: "alice=v1", 1: "alice=v1"}, end=2, high_watermark=2)
    scene.violates("durable")
    scene.is_legal(Options(at_least_once=True))


def test_an_acknowledged_record_is_at_its_offset() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    scene.fetch({0: "alice=v1", 1: "alice=v1"}, end=2, high_watermark=2)
    scene.violates("durable")


def test_order_of_acknowledgements_is_the_order_of_offsets() -> None:
    scene = Scene()
    scene.produce("alice=v1", at=1)
    scene.produce("bob=v2", at=0)
    scene.violates("durable")


def test_produces_beside_each_other_have_any_order() -> None:
    scene = Scene()
    with scene.recorder.produce("users", 0, scene.records("alice=v1"), process="p") as op:
        scene.produce("bob=v2", at=1)
        op.acknowledged(0)
    scene.is_legal()


def test_two_acknowledgements_of_one_offset() -> None:
    scene = Scene()
    scene.produce("alice=v1", at=0)
    scene.produce("bob=v2", at=0)
    scene.violates("durable")


def test_the_log_end_covers_what_was_acknowledged() -> None:
    scene = Scene()
    scene.produce("alice=v1", "bob=v2")
    scene.positions(log_end=1)
    scene.violates("durable")


def test_records_of_a_fetch_rise() -> None:
    scene = Scene()
    scene.produce("alice=v1", "bob=v2")
    scene.fetch({1: "bob=v2", 0: "alice=v1"})
    scene.violates("durable")


# ------------------------------------------------------------------------------------------------ refused, immutable


def test_what_was_refused_or_never_sent_is_never_seen() -> None:
    refused = Scene()
    refused.refuse("alice=v1")
    refused.fetch({0: "alice=v1"}, end=1, high_watermark=1)
    refused.violates("refused")
    unsent = Scene()
    unsent.fetch({0: "alice=v1"}, end=1, high_watermark=1)
    unsent.violates("refused")
    unsent.is_legal(Options(only_recorded=False))


def test_more_tombstones_than_were_sent() -> None:
    scene = Scene()
    scene.doubt("alice")
    scene.fetch({0: "alice"}, end=2, high_watermark=2)
    scene.is_legal()
    scene.fetch({0: "alice", 1: "alice"}, end=2, high_watermark=2)
    scene.violates("refused")


def test_an_offset_shows_the_same_record_to_everybody() -> None:
    scene = Scene()
    scene.doubt("alice=v1")
    scene.doubt("alice=v2")
    scene.fetch({0: "alice=v1"}, end=1, high_watermark=1)
    scene.fetch({0: "alice=v2"}, end=1, high_watermark=1)
    scene.violates("immutable")


def test_timestamps_and_headers_do_not_change() -> None:
    for changed in ({"timestamp_ms": 5}, {"headers": (("h", b""),)}):
        scene = Scene()
        scene.produce("alice=v1")
        scene.fetch({0: "alice=v1"}, **changed)  # type: ignore[arg-type]
        scene.violates("immutable")


def test_append_time_is_the_logs_own() -> None:
    scene = Scene({**COMPACT, "message.timestamp.type": "LogAppendTime"})
    scene.produce("alice=v1")
    scene.fetch({0: "alice=v1"}, timestamp_ms=5)
    scene.is_legal()
    scene.fetch({0: "alice=v1"}, timestamp_ms=6)
    scene.violates("immutable")


# -------------------------------------------------------------------------------------------------------- states


def test_a_state_has_the_last_word_of_each_key() -> None:
    scene = Scene()
    scene.produce("alice=v1", "alice=v2", "bob=v3", "bob")
    scene.state("alice=v2")
    scene.is_legal()
    for wrong in (("alice=v1",), (), ("alice=v2", "bob=v3")):
        again = Scene()
        again.produce("alice=v1", "alice=v2", "bob=v3", "bob")
        again.state(*wrong)
        again.violates("last-word")


def test_a_state_beside_a_produce_is_that_of_one_moment() -> None:
    for shown, legal in (
        (("alice=v1", "bob=v2"), True),
        (("alice=v3", "bob=v2"), True),
        (("alice=v3", "bob=v4"), True),
        (("alice=v1", "bob=v4"), False),
    ):
        scene = Scene()
        scene.produce("alice=v1", "bob=v2")
        with scene.recorder.produce("users", 0, scene.records("alice=v3", "bob=v4"), process="p") as op:
            scene.state(*shown)
            op.acknowledged(2)
        scene.is_legal() if legal else scene.violates("last-word")


def test_a_state_may_have_a_doubt() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    scene.doubt("alice=v2")
    scene.state("alice=v1")
    scene.state("alice=v2")
    scene.is_legal()


def test_a_full_read_within_delete_retention_has_no_ghost() -> None:
    for waited, legal in ((59_999, False), (60_000, True)):
        scene = Scene()
        scene.produce("alice=v1", "alice")
        scene.wait(60_000)
        scene.fetch({0: "alice=v1"}, session="s", end=1)
        scene.wait(waited)
        scene.fetch({}, session="s", start=1)
        scene.is_legal() if legal else scene.violates("full-read")


def test_the_past_does_not_change() -> None:
    scene = Scene()
    scene.produce("alice=v1", "alice=v2")
    point = Point(offsets={0: 0})
    scene.state("alice=v1", as_of=point)
    scene.travel(0, {0: "alice=v1"})
    scene.is_legal()
    scene.state("alice=v2", as_of=point)
    scene.violates("fixed-past")


def test_records_of_the_past_have_its_state() -> None:
    scene = Scene()
    scene.produce("alice=v1", "bob=v2", "alice=v3")
    scene.travel(1, {1: "bob=v2"})
    scene.violates("fixed-past")


def test_reads_of_one_point_agree_about_doubts() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    scene.doubt("alice=v2")
    scene.produce("bob=v3", at=2)
    point = Point(offsets={0: 1})
    scene.state("alice=v1", as_of=point)
    scene.is_legal()
    scene.state("alice=v2", as_of=point)
    scene.violates("fixed-past")


def test_a_point_in_time_is_the_end_before_the_first_younger_record() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    scene.wait(10)
    scene.produce("alice=v2")
    point = Point(time_ms=scene.clock.time_ms - 5)
    scene.state("alice=v1", as_of=point)
    scene.is_legal()
    scene.state("alice=v2", as_of=point)
    scene.violates("fixed-past")


def test_a_point_in_time_is_known_where_timestamps_do_not_rise() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    time_ms = scene.clock.time_ms
    scene.wait(10)
    scene.produce("bob=v2")
    scene.clock.time_ms = time_ms
    scene.produce("alice=v3")
    scene.doubt("carol=v4")
    scene.state("alice=v1", as_of=Point(time_ms=time_ms))
    scene.is_legal()
    scene.state("alice=v3", as_of=Point(time_ms=time_ms))
    scene.violates("fixed-past")


def test_a_record_in_doubt_may_be_the_first_younger_one() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    time_ms = scene.clock.time_ms
    scene.wait(10)
    scene.doubt("bob=v2")
    scene.clock.time_ms = time_ms
    scene.produce("alice=v3")
    scene.wait(10)
    scene.produce("carol=v4")
    for shown in ("alice=v1", "alice=v3"):
        scene.state(shown, as_of=Point(time_ms=time_ms))
    scene.is_legal()


def test_a_younger_record_below_the_log_start_does_not_mark_the_end() -> None:
    scene = Scene()
    time_ms = scene.clock.time_ms
    scene.wait(10)
    scene.produce("bob=v1")
    scene.clock.time_ms = time_ms
    scene.produce("alice=v2")
    scene.wait(10)
    scene.produce("alice=v3")
    scene.delete_before(1)
    scene.state("alice=v2", as_of=Point(time_ms=time_ms))
    scene.is_legal()


# ------------------------------------------------------------------------------------ no return, erased, positions


def test_what_is_gone_below_the_first_dirty_offset_does_not_return() -> None:
    for first_dirty, legal in ((0, True), (1, False)):
        scene = Scene()
        scene.produce("alice=v1", "alice=v2")
        scene.fetch({1: "alice=v2"}, first_dirty=first_dirty)
        scene.fetch({0: "alice=v1", 1: "alice=v2"})
        scene.is_legal() if legal else scene.violates("no-return")
        scene.violates("no-return", Options(gaps_never_close=True))


def test_a_session_that_began_earlier_may_keep_its_snapshot() -> None:
    scene = Scene()
    scene.produce("bob=v0", "alice=v1", "alice=v2")
    scene.fetch({0: "bob=v0"}, end=1, session="old")
    scene.fetch({0: "bob=v0", 2: "alice=v2"}, first_dirty=3)
    scene.fetch({1: "alice=v1", 2: "alice=v2"}, start=1, session="old")
    scene.is_legal()


def test_what_was_erased_is_not_read() -> None:
    scene = Scene()
    scene.produce("alice=v1", "bob=v2")
    scene.erase("alice")
    scene.fetch({1: "bob=v2"})
    scene.produce("alice=v3")
    scene.fetch({1: "bob=v2", 2: "alice=v3"})
    scene.state("alice=v3", "bob=v2")
    scene.is_legal()
    scene.fetch({0: "alice=v1", 1: "bob=v2", 2: "alice=v3"})
    scene.violates("erased")


@pytest.mark.parametrize("is_over", [False, True])
def test_an_erasure_in_doubt_may_take_later_records_unless_it_is_over(is_over: bool) -> None:
    scene = Scene()
    scene.produce("alice=v1")
    scene.erase("alice", in_doubt=True, is_over=is_over)
    scene.produce("alice=v2", "bob=v3")
    scene.fetch({2: "bob=v3"})
    if is_over:
        scene.violates("durable")
    else:
        scene.is_legal()


def test_a_state_after_an_erasure_has_nothing_of_before() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    scene.erase("alice")
    scene.state("alice=v1")
    scene.violates("erased")


@pytest.mark.parametrize("name", ["log_start", "first_dirty", "sealed_end", "log_end"])
def test_positions_do_not_go_back(name: str) -> None:
    scene = Scene()
    scene.delete_before(5)
    scene.positions(**{name: 5})
    scene.positions(**{name: 5})
    scene.is_legal()
    scene.positions(**{name: 4})
    scene.violates("positions")


def test_deleted_records_are_below_the_log_start() -> None:
    scene = Scene()
    scene.produce("alice=v1", "bob=v1", "carl=v1")
    scene.delete_before(2)
    scene.positions(log_start=2)
    scene.fetch({2: "carl=v1"}, start=2, log_start=2)
    scene.is_legal()
    scene = Scene()
    scene.produce("alice=v1", "bob=v1", "carl=v1")
    scene.delete_before(2)
    scene.positions(log_start=1)
    scene.violates("positions")


def test_deleted_records_are_not_read() -> None:
    for travels in (False, True):
        scene = Scene()
        scene.produce("alice=v1", "bob=v1")
        with scene.recorder.delete_records("users", 0, 1, process="admin") as op:
            # Beside the deletion it may be there still.
            scene.fetch({0: "alice=v1", 1: "bob=v1"}, log_start=None)
            op.ok()
        scene.is_legal()
        if travels:
            scene.travel(1, {0: "alice=v1", 1: "bob=v1"})
        else:
            scene.fetch({0: "alice=v1", 1: "bob=v1"}, log_start=None)
        scene.violates("positions")


def test_a_deletion_of_records_ends_with_its_topic() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    scene.delete_before(1)
    scene.delete()
    scene.create()
    scene.produce("alice=v2")
    scene.positions(log_start=0)
    scene.fetch({0: "alice=v2"})
    scene.is_legal()


# ------------------------------------------------------------------------------------------- lives, groups, crashes


def test_the_next_life_shows_nothing_of_an_earlier_one() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    scene.commit(7)
    scene.delete()
    scene.create()
    scene.produce("alice=v2")
    scene.fetch({0: "alice=v2"})
    scene.committed(None)
    scene.is_legal()
    scene.committed(7)
    scene.violates("next-life")
    scene.fetch({0: "alice=v2", 1: "alice=v1"}, end=2, high_watermark=2)
    scene.violates("next-life")


def test_a_read_beside_a_deletion_sees_either_life() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    with scene.recorder.fetch("users", 0, 0, process="c") as op:
        scene.delete()
        scene.create()
        op.returned(scene.seen({0: "alice=v1"}), 1)
    scene.is_legal()


def test_records_that_were_sent_beside_two_creations_may_each_be_at_an_offset() -> None:
    """Nobody can say which of the two is in the life between."""
    scene = Scene()
    with scene.recorder.produce("users", 0, scene.records("alice=v1"), process="p") as early:
        scene.delete()
        scene.create()
        early.acknowledged(0)
    scene.state("alice=v1")
    with scene.recorder.produce("users", 0, scene.records("bob=v1"), process="p") as late:
        scene.delete()
        scene.create()
        late.acknowledged(0)
    scene.is_legal()


def test_a_group_reads_its_last_commit() -> None:
    scene = Scene()
    scene.commit(1)
    scene.commit(2)
    scene.committed(2)
    scene.is_legal()
    for wrong in (1, 3, None):
        again = Scene()
        again.commit(1)
        again.commit(2)
        again.committed(wrong)
        again.violates("group-offsets")


def test_a_commit_in_doubt_may_be_the_last_one() -> None:
    scene = Scene()
    scene.commit(1)
    with scene.recorder.offset_commit("g", "users", 0, 2, process="c") as op:
        op.doubt()
    scene.committed(1)
    scene.committed(2)
    scene.is_legal()


def test_a_crash_loses_a_tail_only_without_group_sync() -> None:
    for sync, legal in (("none", True), ("group", False)):
        scene = Scene({**COMPACT, "wal.sync": sync})
        scene.produce("alice=v1", "bob=v2")
        scene.restart(RestartKind.POWER_LOSS)
        scene.produce("carol=v3", at=1)
        scene.fetch({0: "alice=v1", 1: "carol=v3"})
        scene.is_legal() if legal else scene.violates("durable")


def test_a_crash_loses_no_middle() -> None:
    scene = Scene({**COMPACT, "wal.sync": "none"})
    scene.produce("alice=v1", "bob=v2", "carol=v3")
    scene.restart(RestartKind.POWER_LOSS)
    scene.fetch({0: "alice=v1", 2: "carol=v3"})
    scene.violates("durable")


def test_a_takeover_loses_nothing_sealed() -> None:
    for sealed, legal in ((1, True), (2, False)):
        scene = Scene()
        scene.produce("alice=v1", "bob=v2")
        scene.positions(sealed_end=sealed)
        scene.take_over()
        scene.produce("carol=v3", at=1)
        scene.fetch({0: "alice=v1", 1: "carol=v3"})
        scene.is_legal() if legal else scene.violates("durable")
        scene.violates("durable", Options(takeover_loses_unsealed=False))


def test_a_restored_log_goes_on_from_its_backup() -> None:
    for kept, legal in (({0: "alice=v1"}, True), ({}, False)):
        scene = Scene()
        scene.produce("alice=v1")
        began, ended = scene.recorder.now(), scene.recorder.now()
        scene.produce("bob=v2")
        scene.restore(began, ended)
        scene.produce("carol=v3", at=1)
        scene.fetch({**kept, 1: "carol=v3"})
        scene.is_legal() if legal else scene.violates("durable")


def test_a_record_sent_after_the_backup_is_not_in_it() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    began, ended = scene.recorder.now(), scene.recorder.now()
    scene.produce("alice=v2")
    scene.restore(began, ended)
    scene.state("alice=v1")
    scene.is_legal()


def test_only_chosen_rules_are_reported() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    scene.fetch({})
    scene.is_legal(Options(rules=frozenset({"erased"})))
    assert list(scene.check(Options(rules=frozenset({"erased"}))).checked) == ["erased"]


def test_a_story_says_who_saw_what_and_when() -> None:
    scene = Scene()
    scene.produce("alice=v1")
    scene.fetch({}, session="s9")
    report = scene.violates("durable")
    (anomaly,) = [each for each in report.anomalies if each.rule == "durable"]
    from lastword.testing.history import story

    told = story(anomaly)
    assert "alice=v1 is missing at offset 0 of users/0" in told
    assert "p sent 1 record to users/0: alice=v1 at offset 0" in told
    assert "c read users/0 from 0 up to 1 (session s9) and did not see alice=v1 at offset 0" in told
    assert "00:16:40.000" in told
