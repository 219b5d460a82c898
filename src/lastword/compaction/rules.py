"""The rules that decide which records of a partition stay, as data that a plan hands to the tasks.

For a record of a compactable segment, in this order: below the log start it is removed and does not compete; if
another record of its key beats it, it is removed; a tombstone that may be removed is; if it is older than
retention.ms and the policy has `delete`, it is removed; otherwise it stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lastword.compaction.strategy import Strategy, strategy_of
from lastword.config import TopicSettings
from lastword.segments.model import Deadline, Positions

_FOREVER_MS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiring:
    """Tombstones that may be removed: those with offsets in [start, end) and a timestamp before `before_ms`."""

    start: int
    end: int
    before_ms: int = _FOREVER_MS
    due: bool = True
    """Whether there may be such a tombstone, as far as the last run knew."""


class OldestTombstones(NamedTuple):
    """The lowest timestamp of the tombstones that no reader holds, and of those that a reader holds; None: none."""

    free_ms: int | None = None
    held_ms: int | None = None


NO_TOMBSTONES = OldestTombstones()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Everything that decides which records of one partition stay in one run."""

    strategy: Strategy
    log_start: int
    expiring: tuple[Expiring, ...]
    retention_before_ms: int | None
    """Records with an older timestamp are removed; None if no record is removed by age."""
    tombstone_clock: Literal["compaction", "record"] = "compaction"
    held_from: int = _FOREVER_MS
    """Tombstones from this offset on wait for a reader."""

    @property
    def may_drop_winners(self) -> bool:
        return bool(self.expiring) or self.retention_before_ms is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderHold:
    """The lowest committed position of an active reader: tombstones from there on wait for it."""

    position: int = _FOREVER_MS
    max_ms: int = 0
    """The longest time that a tombstone waits past its expiry."""


def rules_for(
    settings: TopicSettings,
    at: Positions,
    *,
    compactable_end: int,
    all_compactable: bool,
    seen: tuple[int, int],
    hold: ReaderHold,
    now_ms: int,
) -> Rules:
    """Return the rules of a run that begins now and passes everything below `compactable_end`.

    `all_compactable` says that nothing is sealed beyond it; `seen` is the time of the look at the log, and its end.
    """
    return Rules(
        strategy=strategy_of(settings),
        log_start=at.log_start,
        expiring=expiring(
            settings,
            at,
            compactable_end=compactable_end,
            all_compactable=all_compactable,
            seen=seen,
            hold=hold,
            now_ms=now_ms,
        ),
        retention_before_ms=(
            now_ms - settings.retention_ms if settings.deletes and settings.retention_ms is not None else None
        ),
        tombstone_clock=settings.tombstone_clock,
        held_from=hold.position,
    )


def on_clock(settings: TopicSettings, at: Positions) -> Positions:
    """Return the positions with all deadlines converted to the clock that tombstone.clock names now.

    The deadlines of the two clocks differ in meaning. For the compaction clock, all tombstones in a range of the
    record clock were passed by the last run at the latest. For the record clock, a tombstone in a range of the
    compaction clock may have expired at any time: the next run looks.
    """
    by_record = settings.tombstone_clock == "record"
    if all(each.by_record == by_record for each in at.deadlines):
        return at
    passed_ms = at.last_run.time_ms if at.last_run is not None else 0
    own_ms = 0 if by_record else passed_ms + settings.delete_retention_ms
    return replace(
        at,
        deadlines=tuple(
            each
            if each.by_record == by_record
            else Deadline(start=each.start, end=each.end, deadline_ms=own_ms, by_record=by_record)
            for each in at.deadlines
        ),
    )


