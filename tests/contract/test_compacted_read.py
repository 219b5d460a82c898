"""Compacted reads against services that answer as they like: no gap, no double, whatever they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.support.clock import ManualClock
from tests.support.compaction_services import WrappedService, WrappingFactory
from tests.support.logs import open_log

from lastword.errors import UnavailableError, UnknownPartitionError, UnknownTopicError
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.reading import compacted
from lastword.reading.compacted import to_arrow
from lastword.record import RECORD_SCHEMA, NewRecord, Record
from lastword.segments.rows import to_records

Answer = Callable[[WrappedService, int, int, int], Sequence[Record] | None]


class AnsweringFactory(WrappingFactory):
    """Its services give pages as a test says."""

    answer: ClassVar[Answer]
    position: ClassVar[Callable[[WrappedService, int], int | None]]

    def new_topic_compaction_service(self, topic: str) -> Any:
        service = WrappedService(self, topic)
        service.read_compacted_entries = lambda *asked: self.answer(service, *asked)  # type: ignore[method-assign]
        service.last_compacted_position = lambda asked: self.position(service, asked)  # type: ignore[method-assign]
        return service


def as_inline(service: WrappedService, partition: int, start: int, count: int) -> Sequence[Record]:
    return service.inline.read_compacted_entries(partition, start, count)


def inline_position(service: WrappedService, partition: int) -> int | None:
    return service.inline.last_compacted_position(partition)


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> type[AnsweringFactory]:
    monkeypatch.setattr(AnsweringFactory, "answer", staticmethod(as_inline), raising=False)
    monkeypatch.setattr(AnsweringFactory, "position", staticmethod(inline_position), raising=False)
    monkeypatch.setattr(compacted, "PAGE_RECORDS", 2)
    return AnsweringFactory


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock, factory: type[AnsweringFactory]) -> Iterator[Log]:
    config = {"compaction.service.factory": f"{__name__}:{factory.__name__}"}
    with open_log(tmp_path / "data", clock, config) as opened:
        yield opened


@pytest.fixture
def topic(log: Log) -> Topic:
    """Offsets 4 to 7 are compacted, 8 and 9 are sealed, 10 is in the WAL; key k is at 4 + k, 8 + k, and 10."""
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    put(topic, 0, 1, 2, 3, 0, 1, 2, 3)
    log.compact(["t"], seal=True, asked_for=True)
    put(topic, 0, 1)
    topic.seal()
    put(topic, 0)
    return topic


def put(topic: Topic, *keys: int) -> None:
    topic.append_many([NewRecord(key=str(key).encode(), value=b"-") for key in keys])


def offsets(records: Iterator[Record]) -> list[int]:
    return [record.offset for record in records]


def test_pages_and_then_the_rest(topic: Topic) -> None:
    assert offsets(topic.read(compacted=True)) == [4, 5, 6, 7, 8, 9, 10]
    assert offsets(topic.read(6, compacted=True)) == [6, 7, 8, 9, 10]
    assert offsets(topic.read(9, compacted=True)) == [9, 10]
    assert offsets(topic.read("latest", compacted=True)) == []
    batches = list(topic.read_arrow(compacted=True))
    assert all(batch.schema.equals(RECORD_SCHEMA) for batch in batches)
    assert [batch.num_rows for batch in batches[:2]] == [2, 2]


def test_the_service_is_asked_for_what_it_has_only(topic: Topic, factory: Any) -> None:
    asked: list[tuple[int, int]] = []

    def answer(service: WrappedService, partition: int, start: int, count: int) -> Sequence[Record]:
        asked.append((start, count))
        return as_inline(service, partition, start, count)

    factory.answer = staticmethod(answer)
    list(topic.read(compacted=True))
    assert asked == [(0, 2), (6, 2)]
    list(topic.read())
    assert len(asked) == 2


def test_records_that_the_service_alone_has_are_read_from_it(topic: Topic, factory: Any) -> None:
    def answer(service: WrappedService, partition: int, start: int, count: int) -> Sequence[Record]:
        found = as_inline(service, partition, start, 10)
        return [record for record in found if record.offset != 5][:count]

    factory.answer = staticmethod(answer)
    assert offsets(topic.read(compacted=True)) == [4, 6, 7, 8, 9, 10]


def test_a_service_that_gives_up_between_two_pages_leaves_the_rest_to_the_log(
    topic: Topic, factory: Any
) -> None:
    def answer(service: WrappedService, partition: int, start: int, count: int) -> Sequence[Record] | None:
        return as_inline(service, partition, start, count) if start == 0 else None

    factory.answer = staticmethod(answer)
    assert offsets(topic.read(compacted=True)) == [4, 5, 6, 7, 8, 9, 10]


def test_so_does_one_whose_position_is_gone(topic: Topic, factory: Any) -> None:
    positions = iter([8, None])
    factory.position = staticmethod(lambda service, partition: next(positions))
    assert offsets(topic.read(compacted=True)) == [4, 5, 6, 7, 8, 9, 10]


def test_an_empty_page_ends_at_the_position(topic: Topic, factory: Any) -> None:
    factory.answer = staticmethod(lambda service, partition, start, count: [])
    assert offsets(topic.read(compacted=True)) == [8, 9, 10]


def test_a_compaction_that_overtakes_a_read_moves_its_end(topic: Topic, log: Log) -> None:
    reading = topic.read(compacted=True)
    assert offsets(iter([next(reading), next(reading)])) == [4, 5]
    put(topic, 3, 9)
    log.compact(["t"], seal=True, asked_for=True)
    put(topic, 4)

    # Key 3 was at 7 and ahead of the reader; it is at 11 now.
    assert offsets(reading) == [6, 9, 10, 11, 12]


def test_a_follower_goes_on_after_a_compaction_that_overtook_it(topic: Topic, log: Log) -> None:
    reading = topic.read(compacted=True, follow=True)
    seen = [next(reading), next(reading)]
    put(topic, 3, 9)
    log.compact(["t"], seal=True, asked_for=True)
    put(topic, 4, 5)

    seen += [next(reading) for _ in range(7)]
    assert offsets(iter(seen)) == [4, 5, 6, 9, 10, 11, 12, 13, 14]


def test_what_is_below_the_log_start_is_not_asked_for(topic: Topic, factory: Any) -> None:
    old = list(topic.read(4))

    def answer(service: WrappedService, partition: int, start: int, count: int) -> Sequence[Record]:
        return [record for record in old if start <= record.offset < 8][:count]

    factory.answer = staticmethod(answer)
    reading = topic.read(compacted=True)
    topic.delete_records({0: 6})
    assert offsets(reading) == [6, 7, 8, 9, 10]
    topic.delete_records({0: 9})
    assert offsets(topic.read(compacted=True)) == [9, 10]


@pytest.mark.parametrize("wrong", [[5, 4], [4, 4], [3, 5], [6, 7, 7]])
def test_records_in_disorder_are_not_handed_on(wrong: list[int], topic: Topic, factory: Any) -> None:
    by_offset = {record.offset: record for record in topic.read()}
    by_offset[3] = by_offset[4]

    def answer(service: WrappedService, partition: int, start: int, count: int) -> Sequence[Record]:
        return [by_offset[offset] for offset in wrong]

    factory.answer = staticmethod(answer)
    with pytest.raises(UnavailableError, match="wrong or unordered records"):
        list(topic.read(5 if wrong == [3, 5] else 4, compacted=True))


def test_a_log_that_is_read_only_notices_that_a_topic_was_created_again(
    topic: Topic, log: Log, tmp_path: Path, clock: ManualClock
) -> None:
    inline = {"compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory"}
    with open_log(tmp_path / "data", clock, inline, read_only=True) as beside:
        assert len(list(beside.topic("t").read(compacted=True))) == 7
        log.delete_topic("t")
        with pytest.raises(UnknownTopicError):
            beside.topic("t")
        put(log.create_topic("t", config={"cleanup.policy": "compact"}), 1, 1, 1)
        log.compact(["t"], seal=True, asked_for=True)

        assert offsets(beside.topic("t").read(compacted=True)) == [2]


def test_a_partition_that_is_not_there(topic: Topic, log: Log) -> None:
    service = log.compaction.service("t")
    for partition in (-1, 1):
        with pytest.raises(UnknownPartitionError):
            service.last_compacted_entry(partition)


def test_records_go_to_arrow_and_back(topic: Topic) -> None:
    topic.append(None, "", headers=[("a", b"1"), ("a", None)], timestamp_ms=-1)
    topic.append("", None, timestamp_ms=0)
    records = list(topic.read())
    assert list(to_records(to_arrow(records))) == records
