"""Topics, partitions, settings and the cluster, as admin clients see and change them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
)
from confluent_kafka.admin import ResourceType as Resource
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as PythonConfigResource
from kafka.admin import ConfigResourceType
from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka.protocol.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from tests.support.broker import RunningBroker, running_broker
from tests.support.kafka_clients import (
    LEAVES_SOCKETS,
    PATIENCE_S,
    admin,
    collected,  # noqa: F401
    create_topic,
    member,
    produce,
)
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

import lastword
from lastword.broker.broker_settings import ALTERABLE
from lastword.broker.kafka_settings import KAFKA_SETTINGS
from lastword.broker.server import Broker
from lastword.config.keys import BROKER_SETTINGS, TOPIC_SETTINGS
from lastword.errors import UnknownTopicError

pytestmark = LEAVES_SOCKETS

SETTINGS = {
    "num.partitions": 3,
    "retention.ms": 1234567,
    "namespaces": {"ns": {"retention.ms": 7654321}},
    "local.retention.ms": -2,
    "catalog": {"type": "sql", "uri": "sqlite:///{}/catalog.db", "password": "secret"},
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    catalog = {**SETTINGS["catalog"], "uri": f"sqlite:///{tmp_path}/catalog.db"}  # type: ignore[dict-item]
    with running_broker(tmp_path / "data", {**SETTINGS, "catalog": catalog}) as running:
        yield running


def result(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(PATIENCE_S)


def code_of(futures: dict[Any, Any]) -> int:
    """The error of the one thing that was asked for."""
    with pytest.raises(KafkaException) as caught:
        result(futures)
    code: int = caught.value.args[0].code()
    return code


def message_of(futures: dict[Any, Any]) -> str:
    with pytest.raises(KafkaException) as caught:
        result(futures)
    return str(caught.value.args[0].str())


class TestCreate:
    def test_with_settings(self, broker: RunningBroker) -> None:
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
        result(admin(broker.address).create_topics([NewTopic("ns.t", 2, 1, config=config)]))
        topic = broker.log.topic("ns.t")
        assert (topic.partitions, topic.config) == (2, config)

    @pytest.mark.parametrize("factor", [-1, 1, 3])
    def test_replication_factors_that_are_taken(self, broker: RunningBroker, factor: int) -> None:
        result(admin(broker.address).create_topics([NewTopic("t", 1, factor)]))

    def test_partitions_of_the_broker(self, broker: RunningBroker) -> None:
        result(admin(broker.address).create_topics([NewTopic("t", -1, -1)]))
        assert broker.log.topic("t").partitions == 3

    def test_assignment(self, broker: RunningBroker) -> None:
        client = admin(broker.address)
        result(client.create_topics([NewTopic("t", 2, replica_assignment=[[1], [1]])]))
        assert broker.log.topic("t").partitions == 2
        refused = client.create_topics([NewTopic("u", 1, replica_assignment=[[2]])])
        assert (
            message_of(refused) == "topic 'u': a partition is assigned to the brokers [2]; the only one is 1"
        )

    @pytest.mark.parametrize(
        ("topic", "code"),
        [
            (NewTopic("t", 1, 2), KafkaError.INVALID_REPLICATION_FACTOR),
            (NewTopic("t", 20_000, 1), KafkaError.INVALID_PARTITIONS),
            (NewTopic("a b", 1, 1), KafkaError.TOPIC_EXCEPTION),
            (NewTopic("__lastword_x", 1, 1), KafkaError.TOPIC_EXCEPTION),
            (NewTopic("there", 1, 1), KafkaError.TOPIC_ALREADY_EXISTS),
            (NewTopic("t", 1, 1, config={"cleanup.policy": "sometimes"}), KafkaError.INVALID_CONFIG),
            (NewTopic("t", 1, 1, config={"clean.policy": "compact"}), KafkaError.INVALID_CONFIG),
        ],
    )
    @pytest.mark.parametrize("is_trial", [False, True])
    def test_refused(self, broker: RunningBroker, topic: NewTopic, code: int, is_trial: bool) -> None:
        create_topic(broker.address, "there")
        assert code_of(admin(broker.address).create_topics([topic], validate_only=is_trial)) == code
        assert broker.log.topics() == ["there"]

    def test_error_says_what_is_allowed(self, broker: RunningBroker) -> None:
        asked = admin(broker.address).create_topics([NewTopic("t", 1, 1, config={"null.key": "eat"})])
        assert message_of(asked) == "topic 't': null.key is 'eat'; allowed: `keep` or `reject`"

    def test_trial_creates_nothing(self, broker: RunningBroker) -> None:
        result(admin(broker.address).create_topics([NewTopic("t", 1, 1)], validate_only=True))
        assert broker.log.topics() == []

    def test_some_of_several(self, broker: RunningBroker) -> None:
        futures = admin(broker.address).create_topics([NewTopic("good", 1, 1), NewTopic("b a d", 1, 1)])
        assert futures["good"].result(PATIENCE_S) is None
        with pytest.raises(KafkaException):
            futures["b a d"].result(PATIENCE_S)
        assert broker.log.topics() == ["good"]

    def test_the_same_name_twice(self, broker: RunningBroker) -> None:
        topic = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        with RawClient(broker.address) as raw:
            answer = raw.ask(CreateTopicsRequest(topics=[topic, topic]), CreateTopicsResponse, 7)
        assert [each.error_code for each in answer.topics] == [42, 42]
        assert broker.log.topics() == []

    def test_kafka_python(self, broker: RunningBroker) -> None:
        python = KafkaAdminClient(bootstrap_servers=broker.address)
        created = python.create_topics({"t": {"num_partitions": 2, "configs": {"cleanup.policy": "compact"}}})
        assert created["topics"][0]["topic_id"] == str(broker.log.topic("t").id)
        described = python.describe_topics(["t"])
        assert len(described[0]["partitions"]) == 2
        python.delete_topics(["t"])
        assert broker.log.topics() == []
        python.close()


class TestDelete:
    def test_by_name(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        client = admin(broker.address)
        result(client.delete_topics(["t"]))
        with pytest.raises(UnknownTopicError):
            broker.log.topic("t")
        assert code_of(client.delete_topics(["t"])) == KafkaError.UNKNOWN_TOPIC_OR_PART

    @pytest.mark.parametrize(
        ("by_name", "by_id", "code"),
        [(False, True, 0), (True, True, 42), (False, False, 42), (False, None, 100)],
    )
    def test_by_id(self, broker: RunningBroker, by_name: bool, by_id: bool | None, code: int) -> None:
        create_topic(broker.address, "t")
        topic_id = UUID(int=5) if by_id is None else broker.log.topic("t").id if by_id else UUID(int=0)
        wanted = DeleteTopicsRequest.DeleteTopicState(name="t" if by_name else None, topic_id=topic_id)
        with RawClient(broker.address) as raw:
            answer = raw.ask(DeleteTopicsRequest(topics=[wanted], timeout_ms=1), DeleteTopicsResponse, 6)
        (found,) = answer.responses
        assert found.error_code == code
        assert broker.log.topics() == ([] if code == 0 else ["t"])
        assert code or found.name == "t"


class TestPartitions:
    def test_more(self, broker: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
        create_topic(broker.address, "t", 1, cleanup_policy="compact")
        with caplog.at_level(logging.WARNING):
            result(admin(broker.address).create_partitions([NewPartitions("t", 4)]))
        assert broker.log.topic("t").partitions == 4
        assert "t is compacted and has 4 partitions now" in caplog.text

    def test_trial(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", 1)
        result(admin(broker.address).create_partitions([NewPartitions("t", 4)], validate_only=True))
        assert broker.log.topic("t").partitions == 1

    @pytest.mark.parametrize(
        ("name", "count", "assignment", "code"),
        [
            ("t", 2, None, KafkaError.INVALID_PARTITIONS),
            ("t", 1, None, KafkaError.INVALID_PARTITIONS),
            ("t", 20_000, None, KafkaError.INVALID_PARTITIONS),
            ("u", 4, None, KafkaError.UNKNOWN_TOPIC_OR_PART),
            ("t", 3, [[9]], KafkaError.INVALID_REPLICA_ASSIGNMENT),
        ],
    )
    def test_refused(
        self, broker: RunningBroker, name: str, count: int, assignment: list[list[int]] | None, code: int
    ) -> None:
        create_topic(broker.address, "t", 2)
        wanted = NewPartitions(name, count, **({"replica_assignment": assignment} if assignment else {}))
        assert code_of(admin(broker.address).create_partitions([wanted])) == code
        assert broker.log.topic("t").partitions == 2


def topic_config(broker: RunningBroker, name: str) -> dict[str, Any]:
    found: dict[str, Any] = result(
        admin(broker.address).describe_configs([ConfigResource(Resource.TOPIC, name)])
    )
    return found


class TestDescribeConfigs:
    def test_topic(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", cleanup_policy="compact")
        found = topic_config(broker, "t")
        assert set(found) == {setting.key for setting in TOPIC_SETTINGS} | set(KAFKA_SETTINGS)
        policy, retention, segment = (
            found[key] for key in ("cleanup.policy", "retention.ms", "segment.bytes")
        )
        assert (policy.value, policy.source) == ("compact", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
        assert not policy.is_read_only and not policy.is_default
        assert (retention.value, retention.source) == ("1234567", ConfigSource.STATIC_BROKER_CONFIG.value)
        assert (segment.value, segment.source) == ("1073741824", ConfigSource.DEFAULT_CONFIG.value)
        assert segment.is_default
        assert found["compaction.strategy.header"].value is None

    def test_every_level_is_shown(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "ns.t", retention_ms="99")
        python = KafkaAdminClient(bootstrap_servers=broker.address)
        found = python.describe_configs(
            [PythonConfigResource(ConfigResourceType.TOPIC, "ns.t")],
            include_synonyms=True,
            config_filter="all",
        )
        retention = found["topic"]["ns.t"]["retention.ms"]
        assert [each["value"] for each in retention["synonyms"]] == ["99", "7654321", "1234567", "604800000"]
        assert retention["config_type"] == "LONG"
        python.close()

    def test_broker(self, broker: RunningBroker) -> None:
        found = result(admin(broker.address).describe_configs([ConfigResource(Resource.BROKER, "1")]))
        assert {setting.key for setting in BROKER_SETTINGS} <= set(found)
        assert found["num.partitions"].value == "3"
        assert {name for name, each in found.items() if not each.is_read_only} == {
            *ALTERABLE,
            "advertised.listeners",
        }
        secret = found["catalog.password"]
        assert (secret.value, secret.is_sensitive) == (None, True)

    def test_unknown_ones(self, broker: RunningBroker) -> None:
        client = admin(broker.address)
        unknown = client.describe_configs([ConfigResource(Resource.TOPIC, "nope")])
        assert code_of(unknown) == KafkaError.UNKNOWN_TOPIC_OR_PART

    @pytest.mark.parametrize(
        ("kind", "name", "message"),
        [
            (4, "7", "There is no broker '7'; the only broker is 1."),
            (8, "1", "Resources of type 8 have no settings here; 2 (topic) and 4 (broker) do."),
        ],
    )
    def test_other_resources(self, broker: RunningBroker, kind: int, name: str, message: str) -> None:
        wanted = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        with RawClient(broker.address) as raw:
            answer = raw.ask(DescribeConfigsRequest(resources=[wanted]), DescribeConfigsResponse, 4)
        (found,) = answer.results
        assert (found.error_code, found.error_message, found.configs) == (42, message, [])

    def test_some_keys_with_documentation(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        wanted = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=2, resource_name="t", configuration_keys=["segment.ms", "nope"]
        )
        request = DescribeConfigsRequest(resources=[wanted], include_documentation=True)
        with RawClient(broker.address) as raw:
            answer = raw.ask(request, DescribeConfigsResponse, 4)
        (config,) = answer.results[0].configs
        assert (config.name, config.documentation) == ("segment.ms", "age at which a WAL file is rolled")

    def test_internal_topic_is_read_only(self, broker: RunningBroker) -> None:
        broker.log.internal_topic("__lastword_groups")
        found = topic_config(broker, "__lastword_groups")
        assert found["cleanup.policy"].value == "compact"
        assert all(each.is_read_only for each in found.values())


def change(name: str, *entries: tuple[str, str | None, AlterConfigOpType], broker: bool = False) -> Any:
    return ConfigResource(
        Resource.BROKER if broker else Resource.TOPIC,
        name,
        incremental_configs=[
            ConfigEntry(key, value, incremental_operation=operation) for key, value, operation in entries
        ],
    )


SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE
APPEND, SUBTRACT = AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT


class TestAlterConfigs:
    def test_set_and_delete(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", cleanup_policy="compact", retention_ms="5")
        client = admin(broker.address)
        changes = change("t", ("segment.bytes", "1000000", SET), ("retention.ms", None, DELETE))
        result(client.incremental_alter_configs([changes]))
        assert broker.log.topic("t").config == {"cleanup.policy": "compact", "segment.bytes": "1000000"}
        # What is not there can be deleted all the same.
        result(client.incremental_alter_configs([change("t", ("retention.ms", None, DELETE))]))

    def test_lists(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        client = admin(broker.address)
        result(client.incremental_alter_configs([change("t", ("cleanup.policy", "compact", APPEND))]))
        assert broker.log.topic("t").config["cleanup.policy"] == "compact,delete"
        result(client.incremental_alter_configs([change("t", ("cleanup.policy", "delete", SUBTRACT))]))
        assert broker.log.topic("t").config["cleanup.policy"] == "compact"

    @pytest.mark.parametrize(
        ("entry", "code"),
        [
            (("cleanup.policy", "compact", SUBTRACT), KafkaError.INVALID_CONFIG),
            (("segment.bytes", "1", APPEND), KafkaError.INVALID_CONFIG),
            (("segment.bytes", "many", SET), KafkaError.INVALID_CONFIG),
            (("segmented.bytes", "1", SET), KafkaError.INVALID_CONFIG),
            (("segmented.bytes", None, DELETE), KafkaError.INVALID_CONFIG),
            (("wal.sync", "none", SET), KafkaError.INVALID_CONFIG),
            (("min.compaction.lag.ms", "9000", SET), KafkaError.INVALID_CONFIG),
        ],
    )
    @pytest.mark.parametrize("is_trial", [False, True])
    def test_refused_and_nothing_is_changed(
        self, broker: RunningBroker, entry: Any, code: int, is_trial: bool
    ) -> None:
        create_topic(broker.address, "t", cleanup_policy="compact", max_compaction_lag_ms="8000")
        before = dict(broker.log.topic("t").config)
        asked = admin(broker.address).incremental_alter_configs(
            [change("t", ("retention.ms", "1", SET), entry)], validate_only=is_trial
        )
        assert code_of(asked) == code
        assert broker.log.topic("t").config == before

    def test_trial_changes_nothing(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        changes = change("t", ("retention.ms", "1", SET))
        result(admin(broker.address).incremental_alter_configs([changes], validate_only=True))
        assert broker.log.topic("t").config == {}

    def test_old_way_replaces_all(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", cleanup_policy="compact", retention_ms="5")
        with pytest.warns(DeprecationWarning):
            asked = admin(broker.address).alter_configs(
                [ConfigResource(Resource.TOPIC, "t", set_config={"segment.bytes": "1000000"})]
            )
        result(asked)
        assert broker.log.topic("t").config == {"segment.bytes": "1000000"}

    def test_changes_at_the_same_time_are_all_kept(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", cleanup_policy="compact")
        keys = ["retention.ms", "retention.bytes", "delete.retention.ms", "segment.ms", "segment.bytes"]
        clients = [admin(broker.address) for _ in keys]
        for value in range(1_000_000, 1_000_005):
            # At the server at the same time, each on a connection of its own; and one that is not Kafka's.
            asked = [
                client.incremental_alter_configs([change("t", (key, str(value), SET))])
                for client, key in zip(clients, keys, strict=True)
            ]
            broker.log.alter_topic("t", set_config={"min.compaction.lag.ms": value})
            for each in asked:
                result(each)
            expected = dict.fromkeys([*keys, "min.compaction.lag.ms"], str(value))
            assert broker.log.topic("t").config == {"cleanup.policy": "compact", **expected}


def alter_broker(broker: RunningBroker, *changes: tuple[str, str | None], name: str = "1") -> tuple[int, str]:
    """Set settings of the broker, or with None take them back; the error code and its text."""
    resource_class = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        resource_class.AlterableConfig(name=key, config_operation=0 if value is not None else 1, value=value)
        for key, value in changes
    ]
    wanted = resource_class(resource_type=4, resource_name=name, configs=configs)
    with RawClient(broker.address) as raw:
        request = IncrementalAlterConfigsRequest(resources=[wanted], validate_only=False)
        (found,) = raw.ask(request, IncrementalAlterConfigsResponse, 1).responses
    return found.error_code, found.error_message or ""


def place(broker: RunningBroker) -> tuple[str, int]:
    """Where clients are told to connect to."""
    with RawClient(broker.address) as raw:
        (node,) = raw.ask(MetadataRequest(topics=[]), MetadataResponse, 9).brokers
    return node.host, node.port


class TestAlterBroker:
    def test_advertised_listeners_as_a_client_changes_them(self, broker: RunningBroker) -> None:
        client = admin(broker.address)
        port = broker.port
        entry = ConfigEntry(
            "advertised.listeners", f"PLAINTEXT://localhost:{port}", incremental_operation=SET
        )
        result(
            client.incremental_alter_configs(
                [ConfigResource(Resource.BROKER, "1", incremental_configs=[entry])]
            )
        )
        assert place(broker) == ("localhost", port)
        found = result(client.describe_configs([ConfigResource(Resource.BROKER, "1")]))
        assert found["advertised.listeners"].value == f"PLAINTEXT://localhost:{port}"
        assert found["kafka.advertised"].value == f"localhost:{port}"
        assert found["advertised.listeners"].source == ConfigSource.DYNAMIC_BROKER_CONFIG.value
        assert alter_broker(broker, ("advertised.listeners", None)) == (0, "")
        assert place(broker) == ("127.0.0.1", port)

    @pytest.mark.parametrize(
        ("name", "value", "code", "message"),
        [
            ("advertised.listeners", "localhost:9", 42, "PLAINTEXT://HOST:PORT is allowed"),
            ("advertised.listeners", "SSL://localhost:9", 42, "PLAINTEXT://HOST:PORT is allowed"),
            ("advertised.listeners", "PLAINTEXT://a:1,PLAINTEXT://b:2", 42, "there is one listener"),
            ("advertised.listeners", "PLAINTEXT://localhost:0", 42, "clients need a port"),
            ("kafka.advertised", "localhost", 42, "allowed: `HOST:PORT`"),
            ("max.connections", "0", 42, "max.connections is '0'; allowed"),
            ("wal.sync", "none", 42, "wal.sync can't be changed while the broker runs; auto.create"),
            ("retention.ms", "5", 42, "retention.ms can't be changed while the broker runs"),
            ("max.conections", "5", 40, "unknown setting 'max.conections'; did you mean"),
        ],
    )
    def test_refused_and_nothing_is_changed(
        self, broker: RunningBroker, name: str, value: str, code: int, message: str
    ) -> None:
        found, text = alter_broker(broker, ("num.partitions", "5"), (name, value))
        assert found == code and message in text
        assert broker.broker.node.config.num_partitions == 3
        assert not (broker.log.path / "broker.settings.json").exists()

    def test_what_is_changed_holds_at_once_and_after_a_restart(self, tmp_path: Path) -> None:
        with running_broker(tmp_path / "data") as broker:
            assert alter_broker(broker, ("num.partitions", "5"), ("auto.create.topics.enable", "true")) == (
                0,
                "",
            )
            assert alter_broker(broker, ("num.partitions", "7"), name="") == (0, "")
            produce(broker.address, "first", ["a"])
            assert broker.log.topic("first").partitions == 5
            assert alter_broker(broker, ("num.partitions", None)) == (0, "")
            produce(broker.address, "second", ["a"])
            assert broker.log.topic("second").partitions == 7
            (shown,) = [each for each in broker.log.config.explain() if each.key == "num.partitions"]
            assert shown.value == "7" and "broker.settings.json" in str(shown.where)
        with running_broker(tmp_path / "data") as broker:
            produce(broker.address, "third", ["a"])
            assert broker.log.topic("third").partitions == 7

    def test_a_limit_holds_for_the_next_connection(self, broker: RunningBroker) -> None:
        with RawClient(broker.address) as first:
            assert alter_broker(broker, ("max.connections", "1")) == (0, "")
            wait_until(lambda: broker.connections == 1, "the one that changed it is gone")
            # Closed before or after its request has come.
            refused = pytest.raises((AssertionError, ConnectionError), match=r"closed|reset|Broken pipe")
            with RawClient(broker.address) as second, refused:
                second.ask(MetadataRequest(topics=[]), MetadataResponse, 9)
            assert first.ask(MetadataRequest(topics=[]), MetadataResponse, 9).brokers

    def test_a_damaged_file_keeps_nobody_from_starting(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with running_broker(tmp_path / "data") as broker:
            assert alter_broker(broker, ("num.partitions", "5")) == (0, "")
        (tmp_path / "data" / "broker.settings.json").write_text("{")
        with running_broker(tmp_path / "data") as broker:
            assert broker.broker.node.config.num_partitions == 1
        assert "settings that clients have changed can't be read from" in caplog.text

    def test_old_way_replaces_all_and_takes_back_what_is_not_sent(self, broker: RunningBroker) -> None:
        """A client that reads, changes and sends all of them sends those that can't be changed, too."""
        client = admin(broker.address)
        assert alter_broker(broker, ("fetch.max.bytes", "2000000")) == (0, "")
        found = result(client.describe_configs([ConfigResource(Resource.BROKER, "1")]))
        sent = {
            name: "5" if name == "num.partitions" else each.value
            for name, each in found.items()
            if each.value is not None and name not in ("fetch.max.bytes", "advertised.listeners")
        }
        with pytest.warns(DeprecationWarning):
            asked = client.alter_configs([ConfigResource(Resource.BROKER, "1", set_config=sent)])
        result(asked)
        config = broker.broker.node.config
        assert (config.num_partitions, config.fetch_max_bytes) == (5, 57671680)


