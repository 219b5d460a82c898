"""The topics that a consumer subscribed to, read from the metadata with which it joined its group.

The metadata is the client's own affair but for this beginning, which every consumer writes: a version (int16), then
an array (int32) of topics (each an int16 and so many bytes).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

CONSUMER_PROTOCOL = "consumer"

_LENGTH = struct.Struct(">h")
_COUNT = struct.Struct(">hi")


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """All topics that members subscribed to; None if some of the metadata is not a consumer's."""
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
