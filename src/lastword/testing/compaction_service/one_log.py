"""The log of one test, and steps that the tests share."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import lastword
from lastword.compaction.service import TopicCompactionService
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.record import NO_TIMESTAMP_MS, NewRecord, Record, TimestampType
from lastword.testing.clock import ManualClock
from lastword.testing.compaction_service.records import newest, put, without


class OneLog:
    """A test with its own log, in a temporary folder, whose settings name the factory."""

    factory: ClassVar[str]
    """The value of `compaction.service.factory`."""

    config: Mapping[str, object] = {}
    """More broker settings that the service needs. It may be a property."""

    keeps_table = True
    """Whether the service compacts the topic's table too, so that a plain read returns the same as a compacted one."""

    # ------------------------------------------------------------------------------- the log of one test

    _folder: tempfile.TemporaryDirectory[str] | None = None
    _log: Log | None = None

    @property
    def clock(self) -> ManualClock:
        if "_clock" not in vars(self):
            self._clock = ManualClock()
        return self._clock

    @property
    def log(self) -> Log:
        """The log of this test, opened at its first use, after all fixtures."""
        if self._log is None:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="lastword-contract-")
            settings = {**self.config, "compaction.service.factory": self.factory}
            self._log = lastword.open(Path(self._folder.name) / "data", config=settings, clock=self.clock)
        return self._log

    def reopen(self) -> Log:
        """Close the log and open it again."""
        self.close()
        return self.log

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def teardown_method(self) -> None:
        self.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    # -------------------------------------------------------------------------------------------- helpers

    def topic(self, name: str = "users", *, partitions: int = 1, **own: object) -> Topic:
        """Create a compacted topic; `delete_retention_ms=1` stands for `delete.retention.ms`."""
        settings = {key.replace("_", "."): value for key, value in own.items()}
        return self.log.create_topic(
            name, partitions=partitions, config={"cleanup.policy": "compact"} | settings
        )

    def service(self, topic: Topic) -> TopicCompactionService:
        return self.log.compaction.service(topic.name)

    def write(self, topic: Topic, *records: NewRecord, partition: int = 0) -> list[Record]:
        """Append records, and return them as reads must return them."""
        places = topic.append_many(records, partition=partition)
        now_ms = self.clock.now_ms()
        return [
            Record(
                partition=place.partition,
                offset=place.offset,
                timestamp_ms=now_ms if record.timestamp_ms is None else record.timestamp_ms,
                timestamp_type=(
                    TimestampType.NONE if record.timestamp_ms == NO_TIMESTAMP_MS else TimestampType.CREATE
                ),
                key=record.key,
                value=record.value,
                headers=record.headers,
            )
            for record, place in zip(records, places, strict=True)
        ]

    def write_rounds(self, topic: Topic, rounds: int, keys: int, *, partition: int = 0) -> list[Record]:
        """Write every key once per round, each time with a new value."""
        return [
            record
            for number in range(rounds)
            for record in self.write(
                topic, *(put(f"key-{key}", f"{number}-{key}") for key in range(keys)), partition=partition
            )
        ]

    def compact(self, *topics: Topic) -> None:
        """Seal and compact the topics, and assert that nothing failed."""
        report = self.log.compact([topic.name for topic in topics], seal=True, asked_for=True)
        assert not report.failures

    def entries(self, topic: Topic, partition: int = 0, *, start: int = 0, page: int = 3) -> list[Record]:
        """Return all compacted entries from an offset on, requested page by page, as a reader requests them."""
        found: list[Record] = []
        while records := self.page(topic, partition, start, page):
            found += records
            start = records[-1].offset + 1
        return found

    def page(self, topic: Topic, partition: int, start: int, count: int) -> list[Record]:
        """Return one page, which must be in order, in its partition and within the compacted range."""
        service = self.service(topic)
        records = list(service.read_compacted_entries(partition, start, count) or ())
        offsets = [record.offset for record in records]
        assert len(records) <= count
        assert offsets == sorted(set(offsets))
        assert all(record.partition == partition for record in records)
        if offsets:
            position = service.last_compacted_position(partition)
            assert position is not None and start <= offsets[0] and offsets[-1] < position
        return records

    def check(self, topic: Topic, written: Sequence[Record], partition: int = 0) -> None:
        """Check that compaction kept exactly the newest record of each key."""
        service = self.service(topic)
        expected = newest(written)
        assert self.entries(topic, partition) == expected
        assert service.last_compacted_position(partition) == written[-1].offset + 1
        assert service.last_compacted_entry(partition) == expected[-1]

    def erase(self, topic: Topic, *keys: str) -> None:
        """Erase keys, and assert that none of their records is left."""
        assert self.log.erase(topic.name, [key.encode() for key in keys]).left == ()

    def check_erased(self, topic: Topic, written: Sequence[Sequence[Record]]) -> None:
        """Check that neither the service nor the log returns key-1 and key-4, and that both return all other keys as before."""
        assert list(topic.read(compacted=True)) == [
            record for own in written for record in without(newest(own), "key-1", "key-4")
        ]
        service = self.service(topic)
        for partition in range(topic.partitions):
            last = service.last_compacted_entry(partition)
            found = [*self.entries(topic, partition), *([] if last is None else [last])]
            assert found == without(found, "key-1", "key-4")

    def open_beside(self) -> Log:
        """Open the same log a second time, for reading, as another process would."""
        settings = {**self.config, "compaction.service.factory": self.factory}
        return lastword.open(self.log.path, config=settings, clock=self.clock, read_only=True)
