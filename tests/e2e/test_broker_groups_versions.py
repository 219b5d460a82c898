"""Every version of every API about groups, topics and settings is answered in its own form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol import admin as a
from kafka.protocol import consumer as c
from kafka.protocol import metadata as m
from tests.support.broker import RunningBroker, running_broker
from tests.support.raw_client import RawClient

from lastword.broker.wire import APIS


def join(version: int) -> Any:
    return c.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        group_instance_id="static" if version >= 5 else None,
        protocol_type="consumer",
        protocols=[c.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"m")],
        reason=None,
    )


def commit(version: int) -> Any:
    topic = c.OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=3, committed_leader_epoch=-1, committed_metadata=None
    )
    return c.OffsetCommitRequest(
        group_id=f"simple-{version}",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[topic(name="t", partitions=[partition])],
    )


def fetch(version: int) -> Any:
    request = c.OffsetFetchRequest
    if version < 8:
        topics = [request.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        return request(group_id="g", topics=topics, require_stable=True)
    group = request.OffsetFetchRequestGroup
    topics = [group.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    return request(
        groups=[group(group_id="g", member_id=None, member_epoch=-1, topics=topics)], require_stable=True
    )


def leave(version: int) -> Any:
    if version < 3:
        return c.LeaveGroupRequest(group_id="g", member_id="nobody")
    member = c.LeaveGroupRequest.MemberIdentity(member_id="nobody", group_instance_id=None, reason=None)
    return c.LeaveGroupRequest(group_id="g", members=[member])


def sync(_version: int) -> Any:
    return c.SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id="nobody",
        group_instance_id=None,
        protocol_type=None,
        protocol_name=None,
        assignments=[],
    )


def find(version: int) -> Any:
    if version < 4:
        return m.FindCoordinatorRequest(key="g", key_type=0)
    return m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g", "h"])


def create(version: int) -> Any:
    topic = a.CreateTopicsRequest.CreatableTopic
    config = topic.CreatableTopicConfig(name="cleanup.policy", value="compact")
    wanted = topic(
        name=f"new-{version}", num_partitions=1, replication_factor=1, assignments=[], configs=[config]
    )
    return a.CreateTopicsRequest(topics=[wanted], timeout_ms=1000, validate_only=False)


def delete(version: int) -> Any:
    if version < 6:
        return a.DeleteTopicsRequest(topic_names=["nope"], timeout_ms=1)
    wanted = a.DeleteTopicsRequest.DeleteTopicState(name="nope", topic_id=UUID(int=0))
    return a.DeleteTopicsRequest(topics=[wanted], timeout_ms=1)


def partitions(_version: int) -> Any:
    wanted = a.CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=1, assignments=None)
    return a.CreatePartitionsRequest(topics=[wanted], timeout_ms=1, validate_only=False)


def describe_configs(_version: int) -> Any:
    resource = a.DescribeConfigsRequest.DescribeConfigsResource
    wanted = [
        resource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((2, "t"), (4, "1"), (4, ""), (2, "nope"))
    ]
    return a.DescribeConfigsRequest(resources=wanted, include_synonyms=True, include_documentation=True)


def alter(_version: int) -> Any:
    resource = a.AlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig(name="retention.ms", value="5")
    wanted = resource(resource_type=2, resource_name="t", configs=[config])
    return a.AlterConfigsRequest(resources=[wanted], validate_only=True)


def incremental(_version: int) -> Any:
    resource = a.IncrementalAlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig(name="retention.ms", config_operation=0, value="5")
    wanted = resource(resource_type=2, resource_name="t", configs=[config])
    return a.IncrementalAlterConfigsRequest(resources=[wanted], validate_only=True)


def offset_delete(_version: int) -> Any:
    topic = c.OffsetDeleteRequest.OffsetDeleteRequestTopic
    wanted = topic(name="t", partitions=[topic.OffsetDeleteRequestPartition(partition_index=0)])
    return c.OffsetDeleteRequest(group_id="simple", topics=[wanted])


def acls(_version: int) -> Any:
    return a.DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )


Codes = Callable[[Any], list[int]]

CASES: dict[int, tuple[Callable[[int], Any], Any, Codes, list[int]]] = {
    8: (
        commit,
        c.OffsetCommitResponse,
        lambda r: [p.error_code for t in r.topics for p in t.partitions],
        [0],
    ),
    9: (
        fetch,
        c.OffsetFetchResponse,
        lambda r: [p.committed_offset for g in (r.groups or [r]) for t in g.topics for p in t.partitions],
        [-1],
    ),
    10: (
        find,
        m.FindCoordinatorResponse,
        lambda r: sorted({each.error_code for each in r.coordinators or [r]}),
        [0],
    ),
    11: (join, c.JoinGroupResponse, lambda r: [r.error_code], [0]),
    12: (
        lambda _: c.HeartbeatRequest(
            group_id="none", generation_id=1, member_id="nobody", group_instance_id=None
        ),
        c.HeartbeatResponse,
        lambda r: [r.error_code],
        [25],
    ),
    13: (
        leave,
        c.LeaveGroupResponse,
        lambda r: [each.error_code for each in r.members] or [r.error_code],
        [25],
    ),
    14: (sync, c.SyncGroupResponse, lambda r: [r.error_code], [25]),
    15: (
        lambda _: a.DescribeGroupsRequest(groups=["none"], include_authorized_operations=True),
        a.DescribeGroupsResponse,
        lambda r: [each.error_code for each in r.groups],
        [0],
    ),
    16: (
        lambda _: a.ListGroupsRequest(states_filter=[]),
        a.ListGroupsResponse,
        lambda r: [r.error_code],
        [0],
    ),
    19: (create, a.CreateTopicsResponse, lambda r: [each.error_code for each in r.topics], [0]),
    20: (delete, a.DeleteTopicsResponse, lambda r: [each.error_code for each in r.responses], [3]),
    29: (acls, a.DescribeAclsResponse, lambda r: [r.error_code], [54]),
    32: (
        describe_configs,
        a.DescribeConfigsResponse,
        lambda r: [each.error_code for each in r.results],
        [0, 0, 0, 3],
    ),
    33: (alter, a.AlterConfigsResponse, lambda r: [each.error_code for each in r.responses], [0]),
    35: (
        lambda _: a.DescribeLogDirsRequest(topics=None),
        a.DescribeLogDirsResponse,
        lambda r: [each.error_code for each in r.results],
        [0],
    ),
    37: (
        partitions,
        a.CreatePartitionsResponse,
        lambda r: [each.error_code for each in r.results],
        [37],
    ),
    42: (
        lambda _: a.DeleteGroupsRequest(groups_names=["none"]),
        a.DeleteGroupsResponse,
        lambda r: [each.error_code for each in r.results],
        [69],
    ),
    44: (
        incremental,
        a.IncrementalAlterConfigsResponse,
        lambda r: [each.error_code for each in r.responses],
        [0],
    ),
    46: (
        lambda _: a.ListPartitionReassignmentsRequest(timeout_ms=1, topics=None),
        a.ListPartitionReassignmentsResponse,
        lambda r: [r.error_code],
        [0],
    ),
    47: (offset_delete, c.OffsetDeleteResponse, lambda r: [r.error_code], [69]),
    60: (
        lambda _: a.DescribeClusterRequest(include_cluster_authorized_operations=True, endpoint_type=1),
        a.DescribeClusterResponse,
        lambda r: [r.error_code],
        [0],
    ),
    75: (
        lambda _: a.DescribeTopicPartitionsRequest(topics=[], response_partition_limit=10, cursor=None),
        a.DescribeTopicPartitionsResponse,
        lambda r: sorted({each.error_code for each in r.topics}),
        [0],
    ),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder: Path = tmp_path_factory.mktemp("versions") / "data"
    with running_broker(folder, {"group.initial.rebalance.delay.ms": 0}) as running:
        running.log.create_topic("t")
        yield running


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, version) for key in CASES for version in range(APIS[key].served_from, APIS[key].max_version + 1)],
)
def test_is_answered(broker: RunningBroker, key: int, version: int) -> None:
    request, response_class, codes, expected = CASES[key]
    with RawClient(broker.address) as raw:
        answer = raw.ask(request(version), response_class, version)
        if key == 11 and version == 4:
            expected = [79]
        elif key == 11 and answer.error_code == 0:
            leaving = c.LeaveGroupRequest(group_id="g", member_id=answer.member_id)
            assert raw.ask(leaving, c.LeaveGroupResponse, 2).error_code == 0
    assert codes(answer) == expected


def test_transactions_have_no_coordinator(broker: RunningBroker) -> None:
    with RawClient(broker.address) as raw:
        request = m.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
        answer = raw.ask(request, m.FindCoordinatorResponse, 4)
        (found,) = answer.coordinators
        assert (found.error_code, found.error_message) == (53, "Transactions are not supported.")
        request = m.FindCoordinatorRequest(key_type=2, coordinator_keys=["share"])
        assert raw.ask(request, m.FindCoordinatorResponse, 4).coordinators[0].error_code == 42


def test_offsets_of_all_topics_by_version(broker: RunningBroker) -> None:
    with RawClient(broker.address) as raw:
        raw.ask(commit(9), c.OffsetCommitResponse, 9)
        for version in range(2, 8):
            request = c.OffsetFetchRequest(group_id="simple-9", topics=None, require_stable=False)
            answer = raw.ask(request, c.OffsetFetchResponse, version)
            assert [(t.name, p.committed_offset) for t in answer.topics for p in t.partitions] == [("t", 3)]
        group = c.OffsetFetchRequest.OffsetFetchRequestGroup
        groups = [group(group_id=name, topics=None) for name in ("simple-9", "nobody")]
        answer = raw.ask(c.OffsetFetchRequest(groups=groups), c.OffsetFetchResponse, 8)
        assert [(g.group_id, g.error_code, len(g.topics)) for g in answer.groups] == [
            ("simple-9", 0, 1),
            ("nobody", 0, 0),
        ]
