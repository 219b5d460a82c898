"""What is due, why, in which order, and an estimate of what it will reclaim: pure tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.logs import settings

from lastword.compaction import plan
from lastword.compaction.plan import Distinct, PartitionPlan, PartitionView
from lastword.compaction.request import Scope
from lastword.compaction.rules import ReaderHold
from lastword.config import TopicSettings
from lastword.segments.model import Deadline, Positions, Segment

NOW = 1_000_000


def segment(
    first: int,
    records: int = 10,
    *,
    size: int = 100,
    oldest: int = NOW - 5000,
    newest: int = NOW - 1000,
    null_keys: int = 0,
    null_values: int = 0,
) -> Segment:
    return Segment(
        path=f"file:///{first}",
        partition=0,
        first_offset=first,
        last_offset=first + records - 1,
        records=records,
        size_bytes=size,
        min_timestamp_ms=oldest,
        max_timestamp_ms=newest,
        null_keys=null_keys,
        null_values=null_values,
    )


def compacted(**own: object) -> TopicSettings:
    return settings(**{"cleanup_policy": "compact", **own})


def view(
    *segments: Segment, at: Positions | None = None, partition: int = 0, log_end: int | None = None
) -> PartitionView:
    end = segments[-1].last_offset + 1 if segments else 0
    positions = at or Positions(sealed_end=end)
    return PartitionView(
        partition=partition,
        positions=positions,
        segments=segments,
        log_end=positions.sealed_end if log_end is None else log_end,
        hold=ReaderHold(),
    )


def proposed(
    view: PartitionView, own: TopicSettings, *, now_ms: int = NOW, **options: object
) -> PartitionPlan | None:
    return plan.propose("t", view, own, now_ms, Scope(**options)).plan  # type: ignore[arg-type]


def reason(view: PartitionView, own: TopicSettings, **options: object) -> str | None:
    found = proposed(view, own, **options)  # type: ignore[arg-type]
    return None if found is None else found.reason


def at(first_dirty: int, sealed_end: int, **more: object) -> Positions:
    return Positions(first_dirty=first_dirty, sealed_end=sealed_end, **more)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ ratio


def ratio(
    segments: Sequence[Segment], at: Positions, own: TopicSettings, distinct: Distinct | None = None
) -> float | None:
    return plan.propose("t", view(*segments, at=at), own, NOW, distinct=distinct).dirty_ratio


@pytest.mark.parametrize(
    ("first_dirty", "sizes", "expected"),
    [
        (0, [], 0.0),
        (0, [100, 300], 1.0),
        (10, [100, 300], 0.75),
        # A segment that reaches over the first dirty offset is dirty.
        (15, [100, 300], 0.75),
        (20, [100, 300], 0.0),
    ],
)
def test_the_ratio_by_bytes(first_dirty: int, sizes: Sequence[int], expected: float) -> None:
    segments = [segment(10 * index, size=size) for index, size in enumerate(sizes)]
    assert ratio(segments, at(first_dirty, 20), compacted()) == expected


def test_the_ratio_counts_only_what_may_be_compacted() -> None:
    segments = [segment(0, size=100), segment(10, size=100), segment(20, size=800, newest=NOW - 10)]
    own = compacted(min_compaction_lag_ms=500)
    assert ratio(segments, at(10, 30), own) == 0.5
    assert ratio(segments, at(10, 30), compacted()) == 0.9


def test_the_ratio_by_records() -> None:
    own = compacted(dirty_ratio_basis="records")
    segments = [segment(0), segment(10, null_keys=2)]
    # 20 records, of which 18 have a key; 6 keys: 12 of 20 are superseded.
    assert ratio(segments, at(0, 20), own, lambda _: 6.0) == 0.6
    # An estimate above what is there is no negative garbage; with nothing dirty there is nothing to do.
    assert ratio(segments, at(0, 20), own, lambda _: 19.0) == 0.0
    assert ratio(segments, at(20, 20), own, lambda _: 6.0) == 0.0
    only_null = [segment(0, null_keys=10)]
    assert ratio(only_null, at(0, 10), own, lambda _: 0.0) == 0.0


def test_the_sketches_are_asked_once() -> None:
    asked: list[int] = []

    def distinct(segments: Sequence[Segment]) -> float:
        asked.append(len(segments))
        return 6.0

    own = compacted(dirty_ratio_basis="records")
    found = plan.propose("t", view(segment(0), segment(10)), own, NOW, distinct=distinct).plan
    assert found is not None and found.estimate is not None
    assert (found.dirty_ratio, found.estimate.distinct_keys, asked) == (0.7, 6, [2])


# ---------------------------------------------------------------------------------------------- reasons


def test_dirty_enough_is_due_and_not_quite_is_not() -> None:
    segments = (segment(0, size=501), segment(10, size=499))
    assert reason(view(*segments, at=at(10, 20)), compacted()) is None
    assert (
        reason(view(*segments, at=at(10, 20)), compacted(min_cleanable_dirty_ratio=0.499))
        == "min.cleanable.dirty.ratio"
    )
    exact = (segment(0, size=500), segment(10, size=500))
    assert reason(view(*exact, at=at(10, 20)), compacted()) == "min.cleanable.dirty.ratio"


def test_nothing_dirty_is_never_due_by_ratio() -> None:
    assert reason(view(segment(0), at=at(10, 10)), compacted(min_cleanable_dirty_ratio=0)) is None
    assert reason(view(), compacted(min_cleanable_dirty_ratio=0)) is None


def test_too_old_is_due_whatever_the_ratio() -> None:
    clean, dirty = segment(0, size=999), segment(10, size=1, oldest=NOW - 5000)
    both = view(clean, dirty, at=at(10, 20))
    assert reason(both, compacted(max_compaction_lag_ms=4999)) == "max.compaction.lag.ms"
    assert reason(both, compacted(max_compaction_lag_ms=5000)) is None
    # Old records that are clean are nobody's worry.
    young = replace(dirty, min_timestamp_ms=NOW - 1500)
    assert reason(view(clean, young, at=at(10, 20)), compacted(max_compaction_lag_ms=4999)) is None


def test_overdue_comes_before_dirty_before_tombstones_before_asked_for() -> None:
    expired = (Deadline(0, 10, NOW),)
    everything = view(segment(0, null_values=1), segment(10), at=at(10, 20, deadlines=expired))
    assert reason(everything, compacted(max_compaction_lag_ms=1, min_cleanable_dirty_ratio=0)) == (
        "max.compaction.lag.ms"
    )
    assert reason(everything, compacted(min_cleanable_dirty_ratio=0)) == "min.cleanable.dirty.ratio"
    lazy = compacted(min_cleanable_dirty_ratio=0.9)
    assert reason(everything, lazy, asked_for=True) == "tombstones"
    later = view(segment(0), segment(10), at=at(10, 20))
    assert reason(later, lazy, asked_for=True) == "asked for"
    assert reason(later, lazy) is None


def test_asking_and_forcing() -> None:
    clean = view(segment(0), at=at(10, 10))
    assert reason(clean, compacted(), asked_for=True) is None
    assert reason(clean, compacted(), force=True) == "asked for"
    # A version before marks has left superseded records behind.
    spared = view(segment(0), at=at(10, 10, spared=True))
    assert reason(spared, compacted()) == "superseded records"
    assert reason(view(), compacted(), force=True) is None


@pytest.mark.parametrize(
    ("segments", "first_dirty", "own", "scope", "expected"),
    [
        ([0], 0, {"cleanup_policy": "delete"}, {}, "cleanup.policy=delete: the topic is not compacted"),
        ([], 0, {}, {}, "nothing is sealed"),
        ([0, 10], 10, {"min_cleanable_dirty_ratio": 0.6}, {}, "the dirty ratio 0.50 is below"),
        ([0, 10], 20, {}, {"asked_for": True}, "nothing that may be compacted is dirty"),
        ([20, 30], 20, {"min_compaction_lag_ms": 500}, {"force": True}, "everything is held back"),
        ([0, 20], 20, {"min_compaction_lag_ms": 500}, {"asked_for": True}, "the dirty part is held back"),
        # What is held back is clean: the lag was raised after it had been compacted.
        (
            [0, 20],
            30,
            {"min_compaction_lag_ms": 500},
            {"asked_for": True},
            "nothing that may be compacted is",
        ),
    ],
)
def test_why_there_is_no_run(
    segments: Sequence[int],
    first_dirty: int,
    own: dict[str, object],
    scope: dict[str, bool],
    expected: str,
) -> None:
    young = NOW - 100
    one = view(
        *(segment(first, newest=young if first >= 20 else NOW - 1000) for first in segments),
        at=at(first_dirty, 40),
    )
    found = plan.propose("t", one, compacted(**own), NOW, Scope(**scope))
    assert found.plan is None
    assert plan.why_not([found], compacted(**own), Scope(**scope)).startswith(expected)


def test_an_idle_partition_is_due_when_a_tombstone_could_go() -> None:
    expired = (Deadline(0, 10, NOW),)
    has_one = segment(0, null_values=1)
    assert reason(view(has_one, at=at(10, 10, deadlines=expired)), compacted()) == "tombstones"
    assert reason(view(has_one, at=at(10, 10, deadlines=expired)), compacted(), now_ms=NOW - 1) is None
    # The file that had it is gone, or it lies elsewhere.
    assert reason(view(segment(0), at=at(10, 10, deadlines=expired)), compacted()) is None
    elsewhere = view(segment(0), segment(10, null_values=1), at=at(20, 20, deadlines=expired))
    assert reason(elsewhere, compacted()) is None


def test_held_tombstones_make_nothing_due() -> None:
    expired = (Deadline(0, 10, NOW),)
    idle = view(segment(0, null_values=1), at=at(10, 10, deadlines=expired))
    assert reason(replace(idle, hold=ReaderHold(position=0, max_ms=9)), compacted()) is None
    assert reason(replace(idle, hold=ReaderHold(position=1, max_ms=9)), compacted()) == "tombstones"


# --------------------------------------------------------------------------------- what may be compacted


def test_the_first_young_segment_holds_back_all_after_it() -> None:
    own = compacted(min_compaction_lag_ms=500)
    segments = (segment(0), segment(10, newest=NOW - 499), segment(20))
    found = proposed(view(*segments), own)
    assert found is not None
    assert found.segments == segments[:1]
    assert found.compactable_end == 10
    assert proposed(view(*segments[1:]), own, force=True) is None
    at_the_limit = (segment(0), segment(10, newest=NOW - 500))
    assert plan.compactable(at_the_limit, own, NOW) == at_the_limit


def test_a_timestamp_ahead_holds_nothing_back_where_no_lag_is_set() -> None:
    ahead = segment(0, newest=NOW + 3_600_000)
    assert plan.compactable([ahead], compacted(), NOW) == (ahead,)
    assert plan.compactable([ahead], compacted(min_compaction_lag_ms=1), NOW) == ()


def test_a_run_passes_everything_up_to_what_follows() -> None:
    """The last records of the log may be gone, and gaps are normal."""
    gap = view(segment(0), at=Positions(sealed_end=1 << 40))
    found = proposed(gap, compacted())
    assert found is not None and found.compactable_end == 1 << 40


def test_without_compact_nothing_is_due_but_joining() -> None:
    delete = settings(cleanup_policy="delete")
    assert reason(view(*(segment(10 * index) for index in range(7))), delete, force=True) is None
    found = proposed(view(*(segment(10 * index) for index in range(8))), delete)
    assert found is not None
    assert (found.reason, found.keyed, len(found.segments)) == ("small segments", False, 8)
    assert found.compactable_end == 0


def test_joining_stays_within_size_and_span() -> None:
    small = settings(cleanup_policy="delete", segment_bytes=899)
    many = [segment(10 * index) for index in range(20)]
    found = proposed(view(*many), small)
    assert found is not None and len(found.segments) == 8
    assert proposed(view(*many), settings(cleanup_policy="delete", segment_bytes=799)) is None
    spread = [segment(10 * index, oldest=1000 * index, newest=1000 * index) for index in range(20)]
    by_time = settings(cleanup_policy="delete", segment_ms=7000)
    found = proposed(view(*spread), by_time)
    assert found is not None and len(found.segments) == 8
    assert proposed(view(*spread), settings(cleanup_policy="delete", segment_ms=6999)) is None


def test_a_joined_segment_is_not_rewritten_for_each_handful_of_new_ones() -> None:
    """Each rewrite at least doubles it, so that no record is rewritten often."""
    delete = settings(cleanup_policy="delete")
    large = segment(0, records=1000, size=100_000)
    small = [segment(1000 + 10 * index, size=100) for index in range(20)]
    found = proposed(view(large, *small), delete)
    assert found is not None and large not in found.segments
    as_large = [segment(1000 + 10 * index, size=10_000) for index in range(10)]
    found = proposed(view(large, *as_large), delete)
    assert found is not None and large in found.segments


# ------------------------------------------------------------------------------------------------- order


def test_overdue_first_and_then_the_dirtiest() -> None:
    own = compacted(max_compaction_lag_ms=50_000, min_cleanable_dirty_ratio=0.1)

    def partly(partition: int, dirty: int, oldest: int = NOW - 10) -> PartitionView:
        segments = (segment(0, size=100), segment(10, size=dirty, oldest=oldest))
        return view(*segments, at=at(10, 20), partition=partition)

    views = [partly(0, 20), partly(1, 900), partly(2, 12, NOW - 60_000), partly(3, 100), partly(4, 1)]
    plans = [found for view in views if (found := proposed(view, own)) is not None]
    assert [each.partition for each in sorted(plans, key=plan.urgency)] == [2, 1, 3, 0]


# --------------------------------------------------------------------------------- estimates, and the way


def test_an_estimate_is_about_what_goes() -> None:
    segments = [segment(0, size=1000, null_keys=2), segment(10, size=1000)]
    found = plan.estimate(segments, 9.4)
    assert (found.records, found.distinct_keys, found.garbage_records) == (20, 9, 9)
    assert found.reclaimed_bytes == 2000 * 9 // 20
    nothing = plan.estimate([], 0.0)
    assert (nothing.records, nothing.reclaimed_bytes) == (0, 0)
    over = plan.estimate(segments, 30.0)
    assert (over.distinct_keys, over.garbage_records, over.reclaimed_bytes) == (18, 0, 0)


@pytest.mark.parametrize(
    ("keys", "size", "parallel", "expected"),
    [
        (1000, 10, 4, ("one stage", 1)),
        (1000, 10_000, 4, ("two stages", 4)),
        # One task at a time gains nothing from being spread.
        (1000, 10_000, 1, ("one stage", 1)),
        (100_000, 10, 1, ("two stages", 10)),
        (100_000, 10, 12, ("two stages", 12)),
        (100_000, 10, 64, ("two stages", 16)),
        (160_000, 10, 1, ("two stages", 16)),
        (170_000, 10, 1, ("Spark SQL", 1)),
    ],
)
def test_the_way_is_chosen_by_memory_and_size(
    keys: int, size: int, parallel: int, expected: tuple[str, int]
) -> None:
    assert (
        plan.choose_way(
            needed_bytes=plan.key_memory(keys, 20, versioned=False),
            room_bytes=plan.key_memory(10_000, 20, versioned=False),
            size_bytes=size,
            task_bytes=1000,
            parallel=parallel,
        )
        == expected
    )


def test_masks_and_versions_take_their_part_of_the_memory() -> None:
    assert plan.room_for_keys(1000, 0) == 1000
    assert plan.room_for_keys(1000, 300) == 700
    assert plan.room_for_keys(1000, 10**9) == 250
    plain = plan.key_memory(1000, 20, versioned=False)
    versioned = plan.key_memory(1000, 20, versioned=True)
    assert versioned == plain + 1000 * plan.BYTES_PER_VERSION
    # A set that is full and the versions of its keys are together what there is room for.
    assert plan.set_share(plain, 20, versioned=False) == plain
    assert plan.set_share(versioned, 20, versioned=True) == plain
