"""A group whose members come and go while the processes of a server are killed at random. It misses no last word.

tests/crash/test_history_soak.py is about everything else that clients see of such a server.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from tests.support.kafka_clients import create_topic
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

SETTINGS = """\
compaction.service.factory: lastword.compaction.inline:InlineCompactionServiceFactory
group.initial.rebalance.delay.ms: 0
worker.initial.delay.ms: 200
worker.interval.ms: 500
worker.nice: 0
seal.interval.ms: 300
deleter.interval.ms: 500
retention.interval.ms: 500
expire.interval.ms: 1000
snapshot.retention.ms: 5000
"""
TOPIC = "changes"
CONFIG = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.1",
    "segment_bytes": "65536",
    "tiering_lag_ms": "500",
    "local_retention_ms": "0",
}
PARTITIONS = 3
KEYS_A_PRODUCER = 50
END_S = 120.0


@dataclass
class Changes:
    """What one producer has sent and what was acknowledged; its keys are its own."""

    number: int
    sent: dict[bytes, int] = field(default_factory=dict)
    acked: dict[bytes, tuple[int, bool]] = field(default_factory=dict)
    places: dict[tuple[int, int], bytes] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def run(self, address: str, stopped: threading.Event) -> None:
        rng = random.Random(self.number)
        producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "message.timeout.ms": 180_000,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 50,
                "compression.type": rng.choice(["none", "lz4", "zstd"]),
                "linger.ms": 2,
                "log_level": 0,
            }
        )
        while not stopped.is_set():
            key = b"p%d-%d" % (self.number, rng.randrange(KEYS_A_PRODUCER))
            version = self.sent[key] = self.sent.get(key, 0) + 1
            is_delete = rng.random() < 0.05
            producer.produce(
                TOPIC,
                None if is_delete else b"%d" % version + b"x" * rng.randrange(200),
                key,
                headers=[("version", b"%d" % version)],
                on_delivery=lambda error, message, version=version, gone=is_delete: self._delivered(
                    error, message, version, gone
                ),
            )
            producer.poll(0.001)
        left = producer.flush(END_S)
        if left:
            self.failed.append(f"{left} records were not acknowledged")

    def _delivered(self, error: KafkaError | None, message: Message, version: int, gone: bool) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        key = message.key()
        assert key is not None
        place = (message.partition(), message.offset())
        if place in self.places:
            self.failed.append(f"{place} was given to {self.places[place]!r} and to {key!r}")
        self.places[place] = key
        if version > self.acked.get(key, (0, False))[0]:
            self.acked[key] = (version, gone)


@dataclass
class Group:
    """Two members that share the topic; one of them leaves and comes back again and again. At least once."""

    latest: dict[bytes, tuple[int, int | None]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    rebalances: int = 0

    def take(self, message: Message) -> None:
        key, offset = message.key() or b"", message.offset()
        assert offset is not None
        with self.lock:
            if offset >= self.latest.get(key, (-1, None))[0]:
                self.latest[key] = (offset, version_of(message))

    def run(self, address: str, stopped: threading.Event, stay_s: float) -> None:
        while not stopped.is_set():
            consumer = Consumer(
                {
                    **COMMON,
                    "bootstrap.servers": address,
                    "group.id": "group",
                    "session.timeout.ms": 6000,
                    "heartbeat.interval.ms": 300,
                }
            )
            consumer.subscribe([TOPIC], on_assign=self._assigned)
            leave_s = time.monotonic() + stay_s
            try:
                while not stopped.is_set() and time.monotonic() < leave_s:
                    taken = [each for each in consumer.consume(200, 0.2) if each.error() is None]
                    for message in taken:
                        self.take(message)
                    if taken:
                        try:
                            consumer.commit(asynchronous=False)
                        except KafkaException:
                            # Not stored: somebody reads it again.
                            continue
            finally:
                consumer.close()

    def _assigned(self, *_: object) -> None:
        self.rebalances += 1


COMMON = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "check.crcs": True,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}


def version_of(message: Message) -> int | None:
    headers = dict(message.headers() or ())
    version = int(headers["version"] or b"0")
    return None if message.value() is None else version


def kill_children(server: Server, seconds: float, rng: random.Random) -> int:
    kills = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        time.sleep(rng.uniform(1.0, 4.0))
        pid = server.child(rng.choice(["broker", "worker"])).pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            kills += 1
    return kills


def soak(data: Path, seconds: float, seed: int) -> None:
    changes = [Changes(number) for number in range(2)]
    group = Group()
    writing_ends, reading_ends = threading.Event(), threading.Event()
    with serving(data, settings=SETTINGS) as server:
        create_topic(server.kafka, TOPIC, PARTITIONS, **CONFIG)
        writers = [start(each.run, server.kafka, writing_ends) for each in changes]
        readers = [
            start(group.run, server.kafka, reading_ends, 10_000.0),
            start(group.run, server.kafka, reading_ends, 3.0),
        ]
        try:
            kills = kill_children(server, seconds, random.Random(seed))
            writing_ends.set()
            for thread in writers:
                thread.join(2 * END_S)
            expected: dict[bytes, int | None] = {}
            for each in changes:
                assert not each.failed, each.failed[:5]
                assert {key: version for key, (version, _) in each.acked.items()} == each.sent
                expected |= {key: None if gone else version for key, (version, gone) in each.acked.items()}
            wait_until(
                lambda: {key: version for key, (_, version) in group.latest.items()} == expected,
                "the group's state is what was acknowledged",
                patience_s=END_S,
            )
        finally:
            writing_ends.set()
            reading_ends.set()
            for thread in [*writers, *readers]:
                thread.join(2 * END_S)
        assert kills >= seconds / 6
        assert group.rebalances > 2


def start(run: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=run, args=args, daemon=True)
    thread.start()
    return thread


def test_a_group_misses_no_last_word_whoever_is_killed(tmp_path: Path) -> None:
    soak(tmp_path / "data", 12, 1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_minutes(tmp_path: Path) -> None:
    soak(tmp_path / "data", 600, 2)
