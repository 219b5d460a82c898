"""When the removal of a record becomes permitted.

The removal is permitted for ever once one of these was possible:

- under a policy with `compact`, another record of the key, which beats it by the strategy, was appended, and both were
  older than min.compaction.lag.ms;
- under a policy with `compact`, it is a tombstone and expired: delete.retention.ms after the lowest time that the clock
  showed since its append, or after its timestamp if tombstone.clock is `record`;
- under a policy with `delete`, it was older than retention.ms, or the policy limits the size;
- a DeleteRecords request with a higher offset took effect;
- an erasure of its key was requested, and the record was appended before the erasure ended.

Each counts from its earliest moment: a setting from its invocation, a time from the moment at which the clock may first
have shown it, and a record that beats this one from the moment at which it was sent, even if its append is uncertain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from lastword.testing.history.events import DeleteRecords
from lastword.testing.history.truth.clockline import NEVER, Clockline
from lastword.testing.history.truth.entries import Entry, ranks
from lastword.testing.history.truth.partition import PartitionLog
from lastword.testing.history.truth.settings import Strategy, Window

Groups = dict[bytes, tuple[list[Entry], list[Entry]]]


def excuse(log: PartitionLog, clock: Clockline) -> None:
    """Set for each entry of a log when its removal becomes permitted. Earlier excuses, from a parent's log, stay."""
    windows = log.life.windows
    compacting = [each for each in windows if each.rules.compacts]
    taking = _Taking(log, clock)
    loose = [entry for found in log.doubts.values() for entry in found] + list(log.maybes.values())
    for entry in [*log.entries.values(), *loose]:
        entry.taken_from = min(entry.taken_from, taking.since(entry))
        if compacting and entry.is_tombstone:
            entry.expired_from = min(entry.expired_from, _expired_from(entry, windows, clock))
        entry.gone_from = min(entry.gone_from, entry.taken_from, entry.expired_from)
    if not compacting:
        return
    rivals: dict[bytes, list[Entry]] = {}
    for entry in loose:
        if entry.key is not None:
            rivals.setdefault(entry.key, []).append(entry)
    for window in compacting:
        for key, entries in log.by_key.items():
            others = rivals.get(key)
            if len(entries) > 1 or others:
                _beaten(entries, others or [], window, clock)


class _Taking:
    """Finds when rules other than compaction permit the removal of entries."""

    def __init__(self, log: PartitionLog, clock: Clockline) -> None:
        self._clock = clock
        self._deleting = [each for each in log.life.windows if each.rules.deletes]
        deletions = sorted(log.deletions, key=_before)
        self._before = [_before(each) for each in deletions]
        # For each deletion, the number at which it or one with a higher offset was first invoked.
        self._invoked = list(accumulate((each.invoked for each in reversed(deletions)), min))[::-1]
        self._erasures: dict[bytes, list[tuple[int, int]]] = {}
        for each in log.erasures:
            until = clock.effect_until(each)
            for key in each.keys:
                self._erasures.setdefault(key, []).append((each.invoked, until))

    def since(self, entry: Entry) -> int:
        found = NEVER
        if self._before:
            index = 0 if entry.offset is None else bisect_right(self._before, entry.offset)
            if index < len(self._invoked):
                found = self._invoked[index]
        if self._erasures and entry.key is not None:
            for invoked, until in self._erasures.get(entry.key, ()):
                if entry.since <= until:
                    found = min(found, max(invoked, entry.since))
        for window in self._deleting:
            if window.rules.has_size_limit:
                found = min(found, _in(window, entry.since))
            elif window.rules.retention_ms is not None:
                old = self._clock.reached(_age_from(entry, self._clock) + window.rules.retention_ms)
                found = min(found, _in(window, old))
        return found


def _before(each: DeleteRecords) -> int:
    """Return the offset below which records are deleted. Kafka's -1 means the log end."""
    return each.before_offset if each.before_offset >= 0 else NEVER


def _in(window: Window, number: int) -> int:
    """Return the first number at or after another one that is in a window."""
    found = max(window.since, number)
    return found if found <= window.until else NEVER


def _age_from(entry: Entry, clock: Clockline) -> float:
    """Return the time from which the age of a record counts, or an earlier time."""
    if entry.timestamp_ms is not None and entry.timestamp_ms >= 0:
        return entry.timestamp_ms
    return clock.lowest_from(entry.since)


def _expired_from(entry: Entry, windows: Iterable[Window], clock: Clockline) -> int:
    found = NEVER
    shortest = NEVER
    appended_ms = clock.lowest_from(entry.since)
    for window in windows:
        rules = window.rules
        # A deadline that was set under earlier settings may still apply under later ones.
        shortest = min(shortest, rules.delete_retention_ms)
        if not rules.compacts:
            continue
        if rules.tombstone_clock == "record":
            expired = clock.reached(_age_from(entry, clock) + rules.delete_retention_ms)
        else:
            expired = clock.reached(appended_ms + shortest)
        found = min(found, _in(window, max(expired, entry.since)))
    return found


def _beaten(entries: list[Entry], rivals: list[Entry], window: Window, clock: Clockline) -> None:
    """Note when other records of the key may have beaten entries, as far as one window allows."""
    lag_ms = window.rules.min_lag_ms
    strategy = window.rules.strategy

    def ready(entry: Entry) -> int:
        if not lag_ms:
            return entry.since
        return max(entry.since, clock.reached(_age_from(entry, clock) + lag_ms))

    if strategy.is_versioned:
        _beaten_by_version(entries, rivals, window, [ready(each) for each in entries], strategy)
        return
    is_first = strategy.name == "first"
    best = NEVER
    for entry in entries if is_first else reversed(entries):
        own = best
        for rival in rivals:
            if rival is not entry and _may_be_beside(rival, entry, is_first):
                own = min(own, ready(rival))
        if own < NEVER:
            entry.gone_from = min(entry.gone_from, _in(window, max(own, ready(entry) if lag_ms else own)))
        best = min(best, ready(entry))


def _may_be_beside(rival: Entry, entry: Entry, before: bool) -> bool:
    """Return whether a record that may be in the log may come before an entry, or after it."""
    if rival.offset is not None and entry.offset is not None:
        return rival.offset < entry.offset if before else rival.offset > entry.offset
    if before:
        return rival.since <= entry.known_by
    return rival.until >= entry.since


def _beaten_by_version(
    entries: list[Entry], rivals: list[Entry], window: Window, readies: list[int], strategy: Strategy
) -> None:
    highs = []
    for entry, ready in zip(entries, readies, strict=True):
        highs.append((*ranks(entry, strategy)[1], entry.offset or 0, ready))
    for rival in rivals:
        highs.append(
            (*ranks(rival, strategy)[1], NEVER if rival.offset is None else rival.offset, rival.since)
        )
    highs.sort()
    earliest = list(accumulate((each[3] for each in reversed(highs)), min))[::-1]
    for entry, ready in zip(entries, readies, strict=True):
        low = (*ranks(entry, strategy)[0], entry.offset or 0, NEVER)
        index = bisect_right(highs, low)
        if index < len(highs):
            number = max(earliest[index], ready if window.rules.min_lag_ms else earliest[index])
            entry.gone_from = min(entry.gone_from, _in(window, number))
