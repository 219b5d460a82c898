"""The exact set of keys that compaction has seen so far, compiled by numba. The strategy decides which record wins.

Open addressing over two arrays. A *slot* (64 bits) holds a tag, the upper 28 bits of the key's hash, and in the
lower 36 bits the place of the key in the *arena*; 0 is an empty slot. The arena holds for each key its ordinal
(the number of keys before it), its length and its bytes, padded to 4. The tag only saves comparisons: the length
and every byte decide whether two keys are the same.

Rows are processed in blocks: first hash all keys of a block and prefetch their slots; then read the slots and
prefetch the keys that they point to; then compare, when the memory has arrived. On millions of keys that is more
than twice as fast as row by row, since almost every lookup misses the processor's caches.

The set can be split: a *share* takes only keys whose hash falls to it, so that several tasks, or several rounds
with less memory each, together find what one set would. Hashes depend on a seed, chosen for each run, so
that nobody can prepare keys that collide.

Importing this module compiles the loops, or loads them from numba's cache.
"""

# mypy: disable-error-code="no-any-return, no-untyped-def, misc, untyped-decorator, attr-defined"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from llvmlite import ir
from numba import boolean, int64, njit, types, uint64, void
from numba.core import cgutils
from numba.extending import intrinsic

from lastword.batch.compiled.compiler import BYTES, DATA, INT64S, Bytes, Int32s, Int64s, array_of, compiled

_U64 = np.uint64
_MULTIPLIERS: Final = (_U64(0x9E3779B97F4A7C15), _U64(0xD6E8FEB86659FD93), _U64(0xA0761D6478BD642F))
_PLACE: Final = _U64((1 << 36) - 1)
_BLOCK: Final = 128
_ENTRY_HEAD_WORDS: Final = 2
_TYPICAL_ENTRY_BYTES: Final = 32

# The state that `_absorb` keeps between calls, and the reasons why it returns.
_WORDS, _NEXT_ROW, _KEYS, _WANTED_WORDS = range(4)
_DONE, _SLOTS_FULL, _ARENA_FULL = range(3)

_Uint64s = npt.NDArray[np.uint64]

_OFFSETS = array_of(types.int32, readonly=True)
_LONGS = array_of(types.int64, readonly=True)
_SLOTS = array_of(types.uint64)


# --------------------------------------------------- loads and stores at any byte, without bounds checks


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, bits: int) -> Any:
    from numba.np.arrayobj import make_array

    start = builder.bitcast(make_array(array_type)(context, builder, array).data, ir.IntType(8).as_pointer())
    return builder.bitcast(builder.gep(start, [index]), ir.IntType(bits).as_pointer())


@intrinsic
def _load64(typing_context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], 64))
        loaded.align = 1
        return loaded

    return types.uint64(array, types.int64), generate


@intrinsic
def _load32(typing_context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], 32))
        loaded.align = 1
        return loaded

    return types.uint32(array, types.int64), generate


@intrinsic
def _store32(typing_context: Any, array: Any, index: Any, value: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        stored = builder.store(args[2], _pointer(context, builder, signature.args[0], args[0], args[1], 32))
        stored.align = 1
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint32), generate


