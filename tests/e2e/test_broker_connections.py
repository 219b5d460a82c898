"""Connections: order, memory, clients that don't read, many that are idle, and a stop that answers first."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka.protocol.consumer import FetchResponse
from tests.support.broker import RunningBroker, running_broker
from tests.support.memory import memory_folder
from tests.support.waiting import wait_until

from lastword import batch
from lastword.broker.connection import SCRATCH_BYTES
from lastword.broker.errors import ErrorCode
from lastword.broker.tail import Tail, TailBytes, WouldBlockError
from lastword.broker.wire import APIS
from lastword.record import NewRecord

MIB = 1 << 20


@pytest.fixture(params=["disk", "memory"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    """On both kinds of file systems: those that can say what is in the page cache, and those that can't, as tmpfs."""
    with (
        memory_folder() if request.param == "memory" else nullcontext(tmp_path) as folder,
        running_broker(folder / "data", {"queued.max.request.bytes": 8 * MIB, "wal.sync": "none"}) as running,
    ):
        running.log.create_topic("t", config={"max.message.bytes": 4 * MIB})
        yield running


def connect(broker: RunningBroker) -> socket.socket:
    client = socket.create_connection(broker.broker.address, 10)
    client.settimeout(60)
    return client


def produce_frame(correlation_id: int, value: bytes = b"v", *, acks: int = -1) -> bytes:
    records = batch.encode([NewRecord(key=b"k", value=value)], now_ms=int(time.time() * 1000))
    body = (
        struct.pack(">hhih", 0, 7, correlation_id, -1)
        + struct.pack(">hhi", -1, acks, 1000)
        + b"\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\0"
        + struct.pack(">i", len(records))
        + records
    )
    return struct.pack(">i", len(body)) + body


def request_frame(api_key: int, version: int, correlation_id: int, **fields: object) -> bytes:
    body = struct.pack(">hhih", api_key, version, correlation_id, -1)
    body += bytes(APIS[api_key].request(version=version, **fields).encode(version=version))
    return struct.pack(">i", len(body)) + body


