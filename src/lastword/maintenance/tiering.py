"""The uploader: writes rolled WAL files as sealed segments.

The steps for a topic:
1. look at the table: everything below a partition's sealed end is sealed, whatever any local file says;
2. propose (pure): the rolled files from there on, in order;
3. write each as one segment file, row group by row group, without rows below the log start, several files at a time;
4. commit the segments of all partitions and their new sealed ends as one snapshot.

Killed before 4: nothing has changed. No snapshot names the files written so far, and the collector removes them.
Killed after 4: the table says what is sealed. So nothing is sealed twice or skipped.

A partition whose WAL is damaged stops at the damage, with the reason in the report. The other partitions continue.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lastword import metrics
from lastword.clock import monotonic_s
from lastword.errors import CorruptError
from lastword.folder.leases import LeaseKeeper
from lastword.folder.steps import reached
from lastword.segments.model import Codec, Positions, Segment, Snapshot, check_not_deleted, retry_on_conflict
from lastword.wal import checkpoint as checkpoints
from lastword.wal.files import WalFile
from lastword.wal.reader import decode, read_file

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable

logger = logging.getLogger(__name__)

COMMIT_BYTES = 2 << 30
COMMIT_S = 5.0
"""Commit after about this many WAL bytes or seconds, so that a long backlog is sealed in parts."""

THREADS = min(4, os.cpu_count() or 1)
"""The number of files written at a time. Each needs the memory of a row group or two."""

OnBytes = Callable[[int, int], None]
"""Called with the WAL bytes done and the WAL bytes in total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileToSeal:
    """A rolled file, its offsets that are still to be sealed, and the log start."""

    partition: int
    folder: Path
    file: WalFile
    from_offset: int
    end_offset: int
    log_start: int

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SealReport:
    """The result of sealing a topic. `problems` are partitions that stopped, with the reason."""

    topic: str
    segments: tuple[Segment, ...] = ()
    files: int = 0
    wal_bytes: int = 0
    duration_s: float = 0.0
    snapshot_id: int | None = None
    problems: tuple[tuple[int, str], ...] = ()

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed:
    """A file that was written. It has no segment if none of its rows is wanted."""

    file: FileToSeal
    segment: Segment | None


def propose(partition: int, folder: Path, files: Sequence[WalFile], positions: Positions) -> list[FileToSeal]:
    """Return the rolled files of a partition that hold offsets at or above its sealed end.

    Raise CorruptError if the first of them begins above it, because the records in between would be skipped.
    """
    todo: list[FileToSeal] = []
    sealed_end = positions.sealed_end
    for file, following in itertools.pairwise(files):
        if following.first_offset <= sealed_end:
            continue
        if file.first_offset > max(sealed_end, positions.log_start):
            raise CorruptError(
                f"No WAL file in {folder} holds the offsets {sealed_end} to {file.first_offset - 1}, "
                f"and they are not sealed. `lastword wal repair` shows what can be kept.",
                path=str(folder),
                offset=sealed_end,
            )
        todo.append(
            FileToSeal(
                partition=partition,
                folder=folder,
                file=file,
                from_offset=sealed_end,
                end_offset=following.first_offset,
                log_start=positions.log_start,
            )
        )
        sealed_end = following.first_offset
    return todo


