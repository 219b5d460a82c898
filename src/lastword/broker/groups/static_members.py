"""Static members: those with an instance id, which keep their place in a group while they restart.

A static member that returns takes over its old place under a new member id, and the old member id is fenced. As long as
the group's protocol stays the same, there is no rebalance, and no other member notices. The new id is stored before
the join is answered. If it can't be stored, the member has its old id and settings again.
"""

from __future__ import annotations

from dataclasses import replace

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.deadlines import Deadlines, Wait
from lastword.broker.groups.group import Group, State, Store, saved_group
from lastword.broker.groups.members import JoinAnswer, JoinReply, JoinRequest
from lastword.broker.groups.rebalances import Rebalances


class StaticMembers:
    """Gives static members their places again."""

    def __init__(self, deadlines: Deadlines, rebalances: Rebalances, store: Store) -> None:
        self._deadlines = deadlines
        self._rebalances = rebalances
        self._store = store

    def take_over(
        self, group: Group, old_id: str, new_id: str, request: JoinRequest, reply: JoinReply
    ) -> None:
        """Give a returning static member its old place."""
        leader_before = group.leader or ""
        before = replace(group.members[old_id], join_reply=None, sync_reply=None)
        member = group.rename(old_id, new_id)
        self._deadlines.cancel(Wait.SESSION, group, old_id)
        self._deadlines.heard_from(group, member)
        member.rejoin(request, reply)
        if group.state is State.COMPLETING:
            # The leader may be assigning to the old member id right now.
            self._rebalances.begin(group, f"static member {request.instance_id} returned as {new_id}")
            return
        if group.state is not State.STABLE:
            return
        if group.chosen_protocol() != group.protocol_name:
            self._rebalances.begin(group, f"static member {request.instance_id} changed its protocols")
            return

        def stored(error: ErrorCode) -> None:
            if group.members.get(new_id) is not member or group.state is not State.STABLE:
                # It left, it was replaced again, or a rebalance began, which answers it.
                return
            if error is not ErrorCode.NONE:
                member.join_reply = None
                group.rename(new_id, old_id)
                self._deadlines.cancel(Wait.SESSION, group, new_id)
                self._deadlines.heard_from(group, member)
                member.protocols = before.protocols
                member.session_timeout_ms = before.session_timeout_ms
                member.rebalance_timeout_ms = before.rebalance_timeout_ms
                reply(JoinAnswer(error=error, leader=leader_before))
                return
            self._deadlines.heard_from(group, member)
            answer = group.join_answer(new_id)
            if request.may_skip_assignment:
                member.answer_join(replace(answer, skip_assignment=new_id == group.leader))
            else:
                # An older client that learns it is the leader would assign, which a stable group ignores. It gets
                # the leader's old id, in which it does not recognize itself.
                member.answer_join(replace(answer, leader=leader_before, members=()))

        self._store(group.group_id, saved_group(group), stored)
