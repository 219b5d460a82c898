"""Produce with real clients: what they send is in the log, once, in order, and what is refused says why."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from kafka import KafkaProducer
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from tests.support.broker import RunningBroker, running_broker
from tests.support.broker_child import BrokerProcess
from tests.support.kafka_clients import LEAVES_SOCKETS, collected  # noqa: F401
from tests.support.raw_client import RawClient

import lastword
from lastword import batch
from lastword.record import NewRecord, Record

pytestmark = LEAVES_SOCKETS

COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data") as running:
        yield running


def records_of(broker: RunningBroker, topic: str) -> list[Record]:
    return list(broker.log.topic(topic).read())


def send(producer: Producer, topic: str, count: int, *, first: int = 0) -> list[KafkaError]:
    failed: list[KafkaError] = []
    for number in range(first, first + count):
        producer.produce(
            topic,
            str(number).encode(),
            f"k{number}".encode(),
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(60) == 0
    return failed


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_confluent_keys_null_values_and_headers(broker: RunningBroker, compression: str) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": compression})
    producer.produce(
        "t", b"value" * 100, b"key", headers=[("h", b"1"), ("h", None)], timestamp=1_700_000_000_000
    )
    producer.produce("t", None, b"gone")
    producer.produce("t", b"", None)
    assert producer.flush(60) == 0
    first, second, third = records_of(broker, "t")
    assert (first.key, first.value) == (b"key", b"value" * 100)
    assert first.headers == (("h", b"1"), ("h", None))
    assert first.timestamp_ms == 1_700_000_000_000
    assert (second.key, second.value) == (b"gone", None)
    assert (third.key, third.value) == (None, b"")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_kafka_python(broker: RunningBroker, compression: str) -> None:
    codec = None if compression == "none" else compression
    producer = KafkaProducer(bootstrap_servers=broker.address, compression_type=codec)
    sent = [
        producer.send("t", key=b"k", value=str(number).encode(), headers=[("h", b"v")])
        for number in range(50)
    ]
    producer.send("t", key=b"k", value=None)
    producer.flush(60)
    assert [each.get(180).offset for each in sent] == list(range(50))
    producer.close()
    found = records_of(broker, "t")
    assert [record.value for record in found] == [*(str(number).encode() for number in range(50)), None]
    assert found[0].headers == (("h", b"v"),)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_aiokafka(broker: RunningBroker, compression: str, idempotent: bool) -> None:
    async def run() -> None:
        codec = None if compression == "none" else compression
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.address, compression_type=codec, enable_idempotence=idempotent
        )
        await producer.start()
        try:
            for number in range(50):
                await producer.send("t", str(number).encode(), key=b"k", headers=[("h", b"v")])
            await producer.flush()
            await producer.send_and_wait("t", None, key=b"k")
        finally:
            await producer.stop()

    asyncio.run(run())
    found = records_of(broker, "t")
    assert [record.value for record in found] == [*(str(number).encode() for number in range(50)), None]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(broker: RunningBroker, acks: str) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "acks": acks})
    assert send(producer, "t", 100) == []
    deadline = time.monotonic() + 60
    while len(found := records_of(broker, "t")) < 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [record.value for record in found] == [str(number).encode() for number in range(100)]


def test_log_append_time_is_answered_and_kept(broker: RunningBroker) -> None:
    broker.log.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
    producer = Producer({"bootstrap.servers": broker.address})
    answered: list[tuple[int, int]] = []
    producer.produce(
        "t", b"v", timestamp=1000, on_delivery=lambda _, message: answered.append(message.timestamp())
    )
    producer.flush(60)
    (record,) = records_of(broker, "t")
    assert abs(record.timestamp_ms - time.time() * 1000) < 60_000
    assert answered[0][1] == record.timestamp_ms


def test_too_large_a_batch_is_refused(broker: RunningBroker) -> None:
    broker.log.create_topic("t", config={"max.message.bytes": 2000})
    producer = Producer({"bootstrap.servers": broker.address})
    failed: list[KafkaError] = []
    producer.produce("t", os.urandom(4000), on_delivery=lambda error, _: failed.append(error))
    producer.flush(60)
    assert [error.code() for error in failed] == [KafkaError.MSG_SIZE_TOO_LARGE]
    assert records_of(broker, "t") == []


def test_timestamps_that_are_too_far_off_are_refused(broker: RunningBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    failed: list[KafkaError] = []
    producer.produce(
        "t",
        b"v",
        timestamp=int(time.time() * 1000) + 10**8,
        on_delivery=lambda error, _: failed.append(error),
    )
    producer.flush(60)
    assert [error.code() for error in failed] == [KafkaError.INVALID_TIMESTAMP]


def test_the_log_start_is_answered(broker: RunningBroker) -> None:
    topic = broker.log.create_topic("t")
    for number in range(5):
        topic.append("k", str(number))
    topic.delete_records({0: 3})
    records = batch.encode([NewRecord(key=b"k", value=b"v")], now_ms=1)
    request_class = ProduceRequest.TopicProduceData
    data = request_class(
        name="t", partition_data=[request_class.PartitionProduceData(index=0, records=records)]
    )
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=[data])
    deadline = time.monotonic() + 60
    with RawClient(broker.address) as client:
        while True:
            (answered,) = client.ask(request, ProduceResponse, 8).responses
            (partition,) = answered.partition_responses
            assert partition.error_code == 0
            if partition.log_start_offset != -1:
                break
            # The table is being looked at, which no produce waits for.
            assert time.monotonic() < deadline
    assert partition.log_start_offset == 3


def test_transactions_are_refused_and_not_waited_for(broker: RunningBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "x"})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(20)
    assert caught.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_topic_is_not_created_where_that_is_switched_off(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", {"auto.create.topics.enable": False}) as broker:
        producer = Producer({"bootstrap.servers": broker.address, "message.timeout.ms": 3000})
        failed: list[KafkaError] = []
        producer.produce("t", b"v", on_delivery=lambda error, _: failed.append(error))
        producer.flush(60)
        assert failed
        assert broker.log.topics() == []


def test_auto_created_topics_have_the_settings_for_them(tmp_path: Path) -> None:
    settings = {"num.partitions": 3, "topic.default_config": {"cleanup.policy": "compact"}}
    with running_broker(tmp_path / "data", settings) as broker:
        assert send(Producer({"bootstrap.servers": broker.address}), "t", 10) == []
        assert broker.log.topic("t").partitions == 3
        assert broker.log.topic("t").settings.compacts


def test_idempotent_producer_over_restarts_of_the_broker(tmp_path: Path) -> None:
    """The client sends again what it got no answer for; each record is in the log once, in order."""
    folder = tmp_path / "data"
    broker = BrokerProcess(folder)
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.size": 2000,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    failed: list[KafkaError] = []
    delivered: list[int] = []
    number = 0

    def answered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            delivered.append(message.offset())

    try:
        for killed in range(3):
            # Killed while more is under way.
            while len(delivered) < 1500 * (killed + 1):
                if len(producer) < 1000:
                    producer.produce("t", str(number).encode(), on_delivery=answered)
                    number += 1
                producer.poll(0 if len(producer) < 1000 else 0.01)
            broker.kill()
            broker.start()
        assert producer.flush(60) == 0
    finally:
        broker.stop()
    assert failed == []
    assert sorted(delivered) == list(range(number))
    with lastword.open(folder, read_only=True) as log:
        assert [int(record.value or b"-1") for record in log.topic("t").read()] == list(range(number))
