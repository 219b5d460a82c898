"""Erased keys and deleted topics are removed, and everything else outlives the log."""

from __future__ import annotations

from contextlib import suppress

from lastword.compaction.service import TopicCompactionService
from lastword.errors import LastwordError
from lastword.record import Record
from lastword.testing.compaction_service.one_log import OneLog
from lastword.testing.compaction_service.records import newest, put, without


class Ending(OneLog):
    """Tests of erasure, deletion and closing."""

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

        # It must not return records of another topic of that name either.
        topic = self.topic()
        written = self.write_rounds(topic, rounds=3, keys=5)
        self.compact(topic)
        self.check(topic, written)
        assert not given(service)

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


def given(service: TopicCompactionService) -> list[Record]:
    """Return all records that a service returns for the first partition, or none if it refuses."""
    found: list[Record] = []
    with suppress(LastwordError):
        found += service.read_compacted_entries(0, 0, 1000) or ()
    with suppress(LastwordError):
        last = service.last_compacted_entry(0)
        found += [] if last is None else [last]
    return found