def expiring(
    settings: TopicSettings,
    at: Positions,
    *,
    compactable_end: int,
    all_compactable: bool,
    seen: tuple[int, int],
    hold: ReaderHold,
    now_ms: int,
) -> tuple[Expiring, ...]:
    """Return the ranges of removable tombstones. An earlier run must have passed them: they stay at least a round."""
    if at.spared:
        # An earlier version left superseded records behind, which could come back.
        return ()
    if strategy_of(settings).order != "newest" and not all_compactable:
        # A tombstone may beat later records: one in a segment that this run leaves alone would come back.
        return ()
    latest_ms = _latest_safe_expiry(settings, at, compactable_end=compactable_end, seen=seen, now_ms=now_ms)
    found: list[Expiring] = []
    for deadline in at.deadlines:
        start, end = deadline.start, min(deadline.end, at.first_dirty, compactable_end)
        split = min(max(hold.position, start), end)
        expired = deadline.deadline_ms <= latest_ms
        held_too_long = expired and deadline.deadline_ms + hold.max_ms < now_ms
        if settings.tombstone_clock == "compaction":
            if expired:
                found.append(Expiring(start=start, end=split))
            if held_too_long:
                found.append(Expiring(start=split, end=end))
        else:
            # A tombstone expires delete.retention.ms after its own timestamp; `before_ms` is exclusive.
            before_ms = latest_ms - settings.delete_retention_ms + 1
            found.append(Expiring(start=start, end=split, before_ms=before_ms, due=expired))
            held_before_ms = min(before_ms, now_ms - settings.delete_retention_ms - hold.max_ms)
            found.append(Expiring(start=split, end=end, before_ms=held_before_ms, due=held_too_long))
    return tuple(each for each in found if each.start < each.end)


def _latest_safe_expiry(
    settings: TopicSettings, at: Positions, *, compactable_end: int, seen: tuple[int, int], now_ms: int
) -> int:
    """Return the latest expiry of a tombstone that may be removed now.

    Where versions are compared, a late record may lose to the tombstone, and must not come back because the
    tombstone was removed first. So every record appended before the expiry has to be compactable in this run. An
    earlier run that began after the expiry knows the log end of that time.
    """
    if not strategy_of(settings).is_versioned:
        return now_ms
    return max((time_ms for time_ms, end in (*at.runs, seen) if end <= compactable_end), default=-1)


TombstoneWait = Literal["first run", "expiry", "late records", "reader"]
"""The reason why a tombstone stays for now: no run has passed it yet, it has not expired, older versions of its key
may still arrive, or a reader has not seen it."""


def why_tombstone_waits(
    settings: TopicSettings,
    at: Positions,
    offset: int,
    timestamp_ms: int,
    *,
    compactable_end: int,
    all_compactable: bool,
    seen: tuple[int, int],
    hold: ReaderHold,
    now_ms: int,
) -> tuple[TombstoneWait, int | None] | None:
    """Return why a tombstone is not removed now, and until when that holds if that is known; None if it is removed.

    The reason is found by calling `expiring` again, with one possible obstacle after another taken away.
    """

    def goes(*, all_compactable: bool, seen: tuple[int, int], hold: ReaderHold) -> bool:
        found = expiring(
            settings,
            at,
            compactable_end=compactable_end,
            all_compactable=all_compactable,
            seen=seen,
            hold=hold,
            now_ms=now_ms,
        )
        return any(each.start <= offset < each.end and timestamp_ms < each.before_ms for each in found)

    if goes(all_compactable=all_compactable, seen=seen, hold=hold):
        return None
    if offset >= at.first_dirty:
        return "first run", None
    expires_ms = expiry_ms(settings, at, offset, timestamp_ms)
    nobody = ReaderHold()
    if not goes(all_compactable=True, seen=(now_ms, 0), hold=nobody):
        return "expiry", expires_ms
    if not goes(all_compactable=all_compactable, seen=seen, hold=nobody):
        return "late records", None
    return "reader", None if expires_ms is None else expires_ms + hold.max_ms + 1


def expiry_ms(settings: TopicSettings, at: Positions, offset: int, timestamp_ms: int) -> int | None:
    """Return when a tombstone that a run has passed expires; None if no deadline is known for it."""
    deadline = next((each for each in at.deadlines if each.start <= offset < each.end), None)
    if deadline is None:
        return None
    if settings.tombstone_clock == "record":
        return timestamp_ms + settings.delete_retention_ms
    return deadline.deadline_ms


def next_runs(
    runs: Sequence[tuple[int, int]], seen: tuple[int, int], *, compactable_end: int, most: int
) -> tuple[tuple[int, int], ...]:
    """Return the runs to remember. Of those that saw nothing beyond the compactable end, the last one is enough.

    If there are too many others, those with near neighbours are dropped first, so that the rest reaches as far
    back as min.compaction.lag.ms, however often runs are made.
    """
    left = [*runs, seen]
    settled = [run for run in left if run[1] <= compactable_end]
    left = settled[-1:] + [run for run in left if run[1] > compactable_end]
    while len(left) > most:
        between = range(1, len(left) - 1)
        del left[min(between, key=lambda index: left[index + 1][0] - left[index - 1][0])]
    return tuple(left)


