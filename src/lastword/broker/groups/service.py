"""Groups on the event loop: the coordinator's timers, the store, the offsets and the holds.

Everything is called on the loop. The path of a commit:

1. the coordinator checks whether the member may commit;
2. the store writes it to disk, together with the commits that arrived meanwhile;
3. offset fetches see it, and compaction is told if it must know at once;
4. the client is answered.

If the topic can't be opened or read at all (a damaged table, storage that does not respond), the broker starts anyway
and keeps trying. Until it succeeds, clients are told to retry, and no offset is treated as missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.coordinator import Coordinator, GroupLimits, Stored
from lastword.broker.groups.group import Group, State
from lastword.broker.groups.holds import GroupHolds, Pair
from lastword.broker.groups.members import (
    JoinAnswer,
    JoinRequest,
    MemberRef,
    SyncAnswer,
    SyncRequest,
)
from lastword.broker.groups.offsets import GroupOffsets, expired
from lastword.broker.groups.records import (
    CommittedOffset,
    OffsetKey,
    SavedGroup,
    group_record,
    offset_record,
)
from lastword.broker.groups.replay import GROUPS_TOPIC, Key, Value, problems
from lastword.broker.groups.store import Entry, GroupStore
from lastword.broker.node import Node
from lastword.clock import new_uuid
from lastword.errors import CorruptError, InvalidError, LastwordError, UnavailableError, UnknownTopicError
from lastword.log.topic import Topic

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
"""The pauses between attempts to load groups that could not be read at the start."""

HOLDS_EVERY_S = 5.0
MEMBERS_SEEN_EVERY = 12
"""After this many rounds of writing holds, the groups with members count as active."""

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOffset:
    """An offset that a client commits."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupService:
    """All groups of the broker."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        self._store = GroupStore(node)
        self._offsets = GroupOffsets()
        self._holds = GroupHolds(node)
        self._coordinator = Coordinator(
            GroupLimits(
                initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
                min_session_timeout_ms=config.group_min_session_timeout_ms,
                max_session_timeout_ms=config.group_max_session_timeout_ms,
                max_size=config.group_max_size,
            ),
            self._store_group,
            now_ms=_monotonic_ms,
            wall_ms=node.clock.now_ms,
            new_id=lambda: str(new_uuid()),
        )
        self._alarm: asyncio.TimerHandle | None = None
        self._waiting: set[asyncio.Future[Any]] = set()
        self._under_way: Counter[OffsetKey] = Counter()
        """Offsets that are being written: their known values are about to be outdated."""
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._not_loaded: str | None = "it has not been read yet"
        """Why the groups are not loaded; None if they are."""

    # -------------------------------------------------------------------------------------- start, stop

    async def start(self) -> None:
        """Load the stored groups, or keep trying in the background."""
        if not await self._is_loading_done():
            self._tasks = [asyncio.create_task(self._guarded(self._load_later()), name="lastword-group-load")]

    async def _load_later(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            await asyncio.sleep(pause_s)
            if await self._is_loading_done():
                logger.info("loaded the groups and offsets of %s", GROUPS_TOPIC)
                return
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _is_loading_done(self) -> bool:
        try:
            entries = await self._store.start()
        except (CorruptError, UnavailableError, OSError) as error:
            self._not_loaded = str(error)
            logger.error("groups and their offsets can't be served yet: %s", error)
            return False
        await self._take_over(entries)
        return True

    async def _take_over(self, entries: Iterable[tuple[Key, Value]]) -> None:
        for key, value in entries:
            if isinstance(key, OffsetKey):
                assert isinstance(value, CommittedOffset)
                self._offsets.apply(key, value)
                self._holds.committed(
                    key.group_id, key.topic_id, key.partition, value.offset, value.committed_ms
                )
            else:
                assert isinstance(value, SavedGroup)
                self._coordinator.restore(key, value)
        for group_id in self._offsets.groups():
            self._coordinator.get_or_create(group_id)
        await self._holds.start()
        self._not_loaded = None
        self._arm()
        self._tasks += [
            asyncio.create_task(self._write_holds(), name="lastword-group-holds"),
            asyncio.create_task(self._expire_now_and_then(), name="lastword-group-expiry"),
        ]

    async def stop(self) -> None:
        """Answer all clients that wait for a rebalance: they retry when the broker is back."""
        self._is_stopping = True
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_result(None)
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Write everything that is pending. The log must be open."""
        await self._store.stop()
        if self.is_loaded:
            await self._holds.write()

    @property
    def is_loaded(self) -> bool:
        """Whether the groups have been loaded."""
        return self._not_loaded is None

    # ---------------------------------------------------------------------------------------- membership

    async def prepare(self) -> None:
        await self._store.prepare()

    async def join(self, request: JoinRequest) -> JoinAnswer:
        answer = await self._wait_for(lambda reply: self._coordinator.join(request, reply))
        return answer or JoinAnswer(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=request.member_id)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        answer = await self._wait_for(lambda reply: self._coordinator.sync(request, reply))
        return answer or SyncAnswer(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def heartbeat(self, group_id: str, ref: MemberRef, generation: int) -> ErrorCode:
        if not self.is_loaded:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._coordinator.heartbeat(group_id, ref, generation)

    def leave(self, group_id: str, refs: Sequence[MemberRef]) -> list[ErrorCode]:
        if not self.is_loaded:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE for _ in refs]
        errors = self._coordinator.leave(group_id, refs)
        self._arm()
        return errors

    async def _wait_for(self, ask: Callable[[Callable[[Any], None]], None]) -> Any:
        """Return the answer to a request that may have to wait, or None if the broker stops before it answers."""
        if self._is_stopping or not self.is_loaded:
            return None
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def reply(answer: object) -> None:
            # The client may be gone.
            if not answered.done():
                answered.set_result(answer)

        ask(reply)
        self._arm()
        self._waiting.add(answered)
        try:
            return await answered
        finally:
            self._waiting.discard(answered)

    # ------------------------------------------------------------------------------------------- offsets

    async def commit(
        self,
        group_id: str,
        ref: MemberRef,
        generation: int,
        offsets: Mapping[TopicPartition, NewOffset],
        *,
        knows_missing_groups: bool = False,
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets of a group. Return the result for each."""
        if not self.is_loaded:
            return dict.fromkeys(offsets, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        error = self._coordinator.check_commit(
            group_id, ref, generation, knows_missing_groups=knows_missing_groups
        )
        if error is not ErrorCode.NONE:
            return dict.fromkeys(offsets, error)
        answers: dict[TopicPartition, ErrorCode] = {}
        accepted: dict[TopicPartition, tuple[OffsetKey, CommittedOffset]] = {}
        now_ms = self._node.clock.now_ms()
        for (topic_name, partition), new in offsets.items():
            topic = self._topic(topic_name)
            if topic is None or not 0 <= partition < topic.partitions:
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
                self._offsets.apply(key, committed)
                if committed is None:
                    self._holds.forget(key.group_id, key.topic_id, key.partition)
                    continue
                # The group may have been deleted, as one without offsets, while this was being written.
                self._coordinator.get_or_create(key.group_id)
                if self._holds.committed(
                    key.group_id, key.topic_id, key.partition, committed.offset, committed.committed_ms
                ):
                    urgent.add((key.group_id, key.topic_id))

        keys = Counter(key for key, _ in commits)
        self._under_way += keys
        try:
            error = await self._write([offset_record(key, committed) for key, committed in commits], apply)
        finally:
            self._under_way -= keys
        if urgent:
            await self._holds.write(urgent)
        return error

    async def _write(self, entries: Sequence[Entry], apply: Callable[[], None]) -> ErrorCode:
        """Write records. `apply` is called in the order of the log, even if the client is gone."""
        written: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def done(error: LastwordError | None) -> None:
            if error is None:
                apply()
            if not written.done():
                written.set_result(_code_of(error))

        self._store.write(entries, done)
        return await written

    def committed(
        self, group_id: str, wanted: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the committed offsets of a group for some partitions, or for all that it has (None)."""
        own = self._offsets.of(group_id)
        if wanted is None:
            return {
                (offset.topic, partition): offset
                for (topic_id, partition), offset in own.items()
                if self._exists(topic_id)
            }
        found: dict[TopicPartition, CommittedOffset | None] = {}
        now_ms = self._node.clock.now_ms()
        for name, partition in wanted:
            topic = self._topic(name)
            found[name, partition] = None if topic is None else own.get((topic.id, partition))
            if topic is not None:
                self._holds.seen(group_id, topic.id, now_ms, [partition])
        return found

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Delete offsets of a group, except those of topics that its members subscribe to."""
        if not self.is_loaded:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, {}
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
            topic = self._topic(name)
            if topic is None or not 0 <= partition < topic.partitions:
                answers[name, partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not group.is_empty and subscribed is not None and name in subscribed:
                answers[name, partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif (topic.id, partition) in self._offsets.of(group_id):
                deleted[name, partition] = (OffsetKey(group_id, topic.id, partition), None)
            else:
                answers[name, partition] = ErrorCode.NONE
        if deleted:
            answers |= dict.fromkeys(deleted, await self._keep(list(deleted.values())))
        return ErrorCode.NONE, answers

    # -------------------------------------------------------------------------------------------- groups

    def groups(self) -> list[Group]:
        return sorted(self._coordinator.groups.values(), key=lambda group: group.group_id)

    def group(self, group_id: str) -> Group | None:
        return self._coordinator.groups.get(group_id)

    def log_end(self, topic: str, partition: int) -> int | None:
        """Return the offset up to which consumers can read a partition, or None if there is no such partition."""
        found = self._topic(topic)
        if found is None or not 0 <= partition < found.partitions:
            return None
        return found.writer(partition).shown.offset

    def problems(self) -> list[str]:
        """Return the problems with reading the groups at the start, and how to resolve them."""
        if self._not_loaded is not None:
            reason = self._not_loaded.removesuffix(".")
            return [f"consumer groups can't be served, because {GROUPS_TOPIC} can't be read: {reason}"]
        return problems(self._store.lost)

    def check_loaded(self) -> None:
        """Raise UnavailableError if the groups have not been loaded."""
        if self._not_loaded is not None:
            raise UnavailableError(f"{GROUPS_TOPIC} can't be read yet: {self._not_loaded}")

    async def write_again(self) -> None:
        """Append every committed offset to the log again, so that damage before it can be skipped.

        Raise UnavailableError if that fails. Offsets that are being written get there anyway, and later.
        """
        self.check_loaded()
        entries = [
            offset_record(key, committed)
            for group_id in self._offsets.groups()
            for place, committed in self._offsets.of(group_id).items()
            if (key := OffsetKey(group_id, *place)) not in self._under_way
        ]
        error = await self._write(entries, lambda: None) if entries else ErrorCode.NONE
        if error is not ErrorCode.NONE:
            raise UnavailableError(f"{GROUPS_TOPIC} can't be written, so nothing was skipped: {error.name}")

    def repaired(self) -> None:
        """Note that the offsets that could not be read have been skipped."""
        self._store.repaired()

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Delete a group that has no members, and its offsets."""
        if not self.is_loaded:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._coordinator.check_deletion(group_id)
        if error is not ErrorCode.NONE:
            return error
        group = self._coordinator.groups[group_id]
        return await self._delete(group)

    async def _delete(self, group: Group) -> ErrorCode:
        group_id = group.group_id
        keys = [OffsetKey(group_id, *place) for place in self._offsets.of(group_id)]

        def apply() -> None:
            for key in keys:
                self._offsets.apply(key, None)
                self._holds.forget(group_id, key.topic_id, key.partition)

        # From here on, a join or a commit begins a new group, after the deletion in the log.
        self._coordinator.forget(group_id)
        entries = [offset_record(key, None) for key in keys]
        error = await self._write([*entries, group_record(group_id, None)], apply)
        if error is not ErrorCode.NONE:
            self._coordinator.get_or_create(group_id)
        return error

    async def expire_offsets(self) -> None:
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
                self._offsets.of(group.group_id),
                now_ms=self._node.clock.now_ms(),
                retention_ms=retention_ms,
                topic_exists=lambda topic_id: topic_id in topic_ids or self._exists(topic_id),
            )
            # The deletion would come after a commit that is not known here yet, and undo it.
            keys = [key for key in keys if key not in self._under_way]
            if keys:
                logger.info("group %s: %d committed offsets have expired", group.group_id, len(keys))
                await self._keep([(key, None) for key in keys])
            is_current = self._coordinator.groups.get(group.group_id) is group
            if is_current and group.is_empty and not group.pending and not self._offsets.of(group.group_id):
                await self._delete(group)

    # ------------------------------------------------------------------------------------------ internal

    def _store_group(self, group_id: str, saved: SavedGroup | None, stored: Stored) -> None:
        def done(error: LastwordError | None) -> None:
            stored(_code_of(error))
            self._arm()

        self._store.write([group_record(group_id, saved)], done)

    def _arm(self) -> None:
        """Schedule the coordinator's next `expire`."""
        loop = asyncio.get_running_loop()
        wake_ms = self._coordinator.next_wake_ms()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if wake_ms is not None and not self._is_stopping:
            self._alarm = loop.call_at(wake_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._coordinator.expire()
        self._arm()

    async def _write_holds(self) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(HOLDS_EVERY_S)
            rounds += 1
            if rounds % MEMBERS_SEEN_EVERY == 0:
                self._see_members()
            await self._guarded(self._holds.write())

    def _see_members(self) -> None:
        now_ms = self._node.clock.now_ms()
        for group in self._coordinator.groups.values():
            if group.state not in (State.EMPTY, State.DEAD):
                for topic_id in {topic_id for topic_id, _ in self._offsets.of(group.group_id)}:
                    self._holds.seen(group.group_id, topic_id, now_ms)

    async def _expire_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._node.config.offsets_retention_check_interval_ms / 1000)
            await self._guarded(self.expire_offsets())

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            # A fault in one round must not end the following rounds.
            logger.exception("groups: a background task met an unexpected error")

    def _topic(self, name: str) -> Topic | None:
        try:
            return self._node.topic(name)
        except UnknownTopicError:
            return None

    def _exists(self, topic_id: UUID) -> bool:
        try:
            self._node.topic_by_id(topic_id)
        except UnknownTopicError:
            return False
        return True


def _monotonic_ms() -> int:
    # The loop's own time: a change of the system clock must not end any session.
    return int(asyncio.get_running_loop().time() * 1000)


def _code_of(error: LastwordError | None) -> ErrorCode:
    """Return the code for a failed write of the store. It tells the client to retry, unless that is of no use."""
    if error is None:
        return ErrorCode.NONE
    return (
        ErrorCode.UNKNOWN_SERVER_ERROR
        if isinstance(error, InvalidError)
        else ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
