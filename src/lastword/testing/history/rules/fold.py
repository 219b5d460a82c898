"""The true fold of a log, advanced from log end to log end, and compared with the states that reads returned."""

from __future__ import annotations

from collections.abc import Mapping

from lastword.testing.history.findings import Event, Findings
from lastword.testing.history.rules.shown import Interval, Shown
from lastword.testing.history.rules.visible import how_known
from lastword.testing.history.truth.entries import Entry, beats, ranks
from lastword.testing.history.truth.partition import PartitionLog
from lastword.testing.history.truth.reading import Truth
from lastword.testing.history.truth.settings import Strategy
from lastword.testing.history.words import record_text, text_of


class Fold:
    """The true fold of one log, advanced from log end to log end, and compared with the states that reads returned."""

    def __init__(self, log: PartitionLog, truth: Truth, findings: Findings, shared: set[bytes]) -> None:
        self._log = log
        self._truth = truth
        self._findings = findings
        self._shared = shared
        self._winners: dict[bytes, Entry] = {}
        self._live = 0
        self._place = 0
        self._rivals: dict[bytes, list[Entry]] = {key: list(found) for key, found in log.doubts.items()}
        for each in log.maybes.values():
            if each.key is not None:
                self._rivals.setdefault(each.key, []).append(each)

    def check(self, shown: list[Shown]) -> None:
        for each in sorted(shown, key=lambda one: one.low):
            strategy = self._log.strategy_at(each.completed)
            if strategy is None or (strategy.is_versioned and self._has_unknown_ranks(strategy)):
                continue
            self._advance(each.low, strategy)
            self._compare(each, strategy)

    def _has_unknown_ranks(self, strategy: Strategy) -> bool:
        return any(
            ranks(each, strategy)[0] != ranks(each, strategy)[1] for each in self._log.entries.values()
        )

    def _advance(self, end: int, strategy: Strategy) -> None:
        """Add the records below a log end to the fold."""
        offsets, entries = self._log.offsets, self._log.entries
        while self._place < len(offsets) and offsets[self._place] < end:
            entry = entries[offsets[self._place]]
            self._place += 1
            if entry.key is None:
                continue
            before = self._winners.get(entry.key)
            if before is None or beats(entry, before, strategy):
                self._winners[entry.key] = entry
                self._live += (entry.value is not None) - (before is not None and before.value is not None)

    def _compare(self, shown: Shown, strategy: Strategy) -> None:
        winners = self._winners
        moving = self._moving(shown)
        doubtful = set(moving)
        matched = 0
        for key, value in shown.state.items():
            if key in moving:
                continue
            winner = winners.get(key)
            if winner is not None and winner.value == value:
                matched += 1
            else:
                doubtful.add(key)
        live = self._live
        for key in moving:
            winner = winners.get(key)
            live -= winner is not None and winner.value is not None
        if matched < live:
            doubtful |= {
                key for key, winner in winners.items() if winner.value is not None and key not in shown.state
            }
        self._findings.checked(shown.rule, matched + len(doubtful))
        if shown.is_pass:
            self._findings.checked("full-read", len(winners))
        allowed: dict[bytes, list[Interval]] = {}
        for key in doubtful - self._shared:
            found = self._allowed(key, shown, strategy)
            if found is None:
                continue
            if not found:
                self._is_wrong(key, shown)
            else:
                allowed[key] = found
        if len(allowed) > 1:
            self._check_together(allowed, shown)

    def _moving(self, shown: Shown) -> set[bytes]:
        """Return the keys whose winner depends on the log end."""
        found: set[bytes] = set()
        place, offsets = self._place, self._log.offsets
        while place < len(offsets) and offsets[place] < shown.high:
            key = self._log.entries[offsets[place]].key
            if key is not None:
                found.add(key)
            place += 1
        return found

    def _allowed(self, key: bytes, shown: Shown, strategy: Strategy) -> list[Interval] | None:
        """Return the log ends at which a key has the value that was returned. None means any."""
        value = shown.state.get(key)
        rivals = [each for each in self._rivals.get(key, ()) if each.since <= shown.completed]
        if any(self._explains(each, value, shown, strategy) for each in rivals):
            return None
        if rivals and (strategy.name != "offset" or shown.is_pass):
            return None
        found: list[Interval] = []
        winner = self._winners.get(key)
        low = shown.low
        for entry in self._log.by_key.get(key, ()):
            assert entry.offset is not None
            if entry.offset < shown.low:
                continue
            if shown.is_pass and entry.since <= shown.completed:
                # The pass may have missed a record that this one has superseded since.
                return None
            if entry.offset >= shown.high:
                break
            if self._is_legal(winner, value, key, shown, strategy):
                found.append((low, entry.offset))
            low = entry.offset + 1
            if winner is None or beats(entry, winner, strategy):
                winner = entry
        if self._is_legal(winner, value, key, shown, strategy):
            found.append((low, shown.high))
        return found

    def _explains(self, rival: Entry, value: bytes | None, shown: Shown, strategy: Strategy) -> bool:
        """Return whether a record that may be in the log may be the returned one."""
        if rival.value == value:
            return True
        return rival.taken_from <= shown.completed and (value is None or strategy.name != "offset")

    def _is_legal(
        self, winner: Entry | None, value: bytes | None, key: bytes, shown: Shown, strategy: Strategy
    ) -> bool:
        if winner is None:
            return value is None
        if winner.value == value:
            return True
        if winner.taken_from <= shown.completed:
            if value is None or shown.is_pass:
                return True
            return strategy.name != "offset" and self._has_value(key, value)
        if winner.expired_from <= shown.completed and strategy.name != "offset":
            return value is None or self._has_value(key, value)
        return winner.value is None and shown.is_pass and self._may_be_ghost(key, value, shown, strategy)

    def _has_value(self, key: bytes, value: bytes) -> bool:
        return any(each.value == value for each in self._log.by_key.get(key, ()))

    def _may_be_ghost(self, key: bytes, value: bytes | None, shown: Shown, strategy: Strategy) -> bool:
        if value is None or not self._has_value(key, value):
            return False
        windows = [
            each.rules
            for each in self._log.life.windows
            if each.since <= shown.completed and each.until >= shown.began and each.rules.compacts
        ]
        if not windows:
            return False
        if strategy.name != "offset" or any(each.tombstone_clock != "compaction" for each in windows):
            return True
        clocks = {
            each.rules.tombstone_clock for each in self._log.life.windows if each.since <= shown.completed
        }
        if len(clocks) > 1:
            return True
        shortest = min(each.delete_retention_ms for each in windows)
        return self._truth.clock.span_ms(shown.began, shown.completed) >= shortest

    def _check_together(self, allowed: Mapping[bytes, list[Interval]], shown: Shown) -> None:
        """Check that one log end explains all keys. Sweep over the sorted bounds, and count the keys that each end satisfies."""
        bounds: list[tuple[int, int]] = []
        for found in allowed.values():
            for low, high in found:
                bounds += [(low, -1), (high, 1)]
        holding = 0
        for _, step in sorted(bounds):
            holding -= step
            if holding == len(allowed):
                return
        pair = _apart(allowed)
        words = " and ".join(record_text(key, shown.state.get(key)) for key in pair)
        self._findings.anomaly(
            shown.rule,
            f"{self._log.name} never had {words} at the same moment.",
            [
                *(event for key in pair for event in self._story(key, shown)),
                (shown.read, f"and saw {words}"),
            ],
            topic=self._log.life.topic,
            partition=self._log.number,
            key=pair[0],
        )

    # ---------------------------------------------------------------------------------------------- anomalies

    def _story(self, key: bytes, shown: Shown) -> list[Event]:
        """Return the last two records of a key that a read may have seen."""
        entries = [
            each
            for each in self._log.by_key.get(key, ())
            if each.offset is not None
            and (each.offset < shown.high or (shown.is_pass and each.offset < shown.low))
        ]
        value = shown.state.get(key)
        chosen = [each for each in entries if each.value == value][-1:] + entries[-1:]
        return [event for each in chosen for event in how_known(each)[:1]]

    def _is_wrong(self, key: bytes, shown: Shown) -> None:
        value = shown.state.get(key)
        winner = self._winners.get(key)
        proper = "no value" if winner is None or winner.value is None else record_text(key, winner.value)
        is_ghost = shown.is_pass and value is not None and winner is not None and winner.value is None
        known = value is None or self._has_value(key, value) or not self._truth.options.only_recorded
        seen = f"no value of {text_of(key)}" if value is None else record_text(key, value)
        self._findings.anomaly(
            "refused" if not known else "full-read" if is_ghost else shown.rule,
            f"{'A full read' if shown.is_pass else 'The state'} of {self._log.name} has {seen}; "
            f"{text_of(key)} has {proper} there.",
            [
                *self._story(key, shown),
                (winner.produce if winner is not None else None, _of_winner(winner)),
                (shown.read, f"and saw {seen}"),
            ],
            topic=self._log.life.topic,
            partition=self._log.number,
            offset=None if winner is None else winner.offset,
            key=key,
        )


def _of_winner(winner: Entry | None) -> str:
    return "" if winner is None else f"{record_text(winner.key, winner.value)} at offset {winner.offset}"


def _apart(allowed: Mapping[bytes, list[Interval]]) -> list[bytes]:
    """Return the keys whose log ends are furthest apart, so that no end satisfies all of them."""
    first = min(allowed, key=lambda key: allowed[key][-1][1])
    last = max(allowed, key=lambda key: allowed[key][0][0])
    return [first] if first == last else [first, last]
