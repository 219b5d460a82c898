"""Compacts a round while it is sealed: of records of one key, only the one that no other of the round beats is written.

1. Cut the files into spans, by the headers of their batches.
2. Find the survivors, span by span: from the newest to the oldest if the newest record wins, else from the oldest on.
   Other threads decode the next spans. Survivors stay in memory while there is room. If the first many records say that
   hardly any would be left out, give up: then the set of keys costs more than it saves.
3. Write the survivors in offset order. Spans whose survivors are not in memory are decoded again. Several files are
   written at a time.

If killed at any point, it leaves files that no snapshot names; the collector removes them.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lastword.clock import monotonic_s
from lastword.compaction.grouping import MOST_FILES
from lastword.compaction.keyset import BestVersions, KeySet
from lastword.compaction.progress import ProgressFile
from lastword.compaction.round import Round, RoundDamaged, RoundDone, RoundSkipped
from lastword.errors import CorruptError
from lastword.folder.steps import reached
from lastword.record import TimestampType
from lastword.segments.model import Segment
from lastword.wal.files import unreadable
from lastword.wal.rolled import DECODED_BYTES, RolledFile, Span, joined, max_timestamp_us

T = TypeVar("T")
R = TypeVar("R")

Mask = npt.NDArray[np.uint8]

AHEAD = 3
"""The number of spans that are decoded ahead, for each thread. They have DECODED_BYTES each, more or less."""
MAX_EXPECTED_KEYS = 1 << 22
SAMPLE_ROWS = 1 << 18
WORTHWHILE_SHARE = 0.1
"""The share of the records of a round that must be left out. It is foretold from this many of them: if keys are drawn at
random, the share grows with the number of records."""
FILE_BYTES = 128 << 20
"""The bytes of survivors, as they are in memory, that make a file, so that several are written at a time."""


@dataclass(slots=True)
class _Source:
    """The survivors of a span: in memory, or to be decoded again."""

    file: RolledFile
    span: Span
    mask: Mask
    size_bytes: int
    """The bytes of the survivors in memory."""
    min_us: int
    max_us: int
    rows: pa.RecordBatch | None = None
    is_filtered: bool = False

    def survivors(self) -> pa.RecordBatch | None:
        rows = self.rows
        if rows is None:
            rows = joined(self.file.read(self.span))
        if rows is None or self.is_filtered:
            return rows
        return rows if self.mask.all() else rows.filter(pa.array(self.mask.view(np.bool_)))


def seal_round(unit: Round) -> RoundDone | RoundDamaged | RoundSkipped:
    """Compact and seal a round. Raise SetTooLargeError if its keys don't fit into its memory."""
    started_s = monotonic_s()
    with ThreadPoolExecutor(max(1, unit.threads), "lastword-round") as pool:
        try:
            spans = [(file, span) for file in unit.files for span in _spans(file)]
            finder = _Finder(unit, pool)
            sources = finder.find(spans)
            segments = _write(unit, sources, pool)
        except _DamagedFileError as error:
            return RoundDamaged(seq=error.seq, message=error.message)
        except _NotWorthwhileError:
            return RoundSkipped()
    kept = sum(segment.records for segment in segments)
    return RoundDone(
        segments=tuple(segments),
        records=finder.records,
        beaten=finder.records - kept,
        min_timestamp_ms=finder.min_us // 1000 if finder.records and not finder.lacks_times else -1,
        max_timestamp_ms=-(-finder.max_us // 1000) if finder.records else -1,
        duration_s=monotonic_s() - started_s,
    )


class _NotWorthwhileError(Exception):
    """Hardly any record would be left out. Never reaches a user."""


class _DamagedFileError(Exception):
    """A file of the round is damaged. Never reaches a user."""

    def __init__(self, file: RolledFile, error: CorruptError) -> None:
        super().__init__(str(error))
        self.seq = file.file.seq
        self.message = str(error)


def _spans(file: RolledFile) -> list[Span]:
    try:
        spans = file.spans()
        if spans is None:
            # Reading all of it says what is wrong.
            for _ in file.records():
                pass
            raise CorruptError(
                f"{file.path} is damaged: its batches don't reach offset {file.end_offset}. "
                f"`lastword wal repair` shows what can be kept.",
                path=str(file.path),
                offset=file.from_offset,
            )
    except CorruptError as error:
        raise _DamagedFileError(file, error) from error
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise unreadable(file.path, file.from_offset, error) from error
        missing = CorruptError(
            f"{file.path} can't be read: {error.strerror or error}. `lastword wal repair` shows what can be kept.",
            path=str(file.path),
            offset=file.from_offset,
        )
        raise _DamagedFileError(file, missing) from error
    return spans


def _decoded(place: tuple[RolledFile, Span]) -> pa.RecordBatch | None:
    file, span = place
    try:
        return joined(file.read(span))
    except CorruptError as error:
        raise _DamagedFileError(file, error) from error


class _Finder:
    """Finds the survivors of a round."""

    def __init__(self, unit: Round, pool: ThreadPoolExecutor) -> None:
        self._unit = unit
        self._pool = pool
        self._progress = ProgressFile(unit.progress_path)
        expected_keys = min(unit.end - unit.start, MAX_EXPECTED_KEYS)
        # The best version of a key takes about as much as the key.
        keys_bytes = unit.memory_bytes // (4 if unit.strategy.is_versioned else 2)
        self._keys = KeySet(unit.seed, expected_keys=expected_keys, max_bytes=keys_bytes)
        # The rest is for what is decoded ahead, for a byte a record, and for surviving rows.
        ahead_bytes = (AHEAD * unit.threads + 1) * DECODED_BYTES
        self._room_bytes = max(0, unit.memory_bytes // 2 - ahead_bytes)
        self.records = self._keyed = 0
        self.min_us, self.max_us = 1 << 62, -1
        self.lacks_times = False
        """Whether a record came without a timestamp."""

    def find(self, spans: Sequence[tuple[RolledFile, Span]]) -> list[_Source]:
        """Return the survivors of each span that has some, in offset order."""
        order = self._unit.strategy.order
        if order == "version":
            return self._by_version(spans)
        backwards = order == "newest"
        found: list[_Source] = []
        for place, rows in self._each(list(reversed(spans)) if backwards else spans):
            mask = np.zeros(rows.num_rows, np.uint8)
            self._keys.add(rows.column("key"), mask, backwards=backwards)
            self._check_worthwhile(rows)
            found.append(self._source(place, rows, mask))
        return list(reversed(found)) if backwards else found

    def _by_version(self, spans: Sequence[tuple[RolledFile, Span]]) -> list[_Source]:
        best = BestVersions(self._keys)
        seen: list[tuple[tuple[RolledFile, Span], pa.RecordBatch | None, int]] = []
        first_rows = [0]
        masks: list[Mask] = []
        for place, rows in self._each(spans):
            known, versions = self._unit.strategy.versions(pa.Table.from_batches([rows]))
            mask = np.zeros(rows.num_rows, np.uint8)
            best.challenge(rows.column("key"), known, versions, mask, first_rows[-1])
            self._check_worthwhile(rows)
            masks.append(mask)
            first_rows.append(first_rows[-1] + rows.num_rows)
            self._room_bytes -= 2 * mask.nbytes
            held = self._hold(rows.nbytes)
            seen.append((place, rows if held else None, rows.nbytes))
        flat = np.concatenate([*masks, np.zeros(0, np.uint8)])
        flat[best.rows()] = 1
        found: list[_Source] = []
        for index, ((file, span), rows, size_bytes) in enumerate(seen):
            mask = flat[first_rows[index] : first_rows[index + 1]]
            share = int(np.count_nonzero(mask)) / max(1, len(mask))
            found.append(_Source(file, span, mask, int(size_bytes * share), *self._times[index], rows=rows))
        return found

    def _check_worthwhile(self, rows: pa.RecordBatch) -> None:
        """Raise _NotWorthwhileError once enough rows have been seen to say so."""
        before = self._keyed
        self._keyed += rows.num_rows - rows.column("key").null_count
        if before < SAMPLE_ROWS <= self._keyed:
            beaten = self._keyed - len(self._keys)
            expected = beaten / self._keyed * (self._unit.end - self._unit.start) / self._keyed
            if expected < WORTHWHILE_SHARE:
                raise _NotWorthwhileError

    def _source(self, place: tuple[RolledFile, Span], rows: pa.RecordBatch, mask: Mask) -> _Source:
        kept = int(np.count_nonzero(mask))
        self._room_bytes -= mask.nbytes
        source = _Source(*place, mask, rows.nbytes * kept // rows.num_rows, *self._times[-1])
        if self._hold(source.size_bytes):
            source.rows = rows if kept == len(mask) else rows.filter(pa.array(mask.view(np.bool_)))
            source.is_filtered = True
        return source

    def _hold(self, size_bytes: int) -> bool:
        """Return whether there is room for some rows. Once there is none, masks alone are kept."""
        if size_bytes > self._room_bytes:
            self._room_bytes = min(0, self._room_bytes)
            return False
        self._room_bytes -= size_bytes
        return True

    def _each(
        self, spans: Sequence[tuple[RolledFile, Span]]
    ) -> Iterator[tuple[tuple[RolledFile, Span], pa.RecordBatch]]:
        """Yield the rows of spans that have some, while other threads decode the next ones."""
        self._times: list[tuple[int, int]] = []
        for place, rows in _ahead(self._pool, _decoded, spans, AHEAD * self._unit.threads):
            self._progress.add(0, place[1].end - place[1].position)
            if rows is None or not rows.num_rows:
                continue
            self.records += rows.num_rows
            times = rows.column("timestamp").cast(pa.int64()).to_numpy()
            self._times.append((int(times.min()), max_timestamp_us(rows)))
            self.min_us = min(self.min_us, self._times[-1][0])
            self.max_us = max(self.max_us, self._times[-1][1])
            types = rows.column("timestamp_type").to_numpy()
            self.lacks_times = self.lacks_times or bool((types == int(TimestampType.NONE)).any())
            yield place, rows


def _ahead(
    pool: ThreadPoolExecutor, do: Callable[[T], R], items: Sequence[T], most: int
) -> Iterator[tuple[T, R]]:
    """Yield each item with its result, in order, while threads work on the next ones."""
    waiting: deque[tuple[T, Future[R]]] = deque()
    try:
        for item in items:
            waiting.append((item, pool.submit(do, item)))
            if len(waiting) > most:
                done, result = waiting.popleft()
                yield done, result.result()
        while waiting:
            done, result = waiting.popleft()
            yield done, result.result()
    finally:
        for _, result in waiting:
            result.cancel()


def _write(unit: Round, sources: Sequence[_Source], pool: ThreadPoolExecutor) -> list[Segment]:
    """Write the survivors. If that fails, remove what was written."""
    written: list[Segment] = []
    try:
        groups = list(_groups(unit, [each for each in sources if each.mask.any()]))
        for _, segment in _ahead(pool, lambda group: _write_one(unit, group), groups, unit.threads):
            if segment is not None:
                written.append(segment)
    except BaseException:
        for segment in written:
            with suppress(Exception):
                unit.target.discard(segment)
        raise
    return written


def _groups(unit: Round, sources: Sequence[_Source]) -> Iterator[list[_Source]]:
    """Cut the survivors into files: by segment.bytes, and by a span of time where retention applies."""
    total_bytes = sum(each.size_bytes for each in sources)
    most_bytes = min(unit.merge_bytes, max(FILE_BYTES, total_bytes // MOST_FILES))
    group: list[_Source] = []
    size_bytes = min_us = max_us = 0
    for source in sources:
        if group:
            span_us = max(max_us, source.max_us) - min(min_us, source.min_us)
            is_long = unit.merge_span_ms is not None and span_us > unit.merge_span_ms * 1000
            if is_long or size_bytes + source.size_bytes > most_bytes:
                yield group
                group = []
        if not group:
            size_bytes, min_us, max_us = 0, source.min_us, source.max_us
        group.append(source)
        size_bytes += source.size_bytes
        min_us, max_us = min(min_us, source.min_us), max(max_us, source.max_us)
    if group:
        yield group


def _write_one(unit: Round, group: Sequence[_Source]) -> Segment | None:
    first_offset = group[0].span.first_offset
    with unit.target.writer(unit.partition, first_offset, unit.job_id, unit.codec) as writer:
        for source in group:
            try:
                rows = source.survivors()
            except CorruptError as error:
                raise _DamagedFileError(source.file, error) from error
            source.rows = None
            if rows is not None:
                writer.write(rows)
        segment = writer.close()
    reached("seal.round.written")
    return segment
