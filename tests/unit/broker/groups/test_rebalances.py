"""From one generation of a group to the next."""

from __future__ import annotations

import pytest
from tests.support.groups import INITIAL_DELAY_MS, REBALANCE_MS, Groups

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.coordinator import NEW_MEMBER_TIMEOUT_MS
from lastword.broker.groups.group import State


@pytest.fixture
def groups() -> Groups:
    return Groups()


class TestInitialDelay:
    def test_members_that_come_meanwhile_share_the_first_generation(self) -> None:
        groups = Groups(initial_rebalance_delay_ms=INITIAL_DELAY_MS)
        first = groups.join()
        groups.move(INITIAL_DELAY_MS - 1)
        second = groups.join()
        groups.move(INITIAL_DELAY_MS)
        assert not first.is_answered
        groups.move(1)
        assert (first.joined.generation, second.joined.generation) == (1, 1)

    def test_one_member_waits_once(self) -> None:
        groups = Groups(initial_rebalance_delay_ms=INITIAL_DELAY_MS)
        only = groups.join()
        groups.move(INITIAL_DELAY_MS - 1)
        assert not only.is_answered
        groups.move(1)
        assert only.is_answered

    def test_it_ends_at_the_rebalance_timeout_however_many_come(self) -> None:
        groups = Groups(initial_rebalance_delay_ms=INITIAL_DELAY_MS)
        first = groups.join(rebalance_ms=7_000)
        for _ in range(7):
            assert not first.is_answered
            groups.join(rebalance_ms=7_000)
            groups.move(1_000)
        assert first.joined.generation == 1

    def test_everybody_leaves_before_it_ends(self) -> None:
        groups = Groups(initial_rebalance_delay_ms=INITIAL_DELAY_MS)
        only = groups.join()
        assert groups.leave("client-1") == [ErrorCode.NONE]
        assert only.joined.error is ErrorCode.UNKNOWN_MEMBER_ID
        assert groups.state is State.EMPTY


class TestRebalance:
    def test_a_second_member_makes_the_first_join_again(self, groups: Groups) -> None:
        (first,) = groups.stable(None)
        second = groups.join()
        assert groups.state is State.PREPARING
        assert groups.heartbeat(first, 1) is ErrorCode.REBALANCE_IN_PROGRESS
        assert not second.is_answered
        again = groups.join(first)
        assert (again.joined.generation, second.joined.generation) == (2, 2)
        assert again.joined.leader == first
        assert len(again.joined.members) == 2
        assert second.joined.members == ()

    def test_member_that_does_not_join_again_is_out(self, groups: Groups) -> None:
        first, silent = groups.stable(None, None, session_ms=REBALANCE_MS * 2)
        generation = groups.group.generation
        again = groups.join(first, session_ms=REBALANCE_MS * 2)
        groups.move(REBALANCE_MS)
        assert again.joined.generation == generation + 1
        assert list(groups.group.members) == [first]
        assert groups.heartbeat(silent, generation) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_leader_that_does_not_join_again_is_replaced(self, groups: Groups) -> None:
        leader, other = groups.stable(None, None, session_ms=REBALANCE_MS * 2)
        again = groups.join(other, protocols={"range": b"new"}, session_ms=REBALANCE_MS * 2)
        groups.move(REBALANCE_MS)
        assert again.joined.leader == other
        assert leader not in groups.group.members

    def test_longest_rebalance_timeout_holds(self, groups: Groups) -> None:
        first, _ = groups.stable(None, None, session_ms=REBALANCE_MS * 3)
        again = groups.join(first, rebalance_ms=REBALANCE_MS * 2, session_ms=REBALANCE_MS * 3)
        groups.move(REBALANCE_MS * 2 - 1)
        assert not again.is_answered
        groups.move(1)
        assert again.is_answered

    def test_follower_that_joins_again_unchanged_does_not_rebalance(self, groups: Groups) -> None:
        _, follower = groups.stable(None, None)
        generation = groups.group.generation
        again = groups.join(follower).joined
        assert (again.error, again.generation, again.members) == (ErrorCode.NONE, generation, ())
        assert groups.state is State.STABLE

    def test_follower_with_other_metadata_rebalances(self, groups: Groups) -> None:
        _, follower = groups.stable(None, None)
        assert not groups.join(follower, protocols={"range": b"other"}).is_answered
        assert groups.state is State.PREPARING

    def test_leader_that_joins_again_rebalances(self, groups: Groups) -> None:
        leader, _ = groups.stable(None, None)
        assert not groups.join(leader).is_answered
        assert groups.state is State.PREPARING

    def test_join_that_is_repeated_before_the_assignment_gets_the_same_answer(self, groups: Groups) -> None:
        first = groups.join().joined
        assert groups.join(first.member_id).joined == first
        assert groups.state is State.COMPLETING

    def test_join_with_other_metadata_before_the_assignment_begins_again(self, groups: Groups) -> None:
        first = groups.join().joined
        again = groups.join(first.member_id, protocols={"range": b"other"}).joined
        assert again.generation == 2

    def test_join_that_is_repeated_while_waiting_answers_the_first_one(self, groups: Groups) -> None:
        leader, _ = groups.stable(None, None)
        first, second = groups.join(leader), groups.join(leader)
        assert first.joined.error is ErrorCode.UNKNOWN_MEMBER_ID
        assert not second.is_answered

    def test_a_new_member_waits_for_its_first_answer_for_five_minutes(self, groups: Groups) -> None:
        first, second = groups.stable(None, None, session_ms=1_800_000)
        groups.join(second, protocols={"range": b"x"}, session_ms=1_800_000, rebalance_ms=1_800_000)
        waiting = groups.join(rebalance_ms=1_800_000)
        groups.move(NEW_MEMBER_TIMEOUT_MS - 1)
        assert not waiting.is_answered
        groups.move(1)
        assert waiting.joined.error is ErrorCode.UNKNOWN_MEMBER_ID
        assert first in groups.group.members

    def test_generations_only_go_up(self, groups: Groups) -> None:
        (member,) = groups.stable(None)
        groups.leave(member)
        assert (groups.state, groups.group.generation) == (State.EMPTY, 2)
        assert groups.join().joined.generation == 3
