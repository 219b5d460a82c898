"""A member of a group, its requests, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lastword.broker.errors import ErrorCode

NO_MEMBER_ID = ""
NO_GENERATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A client's request to become a member, for the first time or again."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata, in order of preference."""
    must_know_member_id: bool = False
    """Whether the client must get its member id before it joins (MEMBER_ID_REQUIRED)."""
    may_skip_assignment: bool = False
    """Whether the client understands an answer that makes it the leader with nothing to assign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    error: ErrorCode = ErrorCode.NONE
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER_ID
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member's request for its assignment. The leader's request has the assignments of all members."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRef:
    """The ids by which a request names a member: both, or for a static member its instance id alone."""

    member_id: str
    instance_id: str | None = None


JoinReply = Callable[[JoinAnswer], None]
SyncReply = Callable[[SyncAnswer], None]


@dataclass(slots=True, kw_only=True)
class Member:
    """A member of a group. `join_reply` and `sync_reply` are set while it waits for an answer."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False
    """Whether its first join has not been answered yet, so that it can't send heartbeats."""
    join_reply: JoinReply | None = field(default=None, repr=False)
    sync_reply: SyncReply | None = field(default=None, repr=False)

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_joining(self) -> bool:
        return self.join_reply is not None

    def metadata(self, protocol: str) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: frozenset[str]) -> str | None:
        """Return the candidate that it prefers."""
        return next((name for name, _ in self.protocols if name in candidates), None)

    def rejoin(self, request: JoinRequest, reply: JoinReply) -> None:
        """Take over the settings of another join. An earlier one that still waits is obsolete."""
        self.answer_join(JoinAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=self.member_id))
        self.protocols = request.protocols
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.client_id, self.client_host = request.client_id, request.client_host
        self.join_reply = reply

    def answer_join(self, answer: JoinAnswer) -> None:
        reply, self.join_reply = self.join_reply, None
        if reply is not None:
            reply(answer)

    def answer_sync(self, answer: SyncAnswer) -> None:
        reply, self.sync_reply = self.sync_reply, None
        if reply is not None:
            reply(answer)
