"""Groups on the event loop: their loading, the coordinator's timers, and the work in the background.

Everything is called on the loop. If the topic can't be opened or read at all (a damaged table, storage that does not
respond), the broker starts anyway and keeps trying. Until it succeeds, clients get a retriable error, and no offset
is treated as missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.commits import Commits, NewOffset
from lastword.broker.groups.coordinator import Coordinator, GroupLimits
from lastword.broker.groups.describing import TopicPartition
from lastword.broker.groups.group import Group, State, Stored
from lastword.broker.groups.holds import GroupHolds
from lastword.broker.groups.members import (
    JoinAnswer,
    JoinRequest,
    MemberRef,
    SyncAnswer,
    SyncRequest,
)
from lastword.broker.groups.records import CommittedOffset, OffsetKey, SavedGroup, group_record
from lastword.broker.groups.replay import GROUPS_TOPIC, Key, Value, problems
from lastword.broker.groups.store import GroupStore, code_of_write
from lastword.broker.node import Node
from lastword.clock import new_uuid
from lastword.errors import CorruptError, LastwordError, UnavailableError

T = TypeVar("T")

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
"""The pauses between attempts to load groups that could not be read at the start."""

HOLDS_EVERY_S = 5.0
MEMBERS_SEEN_EVERY = 12
"""After this many rounds of writing holds, the groups with members count as active."""


class GroupService:
    """All groups of the broker."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        self._store = GroupStore(node)
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
        self.commits = Commits(node, self._store, self._coordinator, self._holds)
        self._alarm: asyncio.TimerHandle | None = None
        self._waiting: dict[Callable[[], None], None] = {}
        """Each answers a request that waits for a rebalance, because the broker stops."""
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
                self.commits.apply(key, value)
            else:
                assert isinstance(value, SavedGroup)
                self._coordinator.restore(key, value)
        for group_id in self.commits.offsets.groups():
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
        for answer in list(self._waiting):
            answer()
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
        stopped = JoinAnswer(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=request.member_id)
        return await self._answer_to(lambda reply: self._coordinator.join(request, reply), stopped)

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        stopped = SyncAnswer(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await self._answer_to(lambda reply: self._coordinator.sync(request, reply), stopped)

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

    async def _answer_to(self, ask: Callable[[Callable[[T], None]], None], stopped: T) -> T:
        """Return the answer to a request that may have to wait, or `stopped` if the broker stops before that."""
        if self._is_stopping or not self.is_loaded:
            return stopped
        answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def reply(answer: T) -> None:
            # The client may be gone.
            if not answered.done():
                answered.set_result(answer)

        ask(reply)
        self._arm()
        stop = partial(reply, stopped)
        self._waiting[stop] = None
        try:
            return await answered
        finally:
            self._waiting.pop(stop, None)

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
        return await self.commits.commit(
            group_id, ref, generation, offsets, knows_missing_groups=knows_missing_groups
        )

    def committed(
        self, group_id: str, wanted: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the committed offsets of a group for some partitions, or for all that it has (None)."""
        return self.commits.committed(group_id, wanted)

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """Delete offsets of a group, except those of topics that its members subscribe to."""
        if not self.is_loaded:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, {}
        return await self.commits.delete(group_id, partitions)

    # -------------------------------------------------------------------------------------------- groups

    def groups(self) -> list[Group]:
        return sorted(self._coordinator.groups.values(), key=lambda group: group.group_id)

    def group(self, group_id: str) -> Group | None:
        return self._coordinator.groups.get(group_id)

    def log_end(self, topic: str, partition: int) -> int | None:
        """Return the offset up to which consumers can read a partition, or None if there is no such partition."""
        found = self._node.topic_with(topic, partition)
        return None if found is None else found.writer(partition).shown.offset

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
        error = await self.commits.write_again()
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
        return error if error is not ErrorCode.NONE else await self.commits.delete_group(group_id)

    # ------------------------------------------------------------------------------------------ internal

    def _store_group(self, group_id: str, saved: SavedGroup, stored: Stored) -> None:
        def done(error: LastwordError | None) -> None:
            stored(code_of_write(error))
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
                for topic_id in {topic_id for topic_id, _ in self.commits.offsets.of(group.group_id)}:
                    self._holds.seen(group.group_id, topic_id, now_ms)

    async def _expire_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._node.config.offsets_retention_check_interval_ms / 1000)
            await self._guarded(self.commits.expire())

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception:
            # A fault in one round must not end the following rounds.
            logger.exception("groups: a background task met an unexpected error")


def _monotonic_ms() -> int:
    # The loop's own time: a change of the system clock must not end any session.
    return int(asyncio.get_running_loop().time() * 1000)
