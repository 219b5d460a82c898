"""Members with an instance id: they come back under a new member id and take their old place."""

from __future__ import annotations

import pytest
from tests.support.groups import REBALANCE_MS, SESSION_MS, Groups

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.group import State
from lastword.broker.groups.members import MemberRef


@pytest.fixture
def groups() -> Groups:
    return Groups()


def test_follower_that_comes_back_gets_its_assignment_and_nobody_rebalances(groups: Groups) -> None:
    leader, old = groups.stable("a", "b")
    generation = groups.group.generation
    back = groups.join(instance="b", version=9).joined
    assert (back.error, back.generation, back.leader) == (ErrorCode.NONE, generation, leader)
    assert back.member_id not in (leader, old)
    assert back.members == () and not back.skip_assignment
    assert groups.state is State.STABLE
    assert groups.sync(back.member_id, generation, instance="b").synced.assignment == old.encode()
    assert groups.heartbeat(leader, generation, instance="a") is ErrorCode.NONE


def test_who_comes_back_is_stored_under_its_new_id(groups: Groups) -> None:
    _, old = groups.stable("a", "b")
    back = groups.join(instance="b").joined.member_id
    saved = groups.stored["g"]
    assert saved is not None
    assert {each.instance_id: each.member_id for each in saved.members}["b"] == back != old
    assert {each.member_id: each.assignment for each in saved.members}[back] == old.encode()


def test_leader_that_comes_back_is_told_to_skip_the_assignment(groups: Groups) -> None:
    _, _ = groups.stable("a", "b")
    back = groups.join(instance="a", version=9).joined
    assert back.leader == back.member_id
    assert back.skip_assignment
    assert len(back.members) == 2


def test_older_client_that_led_is_not_told_that_it_leads(groups: Groups) -> None:
    old, _ = groups.stable("a", "b")
    back = groups.join(instance="a", version=8).joined
    assert back.leader == old != back.member_id
    assert back.members == ()
    assert groups.group.leader == back.member_id


def test_old_member_id_is_fenced(groups: Groups) -> None:
    _, old = groups.stable("a", "b")
    generation = groups.group.generation
    groups.join(instance="b")
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert groups.heartbeat(old, generation, instance="b") is fenced
    assert groups.commit(old, generation, instance="b") is fenced
    assert groups.sync(old, generation, instance="b").synced.error is fenced
    assert groups.join(old, instance="b").joined.error is fenced
    assert groups.leave(MemberRef(member_id=old, instance_id="b")) == [fenced]
    assert groups.heartbeat(old, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.state is State.STABLE


def test_unknown_instance(groups: Groups) -> None:
    member, _ = groups.stable("a", "b")
    assert groups.heartbeat(member, groups.group.generation, instance="c") is ErrorCode.UNKNOWN_MEMBER_ID


def test_other_protocols_rebalance(groups: Groups) -> None:
    first = groups.join(instance="a", protocols={"range": b"", "sticky": b""}).joined
    groups.sync(first.member_id, 1, {}, instance="a")
    back = groups.join(instance="a", protocols={"sticky": b""}).joined
    assert (back.generation, back.protocol_name) == (2, "sticky")


def test_back_while_the_assignment_is_awaited_begins_again(groups: Groups) -> None:
    first = groups.join(instance="a").joined
    waiting = groups.join(instance="a")
    assert waiting.joined.generation == 2
    assert waiting.joined.member_id != first.member_id


def test_back_while_a_rebalance_is_prepared_fences_who_waited(groups: Groups) -> None:
    groups.stable("a", "b")
    waiting = groups.join(instance="a", protocols={"range": b"x"})
    # Its metadata alone changes nothing: the protocol is the same.
    assert waiting.joined.error is ErrorCode.NONE
    groups.join(instance="c")
    assert groups.state is State.PREPARING
    old = groups.join(waiting.joined.member_id, instance="a")
    assert not old.is_answered
    new = groups.join(instance="a")
    assert old.joined.error is ErrorCode.FENCED_INSTANCE_ID
    assert not new.is_answered
    groups.join(instance="b")
    assert new.joined.error is ErrorCode.NONE


def test_who_waited_for_its_assignment_is_fenced(groups: Groups) -> None:
    leader, follower = groups.stable("a", "b")
    generation = groups.join(leader, instance="a") and groups.join(follower, instance="b").joined.generation
    waiting = groups.sync(follower, generation, instance="b")
    groups.join(instance="b")
    assert waiting.synced.error is ErrorCode.FENCED_INSTANCE_ID
    assert groups.state is State.PREPARING


def test_silent_static_member_stays_until_its_session_ends(groups: Groups) -> None:
    leader, away = groups.stable("a", "b", session_ms=REBALANCE_MS * 2)
    again = groups.join(leader, instance="a", session_ms=REBALANCE_MS * 2)
    groups.move(REBALANCE_MS)
    assert again.joined.error is ErrorCode.NONE
    assert away in groups.group.members
    groups.sync(leader, again.joined.generation, {}, instance="a")
    groups.move(REBALANCE_MS * 2)
    assert away not in groups.group.members


def test_session_of_the_new_member_id_counts(groups: Groups) -> None:
    (old,) = groups.stable("a")
    groups.move(SESSION_MS - 1)
    back = groups.join(instance="a").joined
    groups.move(SESSION_MS - 1)
    assert groups.state is State.STABLE
    groups.move(1)
    assert groups.state is State.EMPTY
    assert groups.heartbeat(back.member_id, 1, instance="a") is ErrorCode.UNKNOWN_MEMBER_ID
    assert old != back.member_id


def test_leaving_by_the_instance_alone(groups: Groups) -> None:
    leader, _ = groups.stable("a", "b")
    assert groups.leave(MemberRef(member_id="", instance_id="b")) == [ErrorCode.NONE]
    assert groups.state is State.PREPARING
    assert groups.join(leader, instance="a").joined.error is ErrorCode.NONE


def test_return_that_can_not_be_stored_is_taken_back(groups: Groups) -> None:
    _, old = groups.stable("a", "b")
    generation = groups.group.generation
    groups.store_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    failed = groups.join(instance="b").joined
    assert (failed.error, failed.member_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
    assert groups.heartbeat(old, generation, instance="b") is ErrorCode.NONE
    groups.store_error = ErrorCode.NONE
    assert groups.join(instance="b").joined.error is ErrorCode.NONE


def test_rebalance_that_begins_while_a_return_is_stored_answers_it(groups: Groups) -> None:
    leader, _ = groups.stable("a", "b")
    groups.holds_store = True
    back = groups.join(instance="b")
    groups.join(leader, instance="a")
    groups.holds_store = False
    assert back.joined.error is ErrorCode.NONE
    generation = groups.group.generation
    groups.release_store()
    assert back.joined.generation == generation
    assert groups.state is State.COMPLETING


def test_two_returns_in_a_row_leave_the_last_one(groups: Groups) -> None:
    groups.stable("a", "b")
    groups.holds_store = True
    first, second = groups.join(instance="b"), groups.join(instance="b")
    groups.release_store()
    assert first.joined.error is ErrorCode.FENCED_INSTANCE_ID
    assert second.joined.error is ErrorCode.NONE
    assert len(groups.group.members) == 2


def test_static_and_dynamic_members_together(groups: Groups) -> None:
    groups.stable("a", None)
    back = groups.join(instance="a", version=9).joined
    assert back.error is ErrorCode.NONE
    assert groups.state is State.STABLE
