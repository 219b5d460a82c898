"""A number for each key, compiled: what sketches count. Stored sketches depend on it, so it never changes."""

# mypy: disable-error-code="no-any-return, untyped-decorator"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit


@njit(nogil=True, cache=True)
def hash_keys(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint64]
) -> None:
    """64 bits, so that even billions of keys hardly ever share one, and nothing in common with the partitioner's hash."""
    for row in range(hashes.size):
        at = np.int64(offsets[row])
        end = np.int64(offsets[row + 1])
        mixed = np.uint64(end - at) * np.uint64(0x9E3779B97F4A7C15)
        while at < end:
            word = np.uint64(0)
            for index in range(min(8, int(end - at))):
                word |= np.uint64(data[at + index]) << np.uint64(8 * index)
            mixed = (mixed ^ word) * np.uint64(0xD6E8FEB86659FD93)
            mixed ^= mixed >> np.uint64(32)
            at += 8
        mixed *= np.uint64(0xA0761D6478BD642F)
        hashes[row] = mixed ^ (mixed >> np.uint64(29))
