"""When a tombstone may go: tables of positions, settings and times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.logs import settings

from lastword.compaction import rules as rule
from lastword.compaction.holds import ReaderPosition, Readership, Uptime
from lastword.compaction.rules import Expiring, OldestTombstones, ReaderHold, Rules
from lastword.compaction.strategy import LastWord
from lastword.config import TopicSettings
from lastword.segments.model import Deadline, LastRun, Positions

MINUTE = 60_000


def compacted(**own: object) -> TopicSettings:
    return settings(**{"cleanup_policy": "compact", "delete_retention_ms": 100, **own})


def expiring(
    at: Positions, now_ms: int, own: TopicSettings | None = None, **given: Any
) -> list[tuple[int, int]]:
    """Ranges in which a tombstone may go now, if it is due."""
    options = {
        "compactable_end": at.first_dirty,
        "all_compactable": True,
        "seen": (now_ms, at.first_dirty),
        "hold": ReaderHold(),
        **given,
    }
    found = rule.expiring(own or compacted(), at, now_ms=now_ms, **options)
    return [(each.start, each.end) for each in found if each.due]


def next_deadlines(
    at: Positions,
    end: int,
    now_ms: int,
    own: TopicSettings | None = None,
    *,
    rules: Rules | None = None,
    tombstones: bool = True,
    left: OldestTombstones = rule.NO_TOMBSTONES,
) -> tuple[Deadline, ...]:
    own = own or compacted()
    return rule.next_deadlines(
        own,
        at,
        rules or a_rule(),
        compactable_end=end,
        dirty_tombstones=tombstones,
        left_behind=left,
        now_ms=now_ms,
    )


def a_rule(*ranges: Expiring, held_from: int = 1 << 60) -> Rules:
    return Rules(
        strategy=LastWord(),
        log_start=0,
        expiring=ranges,
        retention_before_ms=None,
        held_from=held_from,
    )


# --------------------------------------------------------------------------------- the compaction clock


def test_the_first_run_sets_a_deadline_and_no_later_one_moves_it() -> None:
    first = next_deadlines(Positions(sealed_end=10), 10, 1000)
    assert first == (Deadline(0, 10, 1100),)
    second = next_deadlines(Positions(first_dirty=10, sealed_end=15, deadlines=first), 15, 1050)
    assert second == (Deadline(0, 10, 1100), Deadline(10, 15, 1150))


def test_a_run_that_passes_no_tombstone_needs_no_deadline() -> None:
    assert next_deadlines(Positions(sealed_end=10), 10, 1000, tombstones=False) == ()
    assert next_deadlines(Positions(first_dirty=10, sealed_end=10), 10, 1000) == ()


def test_what_was_freed_needs_no_deadline_any_more() -> None:
    at = Positions(first_dirty=20, sealed_end=20, deadlines=(Deadline(0, 10, 1100), Deadline(10, 20, 1300)))
    assert next_deadlines(at, 20, 1200, rules=a_rule(Expiring(start=0, end=10))) == (Deadline(10, 20, 1300),)
    # A reader held the rest.
    assert next_deadlines(at, 20, 1200, rules=a_rule(Expiring(start=0, end=4))) == (
        Deadline(4, 10, 1100),
        Deadline(10, 20, 1300),
    )


def test_below_the_log_start_nothing_is_remembered() -> None:
    at = Positions(
        log_start=12, first_dirty=20, sealed_end=20, deadlines=(Deadline(0, 10, 1100), Deadline(10, 20, 1300))
    )
    assert next_deadlines(at, 20, 1200) == (Deadline(12, 20, 1300),)


def test_neighbours_with_the_same_deadline_are_one() -> None:
    at = Positions(first_dirty=10, sealed_end=20, deadlines=(Deadline(0, 10, 1100),))
    assert next_deadlines(at, 20, 1000) == (Deadline(0, 20, 1100),)


@pytest.mark.parametrize(("now_ms", "expected"), [(1099, []), (1100, [(0, 10)]), (1101, [(0, 10)])])
def test_a_tombstone_is_expired_at_its_deadline(now_ms: int, expected: list[tuple[int, int]]) -> None:
    at = Positions(first_dirty=10, sealed_end=10, deadlines=(Deadline(0, 10, 1100),))
    assert expiring(at, now_ms) == expected


def test_what_no_run_has_passed_lingers() -> None:
    at = Positions(first_dirty=0, sealed_end=10)
    assert expiring(at, 10**9, compactable_end=10) == []
    by_record = compacted(tombstone_clock="record")
    assert expiring(at, 10**9, by_record, compactable_end=10) == []


def test_only_what_this_run_looks_at_may_go() -> None:
    """min.compaction.lag.ms was raised, and clean segments are held back."""
    at = Positions(first_dirty=10, sealed_end=10, deadlines=(Deadline(0, 10, 1100),))
    assert expiring(at, 2000, compactable_end=6, all_compactable=False) == [(0, 6)]
    left = next_deadlines(at, 6, 2000, rules=a_rule(Expiring(start=0, end=6)))
    assert left == (Deadline(6, 10, 1100),)


# ------------------------------------------------------------------------------------- the record clock


def test_by_the_record_clock_its_own_timestamp_counts() -> None:
    own = compacted(tombstone_clock="record")
    at = Positions(first_dirty=10, sealed_end=10, deadlines=(Deadline(0, 10, 600),))
    rules = rule.rules_for(
        own, at, compactable_end=10, all_compactable=True, seen=(1000, 10), hold=ReaderHold(), now_ms=1000
    )
    gone = rule.drops_tombstones(rules, np.array([1, 2, 3, 10]), np.array([900, 901, -1, 0]))
    assert gone.tolist() == [True, False, True, False]


def test_by_the_record_clock_the_oldest_one_says_when_it_is_due() -> None:
    own = compacted(tombstone_clock="record")
    at = Positions(sealed_end=10)
    deadlines = next_deadlines(at, 10, 5000, own, left=OldestTombstones(free_ms=4950))
    assert deadlines == (Deadline(0, 10, 5050, by_record=True),)
    after = Positions(first_dirty=10, sealed_end=10, deadlines=deadlines)
    assert expiring(after, 5049, own) == []
    assert expiring(after, 5050, own) == [(0, 10)]
    assert next_deadlines(at, 10, 5000, own) == ()


def test_by_the_record_clock_a_held_one_makes_nothing_due() -> None:
    own = compacted(tombstone_clock="record")
    hold = ReaderHold(position=4, max_ms=500)
    left = next_deadlines(
        Positions(sealed_end=10),
        10,
        5000,
        own,
        rules=a_rule(held_from=4),
        left=OldestTombstones(free_ms=4990, held_ms=4000),
    )
    assert left == (Deadline(0, 4, 5090, by_record=True), Deadline(4, 10, 4100, by_record=True))
    at = Positions(first_dirty=10, sealed_end=10, deadlines=left)
    # Expired at 4100, and held for 500 more at most.
    assert expiring(at, 4600, own, hold=hold) == []
    assert expiring(at, 4601, own, hold=hold) == [(4, 10)]
    assert expiring(at, 4600, own, hold=ReaderHold(position=7, max_ms=500)) == [(4, 7)]


def test_a_longer_retention_keeps_what_was_nearly_expired() -> None:
    at = Positions(first_dirty=10, sealed_end=10, deadlines=(Deadline(0, 10, 1100),))
    longer = compacted(tombstone_clock="record", delete_retention_ms=1000)
    rules = rule.rules_for(
        longer, at, compactable_end=10, all_compactable=True, seen=(1200, 10), hold=ReaderHold(), now_ms=1200
    )
    assert not rule.drops_tombstones(rules, np.array([1]), np.array([1000])).any()


# ------------------------------------------------------------------------------- from one clock to the other


def test_to_the_compaction_clock_young_tombstones_wait_although_the_oldest_has_expired() -> None:
    own = compacted(tombstone_clock="compaction")
    at = Positions(
        first_dirty=20,
        sealed_end=20,
        deadlines=(Deadline(0, 10, 600, by_record=True), Deadline(10, 20, 900)),
        last_run=LastRun(1000, 1, 0),
    )
    switched = rule.on_clock(own, at)
    assert switched.deadlines == (Deadline(0, 10, 1100), Deadline(10, 20, 900))
    assert expiring(switched, 1099, own) == [(10, 20)]
    assert expiring(switched, 1100, own) == [(0, 10), (10, 20)]
    # What no tombstone went of is remembered by the clock that there is now.
    assert next_deadlines(switched, 20, 1050, own) == (Deadline(0, 10, 1100), Deadline(10, 20, 900))
    assert rule.on_clock(own, switched) is switched


def test_to_the_record_clock_the_next_run_looks_for_itself() -> None:
    own = compacted(tombstone_clock="record")
    at = Positions(first_dirty=10, sealed_end=10, deadlines=(Deadline(0, 10, 5000),))
    switched = rule.on_clock(own, at)
    assert switched.deadlines == (Deadline(0, 10, 0, by_record=True),)
    # It is looked at at once; only those go that have expired by their own timestamps.
    rules = rule.rules_for(
        own,
        switched,
        compactable_end=10,
        all_compactable=True,
        seen=(1000, 10),
        hold=ReaderHold(),
        now_ms=1000,
    )
    assert rules.expiring[0].due
    assert rule.drops_tombstones(rules, np.array([1, 2]), np.array([900, 901])).tolist() == [True, False]


# ------------------------------------------------------------------------------------------------ holds


def test_a_reader_holds_what_it_has_not_read() -> None:
    at = Positions(first_dirty=10, sealed_end=10, deadlines=(Deadline(0, 10, 1100),))
    # At position 4 it has read 0 to 3.
    hold = ReaderHold(position=4, max_ms=500)
    assert expiring(at, 1100, hold=hold) == [(0, 4)]
    assert expiring(at, 1600, hold=hold) == [(0, 4)]
    assert expiring(at, 1601, hold=hold) == [(0, 4), (4, 10)]
    assert expiring(at, 1100, hold=ReaderHold(position=0, max_ms=500)) == []
    assert expiring(at, 1100, hold=ReaderHold(position=99, max_ms=500)) == [(0, 10)]


def reader(position: int, active_ms: int, *, partition: int = 0) -> ReaderPosition:
    return ReaderPosition(reader="r", partition=partition, position=position, active_ms=active_ms)


def hold_of(
    partition: int,
    readers: list[ReaderPosition],
    down: list[tuple[int, int]],
    *,
    hold_ms: int,
    max_ms: int = 0,
) -> ReaderHold:
    return Readership(readers=readers, downtimes=down, hold_ms=hold_ms, hold_max_ms=max_ms, now_ms=1000).hold(
        partition
    )


def test_only_active_readers_of_the_partition_hold() -> None:
    readers = [reader(5, 1000), reader(3, 899), reader(1, 1000, partition=1)]
    held = hold_of(0, readers, [], hold_ms=100, max_ms=7)
    assert held == ReaderHold(position=5, max_ms=7)
    assert hold_of(0, readers, [], hold_ms=101, max_ms=7).position == 3
    assert hold_of(2, readers, [], hold_ms=100, max_ms=7).position > 1 << 60


def test_time_in_which_nothing_ran_does_not_count() -> None:
    down = [(100, 600), (700, 800)]
    assert hold_of(0, [reader(3, 0)], down, hold_ms=400).position == 3
    assert hold_of(0, [reader(3, 0)], down, hold_ms=399).position > 1 << 60
    # A part of a pause that was over before the reader was there is no help.
    assert hold_of(0, [reader(3, 750)], down, hold_ms=200).position == 3
    assert hold_of(0, [reader(3, 750)], down, hold_ms=199).position > 1 << 60


def test_a_long_silence_of_maintenance_is_downtime(tmp_path: Any) -> None:
    uptime = Uptime(tmp_path)
    assert uptime.downtimes(0) == []
    for now_ms in (0, 15 * MINUTE, 46 * MINUTE, 47 * MINUTE):
        uptime.here(now_ms)
    assert Uptime(tmp_path).downtimes(47 * MINUTE) == [(15 * MINUTE, 46 * MINUTE)]
    # What has begun and is not over yet counts as well, also for those who only look.
    going_on = (47 * MINUTE, 80 * MINUTE)
    assert Uptime(tmp_path).downtimes(80 * MINUTE) == [(15 * MINUTE, 46 * MINUTE), going_on]
    # The clock went back: nothing is forgotten, and no downtime is made up.
    uptime.here(10 * MINUTE)
    uptime.here(48 * MINUTE)
    assert uptime.downtimes(48 * MINUTE) == [(15 * MINUTE, 46 * MINUTE)]
    uptime.here(200 * 24 * 60 * MINUTE)
    end_ms = 200 * 24 * 60 * MINUTE
    assert uptime.downtimes(end_ms) == [(48 * MINUTE, end_ms)]


def test_a_damaged_note_is_no_note(tmp_path: Any) -> None:
    (tmp_path / "uptime.json").write_bytes(b"{")
    assert Uptime(tmp_path).downtimes(0) == []


# --------------------------------------------------------------------------- late records that are older


@pytest.mark.parametrize("strategy", ["timestamp", "header"])
def test_with_versions_everything_appended_before_the_expiry_must_be_compactable(strategy: str) -> None:
    own = compacted(
        compaction_strategy=strategy, compaction_strategy_header="v", compaction_strategy_header_format="long"
    )
    at = Positions(first_dirty=10, sealed_end=10, deadlines=(Deadline(0, 10, 1100),))
    # The log goes on behind what is sealed, and nobody has looked since the expiry.
    assert expiring(at, 1200, own, seen=(1200, 11)) == []
    assert expiring(at, 1200, own, seen=(1200, 10)) == [(0, 10)]
    seen_before = Positions(first_dirty=10, sealed_end=10, deadlines=at.deadlines, runs=((1099, 10),))
    assert expiring(seen_before, 1200, own, seen=(1200, 11)) == []
    seen_after = Positions(
        first_dirty=10, sealed_end=10, deadlines=at.deadlines, runs=((1100, 10), (1150, 11))
    )
    assert expiring(seen_after, 1200, own, seen=(1200, 12)) == [(0, 10)]


@pytest.mark.parametrize("strategy", ["first", "timestamp"])
def test_a_tombstone_waits_for_sealed_records_behind_it_that_it_may_beat(strategy: str) -> None:
    own = compacted(compaction_strategy=strategy)
    at = Positions(first_dirty=10, sealed_end=20, deadlines=(Deadline(0, 10, 1100),), runs=((1100, 10),))
    assert expiring(at, 1200, own, compactable_end=10, all_compactable=False) == []
    assert expiring(at, 1200, compactable_end=10, all_compactable=False) == [(0, 10)]


def test_of_the_runs_those_are_kept_that_tell_something() -> None:
    runs: tuple[tuple[int, int], ...] = ()
    for now_ms in range(0, 10_000, 10):
        # What is compactable lags 5000 behind.
        runs = rule.next_runs(runs, (now_ms, now_ms), compactable_end=now_ms - 5000, most=16)
        assert len(runs) <= 16
        assert runs[-1] == (now_ms, now_ms)
    times = [time_ms for time_ms, _ in runs]
    assert times == sorted(times)
    assert 4000 <= times[0] <= 9990 - 5000
    assert max(np.diff(times)) <= 5000 / 4
    assert rule.next_runs(runs, (10_000, 10_000), compactable_end=10_000, most=16) == ((10_000, 10_000),)


# ------------------------------------------------------------------------------------ masks and bounds


def test_a_segment_is_looked_into_only_if_one_of_its_tombstones_may_go() -> None:
    rules = a_rule(Expiring(start=10, end=20, before_ms=500))
    assert rule.may_expire(rules, 0, 10, 499)
    assert rule.may_expire(rules, 19, 30, 0)
    assert not rule.may_expire(rules, 0, 9, 0)
    assert not rule.may_expire(rules, 20, 30, 0)
    assert not rule.may_expire(rules, 0, 30, 500)
    assert not rule.may_expire(a_rule(), 0, 30, 0)


def test_the_oldest_are_told_apart_by_who_holds_them() -> None:
    rules = a_rule(held_from=5)
    assert rule.oldest(rules, np.array([1, 4, 5, 9]), np.array([8, 7, 3, 2])) == (7, 2)
    assert rule.oldest(rules, np.array([1]), np.array([8])) == (8, None)
    assert rule.oldest(rules, np.array([], np.int64), np.array([], np.int64)) == (None, None)
    assert rule.oldest_within(rules, 0, 5, 1) == (1, None)
    assert rule.oldest_within(rules, 5, 6, 1) == (None, 1)
    assert rule.oldest_within(rules, 0, 6, 1) == (1, 1)
    assert rule.oldest_within(rules, 6, 2, 1) == (None, None)
    assert rule.oldest_of_all([OldestTombstones(3, None), OldestTombstones(2, 9)]) == (2, 9)


def test_records_go_by_age_only_where_the_policy_deletes() -> None:
    def before(**own: object) -> int | None:
        return rule.rules_for(
            settings(**own),
            Positions(),
            compactable_end=0,
            all_compactable=True,
            seen=(0, 0),
            hold=ReaderHold(),
            now_ms=1000,
        ).retention_before_ms

    assert before(cleanup_policy="compact", retention_ms=100) is None
    assert before(cleanup_policy="compact,delete", retention_ms=100) == 900
    assert before(cleanup_policy="compact,delete", retention_ms=-1) is None
