"""Keys go where Kafka's Java client puts them."""

from __future__ import annotations

import aiokafka.partitioner
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.batch import partitioner
from lastword.batch.partitioner import RoundRobin, murmur2, partition_of, partitions_of


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        # From the tests of Kafka's own Utils.murmur2.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_known_hashes(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.binary(max_size=70))
def test_hash_is_aiokafkas(key: bytes) -> None:
    assert murmur2(key) == aiokafka.partitioner.murmur2(key)


@given(st.lists(st.none() | st.binary(max_size=40)), st.integers(1, 300), st.data())
def test_column_is_each_key_of_it(
    keys: list[bytes | None], partition_count: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(keys)))
    column = pa.array(keys, pa.binary()).slice(start)
    turns = RoundRobin()
    expected = [
        turns.next(partition_count) if key is None else partition_of(key, partition_count)
        for key in keys[start:]
    ]
    assert partitions_of(column, partition_count, RoundRobin()).tolist() == expected


def test_turns_run_and_go_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioner, "RUN", 2)
    turns = RoundRobin()
    assert [turns.next(3) for _ in range(3)] == [0, 0, 1]
    assert turns.take(5, 3).tolist() == [1, 2, 2, 0, 0]
    assert turns.next(3) == 1


def test_turns_follow_a_new_partition_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioner, "RUN", 1)
    turns = RoundRobin()
    assert turns.take(3, 2).tolist() == [0, 1, 0]
    assert turns.take(4, 4).tolist() == [3, 0, 1, 2]
