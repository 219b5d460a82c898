"""The verdict on one record, its rule, and what ends its stay: a pure function of what compaction found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lastword.compaction import rules as rule
from lastword.compaction.holds import ReaderPosition
from lastword.compaction.plan import PartitionPlan
from lastword.compaction.rules import ReaderHold
from lastword.config import TopicSettings
from lastword.explain.model import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A record, and what compaction found about it."""

    offset: int
    timestamp_ms: int
    """The time by which it ages."""
    has_key: bool
    has_value: bool
    in_run: bool
    """Its segment is part of the run."""
    won: bool = True
    """No other record of the run beats it."""
    is_young: bool = True
    """It is not older than retention.ms, if that applies."""
    winner: int | None = None
    """The winner of its key in the run."""
    later_winner: int | None = None
    """The winner of its key once everything may be compacted."""
    later_winner_ms: int | None = None
    """When that record may be compacted, if known."""
    is_sealed: bool = True
    seals_ms: int | None = None
    compactable_ms: int | None = None
    """The time from which its segment may be compacted."""
    segment_max_timestamp_ms: int = 0
    beaten_at_seal: int | None = None
    """The record that beats it when both are sealed, before the run."""

    @property
    def is_tombstone(self) -> bool:
        return self.has_key and not self.has_value


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run: its plan, whether it is due, and the readers."""

    settings: TopicSettings
    log_start: int
    plan: PartitionPlan | None
    """None: there is nothing that a run could work on."""
    is_due: bool
    all_compactable: bool
    hold: ReaderHold
    readers: Sequence[ReaderPosition]
    now_ms: int


def verdict(record: Facts, run: RunFacts) -> Verdict:
    if record.beaten_at_seal is not None:
        return Verdict(goes=True, rule="beaten", beaten_by=record.beaten_at_seal, at_seal=True)
    found = (
        _in_run(record, run, run.plan) if record.in_run and run.plan is not None else _left_out(record, run)
    )
    if found.goes and not run.is_due:
        return replace(found, goes=False, waits_for="a run")
    return found


def _in_run(record: Facts, run: RunFacts, plan: PartitionPlan) -> Verdict:
    """Apply the rules in their order."""
    if record.offset < plan.rules.log_start:
        return Verdict(goes=True, rule="below the log start")
    if not plan.keyed:
        return _kept_by_policy(record, run)
    if not record.won:
        return Verdict(goes=True, rule="beaten", beaten_by=record.winner)
    if (
        record.is_tombstone
        and rule.drops_tombstones(
            plan.rules, np.array([record.offset]), np.array([record.timestamp_ms])
        ).any()
    ):
        return Verdict(goes=True, rule="expired tombstone")
    if not record.is_young:
        return Verdict(goes=True, rule="too old")
    return _stays(record, run, plan)


def _stays(record: Facts, run: RunFacts, plan: PartitionPlan) -> Verdict:
    if not record.has_key:
        return _until_too_old(Verdict(goes=False, rule="no key"), record, run)
    later = _later(record)
    if record.is_tombstone:
        waits = rule.why_tombstone_waits(
            run.settings,
            plan.positions,
            record.offset,
            record.timestamp_ms,
            compactable_end=plan.compactable_end,
            all_compactable=run.all_compactable,
            seen=plan.seen,
            hold=run.hold,
            now_ms=run.now_ms,
        )
        assert waits is not None, record
        waits_for, until_ms = waits
        if waits_for == "first run" and run.is_due:
            # This run sets its deadline, or is the round for which it has to stay.
            until_ms = _expiry_after_first_run(record, run)
        readers = tuple(each for each in run.readers if each.position <= record.offset)
        return Verdict(
            goes=False,
            rule="tombstone",
            beaten_by=later,
            waits_for=waits_for,
            until_ms=until_ms,
            readers=readers if waits_for == "reader" else (),
        )
    kept = Verdict(goes=False, rule="last word", beaten_by=later)
    if later is not None:
        return replace(kept, waits_for="newer record", until_ms=record.later_winner_ms)
    return _until_too_old(kept, record, run)


def _expiry_after_first_run(record: Facts, run: RunFacts) -> int:
    if run.settings.tombstone_clock == "compaction":
        return run.now_ms + run.settings.delete_retention_ms
    return max(run.now_ms, record.timestamp_ms + run.settings.delete_retention_ms)


def _left_out(record: Facts, run: RunFacts) -> Verdict:
    """Return the verdict on a record that the run does not look at."""
    if record.offset < run.log_start:
        return Verdict(goes=False, rule="below the log start", waits_for="a run")
    if not record.is_sealed:
        return Verdict(
            goes=False,
            rule="not in the run",
            beaten_by=_later(record),
            waits_for="sealing",
            until_ms=record.seals_ms,
        )
    if not run.settings.compacts:
        return _kept_by_policy(record, run)
    return Verdict(
        goes=False,
        rule="not in the run",
        beaten_by=_later(record),
        waits_for="min.compaction.lag.ms",
        until_ms=record.compactable_ms,
    )


def _kept_by_policy(record: Facts, run: RunFacts) -> Verdict:
    """Keep a record under a policy without `compact`: only retention removes records, whole segments at a time."""
    kept = Verdict(goes=False, rule="not compacted")
    settings = run.settings
    if not settings.deletes or settings.retention_ms is None:
        return kept
    return replace(
        kept,
        waits_for="retention.ms",
        until_ms=record.segment_max_timestamp_ms + settings.retention_ms + 1,
    )


def _later(record: Facts) -> int | None:
    """Return the record that beats it once everything may be compacted."""
    return record.later_winner if record.later_winner != record.offset else None


def _until_too_old(kept: Verdict, record: Facts, run: RunFacts) -> Verdict:
    settings = run.settings
    if not settings.deletes or settings.retention_ms is None:
        return kept
    return replace(kept, waits_for="retention.ms", until_ms=record.timestamp_ms + settings.retention_ms + 1)
