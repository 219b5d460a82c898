"""Readers over several partitions, and named ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import fill, offsets, open_files, open_log, values

from lastword.errors import (
    ClosedError,
    CorruptError,
    InvalidError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
)
from lastword.log import Log
from lastword.reading.topic_reader import CommittedPositions, Reader


def drain(reader: Reader, max_records: int = 500) -> list[int]:
    found: list[int] = []
    while polled := reader.poll(max_records=max_records):
        found += values(polled)
    return found


class TestPolling:
    @pytest.mark.parametrize("max_records", [1, 2, 3, 500])
    def test_everything_comes_once_and_in_order(self, log: Log, max_records: int) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 4)
        topic.seal()
        fill(topic, 4, 9)

        with topic.reader("r") as reader:
            assert drain(reader, max_records) == list(range(9))
            assert reader.positions == {0: 9}

    def test_what_comes_later_is_found_by_the_next_poll(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 2)
        with topic.reader("r") as reader:
            assert values(reader.poll(max_records=1)) == [0]
            # A stream is open that ends at 2.
            fill(topic, 2, 4)
            assert drain(reader) == [1, 2, 3]
            assert reader.poll() == []
            fill(topic, 4, 5)
            assert drain(reader) == [4]

    def test_a_poll_is_of_one_partition_and_all_have_their_turn(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=3)
        for partition in range(3):
            fill(topic, 10 * partition, 10 * partition + 3, partition=partition)
        with topic.reader("r") as reader:
            polls = [reader.poll() for _ in range(3)]
            assert sorted(values(each)[0] for each in polls) == [0, 10, 20]
            assert all(len({record.partition for record in each}) == 1 for each in polls)
            # One that never runs dry does not keep the others waiting.
            seen: list[int] = []
            for number in range(4):
                fill(topic, number, number + 1, partition=0)
                fill(topic, number, number + 1, partition=2)
                seen += [record.partition for record in reader.poll(max_records=1)]
            assert {0, 2} <= set(seen)

    def test_waiting_lets_the_clock_run_until_the_time_is_up(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t")
        with topic.reader("r") as reader:
            started_ms = clock.now_ms()
            assert reader.poll(timeout_s=1.0) == []
            assert clock.now_ms() - started_ms == 1000

    def test_a_clock_that_is_put_back_does_not_prolong_waiting(
        self, log: Log, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slept_ms: list[float] = []

        def sleep(duration_ms: float) -> None:
            slept_ms.append(duration_ms)
            clock.move(duration_ms - (60_000 if len(slept_ms) == 1 else 0))

        monkeypatch.setattr(clock, "sleep_ms", sleep)
        with log.create_topic("t").reader("r") as reader:
            assert reader.poll(timeout_s=1.0) == []
        assert sum(slept_ms) == pytest.approx(1000)

    def test_waiting_ends_when_something_comes(
        self, log: Log, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = log.create_topic("t")
        real, naps = clock.sleep_ms, 0

        def sleep(duration_ms: float) -> None:
            nonlocal naps
            naps += 1
            real(duration_ms)
            if naps == 3:
                fill(topic, 0, 1)

        monkeypatch.setattr(clock, "sleep_ms", sleep)
        with topic.reader("r") as reader:
            assert values(reader.poll(timeout_s=60)) == [0]
        assert naps == 3

    def test_arrow_batches_carry_the_partition(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=2)
        fill(topic, 0, 3, partition=1)
        with topic.reader("r") as reader:
            records = reader.poll_arrow(max_records=2)
            assert records is not None
            assert records.column("partition").to_pylist() == [1, 1]


class TestSeek:
    def test_goes_on_from_there(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 6)
        with topic.reader("r") as reader:
            reader.poll(max_records=2)
            reader.seek(0, 4)
            assert drain(reader) == [4, 5]
            reader.seek(0, 0)
            assert drain(reader) == list(range(6))

    def test_what_is_left_of_another_partition_stays(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=2)
        fill(topic, 0, 3, partition=0)
        fill(topic, 10, 13, partition=1)
        with topic.reader("r") as reader:
            first = reader.poll(max_records=1)
            other = 1 - first[0].partition
            reader.seek(other, 2)
            left = sorted(drain(reader))
        assert left == ([1, 2, 12] if other == 1 else [2, 11, 12])

    def test_out_of_range_or_of_another_topic_is_refused(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        with topic.reader("r") as reader:
            with pytest.raises(OffsetOutOfRangeError):
                reader.seek(0, 4)
            with pytest.raises(UnknownPartitionError):
                reader.seek(1, 0)
            assert drain(reader) == [0, 1, 2]


class TestNamed:
    def test_the_next_one_begins_where_the_last_committed(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 6)
        with topic.reader("r") as reader:
            reader.poll(max_records=2)
            reader.commit()
            reader.poll(max_records=2)
        with topic.reader("r") as reader:
            assert reader.positions == {0: 2}
            assert drain(reader) == [2, 3, 4, 5]

    def test_what_was_polled_and_is_left_is_not_committed(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 6)
        topic.seal()
        with topic.reader("r") as reader:
            assert values(reader.poll(max_records=1)) == [0]
            reader.commit()
        with topic.reader("r") as reader:
            assert drain(reader) == [1, 2, 3, 4, 5]

    def test_names_are_apart_and_are_listed(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 2)
        for name in ("b", "a.json", "a"):
            with topic.reader(name) as reader:
                reader.poll()
                reader.commit()
        with topic.reader("c") as reader:
            assert reader.positions == {0: 0}
        assert topic.describe().readers == ("a", "a.json", "b")

    @pytest.mark.parametrize("start", ["earliest", "latest", 1])
    def test_where_it_never_committed_it_begins_at_the_start(self, log: Log, start: object) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        with topic.reader("r", start=start) as reader:  # type: ignore[arg-type]
            assert reader.positions == {0: {"earliest": 0, "latest": 3, 1: 1}[start]}  # type: ignore[index]

    def test_partitions_that_were_added_begin_at_the_start(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        with topic.reader("r") as reader:
            reader.poll()
            reader.commit()
        log.alter_topic("t", partitions=2)
        fill(topic, 10, 12, partition=1)
        with topic.reader("r") as reader:
            assert reader.positions == {0: 3, 1: 0}
            assert drain(reader) == [10, 11]

    def test_where_retention_has_passed_it_begins_at_the_log_start(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 6)
        with topic.reader("r") as reader:
            reader.poll(max_records=1)
            reader.commit()
        topic.delete_records({0: 4})
        with topic.reader("r") as reader:
            assert drain(reader) == [4, 5]

    def test_positions_outlive_the_log(self, tmp_path: Path, clock: ManualClock) -> None:
        with open_log(tmp_path / "d", clock) as log, log.create_topic("t").reader("r") as reader:
            fill(log.topic("t"), 0, 3)
            reader.poll(max_records=2)
            reader.commit()
        with open_log(tmp_path / "d", clock) as log, log.topic("t").reader("r") as reader:
            assert drain(reader) == [2]

    def test_a_topic_of_the_same_name_does_not_inherit_them(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        with topic.reader("r") as reader:
            reader.poll()
            reader.commit()
        log.delete_topic("t")
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        with topic.reader("r") as reader:
            assert drain(reader) == [0, 1, 2]

    def test_only_a_named_one_commits(self, log: Log) -> None:
        topic = log.create_topic("t")
        with topic.reader() as reader, pytest.raises(InvalidError, match="named reader"):
            reader.commit()

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ü", "x" * 241, "a b"])
    def test_names_that_are_not_allowed(self, log: Log, name: str) -> None:
        topic = log.create_topic("t")
        with pytest.raises(InvalidError, match="is not a name for a reader"):
            topic.reader(name)

    def test_the_longest_name_can_commit(self, log: Log) -> None:
        topic = log.create_topic("t")
        with topic.reader("x" * 240) as reader:
            reader.commit()
        assert topic.describe().readers == ("x" * 240,)

    @pytest.mark.parametrize("content", ["garbage", "{}", '{"positions": []}', '{"positions": {"a": "b"}}'])
    def test_a_damaged_position_says_what_to_do(self, tmp_path: Path, content: str) -> None:
        committed = CommittedPositions(tmp_path, "id", "r")
        committed.save({0: 3}, 1)
        assert committed.load() == {0: 3}
        (tmp_path / "readers" / "id" / "r.json").write_text(content)

        with pytest.raises(CorruptError, match="Remove it to let the reader 'r' begin again"):
            committed.load()


def test_a_closed_reader_says_so(log: Log) -> None:
    topic = log.create_topic("t")
    reader = topic.reader("r")
    reader.close()
    with pytest.raises(ClosedError):
        reader.poll()


def test_closing_gives_files_and_leases_back(log: Log) -> None:
    topic = log.create_topic("t", partitions=3)
    for partition in range(3):
        fill(topic, 0, 3, partition=partition)
    topic.seal()
    for partition in range(3):
        fill(topic, 3, 6, partition=partition)
    list(topic.read())
    before = open_files(log.path)
    for _ in range(5):
        with topic.reader("r") as reader:
            reader.poll(max_records=1)
            reader.poll(max_records=4)
        list(topic.read())
        topic.state()
        topic.offsets_for_time(0)
        next(topic.read())

    assert open_files(log.path) == before
    assert list((log.path / "leases").iterdir()) == []


def test_following_gives_what_comes_later(
    log: Log, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create_topic("t")
    fill(topic, 0, 2)
    numbers = iter(range(2, 5))
    real = clock.sleep_ms

    def sleep(duration_ms: float) -> None:
        real(duration_ms)
        number = next(numbers)
        fill(topic, number, number + 1)

    monkeypatch.setattr(clock, "sleep_ms", sleep)
    following = topic.read(follow=True)

    assert [next(following).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    following.close()  # type: ignore[attr-defined]
    assert offsets(topic.read()) == [0, 1, 2, 3, 4]
