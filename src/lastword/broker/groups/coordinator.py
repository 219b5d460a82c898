"""The rules of Kafka's classic group protocol: membership, rebalances and assignments.

The states of a group:

    Empty ── first join ──▶ PreparingRebalance ── all have joined, or time is up ──▶ CompletingRebalance
      ▲                        ▲                                                          │ the leader syncs,
      └── nobody is left       └── a member joins, leaves, expires, changes ── Stable ◀───┘ the store has it

1. A join waits until the rebalance begins its new generation. Then every member is answered, the leader with all
   members and their metadata.
2. A sync waits until the leader has sent the assignments and the store has them.
3. Heartbeats keep a member alive. A member that is silent for its session timeout is removed, and the group
   rebalances. A member that waits for an answer needs no heartbeats.
4. A static member (one with an instance id) that returns takes over its old place under a new member id. As long as
   the group's protocol stays the same, there is no rebalance, and the old member id is fenced.

There is no I/O and no waiting here. The clocks and the store are passed in, answers go to the callbacks that came with
the requests, and `expire` must be called at `next_wake_ms`. After the process was killed, `restore` takes over the
groups of the store: members continue with their heartbeats as if nothing had happened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.group import Group, InitialDelay, State, take_saved
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
from lastword.broker.groups.records import SavedGroup, SavedMember
from lastword.broker.groups.timers import Timers

logger = logging.getLogger(__name__)

NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000
"""How long a first join waits for its answer: its client can't send heartbeats yet, and may be long gone."""

