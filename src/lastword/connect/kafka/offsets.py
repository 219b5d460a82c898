"""The committed offsets of a consumer group, read from any broker that speaks Kafka's protocol."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from lastword.errors import UnavailableError

TIMEOUT_S: Final = 15.0


def committed_offsets(admin: AdminClient, group: str, *, who: str) -> list[TopicPartition]:
    """Return the partitions in which a group has committed an offset; `who` names the broker in errors."""
    try:
        asked: Any = admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=TIMEOUT_S
        )
        found = asked[group].result(TIMEOUT_S).topic_partitions
    except (KafkaException, TimeoutError) as error:
        raise UnavailableError(f"{who} does not return the offsets of group {group!r}: {error}") from error
    return [each for each in found if each.error is None and each.offset >= 0]
