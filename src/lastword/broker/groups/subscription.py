"""The topics that a consumer subscribed to, read from the metadata with which it joined its group, and its assignment.

Clients define both formats, except for the beginning, which every consumer writes: a version (int16), then an array
(int32) of topics (each an int16 and that many bytes). In an assignment, an array of partitions follows each topic.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

CONSUMER_PROTOCOL = "consumer"

_LENGTH = struct.Struct(">h")
_COUNT = struct.Struct(">hi")
_NUMBER = struct.Struct(">i")


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return all topics that members subscribed to, or None if some of the metadata is not a consumer's."""
    try:
        return frozenset(topic for each in metadata for topic, _ in _topics(each))
    except (struct.error, ValueError):
        return None


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]]:
    """Return the topics and partitions of an assignment, or none if it is not a consumer's."""
    try:
        return [
            (topic, partition)
            for topic, partitions in _topics(assignment, with_partitions=True)
            for partition in partitions
        ]
    except (struct.error, ValueError):
        return []


def _topics(data: bytes, *, with_partitions: bool = False) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the topics, and the partitions of each if the format has them."""
    version, count = _COUNT.unpack_from(data)
    if version < 0 or not 0 <= count <= len(data):
        raise ValueError(version, count)
    at = _COUNT.size
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if length < 0 or at + length > len(data):
            raise ValueError(length)
        topic = data[at : at + length].decode()
        at += length
        partitions: tuple[int, ...] = ()
        if with_partitions:
            (number,) = _NUMBER.unpack_from(data, at)
            at += _NUMBER.size
            if not 0 <= number <= len(data):
                raise ValueError(number)
            partitions = struct.unpack_from(f">{number}i", data, at)
            at += number * _NUMBER.size
        yield topic, partitions
