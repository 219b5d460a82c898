"""Requests of tools about replicas: leader elections, reassignments, and moves between folders.

Every partition has one replica, on this broker, in one folder. So an election is never needed, the only possible
assignment is the current one, no reassignment is ever in progress, and a replica can only be moved to its own folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kafka.protocol.admin import (
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)

from lastword.broker.errors import ErrorCode
from lastword.broker.node import Node
from lastword.broker.nulls import refusing_nulls
from lastword.broker.wire import Answer, Handler, Message, Peer, Request
from lastword.errors import UnknownTopicError

ALTER_REPLICA_LOG_DIRS: Final = 34
ELECT_LEADERS: Final = 43
ALTER_PARTITION_REASSIGNMENTS: Final = 45
LIST_PARTITION_REASSIGNMENTS: Final = 46

ELECTION_TYPES: Final = (0, 1)
"""The preferred replica, or any available one."""

Outcome = tuple[ErrorCode, str | None]


class ReplicaHandlers:
    """Answers requests about partitions with one replica each. Nothing is changed."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def handlers(self) -> dict[int, Handler]:
        return refusing_nulls(
            {
                ALTER_REPLICA_LOG_DIRS: self._alter_log_dirs,
                ELECT_LEADERS: self._elect_leaders,
                ALTER_PARTITION_REASSIGNMENTS: self._alter_reassignments,
                LIST_PARTITION_REASSIGNMENTS: self._list_reassignments,
            }
        )

    # ----------------------------------------------------------------------------------------- elections

    async def _elect_leaders(self, request: Request, _peer: Peer) -> Answer:
        message = request.message
        result_class = ElectLeadersResponse.ReplicaElectionResult
        kind = message.election_type if request.api_version >= 1 else ELECTION_TYPES[0]
        is_known = kind in ELECTION_TYPES
        wanted: list[tuple[str, Sequence[int]]]
        if message.topic_partitions is None:
            # When asked for all partitions, Kafka lists those that got a new leader: none did.
            wanted = [(name, ()) for name in self._node.topic_names(include_internal=True)]
        else:
            wanted = [(each.topic, each.partitions) for each in message.topic_partitions]
        results = []
        for name, partitions in wanted:
            outcomes = [(each, self._elected(name, each, kind)) for each in partitions]
            results.append(
                result_class(
                    topic=name,
                    partition_result=[
                        result_class.PartitionResult(
                            partition_id=index, error_code=int(code), error_message=text
                        )
                        for index, (code, text) in outcomes
                    ],
                )
            )
        code = ErrorCode.NONE if is_known else ErrorCode.INVALID_REQUEST
        return ElectLeadersResponse(
            throttle_time_ms=0, error_code=int(code), replica_election_results=results
        )

    def _elected(self, topic: str, partition: int, kind: int) -> Outcome:
        if kind not in ELECTION_TYPES:
            return ErrorCode.INVALID_REQUEST, f"There are no elections of type {kind}; 0 and 1 are known."
        if (problem := self._missing(topic, partition)) is not None:
            return problem
        return (
            ErrorCode.ELECTION_NOT_NEEDED,
            f"Broker {self._node.node_id} has the only replica and is its leader.",
        )

    # ------------------------------------------------------------------------------------- reassignments

    async def _alter_reassignments(self, request: Request, _peer: Peer) -> Answer:
        message = request.message
        topic_class = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
        responses = []
        for topic in message.topics:
            partitions = []
            for each in topic.partitions:
                code, text = self._reassigned(topic.name, each.partition_index, each.replicas)
                partitions.append(
                    topic_class.ReassignablePartitionResponse(
                        partition_index=each.partition_index, error_code=int(code), error_message=text
                    )
                )
            responses.append(topic_class(name=topic.name, partitions=partitions))
        return AlterPartitionReassignmentsResponse(
            throttle_time_ms=0,
            allow_replication_factor_change=request.api_version < 1
            or message.allow_replication_factor_change,
            error_code=int(ErrorCode.NONE),
            error_message=None,
            responses=responses,
        )

    def _reassigned(self, topic: str, partition: int, replicas: Sequence[int] | None) -> Outcome:
        if (problem := self._missing(topic, partition)) is not None:
            return problem
        if replicas is None:
            return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None
        if list(replicas) != [self._node.node_id]:
            text = (
                f"{topic}-{partition} can't be assigned to the brokers {list(replicas)}: "
                f"the only one is {self._node.node_id}, and it has the only replica."
            )
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT, text
        return ErrorCode.NONE, None

    async def _list_reassignments(self, _request: Request, _peer: Peer) -> Answer:
        return ListPartitionReassignmentsResponse(
            throttle_time_ms=0, error_code=int(ErrorCode.NONE), error_message=None, topics=[]
        )

    # ------------------------------------------------------------------------------------------- folders

    async def _alter_log_dirs(self, request: Request, _peer: Peer) -> Answer:
        topic_class = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
        results: dict[str, list[Message]] = {}
        for folder in request.message.dirs:
            for topic in folder.topics:
                results.setdefault(topic.name, []).extend(
                    topic_class.AlterReplicaLogDirPartitionResult(
                        partition_index=each, error_code=int(self._moved(folder.path, topic.name, each))
                    )
                    for each in topic.partitions
                )
        return AlterReplicaLogDirsResponse(
            throttle_time_ms=0,
            results=[topic_class(topic_name=name, partitions=each) for name, each in results.items()],
        )

    def _moved(self, folder: str, topic: str, partition: int) -> ErrorCode:
        if folder != self._node.wal_folder:
            return ErrorCode.LOG_DIR_NOT_FOUND
        problem = self._missing(topic, partition)
        return ErrorCode.NONE if problem is None else problem[0]

    def _missing(self, topic: str, partition: int) -> Outcome | None:
        """Return the error for a missing partition, or None if it exists."""
        try:
            count = self._node.topic(topic).partitions
        except UnknownTopicError as error:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(error)
        if 0 <= partition < count:
            return None
        return (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {topic!r} has {count} partitions; there is no partition {partition}",
        )
