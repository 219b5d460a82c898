"""Where Kafka and Lastword differ, as docs/kafka.md says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from peers.client import alter, create
from peers.kafka import KafkaPeer
from tests.peers.traffic import offsets, read_topic
from tests.peers.workload import SENTINEL
from tests.support.cli import Cli
from tests.support.server import Server
from tests.support.waiting import wait_until

FIRST_MS = 1_760_000_000_000
ROLLS = {"segment.ms": "1000"}
LOADING = ROLLS | {"cleanup.policy": "delete", "retention.ms": "-1"}
CLEANING = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def test_kafka_refuses_a_null_key_and_we_keep_it_unless_told(kafka: KafkaPeer, ours: Server) -> None:
    for address, config in (
        (kafka.address, {"cleanup.policy": "compact"}),
        (ours.kafka, {"cleanup.policy": "compact", "null.key": "reject"}),
    ):
        create(address, "null-key", 1, config)
        assert "INVALID_RECORD" in _refusal(address, "null-key")
    create(ours.kafka, "null-key-kept", 1, {"cleanup.policy": "compact"})
    assert _refusal(ours.kafka, "null-key-kept") == ""
    assert [(seen.key, seen.value) for seen in read_topic(ours.kafka, "null-key-kept")] == [(None, b"v")]


def _refusal(address: str, topic: str) -> str:
    found: list[str] = []
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    producer.produce(
        topic, value=b"v", on_delivery=lambda error, _: found.append(error.name() if error else "")
    )
    producer.flush(30)
    return found[0]


def test_an_idle_tombstone_goes_here_and_stays_in_kafka(kafka: KafkaPeer, ours: Server) -> None:
    """Without anything new, Kafka never comes back for a tombstone whose time is over."""
    expiring = {"delete.retention.ms": "1"}
    create(kafka.address, "idle", 1, LOADING | expiring)
    create(ours.kafka, "idle", 1, {"cleanup.policy": "compact"} | expiring)
    for address in (kafka.address, ours.kafka):
        _send(address, "idle", [*(b"%d" % number for number in range(100)), None])
    alter(kafka.address, "idle", CLEANING)
    _wait_for_cleaner(kafka, "idle", 101)
    cli = Cli(ours.data)
    cli("topic", "compact", "idle")
    assert _offsets(kafka.address, "idle") == [100, 101]
    # The worker may have been there as well.
    assert _offsets(ours.kafka, "idle") in ([100, 101], [101])
    cli("topic", "compact", "idle")
    assert _offsets(ours.kafka, "idle") == [101]
    create(kafka.address, "busy", 1, LOADING)
    _send(kafka.address, "busy", [b"1", b"2"])
    alter(kafka.address, "busy", CLEANING)
    _wait_for_cleaner(kafka, "busy", 2)
    assert [each.topic for each in kafka.cleaner_passes()].count("idle") == 1
    assert _offsets(kafka.address, "idle") == [100, 101]


def _send(address: str, topic: str, values: Sequence[bytes | None]) -> None:
    """Values of one key, and a record that Kafka begins another segment for."""
    producer = Producer({"bootstrap.servers": address, "log_level": 4})
    for number, value in enumerate(values):
        producer.produce(topic, key=b"k", value=value, timestamp=FIRST_MS + number)
    assert producer.flush(60) == 0
    producer.produce(topic, key=SENTINEL, value=b"", timestamp=FIRST_MS + 60_000)
    assert producer.flush(60) == 0


def _wait_for_cleaner(kafka: KafkaPeer, topic: str, offset: int) -> None:
    wait_until(
        lambda: any(each.topic == topic and each.dirty_end >= offset for each in kafka.cleaner_passes()),
        f"Kafka's cleaner comes to {offset} of {topic}",
    )


def _offsets(address: str, topic: str) -> list[int]:
    return [seen.offset for seen in read_topic(address, topic)]


def test_a_time_is_found_behind_deleted_records_here_and_not_in_kafka(kafka: KafkaPeer, ours: Server) -> None:
    """Kafka looks in one segment: the first one that had a record so late, which may have been deleted."""
    found = []
    for address in (kafka.address, ours.kafka):
        create(address, "times", 1, LOADING)
        producer = Producer({"bootstrap.servers": address, "log_level": 4})
        for time_ms in (FIRST_MS + 100, FIRST_MS, FIRST_MS + 60_000):
            producer.produce("times", value=b"v", timestamp=time_ms)
            assert producer.flush(60) == 0
        admin = AdminClient({"bootstrap.servers": address, "log_level": 4})
        for future in admin.delete_records([TopicPartition("times", 0, 1)]).values():
            future.result(60)
        found.append(offsets(address, {("times", 0): OffsetSpec.for_timestamp(FIRST_MS + 50)}))
    assert found == [{("times", 0): -1}, {("times", 0): 2}]


def test_a_bad_setting_is_refused_by_both(kafka: KafkaPeer, ours: Server) -> None:
    for address in (kafka.address, ours.kafka):
        create(address, "settings", 1, {"cleanup.policy": "compact"})
        with pytest.raises(KafkaException):
            alter(address, "settings", {"min.cleanable.dirty.ratio": "2"})
