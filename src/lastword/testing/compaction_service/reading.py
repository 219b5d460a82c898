"""Compacted entries are read page by page, and a compacted read is exact at any time."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

from lastword.compaction.service import CompactionRequest
from lastword.reading import compacted
from lastword.testing.compaction_service.one_log import OneLog
from lastword.testing.compaction_service.records import newest, put

ASKED_FOR = CompactionRequest(asked_for=True)


class Reading(OneLog):
    """Tests of pages, and of reads while a compaction runs."""

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

    def test_a_compacted_read_is_the_compacted_entries_and_then_the_rest(self) -> None:
        topic = self.topic()
        written = self.write_rounds(topic, rounds=3, keys=4)
        self.compact(topic)
        rest = self.write_rounds(topic, rounds=1, keys=4)
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


def pages_of(records: int) -> Any:
    """Make compacted reads request this many records at a time."""
    return mock.patch.object(compacted, "PAGE_RECORDS", records)
