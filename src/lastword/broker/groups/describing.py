"""Consumer groups as plain data, with their lag: for the admin API, the command line and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lastword.broker.groups.group import Group
from lastword.broker.groups.records import CommittedOffset
from lastword.broker.groups.subscription import CONSUMER_PROTOCOL, assigned_partitions
from lastword.record_json import Json

TopicPartition = tuple[str, int]
"""A topic's name and a partition."""

LogEnd = Callable[[str, int], int | None]
"""Returns the log end of a partition; None if there is no such partition, or its log end is unknown."""


def lag(committed: CommittedOffset, log_end: int | None) -> int | None:
    """Return the number of offsets left to read. Those of records that compaction removed count, as in Kafka."""
    return None if log_end is None else max(0, log_end - committed.offset)


def summary(group: Group, offsets: Mapping[TopicPartition, CommittedOffset], log_end: LogEnd) -> Json:
    behind = [lag(committed, log_end(*place)) for place, committed in offsets.items()]
    return {
        "group": group.group_id,
        "state": group.state.value,
        "protocol_type": group.protocol_type,
        "members": len(group.members),
        "topics": sorted({topic for topic, _ in offsets}),
        "behind": sum(each for each in behind if each is not None) if offsets else None,
    }


def description(group: Group, offsets: Mapping[TopicPartition, CommittedOffset], log_end: LogEnd) -> Json:
    owners = _owners(group)
    return {
        **summary(group, offsets, log_end),
        "protocol": group.protocol_name,
        "generation": group.generation,
        "member_list": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "is_leader": member.member_id == group.leader,
                "partitions": [
                    {"topic": topic, "partition": partition}
                    for (topic, partition), owner in sorted(owners.items())
                    if owner == member.member_id
                ],
            }
            for member in group.members.values()
        ],
        "offsets": [
            {
                "topic": topic,
                "partition": partition,
                "offset": committed.offset,
                "metadata": committed.metadata,
                "committed_ms": committed.committed_ms,
                "log_end": (end := log_end(topic, partition)),
                "behind": lag(committed, end),
                "member_id": owners.get((topic, partition)),
            }
            for (topic, partition), committed in sorted(offsets.items())
        ],
    }


def _owners(group: Group) -> dict[TopicPartition, str]:
    """Return the member that reads each partition, if the members are consumers."""
    if group.protocol_type != CONSUMER_PROTOCOL:
        return {}
    return {
        place: member.member_id
        for member in group.members.values()
        for place in assigned_partitions(member.assignment)
    }
