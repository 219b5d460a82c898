"""The contract of every compaction service, as tests that any of them can run.

    from lastword.testing import CompactionServiceContract

    class TestMyService(CompactionServiceContract):
        factory = "my_package.compaction:MyServiceFactory"

pytest finds the inherited tests. Each has its own log in a temporary folder, with that factory in its settings.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import lastword
from lastword.compaction.service import CompactionRequest, TopicCompactionService
from lastword.errors import LastwordError
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.maintenance.lanes import Lane
from lastword.reading import compacted
from lastword.record import NO_TIMESTAMP_MS, Header, NewRecord, Record, TimestampType
from lastword.testing.clock import ManualClock

HOUR_MS = 3_600_000
ASKED_FOR = CompactionRequest(asked_for=True)


class CompactionServiceContract:
    """The contract. Subclass it with a name that begins with `Test`, and set `factory`."""

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
        """The log of this test, opened at its first use: after all fixtures."""
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
        """Append records, and return them as they must be read back."""
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
        """Write every key once per round, each time with another value."""
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
        """Return all compacted entries from an offset on, page by page, as a reader asks for them."""
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
        """Check that everything written has been compacted to exactly the newest record of each key."""
        service = self.service(topic)
        expected = newest(written)
        assert self.entries(topic, partition) == expected
        assert service.last_compacted_position(partition) == written[-1].offset + 1
        assert service.last_compacted_entry(partition) == expected[-1]

    def erase(self, topic: Topic, *keys: str) -> None:
        """Erase keys, and assert that nothing is left of them."""
        assert self.log.erase(topic.name, [key.encode() for key in keys]).left == ()

    def check_erased(self, topic: Topic, written: Sequence[Sequence[Record]]) -> None:
        """Check that neither the service nor the log serves key-1 and key-4, and that all others are served as before."""
        assert list(topic.read(compacted=True)) == [
            record for own in written for record in without(newest(own), "key-1", "key-4")
        ]
        service = self.service(topic)
        for partition in range(topic.partitions):
            last = service.last_compacted_entry(partition)
            found = [*self.entries(topic, partition), *([] if last is None else [last])]
            assert found == without(found, "key-1", "key-4")

    def open_beside(self) -> Log:
        """Open the same log once more, for reading, as another process would."""
        settings = {**self.config, "compaction.service.factory": self.factory}
        return lastword.open(self.log.path, config=settings, clock=self.clock, read_only=True)

    # ------------------------------------------------------------------------------------------ compaction

    def test_before_the_first_compaction_there_is_nothing(self) -> None:
        topic = self.topic()
        for _ in range(2):
            assert self.service(topic).last_compacted_position(0) is None
            assert self.service(topic).last_compacted_entry(0) is None
            assert not self.service(topic).read_compacted_entries(0, 0, 10)
            self.write_rounds(topic, 2, 3)
            topic.seal()

    def test_the_newest_record_of_each_key_stays(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=3, keys=5)

        self.compact(topic)

        self.check(topic, written)

    def test_compact_without_arguments_does_what_is_due(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=2, keys=3)
        topic.seal()

        with self.log.maintenance(Lane.CLEAN):
            self.service(topic).compact()

        self.check(topic, written)

    def test_records_are_as_they_were_appended(self) -> None:
        topic = self.topic()
        old_ms = self.clock.now_ms() - 5 * HOUR_MS
        written = self.write(
            topic,
            put("superseded", "1"),
            put("headers", "1", headers=(("a", b"1"), ("a", b"2"), ("null", None), ("empty", b""), ("é", b"\xff"))),
            NewRecord(key=None, value=b"without a key"),
            put("superseded", "2", timestamp_ms=old_ms),
            put("empty value", ""),
            NewRecord(key=b"", value=b"empty key"),
            NewRecord(key=None, value=b"without a key"),
            NewRecord(key=bytes(range(256)), value=bytes(range(256))),
            put("no timestamp", "1", timestamp_ms=NO_TIMESTAMP_MS),
            put("old", "1", timestamp_ms=1),
            NewRecord(key=None, value=None),
            put("large", "x" * 100_000),
        )  # fmt: skip

        self.compact(topic)

        self.check(topic, written)
        assert len(self.entries(topic)) == len(written) - 1

    def test_a_later_compaction_goes_on_from_an_earlier_one(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=2, keys=6)
        self.compact(topic)

        written += self.write(topic, put("key-1", "later"), put("new", "1"), NewRecord(key=None, value=b"-"))
        self.compact(topic)
        self.check(topic, written)

        written += self.write(topic, put("new", "2"), put("key-5", "later"))
        self.compact(topic)
        self.check(topic, written)

    def test_what_comes_later_is_not_compacted_yet(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=2, keys=4)
        self.compact(topic)

        self.write_rounds(topic, rounds=1, keys=2)
        self.check(topic, written)
        topic.seal()
        self.check(topic, written)

    def test_compaction_again_at_once_does_nothing_more(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=2, keys=4)
        self.compact(topic)

        again = self.log.compact([topic.name], seal=True, asked_for=True)

        assert not again.failures
        assert sum(report.segments_compacted for report in again.partitions) == 0
        assert sum(report.written_bytes for report in again.partitions) == 0
        self.check(topic, written)

    def test_a_topic_that_is_not_compacted_has_no_compacted_entries(self) -> None:
        topic = self.topic(cleanup_policy="delete")
        written = self.write_rounds(topic, rounds=2, keys=2)

        self.compact(topic)

        assert self.service(topic).last_compacted_position(0) is None
        assert not self.service(topic).read_compacted_entries(0, 0, 10)
        assert list(topic.read(compacted=True)) == written

    def test_tombstones_are_readable_until_they_may_go(self) -> None:
        topic = self.topic(delete_retention_ms=HOUR_MS)
        written = self.write(topic, put("gone", "1"), put("stays", "1"), gone("gone"))
        self.compact(topic)
        self.check(topic, written)

        self.clock.move(HOUR_MS / 2)
        written += self.write(topic, put("other", "1"))
        self.compact(topic)
        self.check(topic, written)

        self.clock.move(HOUR_MS)
        written += self.write(topic, put("another", "1"))
        self.compact(topic)
        left = self.entries(topic)
        assert [record for record in left if not record.is_tombstone] == [
            record for record in newest(written) if not record.is_tombstone
        ]
        assert left == list(topic.read(compacted=True))

    def test_the_position_stays_when_the_last_records_go(self) -> None:
        topic = self.topic(delete_retention_ms=0)
        written = self.write(topic, put("gone", "1"), gone("gone"))
        self.compact(topic)
        self.check(topic, written)

        self.clock.move(HOUR_MS)
        self.compact(topic)

        service = self.service(topic)
        assert service.last_compacted_position(0) == 2
        left = self.entries(topic)
        assert left in ([], [written[-1]])
        assert service.last_compacted_entry(0) == (left[-1] if left else None)
        assert list(topic.read(compacted=True)) == left
        written += self.write(topic, put("gone", "2"))
        assert list(topic.read(compacted=True)) == [*left, written[-1]]

    # -------------------------------------------------------------------------------------------- paging

    def test_a_page_has_at_most_as_many_records_as_asked_for(self) -> None:
        topic = self.topic()
        expected = newest(self.write_rounds(topic, rounds=2, keys=7))
        self.compact(topic)

        for count in (1, 2, 6, 7, 8, 1000):
            assert self.entries(topic, page=count) == expected

    def test_a_page_may_begin_anywhere(self) -> None:
        topic = self.topic()
        written = self.write(
            topic, put("a", "1"), put("b", "1"), put("b", "2"), put("b", "3"), put("c", "1"), put("b", "4")
        )
        self.compact(topic)
        kept = newest(written)
        assert [record.offset for record in kept] == [0, 4, 5]

        for start in range(8):
            expected = [record for record in kept if record.offset >= start]
            assert self.entries(topic, start=start) == expected
            assert self.page(topic, 0, start, 1) == expected[:1]

    def test_a_page_beyond_the_end_is_empty(self) -> None:
        topic = self.topic()
        self.write_rounds(topic, rounds=2, keys=3)
        self.compact(topic)
        self.write_rounds(topic, rounds=1, keys=3)
        topic.seal()

        for start in (6, 7, 9, 10, 2**40):
            assert self.page(topic, 0, start, 10) == []

    # --------------------------------------------------------------------------- partitions and topics

    def test_partitions_are_compacted_each_for_itself(self) -> None:
        topic = self.topic(partitions=3)
        written = [self.write_rounds(topic, rounds=each + 1, keys=3, partition=each) for each in (0, 1)]

        self.compact(topic)

        for partition, own in enumerate(written):
            self.check(topic, own, partition)
        assert not self.service(topic).read_compacted_entries(2, 0, 10)
        assert self.service(topic).last_compacted_entry(2) is None
        assert list(topic.read(compacted=True)) == [*newest(written[0]), *newest(written[1])]

    def test_topics_are_compacted_each_for_itself(self) -> None:
        topics = [self.topic("a"), self.topic("a.b"), self.topic("a-b")]
        written = [self.write_rounds(topic, rounds=2, keys=2 + index) for index, topic in enumerate(topics)]

        self.compact(*topics[:2])
        for topic, own in zip(topics[:2], written, strict=False):
            self.check(topic, own)
        assert self.service(topics[2]).last_compacted_position(0) is None

        self.compact(topics[2])
        for topic, own in zip(topics, written, strict=True):
            self.check(topic, own)

    def test_a_topic_created_again_shares_nothing_with_the_old_one(self) -> None:
        old = self.topic()
        written = self.write_rounds(old, rounds=2, keys=8)
        self.compact(old)
        self.check(old, written)
        self.log.delete_topic(old.name)

        topic = self.topic()
        assert self.service(topic).last_compacted_position(0) is None
        assert self.service(topic).last_compacted_entry(0) is None
        assert not self.service(topic).read_compacted_entries(0, 0, 10)
        written = self.write(topic, put("key-1", "new"), put("key-1", "newer"))
        assert list(topic.read(compacted=True)) == written

        self.compact(topic)
        self.check(topic, written)

    # -------------------------------------------------------------------------------------------- reading

    def test_a_compacted_read_is_the_compacted_entries_and_then_the_rest(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=3, keys=4)
        self.compact(topic)
        rest = self.write_rounds(topic, rounds=2, keys=2)
        topic.seal()
        rest += self.write_rounds(topic, rounds=1, keys=3)

        for page in (2, 1000):
            for start in (0, 5, 9, 11, 12, 14, rest[-1].offset + 1):
                expected = [record for record in [*newest(written), *rest] if record.offset >= start]
                with pages_of(page):
                    assert list(topic.read(start, compacted=True)) == expected
                if self.keeps_table:
                    assert list(topic.read(start)) == expected

    def test_a_compaction_meanwhile_leaves_no_gap_and_no_double(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=1, keys=8)
        self.compact(topic)
        written += self.write(topic, put("key-3", "before the read"))

        with pages_of(2):
            reading = topic.read(compacted=True)
            seen = [next(reading), next(reading)]
            later = self.write(topic, put("key-0", "later"), put("key-6", "later"), put("new", "later"))
            self.compact(topic)
            seen += reading

        offsets = [record.offset for record in seen]
        assert offsets == sorted(set(offsets))
        assert set(seen) <= {*written, *later}
        last = {record.key: record.offset for record in seen}
        for record in newest(written):
            assert last.get(record.key, -1) >= record.offset
        self.check(topic, [*written, *later])

    def test_a_compacted_read_begins_at_the_log_start(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=1, keys=6)
        self.compact(topic)

        topic.delete_records({0: 4})
        assert list(topic.read(compacted=True)) == written[4:]

        written += self.write(topic, put("key-5", "later"))
        self.compact(topic)
        assert list(topic.read(compacted=True)) == [written[4], written[6]]

    def test_appends_seals_and_reads_go_on_during_a_compaction(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=2, keys=4)
        self.compact(topic)
        problems: list[BaseException] = []

        def append_and_seal() -> None:
            for _ in range(5):
                written.extend(self.write_rounds(topic, rounds=2, keys=4))
                topic.seal()

        def read() -> None:
            while appending.is_alive():
                seen = [record.offset for record in topic.read(compacted=True)]
                assert seen == sorted(set(seen))
                assert len(seen) >= 4

        def guarded(work: Any) -> threading.Thread:
            def run() -> None:
                try:
                    work()
                except BaseException as error:  # noqa: BLE001 - it is raised below
                    problems.append(error)

            return threading.Thread(target=run)

        appending, reading = guarded(append_and_seal), guarded(read)
        appending.start()
        reading.start()
        try:
            while appending.is_alive():
                self.service(topic).compact(ASKED_FOR)
        finally:
            appending.join()
            reading.join()
        if problems:
            raise problems[0]

        self.compact(topic)
        self.check(topic, written)

    # -------------------------------------------------------------------------------- erasure and deletion

    def test_erased_keys_are_not_served_any_more(self) -> None:
        topic = self.topic(partitions=2)
        written = [self.write_rounds(topic, rounds=2, keys=5, partition=each) for each in range(2)]
        self.compact(topic)
        for partition, own in enumerate(written):
            self.check(topic, own, partition)

        # One of them is the last key in its partition, and so the last compacted entry.
        self.erase(topic, "key-1", "key-4")

        self.check_erased(topic, written)
        topic = self.reopen().topic(topic.name)
        self.check_erased(topic, written)
        written[0] += self.write(topic, put("key-0", "later"))
        self.compact(topic)
        self.check_erased(topic, written)
        assert self.entries(topic, 0) == without(newest(written[0]), "key-1", "key-4")

    def test_a_reader_beside_is_not_served_erased_keys_either(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=2, keys=5)
        self.compact(topic)
        with self.open_beside() as beside:
            seen = beside.topic(topic.name)
            assert list(seen.read(compacted=True)) == newest(written)

            self.erase(topic, "key-1", "key-4")
            assert list(seen.read(compacted=True)) == without(newest(written), "key-1", "key-4")

            written += self.write(topic, put("key-2", "later"))
            self.compact(topic)
            assert list(seen.read(compacted=True)) == without(newest(written), "key-1", "key-4")

    def test_a_key_that_is_written_again_after_its_erasure_is_served(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=2, keys=3)
        self.compact(topic)
        self.erase(topic, "key-1")
        again = self.write(topic, put("key-1", "again"))

        expected = [*without(newest(written), "key-1"), *again]
        assert list(topic.read(compacted=True)) == expected
        self.compact(topic)
        assert self.entries(topic) == expected
        assert self.service(topic).last_compacted_entry(0) == again[0]

    def test_the_service_of_a_deleted_topic_has_nothing_more_to_give(self) -> None:
        old = self.topic()
        self.write_rounds(old, rounds=2, keys=4)
        self.compact(old)
        service = self.service(old)
        assert service.read_compacted_entries(0, 0, 10)

        self.log.delete_topic(old.name)
        assert not given(service)

        # Nor does it return records of another topic of that name.
        topic = self.topic()
        written = self.write_rounds(topic, rounds=3, keys=5)
        self.compact(topic)
        self.check(topic, written)
        assert not given(service)

    # -------------------------------------------------------------------------------------------- closing

    def test_compacted_data_outlive_the_log(self) -> None:
        written = self.write_rounds(self.topic(), rounds=2, keys=4)
        self.compact(self.log.topic("users"))

        topic = self.reopen().topic("users")

        self.check(topic, written)
        assert list(topic.read(compacted=True)) == newest(written)

    def test_closing_twice_is_closing_once(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=2, keys=2)
        self.compact(topic)
        service = self.service(topic)

        service.close()
        service.close()

        self.check(self.reopen().topic("users"), written)


def put(
    key: str, value: str, *, headers: tuple[Header, ...] = (), timestamp_ms: int | None = None
) -> NewRecord:
    return NewRecord(key=key.encode(), value=value.encode(), headers=headers, timestamp_ms=timestamp_ms)


def gone(key: str) -> NewRecord:
    """Return a tombstone."""
    return NewRecord(key=key.encode(), value=None)


def newest(written: Iterable[Record]) -> list[Record]:
    """Return the newest record of each key, and all records without a key, in offset order."""
    records = list(written)
    last = {record.key: record.offset for record in records}
    return [record for record in records if record.key is None or last[record.key] == record.offset]


def without(records: Iterable[Record], *keys: str) -> list[Record]:
    """Return the records except those of some keys."""
    return [record for record in records if record.key not in {key.encode() for key in keys}]


def given(service: TopicCompactionService) -> list[Record]:
    """Return everything that a service returns for the first partition, or nothing if it refuses."""
    found: list[Record] = []
    with suppress(LastwordError):
        found += service.read_compacted_entries(0, 0, 1000) or ()
    with suppress(LastwordError):
        last = service.last_compacted_entry(0)
        found += [] if last is None else [last]
    return found


def pages_of(records: int) -> Any:
    """Make compacted reads ask for this many records at a time."""
    return mock.patch.object(compacted, "PAGE_RECORDS", records)
