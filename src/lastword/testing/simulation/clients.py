"""Clients that speak Kafka's protocol with the broker, and record its responses.

A client keeps no state between two acts, and never retries, so every failure is in the history.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from lastword.record import NewRecord
from lastword.testing.history import ProducedRecord, Recorder
from lastword.testing.history.recorder import Pending
from lastword.testing.simulation.client import KafkaClient, RefusedError, UnclearError
from lastword.testing.simulation.machine import Machine
from lastword.testing.simulation.plan import TOPIC
from lastword.testing.simulation.reader import Reader

_R = TypeVar("_R")

GROUP = "g"
MAX_FETCHES = 300


class Numbers:
    """Numbers that make each value unique."""

    def __init__(self) -> None:
        self._last = 0

    def take(self) -> int:
        self._last += 1
        return self._last


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The objects that all clients share."""

    machine: Machine
    recorder: Recorder
    numbers: Numbers
    oracle: Reader
    """Returns first dirty offsets, which Kafka's protocol lacks."""
    partitions: int
    keys: tuple[str, ...]
    is_late: bool
    """Whether a record may have an older timestamp than the one before it."""
    chance: random.Random


class Client:
    """A producer, a consumer or a group."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self.kafka = KafkaClient(name)
        self._around = around
        self._recorder = around.recorder
        self._scheduler = around.machine.scheduler

    def do(self, what: str, chance: random.Random) -> None:
        """Carry out an act of a script."""
        partition = chance.randrange(self._around.partitions)
        key = chance.choice(self._around.keys)
        match what:
            case "produce":
                self.produce(self.partition_of(key), [self.record(key)])
            case "delete_keys":
                self.produce(self.partition_of(key), [self.record(key, is_tombstone=True)])
            case "produce_many":
                own = [each for each in self._around.keys if self.partition_of(each) == partition]
                self.produce(
                    partition,
                    [self.record(chance.choice(own), is_tombstone=chance.random() < 0.2) for _ in range(12)],
                )
            case "read_all":
                self.read_all(partition, max_bytes=chance.choice([1, 200, 1 << 20]))
            case "read_slowly":
                self.read_all(partition, max_bytes=1, pause_s=chance.choice([0.1, 5.0]))
            case "commit":
                self._commit(chance.randrange(100))
            case "committed":
                self._committed()
            case other:
                raise AssertionError(other)

    def close(self) -> None:
        self.kafka.close()

    # ----------------------------------------------------------------------------------------- records

    def partition_of(self, key: str) -> int:
        return self._around.keys.index(key) % self._around.partitions

    def record(self, key: str, *, is_tombstone: bool = False) -> NewRecord:
        """Return a new record with a unique value."""
        value = None if is_tombstone else f"v{self._around.numbers.take()}".encode()
        age_ms = self._around.chance.choice([0, 0, 0, 1, 1_000]) if self._around.is_late else 0
        timestamp_ms = self._around.machine.clock.now_ms() - age_ms
        return NewRecord(key=key.encode(), value=value, timestamp_ms=timestamp_ms)

    def produce(self, partition: int, records: list[NewRecord]) -> bool:
        """Send records, and return whether they were acknowledged."""
        with self._recorder.produce(TOPIC, partition, map(sent, records), process=self.name) as pending:
            now_ms = self._around.machine.clock.now_ms()
            offset = self.asked(pending, lambda: self.kafka.produce(TOPIC, partition, records, now_ms))
            if offset is not None:
                pending.acknowledged(offset)
            return offset is not None

    def read_all(self, partition: int, *, max_bytes: int, pause_s: float = 0.0) -> bool:
        """Read a partition from the beginning to the end, as a new consumer does. Return whether the end was reached."""
        session = f"{self.name} {self._around.numbers.take()}"
        first_dirty = self._around.oracle.first_dirty(partition)
        # A request for the log start would make the broker read the table before the first fetch.
        offset: int | None = 0
        if self._around.chance.random() < 0.3:
            offset = self._log_start(partition)
        for _ in range(MAX_FETCHES):
            if offset is None:
                return False
            with self._recorder.fetch(
                TOPIC, partition, offset, session=session, process=self.name
            ) as pending:
                fetch = partial(self.kafka.fetch, TOPIC, partition, offset, max_bytes=max_bytes)
                got = self.asked(pending, fetch)
                if got is None:
                    if offset > 0:
                        return False
                    offset = self._log_start(partition) or None
                    continue
                pending.returned(
                    got.records,
                    got.next_offset,
                    log_start=got.log_start,
                    high_watermark=got.high_watermark,
                    # A lower bound: the answer may come from a newer snapshot.
                    first_dirty=first_dirty,
                )
            if got.next_offset == offset:
                return True
            offset = got.next_offset
            if pause_s:
                self._scheduler.sleep(pause_s)
        return False

    def _log_start(self, partition: int) -> int | None:
        try:
            return self.kafka.list_offset(TOPIC, partition, -2)
        except (RefusedError, UnclearError):
            return None

    def asked(self, pending: Pending, ask: Callable[[], _R]) -> _R | None:
        """Return the broker's answer. If the request fails, record its outcome and return None."""
        try:
            return ask()
        except RefusedError as error:
            pending.refused(error)
        except UnclearError as error:
            pending.doubt(error)
        return None

    def done(self, pending: Pending, do: Callable[[], None]) -> None:
        """Make a request, and record its outcome."""

        def ask() -> bool:
            do()
            return True

        if self.asked(pending, ask):
            pending.ok()

    # ------------------------------------------------------------------------------------------ groups

    def _commit(self, offset: int) -> None:
        with self._recorder.offset_commit(GROUP, TOPIC, 0, offset, process=self.name) as pending:
            self.done(pending, lambda: self.kafka.commit(GROUP, TOPIC, 0, offset))

    def _committed(self) -> None:
        with self._recorder.offset_read(GROUP, TOPIC, 0, process=self.name) as pending:
            found = self.asked(pending, lambda: (self.kafka.committed(GROUP, TOPIC, 0),))
            if found is not None:
                pending.returned(found[0])


def sent(record: NewRecord) -> ProducedRecord:
    return ProducedRecord(key=record.key, value=record.value, timestamp_ms=record.timestamp_ms)
