"""Finds the keys that a sketch keeps, in compiled code. Stored sketches depend on both hashes: they never change."""

# mypy: disable-error-code="no-any-return, untyped-decorator"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

_EIGHT = np.uint64(8)


@njit(nogil=True, cache=True)
def find_low(
    data: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int32],
    seed: np.uint64,
    threshold: np.uint64,
    numbers: npt.NDArray[np.uint64],
    hashes: npt.NDArray[np.uint64],
) -> int:
    """Find the keys whose hash is below the threshold: the number for each, and its hash. Return how many."""
    found = 0
    for row in range(offsets.size - 1):
        number = _number(data, np.uint64(offsets[row]), np.uint64(offsets[row + 1]))
        hashed = _theta_hash(number, seed)
        if hashed < threshold:
            numbers[found] = number
            hashes[found] = hashed
            found += 1
    return found


@njit(nogil=True, cache=True)
def _number(data: npt.NDArray[np.uint8], at: np.uint64, end: np.uint64) -> np.uint64:
    """Return 64 bits that even billions of keys hardly ever share, unrelated to the partitioner's hash."""
    mixed = (end - at) * np.uint64(0x9E3779B97F4A7C15)
    while at < end:
        word = np.uint64(0)
        # A loop of a fixed length becomes one load.
        if end - at >= _EIGHT:
            for index in range(8):
                word |= np.uint64(data[at + np.uint64(index)]) << np.uint64(8 * index)
        else:
            for index in range(end - at):
                word |= np.uint64(data[at + np.uint64(index)]) << np.uint64(8 * index)
        mixed = (mixed ^ word) * np.uint64(0xD6E8FEB86659FD93)
        mixed ^= mixed >> np.uint64(32)
        at += _EIGHT
    mixed *= np.uint64(0xA0761D6478BD642F)
    return mixed ^ (mixed >> np.uint64(29))


@njit(nogil=True, cache=True)
def _theta_hash(number: np.uint64, seed: np.uint64) -> np.uint64:
    """Return the library's hash of a number: the first half of MurmurHash3 (x64, 128 bits), without its last bit."""
    mixed = number * np.uint64(0x87C37B91114253D5)
    mixed = (mixed << np.uint64(31)) | (mixed >> np.uint64(33))
    mixed *= np.uint64(0x4CF5AD432745937F)
    first = (mixed ^ (seed ^ _EIGHT)) + (seed ^ _EIGHT)
    second = first + (seed ^ _EIGHT)
    return (_final_mix(first) + _final_mix(second)) >> np.uint64(1)


@njit(nogil=True, cache=True)
def _final_mix(mixed: np.uint64) -> np.uint64:
    mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return mixed ^ (mixed >> np.uint64(33))
