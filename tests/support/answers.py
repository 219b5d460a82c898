"""The same requests for a real Kafka and for Lastword, and those parts of the answers that must be the same.

`kafka_answers.json` has what a real Kafka answered. tests/e2e/test_broker_answers.py compares Lastword with it;
tests/peers/test_answers.py compares a real Kafka with it, and writes it anew: `python -m tests.peers.test_answers`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from tests.support.raw_client import RawClient

RECORDED: Final = Path(__file__).with_name("kafka_answers.json")
PATIENCE_S: Final = 180.0
T_MS: Final = 1_700_000_000_000
NOWHERE: Final = "nowhere"
"""The name of a topic that is not there."""

Row = tuple[bytes | None, bytes | None, int]
"""The key, the value and the time of a record."""

_LEFT_OUT: Final = frozenset(
    {
        *("throttle_time_ms", "cluster_id", "host", "port", "topic_id", "version", "unknown_tags"),
        # Kafka's metadata log has records, and here there is none.
        *("high_watermark", "log_end_offset", "last_fetch_timestamp", "last_caught_up_timestamp"),
    }
)


class Asker:
    """Asks one broker. Topics are named after the question, so that the answers have the same names.

    Kafka refuses null keys on compacted topics by itself; `refusing_null_keys` are the settings that Lastword needs
    for it.
    """

    def __init__(self, address: str, refusing_null_keys: Mapping[str, str] = MappingProxyType({})) -> None:
        self.client = RawClient(address)
        self.refusing_null_keys = refusing_null_keys

    def ask(self, request: Any, response_class: Any, version: int) -> Any:
        """An answer as plain data: texts of errors only say that there is one, and what no two brokers share is left out."""
        return plain(self.client.ask(request, response_class, version))

    def create(self, name: str, partitions: int = 1, **config: str) -> str:
        """Create a topic, and wait until it can be used."""
        topic = CreateTopicsRequest.CreatableTopic
        given = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
        configs = [topic.CreatableTopicConfig(name=key, value=value) for key, value in given.items()]
        wanted = topic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=configs
        )
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000, validate_only=False)
        created = self.client.ask(request, CreateTopicsResponse, 5)
        assert created.topics[0].error_code == 0, created
        self.wait(lambda: self.leaders(name) == [1] * partitions, f"{name} has leaders")
        self.wait(lambda: self.list_offset(name, -1)["error_code"] == 0, f"{name} is led")
        return name

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"waited in vain until {what}"
            time.sleep(0.02)

    def metadata(self, name: str, version: int, **options: bool) -> Any:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name)]
        return self.ask(MetadataRequest(topics=wanted, **options), MetadataResponse, version)

    def leaders(self, name: str) -> list[int]:
        (topic,) = self.metadata(name, 4, allow_auto_topic_creation=False)["topics"]
        return [each["leader_id"] for each in topic["partitions"]]

    def produce(self, topic: str, rows: Iterable[Row], version: int = 8, **producer: int) -> Any:
        return self.send(topic, batch(rows, **producer), version)

    def send(self, topic: str, data: bytes, version: int = 8) -> Any:
        topic_class = ProduceRequest.TopicProduceData
        partition = topic_class.PartitionProduceData(index=0, records=data)
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[topic_class(name=topic, partition_data=[partition])],
        )
        return self.ask(request, ProduceResponse, version)["responses"][0]["partition_responses"][0]

    def list_offset(self, topic: str, timestamp_ms: int, version: int = 9) -> Any:
        topic_class = ListOffsetsRequest.ListOffsetsTopic
        partition = topic_class.ListOffsetsPartition(
            partition_index=0, current_leader_epoch=-1, timestamp=timestamp_ms
        )
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[topic_class(name=topic, partitions=[partition])]
        )
        return self.ask(request, ListOffsetsResponse, version)["topics"][0]["partitions"][0]

    def delete_records(self, topic: str, offset: int) -> Any:
        topic_class = DeleteRecordsRequest.DeleteRecordsTopic
        partition = topic_class.DeleteRecordsPartition(partition_index=0, offset=offset)
        wanted = [topic_class(name=topic, partitions=[partition])]
        answer = self.ask(DeleteRecordsRequest(topics=wanted, timeout_ms=30_000), DeleteRecordsResponse, 2)
        return answer["topics"][0]["partitions"][0]

    def epoch_end(self, topic: str, epoch: int, current: int = -1) -> Any:
        topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        partition = topic_class.OffsetForLeaderPartition(
            partition=0, current_leader_epoch=current, leader_epoch=epoch
        )
        wanted = [topic_class(topic=topic, partitions=[partition])]
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=wanted)
        return self.ask(request, OffsetForLeaderEpochResponse, 4)["topics"][0]["partitions"][0]

    def delete_topic(self, name: str) -> Any:
        return self.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000), DeleteTopicsResponse, 4)

    def commit(self, group: str, topic: str) -> None:
        """Make a group by a commit, when there is a coordinator for it."""
        topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = topic_class.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=0, committed_leader_epoch=-1, committed_metadata=""
        )
        commit = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[topic_class(name=topic, partitions=[partition])],
        )

        def is_committed() -> bool:
            found = self.client.ask(FindCoordinatorRequest(key=group, key_type=0), FindCoordinatorResponse, 1)
            if found.error_code != 0:
                return False
            answer = self.client.ask(commit, OffsetCommitResponse, 7)
            return answer.topics[0].partitions[0].error_code == 0

        self.wait(is_committed, f"{group} has committed")

    def producer_id(self) -> Any:
        """An id for a producer. Kafka has none to give at first."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        given: list[Any] = []

        def is_given() -> bool:
            given.append(self.client.ask(request, InitProducerIdResponse, 2))
            return given[-1].error_code == 0

        self.wait(is_given, "there is an id for a producer")
        return given[-1]

    def alter(self, kind: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
        resource_class = IncrementalAlterConfigsRequest.AlterConfigsResource
        configs = [
            resource_class.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ]
        resource = resource_class(resource_type=kind, resource_name=name, configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        return self.ask(request, IncrementalAlterConfigsResponse, 1)["responses"][0]

    def describe(self, kind: int, name: str, key: str | None) -> Any:
        resource_class = DescribeConfigsRequest.DescribeConfigsResource
        keys = None if key is None else [key]
        resource = resource_class(resource_type=kind, resource_name=name, configuration_keys=keys)
        request = DescribeConfigsRequest(
            resources=[resource], include_synonyms=False, include_documentation=False
        )
        found = self.ask(request, DescribeConfigsResponse, 4)["results"][0]
        configs = [[each["name"], each["value"], each["config_source"]] for each in found["configs"]]
        return {"error_code": found["error_code"], "configs": configs}

    def close(self) -> None:
        self.client.close()


def batch(rows: Iterable[Row], *, producer_id: int = -1, epoch: int = -1, sequence: int = -1) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer_id, epoch, sequence, 1 << 24)
    for number, (key, value, timestamp_ms) in enumerate(rows):
        assert builder.append(number, timestamp_ms, key, value, []) is not None
    return bytes(builder.build())


def plain(value: Any, name: str = "") -> Any:
    """A message as JSON would have it."""
    if isinstance(value, set | frozenset):
        return sorted(int(each) for each in value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if name in ("error_message", "batch_index_error_message"):
        return "" if not value else "a text"
    if not hasattr(value, "_struct"):
        return value
    version = value._version
    fields = [each for each in value._struct.fields.values() if each.for_version_q(version)]
    return {
        each.name: plain(getattr(value, each.name), each.name)
        for each in fields
        if each.name not in _LEFT_OUT
    }


# ------------------------------------------------------------------------------------------ the questions


def authorized_operations(asker: Asker) -> Any:
    topic = asker.create("authorized-operations", 2)
    asker.commit("authorized-group", topic)
    wanted = [DescribeTopicPartitionsRequest.TopicRequest(name=each) for each in (topic, NOWHERE)]

    def described(group: str, asked: bool) -> Any:
        request = DescribeGroupsRequest(groups=[group], include_authorized_operations=asked)
        return asker.ask(request, DescribeGroupsResponse, 5)

    return {
        "metadata": [
            asker.metadata(
                name,
                version,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=asked and version <= 10,
                include_topic_authorized_operations=asked,
            )
            for name in (topic, NOWHERE)
            for version in (8, 10, 12)
            for asked in (True, False)
        ],
        "cluster": [
            asker.ask(
                DescribeClusterRequest(include_cluster_authorized_operations=asked, endpoint_type=kind),
                DescribeClusterResponse,
                1,
            )
            for asked, kind in ((True, 1), (False, 1), (False, 2), (False, 7))
        ],
        "groups": [
            described(name, asked) for name in ("authorized-group", "nobody") for asked in (True, False)
        ],
        "partitions": asker.ask(
            DescribeTopicPartitionsRequest(topics=wanted, response_partition_limit=10, cursor=None),
            DescribeTopicPartitionsResponse,
            0,
        ),
    }


def types_of_groups(asker: Asker) -> Any:
    asker.commit("typed-group", asker.create("types-of-groups"))
    answers: dict[str, Any] = {}
    for types in ((), ("classic",), ("CLASSIC",), ("consumer",), ("share", "classic"), ("bogus",)):
        request = ListGroupsRequest(states_filter=["empty"], types_filter=list(types))
        answers[",".join(types)] = asker.ask(request, ListGroupsResponse, 5)
    for each in answers.values():
        each["groups"] = [group for group in each["groups"] if group["group_id"] == "typed-group"]
    return answers


def list_offsets_of_times_that_are_none(asker: Asker) -> Any:
    topic = asker.create("times-that-are-none")
    return {
        f"{timestamp_ms} in version {version}": asker.list_offset(topic, timestamp_ms, version)
        for version in (1, 6, 7, 8, 9)
        for timestamp_ms in (-1, -2, -3, -4, -5, -6, -7, -100)
    }


def list_offsets_by_time(asker: Asker) -> Any:
    topic = asker.create("by-time")
    asker.produce(topic, [(b"a", b"1", T_MS), (b"b", b"2", T_MS - 500), (b"c", b"3", T_MS - 400)])
    times = (-3, T_MS + 1, T_MS, T_MS - 1000)
    before = [asker.list_offset(topic, each) for each in times]
    asker.delete_records(topic, 1)
    after = [asker.list_offset(topic, each) for each in (T_MS, T_MS - 400, T_MS - 450, T_MS - 500, 0, -1, -2)]
    return {"before a deletion": before, "after it": after}


def delete_records(asker: Asker) -> Any:
    answers: dict[str, Any] = {}
    for policy in ("delete", "compact", "compact,delete"):
        topic = asker.create(f"delete-records-{policy.replace(',', '-')}", cleanup_policy=policy)
        asker.produce(topic, [(b"a", b"1", T_MS), (b"b", b"2", T_MS)])
        answers[policy] = [asker.delete_records(topic, offset) for offset in (1, 0, 9, -7, -1)]
    answers[NOWHERE] = asker.delete_records(NOWHERE, 0)
    return answers


def ends_of_epochs(asker: Asker) -> Any:
    topic = asker.create("ends-of-epochs")
    asker.produce(topic, [(b"a", b"1", T_MS), (b"b", b"2", T_MS)])
    epochs = (-1, 0, 1, 5, -5)
    before = [asker.epoch_end(topic, each) for each in epochs]
    asker.delete_records(topic, 1)
    after = [asker.epoch_end(topic, each) for each in epochs]
    return [before, after, asker.epoch_end(topic, 0, current=3), asker.epoch_end(NOWHERE, 0)]


def refused_records(asker: Asker) -> Any:
    compacted = asker.create("refused-keys", cleanup_policy="compact", **asker.refusing_null_keys)
    keys: list[Row] = [(b"a", b"1", T_MS), (None, b"2", T_MS), (b"c", b"3", T_MS), (None, b"4", T_MS)]
    timed = asker.create("refused-times", message_timestamp_before_max_ms="600000")
    now_ms = int(time.time() * 1000)
    times: list[Row] = [(b"a", b"1", now_ms), (b"b", b"2", now_ms - 10**7), (b"c", b"3", now_ms + 10**8)]
    small = asker.create("refused-sizes", max_message_bytes="100")
    damaged = bytearray(batch(times[:1]))
    damaged[-1] ^= 1
    answers: dict[str, Any] = {
        "keys": [asker.produce(compacted, keys, version) for version in (3, 7, 8, 9)],
        "times": asker.produce(timed, times),
        "without a time": asker.produce(timed, [(b"a", b"1", -1)]),
        "size": asker.produce(small, [(b"a", b"1" * 200, now_ms)]),
        "damaged": asker.send(timed, bytes(damaged)),
        "two batches": asker.send(timed, batch(times[:1]) * 2),
        "no batch": asker.send(timed, b""),
        NOWHERE: asker.produce(NOWHERE, times[:1]),
    }
    for each in (*answers["keys"], *(value for value in answers.values() if isinstance(value, dict))):
        # Lastword knows it as of its last look at the table.
        each.pop("log_start_offset", None)
        # Kafka has no text for some of these errors.
        each.pop("error_message", None)
    return answers


def producers(asker: Asker) -> Any:
    topic = asker.create("producers")
    given = asker.producer_id()
    # Kafka forgets producers by the times of their records.
    now_ms = int(time.time() * 1000)
    rows: list[Row] = [(b"a", b"1", now_ms), (b"b", b"2", now_ms + 5)]
    for sequence in (0, 2):
        asker.produce(
            topic, rows, producer_id=given.producer_id, epoch=given.producer_epoch, sequence=sequence
        )
    topic_class = DescribeProducersRequest.TopicRequest
    wanted = [
        topic_class(name=topic, partition_indexes=[0, 5]),
        topic_class(name=NOWHERE, partition_indexes=[0]),
    ]
    answer = asker.ask(DescribeProducersRequest(topics=wanted), DescribeProducersResponse, 0)
    for partition in (each for found in answer["topics"] for each in found["partitions"]):
        # Kafka has a text for some of these errors.
        partition.pop("error_message")
        for producer in partition["active_producers"]:
            producer["producer_id"] -= given.producer_id
            producer["last_timestamp"] -= now_ms
    return answer


def quorum(asker: Asker) -> Any:
    topic_class = DescribeQuorumRequest.TopicData
    answers = {}
    for name, partition, version in (
        *(("__cluster_metadata", 0, version) for version in (0, 1, 2)),
        ("__cluster_metadata", 1, 2),
        (NOWHERE, 0, 2),
    ):
        partitions = [topic_class.PartitionData(partition_index=partition)]
        request = DescribeQuorumRequest(topics=[topic_class(topic_name=name, partitions=partitions)])
        answer = answers[f"{name}-{partition} in version {version}"] = asker.ask(
            request, DescribeQuorumResponse, version
        )
        for described in answer["topics"][0]["partitions"]:
            described.pop("leader_epoch")
        for node in answer.get("nodes", ()):
            node["listeners"] = len(node["listeners"])
    return answers


def elections(asker: Asker) -> Any:
    topic = asker.create("elections")
    topic_class = ElectLeadersRequest.TopicPartitions
    wanted = [topic_class(topic=topic, partitions=[0, 9]), topic_class(topic=NOWHERE, partitions=[0])]

    def elected(kind: int, partitions: Any, version: int) -> Any:
        request = ElectLeadersRequest(election_type=kind, topic_partitions=partitions, timeout_ms=30_000)
        return asker.ask(request, ElectLeadersResponse, version)

    of_all = elected(0, None, 2)
    results = of_all["replica_election_results"]
    of_all["replica_election_results"] = [each for each in results if each["topic"] == topic]
    return [
        *(elected(kind, wanted, version) for kind, version in ((0, 0), (0, 1), (0, 2), (1, 2), (7, 2))),
        elected(0, [], 2),
        of_all,
    ]


def reassignments(asker: Asker) -> Any:
    topic = asker.create("reassignments", 2)
    topic_class = AlterPartitionReassignmentsRequest.ReassignableTopic

    def reassigned(name: str, *replicas: tuple[int, list[int] | None], version: int = 0) -> Any:
        partitions = [
            topic_class.ReassignablePartition(partition_index=index, replicas=each)
            for index, each in replicas
        ]
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=30_000,
            allow_replication_factor_change=False,
            topics=[topic_class(name=name, partitions=partitions)],
        )
        return asker.ask(request, AlterPartitionReassignmentsResponse, version)

    listed_class = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    some = [
        listed_class(name=topic, partition_indexes=[0, 9]),
        listed_class(name=NOWHERE, partition_indexes=[0]),
    ]
    return {
        "altered": [
            reassigned(topic, (0, [1]), (1, None), (7, [1]), (7, None)),
            reassigned(topic, (0, [1]), version=1),
            *(reassigned(topic, (0, replicas)) for replicas in ([2], [1, 2], [], [1, 1], [-1])),
            reassigned(NOWHERE, (0, [1]), (1, None)),
        ],
        "listed": [
            asker.ask(
                ListPartitionReassignmentsRequest(timeout_ms=30_000, topics=topics),
                ListPartitionReassignmentsResponse,
                0,
            )
            for topics in (None, some)
        ],
    }


def folders(asker: Asker) -> Any:
    topic = asker.create("folders")
    described = asker.client.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, 4)
    folder_class = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    topic_class = folder_class.AlterReplicaLogDirTopic

    def moved(path: str, version: int) -> Any:
        topics = [topic_class(name=topic, partitions=[0, 9]), topic_class(name=NOWHERE, partitions=[0])]
        request = AlterReplicaLogDirsRequest(dirs=[folder_class(path=path, topics=topics)])
        answer = asker.ask(request, AlterReplicaLogDirsResponse, version)
        answer["results"].sort(key=lambda each: each["topic_name"])
        return answer

    here = described.results[0].log_dir
    return [moved(path, version) for path in (here, "/elsewhere", "relative") for version in (1, 2)]


