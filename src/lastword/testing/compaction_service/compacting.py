"""A compaction keeps exactly the newest record of each key."""

from __future__ import annotations

from lastword.maintenance.lanes import Lane
from lastword.record import NO_TIMESTAMP_MS, NewRecord
from lastword.testing.compaction_service.one_log import OneLog
from lastword.testing.compaction_service.records import gone, newest, put

HOUR_MS = 3_600_000


class Compacting(OneLog):
    """Tests of the records that a compaction keeps."""

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
