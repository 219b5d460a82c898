"""Chooses the neighbouring segments that become one file, while their masks arrive, the newest segment first.

Segments that are rewritten anyway are joined while the result stays under segment.bytes. So are small dirty
segments. Any other segment joins only if it is small for a file, and the file grows by much: so no record is rewritten
often. A file that is large enough takes in no more, and the next one can be written in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A segment, its expected size, whether it is rewritten in any case, and whether it may be joined freely."""

    index: int
    expected_bytes: int
    is_rewritten: bool
    free_to_join: bool
    min_timestamp_ms: int
    max_timestamp_ms: int


SMALL_BYTES = 1 << 20
"""A dirty segment up to this size is joined freely: it costs less to write it again than to have one more file."""
GROWTH = 1.6
"""How much larger a file must become if a segment is written again only to be joined."""
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
            or not _joins(group, member, merge_bytes, enough_bytes, span_ms)
        ):
            yield group
            group = []
        group.append(member)
    if group:
        yield group


def _joins(
    group: list[Member], member: Member, merge_bytes: int, enough_bytes: int, span_ms: int | None
) -> bool:
    group_bytes = sum(each.expected_bytes for each in group)
    if group_bytes + member.expected_bytes > merge_bytes:
        return False
    if span_ms is not None:
        newest = max(each.max_timestamp_ms for each in (*group, member))
        oldest = min(each.min_timestamp_ms for each in (*group, member))
        if newest - oldest > span_ms:
            return False
    joined = (*group, member)
    total_bytes = sum(each.expected_bytes for each in joined)
    # A segment that is not free must be small, and its file must grow by much: no record is written again often.
    most_bytes = min(enough_bytes // 4, int(total_bytes / GROWTH))
    return all(each.free_to_join or each.expected_bytes <= most_bytes for each in joined)