def resources_with_settings(asker: Asker) -> Any:
    asker.create("resources-with-settings")

    def listed(types: list[int], version: int = 1) -> Any:
        request = ListConfigResourcesRequest(resource_types=types)
        answer = asker.ask(request, ListConfigResourcesResponse, version)
        # Other questions have topics, too, and Kafka has loggers that can be set.
        answer["config_resources"] = [
            each
            for each in answer["config_resources"]
            if each["resource_name"] in ("resources-with-settings", "1") and each.get("resource_type") != 8
        ]
        answer["config_resources"].sort(key=lambda each: each["resource_type"])
        return answer

    return [listed([], 0), *(listed(types) for types in ([], [2], [4], [16], [32], [2, 32], [64], [99]))]


def settings_of_groups(asker: Asker) -> Any:
    return [
        asker.alter(32, "group-settings", ("nonsense", 0, "1")),
        asker.alter(32, "", ("consumer.session.timeout.ms", 0, "50000")),
        asker.describe(32, "", None)["error_code"],
        asker.describe(32, "group-settings", "nonsense"),
        asker.describe(64, "what", None),
        asker.alter(64, "what", ("nonsense", 0, "1")),
    ]


def settings_of_the_broker(asker: Asker) -> Any:
    key = "max.connections"

    def described() -> list[Any]:
        return [asker.describe(4, name, key)["configs"] for name in ("1", "")]

    def altered(name: str, operation: int, value: str | None, holds: str | None = None) -> Any:
        answer = asker.alter(4, name, (key, operation, value))
        if holds is not None:
            # Kafka answers before the broker has heard of it.
            asker.wait(lambda: described()[0][0][1] == holds, f"{key} is {holds}")
        return [answer, described() if holds is not None else None]

    answers = [
        altered("1", 0, "1000", holds="1000"),
        altered("", 0, "2000", holds="1000"),
        altered("1", 1, None, holds="2000"),
        altered("1", 0, "bad"),
        altered("1", 2, "3"),
        altered("1", 9, "3"),
        altered("2", 0, "3"),
        altered("x", 0, "3"),
        asker.alter(4, "1", (key, 0, "3"), (key, 0, "4")),
        asker.alter(4, "1", ("socket.request.max.bytes", 0, "1000000")),
    ]
    asker.alter(4, "", (key, 1, None))
    asker.wait(lambda: described()[1] == [], "nothing is set for all brokers")
    return answers


