"""Finds the rows of a partition's segments that survive: one mask per segment, from keys and versions alone.

With `offset` the segments are walked from the newest to the oldest, with a set of the keys seen so far: a row
survives if its key is not in the set yet. A segment's mask is final as soon as its own keys have been read, so
it can be rewritten while the walk continues. No key occurs twice in clean segments, so their keys need not be
added. With `first` the walk goes the other way. With `timestamp` and `header` the best row of each key is known
only when everything has been read.

Age and the log start are part of the masks. Tombstones are not, because they need the values: see rewrite.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.compaction.keyset import BestVersions, KeySet, Share
from lastword.compaction.strategy import Versions
from lastword.compaction.unit import Unit
from lastword.segments.footer import FileMetadata
from lastword.segments.model import Segment
from lastword.segments.raw import RawSegment

Mask = npt.NDArray[np.uint8]

EXPECTED_KEYS = 1 << 19
"""The number of keys for which a set begins with room, if there are as many records."""


class Survivors:
    """The masks of the segments of a unit. With a share, they cover only the keys that fall to it."""

    def __init__(self, unit: Unit, share: Share | None = None) -> None:
        self._unit = unit
        self._share = share or Share()
        self.read_bytes = 0
        self.set_bytes = 0
        self.footers: dict[int, FileMetadata] = {}
        """The footers of opened segments, so that they need not be read when a segment is opened again."""

    def masks(self) -> Iterator[tuple[int, Mask]]:
        """Return the index and mask of each segment, the newest first."""
        if not self._unit.keyed:
            return self._all()
        match self._unit.rules.strategy.order:
            case "newest":
                return self._newest_wins()
            case "oldest":
                return self._oldest_wins()
            case "version":
                return self._best_version_wins()

    def _all(self) -> Iterator[tuple[int, Mask]]:
        for index in reversed(range(len(self._unit.segments))):
            with self.open(index) as raw:
                mask = np.ones(raw.segment.records, np.uint8)
                mask[: self._rows_below_log_start(raw)] = 0
                self.drop_old(raw, mask)
            yield index, mask

    def _newest_wins(self) -> Iterator[tuple[int, Mask]]:
        keys = self._new_set()
        for index in reversed(range(len(self._unit.segments))):
            with self.open(index) as raw:
                mask = np.zeros(raw.segment.records, np.uint8)
                only_look_up = self._unit.clean_is_unique and self._unit.is_clean(raw.segment)
                for row, run in self.runs(raw, backwards=True):
                    part = mask[row : row + len(run)]
                    if only_look_up:
                        keys.look_up(run, part)
                    else:
                        keys.add(run, part, backwards=True)
                self.drop_old(raw, mask)
            self.set_bytes = keys.nbytes
            yield index, mask

    def _oldest_wins(self) -> Iterator[tuple[int, Mask]]:
        keys = self._new_set()
        found: list[Mask] = []
        for index in range(len(self._unit.segments)):
            with self.open(index) as raw:
                mask = np.zeros(raw.segment.records, np.uint8)
                for row, run in self.runs(raw):
                    keys.add(run, mask[row : row + len(run)])
                self.drop_old(raw, mask)
            found.append(mask)
        self.set_bytes = keys.nbytes
        return reversed(list(enumerate(found)))

    def _best_version_wins(self) -> Iterator[tuple[int, Mask]]:
        keys = self._new_set()
        best = self._new_best(keys)
        mask = np.zeros(self._unit.records, np.uint8)
        bounds = np.cumsum([0, *(segment.records for segment in self._unit.segments)])
        for index, first_row in enumerate(bounds[:-1].tolist()):
            with self.open(index) as raw:
                known, versions = self.versions(raw)
                own = mask[first_row : first_row + raw.segment.records]
                for row, run in self.runs(raw):
                    rows = slice(row, row + len(run))
                    best.challenge(run, known[rows], versions[rows], own[rows], first_row + row)
        mask[best.rows()] = 1
        self.set_bytes = keys.nbytes
        for index in reversed(range(len(self._unit.segments))):
            own = mask[bounds[index] : bounds[index + 1]]
            with self.open(index) as raw:
                self.drop_old(raw, own)
            yield index, own

    def _new_set(self) -> KeySet:
        return KeySet(
            self._unit.seed,
            expected_keys=min(self._unit.records, EXPECTED_KEYS),
            share=self._share,
            max_bytes=self._unit.max_set_bytes,
        )

    def _new_best(self, keys: KeySet) -> BestVersions:
        return BestVersions(keys)

    def open(self, index: int) -> _Counted:
        """Open the file of a segment. The bytes read from it are counted."""
        raw = _Counted(self, self._unit, self._unit.segments[index], self.footers.get(index))
        self.footers[index] = raw.footer
        return raw

    def runs(self, raw: RawSegment, *, backwards: bool = False) -> Iterator[tuple[int, pa.Array]]:
        """Yield the keys of the rows that compete, run by run, each with the number of its first row."""
        skipped = self._rows_below_log_start(raw)
        for first_row, run in raw.key_runs(backwards=backwards):
            cut = min(max(skipped - first_row, 0), len(run))
            if cut < len(run):
                yield first_row + cut, run.slice(cut)

    def _rows_below_log_start(self, raw: RawSegment) -> int:
        if raw.segment.first_offset >= self._unit.rules.log_start:
            return 0
        offsets = raw.columns(["offset"]).column("offset").to_numpy()
        return int(np.searchsorted(offsets, self._unit.rules.log_start))

    def drop_old(self, raw: RawSegment, mask: Mask) -> None:
        """Drop rows that are older than retention.ms from a mask."""
        before_ms = self._unit.rules.retention_before_ms
        if before_ms is not None and raw.segment.min_timestamp_ms < before_ms:
            mask[milliseconds(raw.columns(["timestamp"]).column("timestamp")) < before_ms] = 0

    def versions(self, raw: RawSegment) -> Versions:
        strategy = self._unit.rules.strategy
        return strategy.versions(raw.columns(strategy.columns))


def finish(unit: Unit, index: int, mask: Mask) -> int:
    """Complete a mask that only keys decided: keep rows without a key, drop old rows. Return the bytes read."""
    segment = unit.segments[index]
    finder = Survivors(unit)
    before_ms = unit.rules.retention_before_ms
    if segment.null_keys or (before_ms is not None and segment.min_timestamp_ms < before_ms):
        with finder.open(index) as raw:
            if segment.null_keys:
                for row, run in finder.runs(raw):
                    mask[row : row + len(run)] |= (
                        run.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)
                    )
            finder.drop_old(raw, mask)
    return finder.read_bytes


class _Counted(RawSegment):
    """A segment file that adds the bytes read from it to the finder's count when it is closed."""

    def __init__(self, finder: Survivors, unit: Unit, segment: Segment, footer: FileMetadata | None) -> None:
        super().__init__(unit.files, segment, footer)
        self._finder = finder

    def __exit__(self, *exc: object) -> None:
        self._finder.read_bytes += self.read_bytes
        super().__exit__(*exc)


def milliseconds(timestamps: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Convert a timestamp column to whole milliseconds."""
    microseconds: npt.NDArray[np.int64] = timestamps.cast(pa.int64()).to_numpy()
    return microseconds // 1000


def pack(mask: Mask) -> bytes:
    """Pack a mask into an eighth of its size, to send it between tasks."""
    return np.packbits(mask).tobytes()


def unpack(packed: Sequence[bytes], rows: int) -> Mask:
    """Return the union of packed masks, one of each share."""
    united = np.bitwise_or.reduce([np.frombuffer(each, np.uint8) for each in packed])
    return np.unpackbits(united, count=rows)
