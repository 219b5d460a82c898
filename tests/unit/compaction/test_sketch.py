"""Sketches of keys: what the library would say if it had been given every key."""

from __future__ import annotations

from pathlib import Path

import datasketches
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from tests.support.segments import append, local_place, new_topic, records, write_segment

from lastword.batch.partitioner import RoundRobin, partitions_of
from lastword.segments import sketch as sketches
from lastword.segments.sketch import KeySketch, Sketches, distinct_keys


def keys_of(first: int, count: int) -> pa.Array:
    return pa.array([b"user-%d" % number for number in range(first, first + count)], pa.binary())


def numbers_of(keys: pa.Array) -> npt.NDArray[np.uint64]:
    return sketches._low_keys(keys, 1 << 63)[0]


def hashes_of(keys: pa.Array) -> npt.NDArray[np.uint64]:
    return sketches._low_keys(keys, 1 << 63)[1]


def sketch_of(*columns: pa.Array) -> bytes:
    sketch = KeySketch()
    for column in columns:
        sketch.add(column)
    return sketch.to_bytes()


def fed_to_the_library(keys: pa.Array) -> datasketches.update_theta_sketch:
    fed = datasketches.update_theta_sketch(11, seed=9001)
    for number in numbers_of(keys).astype(np.int64).tolist():
        fed.update(number)
    return fed


@pytest.mark.parametrize("count", [0, 1, 100, 2048])
def test_few_keys_are_counted_exactly(count: int) -> None:
    assert distinct_keys([sketch_of(keys_of(0, count))]) == count


@pytest.mark.parametrize("count", [2049, 5_000, 100_000])
def test_many_keys_are_estimated_as_well_as_by_the_library(count: int) -> None:
    keys = keys_of(0, count)
    assert distinct_keys([sketch_of(keys)]) == pytest.approx(count, rel=0.06)
    assert fed_to_the_library(keys).get_estimate() == pytest.approx(count, rel=0.06)


def test_the_sketch_is_the_librarys_own() -> None:
    """Its hash is ours: below the library's nominal size both retain the very same entries."""
    keys = keys_of(0, 2000)
    ours = datasketches.compact_theta_sketch.deserialize(sketch_of(keys), seed=9001)
    assert sorted(ours) == sorted(fed_to_the_library(keys).compact())
    assert sorted(hashes_of(keys).tolist()) == sorted(ours)


def test_past_its_size_it_keeps_the_lowest_hashes() -> None:
    keys = keys_of(0, 10_000)
    lowest = np.unique(hashes_of(keys))[:2048].tolist()
    kept = sorted(datasketches.compact_theta_sketch.deserialize(sketch_of(keys), seed=9001))
    # The threshold is handed over as a float of 32 bits, which may cost an entry or two at the edge.
    assert kept == lowest[: len(kept)]
    assert len(kept) >= 2040


def test_short_keys_are_all_told_apart() -> None:
    """Kafka's own hash, of 32 bits, is the same for b"b" and b"a\\0" and for many others."""
    short = [bytes([first]) for first in range(256)] + [
        bytes([first, second]) for first in range(256) for second in range(256)
    ]
    assert len(set(numbers_of(pa.array(short, pa.binary())).tolist())) == len(short)


def test_keys_of_one_partition_are_counted_as_well_as_all(tmp_path: Path) -> None:
    """The partitioner leaves a partition only a small part of its hashes."""
    keys = keys_of(0, 60_000)
    own = keys.filter(pa.array(partitions_of(keys, 20, RoundRobin()) == 3))
    assert distinct_keys([sketch_of(own)]) == pytest.approx(len(own), rel=0.06)
    numbers = numbers_of(keys)
    assert len(np.unique(numbers)) == len(keys)


def test_order_doubles_nulls_and_chunks_change_nothing() -> None:
    keys = keys_of(0, 5000)
    chunks = [keys.slice(3000), keys, pa.nulls(7, pa.binary()), keys.slice(0, 3000), keys.slice(0, 0)]
    assert sketch_of(*chunks) == sketch_of(keys)


def test_a_union_counts_a_key_once() -> None:
    found = [sketch_of(keys_of(start, 10_000)) for start in range(0, 50_000, 5_000)]
    assert distinct_keys(found) == pytest.approx(55_000, rel=0.06)
    assert distinct_keys([*found, *found]) == distinct_keys(found)
    assert distinct_keys([]) == 0


def test_a_segment_carries_its_sketch(tmp_path: Path) -> None:
    place = local_place(tmp_path)
    table = place.open().create(new_topic())
    segments = [append(table, 0), append(table, 10)]
    odd = write_segment(table, records(20, 4, keys=[None, b"key-1", b"new", b""]))
    known = Sketches(table.files)
    assert known.distinct_keys(segments) == 7
    assert known.distinct_keys([*segments, odd]) == 9
    assert known.distinct_keys([]) == 0
    assert 5 <= known.mean_key_bytes(segments) <= 20
    assert known.mean_key_bytes([]) == 0
    place.close()
