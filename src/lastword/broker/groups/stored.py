"""Consumer groups as stored in the log, for when no server runs. Members are those of the last generation."""

from __future__ import annotations

import logging
from uuid import UUID

from lastword.broker.groups import describing
from lastword.broker.groups.group import Group, take_saved
from lastword.broker.groups.records import (
    CommittedOffset,
    OffsetKey,
    SavedGroup,
    group_record,
    offset_record,
)
from lastword.broker.groups.replay import GROUPS_TOPIC, problems, replay, with_positions
from lastword.errors import InvalidError, UnknownGroupError, UnknownTopicError
from lastword.log import Log
from lastword.record import NewRecord
from lastword.record_json import Json

logger = logging.getLogger(__name__)


class StoredGroups:
    """The groups of a log that this process has opened. To delete one, it must be the log's writer."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._groups: dict[str, Group] = {}
        self._offsets: dict[str, dict[OffsetKey, CommittedOffset]] = {}
        self._names: dict[UUID, str] = {info.id: info.name for info in log.topic_infos()}
        self._ends: dict[str, dict[int, int]] = {}
        self._load()

    def list_groups(self) -> list[Json]:
        return [
            describing.summary(group, self._committed(name), self._log_end)
            for name, group in sorted(self._groups.items())
        ]

    def describe_group(self, name: str) -> Json:
        """Describe a group. Raise UnknownGroupError if there is none."""
        return describing.description(self._group(name), self._committed(name), self._log_end)

    def delete_group(self, name: str) -> None:
        """Delete a group and its offsets. Raise InvalidError if it had members when the server stopped."""
        if self._group(name).members:
            raise InvalidError(
                f"group {name!r} had members when the server stopped. Start the server, and delete the group when they "
                f"have left or their sessions have timed out."
            )
        entries = [offset_record(key, None) for key in self._offsets.get(name, {})]
        records = [NewRecord(key=key, value=value) for key, value in [*entries, group_record(name, None)]]
        self._log.topic(GROUPS_TOPIC).append_internal(records)

    def _group(self, name: str) -> Group:
        if name not in self._groups:
            raise UnknownGroupError(f"there is no group {name!r}")
        return self._groups[name]

    def _load(self) -> None:
        try:
            topic = self._log.topic(GROUPS_TOPIC)
        except UnknownTopicError:
            return
        found = with_positions(replay(topic), self._log.path, self._names)
        for problem in problems(found.lost):
            logger.warning("%s.", problem)
        for key, value in found.entries:
            name = key.group_id if isinstance(key, OffsetKey) else key
            group = self._groups.setdefault(name, Group(name))
            if isinstance(key, OffsetKey):
                assert isinstance(value, CommittedOffset)
                self._offsets.setdefault(name, {})[key] = value
            else:
                assert isinstance(value, SavedGroup)
                take_saved(group, value)

    def _committed(self, name: str) -> dict[describing.TopicPartition, CommittedOffset]:
        return {
            (self._names[key.topic_id], key.partition): committed
            for key, committed in self._offsets.get(name, {}).items()
            if key.topic_id in self._names
        }

    def _log_end(self, topic: str, partition: int) -> int | None:
        if topic not in self._ends:
            extents = self._log.topic(topic).extents()
            self._ends[topic] = {each: extent.log_end for each, extent in extents.items()}
        return self._ends[topic].get(partition)
