"""The state view: the winner of each key, by each strategy."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.clock import DAY_MS, ManualClock
from tests.support.logs import fill, open_log

from lastword.errors import CorruptError
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.reading import reader as readers
from lastword.reading import winners
from lastword.record import RECORD_SCHEMA, NewRecord
from lastword.wal.reader import OffsetGoneError

Rows = list[tuple[str | None, str | None, object]]
"""Key, value, and what the strategy looks at."""


def state(topic: Topic) -> dict[str, str]:
    table = topic.state()
    assert table.schema == RECORD_SCHEMA
    keys = [each.decode() for each in table.column("key").to_pylist()]
    assert len(set(keys)) == len(keys), "a key counts once"
    return dict(zip(keys, (each.decode() for each in table.column("value").to_pylist()), strict=True))


def test_records_without_a_key_are_no_state(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    topic.append(None, "1")
    assert state(topic) == {}
    topic.seal()
    assert state(topic) == {}


def long(version: int) -> bytes:
    return struct.pack(">q", version)


def with_header(value: bytes | None) -> tuple[tuple[str, bytes | None], ...]:
    return (("v", value),)


CASES: dict[str, tuple[dict[str, str], list[NewRecord], dict[str, str]]] = {}


def case(name: str, config: dict[str, str], records: list[NewRecord], expected: dict[str, str]) -> None:
    CASES[name] = (config, records, expected)


def record(key: str | None, value: str | None, **more: object) -> NewRecord:
    return NewRecord(
        key=None if key is None else key.encode(), value=None if value is None else value.encode(), **more
    )  # type: ignore[arg-type]


OFFSET = {"compaction.strategy": "offset"}
FIRST = {"compaction.strategy": "first"}
TIME = {"compaction.strategy": "timestamp"}
HEADER_LONG = {
    "compaction.strategy": "header",
    "compaction.strategy.header": "v",
    "compaction.strategy.header.format": "long",
    "compaction.strategy.header.missing": "lowest",
}
HEADER_TEXT = HEADER_LONG | {"compaction.strategy.header.format": "text"}

case("nothing", OFFSET, [], {})
case("newest wins", OFFSET, [record("a", "1"), record("b", "2"), record("a", "3")], {"a": "3", "b": "2"})
case(
    "newest wins whatever its time",
    OFFSET,
    [record("a", "1", timestamp_ms=9), record("a", "2", timestamp_ms=1)],
    {"a": "2"},
)
case("a tombstone takes its key", OFFSET, [record("a", "1"), record("a", None), record("b", "2")], {"b": "2"})
case(
    "and a later value brings it back",
    OFFSET,
    [record("a", "1"), record("a", None), record("a", "2")],
    {"a": "2"},
)
case("an empty value is a value", OFFSET, [record("a", "1"), record("a", "")], {"a": ""})
case("an empty key is a key", OFFSET, [record("", "1"), record("", "2")], {"": "2"})
case("null keys have no state", OFFSET, [record(None, "1"), record("a", "2"), record(None, None)], {"a": "2"})
case("only tombstones", OFFSET, [record("a", None), record("b", None)], {})
case("oldest wins", FIRST, [record("a", "1"), record("a", "2"), record("b", "3")], {"a": "1", "b": "3"})
case(
    "a tombstone behind an older record has no effect",
    FIRST,
    [record("a", "1"), record("a", None)],
    {"a": "1"},
)
case("one before it has", FIRST, [record("a", None), record("a", "1")], {})
case(
    "highest time wins",
    TIME,
    [record("a", "1", timestamp_ms=9), record("a", "2", timestamp_ms=5)],
    {"a": "1"},
)
case(
    "on a tie the higher offset",
    TIME,
    [record("a", "1", timestamp_ms=5), record("a", "2", timestamp_ms=5)],
    {"a": "2"},
)
case(
    "no time is lowest",
    TIME,
    [record("a", "1", timestamp_ms=0), record("a", "2", timestamp_ms=-1)],
    {"a": "1"},
)
case(
    "but wins alone", TIME, [record("a", "1", timestamp_ms=-1), record("a", "2", timestamp_ms=-1)], {"a": "2"}
)
case(
    "a late tombstone loses",
    TIME,
    [record("a", "1", timestamp_ms=9), record("a", None, timestamp_ms=5)],
    {"a": "1"},
)
case(
    "a newer tombstone wins", TIME, [record("a", None, timestamp_ms=9), record("a", "1", timestamp_ms=5)], {}
)
case(
    "highest long wins, signed",
    HEADER_LONG,
    [
        record("a", "1", headers=with_header(long(-5))),
        record("a", "2", headers=with_header(long(-6))),
        record("b", "1", headers=with_header(long(2**63 - 1))),
        record("b", "2", headers=with_header(long(-(2**63)))),
    ],
    {"a": "1", "b": "1"},
)
case(
    "a tie of longs goes to the higher offset",
    HEADER_LONG,
    [record("a", "1", headers=with_header(long(3))), record("a", "2", headers=with_header(long(3)))],
    {"a": "2"},
)
case(
    "text is a number, not an order of letters",
    HEADER_TEXT,
    [
        record("a", "1", headers=with_header(b"10")),
        record("a", "2", headers=with_header(b"9")),
        record("b", "1", headers=with_header(b"-1")),
        record("b", "2", headers=with_header(b"-2")),
        record("c", "1", headers=with_header(b"007")),
        record("c", "2", headers=with_header(b"+6")),
    ],
    {"a": "1", "b": "1", "c": "1"},
)
case(
    "the last header of the name counts",
    HEADER_TEXT,
    [
        record("a", "1", headers=(("v", b"9"), ("v", b"1"))),
        record("a", "2", headers=(("v", b"2"), ("w", b"100"))),
        record("a", "3", headers=(("v", b"0"),)),
    ],
    {"a": "2"},
)
case(
    "without a readable version it loses to every one with one",
    HEADER_TEXT,
    [
        record("a", "1", headers=with_header(str(-(2**63)).encode())),
        record("a", "2"),
        record("a", "3", headers=with_header(b"x")),
        record("a", "4", headers=with_header(None)),
        record("b", "1"),
        record("b", "2", headers=with_header(b"x")),
    ],
    {"a": "1", "b": "2"},
)
case(
    "a long of another length is no version",
    HEADER_LONG,
    [record("a", "1", headers=with_header(long(-9))), record("a", "2", headers=with_header(b"\x7f" * 7))],
    {"a": "1"},
)

WAYS: dict[str, Callable[[int, int], bool]] = {
    "all in the tail": lambda index, count: False,
    "all sealed": lambda index, count: index == count - 1,
    "sealed and tail": lambda index, count: index == count // 2,
    "one segment a record": lambda index, count: True,
}


@pytest.fixture(scope="module")
def shared_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    """One for all cases, which have a topic each: opening one for each would take most of the time."""
    with open_log(tmp_path_factory.mktemp("state") / "data", ManualClock()) as log:
        yield log


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_the_winner_of_each_key(shared_log: Log, name: str, way: str) -> None:
    config, records, expected = CASES[name]
    topic_name = f"{list(CASES).index(name)}-{list(WAYS).index(way)}"
    topic = shared_log.create_topic(topic_name, config={"cleanup.policy": "compact"} | config)
    for index, each in enumerate(records):
        topic.append_many([each])
        if WAYS[way](index, len(records)):
            topic.seal()

    assert state(topic) == expected


def test_it_is_by_partition_and_offset(log: Log) -> None:
    topic = log.create_topic("t", partitions=2, config={"cleanup.policy": "compact"})
    for partition in (1, 0):
        for key in "cab":
            topic.append(f"{key}{partition}", "1", partition=partition)
    topic.append("a0", "2", partition=0)

    table = topic.state()
    assert list(
        zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True)
    ) == [
        (0, 0),
        (0, 2),
        (0, 3),
        (1, 0),
        (1, 1),
        (1, 2),
    ]


class TestAKeyInTwoPartitions:
    """As after an increase of partitions."""

    def two(self, log: Log, **own: str) -> Topic:
        return log.create_topic("t", partitions=2, config={"cleanup.policy": "compact"} | own)

    def test_the_later_timestamp_counts(self, log: Log) -> None:
        topic = self.two(log)
        topic.append("a", "old", partition=1, timestamp_ms=5)
        topic.append("a", "new", partition=0, timestamp_ms=6)
        assert state(topic) == {"a": "new"}

    def test_on_a_tie_the_higher_partition(self, log: Log) -> None:
        topic = self.two(log)
        topic.append("a", "one", partition=1, timestamp_ms=5)
        topic.append("a", "zero", partition=0, timestamp_ms=5)
        assert state(topic) == {"a": "one"}

    def test_a_later_tombstone_takes_it(self, log: Log) -> None:
        topic = self.two(log)
        topic.append("a", "1", partition=0, timestamp_ms=5)
        topic.append("b", "1", partition=0, timestamp_ms=5)
        topic.append("a", None, partition=1, timestamp_ms=6)
        topic.append("b", None, partition=1, timestamp_ms=4)
        assert state(topic) == {"b": "1"}

    def test_only_the_winner_of_a_partition_competes(self, log: Log) -> None:
        topic = self.two(log)
        topic.append("a", "late but beaten", partition=0, timestamp_ms=9)
        topic.append("a", "wins there", partition=0, timestamp_ms=3)
        topic.append("a", "wins", partition=1, timestamp_ms=4)
        assert state(topic) == {"a": "wins"}


class TestWhileOthersAreAtWork:
    def test_records_move_to_the_table_meanwhile(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open_log(tmp_path / "d", clock, {"local.retention.ms": 0, "retention.ms": -1}) as log:
            topic = log.create_topic("t")
            fill(topic, 0, 3)
            topic.seal()
            fill(topic, 3, 6)
            real = readers.PartitionReader.tail

            def moved_first(self: readers.PartitionReader, *rest: int) -> Iterator[object]:
                monkeypatch.setattr(readers.PartitionReader, "tail", real)
                topic.seal()
                log.run_retention()
                return real(self, *rest)

            monkeypatch.setattr(readers.PartitionReader, "tail", moved_first)
            assert state(topic) == {f"k{number}": str(number) for number in range(6)}

    def test_only_a_partition_whose_records_move_is_looked_at_again(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = log.create_topic("t", partitions=3)
        for partition in range(3):
            topic.append(f"k{partition}", "v", partition=partition)
        looked: list[int] = []
        tail = readers.PartitionReader.tail

        def moving(self: readers.PartitionReader, offset: int, end_offset: int) -> Iterator[pa.RecordBatch]:
            looked.append(self.partition)
            if self.partition == 1 and looked.count(1) == 1:
                raise OffsetGoneError
            return tail(self, offset, end_offset)

        monkeypatch.setattr(readers.PartitionReader, "tail", moving)
        assert state(topic) == {"k0": "v", "k1": "v", "k2": "v"}
        # Once for the keys, and once for the rows.
        assert [looked.count(partition) for partition in range(3)] == [2, 3, 2]

    def test_below_the_log_start_there_is_no_state(self, log: Log) -> None:
        topic = log.create_topic("t", config={"cleanup.policy": "compact"})
        topic.append("a", "1")
        topic.append("b", "1")
        topic.append("b", None)
        topic.delete_records({0: 1})
        assert state(topic) == {}
        topic.seal()
        assert state(topic) == {}

    def test_retention_takes_state_too(self, log: Log, clock: ManualClock) -> None:
        topic = log.create_topic("t", config={"cleanup.policy": "compact,delete", "retention.ms": 1000})
        topic.append("a", "1")
        topic.seal()
        clock.move(DAY_MS)
        topic.append("b", "1")
        log.run_retention()
        assert state(topic) == {"b": "1"}

    def test_damage_is_told(self, log: Log) -> None:
        topic = log.create_topic("t")
        fill(topic, 0, 3)
        (path,) = topic.partition(0).folder.glob("*.log")
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
        with pytest.raises(CorruptError):
            topic.state()


@pytest.mark.parametrize("settings", [OFFSET, FIRST, TIME], ids=["offset", "first", "timestamp"])
def test_keys_that_don_t_fit_into_memory_are_gone_through_share_by_share(
    log: Log, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact", **settings})
    drawn = random.Random(3)
    appended: list[tuple[str, str | None, int]] = []
    for part in range(3):
        some = [
            (f"k{drawn.randrange(500)}", drawn.choice([f"{part}", None]), drawn.randrange(100))
            for _ in range(600)
        ]
        topic.append_many([record(key, value, timestamp_ms=stamp) for key, value, stamp in some])
        appended += some
        if part < 2:
            topic.seal()
    best: dict[str, tuple[object, str | None]] = {}
    for offset, (key, value, stamp) in enumerate(appended):
        rank = {"offset": offset, "first": -offset, "timestamp": (stamp, offset)}[
            str(settings["compaction.strategy"])
        ]
        if key not in best or rank > best[key][0]:  # type: ignore[operator]
            best[key] = (rank, value)
    shares: list[int] = []
    find = winners._masks_of

    def counted(*given: Any) -> Any:
        shares.append(given[-2].count)
        return find(*given)

    monkeypatch.setattr(winners, "_masks_of", counted)
    monkeypatch.setattr(winners, "SET_BYTES", 4000)
    state = topic.state()
    found = dict(zip(state.column("key").to_pylist(), state.column("value").to_pylist(), strict=True))
    assert found == {key.encode(): value.encode() for key, (_, value) in best.items() if value is not None}
    assert max(shares) > 2


def test_keys_in_another_partition_than_their_own_are_looked_for_once(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    topic.append_many([record(f"k{number}", "old") for number in range(400)])
    topic.seal()
    log.alter_topic("t", partitions=3)
    topic.append_many([record(f"k{number}", "new") for number in range(0, 400, 2)])
    kept: list[int] = []
    keys = winners._Strays.keys

    def counted(strays: Any) -> Any:
        found = keys(strays)
        kept.append(len(found))
        return found

    monkeypatch.setattr(winners._Strays, "keys", counted)
    monkeypatch.setattr(winners, "SET_BYTES", 6000)
    found = state(topic)
    assert {key: value for key, value in found.items() if value == "new"} == {
        f"k{number}": "new" for number in range(0, 400, 2)
    }
    assert len(found) == 400
    assert sum(kept) < 400
