"""The same changelogs through the same client to Kafka and to Lastword: after compaction the same records are left.

Lastword runs as its users run it: `lastword serve` at default settings, with its worker and Spark. What is compared is
the first read after each compaction, by offsets and not by asking where the log begins, so that nothing makes the broker
look at the table before it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from peers.client import alter, create
from peers.kafka import KafkaPeer
from tests.peers.workload import BASE_MS, SENTINEL, Workload, read, send, workload
from tests.support.cli import Cli
from tests.support.server import Server, serving

SEEDS = int(os.environ.get("LASTWORD_SEEDS", "60"))
ROUNDS = 3

LOADING = {"cleanup.policy": "delete", "retention.ms": "-1", "segment.ms": "1000", "segment.bytes": "1048576"}
CLEANING = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0001"}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("lastword") / "data", settings="") as server:
        yield server


def clean_kafka(kafka: KafkaPeer, ends: dict[str, int]) -> None:
    """Wait until the cleaner has come to the given offset of each topic."""
    deadline = time.monotonic() + 90
    waiting = dict(ends)
    while waiting:
        done = {(each.topic, each.dirty_end) for each in kafka.cleaner_passes()}
        waiting = {t: end for t, end in waiting.items() if not any(n == t and e >= end for n, e in done)}
        assert time.monotonic() < deadline, f"Kafka's cleaner did not come to {waiting}"
        time.sleep(0.1)


@pytest.mark.timeout(3600)
def test_the_same_records_are_left(kafka: KafkaPeer, ours: Server) -> None:
    works: dict[str, Workload] = {f"seed-{seed}": workload(seed, ROUNDS) for seed in range(SEEDS)}
    for topic in works:
        create(kafka.address, topic, 1, LOADING)
        create(ours.kafka, topic, 1, {"cleanup.policy": "compact"})
    ends = dict.fromkeys(works, 0)
    dropped = 0
    cli = Cli(ours.data)
    for round_number in range(ROUNDS):
        for topic, work in works.items():
            send(kafka.address, topic, work, round_number)
            send(ours.kafka, topic, work, round_number)
            ends[topic] += len(work.rounds[round_number])
        for topic in works:
            alter(kafka.address, topic, CLEANING)
            cli("topic", "seal", topic)
        cli("compact", "--all")
        clean_kafka(kafka, {topic: end - 1 for topic, end in ends.items()})
        for topic in works:
            theirs = read(kafka.address, topic)
            assert read(ours.kafka, topic) == theirs, f"{topic}, round {round_number}"
            dropped += ends[topic] - len(theirs)
    assert dropped > 1000 * ROUNDS


# ------------------------------------------------------------------------- where the two differ, as documented


def test_kafka_refuses_a_null_key_and_we_keep_it_unless_told(kafka: KafkaPeer, ours: Server) -> None:
    for address, config in (
        (kafka.address, {"cleanup.policy": "compact"}),
        (ours.kafka, {"cleanup.policy": "compact", "null.key": "reject"}),
    ):
        create(address, "null-key", 1, config)
        assert "INVALID_RECORD" in _refusal(address, "null-key")
    create(ours.kafka, "null-key-kept", 1, {"cleanup.policy": "compact"})
    assert _refusal(ours.kafka, "null-key-kept") == ""
    assert [(seen.key, seen.value) for seen in read(ours.kafka, "null-key-kept")] == [(None, b"v")]


def _refusal(address: str, topic: str) -> str:
    found: list[str] = []
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    producer.produce(
        topic, value=b"v", on_delivery=lambda error, _: found.append(error.name() if error else "")
    )
    producer.flush(30)
    return found[0]


@pytest.mark.timeout(1200)
def test_an_idle_tombstone_goes_here_and_stays_in_kafka(kafka: KafkaPeer, tmp_path: Path) -> None:
    """Without anything new, Kafka never comes back for a tombstone whose time is over."""
    with serving(tmp_path / "data", settings="") as ours:
        cli = Cli(ours.data)
        for address, config in (
            (kafka.address, {**LOADING, "delete.retention.ms": "1"}),
            (ours.kafka, {"cleanup.policy": "compact", "delete.retention.ms": "1"}),
        ):
            create(address, "idle", 1, config)
            producer = Producer({"bootstrap.servers": address})
            for number in range(100):
                producer.produce("idle", key=b"k", value=b"%d" % number, timestamp=BASE_MS + number)
            producer.produce("idle", key=b"k", value=None, timestamp=BASE_MS + 200)
            producer.flush(30)
            producer.produce("idle", key=SENTINEL, value=b"", timestamp=BASE_MS + 60_000)
            producer.flush(30)
        alter(kafka.address, "idle", CLEANING)
        clean_kafka(kafka, {"idle": 101})
        cli("topic", "compact", "idle")
        first = [seen.offset for seen in read(kafka.address, "idle")]
        assert first == [seen.offset for seen in read(ours.kafka, "idle")] == [100, 101]
        time.sleep(3)
        cli("topic", "compact", "idle")
        assert [seen.offset for seen in read(ours.kafka, "idle")] == [101]
        assert [seen.offset for seen in read(kafka.address, "idle")] == [100, 101]


def test_a_bad_setting_is_refused_by_both(kafka: KafkaPeer, ours: Server) -> None:
    for address in (kafka.address, ours.kafka):
        create(address, "settings", 1, {"cleanup.policy": "compact"})
        with pytest.raises(KafkaException):
            alter(address, "settings", {"min.cleanable.dirty.ratio": "2"})
