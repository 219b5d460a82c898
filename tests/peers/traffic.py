"""Records of many topics sent to a broker and read back through the same Kafka client, whichever broker it is."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.peers.workload import Change, Headers, Round, Workload

PATIENCE_S = 300

Place = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a consumer sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: tuple[int, int]
    """Its type, and the milliseconds."""


def send(address: str, works: Sequence[Workload], number: int) -> None:
    """One round of each workload, the sentinels alone behind it; every record must be acknowledged."""
    problems: list[KafkaError] = []
    rounds = [(work.topic, work.rounds[number]) for work in works]
    producers = {_way(each): _producer(address, each) for _, each in rounds}

    def produce(topic: str, change: Change, producer: Producer) -> None:
        producer.produce(
            topic,
            key=change.key,
            value=change.value,
            headers=list(change.headers),
            partition=change.partition,
            timestamp=change.timestamp_ms,
            on_delivery=lambda error, _: problems.append(error) if error else None,
        )
        producer.poll(0)

    for changes in (lambda each: each.changes, lambda each: each.sentinels):
        for topic, each in rounds:
            for change in changes(each):
                produce(topic, change, producers[_way(each)])
        for producer in producers.values():
            assert producer.flush(PATIENCE_S) == 0
    assert not problems, problems[:3]


def delete(address: str, works: Sequence[Workload], number: int) -> None:
    """Delete what a round of each workload says."""
    before = [
        TopicPartition(work.topic, partition, offset)
        for work in works
        for partition, offset in work.rounds[number].deleted.items()
    ]
    if before:
        admin = AdminClient({"bootstrap.servers": address, "log_level": 4})
        for future in admin.delete_records(before, request_timeout=PATIENCE_S).values():
            future.result(PATIENCE_S)


def _way(each: Round) -> tuple[str, int, bool]:
    return each.compression, each.batch_records, each.idempotent


def _producer(address: str, each: Round) -> Producer:
    return Producer(
        {
            "bootstrap.servers": address,
            "compression.type": each.compression,
            "enable.idempotence": each.idempotent,
            # Without idempotence, more than one request under way could change the order.
            "max.in.flight": 5 if each.idempotent else 1,
            "log_level": 4,
            "linger.ms": 1000,
            "batch.num.messages": each.batch_records,
            "queue.buffering.max.messages": 1_000_000,
        }
    )


def read(address: str, works: Iterable[Workload], starts: Mapping[Place, int]) -> dict[Place, list[Seen]]:
    """The records of each partition from an offset on, read up to the end. Workloads share the consumer of their fetch size."""
    found: dict[Place, list[Seen]] = {}
    for fetch_bytes, group in _by_fetch_bytes(works):
        places = [(work.topic, each) for work in group for each in range(work.partitions)]
        found |= {place: [] for place in places}
        for place, seen in _read(address, fetch_bytes, {place: starts[place] for place in places}):
            found[place].append(seen)
    return found


def read_topic(address: str, topic: str) -> list[Seen]:
    """The records of a topic of one partition."""
    return [seen for _, seen in _read(address, 1 << 20, {(topic, 0): 0})]


def _by_fetch_bytes(works: Iterable[Workload]) -> Iterator[tuple[int, list[Workload]]]:
    def fetch_bytes(work: Workload) -> int:
        return work.fetch_bytes

    for size, group in itertools.groupby(sorted(works, key=fetch_bytes), fetch_bytes):
        yield size, list(group)


def _read(address: str, fetch_bytes: int, starts: Mapping[Place, int]) -> Iterator[tuple[Place, Seen]]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reads",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "max.partition.fetch.bytes": fetch_bytes,
            "log_level": 4,
        }
    )
    consumer.assign([TopicPartition(topic, each, start) for (topic, each), start in starts.items()])
    waiting = set(starts)
    deadline = time.monotonic() + PATIENCE_S
    try:
        while waiting:
            assert time.monotonic() < deadline, f"{sorted(waiting)} at {address} did not come to an end"
            for message in consumer.consume(1000, 0.2):
                place = message.topic(), message.partition()
                if (error := message.error()) is None:
                    yield (
                        place,
                        Seen(
                            message.offset(),
                            message.key(),
                            message.value(),
                            tuple(message.headers() or ()),
                            message.timestamp(),
                        ),
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(place)
                else:
                    raise AssertionError(error)
    finally:
        consumer.close()


def offsets(address: str, asked: Mapping[Place, OffsetSpec]) -> dict[Place, int]:
    """What a broker answers when it is asked for an offset of each partition."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 4})
    wanted = {TopicPartition(*place): spec for place, spec in asked.items()}
    answers = admin.list_offsets(wanted, request_timeout=PATIENCE_S)
    return {
        (each.topic, each.partition): future.result(PATIENCE_S).offset for each, future in answers.items()
    }
