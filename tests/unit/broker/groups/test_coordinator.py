"""The classic protocol, transition by transition."""

from __future__ import annotations

import pytest
from tests.support.groups import INITIAL_DELAY_MS, REBALANCE_MS, SESSION_MS, Groups

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.group import State
from lastword.broker.groups.members import MemberRef


@pytest.fixture
def groups() -> Groups:
    return Groups()


class TestJoin:
    def test_first_member_is_the_leader_and_gets_all_members(self, groups: Groups) -> None:
        answer = groups.join().joined
        assert answer.error is ErrorCode.NONE
        assert (answer.generation, answer.leader, answer.protocol_name) == (1, answer.member_id, "range")
        assert [each.member_id for each in answer.members] == [answer.member_id]
        assert answer.member_id.startswith("client-")
        assert groups.state is State.COMPLETING

    @pytest.mark.parametrize(
        ("request_", "error"),
        [
            ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
            ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
            ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
            ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ],
    )
    def test_refused_and_no_group_is_made(self, groups: Groups, request_: dict, error: ErrorCode) -> None:  # type: ignore[type-arg]
        assert groups.join(**request_).joined.error is error
        assert groups.coordinator.groups == {}

    def test_unknown_member_of_a_group_that_is_there(self, groups: Groups) -> None:
        groups.stable(None)
        assert groups.join("nobody").joined.error is ErrorCode.UNKNOWN_MEMBER_ID

    def test_protocol_type_of_the_group_is_the_one_of_its_first_member(self, groups: Groups) -> None:
        groups.stable(None)
        refused = groups.join(protocol_type="connect").joined
        assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_no_common_protocol(self, groups: Groups) -> None:
        groups.stable(None)
        refused = groups.join(protocols={"sticky": b""}).joined
        assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert groups.state is State.STABLE

    def test_protocol_is_chosen_by_votes_among_the_common_ones(self) -> None:
        groups = Groups(initial_rebalance_delay_ms=INITIAL_DELAY_MS)
        both = {"range": b"1", "sticky": b"2"}
        waiting = [
            groups.join(protocols={**both, "own": b""}),
            groups.join(protocols=dict(reversed(both.items()))),
            groups.join(protocols=dict(reversed(both.items()))),
        ]
        groups.move(2 * INITIAL_DELAY_MS)
        assert {each.joined.protocol_name for each in waiting} == {"sticky"}
        (leader,) = [each.joined for each in waiting if each.joined.members]
        assert [each.metadata for each in leader.members] == [b"2"] * 3

    def test_group_that_is_full(self) -> None:
        groups = Groups(max_size=1)
        (member,) = groups.stable(None)
        assert groups.join().joined.error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert groups.heartbeat(member, 1) is ErrorCode.NONE
        assert groups.state is State.STABLE

    def test_full_while_preparing_counts_those_that_joined(self) -> None:
        groups = Groups(max_size=2, initial_rebalance_delay_ms=INITIAL_DELAY_MS)
        waiting = [groups.join(), groups.join()]
        assert groups.join().joined.error is ErrorCode.GROUP_MAX_SIZE_REACHED
        groups.move(2 * INITIAL_DELAY_MS)
        assert [each.joined.error for each in waiting] == [ErrorCode.NONE] * 2


class TestMemberIds:
    def test_newer_clients_get_an_id_first(self, groups: Groups) -> None:
        answer = groups.join(version=4).joined
        assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
        assert groups.state is State.EMPTY
        joined = groups.join(answer.member_id, version=4).joined
        assert (joined.error, joined.member_id) == (ErrorCode.NONE, answer.member_id)

    def test_rebalance_waits_for_ids_that_were_handed_out(self, groups: Groups) -> None:
        (first,) = groups.stable(None)
        second = groups.join(version=4).joined.member_id
        again = groups.join(first)
        assert not again.is_answered
        groups.join(second, version=4)
        assert again.joined.generation == 2

    def test_id_that_is_never_used_expires(self, groups: Groups) -> None:
        (first,) = groups.stable(None)
        unused = groups.join(version=4).joined.member_id
        again = groups.join(first)
        groups.move(SESSION_MS)
        assert again.joined.generation == 2
        assert groups.join(unused, version=4).joined.error is ErrorCode.UNKNOWN_MEMBER_ID

    def test_leaving_with_an_id_that_was_only_handed_out(self, groups: Groups) -> None:
        (first,) = groups.stable(None)
        unused = groups.join(version=4).joined.member_id
        again = groups.join(first)
        assert groups.leave(unused) == [ErrorCode.NONE]
        assert again.is_answered

    def test_static_members_need_no_second_round(self, groups: Groups) -> None:
        assert groups.join(instance="i", version=5).joined.error is ErrorCode.NONE


