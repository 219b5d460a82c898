"""The first read after a change of the table, through a server as users run it: it shows the change."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.support.cli import Cli
from tests.support.server import serving

FETCH_BYTES = 50_000
OTHERS = 3_000


def produce(address: str, records: list[tuple[bytes, bytes | None]]) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "batch.size": 20_000})
    for key, value in records:
        producer.produce("users", key=key, value=value, partition=0)
    assert producer.flush(60) == 0


def read(address: str, start: int = 0) -> dict[bytes, list[bytes | None]]:
    """All values of each key that a new consumer with small fetches sees, to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "new",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.max.bytes": FETCH_BYTES,
            "max.partition.fetch.bytes": FETCH_BYTES,
            "message.max.bytes": FETCH_BYTES,
        }
    )
    # By its number: a client that asks where the log begins makes the broker look at the table.
    consumer.assign([TopicPartition("users", 0, start)])
    found: dict[bytes, list[bytes | None]] = {}
    try:
        while True:
            (message,) = consumer.consume(1, 60.0)
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.setdefault(message.key(), []).append(message.value())
    finally:
        consumer.close()


CHANGES = [
    (b"a", b"alive"),
    *((b"key-%d" % number, b"x" * 1024) for number in range(OTHERS)),
    (b"a", None),
]


def test_a_deleted_key_stays_deleted_for_the_first_consumer(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        cli = Cli(server.data)
        cli("topic", "create", "users", "--cleanup-policy", "compact", "--config", "delete.retention.ms=0")
        produce(server.kafka, CHANGES)
        cli("topic", "compact", "users")
        cli("topic", "compact", "users", "--force")
        seen = read(server.kafka)
        assert b"a" not in seen
        assert len(seen) == OTHERS


def test_erased_keys_are_gone_for_the_first_consumer(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        cli = Cli(server.data)
        cli("topic", "create", "users", "--cleanup-policy", "compact")
        produce(server.kafka, CHANGES[:-1])
        cli("topic", "compact", "users")
        assert read(server.kafka)[b"a"] == [b"alive"]
        cli("erase", "users", "--key", "a", "--yes")
        assert b"a" not in read(server.kafka)


def test_deleted_records_are_gone_for_the_first_consumer(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        Cli(server.data)("topic", "create", "users")
        produce(server.kafka, CHANGES)
        assert read(server.kafka)[b"a"] == [b"alive", None]
        admin = AdminClient({"bootstrap.servers": server.kafka})
        (deleted,) = admin.delete_records([TopicPartition("users", 0, 2)]).values()
        deleted.result(180)
        assert read(server.kafka, start=2)[b"a"] == [None]
        # Below the log start there is nothing any more: a consumer without a policy is told.
        with pytest.raises(AssertionError, match="_AUTO_OFFSET_RESET"):
            read(server.kafka, start=0)
