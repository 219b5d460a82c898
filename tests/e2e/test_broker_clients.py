"""Each Python client reads in a group while its topic is compacted under it, and goes on after a restart of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest
from tests.support.broker import RunningBroker, running_broker
from tests.support.kafka_clients import LEAVES_SOCKETS, collected, python_member  # noqa: F401

from lastword.record import NewRecord

pytestmark = LEAVES_SOCKETS

TOPIC = "users"
GROUP = "readers"
SETTINGS = {"group.initial.rebalance.delay.ms": 0}


@dataclass(frozen=True)
class Seen:
    offset: int
    key: bytes
    value: bytes | None


Poll = Callable[[], list[Seen]]
"""The next records, perhaps none; what it gave before is committed."""


@contextmanager
def confluent(address: str) -> Iterator[Poll]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([TOPIC])

    def poll() -> list[Seen]:
        found = [each for each in consumer.consume(50, 0.2) if each.error() is None]
        if found:
            consumer.commit(asynchronous=False)
        return [Seen(each.offset(), each.key(), each.value()) for each in found]

    try:
        yield poll
    finally:
        consumer.close()


@contextmanager
def kafka_python(address: str) -> Iterator[Poll]:
    consumer = python_member(address, GROUP, TOPIC)

    def poll() -> list[Seen]:
        found = [each for batch in consumer.poll(200, max_records=50).values() for each in batch]
        if found:
            consumer.commit()
        return [Seen(each.offset, each.key, each.value) for each in found]

    try:
        yield poll
    finally:
        consumer.close()


@contextmanager
def aio(address: str) -> Iterator[Poll]:
    with asyncio.Runner() as runner:

        async def begin() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                TOPIC,
                bootstrap_servers=address,
                group_id=GROUP,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            await consumer.start()
            return consumer

        consumer = runner.run(begin())

        async def take() -> list[Seen]:
            batches = await consumer.getmany(timeout_ms=200, max_records=50)
            found = [each for batch in batches.values() for each in batch]
            if found:
                await consumer.commit()
            return [Seen(each.offset, each.key, each.value) for each in found]

        try:
            yield lambda: runner.run(take())
        finally:
            runner.run(consumer.stop())


def append(broker: RunningBroker, start: int, end: int) -> None:
    broker.log.topic(TOPIC).append_many(
        [
            NewRecord(key=b"k%d" % (number % 10), value=None if number % 17 == 0 else b"%d" % number)
            for number in range(start, end)
        ]
    )


def read_until(poll: Poll, offset: int) -> list[Seen]:
    found: list[Seen] = []
    for _ in range(300):
        found += poll()
        if found and found[-1].offset >= offset:
            return found
    raise AssertionError(f"came to {found[-1:]} instead of offset {offset}")


def state_of(seen: list[Seen]) -> dict[bytes, bytes]:
    last = {each.key: each.value for each in seen}
    return {key: value for key, value in last.items() if value is not None}


@pytest.mark.parametrize("client", [confluent, kafka_python, aio])
def test_compaction_under_a_reader_and_a_restart(
    client: Callable[[str], contextmanager[Poll]],  # type: ignore[valid-type]
    tmp_path: Path,
) -> None:
    seen: list[Seen] = []
    with running_broker(tmp_path / "data", SETTINGS) as broker:
        broker.log.create_topic(TOPIC, partitions=1, config={"cleanup.policy": "compact"})
        append(broker, 0, 500)
        with client(broker.address) as poll:  # type: ignore[attr-defined]
            seen += read_until(poll, 40)
            broker.log.topic(TOPIC).seal()
            broker.log.compact([TOPIC])
            broker.log.run_retention(steps=["delete"])
            append(broker, 500, 600)
            seen += read_until(poll, 599)
    assert [each.offset for each in seen] == sorted({each.offset for each in seen})
    with running_broker(tmp_path / "data", SETTINGS) as broker:
        append(broker, 600, 650)
        with client(broker.address) as poll:  # type: ignore[attr-defined]
            after = read_until(poll, 649)
        assert [each.offset for each in after] == list(range(600, 650))
        state = broker.log.topic(TOPIC).state()
        expected = dict(zip(state["key"].to_pylist(), state["value"].to_pylist(), strict=True))
        assert state_of([*seen, *after]) == expected