class TestSync:
    def test_followers_wait_for_the_leader(self, groups: Groups) -> None:
        leader, follower = groups.stable(None, None)
        waiting = groups.join(leader)
        groups.join(follower)
        generation = waiting.joined.generation
        early = groups.sync(follower, generation)
        assert not early.is_answered
        late = groups.sync(leader, generation, {leader: b"L", follower: b"F"})
        assert (early.synced.assignment, late.synced.assignment) == (b"F", b"L")
        assert early.synced.protocol_name == "range"
        assert groups.state is State.STABLE

    def test_member_that_the_leader_forgot_gets_nothing(self, groups: Groups) -> None:
        leader = groups.join().joined.member_id
        assert groups.sync(leader, 1, {}).synced.assignment == b""

    def test_assignment_can_be_asked_for_again(self, groups: Groups) -> None:
        (member,) = groups.stable(None)
        assert groups.sync(member, 1).synced.assignment == member.encode()

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
            ({"group": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
            ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
            ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
            ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ],
    )
    def test_refused(self, groups: Groups, changes: dict, error: ErrorCode) -> None:  # type: ignore[type-arg]
        member_id = groups.join().joined.member_id
        refused = groups.sync(**{"member_id": member_id, "generation": 1, **changes})
        assert refused.synced.error is error
        assert groups.state is State.COMPLETING

    def test_rebalance_that_begins_meanwhile_ends_the_waiting(self, groups: Groups) -> None:
        leader, follower = groups.stable(None, None)
        generation = groups.join(leader) and groups.join(follower).joined.generation
        waiting = groups.sync(follower, generation)
        groups.join()
        assert waiting.synced.error is ErrorCode.REBALANCE_IN_PROGRESS
        assert groups.sync(leader, generation).synced.error is ErrorCode.REBALANCE_IN_PROGRESS

    def test_who_never_syncs_is_out(self, groups: Groups) -> None:
        leader, follower = groups.stable(None, None)
        generation = groups.join(leader) and groups.join(follower).joined.generation
        groups.sync(leader, generation, {})
        groups.move_with_heartbeats(REBALANCE_MS, (leader, generation), (follower, generation))
        assert list(groups.group.members) == [leader]
        assert groups.state is State.PREPARING

    def test_leader_that_never_syncs_is_out(self, groups: Groups) -> None:
        leader, follower = groups.stable(None, None)
        generation = groups.join(leader) and groups.join(follower).joined.generation
        waiting = groups.sync(follower, generation)
        groups.move_with_heartbeats(REBALANCE_MS, (leader, generation))
        assert waiting.synced.error is ErrorCode.REBALANCE_IN_PROGRESS
        assert groups.join(follower).joined.leader == follower

    def test_assignment_that_is_not_stored_is_not_told(self, groups: Groups) -> None:
        groups.store_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        member = groups.join().joined.member_id
        assert groups.sync(member, 1, {member: b"A"}).synced.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert groups.state is State.PREPARING
        groups.store_error = ErrorCode.NONE
        assert groups.join(member).joined.generation == 2

    def test_nothing_is_told_before_it_is_stored(self, groups: Groups) -> None:
        groups.holds_store = True
        member = groups.join().joined.member_id
        waiting = groups.sync(member, 1, {member: b"A"})
        assert not waiting.is_answered
        groups.release_store()
        assert waiting.synced.assignment == b"A"

    def test_store_that_answers_after_a_new_rebalance_changes_nothing(self, groups: Groups) -> None:
        groups.holds_store = True
        member = groups.join().joined.member_id
        waiting = groups.sync(member, 1, {member: b"A"})
        other = groups.join()
        assert waiting.synced.error is ErrorCode.REBALANCE_IN_PROGRESS
        groups.release_store()
        assert groups.state is State.PREPARING
        groups.join(member)
        assert other.joined.generation == 2


