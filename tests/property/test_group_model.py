"""Random clients on a coordinator: whatever they do, everybody is answered once, and nobody is lost."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.support.groups import INITIAL_DELAY_MS, REBALANCE_MS, SESSION_MS, Groups, Waiting

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.coordinator import NEW_MEMBER_TIMEOUT_MS
from lastword.broker.groups.group import State
from lastword.broker.groups.members import MemberRef

INSTANCES = [None, None, "a", "b"]
PROTOCOLS = [
    {"range": b"1"},
    {"range": b"2"},
    {"range": b"1", "sticky": b"1"},
    {"sticky": b"1", "range": b"1"},
]


class Clients:
    """Clients without a plan: each step is any request, with ids and generations that are or were right."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.groups = Groups(initial_rebalance_delay_ms=self.random.choice([0, INITIAL_DELAY_MS]), max_size=4)
        self.waiting: list[Waiting] = []
        self.ids: list[tuple[str, str | None]] = [("nobody", None)]
        self.generations: dict[str, int] = {}

    def step(self) -> None:
        groups, pick = self.groups, self.random.choice
        member_id, instance = pick(self.ids)
        current = groups.coordinator.groups.get("g")
        generation = current.generation if current and self.random.random() < 0.9 else pick([-1, 0, 1])
        match pick(
            [
                "join",
                "join",
                "again",
                "again",
                "sync",
                "sync",
                "sync",
                "beat",
                "leave",
                "commit",
                "time",
                "store",
            ]
        ):
            case "join":
                instance = pick(INSTANCES)
                version = pick([3, 4, 9])
                self._watch(groups.join(instance=instance, protocols=pick(PROTOCOLS), version=version))
            case "again":
                self._watch(groups.join(member_id, instance=instance, protocols=pick(PROTOCOLS), version=9))
            case "sync":
                assignments = {each: each.encode() for each, _ in self.ids}
                self._watch(groups.sync(member_id, generation, assignments, instance=instance))
            case "beat":
                groups.heartbeat(member_id, generation, instance=instance)
            case "leave":
                if self.random.random() < 0.3:
                    groups.leave(MemberRef(member_id=member_id, instance_id=instance))
            case "commit":
                groups.commit(member_id, generation, instance=instance)
            case "time":
                groups.move(pick([1, 100, INITIAL_DELAY_MS, SESSION_MS // 2, SESSION_MS]))
            case "store":
                groups.store_error = pick(
                    [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE]
                )
                groups.holds_store = not groups.holds_store
                if not groups.holds_store:
                    groups.release_store()
        self.check()

    def _watch(self, waiting: Waiting) -> None:
        self.waiting.append(waiting)
        handed_out = (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)
        for answer in [answer for each in self.waiting for answer in each.joins]:
            if answer.error in handed_out and answer.member_id not in dict(self.ids):
                name = answer.member_id.rpartition("-")[0]
                self.ids.append((answer.member_id, name if name in INSTANCES else None))

    def check(self) -> None:
        for each in self.waiting:
            assert len(each.joins) + len(each.syncs) <= 1
        for answer in [answer for each in self.waiting for answer in each.joins]:
            if answer.members and answer.error is ErrorCode.NONE:
                assert answer.leader == answer.member_id
        group = self.groups.coordinator.groups.get("g")
        if group is None:
            return
        if not group.members:
            assert group.state is State.EMPTY or (group.state is State.PREPARING and group.pending)
        else:
            assert group.state is not State.EMPTY
        assert set(group.static_members.values()) == {
            each.member_id for each in group.members.values() if each.instance_id is not None
        }
        assert all(member_id == each.member_id for member_id, each in group.members.items())
        assert len(group.members) <= 4 or group.state is State.PREPARING
        if group.members:
            assert group.leader in group.members
        if group.state is not State.COMPLETING:
            assert not any(each.sync_reply for each in group.members.values())

    def finish(self) -> None:
        """Let everybody fall silent."""
        self.groups.store_error, self.groups.holds_store = ErrorCode.NONE, False
        self.groups.release_store()
        self.groups.move(NEW_MEMBER_TIMEOUT_MS + 4 * REBALANCE_MS)
        assert all(each.is_answered for each in self.waiting)
        if self.groups.coordinator.groups:
            assert self.groups.state is State.EMPTY
            assert not self.groups.group.pending


@given(st.integers(0, 2**32), st.integers(1, 120))
def test_everybody_is_answered_once(seed: int, steps: int) -> None:
    clients = Clients(seed)
    for _ in range(steps):
        clients.step()
    clients.finish()
