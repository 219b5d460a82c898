"""The partition of a key, exactly as Kafka's Java client chooses it, and turns for records without a key."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.batch.columns import binary_column

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_UINT32: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
RUN: Final = 512
"""The number of records in a row without a key that go to one partition."""


def murmur2(key: bytes) -> int:
    """Return Kafka's 32-bit hash of a key, unsigned."""
    whole = len(key) & ~3
    mixed = _SEED ^ len(key)
    for position in range(0, whole, 4):
        word = int.from_bytes(key[position : position + 4], "little") * _MULTIPLIER & _UINT32
        word = (word ^ word >> 24) * _MULTIPLIER & _UINT32
        mixed = mixed * _MULTIPLIER & _UINT32 ^ word
    if whole < len(key):
        mixed = (mixed ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _UINT32
    mixed = (mixed ^ mixed >> 13) * _MULTIPLIER & _UINT32
    return mixed ^ mixed >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition of a key."""
    return (murmur2(key) & _POSITIVE) % partition_count


class RoundRobin:
    """Partitions for records without a key: several records in a row to one partition, then to the next.

    Runs keep batches large, as Kafka's sticky partitioner does. Each producer uses one instance.
    """

    def __init__(self) -> None:
        self._taken = 0

    def next(self, partition_count: int) -> int:
        """Return the partition of the next record."""
        partition = self._taken // RUN % partition_count
        self._taken += 1
        return partition

    def take(self, record_count: int, partition_count: int) -> npt.NDArray[np.int32]:
        """Return the partitions of the next records."""
        places = np.arange(self._taken, self._taken + record_count, dtype=np.int64)
        self._taken += record_count
        return (places // RUN % partition_count).astype(np.int32)


def partitions_of(keys: pa.Array, partition_count: int, turns: RoundRobin) -> npt.NDArray[np.int32]:
    """Return the partition of each key of an Arrow binary column. Null keys take turns."""
    from lastword.batch.compiled import building

    hashes = np.zeros(len(keys), np.uint32)
    building.murmur2_all(binary_column(keys), hashes)
    partitions = ((hashes & np.uint32(_POSITIVE)) % np.uint32(partition_count)).astype(np.int32)
    if keys.null_count:
        without_key = keys.is_null().to_numpy(zero_copy_only=False)
        partitions[without_key] = turns.take(int(keys.null_count), partition_count)
    return partitions