def drops_tombstones(
    rules: Rules, offsets: npt.NDArray[np.int64], timestamps_ms: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which of these rows, all of them tombstones, may be removed."""
    gone = np.zeros(len(offsets), np.bool_)
    for each in rules.expiring:
        gone |= (offsets >= each.start) & (offsets < each.end) & (timestamps_ms < each.before_ms)
    return gone


def oldest(
    rules: Rules, offsets: npt.NDArray[np.int64], timestamps_ms: npt.NDArray[np.int64]
) -> OldestTombstones:
    """Return the lowest timestamps of these rows, all of them tombstones."""
    held = offsets >= rules.held_from
    return OldestTombstones(
        *(int(timestamps_ms[side].min()) if side.any() else None for side in (~held, held))
    )


def oldest_within(rules: Rules, start: int, end: int, oldest_ms: int) -> OldestTombstones:
    """Return the bounds for tombstones with offsets in [start, end), none of which is older than `oldest_ms`."""
    return OldestTombstones(
        oldest_ms if start < min(end, rules.held_from) else None,
        oldest_ms if max(start, rules.held_from) < end else None,
    )


def oldest_of_all(found: Iterable[OldestTombstones]) -> OldestTombstones:
    each = tuple(found)
    return OldestTombstones(
        min((one.free_ms for one in each if one.free_ms is not None), default=None),
        min((one.held_ms for one in each if one.held_ms is not None), default=None),
    )


def may_expire(rules: Rules, first_offset: int, last_offset: int, min_timestamp_ms: int) -> bool:
    """Return whether a tombstone of a segment may be removed, as far as is known without opening it."""
    return any(
        each.start <= last_offset and first_offset < each.end and min_timestamp_ms < each.before_ms
        for each in rules.expiring
    )


def next_deadlines(
    settings: TopicSettings,
    at: Positions,
    rules: Rules,
    *,
    compactable_end: int,
    dirty_tombstones: bool,
    left_behind: OldestTombstones,
    now_ms: int,
) -> tuple[Deadline, ...]:
    """Return the deadlines after a run. Ranges freed of tombstones need none; newly passed ones get their own.

    `left_behind` has lower bounds of the timestamps of the tombstones that are left below `compactable_end`.
    """
    new_first_dirty = max(at.first_dirty, compactable_end)
    if settings.tombstone_clock == "record":
        split = min(max(rules.held_from, at.log_start), compactable_end)
        passed = [
            Deadline(
                start=start, end=end, deadline_ms=oldest_ms + settings.delete_retention_ms, by_record=True
            )
            for start, end, oldest_ms in (
                (at.log_start, split, left_behind.free_ms),
                (split, compactable_end, left_behind.held_ms),
            )
            if oldest_ms is not None and start < end
        ]
        # If min.compaction.lag.ms was raised, clean segments may lie beyond the range that this run looked at.
        beyond = [
            each._replace(start=max(each.start, compactable_end))
            for each in at.deadlines
            if each.end > compactable_end
        ]
        return tuple(passed + beyond)
    left: list[Deadline] = []
    for deadline in at.deadlines:
        start, end = max(deadline.start, at.log_start), deadline.end
        for each in rules.expiring:
            # Ranges of a deadline are freed from its start on, so that the rest is again one range.
            if each.start <= start < each.end:
                start = each.end
        if start < end:
            left.append(deadline._replace(start=start))
    if dirty_tombstones and new_first_dirty > at.first_dirty:
        left.append(
            Deadline(
                start=at.first_dirty, end=new_first_dirty, deadline_ms=now_ms + settings.delete_retention_ms
            )
        )
    return _joined(left)


def _joined(deadlines: Sequence[Deadline]) -> tuple[Deadline, ...]:
    """Join neighbouring ranges with the same deadline."""
    joined: list[Deadline] = []
    for each in deadlines:
        if joined and joined[-1].deadline_ms == each.deadline_ms and joined[-1].end == each.start:
            joined[-1] = Deadline(start=joined[-1].start, end=each.end, deadline_ms=each.deadline_ms)
        else:
            joined.append(each)
    return tuple(joined)