class TestHeartbeat:
    @pytest.mark.parametrize(
        ("group", "member_id", "generation", "error"),
        [
            ("", None, 1, ErrorCode.INVALID_GROUP_ID),
            ("other", None, 1, ErrorCode.UNKNOWN_MEMBER_ID),
            ("g", "nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
            ("g", None, 0, ErrorCode.ILLEGAL_GENERATION),
            ("g", None, 2, ErrorCode.ILLEGAL_GENERATION),
            ("g", None, 1, ErrorCode.NONE),
        ],
    )
    def test_checks(
        self, groups: Groups, group: str, member_id: str | None, generation: int, error: ErrorCode
    ) -> None:
        (member,) = groups.stable(None)
        assert groups.heartbeat(member_id or member, generation, group=group) is error

    def test_counts_while_the_assignment_is_awaited(self, groups: Groups) -> None:
        member = groups.join().joined.member_id
        assert groups.heartbeat(member, 1) is ErrorCode.NONE

    def test_member_that_is_silent_is_out(self, groups: Groups) -> None:
        (member,) = groups.stable(None)
        groups.move(SESSION_MS - 1)
        assert groups.heartbeat(member, 1) is ErrorCode.NONE
        groups.move(SESSION_MS - 1)
        assert groups.state is State.STABLE
        groups.move(1)
        assert groups.state is State.EMPTY
        assert groups.heartbeat(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_the_others_rebalance_when_one_is_out(self, groups: Groups) -> None:
        alive, _ = groups.stable(None, None)
        groups.move_with_heartbeats(SESSION_MS, (alive, groups.group.generation))
        assert groups.state is State.PREPARING
        assert groups.join(alive).joined.error is ErrorCode.NONE

    def test_waiting_for_a_join_or_a_sync_needs_no_heartbeats(self, groups: Groups) -> None:
        leader, follower = groups.stable(None, None)
        generation = groups.group.generation
        joining = groups.join(leader)
        groups.move_with_heartbeats(SESSION_MS * 2, (follower, generation))
        assert not joining.is_answered
        groups.join(follower)
        syncing = groups.sync(follower, generation + 1)
        groups.move_with_heartbeats(SESSION_MS * 2, (leader, generation + 1))
        assert not syncing.is_answered
        groups.sync(leader, generation + 1, {})
        assert syncing.synced.error is ErrorCode.NONE

    def test_time_begins_anew_with_the_answer(self, groups: Groups) -> None:
        leader, follower = groups.stable(None, None)
        generation = groups.group.generation
        groups.join(leader)
        groups.move_with_heartbeats(SESSION_MS - 1_000, (follower, generation))
        groups.join(follower)
        groups.move(SESSION_MS - 1)
        assert leader in groups.group.members


class TestLeave:
    def test_last_member(self, groups: Groups) -> None:
        (member,) = groups.stable(None)
        assert groups.leave(member) == [ErrorCode.NONE]
        assert groups.state is State.EMPTY
        saved = groups.stored["g"]
        assert saved is not None and saved.members == ()

    def test_the_others_rebalance(self, groups: Groups) -> None:
        leader, follower = groups.stable(None, None)
        groups.leave(leader)
        assert groups.state is State.PREPARING
        assert groups.join(follower).joined.leader == follower

    def test_last_one_that_was_waited_for(self, groups: Groups) -> None:
        leader, follower = groups.stable(None, None)
        again = groups.join(leader)
        groups.leave(follower)
        assert again.joined.error is ErrorCode.NONE

    def test_unknown(self, groups: Groups) -> None:
        (member,) = groups.stable(None)
        assert (
            groups.leave("nobody", "", MemberRef(member_id="", instance_id="i"))
            == [ErrorCode.UNKNOWN_MEMBER_ID] * 3
        )
        assert groups.leave(member, group="other") == [ErrorCode.UNKNOWN_MEMBER_ID]

    def test_several_at_once(self, groups: Groups) -> None:
        a, b = groups.stable("a", "b")
        refs = [MemberRef(member_id="", instance_id="a"), MemberRef(member_id=b, instance_id="b")]
        assert groups.leave(*refs) == [ErrorCode.NONE, ErrorCode.NONE]
        assert groups.state is State.EMPTY
        assert groups.heartbeat(a, 1) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_twice(self, groups: Groups) -> None:
        (member,) = groups.stable(None)
        assert groups.leave(member, member) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]


class TestCommit:
    def test_member(self, groups: Groups) -> None:
        (member,) = groups.stable(None)
        assert groups.commit(member, 1) is ErrorCode.NONE

    def test_counts_as_a_heartbeat(self, groups: Groups) -> None:
        (member,) = groups.stable(None)
        groups.move(SESSION_MS - 1)
        groups.commit(member, 1)
        groups.move(SESSION_MS - 1)
        assert groups.state is State.STABLE

    @pytest.mark.parametrize(
        ("member_id", "generation", "error"),
        [
            ("nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
            ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
            (None, 0, ErrorCode.ILLEGAL_GENERATION),
            (None, -1, ErrorCode.ILLEGAL_GENERATION),
        ],
    )
    def test_refused(self, groups: Groups, member_id: str | None, generation: int, error: ErrorCode) -> None:
        (member,) = groups.stable(None)
        assert groups.commit(member if member_id is None else member_id, generation) is error

    def test_client_without_a_membership(self, groups: Groups) -> None:
        assert groups.commit("", -1) is ErrorCode.NONE
        (member,) = groups.stable(None)
        assert groups.commit("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
        groups.leave(member)
        assert groups.commit("", -1) is ErrorCode.NONE

    def test_group_that_is_not_there(self, groups: Groups) -> None:
        ref = MemberRef(member_id="m")
        assert groups.coordinator.check_commit("g", ref, 1) is ErrorCode.ILLEGAL_GENERATION
        newer = groups.coordinator.check_commit("g", ref, 1, knows_missing_groups=True)
        assert newer is ErrorCode.GROUP_ID_NOT_FOUND
        assert groups.commit("", -1, group="") is ErrorCode.INVALID_GROUP_ID

    def test_while_a_rebalance_is_prepared(self, groups: Groups) -> None:
        (member,) = groups.stable(None)
        groups.join()
        assert groups.commit(member, 1) is ErrorCode.NONE

    def test_before_the_assignment_is_known(self, groups: Groups) -> None:
        member = groups.join().joined.member_id
        assert groups.commit(member, 1) is ErrorCode.REBALANCE_IN_PROGRESS


class TestDeletion:
    def test_only_an_empty_group(self, groups: Groups) -> None:
        check = groups.coordinator.check_deletion
        assert (check(""), check("g")) == (ErrorCode.INVALID_GROUP_ID, ErrorCode.GROUP_ID_NOT_FOUND)
        (member,) = groups.stable(None)
        assert check("g") is ErrorCode.NON_EMPTY_GROUP
        groups.leave(member)
        assert check("g") is ErrorCode.NONE

    def test_ids_that_were_handed_out_are_forgotten(self, groups: Groups) -> None:
        unused = groups.join(version=4).joined.member_id
        groups.coordinator.forget("g")
        assert groups.join(unused, version=4).joined.error is ErrorCode.UNKNOWN_MEMBER_ID
        groups.move(SESSION_MS)
        assert groups.coordinator.groups == {}


class TestRestore:
    def test_members_go_on(self, groups: Groups) -> None:
        leader, follower = groups.stable(None, None)
        generation = groups.group.generation
        after = Groups()
        saved = groups.stored["g"]
        assert saved is not None
        after.coordinator.restore("g", saved)
        assert after.state is State.STABLE
        assert after.heartbeat(follower, generation) is ErrorCode.NONE
        assert after.commit(leader, generation) is ErrorCode.NONE
        assert after.sync(follower, generation).synced.assignment == follower.encode()
        assert after.group.leader == leader

    def test_members_that_are_not_heard_from_are_out(self, groups: Groups) -> None:
        groups.stable(None)
        after = Groups()
        saved = groups.stored["g"]
        assert saved is not None
        after.coordinator.restore("g", saved)
        after.move(SESSION_MS)
        assert after.state is State.EMPTY

    def test_empty_group_keeps_its_generation(self, groups: Groups) -> None:
        (member,) = groups.stable(None)
        groups.leave(member)
        after = Groups()
        saved = groups.stored["g"]
        assert saved is not None
        after.coordinator.restore("g", saved)
        assert (after.state, after.join().joined.generation) == (State.EMPTY, 3)