@intrinsic
def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], 8)
        int32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, int32, int32, int32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], function_type)
        builder.call(function, [pointer, int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def _copy(typing_context: Any, to: Any, at: Any, source: Any, start: Any, size: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cgutils.raw_memcpy(
            builder,
            _pointer(context, builder, signature.args[0], args[0], args[1], 8),
            _pointer(context, builder, signature.args[2], args[2], args[3], 8),
            args[4],
            1,
        )
        return context.get_dummy_value()

    return types.void(to, types.int64, source, types.int64, types.int64), generate


# ------------------------------------------------------------------------------------------ the loops


@njit(inline="always")
def _hash(data, start, size, seed):
    mixed = seed ^ (_U64(size) * _MULTIPLIERS[0])
    at = 0
    while size - at >= 8:
        mixed = (mixed ^ _load64(data, start + at)) * _MULTIPLIERS[1]
        mixed ^= mixed >> _U64(31)
        at += 8
    left = size - at
    if left >= 4:
        word = _U64(_load32(data, start + at)) | (_U64(_load32(data, start + size - 4)) << _U64(32))
        mixed = (mixed ^ word) * _MULTIPLIERS[2]
    elif left > 0:
        word = _U64(0)
        for index in range(left):
            word |= _U64(data[start + at + index]) << _U64(8 * index)
        mixed = (mixed ^ word) * _MULTIPLIERS[2]
    mixed ^= mixed >> _U64(32)
    mixed *= _MULTIPLIERS[1]
    mixed ^= mixed >> _U64(29)
    mixed *= _MULTIPLIERS[2]
    return mixed ^ (mixed >> _U64(32))


@njit(inline="always")
def _equal(left, left_start, right, right_start, size):
    at = 0
    while size - at >= 8:
        if _load64(left, left_start + at) != _load64(right, right_start + at):
            return False
        at += 8
    while at < size:
        if left[left_start + at] != right[right_start + at]:
            return False
        at += 1
    return True


@compiled(
    int64(
        DATA, _OFFSETS, DATA, boolean, boolean, _SLOTS, BYTES, INT64S, BYTES, INT64S, uint64, int64, int64,
    )
)  # fmt: skip
def _absorb(
    data: Bytes,
    offsets: Int32s,
    valid: Bytes,
    backwards: bool,
    insert: bool,
    slots: _Uint64s,
    arena: Bytes,
    progress: Int64s,
    mask: Bytes,
    ordinals: Int64s,
    seed: Any,
    share: int,
    shares: int,
) -> int:
    """Go over the rows of one key column, last row first if `backwards`. Set mask[row] to 1 where the key is new.

    Rows without a key are always new, in share 0. If `ordinals` has room, it gets the ordinal of each row's key.
    """
    rows = len(offsets) - 1
    slot_mask = _U64(len(slots) - 1)
    words, keys = progress[_WORDS], progress[_KEYS]
    most_keys, most_words = len(slots) * 3 // 5, len(arena) // 4
    hashes, found_slots = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.int64)
    done = progress[_NEXT_ROW]
    while done < rows:
        count = min(_BLOCK, rows - done)
        for index in range(count):
            row = rows - 1 - done - index if backwards else done + index
            start = np.int64(offsets[row])
            mixed = _hash(data, start, np.int64(offsets[row + 1]) - start, seed)
            hashes[index] = mixed
            _prefetch(slots, np.int64(mixed & slot_mask) * 8)
        for index in range(count):
            mixed = hashes[index]
            slot = np.int64(mixed & slot_mask)
            while True:
                entry = slots[slot]
                if entry == _U64(0):
                    break
                if (entry ^ mixed) <= _PLACE:
                    place = (np.int64(entry & _PLACE) - 1) * 4
                    _prefetch(arena, place)
                    _prefetch(arena, place + 24)
                    break
                slot = np.int64((_U64(slot) + _U64(1)) & slot_mask)
            # A slot is never emptied or changed, so nothing before this one will match later either.
            found_slots[index] = slot
        for index in range(count):
            row = rows - 1 - done - index if backwards else done + index
            if len(valid) > 0 and valid[row] == 0:
                if share == 0:
                    mask[row] = 1
                continue
            mixed = hashes[index]
            if shares > 1 and np.int64((mixed >> _U64(40)) % _U64(shares)) != share:
                continue
            start = np.int64(offsets[row])
            size = np.int64(offsets[row + 1]) - start
            slot = found_slots[index]
            place = np.int64(-1)
            while True:
                entry = slots[slot]
                if entry == _U64(0):
                    break
                if (entry ^ mixed) <= _PLACE:
                    candidate = (np.int64(entry & _PLACE) - 1) * 4
                    if np.int64(_load32(arena, candidate + 4)) == size and _equal(
                        data, start, arena, candidate + 8, size
                    ):
                        place = candidate
                        break
                slot = np.int64((_U64(slot) + _U64(1)) & slot_mask)
            if place < 0:
                if insert:
                    needed = _ENTRY_HEAD_WORDS + (size + 3) // 4
                    if keys >= most_keys or words + needed > most_words:
                        progress[_WORDS], progress[_KEYS] = words, keys
                        progress[_NEXT_ROW], progress[_WANTED_WORDS] = done + index, needed
                        return _SLOTS_FULL if keys >= most_keys else _ARENA_FULL
                    place = words * 4
                    _store32(arena, place, np.uint32(keys))
                    _store32(arena, place + 4, np.uint32(size))
                    _copy(arena, place + 8, data, start, size)
                    slots[slot] = (mixed & ~_PLACE) | _U64(words + 1)
                    words += needed
                    keys += 1
                mask[row] = 1
            if len(ordinals) > 0 and place >= 0:
                ordinals[row] = np.int64(_load32(arena, place))
        done += count
    progress[_WORDS], progress[_KEYS], progress[_NEXT_ROW] = words, keys, 0
    return _DONE


@compiled(void(_SLOTS, BYTES, int64, uint64))
def _fill_slots(slots: _Uint64s, arena: Bytes, words: int, seed: Any) -> None:
    slot_mask = _U64(len(slots) - 1)
    word = np.int64(0)
    while word < words:
        size = np.int64(_load32(arena, word * 4 + 4))
        mixed = _hash(arena, word * 4 + 8, size, seed)
        slot = np.int64(mixed & slot_mask)
        while slots[slot] != _U64(0):
            slot = np.int64((_U64(slot) + _U64(1)) & slot_mask)
        slots[slot] = (mixed & ~_PLACE) | _U64(word + 1)
        word += _ENTRY_HEAD_WORDS + (size + 3) // 4


@compiled(void(INT64S, DATA, _LONGS, int64, INT64S, BYTES, INT64S))
def _contest(
    ordinals: Int64s,
    known: Bytes,
    versions: Int64s,
    first_row: int,
    best_row: Int64s,
    best_known: Bytes,
    best_version: Int64s,
) -> None:
    """Let each row challenge the best row of its key so far. Rows come in offset order, and the later wins a tie."""
    for index in range(len(ordinals)):
        ordinal = ordinals[index]
        if ordinal < 0:
            continue
        better = best_row[ordinal] < 0 or (
            known[index] > best_known[ordinal]
            or (known[index] == best_known[ordinal] and versions[index] >= best_version[ordinal])
        )
        if better:
            best_row[ordinal] = first_row + index
            best_known[ordinal] = known[index]
            best_version[ordinal] = versions[index]


@compiled(void(DATA, _OFFSETS, DATA, uint64, _SLOTS))
def _hash_rows(data: Bytes, offsets: Int32s, valid: Bytes, seed: Any, hashes: _Uint64s) -> None:
    for row in range(len(offsets) - 1):
        if len(valid) > 0 and valid[row] == 0:
            hashes[row] = _MULTIPLIERS[2]
        else:
            start = np.int64(offsets[row])
            hashes[row] = _hash(data, start, np.int64(offsets[row + 1]) - start, seed)


# ---------------------------------------------------------------------------------------- for callers


def hash_rows(column: pa.Array, seed: int) -> _Uint64s:
    """Return a hash of each row of a binary or text column. All nulls have one fixed hash."""
    hashes = np.empty(len(column), np.uint64)
    data, offsets, valid = _buffers(column)
    _hash_rows(data, offsets, valid, _U64(seed), hashes)
    return hashes


@dataclass(frozen=True, slots=True)
class Share:
    """The share of the keys that a set takes: its index, and the number of shares."""

    index: int = 0
    count: int = 1


class SetTooLargeError(Exception):
    """The keys don't fit into the memory that the set may use. Never reaches a user: another way is taken."""


class KeySet:
    """The keys seen so far. `expected_keys` only saves growing. Past `max_bytes` it raises SetTooLargeError."""

    def __init__(
        self,
        seed: int,
        *,
        expected_keys: int = 1 << 16,
        share: Share | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._seed = _U64(seed & 0xFFFF_FFFF_FFFF_FFFF)
        self._share = share or Share()
        expected_keys = expected_keys // self._share.count
        if max_bytes is not None:
            # Slots and arena, each with room to grow once.
            expected_keys = min(expected_keys, max_bytes // (4 * _TYPICAL_ENTRY_BYTES))
        expected_keys = max(64, expected_keys)
        self._slots = np.zeros(1 << (expected_keys * 5 // 3).bit_length(), np.uint64)
        self._arena = np.empty(expected_keys * _TYPICAL_ENTRY_BYTES, np.uint8)
        self._max_bytes = max_bytes
        self._progress = np.zeros(4, np.int64)

    def __len__(self) -> int:
        return int(self._progress[_KEYS])

    @property
    def nbytes(self) -> int:
        return int(self._slots.nbytes + self._arena.nbytes)

    def add(
        self,
        keys: pa.Array,
        mask: Bytes,
        *,
        backwards: bool = False,
        ordinals: Int64s | None = None,
    ) -> None:
        """Set mask[row] to 1 for each row whose key was not in the set before it, and add the key."""
        self._absorb(keys, mask, backwards, True, ordinals)

    def look_up(self, keys: pa.Array, mask: Bytes) -> None:
        """Set mask[row] to 1 for each row whose key is not in the set."""
        self._absorb(keys, mask, False, False, None)

    def _absorb(
        self,
        keys: pa.Array,
        mask: Bytes,
        backwards: bool,
        insert: bool,
        ordinals: Int64s | None,
    ) -> None:
        if len(keys) == 0:
            return
        data, offsets, valid = _buffers(keys)
        while True:
            outcome = _absorb(
                data,
                offsets,
                valid,
                backwards,
                insert,
                self._slots,
                self._arena,
                self._progress,
                mask,
                _NO_ORDINALS if ordinals is None else ordinals,
                self._seed,
                self._share.index,
                self._share.count,
            )
            if outcome == _DONE:
                return
            self._grow(outcome)

    def _grow(self, outcome: int) -> None:
        used = int(self._progress[_WORDS]) * 4
        if outcome == _SLOTS_FULL:
            # Free the old slots first: the arena has everything that is needed to fill new ones.
            count = len(self._slots) * 2
            self._slots = np.empty(0, np.uint64)
            self._check_room(count * 8 + self._arena.nbytes)
            self._slots = np.zeros(count, np.uint64)
            _fill_slots(self._slots, self._arena, self._progress[_WORDS], self._seed)
        else:
            size_bytes = len(self._arena) * 3 // 2 + int(self._progress[_WANTED_WORDS]) * 4
            self._check_room(size_bytes + self._arena.nbytes + self._slots.nbytes)
            grown = np.empty(size_bytes, np.uint8)
            grown[:used] = self._arena[:used]
            self._arena = grown

    def _check_room(self, needed_bytes: int) -> None:
        if self._max_bytes is not None and needed_bytes > self._max_bytes:
            raise SetTooLargeError(
                f"{len(self)} keys need {needed_bytes} bytes; {self._max_bytes} are allowed"
            )


class BestVersions:
    """The best row of each key so far, for strategies that compare versions."""

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys
        self._rows = np.full(1024, -1, np.int64)
        self._known = np.zeros(1024, np.uint8)
        self._versions = np.zeros(1024, np.int64)

    def challenge(self, keys: pa.Array, known: Bytes, versions: Int64s, mask: Bytes, first_row: int) -> None:
        """Add the next rows, in offset order. Set mask[row] to 1 only for rows without a key."""
        ordinals = np.full(len(keys), -1, np.int64)
        is_new = np.zeros(len(keys), np.uint8)
        self._keys.add(keys, is_new, ordinals=ordinals)
        mask[(ordinals < 0) & (is_new == 1)] = 1
        if len(self._keys) > len(self._rows):
            more = max(len(self._keys), 2 * len(self._rows)) - len(self._rows)
            self._rows = np.concatenate([self._rows, np.full(more, -1, np.int64)])
            self._known = np.concatenate([self._known, np.zeros(more, np.uint8)])
            self._versions = np.concatenate([self._versions, np.zeros(more, np.int64)])
        _contest(ordinals, known, versions, first_row, self._rows, self._known, self._versions)

    def rows(self) -> Int64s:
        """Return the winning rows, as numbered by `challenge`."""
        return self._rows[: len(self._keys)]


_NOTHING: Final = np.empty(0, np.uint8)
_NO_ORDINALS: Final = np.empty(0, np.int64)


def _buffers(column: pa.Array) -> tuple[Bytes, Int32s, Bytes]:
    """Return the bytes of a binary column, the start of each row, and which rows are not null (empty: all)."""
    _, offset_buffer, data_buffer = column.buffers()
    if offset_buffer is None:
        return _NOTHING, np.zeros(len(column) + 1, np.int32), _NOTHING
    offsets = np.frombuffer(offset_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None and data_buffer.size else _NOTHING
    if not column.null_count:
        return data, offsets, _NOTHING
    return data, offsets, column.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False)
