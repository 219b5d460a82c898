"""Finds the rows of a topic that win their keys, from keys and versions alone, for every view of a topic's state.

The search goes partition by partition, with the key set that compaction uses: it walks the key columns from the newest
segment to the oldest. The result is one mask per segment, so no value is read to decide which rows are dropped. Deleted
keys are left out by the callers that read the rows and see the values.

Memory is bounded: if the keys don't fit into SET_BYTES, the columns are walked several times, each time for a share
of the keys. Besides the set, it takes one byte per row, and the keys of the tail.

A key may be in two partitions (after an increase of partitions, or because a producer chose one). The walk finds this
out too: for a key that is not where Kafka's partitioner puts it, the winners of its partitions are compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lastword.batch.partitioner import RoundRobin, partitions_of
from lastword.clock import new_uuid
from lastword.compaction.keyset import BestVersions, KeySet, SetTooLargeError, Share
from lastword.compaction.strategy import LatestTimestamp, Strategy, Versions, best_of_each_key
from lastword.reading import timetravel
from lastword.reading.reader import PartitionReader
from lastword.reading.timetravel import View
from lastword.segments.model import Segment, retry_if_moved
from lastword.segments.parquet import SegmentFiles
from lastword.segments.raw import RawSegment
from lastword.segments.rows import as_payload, with_partition

Mask = npt.NDArray[np.uint8]
Run = tuple[int, pa.Array]

_EXPECTED_KEYS = 1 << 19
SET_BYTES = 256 << 20
"""The memory that a set of keys may use."""
MOST_SHARES = 1024
"""The most sets to split keys into. Memory is not bounded for keys that don't fit into this many."""
BY_TIME = LatestTimestamp()


class Rows(Protocol):
    """Rows of a partition in offset order: a segment, or the tail."""

    partition: int
    is_unique: bool
    """No key occurs twice in these rows and the other unique ones of the partition: they have been compacted."""

    @property
    def count(self) -> int: ...

    def runs(self) -> list[Run]:
        """Return the keys of the rows that the view shows, in runs, each with the number of its first row."""
        ...

    def versions(self, strategy: Strategy) -> Versions: ...

    def columns(self, names: Sequence[str]) -> pa.Table: ...

    def live_keys(self, mask: Mask) -> Iterator[pa.Array | pa.ChunkedArray]: ...


class SealedRows:
    """The rows of a segment."""

    def __init__(self, files: SegmentFiles, segment: Segment, view: View) -> None:
        self.segment = segment
        self.partition = segment.partition
        at = view.snapshot.positions[segment.partition]
        self.is_unique = not at.spared and not segment.is_dirty(at.first_dirty)
        self._files = files
        self._view = view

    @property
    def count(self) -> int:
        return self.segment.records

    def runs(self) -> list[Run]:
        with RawSegment(self._files, self.segment) as raw:
            runs = list(raw.key_runs())
            first, end = 0, self.count
            if (
                self.segment.first_offset < self._view.start
                or self.segment.last_offset >= self._view.sealed_to
            ):
                offsets = raw.columns(["offset"]).column("offset").to_numpy()
                first, end = np.searchsorted(offsets, [self._view.start, self._view.sealed_to]).tolist()
        return [
            (row + cut, keys.slice(cut, end - row - cut))
            for row, keys in runs
            if (cut := max(first - row, 0)) < min(len(keys), end - row)
        ]

    def versions(self, strategy: Strategy) -> Versions:
        return strategy.versions(self.columns(strategy.columns))

    def columns(self, names: Sequence[str]) -> pa.Table:
        with RawSegment(self._files, self.segment) as raw:
            return raw.columns(names)

    def records(self, mask: Mask) -> Iterator[pa.RecordBatch]:
        """Yield the rows for which a mask has 1, as record.RECORD_SCHEMA."""
        with RawSegment(self._files, self.segment) as raw:
            for group in raw.row_groups:
                if mask[group.first_row : group.first_row + group.rows].any():
                    for each in as_payload(raw.kept(group, mask)).to_batches():
                        yield with_partition(each, self.partition)

    def live_keys(self, mask: Mask) -> Iterator[pa.ChunkedArray]:
        """Yield the keys of the rows for which a mask has 1, without those that a tombstone deletes."""
        with RawSegment(self._files, self.segment) as raw:
            for group in raw.row_groups:
                wanted = mask[group.first_row : group.first_row + group.rows].view(np.bool_)
                if not wanted.any():
                    continue
                rows = raw.columns(["key"] if group.null_values == 0 else ["key", "value"], [group])
                if "value" in rows.column_names:
                    wanted = wanted & rows.column("value").is_valid().to_numpy()
                yield rows.column("key").filter(pa.array(wanted))


