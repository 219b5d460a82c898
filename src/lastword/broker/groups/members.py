"""A member of a group, what it asks for, and what it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lastword.broker.errors import ErrorCode

NO_MEMBER_ID = ""
NO_GENERATION = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A client asks to be a member, for the first time or again."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata, the one it likes best first."""
    must_know_member_id: bool = False
    """The client takes part in handing out member ids before it joins (MEMBER_ID_REQUIRED)."""
    may_skip_assignment: bool = False
    """The client understands an answer that makes it the leader with nothing to assign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as its leader sees it."""

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
    """A member asks for its assignment; the leader brings everybody's."""

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
    """How a request names a member: both, or for a static member its instance id alone."""

    member_id: str
    instance_id: str | None = None


JoinReply = Callable[[JoinAnswer], None]
SyncReply = Callable[[SyncAnswer], None]


@dataclass(slots=True, kw_only=True)
class Member:
    """A member of a group. `join_reply` and `sync_reply` are there while it waits for an answer."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False
    """It has not got an answer to its first join yet, so it can't send heartbeats."""
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
        """The candidate that it likes best."""
        return next((name for name, _ in self.protocols if name in candidates), None)

    def answer_join(self, answer: JoinAnswer) -> None:
        reply, self.join_reply = self.join_reply, None
        if reply is not None:
            reply(answer)

    def answer_sync(self, answer: SyncAnswer) -> None:
        reply, self.sync_reply = self.sync_reply, None
        if reply is not None:
            reply(answer)
