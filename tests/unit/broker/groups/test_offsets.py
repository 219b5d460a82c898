"""Which committed offsets expire, and what a consumer's metadata says."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.support.groups import Groups, consumer_metadata

from lastword.broker.groups.group import Group, State
from lastword.broker.groups.offsets import GroupOffsets, expired
from lastword.broker.groups.records import CommittedOffset, OffsetKey
from lastword.broker.groups.subscription import subscribed_topics

TOPIC, OTHER = UUID(int=1), UUID(int=2)
RETENTION_MS = 1_000
COMMITTED = {
    (TOPIC, 0): CommittedOffset(topic="t", offset=5, committed_ms=10_000),
    (OTHER, 0): CommittedOffset(topic="other", offset=6, committed_ms=10_000),
}


def gone(group: Group, now_ms: int, *, existing: frozenset[UUID] = frozenset({TOPIC, OTHER})) -> set[UUID]:
    keys = expired(
        group,
        COMMITTED,
        now_ms=now_ms,
        retention_ms=RETENTION_MS,
        topic_exists=lambda topic_id: topic_id in existing,
    )
    return {key.topic_id for key in keys}


def test_offsets_of_a_group_that_never_had_members_go_by_their_commit() -> None:
    group = Group("g", since_ms=0)
    assert gone(group, 10_999) == set()
    assert gone(group, 11_000) == {TOPIC, OTHER}


def test_offsets_of_an_empty_group_stay_until_it_has_been_empty_for_long() -> None:
    group = Group("g", protocol_type="consumer", since_ms=50_000)
    assert gone(group, 50_999) == set()
    assert gone(group, 51_000) == {TOPIC, OTHER}


def test_a_commit_to_an_empty_group_counts_too() -> None:
    assert gone(Group("g", protocol_type="consumer", since_ms=0), 10_999) == set()


@pytest.mark.parametrize("state", [State.PREPARING, State.COMPLETING])
def test_nothing_goes_during_a_rebalance(state: State) -> None:
    assert gone(Group("g", state=state, protocol_type="consumer"), 99_000) == set()


def test_members_keep_the_offsets_of_their_topics() -> None:
    groups = Groups()
    member = groups.join(protocols={"range": consumer_metadata("t")}).joined.member_id
    groups.sync(member, 1, {})
    assert gone(groups.group, 99_000) == {OTHER}
    assert gone(groups.group, 10_999) == set()


def test_members_that_are_no_consumers_keep_all() -> None:
    groups = Groups()
    member = groups.join(protocols={"x": b"?"}, protocol_type="connect").joined.member_id
    groups.sync(member, 1, {})
    assert gone(groups.group, 99_000) == set()


def test_offsets_of_a_topic_that_is_gone_go_at_once() -> None:
    assert gone(Group("g", state=State.STABLE), 10_000, existing=frozenset({OTHER})) == {TOPIC}


def test_offsets_are_kept_by_group_and_topic_id() -> None:
    offsets = GroupOffsets()
    first = CommittedOffset(topic="t", offset=1)
    offsets.apply(OffsetKey("g", TOPIC, 0), first)
    offsets.apply(OffsetKey("h", TOPIC, 0), CommittedOffset(topic="t", offset=2))
    offsets.apply(OffsetKey("g", OTHER, 0), None)
    assert offsets.of("g") == {(TOPIC, 0): first}
    assert sorted(offsets.groups()) == ["g", "h"]
    offsets.apply(OffsetKey("g", TOPIC, 0), None)
    assert (offsets.of("g"), offsets.groups()) == ({}, ["h"])


def test_topics_of_all_members() -> None:
    both = [consumer_metadata("a", "b"), consumer_metadata("b", "ü")]
    assert subscribed_topics(both) == {"a", "b", "ü"}
    assert subscribed_topics([]) == frozenset()


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\0",
        b"\0\1\0\0\0\1",
        b"\0\1\0\0\0\1\0\5abc",
        b"\0\1\x7f\xff\xff\xff",
        b"\0\1\0\0\0\1\0\1\xff",
        b"\xff\xff\0\0\0\0",
    ],
)
def test_metadata_that_is_no_consumers(metadata: bytes) -> None:
    assert subscribed_topics([consumer_metadata("a"), metadata]) is None
