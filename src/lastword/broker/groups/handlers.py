"""Kafka's requests about groups, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kafka.protocol.admin import DeleteGroupsResponse, DescribeGroupsResponse, ListGroupsResponse
from kafka.protocol.consumer import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)
from kafka.protocol.metadata import FindCoordinatorResponse

from lastword.broker.authorized import ON_GROUP, if_asked
from lastword.broker.errors import ErrorCode
from lastword.broker.groups.commits import NewOffset
from lastword.broker.groups.describing import TopicPartition
from lastword.broker.groups.group import Group, State
from lastword.broker.groups.members import NO_MEMBER_ID, JoinRequest, MemberRef, SyncRequest
from lastword.broker.groups.records import CommittedOffset
from lastword.broker.groups.service import GroupService
from lastword.broker.node import Node
from lastword.broker.nulls import refusing_nulls
from lastword.broker.wire import Answer, Handler, Message, Peer, Request

OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
DELETE_GROUPS: Final = 42
OFFSET_DELETE: Final = 47

GROUP_TYPE: Final = "classic"
"""The type of every group: the protocols of Kafka's newer types are not served."""

_GROUP_KEY: Final = 0
_TRANSACTION_KEY: Final = 1
_NO_OFFSET: Final = CommittedOffset(topic="", offset=-1)