def fetch_frame(
    correlation_id: int, offset: int, *, max_bytes: int = 50 * MIB, wait_ms: int = 0, min_bytes: int = 1
) -> bytes:
    topic = APIS[1].request.FetchTopic
    part = topic.FetchPartition(version=4, partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return request_frame(
        1,
        4,
        correlation_id,
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        topics=[topic(version=4, topic="t", partitions=[part])],
    )


def receive(client: socket.socket) -> tuple[int, bytes]:
    """An answer's correlation id and the rest of it."""
    (size,) = struct.unpack(">i", exactly(client, 4))
    data = exactly(client, size)
    return struct.unpack_from(">i", data)[0], data[4:]


def exactly(client: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        received = client.recv(size - len(data))
        assert received, f"the connection ended after {len(data)} of {size} bytes"
        data += received
    return bytes(data)


def test_pipelined_requests_are_answered_in_order(broker: RunningBroker) -> None:
    with connect(broker) as client:
        frames = []
        for number in range(300):
            if number % 3 == 0:
                frames.append(request_frame(18, 0, number))
            elif number % 3 == 1:
                frames.append(produce_frame(number))
            else:
                frames.append(fetch_frame(number, 0, max_bytes=100, wait_ms=10))
        client.sendall(b"".join(frames))
        assert [receive(client)[0] for _ in range(300)] == list(range(300))


def test_frames_that_come_byte_by_byte(broker: RunningBroker) -> None:
    with connect(broker) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in produce_frame(1) + request_frame(18, 0, 2):
            client.send(bytes((byte,)))
        assert [receive(client)[0] for _ in range(2)] == [1, 2]


def test_memory_of_requests_is_bounded(broker: RunningBroker) -> None:
    """Twenty requests of 3 MiB are begun at a time; 8 MiB may be in memory. All are served in the end."""
    most = 0
    clients = [connect(broker) for _ in range(20)]
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, broker.broker.memory.used_bytes)
            time.sleep(0.001)

    threads = [
        threading.Thread(target=client.sendall, args=(produce_frame(1, bytes(3 * MIB)),))
        for client in clients
    ]
    watcher = threading.Thread(target=watch)
    watcher.start()
    for thread in threads:
        thread.start()
    for client in clients:
        assert receive(client)[0] == 1
        client.close()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()
    assert 3 * MIB < most <= 9 * MIB
    wait_until(lambda: broker.broker.memory.used_bytes == 0)


def test_a_client_that_does_not_read_is_not_served_on(broker: RunningBroker) -> None:
    with connect(broker) as client:
        client.sendall(produce_frame(0, bytes(3 * MIB)))
        receive(client)
        client.sendall(b"".join(fetch_frame(number, 0) for number in range(1, 101)))
        wait_until(lambda: broker.broker.node.unsent_bytes > 0)
        time.sleep(0.2)
        # One answer waits, and not a hundred.
        assert broker.broker.node.unsent_bytes < 5 * MIB
        with connect(broker) as other:
            other.sendall(request_frame(18, 0, 5))
            assert receive(other)[0] == 5
        # When it reads, it gets them all.
        for number in range(1, 101):
            correlation_id, answer = receive(client)
            assert correlation_id == number and len(answer) > 3 * MIB
    wait_until(lambda: broker.broker.node.unsent_bytes == 0)


def test_thousands_of_idle_connections(broker: RunningBroker) -> None:
    clients = [connect(broker) for _ in range(2000)]
    wait_until(lambda: broker.connections >= 2000)
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("t", b"v")
    assert producer.flush(60) == 0
    for client in clients:
        client.close()
    wait_until(lambda: broker.connections < 20)


def test_connections_beyond_the_limit_and_idle_ones_are_closed(tmp_path: Path) -> None:
    settings = {"max.connections": 2, "connections.max.idle.ms": 500}
    with running_broker(tmp_path / "data", settings) as broker:
        first, second, third = connect(broker), connect(broker), connect(broker)
        assert third.recv(1) == b""
        assert first.recv(1) == b""
        assert second.recv(1) == b""
        for client in (first, second, third):
            client.close()


def test_small_requests_of_many_connections_stay_within_the_memory_too(broker: RunningBroker) -> None:
    frames = produce_frame(1, bytes(16_000)) * 8
    clients = [connect(broker) for _ in range(6)]
    for client in clients:
        # Behind this nothing is taken up until a record comes.
        client.sendall(fetch_frame(0, 0, wait_ms=60_000))
    sent = dict.fromkeys(clients, 0)
    for _ in range(40):
        for client in clients:
            client.setblocking(False)
            # Whole requests, each time: none of them must ask for memory first.
            with suppress(BlockingIOError):
                sent[client] += client.send(frames)
            client.settimeout(60)
        time.sleep(0.01)
    used = broker.on_loop(lambda: broker.broker.memory.used_bytes)
    assert 8 * MIB <= used <= 8 * MIB + len(clients) * SCRATCH_BYTES
    broker.log.topic("t").append("k", "v")
    for client, size_bytes in sent.items():
        whole, rest = divmod(size_bytes, len(frames) // 8)
        client.sendall(frames[rest : len(frames) // 8] if rest else b"")
        answers = [receive(client)[0] for _ in range(1 + whole + bool(rest))]
        assert answers == [0] + [1] * (len(answers) - 1)
        client.close()


def test_what_is_being_written_counts_when_its_client_has_gone(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    validate = batch.validate

    def held_up(data: memoryview, limits: batch.Limits) -> batch.BatchHeader:
        assert may_go_on.wait(180)
        return validate(data, limits)

    monkeypatch.setattr(batch, "validate", held_up)
    memory = broker.broker.memory
    try:
        for count in (1, 2):
            with connect(broker) as client:
                client.sendall(produce_frame(1, bytes(3 * MIB)) + produce_frame(2, bytes(1000)))
                wait_until(lambda count=count: memory.used_bytes > count * (3 * MIB + 1000))
            wait_until(lambda: broker.connections == 0)
            assert memory.used_bytes > count * (3 * MIB + 1000)
        with connect(broker) as client:
            # No request after all: nothing of it is kept.
            client.sendall(struct.pack(">ihhih", 12, 0, 7, 1, -1) + b"ab")
            assert client.recv(1) == b""
        assert memory.used_bytes < 2 * (3 * MIB + 2000)
    finally:
        may_go_on.set()
    wait_until(lambda: memory.used_bytes == 0)
    assert sum(1 for _ in broker.log.topic("t").read()) == 4


def test_a_stop_answers_what_it_has_taken_up(broker: RunningBroker) -> None:
    with connect(broker) as client, connect(broker) as waiting:
        waiting.sendall(fetch_frame(7, 0, wait_ms=600_000))
        client.sendall(b"".join(produce_frame(number, bytes(100_000)) for number in range(20)))
        receive(client)
        broker.stop()
        answered = 1
        while True:
            head = client.recv(4)
            if not head:
                break
            exactly(client, struct.unpack(">i", head)[0])
            answered += 1
        kept = sum(1 for _ in broker.log.topic("t").read())
        # Nothing is acknowledged that is not there; what was not taken up is neither.
        assert 1 <= answered <= kept <= 20
        assert receive(waiting)[0] == 7


def test_acks_0_gets_no_answer_and_an_error_ends_the_connection(broker: RunningBroker) -> None:
    with connect(broker) as client:
        client.sendall(produce_frame(1, acks=0) + produce_frame(2))
        assert receive(client)[0] == 2
        client.sendall(produce_frame(3, bytes(5 * MIB), acks=0))
        assert client.recv(1) == b""


def test_old_consumers_are_told_that_they_cant_read_zstd(broker: RunningBroker) -> None:
    broker.log.topic("t").append_many([NewRecord(key=b"k", value=b"v")], compression=batch.Compression.ZSTD)
    with connect(broker) as client:
        client.sendall(fetch_frame(1, 0))
        _, answer = receive(client)
    found = FetchResponse.decode(answer, version=4).responses[0].partitions[0]
    assert found.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert not found.records


def test_min_bytes_are_waited_for(broker: RunningBroker) -> None:
    topic = broker.log.topic("t")
    with connect(broker) as client:
        client.sendall(fetch_frame(1, 0, wait_ms=20_000, min_bytes=3000))
        for number in range(30):
            topic.append("k", bytes(100))
            if number == 10:
                client.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    client.recv(1)
                client.settimeout(60)
        _, answer = receive(client)
        assert len(answer) >= 3000
        # When the time is over, it is what there is.
        client.sendall(fetch_frame(2, 29, wait_ms=100, min_bytes=3000))
        _, answer = receive(client)
        assert 100 < len(answer) < 1000


@pytest.mark.parametrize("where", ["tail", "sealed"])
@pytest.mark.parametrize("min_bytes", [100_000, 200 * MIB])
def test_min_bytes_are_not_waited_for_where_max_bytes_keep_them_back(
    broker: RunningBroker, where: str, min_bytes: int
) -> None:
    topic = broker.log.topic("t")
    for _ in range(20):
        topic.append("k", bytes(16_000))
    if where == "sealed":
        topic.seal()
    with connect(broker) as client:
        # Had it waited, the answer would come after this client's patience.
        client.sendall(fetch_frame(1, 0, wait_ms=600_000, min_bytes=min_bytes, max_bytes=100_000))
        _, answer = receive(client)
        assert 16_000 < len(answer) < 100_000


def test_a_fetch_that_waits_for_more_keeps_nothing_meanwhile(broker: RunningBroker) -> None:
    topic = broker.log.topic("t")
    for _ in range(10):
        topic.append("k", bytes(100_000))
    with connect(broker) as client:
        client.sendall(fetch_frame(1, 0, wait_ms=600_000, min_bytes=10 * MIB))
        fetches = broker.broker._fetches
        wait_until(lambda: bool(fetches.waiting))
        topic.append("k", bytes(100_000))

        def kept_bytes() -> int:
            found = [part for each in fetches.waiting for _, _, parts in each._topics for part in parts]
            assert len(found) == 1
            return sum(map(len, found[0].pieces))

        assert broker.on_loop(kept_bytes) == 0
        for _ in range(4):
            topic.append("k", bytes(3 * MIB))
        _, answer = receive(client)
        assert len(answer) >= 10 * MIB


def test_records_that_arrive_during_a_read_wake_a_fetch_that_waits_for_more(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, may_end = threading.Event(), threading.Event()
    real = Tail.read

    def slow(self: Tail, offset: int, max_bytes: int, *, inline: bool) -> TailBytes:
        if inline:
            raise WouldBlockError
        found = real(self, offset, max_bytes, inline=False)
        read.set()
        assert may_end.wait(60)
        return found

    monkeypatch.setattr(Tail, "read", slow)
    topic = broker.log.topic("t")
    topic.append("k", bytes(100_000))
    with connect(broker) as client:
        # Had it waited for its time, the answer would come after this client's patience.
        client.sendall(fetch_frame(1, 0, wait_ms=600_000, min_bytes=10 * MIB))
        assert read.wait(60)
        for _ in range(4):
            topic.append("k", bytes(3 * MIB))
        may_end.set()
        _, answer = receive(client)
        assert len(answer) >= 10 * MIB


@pytest.mark.parametrize("version", range(4, 18))
def test_fetch_of_every_version(broker: RunningBroker, version: int) -> None:
    topic = broker.log.topic("t")
    topic.append("k", "v")
    request = APIS[1].request
    parts = [
        request.FetchTopic.FetchPartition(
            version=version, partition=index, fetch_offset=0, partition_max_bytes=1000
        )
        for index in (0, 9)
    ]
    name = {"topic": "t"} if version < 13 else {"topic_id": topic.id}
    message = request(
        version=version,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1000,
        topics=[request.FetchTopic(version=version, partitions=parts, **name)],
    )
    flexible = version >= 12
    body = struct.pack(">hhih", 1, version, 3, -1) + (b"\0" if flexible else b"")
    body += bytes(message.encode(version=version))
    first = second = None
    with connect(broker) as client:
        # An error of one partition is answered at once, also while another one is being looked up.
        while first is None or not first.records:
            client.sendall(struct.pack(">i", len(body)) + body)
            correlation_id, answer = receive(client)
            assert correlation_id == 3
            answered = FetchResponse.decode(answer[1:] if flexible else answer, version=version).responses[0]
            first, second = answered.partitions
    assert (first.error_code, first.high_watermark) == (0, 1)
    assert [header.record_count for header, _ in batch.split(bytes(first.records))] == [1]
    assert second.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
