"""The committed offsets: commits, lookups, deletion and expiry. The path of a commit:

1. the coordinator checks whether the member may commit;
2. the store writes it to disk, together with the commits that arrived meanwhile;
3. offset fetches see it, and compaction is notified if it must know at once;
4. the client is answered.

A deletion takes the same path. Nothing that is being written expires: the deletion would come after it in the log.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.coordinator import Coordinator
from lastword.broker.groups.describing import TopicPartition
from lastword.broker.groups.group import Group
from lastword.broker.groups.holds import GroupHolds, Pair
from lastword.broker.groups.members import MemberRef
from lastword.broker.groups.offsets import GroupOffsets, expired
from lastword.broker.groups.records import CommittedOffset, OffsetKey, group_record, offset_record
from lastword.broker.groups.store import GroupStore
from lastword.broker.node import Node

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOffset:
    """An offset that a client commits."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Commits:
    """The committed offsets of all groups, from the store to the clients and to compaction."""

    def __init__(self, node: Node, store: GroupStore, coordinator: Coordinator, holds: GroupHolds) -> None:
        self._node = node
        self._store = store
        self._coordinator = coordinator
        self._holds = holds
        self.offsets = GroupOffsets()
        self._under_way: Counter[OffsetKey] = Counter()
        """Offsets that are being written: their known values are about to be outdated."""

    async def commit(
        self,
        group_id: str,
        ref: MemberRef,
        generation: int,
        offsets: Mapping[TopicPartition, NewOffset],
        *,
        knows_missing_groups: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets of a group. Return the result for each."""
        error = self._coordinator.check_commit(
            group_id, ref, generation, knows_missing_groups=knows_missing_groups
        )
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        answers: dict[TopicPartition, ErrorCode] = {}
        accepted: dict[TopicPartition, tuple[OffsetKey, CommittedOffset]] = {}
        now_ms = self._node.clock.now_ms()
        for (topic_name, partition), new in offsets.items():
            topic = self._node.topic_with(topic_name, partition)
            if topic is None:
                answers[topic_name, partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(new.metadata.encode()) > self._node.config.offset_metadata_max_bytes:
                answers[topic_name, partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                accepted[topic_name, partition] = (
                    OffsetKey(group_id, topic.id, partition),
                    CommittedOffset(
                        topic=topic_name,
                        offset=new.offset,
                        leader_epoch=new.leader_epoch,
                        metadata=new.metadata,
                        committed_ms=now_ms,
                    ),
                )
        if accepted:
            self._coordinator.get_or_create(group_id)
            failed = await self._keep(list(accepted.values()))
            answers |= dict.fromkeys(accepted, failed)
        return answers

    async def _keep(self, commits: Sequence[tuple[OffsetKey, CommittedOffset | None]]) -> ErrorCode:
        """Write offsets, or their deletions (None), then make them visible."""
        urgent: set[Pair] = set()

        def apply() -> None:
            for key, committed in commits:
                if committed is not None:
                    # The group may have been deleted, as one without offsets, while this was being written.
                    self._coordinator.get_or_create(key.group_id)
                if self.apply(key, committed):
                    urgent.add((key.group_id, key.topic_id))

        keys = Counter(key for key, _ in commits)
        self._under_way += keys
        try:
            error = await self._store.written(
                [offset_record(key, committed) for key, committed in commits], apply
            )
        finally:
            self._under_way -= keys
        if urgent:
            await self._holds.write(urgent)
        return error

    def apply(self, key: OffsetKey, committed: CommittedOffset | None) -> bool:
        """Make a stored offset, or its deletion (None), visible. Return whether compaction must be notified at once."""
        self.offsets.apply(key, committed)
        if committed is None:
            self._holds.forget(key)
            return False
        return self._holds.committed(key, committed)

    def committed(
        self, group_id: str, wanted: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the committed offsets of a group for some partitions, or for all that it has (None)."""
        own = self.offsets.of(group_id)
        if wanted is None:
            return {
                (offset.topic, partition): offset
                for (topic_id, partition), offset in own.items()
                if self._node.has_topic(topic_id)
            }
        found: dict[TopicPartition, CommittedOffset | None] = {}
        now_ms = self._node.clock.now_ms()
        topics = self._node.log.opened_topics()
        for name, partition in wanted:
            topic = topics.get(name)
            found[name, partition] = None if topic is None else own.get((topic.id, partition))
            if topic is not None:
                self._holds.seen(group_id, topic.id, now_ms, [partition])
        return found

    async def delete(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Delete offsets of a group, except those of topics that its members subscribe to."""
        group = self._coordinator.groups.get(group_id)
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, {}
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, {}
        subscribed = group.subscribed()
        if not group.is_empty and subscribed is None:
            return ErrorCode.NON_EMPTY_GROUP, {}
        answers: dict[TopicPartition, ErrorCode] = {}
        deleted: dict[TopicPartition, tuple[OffsetKey, None]] = {}
        for name, partition in partitions:
            topic = self._node.topic_with(name, partition)
            if topic is None:
                answers[name, partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not group.is_empty and subscribed is not None and name in subscribed:
                answers[name, partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif (topic.id, partition) in self.offsets.of(group_id):
                deleted[name, partition] = (OffsetKey(group_id, topic.id, partition), None)
            else:
                answers[name, partition] = ErrorCode.NONE
        if deleted:
            answers |= dict.fromkeys(deleted, await self._keep(list(deleted.values())))
        return ErrorCode.NONE, answers

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Delete an empty group and its offsets."""
        keys = [OffsetKey(group_id, *place) for place in self.offsets.of(group_id)]

        def apply() -> None:
            for key in keys:
                self.apply(key, None)

        # From here on, a join or a commit begins a new group, after the deletion in the log.
        self._coordinator.forget(group_id)
        entries = [offset_record(key, None) for key in keys]
        error = await self._store.written([*entries, group_record(group_id, None)], apply)
        if error is not ErrorCode.NONE:
            self._coordinator.get_or_create(group_id)
        return error

    async def expire(self) -> None:
        """Delete expired offsets, and groups that have neither members nor offsets."""
        retention_ms = self._node.config.offsets_retention_minutes * 60_000
        # According to the catalog: a topic that could not be opened still exists.
        listing = await self._node.call_slow(self._node.log.listing, include_internal=True)
        if any(each.id is None for each in listing.unreadable):
            # Offsets of an existing topic would be treated as those of a deleted one.
            return
        topic_ids = listing.ids
        for group in list(self._coordinator.groups.values()):
            keys = expired(
                group,
                self.offsets.of(group.group_id),
                now_ms=self._node.clock.now_ms(),
                retention_ms=retention_ms,
                topic_exists=lambda topic_id: topic_id in topic_ids or self._node.has_topic(topic_id),
            )
            # The deletion would come after a commit that is not known here yet, and undo it.
            keys = [key for key in keys if key not in self._under_way]
            if keys:
                logger.info("group %s: %d committed offsets have expired", group.group_id, len(keys))
                await self._keep([(key, None) for key in keys])
            if self._is_unused(group):
                await self.delete_group(group.group_id)

    def _is_unused(self, group: Group) -> bool:
        is_current = self._coordinator.groups.get(group.group_id) is group
        return is_current and group.is_empty and not group.pending and not self.offsets.of(group.group_id)

    async def write_again(self) -> ErrorCode:
        """Append every committed offset to the log again. Those that are being written get there anyway, and later."""
        entries = [
            offset_record(key, committed)
            for group_id in self.offsets.groups()
            for place, committed in self.offsets.of(group_id).items()
            if (key := OffsetKey(group_id, *place)) not in self._under_way
        ]
        return await self._store.written(entries, lambda: None) if entries else ErrorCode.NONE
