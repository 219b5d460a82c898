"""Commits of jobs beside the broker: from the moment that one is made, no fetch shows what it took away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.support.broker import INLINE, RunningBroker, running_broker
from tests.support.waiting import wait_until

import lastword
from lastword.errors import StorageError
from lastword.folder import steps
from lastword.log import Log
from lastword.segments.model import Snapshot
from lastword.segments.table import SegmentTable


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data") as running:
        yield running


@pytest.fixture
def job(broker: RunningBroker) -> Iterator[Log]:
    """The log as the worker has it open, beside the broker."""
    with lastword.open(
        broker.log.path, config={"compaction.service.factory": INLINE}, maintain_only=True
    ) as log:
        yield log


def fetched(broker: RunningBroker, offset: int = 0) -> list[tuple[int, bytes]] | str:
    """What a consumer that begins at an offset gets up to the end; librdkafka's name of its error if there is one."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "reads",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("t", 0, offset)])
    found: list[tuple[int, bytes]] = []
    try:
        while True:
            (message,) = consumer.consume(1, 60.0)
            if (error := message.error()) is None:
                found.append((message.offset(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            else:
                return str(error.name())
    finally:
        consumer.close()


@contextmanager
def stopped_at(step: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Stop whoever comes to a step first; an event says that it is there, the other lets it go on."""
    arrived, go_on = threading.Event(), threading.Event()

    def hook(name: str) -> None:
        if name == step and not arrived.is_set():
            arrived.set()
            assert go_on.wait(180)

    steps.install(hook)
    try:
        yield arrived, go_on
    finally:
        go_on.set()
        steps.install(None)


def filled(broker: RunningBroker, **config: object) -> None:
    topic = broker.log.create_topic("t", config=config)
    for number in range(4):
        topic.append("k", f"v{number}")
    # The broker has looked at the table, and knows what it was.
    assert fetched(broker) == [(number, b"v%d" % number) for number in range(4)]


def test_a_compaction_is_known_when_it_has_been_committed(broker: RunningBroker, job: Log) -> None:
    filled(broker, **{"cleanup.policy": "compact"})
    job.topic("t").seal()
    with stopped_at("commit.done") as (arrived, go_on), ThreadPoolExecutor(1) as pool:
        compaction = pool.submit(job.compact, ["t"], asked_for=True)
        assert arrived.wait(180)
        # The table has changed; the job has told nobody so far.
        assert fetched(broker) == [(3, b"v3")]
        go_on.set()
        assert [each.problem for each in compaction.result(180).partitions] == [None]
    assert fetched(broker) == [(3, b"v3")]


def test_fetches_go_on_while_a_commit_stands_still(broker: RunningBroker, job: Log) -> None:
    filled(broker, **{"cleanup.policy": "compact"})
    job.topic("t").seal()
    with stopped_at("commit.before") as (arrived, go_on), ThreadPoolExecutor(1) as pool:
        compaction = pool.submit(job.compact, ["t"], asked_for=True)
        assert arrived.wait(180)
        broker.log.topic("t").append("k", "v4")
        assert fetched(broker) == [(number, b"v%d" % number) for number in range(5)]
        go_on.set()
        compaction.result(180)
    assert fetched(broker) == [(3, b"v3"), (4, b"v4")]


def test_a_commit_that_fails_leaves_everything_as_it_was(broker: RunningBroker, job: Log) -> None:
    filled(broker, **{"cleanup.policy": "compact"})
    job.topic("t").seal()

    def fail(name: str) -> None:
        if name == "commit.before":
            raise StorageError("the object store does not answer")

    steps.install(fail)
    try:
        report = job.compact(["t"], asked_for=True)
        assert report.problems or report.failed_topics
    finally:
        steps.install(None)
    assert len(fetched(broker)) == 4


def test_records_are_gone_when_their_deletion_is_answered(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a look at the table had begun before, and ends after it."""
    filled(broker)
    look = SegmentTable.snapshot
    looking, go_on = threading.Event(), threading.Event()

    def slow_refresh(self: SegmentTable, snapshot_id: int | None = None) -> Snapshot:
        found = look(self, snapshot_id)
        if threading.current_thread().name.startswith("lastword-broker-refresh") and not looking.is_set():
            looking.set()
            assert go_on.wait(180)
        return found

    monkeypatch.setattr(SegmentTable, "snapshot", slow_refresh)
    topic = broker.log.topic("t")
    broker.on_loop(lambda: broker.broker._views.topic(topic).refresh())
    assert looking.wait(180)
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    (deleted,) = admin.delete_records([TopicPartition("t", 0, 3)]).values()
    # It is committed, and waits for what the broker knows.
    wait_until(lambda: topic.table.snapshot().positions[0].log_start == 3, "the deletion is committed")
    assert not deleted.done()
    go_on.set()
    deleted.result(180)
    assert fetched(broker) == "_AUTO_OFFSET_RESET"
    assert fetched(broker, 3) == [(3, b"v3")]
