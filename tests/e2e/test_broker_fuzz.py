"""Frames that are no requests, or almost: the broker cuts their connections off and serves the others.

Seeded. The main suite sends 100,000 frames; `LASTWORD_FUZZ_FRAMES` asks for more (`make fuzz`).
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from tests.support.broker import RunningBroker, running_broker

from lastword import batch
from lastword.broker.wire import APIS, PRODUCE
from lastword.record import NewRecord

FRAMES = int(os.environ.get("LASTWORD_FUZZ_FRAMES", "100000"))
FRAMES_A_CONNECTION = 20
SEED = 5
CHANGES_THINGS = {19, 20, 37}
"""Their valid requests create and delete topics, which is another test's; mutated ones of theirs are sent all the same."""

HEADER = struct.Struct(">hhih")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data", {"auto.create.topics.enable": False}) as running:
        running.log.create_topic("t", partitions=2)
        yield running


def seeds() -> list[bytes]:
    """Valid requests of every API and version, as they stand in a frame."""
    found = []
    records = batch.encode([NewRecord(key=b"k", value=b"v" * 50)] * 5, now_ms=int(time.time() * 1000))
    for api in APIS.values():
        if api.key in CHANGES_THINGS:
            continue
        for version in range(api.served_from, api.max_version + 1):
            flexible = version >= api.flexible_from
            head = HEADER.pack(api.key, version, 1, 4) + b"fuzz" + (b"\0" if flexible else b"")
            if api.key == PRODUCE:
                if flexible:
                    body = (
                        b"\0\xff\xff\0\0\0\x01\x02\x02t\x02\0\0\0\0"
                        + varint(len(records) + 1)
                        + records
                        + b"\0\0\0"
                    )
                else:
                    body = (
                        b"\xff\xff\xff\xff\0\0\0\x01\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\0"
                        + struct.pack(">i", len(records))
                        + records
                    )
            else:
                try:
                    body = bytes(api.request(version=version).encode(version=version))
                except Exception:  # noqa: BLE001
                    # Some messages have no defaults for what they must have.
                    body = bytes(40)
            found.append(head + body)
    return found


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def mutated(seed: bytes, rng: random.Random) -> bytes:
    """A frame: the seed with some bytes changed, cut, doubled or put in, under a length that may lie."""
    data = bytearray(seed)
    kind = rng.random()
    if kind < 0.6:
        for _ in range(rng.choice((1, 1, 2, 4, 16))):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind < 0.75:
        del data[rng.randrange(4, len(data)) :]
    elif kind < 0.85:
        at = rng.randrange(len(data))
        data[at:at] = rng.randbytes(rng.randrange(1, 40))
    elif kind < 0.95:
        data[8:] = rng.randbytes(rng.randrange(0, 200))
    size = len(data)
    if rng.random() < 0.005:
        size = rng.choice((-1, 0, 3, 1 << 20, 1 << 30, (1 << 31) - 1, rng.randrange(1 << 31)))
    return struct.pack(">i", size) + data


def play(broker: RunningBroker, frames: list[bytes]) -> None:
    """Send frames over one connection, and read until the broker ends it."""
    host, port = broker.broker.address
    with socket.create_connection((host, port), 10) as client:
        client.settimeout(60)
        try:
            client.sendall(b"".join(frames))
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 16):
                pass
        except (ConnectionResetError, BrokenPipeError):
            return


def test_the_broker_survives_what_is_no_request(broker: RunningBroker) -> None:
    rng = random.Random(SEED)
    valid = seeds()
    process = psutil.Process()
    play(broker, [mutated(rng.choice(valid), rng) for _ in range(1000)])
    before_bytes = process.memory_info().rss
    sent = 0
    while sent < FRAMES:
        # Most connections end early: so each begins with what is almost right.
        frames = [mutated(rng.choice(valid), rng) for _ in range(FRAMES_A_CONNECTION)]
        play(broker, frames)
        sent += len(frames)
    assert process.memory_info().rss - before_bytes < 400 << 20
    deadline = time.monotonic() + 60
    while broker.connections and time.monotonic() < deadline:
        time.sleep(0.01)
    assert broker.connections == 0
    assert broker.on_loop(lambda: broker.broker.memory.used_bytes) == 0
    assert broker.on_loop(lambda: broker.broker.node.unsent_bytes) == 0
    producer = Producer({"bootstrap.servers": broker.address})
    ends = broker.log.topic("t").extents()
    producer.produce("t", b"still here", b"k", partition=1)
    assert producer.flush(60) == 0
    assert [each.value for each in broker.log.topic("t").read({0: "latest", 1: ends[1].log_end})] == [
        b"still here"
    ]


def test_one_line_for_a_connection_that_is_cut_off(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    play(broker, [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
    lines = [each for each in caplog.records if each.name == "lastword.broker.connection"]
    assert len(lines) == 1
    assert "closed the connection from 127.0.0.1" in lines[0].getMessage()
    assert "socket.request.max.bytes" in lines[0].getMessage()