HARMLESS = {
    "min.insync.replicas": "1",
    "compression.type": "zstd",
    "unclean.leader.election.enable": "true",
    "flush.messages": "1",
    "flush.ms": "1000",
    "segment.jitter.ms": "5",
    "remote.storage.enable": "true",
}


class TestKafkasOwnSettings:
    """Settings that tools set as a matter of course and that mean nothing here."""

    def test_taken_and_shown_as_what_holds(self, broker: RunningBroker) -> None:
        client = admin(broker.address)
        result(client.create_topics([NewTopic("t", 1, 1, config={**HARMLESS, "retention.ms": "5"})]))
        entries = [(name, value, SET) for name, value in HARMLESS.items()]
        result(client.incremental_alter_configs([change("t", *entries)]))
        result(client.incremental_alter_configs([change("t", ("compression.type", None, DELETE))]))
        assert broker.log.topic("t").config == {"retention.ms": "5"}
        found = topic_config(broker, "t")
        shown = {name: found[name].value for name in HARMLESS}
        assert shown == {
            "min.insync.replicas": "1",
            "compression.type": "producer",
            "unclean.leader.election.enable": "false",
            "flush.messages": "1",
            "flush.ms": str(2**63 - 1),
            "segment.jitter.ms": "0",
            "remote.storage.enable": "true",
        }
        assert all(found[name].is_read_only for name in HARMLESS)

    def test_what_was_described_can_be_sent_back(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", cleanup_policy="compact")
        everything = {name: each.value for name, each in topic_config(broker, "t").items() if each.value}
        with pytest.warns(DeprecationWarning):
            asked = admin(broker.address).alter_configs(
                [ConfigResource(Resource.TOPIC, "t", set_config=everything)]
            )
        result(asked)
        assert broker.log.topic("t").settings.compacts

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("min.insync.replicas", "2", "there is one broker"),
            ("min.insync.replicas", "0", "allowed: a whole number from 1"),
            ("compression.type", "best", "allowed: `producer`"),
            ("remote.storage.enable", "false", "always in the warehouse"),
        ],
    )
    def test_refused(self, broker: RunningBroker, name: str, value: str, message: str) -> None:
        client = admin(broker.address)
        new = NewTopic("t", 1, 1, config={name: value})
        assert message in message_of(client.create_topics([new]))
        assert message in message_of(client.create_topics([new], validate_only=True))
        create_topic(broker.address, "t")
        assert message in message_of(client.incremental_alter_configs([change("t", (name, value, SET))]))


