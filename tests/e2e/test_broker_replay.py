"""Consumers that replay sealed history beside those who follow the tail: neither keeps the other from going on."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.broker import RunningBroker, running_broker
from tests.support.cli import Cli
from tests.support.raw_fetch import RawReader
from tests.support.server import SETTINGS, Server, serving

from lastword.broker import sealed
from lastword.segments.table import SegmentTable

HISTORY_RECORDS = 40_000
VALUE_BYTES = 1000
LIVE_RECORDS = 150
MOST_BYTES_A_RECORD = 4 * sealed.CHUNK_BYTES
"""What may be replayed while one record comes through, on average: much more would mean that it stands in line behind
the replay.
"""


def follow(address: str, number: int) -> list[bytes]:
    """Produce records one after the other, each when the consumer at the tail has got the one before."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all"})
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "live",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 60_000,
        }
    )
    consumer.assign([TopicPartition("live", 0, 0)])
    got: list[bytes] = []
    try:
        for index in range(number):
            producer.produce("live", str(index).encode())
            assert producer.flush(60) == 0
            (message,) = consumer.consume(1, 60.0) or [None]
            assert message is not None and message.error() is None, index
            got.append(message.value())
    finally:
        consumer.close()
    return got


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # A cache that is much smaller than the history: every replay reads and encodes it again.
    # No syncs: what is compared must not depend on the disk.
    settings = (
        f"{SETTINGS}local.retention.ms: 0\nfetch.cache.bytes: {8 << 20}\nnum.partitions: 1\nwal.sync: none\n"
    )
    with serving(tmp_path_factory.mktemp("replayed") / "data", settings=settings) as started:
        cli = Cli(started.data)
        for topic in ("history", "live"):
            cli("topic", "create", topic)
        producer = Producer({"bootstrap.servers": started.kafka, "linger.ms": 20, "batch.size": 500_000})
        values = [os.urandom(VALUE_BYTES) for _ in range(100)]
        for index in range(HISTORY_RECORDS):
            producer.produce("history", values[index % 100])
            if index % 1000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0
        cli("topic", "seal", "history")
        cli("retention", "run")
        yield started


def test_the_tail_is_delivered_while_history_is_replayed(server: Server) -> None:
    ended = threading.Event()

    def replay() -> tuple[int, int]:
        """Again and again until the other is through: complete passes, and bytes."""
        passes = received_bytes = 0
        while not ended.is_set():
            with RawReader(server.kafka, "history") as reader:
                while reader.offset < HISTORY_RECORDS and not ended.is_set():
                    reader.fetch()
                received_bytes += reader.received_bytes
                passes += reader.offset == HISTORY_RECORDS
        return passes, received_bytes

    with ThreadPoolExecutor(1) as pool:
        replaying = pool.submit(replay)
        try:
            got = follow(server.kafka, LIVE_RECORDS)
            assert not replaying.done()
        finally:
            ended.set()
        _, received_bytes = replaying.result(180)
    assert got == [str(index).encode() for index in range(LIVE_RECORDS)]
    assert received_bytes > 0
    assert received_bytes / LIVE_RECORDS < MOST_BYTES_A_RECORD


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data", {"local.retention.ms": 0, "num.partitions": 1}) as running:
        yield running


def test_history_that_takes_for_ever_holds_up_only_those_who_read_it(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More replays than there are threads for them stand still within their reads, as at a store that hangs."""
    names = [f"history-{index}" for index in range(2 * sealed.THREADS + 1)]
    for name in names:
        topic = broker.log.create_topic(name)
        for index in range(10):
            topic.append("k", str(index))
        topic.seal()
    broker.log.create_topic("live")
    broker.log.run_retention(steps=["delete"])
    go_on, standing = threading.Event(), threading.Semaphore(0)
    read_sealed = sealed.read_sealed

    def held(table: SegmentTable, partition: int, offset: int) -> sealed.Stream:
        standing.release()
        assert go_on.wait(120)
        yield from read_sealed(table, partition, offset)

    monkeypatch.setattr(sealed, "read_sealed", held)

    def replay(name: str) -> int:
        with RawReader(broker.address, name) as reader:
            while reader.offset < 10:
                reader.fetch()
            return reader.offset

    with ThreadPoolExecutor(len(names)) as pool:
        replays = [pool.submit(replay, name) for name in names]
        try:
            for _ in range(sealed.THREADS):
                assert standing.acquire(timeout=180)
            got = follow(broker.address, 30)
            assert not any(each.done() for each in replays)
        finally:
            go_on.set()
        assert [each.result(180) for each in replays] == [10] * len(names)
    assert got == [str(index).encode() for index in range(30)]
