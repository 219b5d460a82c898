"""Consumer groups for the admin API: the coordinator's state, as plain data. Called on the broker's event loop."""

from __future__ import annotations

from typing import Any

from lastword.broker.errors import ErrorCode
from lastword.broker.groups import describing
from lastword.broker.groups.records import CommittedOffset
from lastword.broker.groups.service import GroupService
from lastword.errors import InvalidError, UnavailableError, UnknownGroupError
from lastword.operations.groups import deleted
from lastword.record_json import Json


class CoordinatedGroups:
    """The groups of a broker."""

    def __init__(self, service: GroupService) -> None:
        self._service = service

    async def list_groups(self) -> list[dict[str, Any]]:
        service = self._service
        service.check_loaded()
        return [
            describing.summary(group, self._offsets(group.group_id), service.log_end)
            for group in service.groups()
        ]

    async def describe_group(self, group: str) -> dict[str, Any]:
        self._service.check_loaded()
        found = self._service.group(group)
        if found is None:
            raise UnknownGroupError(f"there is no group {group!r}")
        return describing.description(found, self._offsets(group), self._service.log_end)

    async def lags(self) -> list[tuple[str, str, int, int]]:
        """Return tuples of group, topic, partition, and how far the group is behind in the partition."""
        found = []
        for group in self._service.groups():
            for (topic, partition), committed in self._offsets(group.group_id).items():
                behind = describing.lag(committed, self._service.log_end(topic, partition))
                if behind is not None:
                    found.append((group.group_id, topic, partition, behind))
        return found

    def _offsets(self, group: str) -> dict[describing.TopicPartition, CommittedOffset]:
        offsets = self._service.committed(group, None)
        return {place: committed for place, committed in offsets.items() if committed is not None}

    async def write_again(self) -> None:
        """Write all known state again, at the end of the log, so that unreadable records can be skipped."""
        await self._service.write_again()

    async def repaired(self) -> None:
        """Note that the unreadable records have been skipped."""
        self._service.repaired()

    async def delete_group(self, group: str) -> Json:
        error = await self._service.delete_group(group)
        match error:
            case ErrorCode.NONE:
                return deleted(group)
            case ErrorCode.GROUP_ID_NOT_FOUND:
                raise UnknownGroupError(f"there is no group {group!r}")
            case ErrorCode.NON_EMPTY_GROUP:
                raise InvalidError(f"group {group!r} has members; stop them first")
        raise UnavailableError(f"group {group!r} could not be deleted: {error.name}")
