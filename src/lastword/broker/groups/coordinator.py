"""The rules of Kafka's classic group protocol, request by request: join, sync, heartbeat, leave, commit.

The states of a group:

    Empty ── first join ──▶ PreparingRebalance ── all have joined, or time is up ──▶ CompletingRebalance
      ▲                        ▲                                                          │ the leader syncs,
      └── no member left       └── a member joins, leaves, expires, changes ── Stable ◀───┘ the store has it

1. A join waits until the rebalance begins its new generation. Then every member is answered, the leader with all
   members and their metadata.
2. A sync waits until the leader has sent the assignments and the store has them.
3. Heartbeats keep a member alive. A member that is silent for its session timeout is removed, and the group
   rebalances. A member that waits for an answer needs no heartbeats.

There is no I/O and no waiting here. The clocks and the store are passed in, answers go to the callbacks that came with
the requests, and `expire` must be called at `next_wake_ms`. After the process was killed, `restore` takes over the
groups of the store: members continue with their heartbeats as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.deadlines import Deadlines, Wait
from lastword.broker.groups.group import Group, State, Store, take_saved
from lastword.broker.groups.members import (
    NO_MEMBER_ID,
    JoinAnswer,
    JoinReply,
    JoinRequest,
    Member,
    MemberRef,
    SyncAnswer,
    SyncReply,
    SyncRequest,
)
from lastword.broker.groups.rebalances import Rebalances
from lastword.broker.groups.records import SavedGroup
from lastword.broker.groups.static_members import StaticMembers

NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000
"""How long a first join waits for its answer: its client can't send heartbeats yet, and may have disconnected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """The limits on requests of clients."""

    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1


