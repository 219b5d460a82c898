"""Seeded changelogs, sent to any broker through one Kafka client, and read back from the beginning."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

BASE_MS = 1_760_000_000_000
SENTINEL = b"\x00sentinel"
"""A key of its own: Kafka never cleans the active segment, so the last record of a round must compete with none."""

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Change:
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Rounds of changes; after each round both sides compact."""

    seed: int
    compression: str
    batch_records: int
    rounds: tuple[tuple[Change, ...], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a consumer sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def workload(seed: int, rounds: int = 3) -> Workload:
    rng = random.Random(seed)
    keys = [rng.randbytes(rng.choice([1, 4, 20, 200])) for _ in range(rng.choice([1, 5, 40, 300]))]
    now_ms = BASE_MS
    made = []
    for _ in range(rounds):
        changes = []
        for _ in range(rng.randrange(1, 500)):
            now_ms += rng.choice([0, 0, 1, 7])
            changes.append(_change(rng, keys, now_ms))
        now_ms += 10_000
        changes.append(Change(SENTINEL + b"%d" % now_ms, b"", (), now_ms))
        made.append(tuple(changes))
    return Workload(seed, rng.choice(COMPRESSIONS), rng.choice([1, 10, 1000]), tuple(made))


def _change(rng: random.Random, keys: Sequence[bytes], now_ms: int) -> Change:
    match rng.randrange(10):
        case 0 | 1:
            value = None
        case 2:
            value = b""
        case 3:
            value = rng.randbytes(rng.randrange(20_000))
        case _:
            value = b'{"n":%d}' % rng.randrange(10**9)
    headers = tuple(
        (rng.choice(["a", "trace-id", "größe"]), rng.choice([None, b"", rng.randbytes(8)]))
        for _ in range(rng.choice([0, 0, 0, 1, 3]))
    )
    return Change(rng.choice(keys), value, headers, now_ms)


def send(address: str, topic: str, work: Workload, round_number: int) -> None:
    """One round, in batches of the workload's size, the last record alone; every one must be acknowledged."""
    problems: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": work.compression,
            "enable.idempotence": True,
            "log_level": 4,
            "linger.ms": 1000,
            "batch.num.messages": work.batch_records,
        }
    )
    for change in work.rounds[round_number]:
        if change.key.startswith(SENTINEL):
            assert producer.flush(60) == 0
        producer.produce(
            topic,
            key=change.key,
            value=change.value,
            headers=list(change.headers),
            timestamp=change.timestamp_ms,
            on_delivery=lambda error, _: problems.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not problems, problems


def read(address: str, topic: str) -> list[Seen]:
    return list(_read(address, topic))


def _read(address: str, topic: str) -> Iterator[Seen]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"reads-{topic}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 4,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + 60
    try:
        while True:
            assert time.monotonic() < deadline, f"{topic} at {address} did not come to its end"
            message = consumer.poll(1)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return
                raise AssertionError(error)
            yield Seen(
                message.offset(),
                message.key(),
                message.value(),
                tuple(message.headers() or ()),
                message.timestamp()[1],
            )
    finally:
        consumer.close()
