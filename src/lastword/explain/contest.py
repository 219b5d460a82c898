"""Finds the winners among some keys, by compaction's own walk over the segments.

It uses the finder of survivors itself, but shows it only the keys that are asked about: to it, all other records have
no key and don't compete. So its set of keys is as small as the question, however large the partition is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.survivors import Mask, Survivors
from lastword.compaction.unit import Unit
from lastword.segments.raw import RawSegment

Rows = Mapping[str, npt.NDArray[np.int64]]
"""The numbers of the rows that are asked about, by the path of their segment."""


@dataclass(slots=True)
class Found:
    """Which of the rows that were asked about win, and which of those are not too old, by the path of a segment."""

    won: dict[str, Mask] = field(default_factory=dict)
    stay: dict[str, Mask] = field(default_factory=dict)
    winners: dict[bytes, int] = field(default_factory=dict)
    """The offset of the winner of each key."""


def contest(unit: Unit, rows: Rows, keys: Sequence[bytes]) -> Found:
    """Let all of a unit's records with some keys compete. Return the result for some rows."""
    finder = _Finder(unit, rows, keys)
    for index, mask in finder.masks():
        path = unit.segments[index].path
        if path in rows:
            finder.found.stay[path] = mask[rows[path]]
    return finder.found


class _Finder(Survivors):
    """A finder of survivors that sees only some keys, and remembers the winners before age is considered."""

    def __init__(self, unit: Unit, rows: Rows, keys: Sequence[bytes]) -> None:
        super().__init__(unit)
        self._rows = rows
        self._wanted = pa.array(keys, pa.binary())
        self.found = Found()

    def runs(self, raw: RawSegment, *, backwards: bool = False) -> Iterator[tuple[int, pa.Array]]:
        for first_row, run in super().runs(raw, backwards=backwards):
            wanted = self._wanted.cast(run.type)
            yield (
                first_row,
                pc.if_else(pc.is_in(run, value_set=wanted), run, pa.scalar(None, run.type)),
            )

    def drop_old(self, raw: RawSegment, mask: Mask) -> None:
        path = raw.segment.path
        if path in self._rows:
            self.found.won[path] = mask[self._rows[path]]
        if len(self._wanted):
            rows = raw.columns(["offset", "key"])
            wanted = self._wanted.cast(rows.column("key").type)
            is_wanted = pc.is_in(rows.column("key"), value_set=wanted).to_numpy()
            winning = rows.filter(pa.array(is_wanted & (mask == 1)))
            self.found.winners |= dict(
                zip(winning.column("key").to_pylist(), winning.column("offset").to_pylist(), strict=True)
            )
        super().drop_old(raw, mask)
