"""Estimates how many distinct keys segments have, without reading them: a theta sketch in each file's footer.

The union of the theta sketches of several segments is the sketch of all of them, which the dirty ratio by records
and the estimates of a plan need. The sketches are Apache DataSketches', as Iceberg keeps them for columns.

The library takes one number per call, far too slow for every key. But a sketch keeps only the keys whose hash
is below a threshold, so `KeySketch` finds those with the library's own hash, compiled, and passes on only them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import datasketches
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.batch.columns import binary_column
from lastword.segments.model import Segment

if TYPE_CHECKING:
    from lastword.segments.parquet import SegmentFiles

_LOG_K: Final = 11
_SEED: Final = 9001
_HASH_BITS: Final = 63

MAX_FOOTERS: Final = 4096

_UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterKeys:
    """The facts about a file's keys in its footer."""

    sketch: bytes
    key_bytes: int


_footers: dict[Segment, FooterKeys] = {}


class KeySketch:
    """Collects the keys of a file that is being written."""

    def __init__(self) -> None:
        # The numbers that stand for keys with the lowest hashes so far, by hash, without duplicates.
        self._numbers = np.empty(0, np.uint64)
        self._hashes = np.empty(0, np.uint64)
        self._threshold = 1 << _HASH_BITS

    def add(self, keys: pa.Array) -> None:
        """Add a column of keys. Null is no key."""
        numbers, hashes = _low_keys(keys, self._threshold)
        hashes, first = np.unique(np.concatenate([self._hashes, hashes]), return_index=True)
        numbers = np.concatenate([self._numbers, numbers])[first]
        if len(hashes) > 1 << _LOG_K:
            self._threshold = int(hashes[1 << _LOG_K])
        self._hashes, self._numbers = hashes[: 1 << _LOG_K], numbers[: 1 << _LOG_K]

    def to_bytes(self) -> bytes:
        sketch = datasketches.update_theta_sketch(_LOG_K, p=self._threshold / (1 << _HASH_BITS), seed=_SEED)
        for number in self._numbers.astype(np.int64).tolist():
            sketch.update(number)
        return bytes(sketch.compact().serialize())


def distinct_keys(sketches: Iterable[bytes]) -> float:
    """Estimate how many distinct keys these have together (within about 5 % nineteen times out of twenty)."""
    union = datasketches.theta_union(_LOG_K, seed=_SEED)
    for each in sketches:
        union.update(datasketches.compact_theta_sketch.deserialize(each, seed=_SEED))
    return float(union.get_result().get_estimate())


class Sketches:
    """The facts about keys in the footers of segment files. Files never change, so each footer is read once."""

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files

    def distinct_keys(self, segments: Sequence[Segment]) -> float:
        """Estimate how many distinct keys these segments have together."""
        return distinct_keys(self._of(segment).sketch for segment in segments)

    def growing(self, segments: Sequence[Segment]) -> list[float]:
        """Estimate how many distinct keys the first of these segments has, the first two together, and so on."""
        union = datasketches.theta_union(_LOG_K, seed=_SEED)
        found = []
        for segment in segments:
            sketch = self._of(segment).sketch
            union.update(datasketches.compact_theta_sketch.deserialize(sketch, seed=_SEED))
            found.append(float(union.get_result().get_estimate()))
        return found

    def mean_key_bytes(self, segments: Sequence[Segment]) -> int:
        """Return the mean size of a key in these segments, rounded up."""
        found = [self._of(segment) for segment in segments]
        keys = sum(segment.records - segment.null_keys for segment in segments)
        return -(-sum(each.key_bytes for each in found) // keys) if keys else 0

    def _of(self, segment: Segment) -> FooterKeys:
        known = _footers.get(segment)
        if known is None:
            from lastword.segments.raw import RawSegment

            with RawSegment(self._files, segment) as raw:
                known = FooterKeys(sketch=raw.sketch(), key_bytes=raw.key_bytes())
            if len(_footers) >= MAX_FOOTERS:
                _footers.clear()
            _footers[segment] = known
        return known


def _low_keys(keys: pa.Array, threshold: int) -> tuple[_UInt64s, _UInt64s]:
    """Find the keys, without nulls, whose hash is below the threshold: numbers that stand for them, and hashes.

    Two keys share a number so rarely that no estimate is affected.
    """
    # Compiled code, loaded only by processes that write segments or need estimates.
    from lastword.segments._keyhash import find_low

    column = binary_column(keys.drop_null() if keys.null_count else keys)
    numbers, hashes = np.empty((2, len(column.offsets) - 1), np.uint64)
    found = find_low(column.data, column.offsets, np.uint64(_SEED), np.uint64(threshold), numbers, hashes)
    return numbers[:found], hashes[:found]
