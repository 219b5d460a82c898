"""Fetch and offsets with real clients: the tail, sealed segments, compaction meanwhile, and where a log begins."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaConsumer
from kafka import TopicPartition as PyPartition
from tests.support.broker import RunningBroker, running_broker
from tests.support.kafka_clients import LEAVES_SOCKETS, collected  # noqa: F401

from lastword import metrics
from lastword.broker.partitions import TopicView
from lastword.log.topic import Topic

pytestmark = LEAVES_SOCKETS

Read = Callable[[RunningBroker, int, int], list[tuple[int, bytes | None, bytes | None]]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data", {"local.retention.ms": 0}) as running:
        yield running


def fill(topic: Topic, first: int, end: int, keys: int = 10) -> None:
    for number in range(first, end):
        topic.append(f"k{number % keys}", str(number))


def consumer_of(broker: RunningBroker, **config: object) -> Consumer:
    return Consumer(
        {"bootstrap.servers": broker.address, "group.id": "g", "enable.auto.commit": False, **config}
    )


def messages(
    consumer: Consumer, until: Callable[[list[Message]], bool], timeout_s: float = 180
) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while not until(found):
        assert time.monotonic() < deadline, f"{len(found)} messages"
        for message in consumer.consume(1000, 0.1):
            assert message.error() is None, message.error()
            found.append(message)
    return found


def with_confluent(
    broker: RunningBroker, start: int, end: int
) -> list[tuple[int, bytes | None, bytes | None]]:
    """Every record up to the log end; the client says itself that it has come to the end."""
    consumer = consumer_of(broker, **{"enable.partition.eof": True})
    consumer.assign([TopicPartition("t", 0, start)])
    found: list[tuple[int, bytes | None, bytes | None]] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.2):
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                if message.offset() >= end:
                    consumer.close()
                    return found
            else:
                found.append((message.offset(), message.key(), message.value()))
    raise AssertionError("the consumer did not come to the end")


def with_kafka_python(
    broker: RunningBroker, start: int, end: int
) -> list[tuple[int, bytes | None, bytes | None]]:
    consumer = KafkaConsumer(bootstrap_servers=broker.address, group_id=None, enable_auto_commit=False)
    at = PyPartition("t", 0)
    consumer.assign([at])
    consumer.seek(at, start)
    found = []
    deadline = time.monotonic() + 60
    while consumer.position(at) < end:
        assert time.monotonic() < deadline, consumer.position(at)
        for records in consumer.poll(200).values():
            found += [(each.offset, each.key, each.value) for each in records]
    consumer.close()
    return found


def with_aiokafka(
    broker: RunningBroker, start: int, end: int
) -> list[tuple[int, bytes | None, bytes | None]]:
    async def run() -> list[tuple[int, bytes | None, bytes | None]]:
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.address, group_id=None)
        await consumer.start()
        try:
            at = AioPartition("t", 0)
            consumer.assign([at])
            consumer.seek(at, start)
            found = []
            deadline = time.monotonic() + 60
            while await consumer.position(at) < end:
                assert time.monotonic() < deadline
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [(each.offset, each.key, each.value) for each in records]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(run())


CLIENTS = [with_confluent, with_kafka_python, with_aiokafka]


def in_the_log(broker: RunningBroker, start: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(each.offset, each.key, each.value) for each in broker.log.topic("t").read(start)]


@pytest.mark.parametrize("read", CLIENTS)
@pytest.mark.parametrize("where", ["tail", "sealed", "both"])
def test_every_record_in_order(broker: RunningBroker, read: Read, where: str) -> None:
    topic = broker.log.create_topic("t")
    fill(topic, 0, 500)
    if where != "tail":
        topic.seal()
        broker.log.run_retention(steps=["delete"])
    if where == "both":
        fill(topic, 500, 700)
    expected = in_the_log(broker)
    assert read(broker, 0, len(expected)) == expected
    assert read(broker, 123, len(expected)) == expected[123:]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_headers_and_timestamps_from_tail_and_sealed(broker: RunningBroker, compression: str) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": compression})
    for number in range(20):
        producer.produce(
            "t", b"v" * number, b"k", headers=[("h", b"x"), ("n", None)], timestamp=1_700_000_000_000 + number
        )
    producer.produce("t", None, b"k", timestamp=1_700_000_000_020)
    assert producer.flush(60) == 0
    for _ in range(2):
        consumer = consumer_of(broker)
        consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
        found = messages(consumer, lambda found: len(found) >= 21)
        consumer.close()
        assert [each.timestamp()[1] for each in found] == [1_700_000_000_000 + number for number in range(21)]
        assert found[0].headers() == [("h", b"x"), ("n", None)]
        assert [each.value() for each in found] == [*(b"v" * number for number in range(20)), None]
        broker.log.topic("t").seal()
        broker.log.run_retention(steps=["delete"])


@pytest.mark.parametrize("read", CLIENTS)
def test_a_compacted_tail_does_not_hang_a_consumer(broker: RunningBroker, read: Read) -> None:
    topic = broker.log.create_topic(
        "t", config={"cleanup.policy": "compact", "delete.retention.ms": 0, "min.cleanable.dirty.ratio": 0}
    )
    fill(topic, 0, 50)
    for key in range(10):
        topic.append(f"k{key}", None)
    # The first run lets tombstones linger, the second one removes them: nothing is left before the log end.
    for _ in range(3):
        topic.seal()
        broker.log.compact(["t"], asked_for=True, force=True)
    broker.log.run_retention(steps=["delete"])
    assert in_the_log(broker) == []
    assert read(broker, 0, 60) == []
    topic.append("k", "after")
    assert read(broker, 0, 61) == [(60, b"k", b"after")]


def test_gaps_of_a_compacted_topic(broker: RunningBroker) -> None:
    topic = broker.log.create_topic("t", config={"cleanup.policy": "compact"})
    fill(topic, 0, 300)
    topic.seal()
    broker.log.compact(["t"], asked_for=True)
    fill(topic, 300, 310)
    expected = in_the_log(broker)
    assert len(expected) == 20
    for read in CLIENTS:
        assert read(broker, 0, 310) == expected
        assert read(broker, 100, 310) == expected


def test_compaction_while_consuming(broker: RunningBroker) -> None:
    topic = broker.log.create_topic("t", config={"cleanup.policy": "compact"})
    consumer = consumer_of(broker, **{"fetch.wait.max.ms": 50, "fetch.message.max.bytes": 2000})
    consumer.assign([TopicPartition("t", 0, 0)])
    stop = threading.Event()

    def maintain() -> None:
        while not stop.is_set():
            topic.seal()
            broker.log.compact(["t"], asked_for=True)
            broker.log.run_retention(steps=["delete"])

    thread = threading.Thread(target=maintain)
    thread.start()
    try:
        state: dict[bytes, bytes] = {}
        last = -1
        fill_thread = threading.Thread(target=fill, args=(topic, 0, 1500, 20))
        fill_thread.start()
        found = messages(consumer, lambda found: bool(found) and found[-1].offset() == 1499, 60)
        fill_thread.join()
    finally:
        stop.set()
        thread.join()
        consumer.close()
    for message in found:
        assert message.offset() > last
        last = message.offset()
        state[message.key()] = message.value()
    assert state == {b"k%d" % (number % 20): str(number).encode() for number in range(1480, 1500)}


def test_long_poll_is_woken_by_a_produce(broker: RunningBroker) -> None:
    topic = broker.log.create_topic("t")
    # A fetch that was not woken would be answered long after the test's patience.
    consumer = consumer_of(broker, **{"fetch.wait.max.ms": 200_000, "socket.timeout.ms": 300_000})
    consumer.assign([TopicPartition("t", 0, 0)])
    topic.append("k", "0")
    messages(consumer, lambda found: len(found) >= 1)
    for number in range(1, 6):
        # The consumer's next fetch waits by now, or is about to.
        consumer.consume(1, 0.05)
        topic.append("k", str(number))
        messages(consumer, lambda found: len(found) >= 1)
    consumer.close()


def test_offsets_by_time(broker: RunningBroker) -> None:
    topic = broker.log.create_topic("t")
    base_ms = 1_700_000_000_000
    for number in range(10):
        topic.append("k", str(number), timestamp_ms=base_ms + number * 1000)
    for _ in range(2):
        consumer = consumer_of(broker)
        for wanted, offset in ((base_ms, 0), (base_ms + 1, 1), (base_ms + 9000, 9), (base_ms + 9001, -1)):
            (found,) = consumer.offsets_for_times([TopicPartition("t", 0, wanted)], 10)
            assert found.offset == offset, wanted
        assert consumer.get_watermark_offsets(TopicPartition("t", 0), 10) == (0, 10)
        consumer.close()
        python = KafkaConsumer(bootstrap_servers=broker.address)
        at = PyPartition("t", 0)
        found_time = python.offsets_for_times({at: base_ms + 4500})[at]
        assert (found_time.offset, found_time.timestamp) == (5, base_ms + 5000)
        python.close()
        topic.seal()
        broker.log.run_retention(steps=["delete"])


def test_delete_records_moves_the_log_start(broker: RunningBroker) -> None:
    from confluent_kafka.admin import AdminClient

    topic = broker.log.create_topic("t")
    fill(topic, 0, 20)
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.delete_records([TopicPartition("t", 0, 12)]).values():
        assert future.result(180).low_watermark == 12
    consumer = consumer_of(broker, **{"auto.offset.reset": "error"})
    assert consumer.get_watermark_offsets(TopicPartition("t", 0), 10) == (12, 20)
    consumer.assign([TopicPartition("t", 0, 3)])
    deadline = time.monotonic() + 60
    errors: list[int] = []
    while not errors and time.monotonic() < deadline:
        errors = [each.error().code() for each in consumer.consume(10, 0.2) if each.error()]
    assert errors == [KafkaError._AUTO_OFFSET_RESET]
    consumer.close()
    assert [offset for offset, _, _ in with_kafka_python(broker, 12, 20)] == list(range(12, 20))


def test_many_partitions_of_one_fetch(broker: RunningBroker) -> None:
    topic = broker.log.create_topic("t", partitions=20)
    for number in range(2000):
        topic.append(None, str(number), partition=number % 20)
        if number == 1000:
            topic.seal()
            broker.log.run_retention(steps=["delete"])
    consumer = consumer_of(
        broker, **{"fetch.max.bytes": 3000, "message.max.bytes": 2000, "fetch.message.max.bytes": 1000}
    )
    consumer.assign([TopicPartition("t", each, 0) for each in range(20)])
    found = messages(consumer, lambda found: len(found) >= 2000)
    consumer.close()
    for partition in range(20):
        own = [int(each.value()) for each in found if each.partition() == partition]
        assert own == list(range(partition, 2000, 20))


def test_where_many_partitions_begin_takes_one_look_at_the_table(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.log.create_topic("t", partitions=20)
    looks: list[TopicView] = []
    refresh = TopicView.refresh

    def counted(view: TopicView) -> asyncio.Future[None]:
        looks.append(view)
        return refresh(view)

    monkeypatch.setattr(TopicView, "refresh", counted)
    wanted = {TopicPartition("t", partition): OffsetSpec.earliest() for partition in range(20)}
    client = AdminClient({"bootstrap.servers": broker.address})
    found = client.list_offsets(wanted)
    assert [each.result(180).offset for each in found.values()] == [0] * 20
    assert len(looks) == 1


def test_deleted_topics_leave_no_metrics(broker: RunningBroker) -> None:
    for name in ("passing-1", "passing-2"):
        broker.log.create_topic(name)
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce(name, b"v")
        assert producer.flush(60) == 0
        assert f'lastword_append_records_total{{topic="{name}"}} 1.0' in metrics.exposition()
        broker.log.delete_topic(name)
    # They are looked for whenever a topic is used for the first time.
    assert "passing-1" not in metrics.exposition()
