"""Where groups are kept: the internal topic, its compaction, expiry, and what compaction is told of groups."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType
from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from tests.support.broker import INLINE, RunningBroker, running_broker
from tests.support.cli import Cli
from tests.support.clock import DAY_MS, ManualClock
from tests.support.kafka_clients import (
    PATIENCE_S,
    admin,
    commit,
    committed,
    create_topic,
    member,
    partitions_of,
    poll_until,
    produce,
)
from tests.support.logs import offsets, segment_files
from tests.support.raw_client import RawClient
from tests.support.server import serving
from tests.support.waiting import wait_until

import lastword
from lastword import metrics
from lastword.broker.errors import ErrorCode
from lastword.broker.groups.commits import NewOffset
from lastword.broker.groups.handlers import GroupHandlers
from lastword.broker.groups.members import MemberRef
from lastword.broker.groups.replay import GROUPS_TOPIC
from lastword.broker.groups.service import GroupService
from lastword.broker.groups.store import Entry
from lastword.errors import InvalidTopicError, LastwordError
from lastword.log import Log
from lastword.reading.topic_reader import committed_positions, save_group_positions

NOW = {"group.initial.rebalance.delay.ms": 0}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data", NOW) as running:
        yield running


@pytest.fixture
def consumer(broker: RunningBroker) -> Iterator[Consumer]:
    found = client(broker)
    yield found
    found.close()


def client(broker: RunningBroker, group: str = "g") -> Consumer:
    """A consumer that commits without being a member."""
    return Consumer({"bootstrap.servers": broker.address, "group.id": group, "log_level": 0})


def service(broker: RunningBroker) -> GroupService:
    (handlers,) = [each for each in broker.broker._groups if isinstance(each, GroupHandlers)]
    return handlers.service


class TestInternalTopic:
    def test_hidden_but_there(self, broker: RunningBroker, consumer: Consumer) -> None:
        create_topic(broker.address, "t")
        commit(consumer, "t", 0, 5)
        assert broker.log.topics() == ["t"]
        assert sorted(broker.log.topics(include_internal=True)) == [GROUPS_TOPIC, "t"]
        assert GROUPS_TOPIC in admin(broker.address).list_topics(timeout=PATIENCE_S).topics

    def test_refuses_what_users_may_not_do(self, broker: RunningBroker, consumer: Consumer) -> None:
        create_topic(broker.address, "t")
        commit(consumer, "t", 0, 5)
        tools = admin(broker.address)
        change = ConfigResource(
            ResourceType.TOPIC,
            GROUPS_TOPIC,
            incremental_configs=[
                ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
            ],
        )
        for futures in (
            tools.delete_topics([GROUPS_TOPIC]),
            tools.create_partitions([NewPartitions(GROUPS_TOPIC, 2)]),
            tools.incremental_alter_configs([change]),
        ):
            (future,) = futures.values()
            with pytest.raises(KafkaException) as caught:
                future.result(PATIENCE_S)
            assert caught.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
        refused: list[KafkaError] = []
        producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
        producer.produce(GROUPS_TOPIC, b"x", key=b"k", on_delivery=lambda error, _: refused.append(error))
        producer.flush(PATIENCE_S)
        assert [error.code() for error in refused] == [KafkaError.TOPIC_EXCEPTION]

    def test_the_embedded_log_refuses_it_too(self, broker: RunningBroker, consumer: Consumer) -> None:
        create_topic(broker.address, "t")
        commit(consumer, "t", 0, 5)
        log = broker.log
        topic = log.topic(GROUPS_TOPIC)
        for attempt in (
            lambda: topic.append("k", "v"),
            lambda: topic.append_many([]),
            lambda: topic.append_batch(0, b""),
            lambda: topic.delete_records({0: 1}),
            lambda: log.alter_topic(GROUPS_TOPIC, set_config={"cleanup.policy": "delete"}),
            lambda: log.delete_topic(GROUPS_TOPIC),
            lambda: log.erase(GROUPS_TOPIC, [b"k"]),
            lambda: log.create_topic("__LASTWORD_mine"),
        ):
            with pytest.raises(InvalidTopicError, match="is internal"):
                attempt()

    def test_settings_are_fixed_whatever_the_file_says(self, tmp_path: Path) -> None:
        settings = {**NOW, "cleanup.policy": "delete", "compaction.strategy": "first", "wal.sync": "none"}
        with running_broker(tmp_path / "data", settings) as broker:
            create_topic(broker.address, "t")
            consumer = client(broker)
            commit(consumer, "t", 0, 5)
            consumer.close()
            topic = broker.log.topic(GROUPS_TOPIC)
            assert topic.settings.cleanup_policy == {"compact"}
            assert topic.settings.compaction_strategy == "offset"
            assert all(each.writer.is_synced_by_append for each in topic.all_partitions())

    def test_compaction_keeps_the_last_commit_of_each(self, tmp_path: Path) -> None:
        with running_broker(tmp_path / "data", NOW) as broker:
            create_topic(broker.address, "t", 3)
            consumer = client(broker)
            for offset in range(30):
                commit(consumer, "t", offset % 3, offset)
            consumer.close()
            before = sum(1 for _ in broker.log.topic(GROUPS_TOPIC).read())
            report = broker.log.compact([GROUPS_TOPIC], seal=True, force=True)
            assert report.problems == ()
            after = sum(1 for _ in broker.log.topic(GROUPS_TOPIC).read())
            assert after < before
        with running_broker(tmp_path / "data", NOW) as broker:
            consumer = client(broker)
            assert committed(consumer, "t", 0, 1, 2) == [27, 28, 29]
            consumer.close()


class TestExpiry:
    def test_offsets_without_members_go_and_then_the_group(self, tmp_path: Path, clock: ManualClock) -> None:
        with running_broker(tmp_path / "data", NOW, clock=clock) as broker:
            create_topic(broker.address, "t")
            consumer = client(broker)
            commit(consumer, "t", 0, 5)
            broker.run(service(broker).commits.expire())
            assert committed(consumer, "t", 0) == [5]
            clock.move(7 * DAY_MS)
            broker.run(service(broker).commits.expire())
            assert committed(consumer, "t", 0) == [-1001]
            consumer.close()
            assert admin(broker.address).list_consumer_groups().result(PATIENCE_S).valid == []
        with running_broker(tmp_path / "data", NOW, clock=clock) as broker:
            assert service(broker).groups() == []

    def test_a_commit_at_the_same_moment_is_not_taken_back(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def commit_while_they_expire(groups: GroupService, offset: int) -> None:
            store = groups._store
            append, is_writing, may_write = store._append, asyncio.Event(), asyncio.Event()

            async def held_back(entries: Sequence[Entry]) -> LastwordError | None:
                is_writing.set()
                await may_write.wait()
                return await append(entries)

            monkeypatch.setattr(store, "_append", held_back)
            new = {("t", 0): NewOffset(offset=offset)}
            commits = asyncio.ensure_future(groups.commit("g", MemberRef(member_id=""), -1, new))
            await is_writing.wait()
            expires = asyncio.ensure_future(groups.commits.expire())
            while not (expires.done() or store._queue):
                await asyncio.sleep(0.001)
            may_write.set()
            assert await commits == {("t", 0): ErrorCode.NONE}
            await expires

        with running_broker(tmp_path / "data", NOW, clock=clock) as broker:
            create_topic(broker.address, "t")
            groups = service(broker)
            # First a group that has no offsets yet, then one whose offset has expired.
            for offset in (5, 6):
                broker.run(commit_while_they_expire(groups, offset))
                assert [group.group_id for group in groups.groups()] == ["g"]
                (found,) = broker.on_loop(lambda: groups.committed("g", [("t", 0)])).values()
                assert found is not None and found.offset == offset
                clock.move(30 * DAY_MS)

    def test_members_keep_their_offsets(self, tmp_path: Path, clock: ManualClock) -> None:
        with running_broker(tmp_path / "data", NOW, clock=clock) as broker:
            create_topic(broker.address, "t")
            with member(broker.address, "g", "t") as consumer:
                poll_until(lambda: partitions_of(consumer) == [0], "it has it", consumer)
                commit(consumer, "t", 0, 5)
                clock.move(30 * DAY_MS)
                broker.run(service(broker).commits.expire())
                assert committed(consumer, "t", 0) == [5]

    def test_offsets_of_a_deleted_topic_go(self, broker: RunningBroker, consumer: Consumer) -> None:
        create_topic(broker.address, "t")
        create_topic(broker.address, "u")
        commit(consumer, "t", 0, 5)
        commit(consumer, "u", 0, 6)
        broker.log.delete_topic("t")
        broker.run(service(broker).commits.expire())
        left = service(broker).commits.offsets.of("g")
        assert [each.topic for each in left.values()] == ["u"]


class TestHolds:
    def compact(self, log: Log) -> None:
        assert log.compact(["t"], seal=True, force=True).problems == ()

    def test_a_tombstone_stays_until_the_group_has_read_it(
        self, broker: RunningBroker, consumer: Consumer
    ) -> None:
        create_topic(broker.address, "t", cleanup_policy="compact", delete_retention_ms="0")
        topic = broker.log.topic("t")
        topic.append("a", "1")
        commit(consumer, "t", 0, 1)
        topic.append("a", None)
        topic.append("b", "2")
        for _ in range(3):
            self.compact(broker.log)
        assert offsets(list(topic.read())) == [1, 2]
        commit(consumer, "t", 0, 2)
        broker.run(service(broker)._holds.write())
        for _ in range(2):
            self.compact(broker.log)
        assert offsets(list(topic.read())) == [2]

    def test_without_a_group_the_tombstone_goes(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t", cleanup_policy="compact", delete_retention_ms="0")
        topic = broker.log.topic("t")
        for key, value in (("a", "1"), ("a", None), ("b", "2")):
            topic.append(key, value)
        for _ in range(3):
            self.compact(broker.log)
        assert offsets(list(topic.read())) == [2]

    def test_first_and_lower_commits_are_in_the_file_when_they_are_answered(
        self, broker: RunningBroker, consumer: Consumer
    ) -> None:
        create_topic(broker.address, "t", 2)
        topic_id = broker.log.topic("t").id.hex

        def positions() -> dict[int, int]:
            found = committed_positions(broker.log.path, topic_id)
            assert {each.reader for each in found} <= {"g"}
            return {each.partition: each.position for each in found}

        commit(consumer, "t", 0, 10)
        assert positions() == {0: 10}
        commit(consumer, "t", 1, 7)
        assert positions() == {0: 10, 1: 7}
        commit(consumer, "t", 0, 5)
        assert positions() == {0: 5, 1: 7}
        commit(consumer, "t", 0, 20)
        assert positions()[0] in (5, 20)
        broker.run(service(broker)._holds.write())
        assert positions() == {0: 20, 1: 7}
        admin(broker.address).delete_consumer_groups(["g"])["g"].result(PATIENCE_S)
        broker.run(service(broker)._holds.write())
        assert positions() == {}

    def test_any_text_may_be_a_groups_id(self, broker: RunningBroker) -> None:
        create_topic(broker.address, "t")
        names = ["..", "a/b", "ü" * 200, "+x", "x y", "."]
        for number, name in enumerate(names):
            consumer = client(broker, name)
            commit(consumer, "t", 0, number)
            consumer.close()
        found = committed_positions(broker.log.path, broker.log.topic("t").id.hex)
        assert {each.reader: each.position for each in found} == {
            name: number for number, name in enumerate(names)
        }

    def test_positions_are_written_anew_at_the_start(self, tmp_path: Path) -> None:
        with running_broker(tmp_path / "data", NOW) as broker:
            create_topic(broker.address, "t")
            consumer = client(broker)
            commit(consumer, "t", 0, 3)
            consumer.close()
            topic_id = broker.log.topic("t").id.hex
        for path in (tmp_path / "data" / "readers" / topic_id).rglob("*.json"):
            path.unlink()
        with running_broker(tmp_path / "data", NOW) as broker:
            found = committed_positions(broker.log.path, topic_id)
            assert [(each.reader, each.position) for each in found] == [("g", 3)]

    def test_members_are_seen_without_commits(self, tmp_path: Path, clock: ManualClock) -> None:
        with running_broker(tmp_path / "data", NOW, clock=clock) as broker:
            create_topic(broker.address, "t")
            with member(broker.address, "g", "t") as consumer:
                poll_until(lambda: partitions_of(consumer) == [0], "it has it", consumer)
                commit(consumer, "t", 0, 3)
                clock.move(DAY_MS)
                broker.on_loop(service(broker)._see_members)
                broker.run(service(broker)._holds.write())
            topic_id = broker.log.topic("t").id.hex
            (found,) = committed_positions(broker.log.path, topic_id)
            assert found.active_ms == clock.now_ms()

    def test_a_consumer_that_asks_for_its_offset_is_seen(self, tmp_path: Path, clock: ManualClock) -> None:
        with running_broker(tmp_path / "data", NOW, clock=clock) as broker:
            create_topic(broker.address, "t")
            consumer = client(broker)
            commit(consumer, "t", 0, 3)
            clock.move(DAY_MS)
            consumer.committed([TopicPartition("t", 0)], PATIENCE_S)
            consumer.close()
            broker.run(service(broker)._holds.write())
            (found,) = committed_positions(broker.log.path, broker.log.topic("t").id.hex)
            assert found.active_ms == clock.now_ms()

    def test_damaged_and_left_over_files_are_mended_at_the_start(self, tmp_path: Path) -> None:
        with running_broker(tmp_path / "data", NOW) as broker:
            create_topic(broker.address, "t")
            consumer = client(broker)
            commit(consumer, "t", 0, 3)
            consumer.close()
            topic_id = broker.log.topic("t").id.hex
        save_group_positions(tmp_path / "data", topic_id, "deleted", {0: (1, 1)})
        save_group_positions(tmp_path / "data", topic_id, "g", {0: (99, 1)})
        with running_broker(tmp_path / "data", NOW) as broker:
            found = committed_positions(broker.log.path, topic_id)
            assert [(each.reader, each.position) for each in found] == [("g", 3)]
        (path,) = (tmp_path / "data" / "readers" / topic_id).rglob("*.json")
        path.write_text("{")
        with running_broker(tmp_path / "data", NOW) as broker:
            found = committed_positions(broker.log.path, topic_id)
            assert [(each.reader, each.position) for each in found] == [("g", 3)]


class TestDamage:
    """A part of the topic that can't be read keeps nobody waiting, and no committed offset is forgotten."""

    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        """`old` has commits before and after the place of the damage, `back` one that goes back, `new` only one there."""
        with running_broker(tmp_path / "data", NOW) as broker:
            create_topic(broker.address, "t")
            consumers = {name: client(broker, name) for name in ("old", "back", "new", "fine")}
            for name, offset in (("old", 10), ("back", 30), ("fine", 1)):
                commit(consumers[name], "t", 0, offset)
            for name, offset in (("old", 20), ("back", 5), ("new", 7)):
                commit(consumers[name], "t", 0, offset)
            commit(consumers["fine"], "t", 0, 2)
            for each in consumers.values():
                each.close()
        return tmp_path / "data"

    def found(self, broker: RunningBroker) -> dict[str, int]:
        offsets = {}
        for name in ("old", "back", "new", "fine"):
            consumer = client(broker, name)
            (offsets[name],) = committed(consumer, "t", 0)
            consumer.close()
        return offsets

    def damage_wal(self, data: Path) -> None:
        """From the second commit of `old` to that of `new`."""
        (path,) = data.glob(f"wal/*/{GROUPS_TOPIC}/*/0/wal.*.log")
        content = bytearray(path.read_bytes())
        first = content.index(b'["offset",1,"old"', content.index(b'["offset",1,"old"') + 1)
        last = content.index(b'["offset",1,"new"')
        for position in range(first, last + 1):
            content[position] ^= 0xFF
        path.write_bytes(content)

    def damage_segment(self, data: Path) -> None:
        with lastword.open(data, config={"compaction.service.factory": INLINE}) as log:
            log.topic(GROUPS_TOPIC).seal()
            (path,) = [each for each in segment_files(log) if GROUPS_TOPIC in str(each)]
        path.write_bytes(b"\0" * path.stat().st_size)

    @pytest.mark.parametrize("where", ["wal", "segment"])
    def test_the_broker_starts_and_no_offset_is_forgotten(
        self, data: Path, where: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        (self.damage_wal if where == "wal" else self.damage_segment)(data)
        for _ in range(2):
            caplog.clear()
            with running_broker(data, NOW) as broker:
                found = self.found(broker)
                assert found["old"] in (10, 20) and found["back"] == 5 and found["new"] == 7
                assert found["fine"] == 2
                (problem,) = broker.broker.group_problems()
                assert f"`lastword wal repair {GROUPS_TOPIC} --skip`" in problem
                assert "consumers may read records again" in problem
                assert metrics.REGISTRY.get_sample_value("lastword_groups_unreadable_offsets") > 0
                assert f"{GROUPS_TOPIC}: offsets" in caplog.text
                consumer = client(broker, "new")
                commit(consumer, "t", 0, 7)
                consumer.close()

    @pytest.mark.parametrize("where", ["wal", "segment"])
    @pytest.mark.parametrize("is_started_before", [True, False])
    def test_left_behind(self, data: Path, where: str, is_started_before: bool) -> None:
        """Also when no broker has met the damage before."""
        (self.damage_wal if where == "wal" else self.damage_segment)(data)
        if is_started_before:
            with running_broker(data, NOW):
                pass
        cli = Cli(data)
        listed = cli("group", "list")
        assert all(name in listed.out for name in ("old", "back", "new", "fine"))
        assert is_started_before or "consumers may read records again" in listed.err
        assert "damaged range" in cli("wal", "repair", GROUPS_TOPIC, code=1).out
        cli("wal", "repair", GROUPS_TOPIC, "--skip", "--yes")
        assert "is not damaged" in cli("wal", "repair", GROUPS_TOPIC).out
        with running_broker(data, NOW) as broker:
            found = self.found(broker)
            assert found["old"] in (10, 20) and (found["back"], found["new"], found["fine"]) == (5, 7, 2)
            assert broker.broker.group_problems() == []
            assert metrics.REGISTRY.get_sample_value("lastword_groups_unreadable_offsets") == 0

    def test_left_behind_beside_a_server_everything_that_it_knows_stays(self, data: Path) -> None:
        with serving(data) as server:
            consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "old", "log_level": 0})
            commit(consumer, "t", 0, 42)
            self.damage_wal(data)
            cli = Cli(data)
            assert cli("wal", "repair", GROUPS_TOPIC, "--skip", "--yes", "--json").json["skipped"]
            assert committed(consumer, "t", 0) == [42]
            consumer.close()
        with running_broker(data, NOW) as broker:
            assert self.found(broker) == {"old": 42, "back": 5, "new": 7, "fine": 2}

    def test_a_server_says_so_until_it_is_left_behind(self, data: Path) -> None:
        self.damage_wal(data)
        with serving(data) as server, server.client() as http:
            cli = Cli(data)
            wait_until(
                lambda: len(http.get("/readyz").json()["problems"]) == 1, lambda: http.get("/readyz").text
            )
            assert GROUPS_TOPIC in cli("status", code=1).out
            assert GROUPS_TOPIC in http.get("/readyz").json()["problems"][0]
            cli("wal", "repair", GROUPS_TOPIC, "--skip", "--yes")
            assert http.get("/readyz").json()["problems"] == []

    def test_a_table_that_cant_be_read_keeps_only_groups_waiting(self, data: Path) -> None:
        """Nobody is told that there is no offset, and everything is there when the table can be read again."""
        with lastword.open(data, config={"compaction.service.factory": INLINE}) as log:
            log.topic(GROUPS_TOPIC).seal()
            location = log.topic(GROUPS_TOPIC).table.location
        with sqlite3.connect(data / "catalog.db") as catalog:
            (path,) = catalog.execute(
                "select metadata_location from iceberg_tables where table_name = ?", (GROUPS_TOPIC,)
            ).fetchone()
        catalog.close()
        metadata = Path(path.removeprefix("file://"))
        assert str(location).removeprefix("file://") in str(metadata)
        content = metadata.read_bytes()
        metadata.write_bytes(b"{")
        with running_broker(data, NOW) as broker:
            produce(broker.address, "t", ["a"])
            (problem,) = broker.broker.group_problems()
            assert f"consumer groups can't be served, because {GROUPS_TOPIC} can't be read" in problem
            with RawClient(broker.address) as raw:
                found = raw.ask(FindCoordinatorRequest(key="new", key_type=0), FindCoordinatorResponse, 3)
                assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
                topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
                asked = OffsetFetchRequest(group_id="new", topics=[topic])
                (partition,) = raw.ask(asked, OffsetFetchResponse, 1).topics[0].partitions
                assert partition.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                listed = raw.ask(ListGroupsRequest(states_filter=[]), ListGroupsResponse, 4)
                assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            metadata.write_bytes(content)
            wait_until(lambda: broker.broker.group_problems() == [], lambda: "groups are not read")
            assert self.found(broker) == {"old": 20, "back": 5, "new": 7, "fine": 2}
