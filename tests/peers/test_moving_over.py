"""Moving over from a real Kafka: a compacted topic with its offsets, and a consumer group that goes on here."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from peers.client import alter, create
from peers.kafka import KafkaPeer
from tests.support.broker import INLINE, RunningBroker
from tests.support.kafka_clients import Taken, consume_in_group
from tests.support.sources import running
from tests.support.waiting import wait_until

import lastword

TOPIC = "moving"
PARTITIONS = 2
KEYS = 50


def send(address: str, start: int, end: int, time_ms: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(start, end):
        producer.produce(
            TOPIC,
            key=b"k%d" % (number % KEYS),
            value=b"v%d" % number,
            partition=number % PARTITIONS,
            timestamp=time_ms,
            headers=[("n", b"%d" % number)],
        )
    assert producer.flush(30) == 0


def consume(address: str, count: int | None, group: str) -> list[Taken]:
    return consume_in_group(address, TOPIC, group, partitions=PARTITIONS, count=count, patience_s=90)


@pytest.mark.parametrize("offsets", ["keep", "new"])
def test_a_group_moves_over_without_gap_or_double(kafka: KafkaPeer, tmp_path: Path, offsets: str) -> None:
    group = f"movers-{offsets}"
    if offsets == "keep":
        make_compacted(kafka)
    everything = consume(kafka.address, None, f"all-{offsets}")
    assert len(everything) < 600, "Kafka's cleaner has left gaps"
    first = consume(kafka.address, len(everything) // 2, group)
    source = {
        "connector": "kafka",
        "config": {
            "bootstrap": kafka.address,
            "topics": TOPIC,
            "offsets": offsets,
            "groups": "movers-*",
            "groups_interval_ms": "300",
        },
    }
    config = {"compaction.service.factory": INLINE, "group.initial.rebalance.delay.ms": "0"}
    with lastword.open(tmp_path / "data", config=config) as log, running(log, {"mirror": source}) as sources:
        sources.wait(lambda: sources.status()["records"] == len(everything))
        sources.wait(
            lambda: sources.status()["details"].get("groups", {}).get(group, {}).get("partitions", 0) > 0
        )
    with lastword.open(tmp_path / "data", config=config) as log, RunningBroker(log) as broker:
        second = consume(broker.address, None, group)
    if offsets == "keep":
        assert sorted(first + second) == sorted(everything)
    assert sorted(each[1:] for each in first + second) == sorted(each[1:] for each in everything)


def make_compacted(kafka: KafkaPeer) -> None:
    create(
        kafka.address,
        TOPIC,
        PARTITIONS,
        {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.0001"},
    )
    now_ms = int(time.time() * 1000)
    send(kafka.address, 0, 500, now_ms - 60_000)
    # Later by more than segment.ms, so that Kafka begins another segment.
    send(kafka.address, 500, 600, now_ms)
    wait_until(
        lambda: (
            {each.partition for each in kafka.cleaner_passes() if each.topic == TOPIC}
            == set(range(PARTITIONS))
        ),
        "Kafka's cleaner has come",
    )
    # No more passes: the topic shall stand still from now on.
    alter(kafka.address, TOPIC, {"cleanup.policy": "delete", "retention.ms": "-1", "segment.ms": "604800000"})
