"""What must not stop the broker or leave a client waiting: a full disk, files that can't be opened, odd requests."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka.protocol.consumer import FetchResponse
from tests.support.broker import RunningBroker, running_broker
from tests.support.raw_client import RawClient
from tests.support.small_disk import small_disk

from lastword.broker import reopener, server
from lastword.broker.errors import ErrorCode
from lastword.broker.groups.records import group_record
from lastword.broker.wire import APIS, FETCH
from lastword.errors import LastwordError, RecordTooLargeError, StorageError, UnavailableError
from lastword.folder.paths import PRODUCERS_FILE as PRODUCERS_FILE
from lastword.log.topic import Topic
from lastword.segments.table import SegmentTable


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data") as running:
        running.log.create_topic("t")
        yield running


def producer(broker: RunningBroker, timeout_ms: int = 60_000) -> Producer:
    return Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": True,
            "delivery.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )


def produce(client: Producer, values: list[bytes]) -> int:
    """How many were acknowledged."""
    acknowledged: list[bytes] = []

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.append(message.value())

    for value in values:
        client.produce("t", value=value, callback=delivered)
    client.flush(90)
    return len(acknowledged)


def test_a_partition_goes_on_when_its_disk_has_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reopener, "FIRST_PAUSE_S", 0.2)
    with small_disk(tmp_path / "disk", "16m") as disk, running_broker(disk.path / "data") as broker:
        topic = broker.log.create_topic("t")
        assert produce(producer(broker), [b"before"]) == 1
        disk.fill(but_bytes=64 << 10)
        assert produce(producer(broker, 3000), [b"x" * 500_000]) == 0
        assert topic.writer(0).failed is not None
        disk.free()
        assert produce(producer(broker), [b"after"]) == 1
        assert topic.writer(0).failed is None
        assert [each.value for each in topic.read()] == [b"before", b"after"]


def test_appends_go_on_after_a_file_could_not_be_read(broker: RunningBroker) -> None:
    # A folder in its place is an error of the system that nothing expects.
    in_the_way = broker.log.topic("t").writer(0).folder / PRODUCERS_FILE
    in_the_way.mkdir()
    assert produce(producer(broker, 2000), [b"a"]) == 0
    in_the_way.rmdir()
    assert produce(producer(broker), [b"b"]) == 1


def test_a_fetch_without_a_topics_id_is_answered(broker: RunningBroker) -> None:
    topic = APIS[FETCH].request.FetchTopic
    part = topic.FetchPartition(version=13, partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = APIS[FETCH].request(
        version=13,
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1000,
        isolation_level=0,
        topics=[topic(version=13, topic_id=UUID(int=0), partitions=[part])],
    )
    with RawClient(broker.address) as client:
        answer = client.ask(request, FetchResponse, 13)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_an_answer_that_cant_be_written_ends_its_connection(broker: RunningBroker) -> None:
    # The message would name the topic, and be longer than a text of this version can be.
    name = b"n" * 32_760
    body = struct.pack(">hhih", 0, 8, 1, -1) + struct.pack(">hhi", -1, -1, 1000)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, 0, 0)
    with RawClient(broker.address) as client:
        client._socket.settimeout(60)
        client._socket.sendall(struct.pack(">i", len(body)) + body)
        assert client._socket.recv(1) == b""
    assert produce(producer(broker), [b"a"]) == 1


def test_commits_go_on_after_an_unexpected_error(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, faults = Topic.append_internal, [RuntimeError("of the test")]

    def failing(topic: Topic, records: Any) -> Any:
        if faults:
            raise faults.pop()
        return append(topic, records)

    monkeypatch.setattr(Topic, "append_internal", failing)
    client = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
    offsets = [TopicPartition("t", 0, 7)]
    deadline = time.monotonic() + 60
    while True:
        try:
            client.commit(offsets=offsets, asynchronous=False)
            break
        except KafkaException:
            assert time.monotonic() < deadline
    assert not faults
    assert client.committed(offsets, 10)[0].offset == 7
    client.close()


def test_what_is_too_large_fails_alone(broker: RunningBroker) -> None:
    """Everything that waits for the same write is tried again one by one."""
    store = broker.broker.group_service._store
    results: dict[str, LastwordError | None] = {}
    written = threading.Semaphore(0)

    def done(name: str, error: LastwordError | None) -> None:
        results[name] = error
        written.release()

    def queue() -> None:
        for name, size_bytes in (("before", 10), ("large", 17 << 20), ("after", 10)):
            store.write([group_record(name, None), (name.encode(), bytes(size_bytes))], partial(done, name))

    broker.on_loop(queue)
    for _ in range(3):
        assert written.acquire(timeout=180)
    assert isinstance(results.pop("large"), RecordTooLargeError)
    assert results == {"before": None, "after": None}


def test_a_connection_that_cant_be_taken_is_tried_again(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "ACCEPT_PAUSE_S", 0.2)
    listener = broker.broker._listener
    assert listener is not None

    class Refusing:
        """Has no file left for half a second."""

        until_s = time.monotonic() + 0.5

        def accept(self) -> Any:
            if time.monotonic() < self.until_s:
                raise OSError(24, "Too many open files")
            return listener.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

    monkeypatch.setattr(broker.broker, "_listener", Refusing())
    assert produce(producer(broker), [b"a"]) == 1
    said = [each for each in caplog.records if "can't accept another connection" in each.getMessage()]
    assert 1 <= len(said) <= 5


def test_a_topic_that_could_not_be_opened_at_the_start_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reopener, "FIRST_PAUSE_S", 0.1)
    settings = {"auto.create.topics.enable": False}
    with running_broker(tmp_path / "data", settings) as broker:
        broker.log.create_topic("t").append("k", "v")
    folder = tmp_path / "data" / "warehouse" / "default" / "t"
    away = folder.rename(tmp_path / "away")
    with running_broker(tmp_path / "data", settings) as broker:
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
        try:
            assert "t" not in consumer.list_topics(timeout=180).topics
            away.rename(folder)
            deadline_s = time.monotonic() + 60
            while "t" not in consumer.list_topics(timeout=180).topics and time.monotonic() < deadline_s:
                time.sleep(0.05)
            assert consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=180) == (0, 1)
            assert broker.broker.node.unopened == set()
        finally:
            consumer.close()


def test_a_topic_of_which_nobody_knows_whether_it_was_deleted_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reopener, "FIRST_PAUSE_S", 0.1)
    with running_broker(tmp_path / "data", {"auto.create.topics.enable": False}) as broker:
        broker.log.create_topic("t").append("k", "v")
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0})
        try:
            with monkeypatch.context() as patched:

                def failing(*_: Any, **__: Any) -> Any:
                    raise StorageError("the catalog does not answer")

                patched.setattr(SegmentTable, "alter", failing)
                with pytest.raises(UnavailableError, match="is not known"):
                    broker.log.delete_topic("t")
                assert "t" not in consumer.list_topics(timeout=180).topics
            deadline_s = time.monotonic() + 60
            while "t" not in consumer.list_topics(timeout=180).topics and time.monotonic() < deadline_s:
                time.sleep(0.05)
            assert produce(producer(broker), [b"a"]) == 1
            assert broker.log.topic("t").extents()[0].log_end == 2
            assert broker.log.undecided() == set()
        finally:
            consumer.close()