def metadata_after_a_deletion(asker: Asker) -> Any:
    name = asker.create("metadata-after-a-deletion")
    answers = [asker.delete_topic(name)]
    # Kafka answers before the broker has heard of it.
    asker.wait(lambda: asker.leaders(name) == [], f"{name} is gone")
    answers.append(asker.metadata(name, 4, allow_auto_topic_creation=False))
    # In this version everybody who asks for a topic has it created: behind the answer, not before it.
    answers.append(asker.metadata(name, 1))
    asker.wait(lambda: asker.metadata(name, 1)["topics"][0]["error_code"] == 0, f"{name} is created again")
    answers.append(asker.metadata(name, 1))
    answers += [asker.metadata("no name", 1), asker.metadata("no name", 4, allow_auto_topic_creation=False)]
    return answers


QUESTIONS: Final[dict[str, Callable[[Asker], Any]]] = {
    each.__name__: each
    for each in (
        authorized_operations,
        types_of_groups,
        list_offsets_of_times_that_are_none,
        list_offsets_by_time,
        delete_records,
        ends_of_epochs,
        refused_records,
        producers,
        quorum,
        elections,
        reassignments,
        folders,
        resources_with_settings,
        settings_of_groups,
        settings_of_the_broker,
        metadata_after_a_deletion,
    )
}


def recorded() -> dict[str, Any]:
    """What a real Kafka answered to each question."""
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found