class TailRows:
    """The rows that are only in the WAL, with the columns that finding winners needs, and whether each has a value."""

    is_unique = False

    def __init__(self, reader: PartitionReader, view: View, strategy: Strategy) -> None:
        self.partition = reader.partition
        # Timestamps decide which partition a key is read from, whatever the strategy is.
        names = list(dict.fromkeys(["offset", "key", *BY_TIME.columns, *strategy.columns]))
        self._chunks: list[pa.RecordBatch] = []
        self._has_value: list[npt.NDArray[np.bool_]] = []
        for records in timetravel.read_tail(reader, view):
            self._chunks.append(records.select(names))
            self._has_value.append(records.column("value").is_valid().to_numpy(zero_copy_only=False))

    @property
    def count(self) -> int:
        return sum(each.num_rows for each in self._chunks)

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        if not self._chunks:
            return np.empty(0, np.int64)
        return np.concatenate([each.column("offset").to_numpy() for each in self._chunks])

    def live_keys(self, mask: Mask) -> Iterator[pa.Array]:
        """Yield the keys as `SealedRows.live_keys` does."""
        row = 0
        for records, has_value in zip(self._chunks, self._has_value, strict=True):
            wanted = mask[row : row + records.num_rows].view(np.bool_) & has_value
            row += records.num_rows
            yield records.column("key").filter(pa.array(wanted))

    def runs(self) -> list[Run]:
        runs, row = [], 0
        for each in self._chunks:
            runs.append((row, each.column("key")))
            row += each.num_rows
        return runs

    def versions(self, strategy: Strategy) -> Versions:
        return strategy.versions(self.columns(strategy.columns))

    def columns(self, names: Sequence[str]) -> pa.Table:
        return pa.Table.from_batches(self._chunks).select(list(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionWinners:
    """A partition's view, its segments and tail, and a mask for each of them: 1 marks a winner."""

    view: View
    sealed: tuple[SealedRows, ...]
    tail: TailRows
    masks: list[Mask]
    """One mask for each of `sealed`, then the tail's."""

    @property
    def rows(self) -> list[Rows]:
        return [*self.sealed, self.tail]

    def live_keys(self) -> Iterator[pa.Array | pa.ChunkedArray]:
        """Yield the keys that are not deleted. The caller pins the snapshot of the view."""
        for rows, mask in zip(self.rows, self.masks, strict=True):
            yield from rows.live_keys(mask)


def find(
    readers: Sequence[PartitionReader],
    view_of: Callable[[PartitionReader], View],
    strategy: Strategy,
    pins: ExitStack,
    keys: Collection[bytes] | None = None,
) -> list[PartitionWinners]:
    """Return the winners of all partitions of a topic; with `keys`, of those keys only.

    The snapshots of the views stay pinned until `pins` is closed. A partition whose records move meanwhile is looked at
    again, and no other one.
    """
    partitions = len(readers)
    only = None if keys is None else pa.array(sorted(keys), pa.binary())
    threads = max(1, min(partitions, os.cpu_count() or 1))

    def look(reader: PartitionReader) -> View:
        view = view_of(reader)
        pins.enter_context(reader.pin(view.snapshot))
        return view

    def of_one(reader: PartitionReader, first: View) -> tuple[PartitionWinners, pa.Array]:
        views = chain([first], iter(lambda: look(reader), None))
        return retry_if_moved(lambda: search(reader, next(views)), f"Partition {reader.partition}")

    def search(reader: PartitionReader, view: View) -> tuple[PartitionWinners, pa.Array]:
        files = reader.table.files
        sealed = tuple(SealedRows(files, each, view) for each in timetravel.sealed_segments(reader, view))
        tail = TailRows(reader, view, strategy)
        strays = _Strays(reader.partition, partitions)
        masks = _masks([*sealed, tail], strategy, only, strays, SET_BYTES // threads)
        return PartitionWinners(view=view, sealed=sealed, tail=tail, masks=masks), strays.keys()

    # Looking uses the catalog, which does not become faster with many threads.
    views = [look(reader) for reader in readers]
    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(of_one, readers, views))
    found = [winners for winners, _ in results]
    strays = pa.concat_arrays([keys for _, keys in results]).unique()
    if len(strays):
        _keep_one_partition(found, strays)
    return found


class _Strays:
    """The keys in a partition where Kafka's partitioner would not put them."""

    def __init__(self, partition: int, partitions: int) -> None:
        self._partition = partition
        self._partitions = partitions
        self._found: list[pa.Array] = []

    def forget(self) -> None:
        """Begin again."""
        self._found.clear()

    def add(self, keys: pa.Array) -> None:
        if self._partitions == 1:
            return
        away = partitions_of(keys, self._partitions, RoundRobin()) != self._partition
        if keys.null_count:
            away &= keys.is_valid().to_numpy(zero_copy_only=False)
        if away.any():
            self._found.append(keys.filter(pa.array(away)).unique())

    def keys(self) -> pa.Array:
        return pa.concat_arrays([pa.array([], pa.binary()), *self._found])


def _masks(
    pieces: Sequence[Rows], strategy: Strategy, only: pa.Array | None, strays: _Strays, room_bytes: int
) -> list[Mask]:
    seed = new_uuid().int & 0xFFFF_FFFF_FFFF_FFFF
    shares = 1
    while True:
        try:
            masks = [np.zeros(each.count, np.uint8) for each in pieces]
            strays.forget()
            for index in range(shares):
                # The first share's pass looks at every key.
                own_strays = strays if index == 0 else None
                found = _masks_of(pieces, strategy, only, own_strays, seed, Share(index, shares), room_bytes)
                for mask, own in zip(masks, found, strict=True):
                    mask |= own
            return masks
        except SetTooLargeError:
            shares *= 2


def _masks_of(
    pieces: Sequence[Rows],
    strategy: Strategy,
    only: pa.Array | None,
    strays: _Strays | None,
    seed: int,
    share: Share,
    room_bytes: int,
) -> list[Mask]:
    """Return the winners among the keys of one share."""
    masks = [np.zeros(each.count, np.uint8) for each in pieces]
    keys = KeySet(
        seed,
        expected_keys=min(sum(each.count for each in pieces), _EXPECTED_KEYS),
        share=share,
        max_bytes=room_bytes if share.count < MOST_SHARES else None,
    )
    if strategy.order != "version":
        backwards = strategy.order == "newest"
        order = list(reversed(range(len(pieces)))) if backwards else list(range(len(pieces)))
        won = 0
        for index, runs in zip(order, _ahead([pieces[each] for each in order]), strict=True):
            only_look_up = backwards and pieces[index].is_unique
            for row, run in reversed(runs) if backwards else runs:
                if strays is not None:
                    strays.add(run)
                part = masks[index][row : row + len(run)]
                _compete(keys, run, part, only, backwards=backwards, only_look_up=only_look_up)
            won += int(masks[index].sum())
            if only is not None and won == len(only):
                break
        return masks
    best = BestVersions(keys)
    bounds = np.cumsum([0, *(each.count for each in pieces)]).tolist()
    for index, (piece, runs) in enumerate(zip(pieces, _ahead(pieces), strict=True)):
        if not piece.count:
            continue
        known, versions = piece.versions(strategy)
        for row, run in runs:
            if strays is not None:
                strays.add(run)
            rows = slice(row, row + len(run))
            best.challenge(run, known[rows], versions[rows], masks[index][rows], bounds[index] + row)
    flat = np.zeros(bounds[-1], np.uint8)
    flat[best.rows()] = 1
    return [flat[start:end] for start, end in pairwise(bounds)]


def _compete(
    keys: KeySet,
    run: pa.Array,
    mask: Mask,
    only: pa.Array | None,
    *,
    backwards: bool,
    only_look_up: bool,
) -> None:
    """Set the mask where a row's key has not been seen yet."""
    if only is not None:
        chosen = np.flatnonzero(pc.is_in(run, value_set=only).to_numpy(zero_copy_only=False))
        if not len(chosen):
            return
        run, whole = run.take(pa.array(chosen)), mask
        mask = np.zeros(len(run), np.uint8)
    if only_look_up:
        keys.look_up(run, mask)
    else:
        keys.add(run, mask, backwards=backwards)
    if run.null_count:
        # A row without a key is not part of any state.
        mask &= run.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    if only is not None:
        whole[chosen] = mask


def _ahead(pieces: Sequence[Rows]) -> Iterator[list[Run]]:
    """Yield the key runs of each piece, while reading those of the next one."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(pieces[0].runs) if pieces else None
        for index in range(len(pieces)):
            assert coming is not None
            runs = coming.result()
            if index + 1 < len(pieces):
                coming = pool.submit(pieces[index + 1].runs)
            yield runs


def _keep_one_partition(found: Sequence[PartitionWinners], strays: pa.Array) -> None:
    """Keep one winner of a key that has several, in several partitions: by latest timestamp, then highest partition."""
    rivals: list[pa.Table] = []
    places: list[tuple[Mask, npt.NDArray[np.int64]]] = []
    for winners in found:
        for rows, mask in zip(winners.rows, winners.masks, strict=True):
            if not mask.any():
                continue
            columns = rows.columns(["key", *BY_TIME.columns])
            rival = mask.view(np.bool_) & pc.is_in(columns.column("key"), value_set=strays).to_numpy()
            chosen = columns.filter(pa.array(rival))
            known, versions = BY_TIME.versions(chosen)
            rivals.append(
                pa.table(
                    {
                        "key": chosen.column("key"),
                        "time": np.where(known, versions, -1),
                        "partition": np.full(len(chosen), rows.partition),
                    }
                )
            )
            places.append((mask, np.flatnonzero(rival)))
    if not rivals:
        return
    together = pa.concat_tables(rivals)
    order = np.lexsort((together.column("partition").to_numpy(), together.column("time").to_numpy()))
    stays = best_of_each_key(together.column("key"), order)
    row = 0
    for mask, rows_of_mask in places:
        mask[rows_of_mask] = stays[row : row + len(rows_of_mask)]
        row += len(rows_of_mask)
