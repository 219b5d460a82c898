"""Chooses the partition of a record: the one that it names, else the one of its key, else each in turn."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from lastword.batch.partitioner import RoundRobin, partition_of, partitions_of
from lastword.errors import InvalidRecordError, UnknownPartitionError


def check_partition(topic: str, partition: int, partitions: int) -> int:
    """Return a partition's number. Raise UnknownPartitionError if the topic does not have it."""
    if not 0 <= partition < partitions:
        raise UnknownPartitionError(
            f"Topic {topic!r} has no partition {partition}; it has 0 to {partitions - 1}."
        )
    return partition


class Router:
    """Chooses partitions for the records of a topic. Safe from several threads."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._turns = RoundRobin()
        self._lock = threading.Lock()

    def route(self, key: bytes | None, given: int | None, partitions: int) -> int:
        """Return the partition of one record, given the number of partitions."""
        if given is not None:
            return check_partition(self._topic, given, partitions)
        if key is not None:
            if not isinstance(key, bytes):
                raise InvalidRecordError(f"a key is {type(key).__name__}; bytes or None are allowed")
            return partition_of(key, partitions) if partitions > 1 else 0
        with self._lock:
            return self._turns.next(partitions)

    def route_rows(
        self, table: pa.Table, keys: pa.ChunkedArray, given: int | None, partitions: int
    ) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Return the partition of each row. A row may name its own in the column `partition`."""
        if given is not None:
            return np.full(len(table), check_partition(self._topic, given, partitions), np.int32)
        with self._lock:
            chosen = partitions_of(keys.combine_chunks(), partitions, self._turns)
        if "partition" in table.column_names:
            try:
                own = table.column("partition").cast(pa.int32())
            except pa.ArrowException as error:
                raise InvalidRecordError(f"The Arrow table's partition can't be used: {error}") from error
            for each in own.unique().drop_null().to_pylist():
                check_partition(self._topic, each, partitions)
            chosen[own.is_valid().to_numpy()] = own.drop_null().to_numpy()
        return chosen
