"""Chooses the neighbouring segments that become one file, while their masks arrive, the newest segment first.

Segments that are rewritten anyway are joined while the result stays under segment.bytes. So are dirty segments,
which are new and often small. A clean segment that loses nothing joins only if it is no larger than the group
that it joins: each rewrite at least doubles the file, so that no record is rewritten often. A file that is large
enough takes in no more, and the next one can be written in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A segment, its expected size, whether it loses records, and whether it may be joined freely.

    It may if it is rewritten anyway, or new. `spared`: it would lose so few records that it is left alone.
    """

    index: int
    expected_bytes: int
    loses: bool
    free_to_join: bool
    min_timestamp_ms: int
    max_timestamp_ms: int
    spared: bool = False


LARGE_ENOUGH_BYTES = 32 << 20
MOST_FILES = 64


def large_enough(merge_bytes: int, partition_bytes: int) -> int:
    """Return the size at which a file takes in no more although it could, so that several are written at a time.

    It grows with the partition, so that no partition is cut into many more than MOST_FILES for this reason.
    """
    return min(merge_bytes, max(LARGE_ENOUGH_BYTES, partition_bytes // MOST_FILES))


def groups(
    members: Iterable[Member], *, merge_bytes: int, enough_bytes: int, span_ms: int | None
) -> Iterator[list[Member]]:
    """Yield runs of neighbours, each in the order in which its members came."""
    group: list[Member] = []
    for member in members:
        if group and (
            sum(each.expected_bytes for each in group) >= enough_bytes
            or not _joins(group, member, merge_bytes, span_ms)
        ):
            yield group
            group = []
        group.append(member)
    if group:
        yield group


def _joins(group: list[Member], member: Member, merge_bytes: int, span_ms: int | None) -> bool:
    group_bytes = sum(each.expected_bytes for each in group)
    if group_bytes + member.expected_bytes > merge_bytes:
        return False
    if span_ms is not None:
        newest = max(each.max_timestamp_ms for each in (*group, member))
        oldest = min(each.min_timestamp_ms for each in (*group, member))
        if newest - oldest > span_ms:
            return False
    group_is_free = all(each.free_to_join for each in group)
    if group_is_free and member.free_to_join:
        return True
    if group_is_free:
        return member.expected_bytes <= group_bytes
    # The group already contains a clean segment: it takes in only segments that are free to join.
    return member.free_to_join