def seal(
    table: SegmentTable,
    folders: Sequence[Path],
    *,
    leases: LeaseKeeper,
    codec: Codec = "zstd",
    progress: OnBytes | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> SealReport:
    """Seal every rolled WAL file of a topic. `folders` are its partitions' WAL folders, by partition.

    `progress` is called before the first file, if there is one, and after each. `stop` is checked between files. The
    files written by then are committed.
    """
    started_s = monotonic_s()
    snapshot = table.snapshot()
    todo: list[FileToSeal] = []
    epochs: dict[int, tuple[tuple[int, int], ...]] = {}
    problems: dict[int, str] = {}

    def halt(partition: int, error: CorruptError) -> None:
        logger.error("sealing of %s partition %d stopped: %s", snapshot.topic.name, partition, error)
        metrics.SEAL_ERRORS.labels(snapshot.topic.name).inc()
        problems[partition] = str(error)

    for partition, folder in enumerate(folders):
        saved = checkpoints.load_writer(folder)
        if saved is not None:
            epochs[partition] = saved.epochs
            files = checkpoints.left_files(folder, saved)
            try:
                todo += propose(partition, folder, files, snapshot.positions[partition])
            except CorruptError as error:
                halt(partition, error)
    report = SealReport(topic=snapshot.topic.name)
    total_bytes = sum(each.size_bytes for each in todo)
    pending: list[_Sealed] = []
    if todo and progress is not None:
        progress(0, total_bytes)
    with leases.hold(topic_id=snapshot.topic.id.hex, job="seal") as lease:
        # A deletion from here on is not finished until this job has ended. Check for a deletion that was before:
        check_not_deleted(table.snapshot())
        committed_s = monotonic_s()

        def commit() -> None:
            nonlocal report, committed_s
            committed_s = monotonic_s()
            lease.check()
            report = _add(report, _commit(table, pending, epochs))
            pending.clear()

        for each, written in _in_order(todo, lambda file: _write_segment(table, file, lease.id, codec)):
            try:
                sealed = _Sealed(file=each, segment=written())
            except CorruptError as error:
                if each.partition not in problems:
                    halt(each.partition, error)
                continue
            if each.partition in problems:
                # It was written ahead of time and follows a damaged file.
                if sealed.segment is not None:
                    table.files.discard(sealed.segment)
                continue
            pending.append(sealed)
            if progress is not None:
                progress(report.wal_bytes + sum(done.file.size_bytes for done in pending), total_bytes)
            is_much = sum(done.file.size_bytes for done in pending) >= COMMIT_BYTES
            if is_much or monotonic_s() - committed_s >= COMMIT_S:
                commit()
            if stop():
                break
        if pending:
            commit()
    metrics.SEGMENTS_SEALED.labels(report.topic).inc(len(report.segments))
    metrics.BYTES_SEALED.labels(report.topic).inc(report.size_bytes)
    return replace(report, duration_s=monotonic_s() - started_s, problems=tuple(sorted(problems.items())))


def _in_order(
    todo: Sequence[FileToSeal], write: Callable[[FileToSeal], Segment | None]
) -> Iterator[tuple[FileToSeal, Callable[[], Segment | None]]]:
    """Yield each file with a function that waits for its segment. Other threads write the next files, if any."""
    if min(THREADS, len(todo)) < 2:
        yield from ((each, partial(write, each)) for each in todo)
        return
    with ThreadPoolExecutor(THREADS, "lastword-seal") as pool:
        ahead: deque[tuple[FileToSeal, Future[Segment | None]]] = deque()
        try:
            for each in todo:
                ahead.append((each, pool.submit(write, each)))
                if len(ahead) > THREADS:
                    file, written = ahead.popleft()
                    yield file, written.result
            for file, written in ahead:
                yield file, written.result
        finally:
            pool.shutdown(cancel_futures=True)


def _write_segment(table: SegmentTable, file: FileToSeal, job_id: str, codec: Codec) -> Segment | None:
    first_wanted = max(file.from_offset, file.log_start)
    with table.writer(file.partition, first_wanted, job_id, codec) as writer:
        for records in records_to_seal(file):
            writer.write(records)
        segment = writer.close()
    reached("seal.written")
    return segment


def records_to_seal(file: FileToSeal) -> Iterable[pa.RecordBatch]:
    """Yield the rows of a rolled file as its segment has them: none below the log start, no timestamp missing."""
    first_wanted = max(file.from_offset, file.log_start)
    # A record without a timestamp ages from its append. The roll is the latest possible time of that.
    append_time = pa.scalar((file.file.rolled_ms or 0) * 1000, pa.timestamp("us", tz="UTC"))
    batches = read_file(file.folder, file.file, from_offset=first_wanted, end_offset=file.end_offset)
    for records in decode(batches, from_offset=first_wanted):
        timestamps = records.column("timestamp")
        if timestamps.null_count:
            records = records.set_column(
                records.schema.get_field_index("timestamp"),
                records.schema.field("timestamp"),
                pc.fill_null(timestamps, append_time),
            )
        yield records


def _commit(
    table: SegmentTable, sealed: Sequence[_Sealed], epochs: dict[int, tuple[tuple[int, int], ...]]
) -> tuple[Snapshot, list[_Sealed]]:
    def attempt() -> tuple[Snapshot, list[_Sealed]]:
        base = table.snapshot()
        check_not_deleted(base)
        positions: dict[int, Positions] = {}
        fitting: list[_Sealed] = []
        for each in sealed:
            now = positions.get(each.file.partition, base.positions[each.file.partition])
            # If another job has sealed these offsets meanwhile, its segment stays and the collector removes ours.
            if now.sealed_end == each.file.from_offset:
                positions[each.file.partition] = replace(
                    now, sealed_end=each.file.end_offset, epochs=epochs[each.file.partition]
                )
                fitting.append(each)
        if not fitting:
            return base, []
        segments = [each.segment for each in fitting if each.segment is not None]
        details = {
            "segments": str(len(segments)),
            "records": str(sum(segment.records for segment in segments)),
        }
        return table.append(base, segments, positions, operation="seal", details=details), fitting

    result = retry_on_conflict(attempt)
    reached("seal.committed")
    return result


def _add(report: SealReport, committed: tuple[Snapshot, list[_Sealed]]) -> SealReport:
    snapshot, sealed = committed
    return replace(
        report,
        segments=(*report.segments, *(each.segment for each in sealed if each.segment is not None)),
        files=report.files + len(sealed),
        wal_bytes=report.wal_bytes + sum(each.file.size_bytes for each in sealed),
        snapshot_id=snapshot.id,
    )


def with_problems(report: SealReport, problems: Sequence[tuple[int, str]]) -> SealReport:
    """Return the report with additional partitions that stopped."""
    return replace(report, problems=tuple(sorted((*report.problems, *problems))))
