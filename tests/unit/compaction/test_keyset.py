"""The compiled set of keys against a plain dict, and without any help from its hashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.compaction import keyset
from lastword.compaction.keyset import BestVersions, KeySet, SetTooLargeError, Share

Key = bytes | None

# Near each other: empty, a prefix, the last byte, lengths around the words that are compared at a time.
NEAR = [
    b"",
    b"\0",
    b"\0\0",
    b"a",
    b"b",
    b"a\0",
    b"abcdefg",
    b"abcdefgh",
    b"abcdefgi",
    b"abcdefghi",
    b"abcdefghj",
]
LONG = [b"x" * 1000, b"x" * 999 + b"y", b"x" * 1001, b"y" + b"x" * 999]

keys = st.one_of(st.none(), st.sampled_from(NEAR), st.sampled_from(LONG), st.binary(max_size=20))
columns = st.lists(st.lists(keys, max_size=300), min_size=1, max_size=5)


class PlainSet:
    """What KeySet must do, by a dict."""

    def __init__(self) -> None:
        self.ordinals: dict[bytes, int] = {}

    def add(self, column: Sequence[Key], *, backwards: bool = False) -> tuple[list[int], list[int]]:
        """Which rows are new, and the ordinals of their keys."""
        mask, named = [0] * len(column), [-1] * len(column)
        order = range(len(column))
        for row in reversed(order) if backwards else order:
            key = column[row]
            if key is None:
                mask[row] = 1
                continue
            mask[row] = int(key not in self.ordinals)
            named[row] = self.ordinals.setdefault(key, len(self.ordinals))
        return mask, named

    def look_up(self, column: Sequence[Key]) -> list[int]:
        return [int(key is None or key not in self.ordinals) for key in column]


def masked(column: Sequence[Key]) -> tuple[pa.Array, np.ndarray]:
    return pa.array(column, pa.binary()), np.zeros(len(column), np.uint8)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(columns, st.booleans(), st.integers(0, 2**64 - 1))
def test_a_set_is_a_dict(found: list[list[Key]], backwards: bool, seed: int) -> None:
    plain, real = PlainSet(), KeySet(seed, expected_keys=1)
    for column in found:
        array, mask = masked(column)
        looked = np.zeros(len(column), np.uint8)
        real.look_up(array, looked)
        assert looked.tolist() == plain.look_up(column)
        ordinals = np.full(len(column), -1, np.int64)
        real.add(array, mask, backwards=backwards, ordinals=ordinals)
        assert (mask.tolist(), ordinals.tolist()) == plain.add(column, backwards=backwards)
        assert len(real) == len(plain.ordinals)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(columns, st.integers(1, 5), st.integers(0, 2**64 - 1))
def test_shares_together_are_the_whole(found: list[list[Key]], count: int, seed: int) -> None:
    whole = PlainSet()
    shares = [KeySet(seed, expected_keys=1, share=Share(index, count)) for index in range(count)]
    for column in found:
        masks = []
        for share in shares:
            array, mask = masked(column)
            share.add(array, mask)
            masks.append(mask)
        # Each row is decided by exactly one of them.
        assert np.sum(masks, axis=0).tolist() == whole.add(column)[0]
    assert sum(map(len, shares)) == len(whole.ordinals)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(keys, max_size=200), st.integers(0, 50), st.integers(0, 50))
def test_a_slice_of_a_column_is_a_column(column: list[Key], start: int, length: int) -> None:
    plain, real = PlainSet(), KeySet(1)
    sliced = column[start : start + length]
    mask = np.zeros(len(sliced), np.uint8)
    real.add(pa.array(column, pa.binary()).slice(start, length), mask)
    assert mask.tolist() == plain.add(sliced)[0]


@pytest.mark.parametrize("backwards", [False, True])
def test_it_grows(backwards: bool) -> None:
    """Slots and arena grow in the middle of a column, and nothing is forgotten or doubled."""
    column: list[Key] = [b"%d" % (number * 7919 % 20_000) * (1 + number % 3) for number in range(60_000)]
    plain, real = PlainSet(), KeySet(3, expected_keys=1)
    small = real.nbytes
    array, mask = masked(column)
    ordinals = np.full(len(column), -1, np.int64)
    real.add(array, mask, backwards=backwards, ordinals=ordinals)
    assert (mask.tolist(), ordinals.tolist()) == plain.add(column, backwards=backwards)
    assert real.nbytes > 100 * small
    looked = np.ones(len(column), np.uint8) * 0
    real.look_up(array, looked)
    assert not looked.any()


def test_a_key_larger_than_the_arena_makes_room_for_itself() -> None:
    real = KeySet(3, expected_keys=1)
    array, mask = masked([b"z" * 1_000_000, b"z" * 999_999 + b"y", b"z" * 1_000_000])
    real.add(array, mask)
    assert mask.tolist() == [1, 1, 0]


def test_past_its_memory_it_says_so() -> None:
    real = KeySet(3, expected_keys=1 << 20, max_bytes=200_000)
    assert real.nbytes <= 200_000
    array, mask = masked([b"%d" % number for number in range(20_000)])
    with pytest.raises(SetTooLargeError, match="200000"):
        real.add(array, mask)


def test_it_stays_within_its_memory() -> None:
    real = KeySet(3, expected_keys=1 << 20, max_bytes=300_000)
    for start in range(0, 100_000, 100):
        array, mask = masked([b"%d" % number for number in range(start, start + 100)])
        try:
            real.add(array, mask)
        except SetTooLargeError:
            break
        assert real.nbytes <= 300_000
    assert len(real) > 1000


# ----------------------------------------------------------------- equal hashes: only bytes decide


def _collide(monkeypatch: pytest.MonkeyPatch, constant: int) -> tuple[object, object]:
    """`_absorb` and `_fill_slots` as plain Python, with a hash that is the same for every key."""

    def load(size: int) -> object:
        return lambda array, index: np.frombuffer(bytes(array[index : index + size]), f"<u{size}")[0]

    def store(array: np.ndarray, index: int, value: np.uint32) -> None:
        array[index : index + 4] = np.frombuffer(np.uint32(value).tobytes(), np.uint8)

    def copy(to: np.ndarray, at: int, source: np.ndarray, start: int, size: int) -> None:
        to[at : at + size] = source[start : start + size]

    monkeypatch.setattr(keyset, "_load64", load(8))
    monkeypatch.setattr(keyset, "_load32", load(4))
    monkeypatch.setattr(keyset, "_store32", store)
    monkeypatch.setattr(keyset, "_copy", copy)
    monkeypatch.setattr(keyset, "_prefetch", lambda array, index: None)
    monkeypatch.setattr(keyset, "_hash", lambda data, start, size, seed: np.uint64(constant))
    monkeypatch.setattr(keyset, "_equal", keyset._equal.py_func)
    monkeypatch.setattr(keyset, "_absorb", keyset._absorb.py_func)
    monkeypatch.setattr(keyset, "_fill_slots", keyset._fill_slots.py_func)
    return keyset._absorb, keyset._fill_slots


@pytest.mark.parametrize("constant", [0, 2**64 - 1, 0xDEADBEEF_00000001])
@pytest.mark.parametrize("backwards", [False, True])
def test_keys_with_the_same_hash_are_still_told_apart(
    monkeypatch: pytest.MonkeyPatch, constant: int, backwards: bool
) -> None:
    _collide(monkeypatch, constant)
    column: list[Key] = [*NEAR, None, *LONG, *reversed(NEAR), None, *(b"%03d" % n for n in range(120))] * 2
    plain, real = PlainSet(), KeySet(1, expected_keys=1)
    array, mask = masked(column)
    ordinals = np.full(len(column), -1, np.int64)
    real.add(array, mask, backwards=backwards, ordinals=ordinals)
    assert (mask.tolist(), ordinals.tolist()) == plain.add(column, backwards=backwards)


# -------------------------------------------------------------------------------------------- versions


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(
        st.lists(
            st.tuples(keys, st.integers(0, 1), st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1])), max_size=60
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_best_version_is_the_highest_and_then_the_last(
    chunks: list[list[tuple[Key, int, int]]],
) -> None:
    best = BestVersions(KeySet(5, expected_keys=1))
    rows = [row for chunk in chunks for row in chunk]
    first_row, without_key = 0, []
    for chunk in chunks:
        mask = np.zeros(len(chunk), np.uint8)
        best.challenge(
            pa.array([key for key, _, _ in chunk], pa.binary()),
            np.array([known for _, known, _ in chunk], np.uint8),
            np.array([version for _, _, version in chunk], np.int64),
            mask,
            first_row,
        )
        without_key += mask.tolist()
        first_row += len(chunk)
    assert without_key == [int(key is None) for key, _, _ in rows]
    expected: dict[bytes, int] = {}
    for number, (key, known, version) in enumerate(rows):
        if key is not None:
            holder = expected.get(key)
            if holder is None or (known, version) >= rows[holder][1:]:
                expected[key] = number
    assert sorted(best.rows().tolist()) == sorted(expected.values())
