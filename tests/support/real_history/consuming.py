"""Consumers that write down what they read, and groups that commit how far they have read.

Clients fetch ahead. So that a recorded read begins before its request is sent, each one assigns the partition
anew, which throws away what was fetched before.
"""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from tests.support.real_history.embedded import Look
from tests.support.real_history.plan import ClientPlan, TopicPlan
from tests.support.real_history.recording import QUIET, Surroundings, code_of

from lastword.errors import LastwordError
from lastword.testing.history import SeenRecord
from lastword.testing.history.recorder import PendingFetch

READ_S: Final = 10.0
"""How long one recorded read may take."""
ASKED_S: Final = 10.0
COMMON: Final = {
    **QUIET,
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "check.crcs": True,
    "allow.auto.create.topics": False,
}


class RecordingConsumer:
    """Reads partitions from the beginning, from anywhere, and on from where it stopped."""

    def __init__(self, around: Surroundings, plan: ClientPlan) -> None:
        self._around = around
        self._name = plan.name
        self._chance = around.chance(plan.name)
        self._consumer = _consumer(around.served.kafka, plan)
        self._followed: dict[tuple[str, int], tuple[str, int]] = {}
        """The sessions that go on, and where."""

    def run(self) -> None:
        """Read until the end."""
        chance = self._chance
        while not self._around.ended.is_set():
            topic = chance.choice(self._around.topics)
            partition = chance.randrange(topic.partitions)
            match chance.choice(["all", "all", "on", "on", "on", "anywhere"]):
                case "all":
                    self.read_all(topic, partition, chance.choice([20, 500, 100_000]))
                case "on":
                    self._read_on(topic, partition)
                case "anywhere":
                    self._read_anywhere(topic, partition)
            self._around.pause(chance.choice([0.0, 0.05, 1.0]))
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def read_all(self, topic: TopicPlan, partition: int, records: int = 100_000) -> bool:
        """Read a partition from its log start to its end, with so many records in each read. Return whether it did."""
        low = self._low(topic, partition)
        if low is None:
            return False
        session = f"{self._name} {next(self._around.numbers)}"
        self._followed[topic.name, partition] = session, low
        at: int | None = low
        while at is not None and not (self._around.ended.is_set() and not self._around.at_peace.is_set()):
            at, is_end = self._read(topic, partition, at, session, records, is_first=at == low)
            if at is not None:
                self._followed[topic.name, partition] = session, at
            if is_end:
                return True
        return False

    # ------------------------------------------------------------------------------------------- reading

    def _read_on(self, topic: TopicPlan, partition: int) -> None:
        """Read on in a session that began some time ago."""
        session, at = self._followed.get((topic.name, partition), ("", -1))
        if at < 0:
            self.read_all(topic, partition)
            return
        following, _ = self._read(topic, partition, at, session, 1_000)
        if following is None:
            # The topic may be another one, or its log start may have passed this place.
            self._followed.pop((topic.name, partition))
        else:
            self._followed[topic.name, partition] = session, following

    def _read_anywhere(self, topic: TopicPlan, partition: int) -> None:
        try:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(topic.name, partition), ASKED_S)
        except KafkaException:
            return
        session = f"{self._name} {next(self._around.numbers)}"
        self._read(topic, partition, self._chance.randint(low, high), session, 50)

    def _low(self, topic: TopicPlan, partition: int) -> int | None:
        """Return the log start, as the broker tells it."""
        with self._around.recorder.positions(topic.name, partition, process=self._name) as pending:
            try:
                low, high = self._consumer.get_watermark_offsets(
                    TopicPartition(topic.name, partition), ASKED_S
                )
            except KafkaException as error:
                pending.refused(error)
                return None
            pending.returned(log_start=low, log_end=high)
            return int(low)

    def _read(
        self, topic: TopicPlan, partition: int, at: int, session: str, records: int, *, is_first: bool = False
    ) -> tuple[int | None, bool]:
        """Read from an offset on. Return where to go on, None after an error, and whether that is the end."""
        before = self._look(topic, partition)
        with self._around.recorder.fetch(
            topic.name, partition, at, session=session, process=self._name
        ) as pending:
            found = self._take(topic, partition, at, records)
            after = self._look(topic, partition)
            if found.error is not None and not found.records:
                pending.doubt(found.error)
                return None, False
            following = (
                found.end if found.end is not None else found.records[-1].offset + 1 if found.records else at
            )
            is_same = before is not None and after is not None and before.topic_id == after.topic_id
            self._returned(
                pending, topic, partition, at, found, following, before if is_same else None, is_first
            )
            return following, found.end is not None

    def _returned(
        self,
        pending: PendingFetch,
        topic: TopicPlan,
        partition: int,
        at: int,
        found: _Found,
        following: int,
        known: Look | None,
        is_first: bool,
    ) -> None:
        log_start = None
        if is_first and found.error is None:
            try:
                low, _ = self._consumer.get_watermark_offsets(TopicPartition(topic.name, partition), ASKED_S)
                # It was this one all the time, because it never goes back.
                log_start = at if low == at else None
            except KafkaException:
                log_start = None
        pending.returned(
            found.records,
            following,
            log_start=log_start,
            high_watermark=found.end,
            # At least: the answer may be by a newer snapshot.
            first_dirty=None if known is None else known.first_dirty,
        )

    def _look(self, topic: TopicPlan, partition: int) -> Look | None:
        """Return the positions of a partition, without recording that; None if they can't be told."""
        try:
            return self._around.oracle.look(topic.name, partition)
        except (LastwordError, OSError, IndexError, KeyError):
            return None

    def _take(self, topic: TopicPlan, partition: int, at: int, most: int) -> _Found:
        """Take what comes from an offset on, up to the end, or as many records as are wanted."""
        found = _Found()
        deadline_s = time.monotonic() + READ_S
        try:
            self._consumer.assign([TopicPartition(topic.name, partition, at)])
            while len(found.records) < most and time.monotonic() < deadline_s:
                for message in self._consumer.consume(min(500, most - len(found.records)), 0.1):
                    found.take(message)
                if found.error is not None or found.end is not None:
                    return found
            if not found.records:
                found.error = "nothing came"
        except KafkaException as error:
            found.error = str(error)
        finally:
            self._consumer.unassign()
        return found


