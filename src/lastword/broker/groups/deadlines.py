"""The times at which the coordinator acts for a group or a member, unless a request comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto

from lastword.broker.groups.group import Group
from lastword.broker.groups.members import Member
from lastword.broker.groups.timers import Timers


class Wait(Enum):
    """The reason for a deadline. The first two are a member's, the others a group's."""

    SESSION = auto()
    """The member has sent no request."""
    PENDING = auto()
    """No member has joined with an assigned member id."""
    JOIN = auto()
    """Members have not joined the rebalance, or more may join the first one."""
    SYNC = auto()
    """Members have not requested their assignment."""


class Deadlines:
    """The deadlines of all groups and their members. A group or a member has at most one of each kind."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._timers: Timers[tuple[Wait, str, str]] = Timers()

    def set(self, wait: Wait, group: Group, after_ms: int, member_id: str = "") -> None:
        self._timers.set((wait, group.group_id, member_id), self._now_ms() + after_ms)

    def cancel(self, wait: Wait, group: Group, member_id: str = "") -> None:
        self._timers.cancel((wait, group.group_id, member_id))

    def heard_from(self, group: Group, member: Member) -> None:
        """Begin the member's session again."""
        self.set(Wait.SESSION, group, member.session_timeout_ms, member.member_id)

    def next_ms(self) -> int | None:
        """Return the time to check again: never too late, sometimes too early."""
        return self._timers.next_ms()

    def due(self) -> Iterator[tuple[Wait, str, str]]:
        """Remove and yield the expired deadlines, each with its group id and member id, the earliest first."""
        return self._timers.due(self._now_ms())