Stored = Callable[[ErrorCode], None]
Store = Callable[[str, SavedGroup | None, Stored], None]
"""Stores a group, or deletes it (None), and reports the result, now or later, in the order of the calls."""


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
        self._store = store
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._new_id = new_id
        self._timers: Timers[tuple[str, str, str]] = Timers()
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
        if not self._has_room(group, request.member_id):
            self._forget_member(group, request.member_id)
            reply(JoinAnswer(error=ErrorCode.GROUP_MAX_SIZE_REACHED, member_id=request.member_id))
        elif not group.supports(request.protocol_type, request.protocols):
            reply(JoinAnswer(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=request.member_id))
        elif request.member_id == NO_MEMBER_ID:
            self.groups[group.group_id] = group
            self._join_new(group, request, reply)
        else:
            self._join_again(group, request, reply)
        self._maybe_complete_join(group)

    def _check_join(self, request: JoinRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        limits = self._limits
        if not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    def _has_room(self, group: Group, member_id: str) -> bool:
        member = group.members.get(member_id)
        if group.state is State.PREPARING:
            if member is not None and member.is_joining:
                return True
            return len(group.joining) < self._limits.max_size
        if group.state in (State.COMPLETING, State.STABLE):
            return member is not None or len(group) < self._limits.max_size
        return True

    def _join_new(self, group: Group, request: JoinRequest, reply: JoinReply) -> None:
        member_id = f"{request.instance_id or request.client_id}-{self._new_id()}"
        if request.instance_id is not None:
            old_id = group.member_of(request.instance_id)
            if old_id is not None:
                self._replace_static(group, old_id, member_id, request, reply)
            else:
                self._add(group, member_id, request, reply)
        elif request.must_know_member_id:
            group.pending.add(member_id)
            self._timers.set(
                ("pending", group.group_id, member_id), self._now_ms() + request.session_timeout_ms
            )
            reply(JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        else:
            self._add(group, member_id, request, reply)

    def _join_again(self, group: Group, request: JoinRequest, reply: JoinReply) -> None:
        member_id = request.member_id
        if member_id in group.pending and request.instance_id is None:
            self._add(group, member_id, request, reply)
            return
        error = _check_member(group, MemberRef(member_id=member_id, instance_id=request.instance_id))
        if error is not ErrorCode.NONE:
            reply(JoinAnswer(error=error, member_id=member_id))
            return
        member = group.members[member_id]
        is_same = member.protocols == request.protocols
        is_settled = group.state is State.STABLE and group.leader != member_id
        if is_same and (is_settled or group.state is State.COMPLETING):
            # It may not have received the answer to its last join.
            self._heard_from(group, member)
            reply(group.join_answer(member_id))
        else:
            self._update(member, request, reply)
            self._maybe_rebalance(group, f"{member_id} rejoins")

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
        self._timers.cancel(("pending", group.group_id, member_id))
        self._timers.set(("session", group.group_id, member_id), self._now_ms() + NEW_MEMBER_TIMEOUT_MS)
        self._maybe_rebalance(group, f"{member_id} joins")

    def _update(self, member: Member, request: JoinRequest, reply: JoinReply | None) -> None:
        if member.join_reply is not None and reply is not None:
            # It sent another join on another connection, so the first one is obsolete.
            member.answer_join(JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=member.member_id))
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        member.join_reply = reply

    def _replace_static(
        self, group: Group, old_id: str, new_id: str, request: JoinRequest, reply: JoinReply
    ) -> None:
        """Give a returning static member its old place. If nothing else changes, no other member notices."""
        leader_before = group.leader or ""
        before = replace(group.members[old_id], join_reply=None, sync_reply=None)
        member = group.rename(old_id, new_id)
        self._timers.cancel(("session", group.group_id, old_id))
        self._heard_from(group, member)
        self._update(member, request, reply)
        if group.state is State.COMPLETING:
            # The leader may be assigning to the old member id right now.
            self._rebalance(group, f"static member {request.instance_id} returned as {new_id}")
            return
        if group.state is not State.STABLE:
            return
        if group.chosen_protocol() != group.protocol_name:
            self._maybe_rebalance(group, f"static member {request.instance_id} changed its protocols")
            return

        def stored(error: ErrorCode) -> None:
            if group.members.get(new_id) is not member or group.state is not State.STABLE:
                # It left, it was replaced again, or a rebalance began, which answers it.
                return
            if error is not ErrorCode.NONE:
                member.join_reply = None
                group.rename(new_id, old_id)
                self._timers.cancel(("session", group.group_id, new_id))
                self._heard_from(group, member)
                member.protocols = before.protocols
                member.session_timeout_ms = before.session_timeout_ms
                member.rebalance_timeout_ms = before.rebalance_timeout_ms
                reply(JoinAnswer(error=error, leader=leader_before))
                return
            self._heard_from(group, member)
            answer = group.join_answer(new_id)
            if request.may_skip_assignment:
                member.answer_join(replace(answer, skip_assignment=new_id == group.leader))
            else:
                # An older client that learns it is the leader would assign, which a stable group ignores. It gets
                # the leader's old id, in which it does not recognize itself.
                member.answer_join(replace(answer, leader=leader_before, members=()))

        self._store(group.group_id, _saved(group), stored)

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
            self._heard_from(group, member)
            reply(group.sync_answer(member))
            return
        member.answer_sync(SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_reply = reply
        if group.leader == request.member_id:
            self._assign(group, request.assignments)

    def _check_sync(self, group: Group | None, request: SyncRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = _check_member(
            group, MemberRef(member_id=request.member_id, instance_id=request.instance_id), request.generation
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

    def _assign(self, group: Group, given: Mapping[str, bytes]) -> None:
        """Store the leader's assignments, then send them to the members."""
        generation = group.generation
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}

        def stored(error: ErrorCode) -> None:
            if (
                self.groups.get(group.group_id) is not group
                or group.state is not State.COMPLETING
                or group.generation != generation
            ):
                return
            if error is not ErrorCode.NONE:
                self._answer_syncs(group, error)
                self._maybe_rebalance(group, f"the assignment could not be stored: {error.name}")
                return
            self._enter(group, State.STABLE)
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
                if member.sync_reply is not None:
                    member.answer_sync(group.sync_answer(member))
                    self._heard_from(group, member)

        self._store(group.group_id, _saved(group, assignments), stored)

    # ----------------------------------------------------------------------- heartbeat, leave and commit

    def heartbeat(self, group_id: str, ref: MemberRef, generation: int) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = _check_member(group, ref, generation)
        if error is not ErrorCode.NONE:
            return error
        self._heard_from(group, group.members[ref.member_id])
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
            self._maybe_complete_join(group)
            return ErrorCode.NONE
        else:
            error = _check_member(group, ref)
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
        error = _check_member(group, ref, generation)
        if error is not ErrorCode.NONE:
            return error
        if group.state is State.COMPLETING:
            # Its assignment is not known yet, so neither are the partitions that it may commit.
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._heard_from(group, group.members[ref.member_id])
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
            self._heard_from(group, member)

    def check_deletion(self, group_id: str) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.is_empty else ErrorCode.NON_EMPTY_GROUP

    def forget(self, group_id: str) -> None:
        """Remove an empty group from memory. Member ids that it handed out are no longer known."""
        group = self.groups.pop(group_id)
        group.state = State.DEAD
        for member_id in group.pending:
            self._timers.cancel(("pending", group_id, member_id))

    # --------------------------------------------------------------------------------------------- time

    def next_wake_ms(self) -> int | None:
        """Return the time at which `expire` must be called next."""
        return self._timers.next_ms()

    def expire(self) -> None:
        """Do what is due: remove silent members, and continue rebalances that waited long enough."""
        for what, group_id, member_id in self._timers.due(self._now_ms()):
            group = self.groups.get(group_id)
            if group is None:
                continue
            if what == "session":
                self._session_ended(group, member_id)
            elif what == "pending":
                group.pending.discard(member_id)
                self._maybe_complete_join(group)
            elif what == "join":
                self._join_time_is_up(group)
            else:
                self._sync_time_is_up(group)

    def _session_ended(self, group: Group, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member.is_joining or member.sync_reply is not None):
            # It waits for the coordinator, not the other way round. Its session starts again with the answer.
            return
        self._remove(group, member_id, "its session timed out")

    def _join_time_is_up(self, group: Group) -> None:
        if group.state is not State.PREPARING:
            return
        delay = group.initial_delay
        if delay is not None and group.has_grown and delay.left_ms > 0:
            group.has_grown = False
            step_ms = min(delay.step_ms, delay.left_ms)
            delay.left_ms -= step_ms
            self._timers.set(("join", group.group_id, ""), self._now_ms() + step_ms)
            return
        self._complete_join(group)

    def _sync_time_is_up(self, group: Group) -> None:
        if group.state not in (State.COMPLETING, State.STABLE) or not group.unsynced:
            return
        for member_id in list(group.unsynced):
            self._timers.cancel(("session", group.group_id, member_id))
            group.remove(member_id)
        self._rebalance(group, "members did not request their assignment in time")
        self._maybe_complete_join(group)

    def _heard_from(self, group: Group, member: Member) -> None:
        self._timers.set(
            ("session", group.group_id, member.member_id), self._now_ms() + member.session_timeout_ms
        )

    # ---------------------------------------------------------------------------------------- rebalance

    def _maybe_rebalance(self, group: Group, reason: str) -> None:
        if group.state in (State.EMPTY, State.COMPLETING, State.STABLE):
            self._rebalance(group, reason)

    def _rebalance(self, group: Group, reason: str) -> None:
        if group.state is State.COMPLETING:
            self._answer_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._timers.cancel(("sync", group.group_id, ""))
        group.unsynced.clear()
        timeout_ms = group.rebalance_timeout_ms
        if group.is_empty:
            delay_ms = self._limits.initial_rebalance_delay_ms
            group.initial_delay = InitialDelay(delay_ms, max(timeout_ms - delay_ms, 0))
            group.has_grown = False
            timeout_ms = delay_ms
        self._enter(group, State.PREPARING)
        self._timers.set(("join", group.group_id, ""), self._now_ms() + timeout_ms)
        logger.info("group %s rebalances after generation %d: %s", group.group_id, group.generation, reason)

    def _maybe_complete_join(self, group: Group) -> None:
        if group.state is not State.PREPARING:
            return
        if group.initial_delay is not None and group.members and group.initial_delay.step_ms > 0:
            # More members may join.
            return
        if group.has_all_joined:
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        """Begin the next generation with the members that joined, and the static members that may return."""
        for member in [each for each in group.members.values() if not each.is_joining and not each.is_static]:
            self._timers.cancel(("session", group.group_id, member.member_id))
            group.remove(member.member_id)
            logger.info("group %s: %s did not rejoin in time", group.group_id, member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only absent static members are left: until their sessions end there is no member to answer.
            self._timers.set(("join", group.group_id, ""), self._now_ms() + group.rebalance_timeout_ms)
            return
        group.initial_delay = None
        self._timers.cancel(("join", group.group_id, ""))
        group.generation += 1
        if not group.members:
            group.protocol_name, group.leader = None, None
            self._enter(group, State.EMPTY)
            self._store(group.group_id, _saved(group), _ignore)
            return
        group.protocol_name = group.chosen_protocol()
        self._enter(group, State.COMPLETING)
        group.unsynced = set(group.members)
        self._timers.set(("sync", group.group_id, ""), self._now_ms() + group.rebalance_timeout_ms)
        for member in list(group.members.values()):
            member.is_new = False
            member.answer_join(group.join_answer(member.member_id))
            self._heard_from(group, member)
        logger.info(
            "group %s: generation %d with %d members", group.group_id, group.generation, len(group.members)
        )

    def _answer_syncs(self, group: Group, error: ErrorCode) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.sync_reply is not None:
                member.answer_sync(SyncAnswer(error=error))
                self._heard_from(group, member)

    def _remove(self, group: Group, member_id: str, reason: str) -> None:
        member = group.remove(member_id)
        self._timers.cancel(("session", group.group_id, member_id))
        assert member is not None
        # It may still be alive, and rejoin.
        member.answer_join(JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
        member.answer_sync(SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID))
        self._maybe_rebalance(group, f"{member_id} is gone: {reason}")
        self._maybe_complete_join(group)

    def _forget_member(self, group: Group, member_id: str) -> None:
        self._timers.cancel(("pending", group.group_id, member_id))
        self._timers.cancel(("session", group.group_id, member_id))
        group.remove(member_id)

    def _enter(self, group: Group, state: State) -> None:
        group.state = state
        group.since_ms = self._wall_ms()


def _check_member(group: Group, ref: MemberRef, generation: int | None = None) -> ErrorCode:
    """Check a member's identity and its generation."""
    if ref.instance_id is not None:
        current = group.member_of(ref.instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != ref.member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    if ref.member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation is not None and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def _saved(group: Group, assignments: Mapping[str, bytes] | None = None) -> SavedGroup:
    return SavedGroup(
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader,
        since_ms=group.since_ms,
        members=tuple(
            SavedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                metadata=member.metadata(group.protocol_name or ""),
                assignment=member.assignment if assignments is None else assignments[member.member_id],
            )
            for member in group.members.values()
        ),
    )


def _ignore(error: ErrorCode) -> None:
    if error is not ErrorCode.NONE:
        logger.warning("an empty group could not be stored: %s", error.name)
