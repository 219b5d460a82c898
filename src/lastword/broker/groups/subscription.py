"""The topics that a consumer subscribed to, read from the metadata with which it joined its group, and its assignment.

Clients define both formats, except for the beginning, which every consumer writes: a version (int16), then an array
(int32) of topics (each an int16 and that many bytes). In an assignment, an array of partitions follows each topic.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

CONSUMER_PROTOCOL = "consumer"

_LENGTH = struct.Struct(">h")
_COUNT = struct.Struct(">hi")
_NUMBER = struct.Struct(">i")


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return all topics that members subscribed to, or None if some of the metadata is not a consumer's."""
    topics: set[str] = set()
    for each in metadata:
        try:
            topics.update(_topics(each))
        except (struct.error, ValueError):
            return None
    return frozenset(topics)


def _topics(metadata: bytes) -> list[str]:
    version, count = _COUNT.unpack_from(metadata)
    if version < 0 or not 0 <= count <= len(metadata):
        raise ValueError(version, count)
    found: list[str] = []
    at = _COUNT.size
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(metadata, at)
        at += _LENGTH.size
        if length < 0 or at + length > len(metadata):
            raise ValueError(length)
        found.append(metadata[at : at + length].decode())
        at += length
    return found


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]]:
    """Return the topics and partitions of an assignment, or none if it is not a consumer's."""
    try:
        return _partitions(assignment)
    except (struct.error, ValueError):
        return []


def _partitions(assignment: bytes) -> list[tuple[str, int]]:
    version, count = _COUNT.unpack_from(assignment)
    if version < 0 or not 0 <= count <= len(assignment):
        raise ValueError(version, count)
    found: list[tuple[str, int]] = []
    at = _COUNT.size
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(assignment, at)
        at += _LENGTH.size
        if length < 0 or at + length > len(assignment):
            raise ValueError(length)
        topic = assignment[at : at + length].decode()
        at += length
        (partitions,) = _NUMBER.unpack_from(assignment, at)
        at += _NUMBER.size
        if not 0 <= partitions <= len(assignment):
            raise ValueError(partitions)
        found += [(topic, number) for (number,) in _numbers(assignment, at, partitions)]
        at += partitions * _NUMBER.size
    return found


def _numbers(data: bytes, at: int, count: int) -> list[tuple[int]]:
    return [_NUMBER.unpack_from(data, at + index * _NUMBER.size) for index in range(count)]
