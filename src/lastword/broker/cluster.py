"""Cluster queries of tools: brokers, folders and partitions. There is one broker, and no access control."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from kafka.protocol.admin import (
    DescribeAclsResponse,
    DescribeClusterResponse,
    DescribeLogDirsResponse,
    DescribeQuorumResponse,
    DescribeTopicPartitionsResponse,
)

from lastword.broker.authorized import ON_CLUSTER, ON_TOPIC, bits, if_asked
from lastword.broker.broker_settings import LISTENER
from lastword.broker.errors import ErrorCode
from lastword.broker.node import Node
from lastword.broker.nulls import refusing_nulls
from lastword.broker.wire import Answer, Handler, Message, Peer, Request
from lastword.config import is_internal
from lastword.errors import ClosedError, UnknownTopicError
from lastword.log.topic import Topic

DESCRIBE_ACLS: Final = 29
DESCRIBE_LOG_DIRS: Final = 35
DESCRIBE_QUORUM: Final = 55
DESCRIBE_CLUSTER: Final = 60
DESCRIBE_TOPIC_PARTITIONS: Final = 75

MAX_PARTITIONS_A_PAGE: Final = 2000
_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_METADATA_LOG: Final = ("__cluster_metadata", 0)


class ClusterHandlers:
    """Answers queries about a cluster of one broker."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def handlers(self) -> dict[int, Handler]:
        return refusing_nulls(
            {
                DESCRIBE_ACLS: self._describe_acls,
                DESCRIBE_LOG_DIRS: self._describe_log_dirs,
                DESCRIBE_QUORUM: self._describe_quorum,
                DESCRIBE_CLUSTER: self._describe_cluster,
                DESCRIBE_TOPIC_PARTITIONS: self._describe_topic_partitions,
            }
        )

    async def _describe_cluster(self, request: Request, peer: Peer) -> Answer:
        node = self._node
        kind = request.message.endpoint_type if request.api_version >= 1 else _BROKERS
        if kind != _BROKERS:
            return _no_such_endpoints(kind)
        host, port = node.place_for(peer)
        return DescribeClusterResponse(
            throttle_time_ms=0,
            error_code=int(ErrorCode.NONE),
            error_message=None,
            endpoint_type=_BROKERS,
            cluster_id=node.cluster_id,
            controller_id=node.node_id,
            brokers=[
                DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=node.node_id, host=host, port=port, rack=None
                )
            ],
            authorized_operations=if_asked(ON_CLUSTER, request.message.include_cluster_authorized_operations),
        )

    async def _describe_acls(self, _request: Request, _peer: Peer) -> Answer:
        return DescribeAclsResponse(
            throttle_time_ms=0,
            error_code=int(ErrorCode.SECURITY_DISABLED),
            error_message="There is no access control, so there are no ACLs.",
            resources=[],
        )

    # -------------------------------------------------------------------------------------------- quorum

    async def _describe_quorum(self, request: Request, peer: Peer) -> Answer:
        """Describe a quorum of one. The catalog holds the data of Kafka's metadata log, so that log is empty here."""
        topics = [
            DescribeQuorumResponse.TopicData(
                topic_name=topic.topic_name,
                partitions=[self._quorum_of(topic.topic_name, each) for each in topic.partitions],
            )
            for topic in request.message.topics
        ]
        is_described = any(each.error_code == 0 for topic in topics for each in topic.partitions)
        return DescribeQuorumResponse(
            error_code=int(ErrorCode.NONE),
            error_message="",
            topics=topics,
            nodes=[self._quorum_node(peer)] if is_described else [],
        )

    def _quorum_of(self, topic: str, wanted: Message) -> Message:
        partition_class = DescribeQuorumResponse.TopicData.PartitionData
        if (topic, wanted.partition_index) != _METADATA_LOG:
            return partition_class(
                partition_index=wanted.partition_index,
                error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                error_message=f"Only {_METADATA_LOG[0]}-{_METADATA_LOG[1]} has a quorum.",
                leader_id=0,
                leader_epoch=0,
                high_watermark=0,
                current_voters=[],
                observers=[],
            )
        now_ms = self._node.clock.now_ms()
        return partition_class(
            partition_index=wanted.partition_index,
            error_code=int(ErrorCode.NONE),
            error_message="",
            leader_id=self._node.node_id,
            leader_epoch=0,
            high_watermark=0,
            current_voters=[
                partition_class.ReplicaState(
                    replica_id=self._node.node_id,
                    replica_directory_id=None,
                    log_end_offset=0,
                    last_fetch_timestamp=now_ms,
                    last_caught_up_timestamp=now_ms,
                )
            ],
            observers=[],
        )

    def _quorum_node(self, peer: Peer) -> Message:
        node_class = DescribeQuorumResponse.Node
        host, port = self._node.place_for(peer)
        return node_class(
            node_id=self._node.node_id,
            listeners=[node_class.Listener(name=LISTENER, host=host, port=port)],
        )

    # ------------------------------------------------------------------------------------------- folders

    async def _describe_log_dirs(self, request: Request, _peer: Peer) -> Answer:
        """Describe the WAL folder, with the size of each partition in it."""
        wanted = request.message.topics
        names = self._node.topic_names(include_internal=True)
        partitions: dict[str, set[int] | None] = dict.fromkeys(names)
        if wanted is not None:
            partitions = {each.topic: set(each.partitions) for each in wanted if each.topic in names}
        topics = [self._node.topic(name) for name in partitions]
        sizes = await self._node.call_slow(_wal_sizes, topics)
        usage = await self._node.call_slow(shutil.disk_usage, self._node.log.path)
        result_class = DescribeLogDirsResponse.DescribeLogDirsResult
        topic_class = result_class.DescribeLogDirsTopic
        return DescribeLogDirsResponse(
            throttle_time_ms=0,
            error_code=int(ErrorCode.NONE),
            results=[
                result_class(
                    error_code=int(ErrorCode.NONE),
                    log_dir=self._node.wal_folder,
                    topics=[
                        topic_class(
                            name=name,
                            partitions=[
                                topic_class.DescribeLogDirsPartition(
                                    partition_index=index,
                                    partition_size=size_bytes,
                                    offset_lag=0,
                                    is_future_key=False,
                                )
                                for index, size_bytes in sizes.get(name, {}).items()
                                if chosen is None or index in chosen
                            ],
                        )
                        for name, chosen in partitions.items()
                    ],
                    total_bytes=usage.total,
                    usable_bytes=usage.free,
                )
            ],
        )

    # ---------------------------------------------------------------------------------------- partitions

    async def _describe_topic_partitions(self, request: Request, _peer: Peer) -> Answer:
        """Describe topics in the order of their names, page by page."""
        message = request.message
        names = sorted({each.name for each in message.topics}) or self._node.topic_names(
            include_internal=True
        )
        first = 0
        if message.cursor is not None:
            names = [name for name in names if name >= message.cursor.topic_name]
            if names and names[0] == message.cursor.topic_name:
                first = max(message.cursor.partition_index, 0)
        left = min(max(message.response_partition_limit, 1), MAX_PARTITIONS_A_PAGE)
        topics: list[Message] = []
        cursor = None
        for name in names:
            if left == 0:
                cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=first)
                break
            described, end, count = self._page(name, first, left)
            topics.append(described)
            left -= end - first
            if end < count:
                cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=end)
                break
            first = 0
        return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=topics, next_cursor=cursor)

    def _page(self, name: str, first: int, limit: int) -> tuple[Message, int, int]:
        """Return a topic with some of its partitions, the partition after them, and the number of all partitions."""
        topic_class = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
        partition_class = topic_class.DescribeTopicPartitionsResponsePartition
        try:
            topic = self._node.topic(name)
        except UnknownTopicError:
            failed = topic_class(
                error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                name=name,
                topic_id=UUID(int=0),
                is_internal=is_internal(name),
                partitions=[],
                topic_authorized_operations=bits(ON_TOPIC),
            )
            return failed, first, first
        end = min(topic.partitions, first + limit)
        described = topic_class(
            error_code=int(ErrorCode.NONE),
            name=name,
            topic_id=topic.id,
            is_internal=is_internal(name),
            partitions=[
                partition_class(
                    **self._node.led(topic, partition), eligible_leader_replicas=[], last_known_elr=[]
                )
                for partition in range(first, end)
            ],
            topic_authorized_operations=bits(ON_TOPIC),
        )
        return described, max(end, first), topic.partitions


def _no_such_endpoints(kind: int) -> Message:
    """Refuse any endpoint type but brokers. A client that asks a broker for controllers has the wrong address."""
    is_other = kind == _CONTROLLERS
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=int(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_other else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        ),
        error_message=f"There are no endpoints of type {kind} here; type {_BROKERS} (brokers) is available.",
        endpoint_type=_BROKERS,
        cluster_id="",
        controller_id=-1,
        brokers=[],
    )


def _wal_sizes(topics: Sequence[Topic]) -> dict[str, dict[int, int]]:
    sizes: dict[str, dict[int, int]] = {}
    for topic in topics:
        try:
            sizes[topic.name] = {wal.partition: wal.size_bytes for wal in topic.local_wals()}
        except (ClosedError, UnknownTopicError):
            # Deleted just now.
            continue
    return sizes
