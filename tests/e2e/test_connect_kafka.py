"""The `kafka` connector: offsets with gaps, and consumer groups that go on here where they stood there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support.broker import INLINE, RunningBroker
from tests.support.forks import killed_at
from tests.support.kafka_clients import consume_in_group
from tests.support.server import Server
from tests.support.sources import Sources, running
from tests.support.waiting import wait_until

import lastword
from lastword import NewRecord
from lastword.connect.destination import DestinationReads, OwnDestination
from lastword.log import Log
from lastword.log.topic import Topic

CONFIG = {"compaction.service.factory": INLINE, "group.initial.rebalance.delay.ms": "0"}
PARTITIONS = 2
KEYS = 150


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Log]:
    with lastword.open(tmp_path / "other", config=CONFIG) as opened:
        yield opened


@pytest.fixture
def source_broker(other: Log) -> Iterator[RunningBroker]:
    with RunningBroker(other) as broker:
        yield broker


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with lastword.open(tmp_path / "data", config=CONFIG) as opened:
        yield opened


def compacted(log: Log, name: str = "events") -> Topic:
    """A topic with a gap at its beginning, gaps within, and some records behind the last compaction."""
    topic = log.create_topic(name, partitions=PARTITIONS, config={"cleanup.policy": "compact"})
    append(topic, 0, 1000)
    topic.seal()
    append(topic, 1000, 1300)
    topic.append(b"k3", None)
    topic.seal()
    log.compact([name], asked_for=True)
    append(topic, 1300, 1320)
    assert sum(1 for _ in topic.read()) < 400
    return topic


def append(topic: Topic, start: int, end: int) -> None:
    topic.append_many(
        NewRecord(
            key=b"k%d" % (number % KEYS), value=b"v%d" % number, timestamp_ms=1_700_000_000_000 + number
        )
        for number in range(start, end)
    )


def mirror(broker: RunningBroker, **config: Any) -> dict[str, Any]:
    return {
        "connector": "kafka",
        "config": {
            "bootstrap": broker.address,
            "topics": "events",
            "client": {"fetch.wait.max.ms": "50"},
            "groups_interval_ms": "200",
            **config,
        },
    }


def log_ends(topic: Topic) -> list[int]:
    return [each.log_end for each in topic.extents().values()]


def wait_for_all(sources: Sources, topic: Topic) -> None:
    """Until everything has been mirrored that the source has."""

    def there() -> bool:
        if "events" not in sources.log.topics():
            return False
        return sum(1 for _ in sources.log.topic("events").read()) >= sum(1 for _ in topic.read())

    sources.wait(there)


# --------------------------------------------------------------------------------------------------- offsets


def test_offsets_are_kept_with_their_gaps(other: Log, source_broker: RunningBroker, log: Log) -> None:
    topic = compacted(other)
    with running(log, {"mirror": mirror(source_broker)}) as sources:
        wait_for_all(sources, topic)
        here = log.topic("events")
        assert list(here.read()) == list(topic.read())
        append(topic, 2000, 2100)
        topic.seal()
        other.compact(["events"], asked_for=True)
        append(topic, 2100, 2120)
        sources.wait(lambda: sources.status()["details"]["partitions"] == PARTITIONS)
        wait_until(
            lambda: log_ends(here) == log_ends(topic),
            lambda: str(sources.status()),
        )
    theirs = [(each.partition, each.offset) for each in topic.read()]
    # Sealed and compacted here, too, and read from the gap.
    assert {(each.partition, each.offset) for each in here.read()} >= set(theirs)
    here.seal()
    log.compact(["events"], asked_for=True)
    state = {each.key: each for each in here.read()}
    assert state == {each.key: each for each in topic.read()}


def test_offsets_outlive_kills_at_every_step(
    tmp_path: Path, other: Log, source_broker: RunningBroker
) -> None:
    topic = compacted(other)
    folder = tmp_path / "data"

    def run() -> None:
        with (
            lastword.open(folder, config=CONFIG) as log,
            running(log, {"mirror": mirror(source_broker)}) as sources,
        ):
            wait_for_all(sources, topic)

    for number, step in enumerate(
        ("connect.journaled", "staged.noted", "wal.written", "staged.synced", "staged.committed")
    ):
        assert killed_at(step, run), step
        append(topic, 5000 + number * 10, 5010 + number * 10)
    run()
    with lastword.open(folder, config=CONFIG) as log:
        assert list(log.topic("events").read()) == list(topic.read())


def test_a_large_gap_at_the_beginning(other: Log, source_broker: RunningBroker, log: Log) -> None:
    topic = other.create_topic("events", partitions=1)
    append(topic, 0, 50)
    topic.delete_records({0: 45})
    with running(log, {"mirror": mirror(source_broker)}) as sources:
        wait_for_all(sources, topic)
    assert [each.offset for each in log.topic("events").read()] == [45, 46, 47, 48, 49]


def test_a_topic_that_others_write_to_can_not_keep_offsets(
    other: Log, source_broker: RunningBroker, log: Log
) -> None:
    topic = compacted(other)
    log.create_topic("events", partitions=PARTITIONS).append(b"k", b"mine", partition=1)
    with running(log, {"mirror": mirror(source_broker)}) as sources:
        error = sources.wait_for_error("can't keep their offsets")
        assert "topic 'events' partition 1" in error and "offsets: new" in error
    assert log.topic("events").extents()[0].log_end == 0
    with running(log, {"new": mirror(source_broker, offsets="new")}) as sources:
        wait_for_all(sources, topic)


def test_a_record_of_another_writer_stops_the_mirror_before_it_moves_offsets(
    other: Log, source_broker: RunningBroker, log: Log
) -> None:
    topic = compacted(other)
    with running(log, {"mirror": mirror(source_broker)}) as sources:
        wait_for_all(sources, topic)
        log.topic("events").append(b"k", b"mine", partition=0)
        append(topic, 3000, 3050)
        sources.wait_for_error("offsets: new")
    kept = [each.offset for each in log.topic("events").read(partition=0) if each.value != b"mine"]
    assert kept == [each.offset for each in topic.read(partition=0)][: len(kept)]
    lastword.connect.states.reset(log.path, "mirror")
    with running(log, {"mirror": mirror(source_broker, offsets="new")}) as sources:
        sources.wait(lambda: sources.status()["state"] == "running" and sources.status()["records"] > 100)


def test_the_way_of_offsets_does_not_change_underway(
    other: Log, source_broker: RunningBroker, log: Log
) -> None:
    topic = compacted(other)
    with running(log, {"mirror": mirror(source_broker)}) as sources:
        wait_for_all(sources, topic)
    with running(log, {"mirror": mirror(source_broker, offsets="new")}) as sources:
        sources.wait_for_error("`offsets: keep` continues that way")


def test_too_few_partitions_are_told(other: Log, source_broker: RunningBroker, log: Log) -> None:
    compacted(other)
    log.create_topic("events", partitions=1)
    with running(log, {"mirror": mirror(source_broker)}) as sources:
        sources.wait_for_error("partition 1 of topic 'events', which has 1")


# ---------------------------------------------------------------------------------------------------- groups


def consume(
    address: str, count: int | None, group: str = "readers"
) -> list[tuple[bytes | None, bytes | None]]:
    """Read so many records in a group, or all that there are, commit, and leave."""
    found = consume_in_group(address, "events", group, partitions=PARTITIONS, count=count)
    return [(key, value) for _, key, value in found]


def all_of(topic: Topic) -> list[tuple[bytes | None, bytes | None]]:
    return sorted((each.key, each.value) for each in topic.read())  # type: ignore[type-var]


@pytest.mark.parametrize("offsets", ["keep", "new"])
def test_a_group_goes_on_where_it_stood(
    tmp_path: Path, other: Log, source_broker: RunningBroker, offsets: str
) -> None:
    topic = compacted(other)
    everything = all_of(topic)
    first = consume(source_broker.address, len(everything) // 2)
    source = mirror(source_broker, offsets=offsets, groups=["read*", "none"])
    with lastword.open(tmp_path / "data", config=CONFIG) as log:
        if offsets == "new":
            # Something is there before, so that no offset is the same.
            before = log.create_topic("events", partitions=PARTITIONS, config={"cleanup.policy": "compact"})
            for partition in range(PARTITIONS):
                before.append(b"before", b"x", partition=partition)
        with running(log, {"mirror": source}) as sources:
            sources.wait(lambda: sources.status()["records"] == len(everything))
            sources.wait(
                lambda: sources.status()["details"].get("groups", {}).get("readers", {}).get("behind") == 0
            )
            assert sources.status()["details"]["groups_error"] is None
    with (
        lastword.open(tmp_path / "data", config=CONFIG) as log,
        RunningBroker(log) as broker,
    ):
        # It has committed nothing for a partition that it had not come to: there it begins with what was there before.
        second = [each for each in consume(broker.address, None) if each[0] != b"before"]
        assert sorted(first + second) == everything


def test_a_group_that_goes_on_here_is_left_alone(
    tmp_path: Path, other: Log, source_broker: RunningBroker
) -> None:
    """With a server: it is asked, follows what the group commits there, and stops when the group has moved here."""
    topic = compacted(other)
    everything = all_of(topic)
    half = consume(source_broker.address, len(everything) // 2)
    sources_file = tmp_path / "sources.yaml"
    sources_file.write_text(
        f"""
