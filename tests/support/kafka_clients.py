"""Kafka's clients as tests use them: made for a broker, polled until something is so, and closed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from tests.support.waiting import PATIENCE_S, wait_until

LEAVES_SOCKETS = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
"""For tests with kafka-python, which leaves sockets to the garbage collector; together with `collected`."""


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What a test's clients leave is collected while its warnings are still ignored."""
    yield
    gc.collect()


@lru_cache(maxsize=1)
def admin(address: str) -> AdminClient:
    """The one of the last broker is kept: its requests end with it."""
    return AdminClient({"bootstrap.servers": address, "log_level": 0})


def create_topic(address: str, name: str, partitions: int = 1, **config: str) -> None:
    own = {key.replace("_", "."): value for key, value in config.items()}
    (created,) = admin(address).create_topics([NewTopic(name, partitions, 1, config=own)]).values()
    created.result(PATIENCE_S)


def produce(address: str, topic: str, values: list[str], *, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for value in values:
        producer.produce(topic, value=value, key=value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


@contextmanager
def member(
    address: str, group: str, topic: str, config: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[Consumer]:
    """A consumer of librdkafka that has joined a group when it has been polled for long enough."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 200,
            "log_level": 0,
            **config,
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def python_member(address: str, group: str, topic: str, **config: Any) -> KafkaConsumer:
    """A consumer of kafka-python that knows its topic's partitions before it joins its group.

    Without them it gives itself none, joins again as soon as it has them, and loses what that second join
    brings whenever one `poll` was too short for it (3.0.12: `need_rejoin` is false again by the next one).
    """
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **config,
    )
    consumer.subscribe([topic])
    wait_until(lambda: bool(consumer.partitions_for_topic(topic)), f"kafka-python knows {topic}")
    return consumer


def partitions_of(consumer: Consumer) -> list[int]:
    return sorted(each.partition for each in consumer.assignment())


def poll_until(condition: Callable[[], bool], what: str, *consumers: Consumer) -> list[str]:
    """Poll all of them until it is so; the values that came."""
    values: list[str] = []

    def is_so() -> bool:
        for consumer in consumers:
            message = consumer.poll(0.02)
            if message is not None and message.error() is None:
                values.append(message.value().decode())
        return condition()

    wait_until(is_so, what)
    return values


Taken = tuple[tuple[int, int], bytes | None, bytes | None]
"""A record that was read: its partition and offset, key, value."""


def consume_in_group(
    address: str,
    topic: str,
    group: str,
    *,
    partitions: int,
    count: int | None,
    patience_s: float = PATIENCE_S,
) -> list[Taken]:
    """Read so many records in a group, or all that there are, commit them, and leave."""
    found: list[Taken] = []
    ended: set[int] = set()
    with member(address, group, topic, {"enable.partition.eof": True, "fetch.wait.max.ms": 50}) as consumer:

        def is_read() -> bool:
            message = consumer.poll(0.5)
            if message is not None and message.error() is not None:
                ended.add(message.partition())
            elif message is not None:
                found.append(((message.partition(), message.offset()), message.key(), message.value()))
            return len(found) == count if count is not None else len(ended) >= partitions

        if count != 0:
            wait_until(is_read, f"group {group} has read {topic}", patience_s=patience_s)
        ends = {partition: offset + 1 for (partition, offset), _, _ in found}
        if ends:
            consumer.commit(
                offsets=[TopicPartition(topic, each, end) for each, end in ends.items()], asynchronous=False
            )
    return found


def commit(consumer: Consumer, topic: str, partition: int, offset: int, metadata: str = "") -> None:
    (done,) = consumer.commit(
        offsets=[TopicPartition(topic, partition, offset, metadata)], asynchronous=False
    )
    assert done.error is None


def committed(consumer: Consumer, topic: str, *partitions: int) -> list[int]:
    found = consumer.committed([TopicPartition(topic, each) for each in partitions], PATIENCE_S)
    return [each.offset for each in found]
