"""The committed offsets of all groups, in memory, and the rules for their expiry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from lastword.broker.groups.group import Group, State
from lastword.broker.groups.records import CommittedOffset, OffsetKey

PartitionId = tuple[UUID, int]
"""A topic's id and a partition."""


class GroupOffsets:
    """The committed offsets of each group. Only offsets that the store has are in here."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[PartitionId, CommittedOffset]] = {}

    def apply(self, key: OffsetKey, committed: CommittedOffset | None) -> None:
        """Apply a commit, or its deletion (None)."""
        place = (key.topic_id, key.partition)
        if committed is not None:
            self._by_group.setdefault(key.group_id, {})[place] = committed
            return
        own = self._by_group.get(key.group_id)
        if own is not None:
            own.pop(place, None)
            if not own:
                del self._by_group[key.group_id]

    def of(self, group_id: str) -> Mapping[PartitionId, CommittedOffset]:
        return self._by_group.get(group_id, {})

    def groups(self) -> list[str]:
        """Return the groups that have committed offsets."""
        return list(self._by_group)


def expired(
    group: Group,
    committed: Mapping[PartitionId, CommittedOffset],
    *,
    now_ms: int,
    retention_ms: int,
    topic_exists: Callable[[UUID], bool],
) -> list[OffsetKey]:
    """Return the offsets to delete: their topic is deleted, or the group has not needed them for the retention time.

    A group needs its offsets while it has members. If those are consumers, it needs the offsets of the topics that
    they subscribe to. Time counts from the commit, or from when the last member left if that is later.
    """

    def is_expired(place: PartitionId, offset: CommittedOffset) -> bool:
        if not topic_exists(place[0]):
            return True
        if now_ms - offset.committed_ms < retention_ms:
            return False
        if group.is_empty:
            return now_ms - group.since_ms >= retention_ms or group.protocol_type is None
        if group.state is not State.STABLE:
            return False
        subscribed = group.subscribed()
        return subscribed is not None and offset.topic not in subscribed

    return [
        OffsetKey(group.group_id, *place) for place, offset in committed.items() if is_expired(place, offset)
    ]