def _consumer(address: str, plan: ClientPlan) -> Any:
    if plan.library == "java":
        from tests.support.real_history.java_client import JavaConsumer

        return JavaConsumer(address, plan.config)
    return Consumer({"bootstrap.servers": address, "group.id": plan.name, **COMMON, **plan.config})


class _Found:
    """What a read has brought so far."""

    def __init__(self) -> None:
        self.records: list[SeenRecord] = []
        self.end: int | None = None
        self.error: str | None = None

    def take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            # What comes after the end came with a later answer.
            if self.end is None:
                self.records.append(_seen(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            self.end = message.offset() if self.end is None else self.end
        elif error.code() != KafkaError._ALL_BROKERS_DOWN and not error.retriable():
            self.error = str(error)


def _seen(message: Message) -> SeenRecord:
    _, timestamp_ms = message.timestamp()
    offset = message.offset()
    assert offset is not None
    return SeenRecord(
        offset=offset,
        key=message.key(),
        value=message.value(),
        timestamp_ms=timestamp_ms,
        headers=tuple((name, value) for name, value in message.headers() or ()),  # type: ignore[misc]
    )


# ----------------------------------------------------------------------------------------------------- groups


class Committer:
    """Commits offsets of a group without members, and reads them."""

    def __init__(self, around: Surroundings, name: str) -> None:
        self._around = around
        self._name = name
        self._chance = around.chance(name)
        self._consumer = Consumer({"bootstrap.servers": around.served.kafka, "group.id": name, **COMMON})

    def run(self) -> None:
        while not self._around.ended.is_set():
            topic = self._chance.choice(self._around.topics)
            partition = self._chance.randrange(topic.partitions)
            if self._chance.random() < 0.6:
                commit(
                    self._around,
                    self._consumer,
                    self._name,
                    topic.name,
                    partition,
                    self._chance.randrange(10_000),
                )
            self.read(topic, partition)
            self._around.pause(self._chance.choice([0.05, 0.5, 2.0]))
        self._consumer.close()

    def read(self, topic: TopicPlan, partition: int) -> bool:
        return read_committed(self._around, self._consumer, self._name, topic.name, partition)

    def read_all(self) -> None:
        """Read what the group has committed, once nothing goes wrong any more."""
        consumer = Consumer(
            {"bootstrap.servers": self._around.served.kafka, "group.id": self._name, **COMMON}
        )
        try:
            for topic in self._around.topics:
                for partition in range(topic.partitions):
                    if not read_committed(self._around, consumer, self._name, topic.name, partition):
                        self._around.problem(f"the commits of {self._name} could not be read")
        finally:
            consumer.close()


class Member:
    """A member of a group that reads, commits, leaves and comes back."""

    def __init__(self, around: Surroundings, group: str, number: int) -> None:
        self._around = around
        self._group = group
        self._process = f"{group} {number}"
        self._chance = around.chance(self._process)
        self.rebalances = 0

    def run(self) -> None:
        while not self._around.ended.is_set():
            self._stay(self._chance.choice([4.0, 15.0, 60.0]))

    def _stay(self, seconds: float) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._around.served.kafka,
                "group.id": self._group,
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 300,
                **COMMON,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": False,
                "partition.assignment.strategy": self._chance.choice(["range", "range", "roundrobin,range"]),
            }
        )
        topic = self._around.topics[0]
        consumer.subscribe([topic.name], on_assign=self._assigned)
        until_s = time.monotonic() + seconds
        try:
            while time.monotonic() < until_s and not self._around.ended.is_set():
                ends: dict[int, int] = {}
                for message in consumer.consume(200, 0.2):
                    partition, offset = message.partition(), message.offset()
                    if message.error() is None and partition is not None and offset is not None:
                        ends[partition] = offset + 1
                for partition, end in ends.items():
                    commit(self._around, consumer, self._group, topic.name, partition, end, self._process)
        finally:
            consumer.close()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.rebalances += 1
        for each in partitions:
            read_committed(self._around, consumer, self._group, each.topic, each.partition, self._process)


def commit(
    around: Surroundings,
    consumer: Consumer,
    group: str,
    topic: str,
    partition: int,
    offset: int,
    process: str | None = None,
) -> None:
    """Commit an offset. Any error is a doubt: librdkafka may have sent it more than once."""
    with around.recorder.offset_commit(group, topic, partition, offset, process=process or group) as pending:
        try:
            done = consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
        except KafkaException as error:
            pending.doubt(error)
            return
        error = done[0].error if done else "no answer"
        if error is None:
            pending.ok()
        else:
            pending.doubt(error)


def read_committed(
    around: Surroundings,
    consumer: Consumer,
    group: str,
    topic: str,
    partition: int,
    process: str | None = None,
) -> bool:
    """Read a committed offset, and return whether there was an answer."""
    with around.recorder.offset_read(group, topic, partition, process=process or group) as pending:
        try:
            (found,) = consumer.committed([TopicPartition(topic, partition)], ASKED_S)
        except KafkaException as error:
            pending.refused(f"{code_of(error)} {error}")
            return False
        if found.error is not None:
            pending.refused(found.error)
            return False
        pending.returned(None if found.offset < 0 else found.offset)
        return True