class Coordinator:
    """All groups. Not thread-safe."""

    def __init__(
        self,
        limits: GroupLimits,
        store: Store,
        *,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._limits = limits
        self._wall_ms = wall_ms
        self._new_id = new_id
        self._deadlines = Deadlines(now_ms)
        self._rebalances = Rebalances(
            self._deadlines, store, initial_delay_ms=limits.initial_rebalance_delay_ms, wall_ms=wall_ms
        )
        self._static_members = StaticMembers(self._deadlines, self._rebalances, store)
        self.groups: dict[str, Group] = {}

    # --------------------------------------------------------------------------------------------- join

    def join(self, request: JoinRequest, reply: JoinReply) -> None:
        error = self._check_join(request)
        if error is not ErrorCode.NONE:
            reply(JoinAnswer(error=error, member_id=request.member_id))
            return
        group = self.groups.get(request.group_id)
        if group is None:
            group = Group(request.group_id, since_ms=self._wall_ms())
            if request.member_id != NO_MEMBER_ID:
                reply(JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=request.member_id))
                return
        if not group.has_room_for(request.member_id, max_size=self._limits.max_size):
            self._forget_member(group, request.member_id)
            reply(JoinAnswer(error=ErrorCode.GROUP_MAX_SIZE_REACHED, member_id=request.member_id))
        elif not group.supports(request.protocol_type, request.protocols):
            reply(JoinAnswer(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=request.member_id))
        elif request.member_id == NO_MEMBER_ID:
            self.groups[group.group_id] = group
            self._join_new(group, request, reply)
        else:
            self._join_again(group, request, reply)
        self._rebalances.complete_if_all_joined(group)

    def _check_join(self, request: JoinRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        limits = self._limits
        if not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    def _join_new(self, group: Group, request: JoinRequest, reply: JoinReply) -> None:
        member_id = f"{request.instance_id or request.client_id}-{self._new_id()}"
        if request.instance_id is not None:
            old_id = group.member_of(request.instance_id)
            if old_id is not None:
                self._static_members.take_over(group, old_id, member_id, request, reply)
            else:
                self._add(group, member_id, request, reply)
        elif request.must_know_member_id:
            group.pending.add(member_id)
            self._deadlines.set(Wait.PENDING, group, request.session_timeout_ms, member_id)
            reply(JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add(group, member_id, request, reply)

    def _join_again(self, group: Group, request: JoinRequest, reply: JoinReply) -> None:
        member_id = request.member_id
        if member_id in group.pending and request.instance_id is None:
            self._add(group, member_id, request, reply)
            return
        error = group.check_member(MemberRef(member_id=member_id, instance_id=request.instance_id))
        if error is not ErrorCode.NONE:
            reply(JoinAnswer(error=error, member_id=member_id))
            return
        member = group.members[member_id]
        is_same = member.protocols == request.protocols
        is_settled = group.state is State.STABLE and group.leader != member_id
        if is_same and (is_settled or group.state is State.COMPLETING):
            # It may not have received the answer to its last join.
            self._deadlines.heard_from(group, member)
            reply(group.join_answer(member_id))
        else:
            member.rejoin(request, reply)
            self._rebalances.begin(group, f"{member_id} rejoins")

    def _add(self, group: Group, member_id: str, request: JoinRequest, reply: JoinReply) -> None:
        member = Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            join_reply=reply,
        )
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(member)
        if group.initial_delay is not None:
            group.has_grown = True
        self._deadlines.cancel(Wait.PENDING, group, member_id)
        self._deadlines.set(Wait.SESSION, group, NEW_MEMBER_TIMEOUT_MS, member_id)
        self._rebalances.begin(group, f"{member_id} joins")

    # --------------------------------------------------------------------------------------------- sync

    def sync(self, request: SyncRequest, reply: SyncReply) -> None:
        group = self.groups.get(request.group_id)
        error = self._check_sync(group, request)
        if error is not ErrorCode.NONE or group is None:
            reply(SyncAnswer(error=error))
            return
        member = group.members[request.member_id]
        group.unsynced.discard(request.member_id)
        if group.state is State.STABLE:
            self._deadlines.heard_from(group, member)
            reply(group.sync_answer(member))
            return
        member.answer_sync(SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if group.leader == request.member_id:
            self._rebalances.assign(group, request.assignments)

    def _check_sync(self, group: Group | None, request: SyncRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(
            MemberRef(member_id=request.member_id, instance_id=request.instance_id), request.generation
        )
        if error is not ErrorCode.NONE:
            return error
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and request.protocol_name != group.protocol_name:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is State.PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # ----------------------------------------------------------------------- heartbeat, leave and commit

    def heartbeat(self, group_id: str, ref: MemberRef, generation: int) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(ref, generation)
        if error is not ErrorCode.NONE:
            return error
        self._deadlines.heard_from(group, group.members[ref.member_id])
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else ErrorCode.NONE

    def leave(self, group_id: str, refs: Iterable[MemberRef]) -> list[ErrorCode]:
        """Remove members. Return an error code for each of them."""
        group = self.groups.get(group_id)
        return [self._leave(group, ref) for ref in refs]

    def _leave(self, group: Group | None, ref: MemberRef) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = ref.member_id
        if member_id == NO_MEMBER_ID:
            found = group.member_of(ref.instance_id)
            if found is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = found
        elif member_id in group.pending:
            self._forget_member(group, member_id)
            self._rebalances.complete_if_all_joined(group)
            return ErrorCode.NONE
        else:
            error = group.check_member(ref)
            if error is not ErrorCode.NONE:
                return error
        self._remove(group, member_id, "it left")
        return ErrorCode.NONE

    def check_commit(
        self, group_id: str, ref: MemberRef, generation: int, *, knows_missing_groups: bool = False
    ) -> ErrorCode:
        """Check whether a commit is accepted. A client that is not a member may commit to an empty group."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.groups.get(group_id)
        if group is None:
            if generation < 0:
                return ErrorCode.NONE
            return ErrorCode.GROUP_ID_NOT_FOUND if knows_missing_groups else ErrorCode.ILLEGAL_GENERATION
        if generation < 0 and group.is_empty:
            return ErrorCode.NONE
        error = group.check_member(ref, generation)
        if error is not ErrorCode.NONE:
            return error
        if group.state is State.COMPLETING:
            # Its assignment is not known yet, so neither are the partitions that it may commit.
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._deadlines.heard_from(group, group.members[ref.member_id])
        return ErrorCode.NONE

    # ---------------------------------------------------------------------------------- groups as such

    def get_or_create(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = Group(group_id, since_ms=self._wall_ms())
            self.groups[group_id] = group
        return group

    def restore(self, group_id: str, saved: SavedGroup) -> None:
        """Take over a group from the store. Its members have one session timeout to send their next request."""
        group = self.get_or_create(group_id)
        take_saved(group, saved)
        for member in group.members.values():
            self._deadlines.heard_from(group, member)

    def check_deletion(self, group_id: str) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.is_empty else ErrorCode.NON_EMPTY_GROUP

    def forget(self, group_id: str) -> None:
        """Remove an empty group from memory. Member ids that it assigned are no longer known."""
        group = self.groups.pop(group_id)
        group.state = State.DEAD
        for member_id in group.pending:
            self._deadlines.cancel(Wait.PENDING, group, member_id)

    # --------------------------------------------------------------------------------------------- time

    def next_wake_ms(self) -> int | None:
        """Return the time at which `expire` must be called next."""
        return self._deadlines.next_ms()

    def expire(self) -> None:
        """Remove silent members, and continue rebalances whose time is up."""
        for wait, group_id, member_id in self._deadlines.due():
            group = self.groups.get(group_id)
            if group is None:
                continue
            match wait:
                case Wait.SESSION:
                    self._session_ended(group, member_id)
                case Wait.PENDING:
                    group.pending.discard(member_id)
                    self._rebalances.complete_if_all_joined(group)
                case Wait.JOIN:
                    self._rebalances.join_time_is_up(group)
                case Wait.SYNC:
                    self._rebalances.sync_time_is_up(group)

    def _session_ended(self, group: Group, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member.is_joining or member.sync_reply is not None):
            # It waits for the coordinator, not the other way round. Its session starts again with the answer.
            return
        self._remove(group, member_id, "its session timed out")

    def _remove(self, group: Group, member_id: str, reason: str) -> None:
        member = group.remove(member_id)
        self._deadlines.cancel(Wait.SESSION, group, member_id)
        assert member is not None
        # It may still be alive, and rejoin.
        member.answer_join(JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
        member.answer_sync(SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
        self._rebalances.begin(group, f"{member_id} is gone: {reason}")
        self._rebalances.complete_if_all_joined(group)

    def _forget_member(self, group: Group, member_id: str) -> None:
        self._deadlines.cancel(Wait.PENDING, group, member_id)
        self._deadlines.cancel(Wait.SESSION, group, member_id)
        group.remove(member_id)
