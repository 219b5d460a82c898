"""Which records of a partition stay, as data: what a plan hands to the kernels, wherever they run.

A record of a compactable segment, by this order: below the log start it goes and competes with nobody; beaten by
another record of its key it goes; a tombstone that may go goes; older than retention.ms, where the policy has
`delete`, it goes; else it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lastword.config import TopicSettings
from lastword.segments.table import Deadline, Positions

_FOREVER_MS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiring:
    """Tombstones with offsets in [start, end) may go, those with a timestamp before `before_ms`."""

    start: int
    end: int
    before_ms: int = _FOREVER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Everything that decides which records of one partition stay in one run."""

    strategy: Literal["offset", "first", "timestamp", "header"]
    header: str | None
    header_format: Literal["long", "text"] | None
    log_start: int
    expiring: tuple[Expiring, ...]
    retention_before_ms: int | None
    """Records with an older timestamp go; None where no record goes by age."""

    @property
    def may_drop_winners(self) -> bool:
        return bool(self.expiring) or self.retention_before_ms is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderHold:
    """The lowest committed position of an active reader: tombstones from there on wait for it."""

    position: int = _FOREVER_MS
    max_ms: int = 0
    """How long past its expiry a tombstone waits at most."""


def rules_for(
    settings: TopicSettings,
    at: Positions,
    *,
    compactable_end: int,
    log_end: int,
    hold: ReaderHold,
    now_ms: int,
) -> Rules:
    """The rules of a run that begins now and passes everything below `compactable_end`."""
    return Rules(
        strategy=settings.compaction_strategy,
        header=settings.compaction_strategy_header,
        header_format=settings.compaction_strategy_header_format,
        log_start=at.log_start,
        expiring=expiring(
            settings, at, compactable_end=compactable_end, log_end=log_end, hold=hold, now_ms=now_ms
        ),
        retention_before_ms=(
            now_ms - settings.retention_ms if settings.deletes and settings.retention_ms is not None else None
        ),
    )


def expiring(
    settings: TopicSettings,
    at: Positions,
    *,
    compactable_end: int,
    log_end: int,
    hold: ReaderHold,
    now_ms: int,
) -> tuple[Expiring, ...]:
    """Where tombstones may go now. Only those that an earlier run has passed: they linger at least one round."""
    latest_ms = _latest_safe_expiry(
        settings, at, compactable_end=compactable_end, log_end=log_end, now_ms=now_ms
    )
    found: list[Expiring] = []
    for deadline in at.deadlines:
        start, end = deadline.start, min(deadline.end, at.first_dirty, compactable_end)
        split = min(max(hold.position, start), end)
        if settings.tombstone_clock == "compaction":
            if deadline.deadline_ms <= latest_ms:
                found.append(Expiring(start=start, end=split))
            if deadline.deadline_ms + hold.max_ms < min(now_ms, latest_ms + hold.max_ms):
                found.append(Expiring(start=split, end=end))
        else:
            # A tombstone expires delete.retention.ms after its own timestamp; `before_ms` is exclusive.
            before_ms = latest_ms - settings.delete_retention_ms + 1
            found.append(Expiring(start=start, end=split, before_ms=before_ms))
            held_before_ms = min(before_ms, now_ms - settings.delete_retention_ms - hold.max_ms)
            found.append(Expiring(start=split, end=end, before_ms=held_before_ms))
    return tuple(each for each in found if each.start < each.end)


def _latest_safe_expiry(
    settings: TopicSettings, at: Positions, *, compactable_end: int, log_end: int, now_ms: int
) -> int:
    """The latest expiry of a tombstone that may go now.

    With `timestamp` and `header` a late record may lose to the tombstone, and must not come back because the
    tombstone went first. So every record appended before the expiry has to be compactable in this run; an
    earlier run that began after the expiry knows how far the log had come by then.
    """
    if settings.compaction_strategy in ("offset", "first"):
        return now_ms
    seen = [*at.runs, (now_ms, log_end)]
    return max((time_ms for time_ms, end in seen if end <= compactable_end), default=-1)


def drops_tombstones(
    rules: Rules, offsets: npt.NDArray[np.int64], timestamps_ms: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Of rows that are tombstones, which may go."""
    gone = np.zeros(len(offsets), np.bool_)
    for each in rules.expiring:
        gone |= (offsets >= each.start) & (offsets < each.end) & (timestamps_ms < each.before_ms)
    return gone


def may_expire(rules: Rules, first_offset: int, last_offset: int, min_timestamp_ms: int) -> bool:
    """Whether a tombstone of a segment may go, by what is known without opening it."""
    return any(
        each.start <= last_offset and first_offset < each.end and min_timestamp_ms < each.before_ms
        for each in rules.expiring
    )


def next_deadlines(
    settings: TopicSettings,
    at: Positions,
    rules: Rules,
    *,
    new_first_dirty: int,
    dirty_tombstones: bool,
    oldest_tombstone_ms: int | None,
    now_ms: int,
) -> tuple[Deadline, ...]:
    """The deadlines after a run. What it has freed of tombstones needs none; what it passed first gets its own.

    `oldest_tombstone_ms` is a lower bound of the timestamps of the tombstones that are left below
    `new_first_dirty`, None if there is none.
    """
    if settings.tombstone_clock == "record":
        if oldest_tombstone_ms is None:
            return ()
        return (
            Deadline(
                start=at.log_start,
                end=new_first_dirty,
                deadline_ms=max(oldest_tombstone_ms + settings.delete_retention_ms, now_ms),
            ),
        )
    left: list[Deadline] = []
    for deadline in at.deadlines:
        start, end = max(deadline.start, at.log_start), deadline.end
        for each in rules.expiring:
            # Ranges of a deadline are freed from its start on, so that what is left is again one range.
            if each.start <= start < each.end:
                start = each.end
        if start < end:
            left.append(Deadline(start=start, end=end, deadline_ms=deadline.deadline_ms))
    if dirty_tombstones and new_first_dirty > at.first_dirty:
        left.append(
            Deadline(
                start=at.first_dirty, end=new_first_dirty, deadline_ms=now_ms + settings.delete_retention_ms
            )
        )
    return _joined(left)


def _joined(deadlines: Sequence[Deadline]) -> tuple[Deadline, ...]:
    """Neighbouring ranges with the same deadline as one."""
    joined: list[Deadline] = []
    for each in deadlines:
        if joined and joined[-1].deadline_ms == each.deadline_ms and joined[-1].end == each.start:
            joined[-1] = Deadline(start=joined[-1].start, end=each.end, deadline_ms=each.deadline_ms)
        else:
            joined.append(each)
    return tuple(joined)
