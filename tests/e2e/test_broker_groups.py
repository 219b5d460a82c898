"""Consumer groups with real clients: rebalances, static members, offsets that outlive the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition
from kafka.structs import OffsetAndMetadata
from tests.support.broker import RunningBroker, running_broker
from tests.support.broker_child import BrokerProcess
from tests.support.kafka_clients import (
    LEAVES_SOCKETS,
    PATIENCE_S,
    admin,
    collected,  # noqa: F401
    commit,
    committed,
    create_topic,
    member,
    partitions_of,
    poll_until,
    produce,
    python_member,
)
from tests.support.waiting import wait_until

from lastword.broker.groups.group import Group, State
from lastword.broker.groups.handlers import GroupHandlers
from lastword.broker.groups.replay import GROUPS_TOPIC

pytestmark = LEAVES_SOCKETS

NOW = {"group.initial.rebalance.delay.ms": 0}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data", NOW) as running:
        yield running


def group_of(broker: RunningBroker, group_id: str = "g") -> Group:
    (handlers,) = [each for each in broker.broker._groups if isinstance(each, GroupHandlers)]
    group = broker.on_loop(lambda: handlers.service.group(group_id))
    assert group is not None
    return group


class TestRebalance:
    def test_two_members_share_and_one_takes_over(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", 4)
        with member(broker.address, "g", "t") as first:
            poll_until(lambda: partitions_of(first) == [0, 1, 2, 3], "the first has all", first)
            with member(broker.address, "g", "t") as second:
                poll_until(
                    lambda: len(partitions_of(first)) == len(partitions_of(second)) == 2,
                    "they share",
                    first,
                    second,
                )
                assert sorted(partitions_of(first) + partitions_of(second)) == [0, 1, 2, 3]
            poll_until(lambda: partitions_of(first) == [0, 1, 2, 3], "the first has all again", first)
        wait_until(lambda: group_of(broker).state is State.EMPTY, "nobody is left")

    def test_cooperative_members(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", 4)
        cooperative = {"partition.assignment.strategy": "cooperative-sticky"}
        with (
            member(broker.address, "g", "t", cooperative) as first,
            member(broker.address, "g", "t", cooperative) as second,
        ):
            poll_until(
                lambda: (
                    sorted(partitions_of(first) + partitions_of(second)) == [0, 1, 2, 3]
                    and len(partitions_of(first)) == 2
                ),
                "they share",
                first,
                second,
            )

    def test_every_record_is_read_once_around_a_rebalance(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", 2)
        for partition in (0, 1):
            produce(broker.address, "t", [f"{partition}-{n}" for n in range(50)], partition=partition)
        seen: list[str] = []
        with member(broker.address, "g", "t") as first:
            seen += poll_until(lambda: len(partitions_of(first)) == 2, "the first has all", first)
            while len(seen) < 60:
                seen += poll_until(lambda: True, "one more", first)
            first.commit(asynchronous=False)
        with member(broker.address, "g", "t") as second:
            while len(seen) < 100:
                seen += poll_until(lambda: True, "one more", second)
        assert sorted(seen) == sorted(f"{partition}-{n}" for partition in (0, 1) for n in range(50))

    def test_member_that_dies_is_replaced(self, tmp_path: Path) -> None:
        settings = {**NOW, "group.min.session.timeout.ms": 500}
        with running_broker(tmp_path / "data", settings) as broker:
            create_topic(broker.address, "t", 2)
            dying = Consumer(
                {
                    "bootstrap.servers": broker.address,
                    "group.id": "g",
                    "session.timeout.ms": 1000,
                    "heartbeat.interval.ms": 100,
                    "max.poll.interval.ms": 1000,
                    "log_level": 0,
                }
            )
            dying.subscribe(["t"])
            poll_until(lambda: len(partitions_of(dying)) == 2, "it has all", dying)
            # From now on it does not poll, so librdkafka leaves the group for it.
            with member(broker.address, "g", "t") as other:
                poll_until(lambda: partitions_of(other) == [0, 1], "the other has all", other)
            dying.close()

    def test_kafka_python(self, broker: RunningBroker, request: pytest.FixtureRequest) -> None:
        create_topic(broker.address, "t", 2)
        produce(broker.address, "t", ["a", "b"], partition=0)

        def consumer() -> KafkaConsumer:
            made = python_member(broker.address, "g", "t", heartbeat_interval_ms=200, session_timeout_ms=6000)
            # Also if this test fails: its threads would talk in all those after it.
            request.addfinalizer(made.close)
            return made

        first = consumer()
        values: list[bytes] = []

        def read(*consumers: KafkaConsumer) -> None:
            for each in consumers:
                # It forgets a rebalance that one short poll did not complete.
                for records in each.poll(timeout_ms=1000).values():
                    values.extend(record.value for record in records)

        def has_read_both() -> bool:
            read(first)
            return values == [b"a", b"b"]

        wait_until(has_read_both, "both records are read")
        first.commit()
        second = consumer()

        def share() -> bool:
            read(first, second)
            return len(first.assignment()) == len(second.assignment()) == 1

        wait_until(share, "they share")
        first.close()
        second.close()
        assert first.config["group_id"] == "g"
        with member(broker.address, "g", "t") as after:
            assert committed(after, "t", 0, 1) == [2, 0] or committed(after, "t", 0) == [2]

    def test_aiokafka(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", 2)
        produce(broker.address, "t", ["a", "b"], partition=1)

        def consumer() -> AIOKafkaConsumer:
            return AIOKafkaConsumer(
                "t",
                bootstrap_servers=broker.address,
                group_id="g",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=200,
                session_timeout_ms=6000,
            )

        async def run() -> None:
            first = consumer()
            await first.start()
            assert [(await first.getone()).value, (await first.getone()).value] == [b"a", b"b"]
            await first.commit()
            second = consumer()
            await second.start()
            async with asyncio.timeout(PATIENCE_S):
                while not len(first.assignment()) == len(second.assignment()) == 1:
                    await asyncio.sleep(0.02)
            await first.stop()
            async with asyncio.timeout(PATIENCE_S):
                while len(second.assignment()) != 2:
                    await asyncio.sleep(0.02)
            assert await second.committed(AioTopicPartition("t", 1)) == 2
            await second.stop()

        asyncio.run(run())


class TestStaticMembers:
    def test_restart_without_a_rebalance(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", 4)
        with member(broker.address, "g", "t", {"group.instance.id": "a"}) as first:
            with member(broker.address, "g", "t", {"group.instance.id": "b"}) as second:
                poll_until(
                    lambda: len(partitions_of(first)) == len(partitions_of(second)) == 2,
                    "they share",
                    first,
                    second,
                )
                generation, mine = group_of(broker).generation, partitions_of(second)
                others = partitions_of(first)
            # A static member does not leave when it is closed.
            assert group_of(broker).state is State.STABLE
            with member(broker.address, "g", "t", {"group.instance.id": "b"}) as second:
                poll_until(lambda: partitions_of(second) == mine, "it has its partitions again", second)
                assert partitions_of(first) == others
                assert group_of(broker).generation == generation
                assert group_of(broker).state is State.STABLE

    def test_two_with_one_instance_id(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        errors: list[KafkaError] = []
        with member(broker.address, "g", "t", {"group.instance.id": "a", "error_cb": errors.append}) as first:
            poll_until(lambda: partitions_of(first) == [0], "the first has it", first)
            with member(broker.address, "g", "t", {"group.instance.id": "a"}) as second:
                poll_until(lambda: partitions_of(second) == [0], "the second has it", second)
                codes: set[int] = set()

                def is_fenced() -> bool:
                    try:
                        message = first.poll(0.02)
                    except KafkaException as error:
                        codes.add(error.args[0].code())
                    else:
                        if message is not None and message.error() is not None:
                            codes.add(message.error().code())
                    codes.update(error.code() for error in errors)
                    second.poll(0.02)
                    return bool(codes & {KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL})

                wait_until(is_fenced, "the first is told")


class TestOffsets:
    def test_commit_and_metadata(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", 2)
        with member(broker.address, "g", "t") as consumer:
            poll_until(lambda: len(partitions_of(consumer)) == 2, "it has all", consumer)
            commit(consumer, "t", 0, 17, "my notes")
            assert committed(consumer, "t", 0, 1) == [17, -1001]
            (found,) = consumer.committed([TopicPartition("t", 0)], PATIENCE_S)
            assert found.metadata == "my notes"

    def test_metadata_that_is_too_long(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        with member(broker.address, "g", "t") as consumer:
            poll_until(lambda: partitions_of(consumer) == [0], "it has it", consumer)
            with pytest.raises(KafkaException) as caught:
                commit(consumer, "t", 0, 1, "x" * 4097)
            assert caught.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE

    def test_consumer_that_assigns_itself(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        python = KafkaConsumer(bootstrap_servers=broker.address, group_id="alone", enable_auto_commit=False)
        where = PythonTopicPartition("t", 0)
        python.assign([where])
        python.commit({where: OffsetAndMetadata(3, "", -1)})
        assert python.committed(where) == 3
        python.close()
        assert group_of(broker, "alone").state is State.EMPTY

    def test_unknown_topic(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
        with pytest.raises(KafkaException) as caught:
            consumer.commit(offsets=[TopicPartition("t", 7, 1)], asynchronous=False)
        assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        consumer.close()

    def test_topic_that_is_deleted_and_created_again_has_none(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
        commit(consumer, "t", 0, 5)
        (deleted,) = admin(broker.address).delete_topics(["t"]).values()
        deleted.result(PATIENCE_S)
        create_topic(broker.address, "t")
        assert committed(consumer, "t", 0) == [-1001]
        commit(consumer, "t", 0, 2)
        assert committed(consumer, "t", 0) == [2]
        consumer.close()

    def test_all_offsets_of_a_group(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", 2)
        create_topic(broker.address, "u")
        client = admin(broker.address)
        wanted = [TopicPartition("t", 1, 9), TopicPartition("u", 0, 4)]
        (altered,) = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions("g", wanted)]).values()
        altered.result(PATIENCE_S)
        (listed,) = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions("g")]).values()
        found = listed.result(PATIENCE_S).topic_partitions
        assert sorted((each.topic, each.partition, each.offset) for each in found) == [
            ("t", 1, 9),
            ("u", 0, 4),
        ]
        python = KafkaAdminClient(bootstrap_servers=broker.address)
        assert {
            (where.topic, where.partition): each.offset
            for where, each in python.list_group_offsets(["g"])["g"].items()
        } == {("t", 1): 9, ("u", 0): 4}
        python.close()


class TestGroupsAsSuch:
    def test_list_describe_delete(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", 2)
        client = admin(broker.address)
        with member(broker.address, "g", "t", {"client.id": "me"}) as consumer:
            poll_until(lambda: len(partitions_of(consumer)) == 2, "it has all", consumer)
            commit(consumer, "t", 0, 5)
            listed = client.list_consumer_groups().result(PATIENCE_S)
            assert [(each.group_id, each.state, each.is_simple_consumer_group) for each in listed.valid] == [
                ("g", ConsumerGroupState.STABLE, False)
            ]
            described = client.describe_consumer_groups(["g"])["g"].result(PATIENCE_S)
            assert described.state is ConsumerGroupState.STABLE
            assert described.partition_assignor == "range"
            (only,) = described.members
            assert (only.client_id, only.host) == ("me", "/127.0.0.1")
            assert sorted(each.partition for each in only.assignment.topic_partitions) == [0, 1]
            with pytest.raises(KafkaException) as caught:
                client.delete_consumer_groups(["g"])["g"].result(PATIENCE_S)
            assert caught.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
        client.delete_consumer_groups(["g"])["g"].result(PATIENCE_S)
        assert client.list_consumer_groups().result(PATIENCE_S).valid == []
        with pytest.raises(KafkaException) as caught:
            client.delete_consumer_groups(["g"])["g"].result(PATIENCE_S)
        assert caught.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND
        with member(broker.address, "g", "t") as consumer:
            assert committed(consumer, "t", 0) == [-1001]

    def test_list_by_state(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "empty", "log_level": 0})
        commit(consumer, "t", 0, 5)
        consumer.close()
        client = admin(broker.address)
        with member(broker.address, "g", "t") as consumer:
            poll_until(lambda: partitions_of(consumer) == [0], "it has it", consumer)
            for state, expected in (
                (ConsumerGroupState.STABLE, ["g"]),
                (ConsumerGroupState.EMPTY, ["empty"]),
            ):
                found = client.list_consumer_groups(states={state}).result(PATIENCE_S)
                assert [each.group_id for each in found.valid] == expected

    def test_unknown_group_is_dead(self, broker: RunningBroker) -> None:
        found = admin(broker.address).describe_consumer_groups(["nobody"])["nobody"].result(PATIENCE_S)
        assert (found.state, found.members) == (ConsumerGroupState.DEAD, [])

    def test_kafka_python_describes_and_deletes(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        with member(broker.address, "g", "t") as consumer:
            poll_until(lambda: partitions_of(consumer) == [0], "it has it", consumer)
            python = KafkaAdminClient(bootstrap_servers=broker.address)
            described = python.describe_groups(["g"])
            assert described["g"]["group_state"] == "Stable"
            assert len(described["g"]["members"]) == 1
        python.delete_groups(["g"])
        assert [each["group_id"] for each in python.list_groups()] == []
        python.close()

    def test_offsets_of_topics_that_nobody_reads_can_be_deleted(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        create_topic(broker.address, "old")
        before = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
        commit(before, "old", 0, 5)
        before.close()
        python = KafkaAdminClient(bootstrap_servers=broker.address)
        with member(broker.address, "g", "t") as consumer:
            poll_until(lambda: partitions_of(consumer) == [0], "it has it", consumer)
            commit(consumer, "t", 0, 6)
            wanted = [PythonTopicPartition("t", 0), PythonTopicPartition("old", 0)]
            results = python.delete_group_offsets("g", wanted)
            codes = {where.topic: error.errno for where, error in results.items()}
            assert codes == {"t": 86, "old": 0}
            assert committed(consumer, "t", 0) == [6]
            assert committed(consumer, "old", 0) == [-1001]
        python.close()


class TestRestart:
    def test_members_and_offsets_outlive_a_restart(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path / "data", NOW) as broker:
            create_topic(broker.address, "t", 2)
            produce(broker.address, "t", ["a", "b", "c"])
            # A client gives itself up when it could not reach the broker for its session's time.
            with member(broker.address, "g", "t", {"session.timeout.ms": 60_000}) as consumer:
                seen: list[str] = []
                while len(seen) < 2:
                    seen += poll_until(lambda: True, "one more", consumer)
                commit(consumer, "t", 0, 2)
                described = admin(broker.address).describe_consumer_groups(["g"])["g"].result(PATIENCE_S)
                (before,) = [each.member_id for each in described.members]
                broker.stop()
                broker.start()
                produce(broker.address, "t", ["d"])
                while len(seen) < 4:
                    seen += poll_until(lambda: True, "the rest", consumer)
                assert seen == ["a", "b", "c", "d"]
                # librdkafka (2.16) goes on asking a coordinator that it has given up, if all brokers were away for long.
                admin.cache_clear()
                described = admin(broker.address).describe_consumer_groups(["g"])["g"].result(PATIENCE_S)
                assert [each.member_id for each in described.members] == [before]
                commit(consumer, "t", 0, 4)
            with member(broker.address, "g", "t") as after:
                assert committed(after, "t", 0, 1) == [4, -1001]

    @pytest.mark.parametrize("seals", [False, True])
    def test_offsets_that_were_acknowledged_outlive_kill_9(self, tmp_path: Path, seals: bool) -> None:
        with BrokerProcess(tmp_path / "data", {**NOW, "tiering.lag.ms": 0}) as broker:
            create_topic(broker.address, "t", 4)
            consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
            for offset in range(1, 51):
                commit(consumer, "t", offset % 4, offset)
            consumer.close()
            broker.kill()
            if seals:
                import lastword

                with lastword.open(tmp_path / "data", config={**NOW}) as log:
                    assert log.topic(GROUPS_TOPIC).seal().problems == ()
            broker.start()
            after = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
            assert committed(after, "t", 0, 1, 2, 3) == [48, 49, 50, 47]
            after.close()

    def test_group_that_was_deleted_stays_deleted(self, tmp_path: Path) -> None:
        with BrokerProcess(tmp_path / "data", NOW) as broker:
            create_topic(broker.address, "t")
            consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
            commit(consumer, "t", 0, 5)
            consumer.close()
            admin(broker.address).delete_consumer_groups(["g"])["g"].result(PATIENCE_S)
            broker.kill()
            broker.start()
            assert admin(broker.address).list_consumer_groups().result(PATIENCE_S).valid == []
