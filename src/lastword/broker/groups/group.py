"""One group: its state, its members, and values derived from them. The coordinator decides when it changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.members import JoinAnswer, JoinedMember, Member, MemberRef, SyncAnswer
from lastword.broker.groups.records import SavedGroup, SavedMember
from lastword.broker.groups.subscription import CONSUMER_PROTOCOL, subscribed_topics

Stored = Callable[[ErrorCode], None]
Store = Callable[[str, SavedGroup, Stored], None]
"""Stores a group, and reports the result, now or later, in the order of the calls."""


class State(StrEnum):
    """Kafka's states, by the names that its tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class InitialDelay:
    """The wait of a first rebalance for more members. Each new member extends it, up to the rebalance timeout."""

    step_ms: int
    left_ms: int


@dataclass(slots=True)
class Group:
    """A group and its members, in the order in which they joined."""

    group_id: str
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Instance ids and their current member ids."""
    pending: set[str] = field(default_factory=set)
    """Assigned member ids that have not joined yet."""
    unsynced: set[str] = field(default_factory=set)
    """Members that have not requested their assignment of this generation yet."""
    initial_delay: InitialDelay | None = None
    has_grown: bool = False
    """Whether a member joined during the initial delay."""
    since_ms: int = 0
    """When it entered its state, by the wall clock: the retention time of an empty group's offsets starts then."""

    def __len__(self) -> int:
        return len(self.members)

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    def member_of(self, instance_id: str | None) -> str | None:
        return self.static_members.get(instance_id) if instance_id is not None else None

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def joining(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_joining]

    @property
    def has_all_joined(self) -> bool:
        return not self.pending and all(member.is_joining for member in self.members.values())

    # ------------------------------------------------------------------------------------------ members

    def check_member(self, ref: MemberRef, generation: int | None = None) -> ErrorCode:
        """Check a member's identity, and its generation if one is given."""
        if ref.instance_id is not None:
            current = self.member_of(ref.instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != ref.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if ref.member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation is not None and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def has_room_for(self, member_id: str, *, max_size: int) -> bool:
        """Return whether a member may join without exceeding the limit."""
        member = self.members.get(member_id)
        if self.state is State.PREPARING:
            if member is not None and member.is_joining:
                return True
            return len(self.joining) < max_size
        if self.state in (State.COMPLETING, State.STABLE):
            return member is not None or len(self) < max_size
        return True

    def add(self, member: Member) -> None:
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending.discard(member.member_id)

    def remove(self, member_id: str) -> Member | None:
        member = self.members.pop(member_id, None)
        self.pending.discard(member_id)
        self.unsynced.discard(member_id)
        if member is None:
            return None
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member_id:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """Give a static member a new member id. A client that waits under the old one gets the error that it is fenced."""
        member = self.members[old_id]
        member.answer_join(JoinAnswer(error=ErrorCode.FENCED_INSTANCE_ID, member_id=old_id))
        member.answer_sync(SyncAnswer(error=ErrorCode.FENCED_INSTANCE_ID))
        member.member_id = new_id
        self.members = {each.member_id: each for each in self.members.values()}
        assert member.instance_id is not None
        self.static_members[member.instance_id] = new_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)
        if self.leader == old_id:
            self.leader = new_id
        return member

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it joins, else elect the first member that does. Return False if none does."""
        if self.leader is not None and self.leader in self.members and self.members[self.leader].is_joining:
            return True
        joining = self.joining
        if joining:
            self.leader = joining[0].member_id
        return bool(joining)

    # ---------------------------------------------------------------------------------------- protocols

    def supports(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Return whether a member with these protocols is compatible with the current members."""
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        return protocol_type == self.protocol_type and any(name in self._common() for name, _ in protocols)

    def chosen_protocol(self) -> str:
        """Return the protocol that all members support and most of them prefer."""
        candidates = self._common()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        chosen = max(votes, key=lambda name: votes[name])
        assert chosen is not None
        return chosen

    def _common(self) -> frozenset[str]:
        offered = [{name for name, _ in member.protocols} for member in self.members.values()]
        return frozenset(set.intersection(*offered)) if offered else frozenset()

    def subscribed(self) -> frozenset[str] | None:
        """Return the topics that its members subscribe to, or None if that is unknown."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members or self.protocol_name is None:
            return frozenset() if not self.members else None
        return subscribed_topics(member.metadata(self.protocol_name) for member in self.members.values())

    # ------------------------------------------------------------------------------------------ answers

    def joined_members(self) -> tuple[JoinedMember, ...]:
        assert self.protocol_name is not None
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        )

    def join_answer(self, member_id: str) -> JoinAnswer:
        """Return the answer to a member's join, with the current generation. The leader also gets the members."""
        return JoinAnswer(
            member_id=member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader or "",
            members=self.joined_members() if member_id == self.leader else (),
        )

    def sync_answer(self, member: Member) -> SyncAnswer:
        return SyncAnswer(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )


def saved_group(group: Group, assignments: Mapping[str, bytes] | None = None) -> SavedGroup:
    """Return the state of a group to store, with the given assignments instead of the current ones."""
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


def take_saved(group: Group, saved: SavedGroup) -> None:
    """Restore the stored state into a new group."""
    group.generation = saved.generation
    group.protocol_type, group.protocol_name = saved.protocol_type, saved.protocol_name
    group.since_ms = saved.since_ms
    for each in saved.members:
        group.add(
            Member(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                session_timeout_ms=each.session_timeout_ms,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                protocols=((saved.protocol_name or "", each.metadata),),
                assignment=each.assignment,
            )
        )
    group.leader = saved.leader
    group.state = State.STABLE if group.members else State.EMPTY
