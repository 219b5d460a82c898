"""The log of one partition in one life, as far as the history shows it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from lastword.testing.history.events import (
    DeleteRecords,
    Erase,
    Fetch,
    Positions,
    TimeTravel,
)
from lastword.testing.history.truth.clockline import NEVER
from lastword.testing.history.truth.entries import Entry
from lastword.testing.history.truth.lives import Life
from lastword.testing.history.truth.settings import Strategy


@dataclass(slots=True, eq=False)
class PartitionLog:
    """The known content of a partition's log, and the operations that read it. They can belong to no other life."""

    life: Life
    number: int
    entries: dict[int, Entry] = field(default_factory=dict)
    """The records that were certainly appended, by offset. Rules may permit their removal later."""
    maybes: dict[int, Entry] = field(default_factory=dict)
    """Records that are at this offset, if they are in the log: acknowledged in one of two lives, or in the part of a
    parent's log that may have been cut."""
    doubts: dict[bytes, list[Entry]] = field(default_factory=dict)
    """Records with a key that may be in the log, at an unknown offset."""
    fetches: list[Fetch] = field(default_factory=list)
    travels: list[TimeTravel] = field(default_factory=list)
    positions: list[Positions] = field(default_factory=list)
    deletions: list[DeleteRecords] = field(default_factory=list)
    erasures: list[Erase] = field(default_factory=list)
    """Deletions that may also belong to other lives, or be in doubt."""

    offsets: list[int] = field(default_factory=list)
    by_key: dict[bytes, list[Entry]] = field(default_factory=dict)
    """The entries of each key, in offset order."""
    _ends: list[tuple[int, int]] = field(default_factory=list)
    _limits: list[tuple[int, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.life.topic}/{self.number}"

    @property
    def has_append_time(self) -> bool:
        """Return whether the log may have set the timestamps."""
        return any(each.rules.has_append_time for each in self.life.windows)

    def index(self) -> None:
        """Prepare lookups. All entries must be known."""
        self.offsets = sorted(self.entries)
        self.by_key = {}
        for offset in self.offsets:
            entry = self.entries[offset]
            if entry.key is not None:
                self.by_key.setdefault(entry.key, []).append(entry)
        proofs = [(entry.known_by, offset + 1) for offset, entry in self.entries.items()]
        for fetch in self.fetches:
            if fetch.completed is not None and fetch.next_offset is not None:
                proofs.append((fetch.completed, fetch.next_offset))
        for each in self.positions:
            if each.completed is not None and each.log_end is not None:
                proofs.append((each.completed, each.log_end))
        proofs.sort()
        end = 0
        self._ends = []
        for known_by, proven in proofs:
            if proven > end:
                end = proven
                self._ends.append((known_by, end))
        limit = NEVER
        limits: list[tuple[int, int]] = []
        for since, offset in sorted(((e.since, o) for o, e in self.entries.items()), reverse=True):
            if offset < limit:
                limit = offset
                limits.append((since, limit))
        self._limits = limits[::-1]

    def end_known_before(self, number: int) -> int:
        """Return an offset that the log end had reached before a number of the order."""
        index = bisect_left(self._ends, (number, -1))
        return self._ends[index - 1][1] if index else 0

    def end_possible_at(self, number: int) -> int:
        """Return an offset that the log end had not passed at a number of the order."""
        index = bisect_left(self._limits, (number, -1))
        if index < len(self._limits):
            return self._limits[index][1]
        return self.offsets[-1] + 1 if self.offsets else 0

    def strategy_at(self, until: int) -> Strategy | None:
        """Return the strategy, if only one can have been in force up to a number of the order."""
        found = {each.rules.strategy for each in self.life.windows if each.since <= until}
        return next(iter(found)) if len(found) == 1 else None