class TestCluster:
    def test_describe(self, broker: RunningBroker) -> None:
        found = admin(broker.address).describe_cluster().result(PATIENCE_S)
        assert [(node.id, node.host, node.port) for node in found.nodes] == [(1, "127.0.0.1", broker.port)]
        assert found.controller.id == 1
        assert found.cluster_id == broker.broker.node.cluster_id

    def test_authorized_operations_of_everything(self, broker: RunningBroker) -> None:
        """Without access control everybody may do everything, and clients that ask are told so."""
        client = admin(broker.address)
        create_topic(broker.address, "t")
        produce(broker.address, "t", ["a"])
        with member(broker.address, "g", "t") as consumer:
            wait_until(lambda: consumer.poll(0.1) is not None, "a record has come")
            (topic,) = client.describe_topics(
                TopicCollection(["t"]), include_authorized_operations=True
            ).values()
            assert {each.name for each in topic.result(PATIENCE_S).authorized_operations} == {
                *(
                    "READ",
                    "WRITE",
                    "CREATE",
                    "DELETE",
                    "ALTER",
                    "DESCRIBE",
                    "DESCRIBE_CONFIGS",
                    "ALTER_CONFIGS",
                )
            }
            (group,) = client.describe_consumer_groups(["g"], include_authorized_operations=True).values()
            assert {each.name for each in group.result(PATIENCE_S).authorized_operations} == {
                *("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
            }
        cluster = client.describe_cluster(include_authorized_operations=True).result(PATIENCE_S)
        assert {each.name for each in cluster.authorized_operations} == {
            *("CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
            "IDEMPOTENT_WRITE",
        }

    def test_where_it_listens_at_all_addresses_clients_are_told_the_one_that_they_reached(
        self, tmp_path: Path
    ) -> None:
        class ListensEverywhere(RunningBroker):
            async def _start(self) -> Broker:
                broker = Broker(self.log, host="0.0.0.0", port=0)
                await broker.start()
                return broker

        with (
            lastword.open(tmp_path / "everywhere") as log,
            ListensEverywhere(log) as broker,
            RawClient(f"127.0.0.2:{broker.port}") as client,
        ):
            (node,) = client.ask(MetadataRequest(topics=[]), MetadataResponse, 9).brokers
            assert (node.host, node.port) == ("127.0.0.2", broker.port)
            found = client.ask(FindCoordinatorRequest(key="g", key_type=0), FindCoordinatorResponse, 3)
            assert (found.host, found.port) == ("127.0.0.2", broker.port)
            (node,) = client.ask(DescribeClusterRequest(), DescribeClusterResponse, 0).brokers
            assert (node.host, node.port) == ("127.0.0.2", broker.port)

    def test_no_access_control(self, broker: RunningBroker) -> None:
        everything = DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        with RawClient(broker.address) as raw:
            answer = raw.ask(everything, DescribeAclsResponse, 3)
        assert answer.error_code == KafkaError.SECURITY_DISABLED

    def test_partitions_page_by_page(self, broker: RunningBroker) -> None:
        for name in ("a", "b", "c"):
            create_topic(broker.address, name, 3)
        wanted = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in ("c", "a", "b", "none")]
        seen: list[tuple[str, int]] = []
        errors: dict[str, int] = {}
        cursor = None
        with RawClient(broker.address) as raw:
            for _ in range(10):
                request = DescribeTopicPartitionsRequest(
                    topics=wanted, response_partition_limit=2, cursor=cursor
                )
                answer = raw.ask(request, DescribeTopicPartitionsResponse, 0)
                for topic in answer.topics:
                    errors[topic.name] = topic.error_code
                    seen += [(topic.name, each.partition_index) for each in topic.partitions]
                if answer.next_cursor is None:
                    break
                cursor = DescribeTopicPartitionsRequest.Cursor(
                    topic_name=answer.next_cursor.topic_name,
                    partition_index=answer.next_cursor.partition_index,
                )
        assert seen == [(name, index) for name in "abc" for index in range(3)]
        assert errors == {"a": 0, "b": 0, "c": 0, "none": 3}

    def test_log_dirs(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", 2)
        broker.log.topic("t").append("k", "v" * 1000, partition=1)
        python = KafkaAdminClient(bootstrap_servers=broker.address)
        (described,) = python.describe_log_dirs()
        (folder,) = described["log_dirs"]
        assert folder["log_dir"] == str(broker.log.path / "wal")
        sizes = {
            (topic["name"], each["partition_index"]): each["partition_size"]
            for topic in folder["topics"]
            for each in topic["partitions"]
        }
        assert sizes["t", 0] == 0
        assert sizes["t", 1] > 1000
        assert folder["total_bytes"] >= folder["usable_bytes"] > 0
        python.close()
