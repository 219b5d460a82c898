"""Metadata: this one broker, and the topics with their partitions, all of which it leads."""

from __future__ import annotations

import logging
from typing import Final
from uuid import UUID

from kafka.protocol.metadata import MetadataResponse

from lastword.broker.authorized import ON_CLUSTER, ON_TOPIC, if_asked
from lastword.broker.errors import ErrorCode, code_of
from lastword.broker.node import Node
from lastword.broker.wire import Answer, Handler, Message, Peer, Request
from lastword.config import check_topic_name, is_internal
from lastword.errors import InvalidError, UnknownTopicError
from lastword.log.topic import Topic

logger = logging.getLogger(__name__)

METADATA: Final = 3
NO_ID: Final = UUID(int=0)

_Topic: Final = MetadataResponse.MetadataResponseTopic
_Partition: Final = _Topic.MetadataResponsePartition


class MetadataHandler:
    """Answers a client's first question: brokers and topics. Creates missing topics where that is allowed."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def handlers(self) -> dict[int, Handler]:
        return {METADATA: self._metadata}

    async def _metadata(self, request: Request, peer: Peer) -> Answer:
        node, message, version = self._node, request.message, request.api_version
        wanted = message.topics
        # No list means all topics; in version 0 an empty list does.
        if wanted is None or (version == 0 and not wanted):
            topics = [self._described(name) for name in node.topic_names(include_internal=True)]
        else:
            may_create = node.config.auto_create_topics_enable and (
                version < 4 or bool(message.allow_auto_topic_creation)
            )
            topics = [self._answered(each, version, may_create=may_create) for each in wanted]
        if version >= 8:
            for topic in topics:
                topic.authorized_operations = if_asked(ON_TOPIC, message.include_topic_authorized_operations)
        of_cluster = 8 <= version <= 10 and message.include_cluster_authorized_operations
        host, port = node.place_for(peer)
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=node.node_id, host=host, port=port, rack=None)
            ],
            cluster_id=node.cluster_id,
            controller_id=node.node_id,
            topics=topics,
            authorized_operations=if_asked(ON_CLUSTER, of_cluster),
        )

    def _answered(self, wanted: Message, version: int, *, may_create: bool) -> Message:
        topic_id = wanted.topic_id if version >= 10 else None
        if wanted.name is None:
            try:
                return self._of(self._node.topic_by_id(topic_id or NO_ID))
            except UnknownTopicError:
                return _failed(None, ErrorCode.UNKNOWN_TOPIC_ID, topic_id or NO_ID)
        name = wanted.name
        try:
            return self._of(self._node.topic(name))
        except UnknownTopicError:
            return _failed(name, self._missing(name, may_create=may_create))

    def _missing(self, name: str, *, may_create: bool) -> ErrorCode:
        """Return the error for a missing topic. If it may be created, start to create it."""
        try:
            check_topic_name(name)
            if may_create:
                self._node.begin_creating(name)
        except InvalidError as error:
            if may_create:
                logger.warning("topic %r can't be created for a client: %s", name, error)
            return code_of(error)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _described(self, name: str) -> Message:
        try:
            return self._of(self._node.topic(name))
        except UnknownTopicError:
            # Deleted just now.
            return _failed(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _of(self, topic: Topic) -> Message:
        return _Topic(
            error_code=0,
            name=topic.name,
            topic_id=topic.id,
            is_internal=is_internal(topic.name),
            partitions=[
                _Partition(**self._node.led(topic, partition)) for partition in range(topic.partitions)
            ],
        )


def _failed(name: str | None, code: ErrorCode, topic_id: UUID = NO_ID) -> Message:
    return _Topic(error_code=int(code), name=name, topic_id=topic_id, is_internal=False, partitions=[])
