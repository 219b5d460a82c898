"""Finds the winners one record at a time, with the real finder.

The finder gets the records one by one, in its own order. Each step is the state of its set of keys, or of its table of
best versions, after a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lastword.compaction.keyset import BestVersions, KeySet
from lastword.compaction.survivors import Survivors
from lastword.compaction.unit import Unit
from lastword.segments.raw import RawSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkStep:
    """A record, and the state of the finder after it."""

    offset: int
    has_key: bool
    leads: bool
    """Whether no record so far supersedes it."""
    overtakes: int | None
    """The offset that led before, for strategies that compare versions."""
    keys_seen: int
    """The number of keys in the set after this record."""


def walk(unit: Unit) -> list[WalkStep]:
    """Return the steps in which the winners of a unit are found."""
    finder = _StepByStep(unit)
    # Iterating over the masks runs the finder, which records the steps.
    for _ in finder.masks():
        pass
    return finder.steps()


class _StepByStep(Survivors):
    def __init__(self, unit: Unit) -> None:
        super().__init__(unit)
        self._offsets = {
            segment.path: self._read_offsets(index) for index, segment in enumerate(unit.segments)
        }
        self._keys: KeySet | None = None
        self._best: BestVersions | None = None
        self._looked_at: list[tuple[int, bool, int]] = []
        self._leaders: list[set[int]] = []
        self._won: set[int] = set()

    def steps(self) -> list[WalkStep]:
        found: list[WalkStep] = []
        led: set[int] = set()
        for index, (offset, has_key, keys_seen) in enumerate(self._looked_at):
            overtakes = None
            leads = offset in self._won
            if self._best is not None:
                leads = not has_key or offset in self._leaders[index]
                overtakes = next(iter(led - self._leaders[index]), None)
                led = self._leaders[index]
            found.append(
                WalkStep(
                    offset=offset, has_key=has_key, leads=leads, overtakes=overtakes, keys_seen=keys_seen
                )
            )
        return found

    def runs(self, raw: RawSegment, *, backwards: bool = False) -> Iterator[tuple[int, pa.Array]]:
        offsets = self._offsets[raw.segment.path]
        for first_row, run in super().runs(raw, backwards=backwards):
            rows = range(len(run))
            for row in reversed(rows) if backwards else rows:
                yield first_row + row, run.slice(row, 1)
                # The finder asks for the next record, so this one is in its set.
                assert self._keys is not None
                self._looked_at.append((int(offsets[first_row + row]), run[row].is_valid, len(self._keys)))
                if self._best is not None:
                    self._leaders.append(self._leading_offsets(self._best))

    def drop_old(self, raw: RawSegment, mask: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        self._won |= set(self._offsets[raw.segment.path][mask == 1].tolist())
        super().drop_old(raw, mask)

    def _new_set(self) -> KeySet:
        self._keys = super()._new_set()
        return self._keys

    def _new_best(self, keys: KeySet) -> BestVersions:
        self._best = super()._new_best(keys)
        return self._best

    def _leading_offsets(self, best: BestVersions) -> set[int]:
        offsets = np.concatenate([self._offsets[segment.path] for segment in self._unit.segments])
        return set(offsets[best.rows()].tolist())

    def _read_offsets(self, index: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        with self.open(index) as raw:
            found: np.ndarray[tuple[int], np.dtype[np.int64]] = (
                raw.columns(["offset"]).column("offset").to_numpy()
            )
            return found
