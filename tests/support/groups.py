"""A group coordinator with a clock and a store that tests hold in their hands."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.coordinator import Coordinator, GroupLimits
from lastword.broker.groups.group import Group, State, Stored
from lastword.broker.groups.members import (
    JoinAnswer,
    JoinRequest,
    MemberRef,
    SyncAnswer,
    SyncRequest,
)
from lastword.broker.groups.records import SavedGroup

SESSION_MS = 10_000
REBALANCE_MS = 60_000
INITIAL_DELAY_MS = 3_000


@dataclass
class Waiting:
    """Answers to one request; a request must get one at most."""

    joins: list[JoinAnswer] = field(default_factory=list)
    syncs: list[SyncAnswer] = field(default_factory=list)

    @property
    def is_answered(self) -> bool:
        return bool(self.joins or self.syncs)

    @property
    def joined(self) -> JoinAnswer:
        (answer,) = self.joins
        return answer

    @property
    def synced(self) -> SyncAnswer:
        (answer,) = self.syncs
        return answer


class Groups:
    """Calls a coordinator as clients do, with what most tests don't care about left out."""

    def __init__(self, **limits: int) -> None:
        self.now_ms = 1_000_000
        self.stored: dict[str, SavedGroup] = {}
        self.store_error = ErrorCode.NONE
        self.holds_store = False
        self._held: list[tuple[str, SavedGroup, Stored]] = []
        numbers = itertools.count(1)
        self.coordinator = Coordinator(
            GroupLimits(**{"initial_rebalance_delay_ms": 0, **limits}),
            self._store,
            now_ms=lambda: self.now_ms,
            wall_ms=lambda: self.now_ms,
            new_id=lambda: str(next(numbers)),
        )

    def _store(self, group_id: str, saved: SavedGroup, stored: Stored) -> None:
        self._held.append((group_id, saved, stored))
        if not self.holds_store:
            self.release_store()

    def release_store(self) -> None:
        """The store answers what it was asked."""
        while self._held:
            group_id, saved, stored = self._held.pop(0)
            if self.store_error is ErrorCode.NONE:
                self.stored[group_id] = saved
            stored(self.store_error)

    # -------------------------------------------------------------------------------------------- clients

    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 3,
    ) -> Waiting:
        waiting = Waiting()
        self.coordinator.join(
            JoinRequest(
                group_id=group,
                member_id=member_id,
                instance_id=instance,
                client_id="client",
                client_host="/127.0.0.1",
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=protocol_type,
                protocols=tuple((protocols or {"range": b"r"}).items()),
                must_know_member_id=version >= 4,
                may_skip_assignment=version >= 9,
            ),
            waiting.joins.append,
        )
        return waiting

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Waiting:
        waiting = Waiting()
        self.coordinator.sync(
            SyncRequest(
                group_id=group,
                member_id=member_id,
                instance_id=instance,
                generation=generation,
                protocol_type=protocol_type,
                protocol_name=protocol_name,
                assignments=assignments or {},
            ),
            waiting.syncs.append,
        )
        return waiting

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None
    ) -> ErrorCode:
        return self.coordinator.heartbeat(
            group, MemberRef(member_id=member_id, instance_id=instance), generation
        )

    def leave(self, *refs: MemberRef | str, group: str = "g") -> list[ErrorCode]:
        return self.coordinator.leave(
            group, [MemberRef(member_id=ref) if isinstance(ref, str) else ref for ref in refs]
        )

    def commit(
        self, member_id: str, generation: int, *, group: str = "g", instance: str | None = None
    ) -> ErrorCode:
        return self.coordinator.check_commit(
            group, MemberRef(member_id=member_id, instance_id=instance), generation
        )

    # ----------------------------------------------------------------------------------------------- time

    def move(self, duration_ms: int) -> None:
        """Let time pass, waking the coordinator whenever it wants."""
        end_ms = self.now_ms + duration_ms
        while (wake_ms := self.coordinator.next_wake_ms()) is not None and wake_ms <= end_ms:
            self.now_ms = max(self.now_ms, wake_ms)
            self.coordinator.expire()
        self.now_ms = end_ms

    def move_with_heartbeats(self, duration_ms: int, *members: tuple[str, int]) -> None:
        """Let time pass while these members, each with its generation, are alive."""
        for _ in range(duration_ms // 1000):
            self.move(1000)
            for member_id, generation in members:
                self.heartbeat(member_id, generation)

    # --------------------------------------------------------------------------------------------- groups

    @property
    def group(self) -> Group:
        return self.coordinator.groups["g"]

    @property
    def state(self) -> State:
        return self.group.state

    def stable(self, *instances: str | None, session_ms: int = SESSION_MS) -> list[str]:
        """A stable group with these members, None being a dynamic one; their ids, the leader's first."""
        waiting = [self.join(instance=instance, session_ms=session_ms) for instance in instances]
        while not all(each.is_answered for each in waiting):
            # The first one had a generation of its own, and joins again for each that came after it.
            waiting = [
                self.join(each.joined.member_id, instance=instance, session_ms=session_ms)
                if each.is_answered
                else each
                for each, instance in zip(waiting, instances, strict=True)
            ]
        answers = [each.joined for each in waiting]
        leader = answers[0].leader
        generation = self.group.generation
        answers.sort(key=lambda answer: answer.member_id != leader)
        assignments = {answer.member_id: answer.member_id.encode() for answer in answers}
        for answer in answers:
            self.sync(answer.member_id, generation, assignments if answer.member_id == leader else {})
        assert self.state is State.STABLE
        return [answer.member_id for answer in answers]


def consumer_metadata(*topics: str) -> bytes:
    """What a consumer that subscribed to topics joins with."""
    encoded = [topic.encode() for topic in topics]
    return (
        struct.pack(">hi", 1, len(encoded))
        + b"".join(struct.pack(">h", len(each)) + each for each in encoded)
        + struct.pack(">i", -1)
    )
