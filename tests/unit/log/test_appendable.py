"""Appending: one, many, an Arrow table, a batch. Everything is checked before anything is written."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.clock import HOUR_MS, ManualClock
from tests.support.logs import offsets, open_log, values

from lastword import batch
from lastword.batch import Compression
from lastword.batch.partitioner import partition_of
from lastword.errors import (
    FencedProducerError,
    InvalidRecordError,
    InvalidTimestampError,
    LastwordError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    UnknownPartitionError,
)
from lastword.log import Log
from lastword.log.appendable import RecordPosition
from lastword.log.encoding import BATCH_BYTES
from lastword.log.topic import Topic
from lastword.record import HEADERS_TYPE, NewRecord, TimestampType


def numbers(first: int, end: int) -> list[NewRecord]:
    return [NewRecord(key=f"k{each}".encode(), value=str(each).encode()) for each in range(first, end)]


def ends(topic: Topic) -> list[int]:
    return [each.log_end for each in topic.extents().values()]


class TestOne:
    def test_text_is_bytes_and_none_is_null(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t")
        assert topic.append("é", "ü") == RecordPosition(partition=0, offset=0)
        topic.append(b"k", None, headers=[("h", b"1"), ("h", None)], timestamp_ms=5)
        topic.append(None, b"")

        first, second, third = topic.read()
        assert (first.key, first.value) == ("é".encode(), "ü".encode())
        assert (first.timestamp_ms, first.timestamp_type) == (clock.now_ms(), TimestampType.CREATE)
        assert (
            second.is_tombstone and second.headers == (("h", b"1"), ("h", None)) and second.timestamp_ms == 5
        )
        assert (third.key, third.value, third.is_tombstone) == (None, b"", False)

    def test_a_key_goes_where_kafkas_client_puts_it(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=5)
        for number in range(30):
            key = f"key-{number}".encode()
            assert topic.append(key, "v").partition == partition_of(key, 5)

    def test_records_without_a_key_take_turns(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=3)
        positions = topic.append_many([NewRecord(value=b"v")] * 3000)
        assert {each.partition for each in positions} == {0, 1, 2}

    def test_a_partition_may_be_given(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=2)
        assert topic.append("k", "v", partition=1).partition == 1
        for partition in (-1, 2):
            with pytest.raises(UnknownPartitionError, match="it has 0 to 1"):
                topic.append("k", "v", partition=partition)
        assert ends(topic) == [0, 1]


class TestMany:
    def test_each_may_have_a_partition_of_its_own(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=3)
        places = topic.append_many(numbers(0, 6), partition=[2, 0, 2, None, 0, 2])
        assert [each.partition for each in places if each.partition != 1][:3] == [2, 0, 2]
        assert values(topic.read(partition=2))[:2] == [0, 2]
        with pytest.raises(UnknownPartitionError):
            topic.append_many(numbers(6, 8), partition=[0, 3])
        with pytest.raises(UnknownPartitionError):
            topic.check_many(numbers(6, 8), partition=[0, 3])
        assert sum(ends(topic)) == 6

    def test_each_one_is_where_it_says(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=4)
        given = numbers(0, 200)
        positions = topic.append_many(given)

        found = {(each.partition, each.offset): each.value for each in topic.read()}
        assert [found[(each.partition, each.offset)] for each in positions] == [each.value for each in given]
        for partition in range(4):
            own = [each.offset for each in positions if each.partition == partition]
            assert own == list(range(len(own))), "in their order"

    def test_none_is_fine(self, log: Log) -> None:
        topic = log.create_topic("t")
        assert topic.append_many([]) == []
        assert topic.append_many(iter(numbers(0, 2))) == [
            RecordPosition(partition=0, offset=0),
            RecordPosition(partition=0, offset=1),
        ]

    def test_more_than_a_batch_holds(self, log: Log) -> None:
        topic = log.create_topic("t")
        big = [NewRecord(key=b"k", value=bytes([each]) * (BATCH_BYTES // 3)) for each in range(10)]
        positions = topic.append_many(big)
        assert [each.offset for each in positions] == list(range(10))
        assert [each.value[0] for each in topic.read() if each.value] == list(range(10))

    def test_small_records_fit_a_small_limit_however_many_they_are(self, log: Log) -> None:
        topic = log.create_topic("t", config={"max.message.bytes": 300})
        topic.append_many(numbers(0, 100))
        table = pa.table({"key": [b"k"] * 100, "value": [str(each).encode() for each in range(100, 200)]})
        topic.append_arrow(table)
        assert values(topic.read()) == list(range(200))

    @pytest.mark.parametrize("compression", list(Compression))
    def test_every_compression(self, log: Log, compression: Compression) -> None:
        topic = log.create_topic("t")
        topic.append_many(numbers(0, 500), compression=compression)
        assert values(topic.read()) == list(range(500))
        topic.seal()
        assert values(topic.read()) == list(range(500))

    def test_threads_do_not_get_each_others_offsets(self, tmp_path: Path, clock: ManualClock) -> None:
        with open_log(tmp_path / "d", clock, {"segment.bytes": 2000}) as log:
            topic = log.create_topic("t", config={"max.message.bytes": 300})
            told: dict[int, str] = {}
            ranges: list[range] = []

            def append(name: int) -> None:
                for turn in range(5):
                    own = [f"{name}/{turn}/{each}" for each in range(20)]
                    records = [NewRecord(key=b"k", value=each.encode()) for each in own]
                    for position, value in zip(topic.append_many(records), own, strict=True):
                        told[position.offset] = value
                    table = pa.table({"key": [b"k"] * 20, "value": [each.encode() for each in own]})
                    got = topic.append_arrow(table)[0]
                    ranges.append(got)
                    told.update(zip(got, own, strict=True))

            threads = [threading.Thread(target=append, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(180)

            assert {each.offset: (each.value or b"").decode() for each in topic.read()} == told
            assert len(told) == 800
            assert all(len(each) == 20 for each in ranges)


class TestArrow:
    def test_columns_may_be_of_many_types(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t")
        headers = pa.array([[{"key": "h", "value": b"1"}], None, []], HEADERS_TYPE)
        table = pa.table(
            {
                "value": pa.array(["1", None, "3"], pa.large_string()),
                "key": pa.array([b"a", b"b", None], pa.binary()),
                "timestamp": pa.array([1000, None, 3000], pa.timestamp("ms", tz="UTC")),
                "headers": headers,
                "ignored": [1, 2, 3],
            }
        )
        assert topic.append_arrow(table) == {0: range(3)}

        first, second, third = topic.read()
        assert (first.key, first.value, first.timestamp_ms, first.headers) == (
            b"a",
            b"1",
            1000,
            (("h", b"1"),),
        )
        assert second.is_tombstone and second.timestamp_ms == clock.now_ms()
        assert (third.key, third.timestamp_ms, third.headers) == (None, 3000, ())

    def test_rows_go_where_their_key_or_their_partition_says(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=3)
        keys = [f"k{each}".encode() for each in range(60)]
        given: list[int | None] = [2 if each % 10 == 0 else None for each in range(60)]
        table = pa.table({"key": keys, "value": keys, "partition": pa.array(given, pa.int64())})
        got = topic.append_arrow(table)

        for record in topic.read():
            assert record.key is not None
            number = int(record.key[1:])
            assert record.partition == (2 if number % 10 == 0 else partition_of(record.key, 3))
        assert {each: len(offsets_) for each, offsets_ in got.items()} == dict(enumerate(ends(topic)))

    def test_batches_and_empty_tables(self, log: Log) -> None:
        topic = log.create_topic("t")
        table = pa.table({"key": [b"a"], "value": [b"1"]})
        assert topic.append_arrow(table.to_batches()[0]) == {0: range(1)}
        assert topic.append_arrow(table.slice(0, 0)) == {}

    @pytest.mark.parametrize(
        "table",
        [
            pa.table({"key": [b"a"]}),
            pa.table({"value": [b"a"]}),
            pa.table({"key": [1.5], "value": [b"a"]}),
            pa.table({"key": [b"a"], "value": [b"a"], "timestamp": ["now"]}),
            pa.table({"key": [b"a"], "value": [b"a"], "headers": [1]}),
            pa.table({"key": [b"a"], "value": [b"a"], "partition": ["x"]}),
            pa.table({"key": [b"a"], "value": [b"a"], "partition": [7]}),
        ],
    )
    def test_what_can_not_be_appended_is_an_error_of_ours(self, log: Log, table: pa.Table) -> None:
        topic = log.create_topic("t")
        with pytest.raises((InvalidRecordError, UnknownPartitionError)):
            topic.append_arrow(table)
        assert ends(topic) == [0]


class TestBatch:
    def test_a_producers_batch_is_kept_as_it_came(self, log: Log) -> None:
        topic = log.create_topic("t")
        topic.append("k", "0")
        data = batch.encode(
            numbers(1, 4),
            now_ms=5,
            compression=Compression.ZSTD,
            producer_id=9,
            producer_epoch=1,
            base_sequence=3,
        )
        assert topic.append_batch(0, data) == 1
        assert values(topic.read()) == [0, 1, 2, 3]
        (placed,) = topic.partition(0).reader()._wal.read(1, max_bytes=1)
        assert bytes(placed.data[16:]) == data[16:]
        assert (placed.header.producer_id, placed.header.base_sequence) == (9, 3)

    def test_one_that_is_sent_again_is_not_appended_again(self, tmp_path: Path, clock: ManualClock) -> None:
        def sent(sequence: int, count: int = 2, *, epoch: int = 0) -> bytes:
            records = numbers(sequence, sequence + count)
            return batch.encode(
                records, now_ms=5, producer_id=9, producer_epoch=epoch, base_sequence=sequence
            )

        with open_log(tmp_path / "data", clock) as log:
            topic = log.create_topic("t")
            assert [topic.append_batch(0, sent(at)) for at in (0, 2, 0, 2)] == [0, 2, 0, 2]
        for seals in (False, True):
            with open_log(tmp_path / "data", clock) as log:
                topic = log.topic("t")
                assert [topic.append_batch(0, sent(at)) for at in (2, 0)] == [2, 0]
                with pytest.raises(OutOfOrderSequenceError, match="sends sequence 7; the last one was 3"):
                    topic.append_batch(0, sent(7))
                assert values(topic.read()) == [0, 1, 2, 3]
                if not seals:
                    topic.seal()
        with open_log(tmp_path / "data", clock) as log:
            topic = log.topic("t")
            assert topic.append_batch(0, sent(4)) == 4
            assert topic.append_batch(0, sent(0, epoch=1)) == 6
            with pytest.raises(FencedProducerError):
                topic.append_batch(0, sent(6))
            assert values(topic.read()) == [0, 1, 2, 3, 4, 5, 0, 1]

    @pytest.mark.parametrize("position", [10, 16, 25, 61, 70])
    def test_a_damaged_one_is_refused(self, log: Log, position: int) -> None:
        topic = log.create_topic("t")
        data = bytearray(batch.encode(numbers(0, 3), now_ms=5))
        data[position] ^= 0x55
        with pytest.raises(InvalidRecordError):
            topic.append_batch(0, bytes(data))
        for wrong in (b"", b"x" * 61, bytes(data[:-1]), batch.encode(numbers(0, 1), now_ms=5) * 2):
            with pytest.raises(LastwordError):
                topic.append_batch(0, wrong)
        assert ends(topic) == [0]


GOOD = NewRecord(key=b"k", value=b"v")


class TestNothingIsWrittenIfOneIsWrong:
    @pytest.mark.parametrize(
        ("config", "wrong", "error"),
        [
            ({"max.message.bytes": 200}, NewRecord(key=b"k", value=b"x" * 300), RecordTooLargeError),
            ({"cleanup.policy": "compact", "null.key": "reject"}, NewRecord(value=b"v"), InvalidRecordError),
            ({}, NewRecord(key=b"k", value=b"v", timestamp_ms=2**61), InvalidTimestampError),
            ({}, NewRecord(key=b"k", value=b"v", timestamp_ms=-2), InvalidTimestampError),
            ({}, NewRecord(key="text", value=b"v"), InvalidRecordError),  # type: ignore[arg-type]
            ({}, NewRecord(key=b"k", value=b"v", headers=((None, b"v"),)), InvalidRecordError),  # type: ignore[arg-type]
        ],
    )
    def test_of_many(
        self, log: Log, config: dict[str, object], wrong: NewRecord, error: type[Exception]
    ) -> None:
        topic = log.create_topic("t", partitions=3, config=config)
        for records in ([wrong], [*[NewRecord(key=f"{each}".encode()) for each in range(30)], wrong, GOOD]):
            with pytest.raises(error):
                topic.append_many(records)
        assert ends(topic) == [0, 0, 0]
        assert list(topic.read()) == []


class TestTimestamps:
    def test_none_given_is_now_and_minus_one_stays(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t")
        topic.append_many([NewRecord(key=b"a", value=b"1", timestamp_ms=each) for each in (None, -1, 0, 7)])
        found = [(each.timestamp_ms, each.timestamp_type) for each in topic.read()]
        create, none = TimestampType.CREATE, TimestampType.NONE
        assert found == [(clock.now_ms(), create), (-1, none), (0, create), (7, create)]

    def test_too_far_ahead_is_refused(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t")
        topic.append("k", "v", timestamp_ms=clock.now_ms() + HOUR_MS)
        with pytest.raises(InvalidTimestampError, match=r"message\.timestamp\.after\.max\.ms"):
            topic.append("k", "v", timestamp_ms=clock.now_ms() + HOUR_MS + 1)
        assert ends(topic) == [1]

    def test_too_old_is_refused_where_a_setting_says_so(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t", config={"message.timestamp.before.max.ms": 1000})
        topic.append("k", "v", timestamp_ms=clock.now_ms() - 1000)
        topic.append("k", "v", timestamp_ms=-1)
        with pytest.raises(InvalidTimestampError, match=r"message\.timestamp\.before\.max\.ms"):
            topic.append("k", "v", timestamp_ms=clock.now_ms() - 1001)
        assert ends(topic) == [2]

    def test_log_append_time_takes_the_place_of_any_other(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
        topic.append("k", "v", timestamp_ms=5)
        clock.move(1000)
        topic.append("k", "v", timestamp_ms=-1)
        topic.append_arrow(pa.table({"key": [b"a"], "value": [b"1"]}))
        for _ in range(2):
            found = [(each.timestamp_ms, each.timestamp_type) for each in topic.read()]
            now_ms, appended = clock.now_ms(), TimestampType.LOG_APPEND
            assert found == [(now_ms - 1000, appended), (now_ms, appended), (now_ms, appended)]
            topic.seal()

    def test_the_type_is_each_records_own_when_the_setting_changes(
        self, log: Log, clock: ManualClock
    ) -> None:
        topic = log.create_topic("t")
        topic.append("k", "v", timestamp_ms=5)
        log.alter_topic("t", set_config={"message.timestamp.type": "LogAppendTime"})
        topic.append("k", "v", timestamp_ms=6)
        topic.seal()
        assert [(each.timestamp_ms, each.timestamp_type) for each in topic.read()] == [
            (5, TimestampType.CREATE),
            (clock.now_ms(), TimestampType.LOG_APPEND),
        ]


class TestKeysAndVersions:
    def test_null_keys_are_refused_on_compacted_topics_only(self, log: Log) -> None:
        own = {"null.key": "reject"}
        log.create_topic("plain", config=own).append(None, "v")
        topic = log.create_topic("compacted", config=own | {"cleanup.policy": "compact"})
        with pytest.raises(InvalidRecordError, match="the key is null"):
            topic.append(None, "v")
        topic.append("", "v")
        log.create_topic("kept", config={"cleanup.policy": "compact"}).append(None, "v")

    @pytest.mark.parametrize(
        ("version_format", "right", "wrong"),
        [
            ("long", struct.pack(">q", -3), b"123"),
            ("text", b"-12", b"1.5"),
            ("text", b"9223372036854775807", b"9223372036854775808"),
            ("text", b"0", None),
        ],
    )
    def test_a_version_that_must_be_there(
        self, log: Log, version_format: str, right: bytes, wrong: bytes | None
    ) -> None:
        topic = log.create_topic(
            "t",
            config={
                "cleanup.policy": "compact",
                "compaction.strategy": "header",
                "compaction.strategy.header": "v",
                "compaction.strategy.header.format": version_format,
            },
        )
        topic.append("k", "v", headers=[("v", right)])
        topic.append("k", "v", headers=[("v", wrong), ("v", right)])
        for headers in ([], [("w", right)], [("v", wrong)], [("v", right), ("v", wrong)]):
            with pytest.raises(InvalidRecordError, match="header 'v' must be there"):
                topic.append("k", "v", headers=headers)
        assert ends(topic) == [2]
        log.alter_topic("t", set_config={"compaction.strategy.header.missing": "lowest"})
        topic.append("k", "v")


def test_offsets_never_go_back_over_restarts(tmp_path: Path, clock: ManualClock) -> None:
    for life in range(4):
        with open_log(tmp_path / "d", clock) as log:
            topic = log.topic("t") if life else log.create_topic("t")
            assert [each.offset for each in topic.append_many(numbers(0, 3))] == [
                3 * life,
                3 * life + 1,
                3 * life + 2,
            ]
            if life % 2:
                topic.seal()
    with open_log(tmp_path / "d", clock) as log:
        assert offsets(log.topic("t").read()) == list(range(12))
