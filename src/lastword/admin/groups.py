"""Consumer groups for the admin API: what the coordinator knows, as plain data. Called on the broker's event loop."""

from __future__ import annotations

from typing import Any

from lastword.broker.errors import ErrorCode
from lastword.broker.groups.group import Group
from lastword.broker.groups.service import GroupService
from lastword.errors import InvalidError, UnavailableError


class CoordinatedGroups:
    """The groups of a broker."""

    def __init__(self, service: GroupService) -> None:
        self._service = service

    async def list_groups(self) -> list[dict[str, Any]]:
        return [_summary(group) for group in self._service.groups()]

    async def describe_group(self, group: str) -> dict[str, Any]:
        found = self._service.group(group)
        if found is None:
            raise InvalidError(f"there is no group {group!r}")
        offsets = self._service.committed(group, None)
        return {
            **_summary(found),
            "protocol": found.protocol_name,
            "generation": found.generation,
            "member_list": [
                {
                    "member_id": member.member_id,
                    "instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "is_leader": member.member_id == found.leader,
                }
                for member in found.members.values()
            ],
            "offsets": [
                {
                    "topic": topic,
                    "partition": partition,
                    "offset": committed.offset,
                    "metadata": committed.metadata,
                    "committed_ms": committed.committed_ms,
                }
                for (topic, partition), committed in sorted(offsets.items())
                if committed is not None
            ],
        }

    async def delete_group(self, group: str) -> None:
        error = await self._service.delete_group(group)
        match error:
            case ErrorCode.NONE:
                return
            case ErrorCode.GROUP_ID_NOT_FOUND:
                raise InvalidError(f"there is no group {group!r}")
            case ErrorCode.NON_EMPTY_GROUP:
                raise InvalidError(f"group {group!r} has members; stop them first")
        raise UnavailableError(f"group {group!r} could not be deleted: {error.name}")


def _summary(group: Group) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state.value,
        "protocol_type": group.protocol_type,
        "members": len(group.members),
    }
