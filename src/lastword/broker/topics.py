"""CreateTopics, DeleteTopics and CreatePartitions.

There is one broker, so a replica assignment can only name it, and every replication factor is one. Clients and tools
that request three are served anyway: three is the usual value, not a requirement.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from kafka.protocol.admin import CreatePartitionsResponse, CreateTopicsResponse, DeleteTopicsResponse

from lastword.broker.configs import described_topic_config
from lastword.broker.errors import ErrorCode, RefusedError, code_of
from lastword.broker.kafka_settings import own_settings
from lastword.broker.node import Node
from lastword.broker.nulls import refusing_nulls
from lastword.broker.wire import Answer, Handler, Message, Peer, Request
from lastword.config import check_new_topic_name, check_not_internal, check_topic_config
from lastword.errors import LastwordError, UnknownTopicError
from lastword.log.topic import Topic
from lastword.log.topics import MAX_PARTITIONS

logger = logging.getLogger(__name__)

CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
CREATE_PARTITIONS: Final = 37

REPLICATION_FACTORS: Final = (-1, 1, 3)
_FROM_SETTINGS: Final = -1
_NO_ID: Final = UUID(int=0)


class TopicHandlers:
    """Creates and deletes topics, and adds partitions. Catalog operations run on a thread."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def handlers(self) -> dict[int, Handler]:
        return refusing_nulls(
            {
                CREATE_TOPICS: self._create_topics,
                DELETE_TOPICS: self._delete_topics,
                CREATE_PARTITIONS: self._create_partitions,
            }
        )

    # -------------------------------------------------------------------------------------------- create

    async def _create_topics(self, request: Request, _peer: Peer) -> Answer:
        message = request.message
        counts = Counter(each.name for each in message.topics)
        results = []
        for wanted in message.topics:
            if counts[wanted.name] > 1:
                error = RefusedError(ErrorCode.INVALID_REQUEST, f"topic {wanted.name!r} is named twice")
                results.append(_not_created(wanted.name, error))
                continue
            try:
                results.append(await self._create(wanted, is_trial=bool(message.validate_only)))
            except LastwordError as error:
                results.append(_not_created(wanted.name, error))
        return CreateTopicsResponse(throttle_time_ms=0, topics=results)

    async def _create(self, wanted: Message, *, is_trial: bool) -> Message:
        log = self._node.log
        given = {each.name: each.value for each in wanted.configs}
        own = own_settings(given, log.config, where=f"topic {wanted.name!r}")
        partitions = self._partition_count(wanted)
        if is_trial:
            await self._node.call_slow(self._check_new, wanted.name, own)
            topic_id, settings = _NO_ID, check_topic_config(own, where=f"topic {wanted.name!r}")
        else:
            topic = await self._node.call_slow(
                log.create_topic, wanted.name, partitions=partitions, config=own
            )
            topic_id, settings = topic.id, dict(topic.config)
            logger.info("created topic %s with %d partitions for a client", wanted.name, partitions)
        config_class = CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs
        return CreateTopicsResponse.CreatableTopicResult(
            name=wanted.name,
            topic_id=topic_id,
            error_code=int(ErrorCode.NONE),
            error_message=None,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                config_class(
                    name=each.name,
                    value=each.value,
                    read_only=each.read_only,
                    config_source=each.source,
                    is_sensitive=each.is_sensitive,
                )
                for each in described_topic_config(log.config, wanted.name, settings)
            ],
        )

    def _check_new(self, name: str, own: Mapping[str, object]) -> None:
        log = self._node.log
        check_not_internal(name, "created")
        check_new_topic_name(name, log.topics(include_internal=True))
        log.config.resolve(name, check_topic_config(own, where=f"topic {name!r}"))

    def _partition_count(self, wanted: Message) -> int:
        name, count = wanted.name, wanted.num_partitions
        if wanted.assignments:
            if count != _FROM_SETTINGS or wanted.replication_factor != -1:
                raise RefusedError(
                    ErrorCode.INVALID_REQUEST,
                    f"topic {name!r}: with an assignment the number of partitions and the replication factor must be -1",
                )
            indexes = sorted(each.partition_index for each in wanted.assignments)
            if indexes != list(range(len(indexes))):
                raise RefusedError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"topic {name!r}: the assigned partitions are {indexes}; they must be 0, 1, 2 and so on",
                )
            for each in wanted.assignments:
                self._check_replicas(name, each.broker_ids)
            count = len(indexes)
        elif wanted.replication_factor not in REPLICATION_FACTORS:
            raise RefusedError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"topic {name!r}: the replication factor is {wanted.replication_factor}; "
                f"-1, 1 and 3 are allowed, and there is one broker",
            )
        if count == _FROM_SETTINGS:
            count = self._node.config.num_partitions
        _check_count(name, count)
        return int(count)

    def _check_replicas(self, name: str, broker_ids: Sequence[int]) -> None:
        if list(broker_ids) != [self._node.node_id]:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"topic {name!r}: a partition is assigned to the brokers {list(broker_ids)}; "
                f"the only one is {self._node.node_id}",
            )

    # -------------------------------------------------------------------------------------------- delete

    async def _delete_topics(self, request: Request, _peer: Peer) -> Answer:
        message = request.message
        if request.api_version >= 6:
            wanted = [(each.name, each.topic_id) for each in message.topics]
        else:
            wanted = [(name, _NO_ID) for name in message.topic_names]
        results = []
        for name, topic_id in wanted:
            try:
                topic = self._to_delete(name, topic_id)
                await self._node.call_slow(self._node.log.delete_topic, topic.name, topic_id=topic.id)
                logger.info("deleted topic %s (%s) for a client", topic.name, topic.id)
                results.append(_deleted(topic.name, topic.id, None))
            except LastwordError as error:
                results.append(_deleted(name, topic_id, error))
        return DeleteTopicsResponse(throttle_time_ms=0, responses=results)

    def _to_delete(self, name: str | None, topic_id: UUID | None) -> Topic:
        has_id = topic_id is not None and topic_id != _NO_ID
        if (name is not None) == has_id:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, "A topic must be given by its name or by its id, not both."
            )
        if name is not None:
            check_not_internal(name, "deleted")
            return self._node.topic(name)
        assert topic_id is not None
        try:
            topic = self._node.topic_by_id(topic_id)
        except UnknownTopicError as error:
            raise RefusedError(ErrorCode.UNKNOWN_TOPIC_ID, str(error)) from error
        check_not_internal(topic.name, "deleted")
        return topic

    # ---------------------------------------------------------------------------------------- partitions

    async def _create_partitions(self, request: Request, _peer: Peer) -> Answer:
        message = request.message
        counts = Counter(each.name for each in message.topics)
        results = []
        for wanted in message.topics:
            code, text = ErrorCode.NONE, None
            try:
                if counts[wanted.name] > 1:
                    raise RefusedError(ErrorCode.INVALID_REQUEST, f"topic {wanted.name!r} is named twice")
                self._check_more_partitions(wanted)
                if not message.validate_only:
                    await self._node.call_slow(
                        self._node.log.alter_topic, wanted.name, partitions=wanted.count
                    )
            except LastwordError as error:
                code, text = code_of(error), str(error)
            results.append(
                CreatePartitionsResponse.CreatePartitionsTopicResult(
                    name=wanted.name, error_code=int(code), error_message=text
                )
            )
        return CreatePartitionsResponse(throttle_time_ms=0, results=results)

    def _check_more_partitions(self, wanted: Message) -> None:
        name = wanted.name
        check_not_internal(name, "altered")
        topic = self._node.topic(name)
        if wanted.count <= topic.partitions:
            raise RefusedError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r} has {topic.partitions} partitions; {wanted.count} is not more, "
                f"and partitions can't be removed",
            )
        _check_count(name, wanted.count)
        if wanted.assignments is not None:
            added = wanted.count - topic.partitions
            if len(wanted.assignments) != added:
                raise RefusedError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"topic {name!r}: {len(wanted.assignments)} partitions are assigned; {added} are added",
                )
            for each in wanted.assignments:
                self._check_replicas(name, each.broker_ids)


def _check_count(name: str, count: int) -> None:
    if not 1 <= count <= MAX_PARTITIONS:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {name!r} can't have {count} partitions; 1 to {MAX_PARTITIONS} are allowed, "
            f"and -1 for the broker's num.partitions",
        )


def _not_created(name: str, error: LastwordError) -> Message:
    return CreateTopicsResponse.CreatableTopicResult(
        name=name,
        topic_id=_NO_ID,
        error_code=int(code_of(error)),
        error_message=str(error),
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )


def _deleted(name: str | None, topic_id: UUID | None, error: LastwordError | None) -> Message:
    return DeleteTopicsResponse.DeletableTopicResult(
        name=name,
        topic_id=topic_id or _NO_ID,
        error_code=int(ErrorCode.NONE if error is None else code_of(error)),
        error_message=None if error is None else str(error),
    )
