"""The steps of a group from one generation to the next.

1. A rebalance begins: members learn of it with their next heartbeat, and rejoin.
2. When all have joined, or the time is up, the next generation begins, without those that did not join. Absent static
   members stay until their sessions end. Every join is answered.
3. The leader's assignments are stored, then sent to the members, and the group is stable. If they can't be stored, or
   some members don't request theirs in time, another rebalance begins.

The first rebalance of a group waits for more members, a little longer with each that joins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.deadlines import Deadlines, Wait
from lastword.broker.groups.group import Group, InitialDelay, State, Store, saved_group
from lastword.broker.groups.members import SyncAnswer

logger = logging.getLogger(__name__)


class Rebalances:
    """Begins and completes the rebalances of all groups."""

    def __init__(
        self, deadlines: Deadlines, store: Store, *, initial_delay_ms: int, wall_ms: Callable[[], int]
    ) -> None:
        self._deadlines = deadlines
        self._store = store
        self._initial_delay_ms = initial_delay_ms
        self._wall_ms = wall_ms

    def begin(self, group: Group, reason: str) -> None:
        """Begin a rebalance, unless one has begun already."""
        if group.state not in (State.EMPTY, State.COMPLETING, State.STABLE):
            return
        if group.state is State.COMPLETING:
            self._refuse_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._deadlines.cancel(Wait.SYNC, group)
        group.unsynced.clear()
        timeout_ms = group.rebalance_timeout_ms
        if group.is_empty:
            delay_ms = self._initial_delay_ms
            group.initial_delay = InitialDelay(delay_ms, max(timeout_ms - delay_ms, 0))
            group.has_grown = False
            timeout_ms = delay_ms
        self._enter(group, State.PREPARING)
        self._deadlines.set(Wait.JOIN, group, timeout_ms)
        logger.info("group %s rebalances after generation %d: %s", group.group_id, group.generation, reason)

    def complete_if_all_joined(self, group: Group) -> None:
        """Begin the next generation if the group waits for no other member."""
        if group.state is not State.PREPARING:
            return
        if group.initial_delay is not None and group.members and group.initial_delay.step_ms > 0:
            # More members may join.
            return
        if group.has_all_joined:
            self._complete(group)

    def join_time_is_up(self, group: Group) -> None:
        if group.state is not State.PREPARING:
            return
        delay = group.initial_delay
        if delay is not None and group.has_grown and delay.left_ms > 0:
            group.has_grown = False
            step_ms = min(delay.step_ms, delay.left_ms)
            delay.left_ms -= step_ms
            self._deadlines.set(Wait.JOIN, group, step_ms)
            return
        self._complete(group)

    def sync_time_is_up(self, group: Group) -> None:
        if group.state not in (State.COMPLETING, State.STABLE) or not group.unsynced:
            return
        for member_id in list(group.unsynced):
            self._deadlines.cancel(Wait.SESSION, group, member_id)
            group.remove(member_id)
        self.begin(group, "members did not request their assignment in time")
        self.complete_if_all_joined(group)

    def assign(self, group: Group, given: Mapping[str, bytes]) -> None:
        """Store the leader's assignments, then send them to the members."""
        generation = group.generation
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}

        def stored(error: ErrorCode) -> None:
            if group.state is not State.COMPLETING or group.generation != generation:
                return
            if error is not ErrorCode.NONE:
                self._refuse_syncs(group, error)
                self.begin(group, f"the assignment could not be stored: {error.name}")
                return
            self._enter(group, State.STABLE)
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
                if member.sync_reply is not None:
                    member.answer_sync(group.sync_answer(member))
                    self._deadlines.heard_from(group, member)

        self._store(group.group_id, saved_group(group, assignments), stored)

    def _complete(self, group: Group) -> None:
        """Begin the next generation with the members that joined, and the static members that may return."""
        for member in [each for each in group.members.values() if not each.is_joining and not each.is_static]:
            self._deadlines.cancel(Wait.SESSION, group, member.member_id)
            group.remove(member.member_id)
            logger.info("group %s: %s did not rejoin in time", group.group_id, member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only absent static members are left: until their sessions end there is no member to answer.
            self._deadlines.set(Wait.JOIN, group, group.rebalance_timeout_ms)
            return
        group.initial_delay = None
        self._deadlines.cancel(Wait.JOIN, group)
        group.generation += 1
        if not group.members:
            group.protocol_name, group.leader = None, None
            self._enter(group, State.EMPTY)
            self._store(group.group_id, saved_group(group), _ignore)
            return
        group.protocol_name = group.chosen_protocol()
        self._enter(group, State.COMPLETING)
        group.unsynced = set(group.members)
        self._deadlines.set(Wait.SYNC, group, group.rebalance_timeout_ms)
        for member in list(group.members.values()):
            member.is_new = False
            member.answer_join(group.join_answer(member.member_id))
            self._deadlines.heard_from(group, member)
        logger.info(
            "group %s: generation %d with %d members", group.group_id, group.generation, len(group.members)
        )

    def _refuse_syncs(self, group: Group, error: ErrorCode) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.sync_reply is not None:
                member.answer_sync(SyncAnswer(error=error))
                self._deadlines.heard_from(group, member)

    def _enter(self, group: Group, state: State) -> None:
        group.state = state
        group.since_ms = self._wall_ms()


def _ignore(error: ErrorCode) -> None:
    if error is not ErrorCode.NONE:
        logger.warning("an empty group could not be stored: %s", error.name)