sources:
  mirror:
    connector: kafka
    config:
      bootstrap: {source_broker.address}
      topics: events
      groups: readers
      groups_interval_ms: 200
settings:
  topic:
    auto_create: true
    default_config: {{cleanup.policy: compact}}
"""
    )
    server = Server(tmp_path / "data", "--connect", str(sources_file))
    try:
        with server.client() as client:

            def status() -> dict[str, Any]:
                found: dict[str, Any] = client.get("/v1/connectors/mirror").json()
                return found

            def group() -> dict[str, Any]:
                found: dict[str, Any] = status()["details"].get("groups", {}).get("readers", {})
                return found

            wait_until(lambda: status()["records"] == len(everything), lambda: str(status()))
            wait_until(lambda: group().get("behind") == 0 and group()["partitions"], lambda: str(status()))
            # It goes on there for a while, and the mirror follows.
            more = consume(source_broker.address, 20)
            wanted = committed(source_broker.address)
            wait_until(lambda: committed(server.kafka) == wanted, lambda: str(status()))
            # Then it moves.
            rest = consume(server.kafka, 30)
            moved = committed(server.kafka)
            consume(source_broker.address, 10)
            wait_until(lambda: group().get("own", 0) > 0, lambda: str(status()))
            assert committed(server.kafka) == moved
            rest += consume(server.kafka, None)
            assert sorted(half + more + rest) == everything
    finally:
        server.stop()


def test_a_group_never_stands_behind_the_log_end(
    tmp_path: Path, other: Log, source_broker: RunningBroker
) -> None:
    """All that the group has read is gone in Kafka, so nothing was mirrored yet."""
    topic = other.create_topic("events", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        topic.append(b"k", b"v", partition=partition)
    consume(source_broker.address, PARTITIONS)
    topic.delete_records(dict.fromkeys(range(PARTITIONS), 1))
    with lastword.open(tmp_path / "data", config=CONFIG) as log:
        with running(log, {"mirror": mirror(source_broker, groups="readers")}) as sources:
            sources.wait(lambda: "readers" in sources.status()["details"].get("groups", {}))
        with RunningBroker(log) as broker:
            assert committed(broker.address) == dict.fromkeys(range(PARTITIONS), 0)
    with lastword.open(tmp_path / "data", config=CONFIG) as log:
        topic.append(b"k", b"later", partition=0)
        with running(log, {"mirror": mirror(source_broker, groups="readers")}) as sources:
            sources.wait(lambda: sources.status()["records"] == 1)
        with RunningBroker(log) as broker:
            assert consume(broker.address, None) == [(b"k", b"later")]
        assert [each.offset for each in log.topic("events").read()] == [1]


def committed(address: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "readers"})
    try:
        asked = [TopicPartition("events", each) for each in range(PARTITIONS)]
        return {each.partition: each.offset for each in consumer.committed(asked, timeout=180)}
    finally:
        consumer.close()


def test_the_place_behind_an_original_offset_is_found(log: Log) -> None:
    topic = log.create_topic("events", partitions=1)
    topic.append_many(
        NewRecord(key=b"k", value=b"v", headers=(("at", b"%d" % (number * 3)),) if number % 5 else ())
        for number in range(20_000)
    )
    topic.seal()
    reads = DestinationReads(OwnDestination(log))
    for number in (0, 1, 2, 7, 30_001, 59_990, 59_997, 10**9):
        below = [each for each in range(20_000) if each % 5 and each * 3 < number]
        assert reads.behind("events", 0, "at", number) == (below[-1] + 1 if below else 0), number
    assert reads.behind("events", 0, "nothing", 5) == 0


def test_offsets_without_records_at_the_end_are_no_lag(
    other: Log, source_broker: RunningBroker, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction has removed the last record there, as the marks of transactions are none: all is mirrored."""
    monkeypatch.setattr("lastword.connect.kafka.connector.REFRESH_S", 0.2)
    config = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
    topic = other.create_topic("events", partitions=PARTITIONS, config=config)
    for partition in range(PARTITIONS):
        topic.append(b"stays", b"v", partition=partition)
        topic.append(b"goes", None, partition=partition)
    consume(source_broker.address, 2 * PARTITIONS)
    topic.seal()
    for _ in range(3):
        other.compact(["events"], asked_for=True)
    assert [each.offset for each in topic.read()] == [0, 0]
    with running(log, {"mirror": mirror(source_broker, groups="readers")}) as sources:

        def details() -> dict[str, Any]:
            found: dict[str, Any] = sources.status()["details"]
            return found

        sources.wait(lambda: details().get("groups", {}).get("readers", {}).get("behind") == 0)
        sources.wait(lambda: details()["lag_records"] == 0)
        for partition in range(PARTITIONS):
            topic.append(b"later", b"v", partition=partition)
        sources.wait(lambda: sources.status()["records"] == 2 * PARTITIONS)
    assert [each.offset for each in log.topic("events").read()] == [0, 2] * PARTITIONS