class GroupHandlers:
    """Answers all requests about groups and committed offsets."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.service = GroupService(node)
        self._preparing: asyncio.Task[None] | None = None

    def handlers(self) -> dict[int, Handler]:
        return refusing_nulls(
            {
                FIND_COORDINATOR: self._find_coordinator,
                JOIN_GROUP: self._join,
                SYNC_GROUP: self._sync,
                HEARTBEAT: self._heartbeat,
                LEAVE_GROUP: self._leave,
                OFFSET_COMMIT: self._commit,
                OFFSET_FETCH: self._fetch_offsets,
                DESCRIBE_GROUPS: self._describe,
                LIST_GROUPS: self._list,
                DELETE_GROUPS: self._delete,
                OFFSET_DELETE: self._delete_offsets,
            }
        )

    @property
    def _load_error(self) -> ErrorCode:
        return ErrorCode.NONE if self.service.is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def start(self) -> None:
        await self.service.start()

    async def stop(self) -> None:
        """Accept no more members. Commits in progress continue."""
        await self.service.stop()

    async def close(self) -> None:
        if self._preparing is not None:
            await self._preparing
        await self.service.close()

    # --------------------------------------------------------------------------------------- coordinator

    async def _find_coordinator(self, request: Request, peer: Peer) -> Answer:
        message = request.message
        key_type = message.key_type if request.api_version >= 1 else _GROUP_KEY
        error, text = _coordinator_error(key_type)
        if error is ErrorCode.NONE and not self.service.is_loaded:
            error, text = ErrorCode.COORDINATOR_NOT_AVAILABLE, "The groups have not been loaded yet."
        if error is ErrorCode.NONE and self._preparing is None:
            # The first group is about to form.
            self._preparing = asyncio.create_task(self.service.prepare())
        is_found = error is ErrorCode.NONE
        host, port = self._node.place_for(peer)
        place = {
            "node_id": self._node.node_id if is_found else -1,
            "host": host if is_found else "",
            "port": port if is_found else -1,
            "error_code": int(error),
            "error_message": text,
        }
        if request.api_version >= 4:
            coordinators = [
                FindCoordinatorResponse.Coordinator(key=key, **place) for key in message.coordinator_keys
            ]
            return FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators)
        return FindCoordinatorResponse(throttle_time_ms=0, **place)

    async def _join(self, request: Request, peer: Peer) -> Answer:
        message, version = request.message, request.api_version
        answer = await self.service.join(
            JoinRequest(
                group_id=message.group_id,
                member_id=message.member_id,
                instance_id=message.group_instance_id if version >= 5 else None,
                client_id=request.client_id or "",
                client_host=f"/{peer.client_host}",
                session_timeout_ms=message.session_timeout_ms,
                rebalance_timeout_ms=message.rebalance_timeout_ms
                if version >= 1
                else message.session_timeout_ms,
                protocol_type=message.protocol_type,
                protocols=tuple((each.name, bytes(each.metadata)) for each in message.protocols),
                must_know_member_id=version >= 4,
                may_skip_assignment=version >= 9,
            )
        )
        return JoinGroupResponse(
            throttle_time_ms=0,
            error_code=int(answer.error),
            generation_id=answer.generation,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name if version >= 7 else answer.protocol_name or "",
            leader=answer.leader,
            skip_assignment=answer.skip_assignment,
            member_id=answer.member_id,
            members=[
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata
                )
                for each in answer.members
            ],
        )

    async def _sync(self, request: Request, _peer: Peer) -> Answer:
        message, version = request.message, request.api_version
        answer = await self.service.sync(
            SyncRequest(
                group_id=message.group_id,
                member_id=message.member_id,
                instance_id=message.group_instance_id if version >= 3 else None,
                generation=message.generation_id,
                protocol_type=message.protocol_type if version >= 5 else None,
                protocol_name=message.protocol_name if version >= 5 else None,
                assignments={each.member_id: bytes(each.assignment) for each in message.assignments},
            )
        )
        return SyncGroupResponse(
            throttle_time_ms=0,
            error_code=int(answer.error),
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            assignment=answer.assignment,
        )

    async def _heartbeat(self, request: Request, _peer: Peer) -> Answer:
        message = request.message
        instance_id = message.group_instance_id if request.api_version >= 3 else None
        ref = MemberRef(member_id=message.member_id, instance_id=instance_id)
        error = self.service.heartbeat(message.group_id, ref, message.generation_id)
        return HeartbeatResponse(throttle_time_ms=0, error_code=int(error))

    async def _leave(self, request: Request, _peer: Peer) -> Answer:
        message = request.message
        if not message.group_id:
            return LeaveGroupResponse(
                throttle_time_ms=0, error_code=int(ErrorCode.INVALID_GROUP_ID), members=[]
            )
        if request.api_version < 3:
            (error,) = self.service.leave(message.group_id, [MemberRef(member_id=message.member_id)])
            return LeaveGroupResponse(throttle_time_ms=0, error_code=int(error))
        refs = [
            MemberRef(member_id=each.member_id or NO_MEMBER_ID, instance_id=each.group_instance_id)
            for each in message.members
        ]
        return LeaveGroupResponse(
            throttle_time_ms=0,
            error_code=int(ErrorCode.NONE),
            members=[
                LeaveGroupResponse.MemberResponse(
                    member_id=ref.member_id, group_instance_id=ref.instance_id, error_code=int(error)
                )
                for ref, error in zip(refs, self.service.leave(message.group_id, refs), strict=True)
            ],
        )

    # ------------------------------------------------------------------------------------------- offsets

    async def _commit(self, request: Request, _peer: Peer) -> Answer:
        message, version = request.message, request.api_version
        offsets = {
            (topic.name, each.partition_index): NewOffset(
                offset=each.committed_offset,
                leader_epoch=each.committed_leader_epoch if version >= 6 else -1,
                metadata=each.committed_metadata or "",
            )
            for topic in message.topics
            for each in topic.partitions
        }
        errors = await self.service.commit(
            message.group_id,
            MemberRef(
                member_id=message.member_id, instance_id=message.group_instance_id if version >= 7 else None
            ),
            message.generation_id_or_member_epoch,
            offsets,
            knows_missing_groups=version >= 9,
        )
        topic_class = OffsetCommitResponse.OffsetCommitResponseTopic
        return OffsetCommitResponse(
            throttle_time_ms=0,
            topics=[
                topic_class(
                    name=topic.name,
                    partitions=[
                        topic_class.OffsetCommitResponsePartition(
                            partition_index=each.partition_index,
                            error_code=int(errors[topic.name, each.partition_index]),
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in message.topics
            ],
        )

    async def _fetch_offsets(self, request: Request, _peer: Peer) -> Answer:
        message = request.message
        if request.api_version < 8:
            topic_class: Message = OffsetFetchResponse.OffsetFetchResponseTopic
            return OffsetFetchResponse(
                throttle_time_ms=0,
                topics=_offset_topics(
                    topic_class,
                    topic_class.OffsetFetchResponsePartition,
                    self.service.committed(message.group_id, _wanted(message.topics)),
                    self._fetch_error(message.group_id),
                ),
                error_code=int(self._fetch_error(message.group_id)),
            )
        group_class = OffsetFetchResponse.OffsetFetchResponseGroup
        topic_class = group_class.OffsetFetchResponseTopics
        return OffsetFetchResponse(
            throttle_time_ms=0,
            groups=[
                group_class(
                    group_id=group.group_id,
                    topics=_offset_topics(
                        topic_class,
                        topic_class.OffsetFetchResponsePartitions,
                        self.service.committed(group.group_id, _wanted(group.topics)),
                        self._fetch_error(group.group_id),
                    ),
                    error_code=int(self._fetch_error(group.group_id)),
                )
                for group in message.groups
            ],
        )

    def _fetch_error(self, group_id: str | None) -> ErrorCode:
        # Never answer "there is no offset" before that is known. An empty group id is allowed: a consumer may have
        # committed offsets under it long ago.
        return ErrorCode.INVALID_GROUP_ID if self.service.is_loaded and group_id is None else self._load_error

    async def _delete_offsets(self, request: Request, _peer: Peer) -> Answer:
        message = request.message
        partitions = [
            (topic.name, each.partition_index) for topic in message.topics for each in topic.partitions
        ]
        error, errors = await self.service.delete_offsets(message.group_id, partitions)
        topic_class = OffsetDeleteResponse.OffsetDeleteResponseTopic
        return OffsetDeleteResponse(
            error_code=int(error),
            throttle_time_ms=0,
            topics=[
                topic_class(
                    name=name,
                    partitions=[
                        topic_class.OffsetDeleteResponsePartition(
                            partition_index=partition, error_code=int(each)
                        )
                        for (topic, partition), each in errors.items()
                        if topic == name
                    ],
                )
                for name in dict.fromkeys(topic for topic, _ in errors)
            ],
        )

    # -------------------------------------------------------------------------------------------- groups

    async def _describe(self, request: Request, _peer: Peer) -> Answer:
        message = request.message
        asked = request.api_version >= 3 and message.include_authorized_operations
        return DescribeGroupsResponse(
            throttle_time_ms=0,
            groups=[
                _described(
                    group_id, self.service.group(group_id), self._load_error, is_authorized_asked=asked
                )
                for group_id in message.groups
            ],
        )

    async def _list(self, request: Request, _peer: Peer) -> Answer:
        message, version = request.message, request.api_version
        states = {each.lower() for each in message.states_filter or ()} if version >= 4 else set()
        types = {each.lower() for each in message.types_filter or ()} if version >= 5 else set()
        return ListGroupsResponse(
            throttle_time_ms=0,
            error_code=int(self._load_error),
            groups=[
                ListGroupsResponse.ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=GROUP_TYPE,
                )
                for group in self.service.groups()
                if (not states or group.state.value.lower() in states) and (not types or GROUP_TYPE in types)
            ],
        )

    async def _delete(self, request: Request, _peer: Peer) -> Answer:
        group_ids = list(dict.fromkeys(request.message.groups_names))
        return DeleteGroupsResponse(
            throttle_time_ms=0,
            results=[
                DeleteGroupsResponse.DeletableGroupResult(
                    group_id=group_id, error_code=int(await self.service.delete_group(group_id))
                )
                for group_id in group_ids
            ],
        )


def _coordinator_error(key_type: int) -> tuple[ErrorCode, str | None]:
    if key_type == _GROUP_KEY:
        return ErrorCode.NONE, None
    if key_type == _TRANSACTION_KEY:
        # The only error after which every client gives up at once.
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactions are not supported."
    return ErrorCode.INVALID_REQUEST, f"There are no coordinators of type {key_type}; 0 (group) is available."


def _wanted(topics: Sequence[Message] | None) -> list[TopicPartition] | None:
    if topics is None:
        return None
    return [(topic.name, partition) for topic in topics for partition in topic.partition_indexes]


def _offset_topics(
    topic_class: Message,
    partition_class: Message,
    offsets: Mapping[TopicPartition, CommittedOffset | None],
    error: ErrorCode,
) -> list[Message]:
    by_topic: dict[str, list[Message]] = {}
    for (name, partition), found in offsets.items():
        committed = found or _NO_OFFSET
        by_topic.setdefault(name, []).append(
            partition_class(
                partition_index=partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                # The first versions have no other field for this error.
                error_code=int(error if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else ErrorCode.NONE),
            )
        )
    return [topic_class(name=name, partitions=partitions) for name, partitions in by_topic.items()]


def _described(group_id: str, group: Group | None, error: ErrorCode, *, is_authorized_asked: bool) -> Message:
    group_class = DescribeGroupsResponse.DescribedGroup
    dead = "" if error is not ErrorCode.NONE else State.DEAD.value
    return group_class(
        error_code=int(error),
        group_id=group_id,
        group_state=dead if group is None else group.state.value,
        protocol_type=(group.protocol_type if group is not None else None) or "",
        protocol_data=(group.protocol_name if group is not None else None) or "",
        members=[] if group is None else list(_described_members(group)),
        authorized_operations=if_asked(ON_GROUP, is_authorized_asked),
    )


def _described_members(group: Group) -> Iterable[Message]:
    member_class = DescribeGroupsResponse.DescribedGroup.DescribedGroupMember
    is_stable = group.state is State.STABLE
    for member in group.members.values():
        yield member_class(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol_name or "") if is_stable else b"",
            member_assignment=member.assignment if is_stable else b"",
        )
