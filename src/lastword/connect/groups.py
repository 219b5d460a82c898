"""Consumer groups of the log that a source writes to, whose offsets come from elsewhere.

If a server runs on the data folder, offsets go through its Kafka endpoint, as with any client: only the server knows the
members of a group, and it refuses offsets for a group that is in use. Without a server no group can have members, and
the offsets are appended to the internal topic, which a server reads when it starts.

`connect/<source>/groups.json` keeps the offsets that were written, new ones before they are committed. So even after a
crash, offsets that a group has committed itself can be told from those that came from here: they are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from lastword.broker.groups.records import CommittedOffset, OffsetKey, SavedGroup, offset_record
from lastword.broker.groups.replay import GROUPS_TOPIC, replay, with_positions
from lastword.connect.destination import Destination, OwnDestination
from lastword.connect.protocol import GroupOffset, TakenOver
from lastword.errors import UnavailableError, UnknownTopicError
from lastword.folder import running, state_file
from lastword.folder.paths import SOURCE_GROUPS_FILE
from lastword.log import Log
from lastword.record import NewRecord

TIMEOUT_S: Final = 15.0

TopicPartition = tuple[str, int]
"""A topic and a partition."""
Offsets = Mapping[TopicPartition, GroupOffset]


class _Keeper(Protocol):
    """The store of the groups' offsets."""

    def committed(self, group: str) -> dict[TopicPartition, int]: ...

    def commit(self, group: str, offsets: Offsets) -> bool:
        """Commit the offsets; return False if the group is in use."""
        ...


class DestinationGroups:
    """The groups of one log, taken over by one source."""

    def __init__(self, destination: Destination, folder: Path) -> None:
        self._destination = destination
        self._path = folder / SOURCE_GROUPS_FILE
        self._keeper: tuple[str, _Keeper] | None = None
        self._written: dict[str, dict[str, list[int]]] | None = None

    def take_over(self, group: str, offsets: Offsets) -> TakenOver:
        """See `Groups` in protocol.py."""
        keeper = self._opened()
        written = self._load().setdefault(group, {})
        there = keeper.committed(group)
        changed: dict[TopicPartition, GroupOffset] = {}
        own = 0
        extents = {topic: self._destination.topic(topic).extents() for topic, _ in offsets}
        for place, given in offsets.items():
            # Beyond the log end, a consumer would be sent to the offset that its reset policy says.
            new = given._replace(offset=min(given.offset, extents[place[0]][place[1]].log_end))
            # A recreated topic starts over, and so do its groups.
            ours = written.get(_key(self._destination, place), [])
            if place in there and there[place] not in ours:
                own += 1
            elif there.get(place) != new.offset:
                changed[place] = new
        if not changed:
            return TakenOver(own=own)
        for place, new in changed.items():
            before = [there[place]] if place in there else []
            written[_key(self._destination, place)] = [*before, new.offset]
        self._save()
        return TakenOver(in_use=not keeper.commit(group, changed), own=own)

    def _opened(self) -> _Keeper:
        server = running.load(self._destination.path)
        where = server.kafka_address if server is not None else ""
        if self._keeper is None or self._keeper[0] != where:
            if server is not None:
                self._keeper = where, _Server(where)
            elif isinstance(self._destination, OwnDestination):
                self._keeper = where, _InternalTopic(self._destination.log)
            else:
                raise UnavailableError(
                    f"Groups of {self._destination.path} can only be written by the process that has it open, or while "
                    f"`lastword serve` runs on it; neither is the case."
                )
        return self._keeper[1]

    def _load(self) -> dict[str, dict[str, list[int]]]:
        if self._written is None:
            self._written = (
                state_file.load(self._path, dict, "Remove it: all groups are written again.") or {}
            )
        return self._written

    def _save(self) -> None:
        state_file.save(self._path, self._written)


class _Server:
    """A server that runs on the data folder, accessed through its Kafka endpoint."""

    def __init__(self, address: str) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin: Any = AdminClient({"bootstrap.servers": address})

    def committed(self, group: str) -> dict[TopicPartition, int]:
        from lastword.connect.kafka.offsets import committed_offsets

        found = committed_offsets(self._admin, group, who="The server")
        return {(each.topic, each.partition): each.offset for each in found}

    def commit(self, group: str, offsets: Offsets) -> bool:
        from confluent_kafka import (
            ConsumerGroupTopicPartitions,
            KafkaError,
            KafkaException,
            TopicPartition,
        )

        partitions = [
            TopicPartition(topic, partition, new.offset, new.metadata)
            for (topic, partition), new in offsets.items()
        ]
        in_use = (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP)
        try:
            asked = self._admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, partitions)], request_timeout=TIMEOUT_S
            )
            errors = [each.error for each in asked[group].result(TIMEOUT_S).topic_partitions if each.error]
        except KafkaException as error:
            errors = [error.args[0]]
        except TimeoutError as error:
            raise UnavailableError(f"The server does not accept the offsets of group {group!r}") from error
        if not errors:
            return True
        if all(each.code() in in_use for each in errors):
            return False
        raise UnavailableError(
            f"The server does not accept the offsets of group {group!r}: {errors[0].str()}"
        )


class _InternalTopic:
    """The internal topic of groups, in a log that no server runs on."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def committed(self, group: str) -> dict[TopicPartition, int]:
        saved = self._replay(group)
        return {
            (each.topic, key.partition): each.offset
            for key, each in saved.items()
            if isinstance(key, OffsetKey) and isinstance(each, CommittedOffset) and self._is_id_of(key, each)
        }

    def commit(self, group: str, offsets: Offsets) -> bool:
        saved = self._replay(group).get(group)
        if isinstance(saved, SavedGroup) and saved.members:
            # Members of a server that was stopped: they return when it does.
            return False
        now_ms = self._log.clock.now_ms()
        records = []
        for (topic, partition), new in offsets.items():
            key, value = offset_record(
                OffsetKey(group, self._log.topic(topic).id, partition),
                CommittedOffset(topic=topic, offset=new.offset, metadata=new.metadata, committed_ms=now_ms),
            )
            records.append(NewRecord(key=key, value=value))
        self._log.internal_topic(GROUPS_TOPIC).append_internal(records)
        return True

    def _replay(self, group: str) -> dict[str | OffsetKey, SavedGroup | CommittedOffset]:
        try:
            topic = self._log.topic(GROUPS_TOPIC)
        except UnknownTopicError:
            return {}
        names = {info.id: info.name for info in self._log.topic_infos()}
        return {
            key: value
            for key, value in with_positions(replay(topic), self._log.path, names).entries
            if (key.group_id if isinstance(key, OffsetKey) else key) == group
        }

    def _is_id_of(self, key: OffsetKey, offset: CommittedOffset) -> bool:
        try:
            return self._log.topic(offset.topic).id == key.topic_id
        except UnknownTopicError:
            return False


def _key(destination: Destination, place: TopicPartition) -> str:
    topic, partition = place
    return f"{destination.topic(topic).id.hex}/{partition}"
