"""The uploader: writes rolled WAL files as sealed segments.

The steps for a topic:
1. look at the table: everything below a partition's sealed end is sealed, whatever any local file says;
2. propose (pure): the rolled files from there on, in order. On a compacted topic, they are put together to rounds
   (compaction/round.py), up to the first one that min.compaction.lag.ms holds back;
3. write each round as compaction's engine can, without the records that another one of it beats, some rounds at a time;
   and each other file as one segment file, row group by row group, several at a time. Rows below the log start are left out;
4. commit the segments of all partitions and their new sealed ends as one snapshot.

Killed before 4: nothing has changed. No snapshot names the files written so far, and the collector removes them.
Killed after 4: the table says what is sealed. So nothing is sealed twice or skipped.

A partition whose WAL is damaged stops at the damage, with the reason in the report. The other partitions continue.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lastword import metrics
from lastword.clock import monotonic_s, new_uuid
from lastword.compaction.plan import compactable
from lastword.compaction.round import Round, RoundDamaged, RoundDone, RoundSkipped
from lastword.compaction.strategy import has_same_rules, strategy_of
from lastword.config import TopicSettings
from lastword.errors import CorruptError
from lastword.folder.leases import HeldLease, LeaseKeeper
from lastword.folder.steps import reached
from lastword.segments.model import (
    COMMITS,
    Codec,
    CompactedRange,
    Positions,
    Segment,
    SegmentTotals,
    Snapshot,
    TopicInfo,
    check_not_deleted,
    retry_on_conflict,
)
from lastword.wal import checkpoint as checkpoints
from lastword.wal.files import WalFile
from lastword.wal.rolled import RolledFile

if TYPE_CHECKING:
    from lastword.segments.parquet import SegmentFiles
    from lastword.segments.table import SegmentTable

logger = logging.getLogger(__name__)

COMMIT_BYTES = 2 << 30
COMMIT_S = 5.0
"""Commit after about this many WAL bytes or seconds, so that a long backlog is sealed in parts."""

ROUND_ATTEMPTS = 2
"""The number of times that rounds are tried if the settings or the log start change meanwhile."""
ROUND_BYTES = 4 << 30
"""The most WAL bytes of a round, unless it is a single file."""

THREADS = min(4, os.cpu_count() or 1)
"""The number of files written at a time. Each needs the memory of a row group or two."""

OnBytes = Callable[[int, int], None]
"""Called with the WAL bytes done and the WAL bytes in total."""

RunRounds = Callable[[Sequence[Round]], Iterator[Sequence[tuple[Round, object]]]]
"""Carries out rounds, and yields them with their results, some at a time.

A result that is no `RoundDone` or `RoundDamaged` means that the files are sealed as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealReport(SegmentTotals):
    """The result of sealing a topic. `problems` are partitions that stopped, with the reason."""

    topic: str
    segments: tuple[Segment, ...] = ()
    files: int = 0
    wal_bytes: int = 0
    beaten: int = 0
    """The records that were left out, because another one of the same round beats them."""
    duration_s: float = 0.0
    snapshot_id: int | None = None
    problems: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """How the rolled files of a compacted topic are put together to rounds, and how these are carried out."""

    settings_of: Callable[[TopicInfo], TopicSettings]
    """Returns the settings of the topic as a snapshot has it."""
    run: RunRounds
    memory_bytes: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sealed:
    """Files that were written. They have no segment if none of their rows is wanted."""

    files: tuple[RolledFile, ...]
    segments: tuple[Segment, ...]
    round: RoundDone | None = None

    @property
    def partition(self) -> int:
        return self.files[0].partition

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def propose(partition: int, folder: Path, files: Sequence[WalFile], positions: Positions) -> list[RolledFile]:
    """Return the rolled files of a partition that hold offsets at or above its sealed end.

    Raise CorruptError if the first of them begins above it, because the records in between would be skipped.
    """
    todo: list[RolledFile] = []
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
            RolledFile(
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


def rounds_of(
    files: Sequence[RolledFile], settings: TopicSettings, now_ms: int
) -> tuple[list[tuple[RolledFile, ...]], list[RolledFile]]:
    """Put the rolled files of a partition together to rounds. Also return the rest, which is sealed as it is."""
    if not (settings.compacts and settings.compaction_at_seal):
        return [], list(files)
    rounds: list[tuple[RolledFile, ...]] = []
    for index, file in enumerate(files):
        if _is_held_back(file, settings, now_ms):
            return rounds, list(files[index:])
        if rounds and sum(each.size_bytes for each in rounds[-1]) + file.size_bytes <= ROUND_BYTES:
            rounds[-1] += (file,)
        else:
            rounds.append((file,))
    return rounds, []


def round_of(
    files: tuple[RolledFile, ...],
    settings: TopicSettings,
    target: SegmentFiles,
    *,
    codec: Codec,
    job_id: str,
    memory_bytes: int,
) -> Round:
    """Return the work of a round. `target` are the files that it writes."""
    return Round(
        partition=files[0].partition,
        files=files,
        target=target,
        strategy=strategy_of(settings),
        merge_bytes=settings.segment_bytes,
        merge_span_ms=settings.segment_ms if settings.deletes else None,
        codec=codec,
        job_id=job_id,
        seed=new_uuid().int & (2**64 - 1),
        memory_bytes=memory_bytes,
    )


def _is_held_back(file: RolledFile, settings: TopicSettings, now_ms: int) -> bool:
    if settings.min_compaction_lag_ms == 0:
        return False
    try:
        return file.is_younger_than(now_ms - settings.min_compaction_lag_ms)
    except CorruptError:
        # Sealing it says what is wrong.
        return True


def seal(
    table: SegmentTable,
    folders: Sequence[Path],
    *,
    leases: LeaseKeeper,
    codec: Codec = "zstd",
    rounds: RoundSettings | None = None,
    progress: OnBytes | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> SealReport:
    """Seal every rolled WAL file of a topic. `folders` are its partitions' WAL folders, by partition.

    Without `rounds`, every file becomes a segment with all its records. `progress` is called before the first file, if
    there is one, and after each. `stop` is checked between files and rounds. What is written by then is committed.
    """
    started_s = monotonic_s()
    report = SealReport(topic=table.snapshot().topic.name)
    for attempt in range(COMMITS):
        if attempt == ROUND_ATTEMPTS:
            # What changes all the time may change again. Whole files don't depend on it.
            rounds = None
        sealer = _Sealer(table, folders, leases, codec, rounds, progress, stop, report)
        report = sealer.run()
        if not sealer.is_overtaken:
            break
    metrics.SEGMENTS_SEALED.labels(report.topic).inc(len(report.segments))
    metrics.BYTES_SEALED.labels(report.topic).inc(report.size_bytes)
    return replace(report, duration_s=monotonic_s() - started_s)


class _Sealer:
    """Seals the rolled files that a topic has now."""

    def __init__(
        self,
        table: SegmentTable,
        folders: Sequence[Path],
        leases: LeaseKeeper,
        codec: Codec,
        rounds: RoundSettings | None,
        progress: OnBytes | None,
        stop: Callable[[], bool],
        report: SealReport,
    ) -> None:
        self._table = table
        self._leases = leases
        self._codec = codec
        self._rounds = rounds
        self._progress = progress
        self._stop = stop
        self._report = replace(report, problems=())
        self._topic = report.topic
        self._snapshot = table.snapshot()
        self._settings = None if rounds is None else rounds.settings_of(self._snapshot.topic)
        self._epochs: dict[int, tuple[tuple[int, int], ...]] = {}
        self._problems: dict[int, str] = {}
        self._damaged: dict[int, int] = {}
        """The first damaged file of each partition that has one."""
        self._pending: list[_Sealed] = []
        self._committed_s = 0.0
        self._todo = self._propose(folders)
        self._total_bytes = report.wal_bytes + sum(file.size_bytes for own in self._todo for file in own)
        self.is_overtaken = False
        """Whether something was not committed, because the log start or the rules had changed since it was planned."""

    def run(self) -> SealReport:
        if not any(self._todo):
            return replace(self._report, problems=tuple(sorted(self._problems.items())))
        if self._progress is not None:
            self._progress(self._report.wal_bytes, self._total_bytes)
        with self._leases.hold(topic_id=self._snapshot.topic.id.hex, job="seal") as lease:
            # A deletion from here on is not finished until this job has ended. Check for a deletion that was before:
            check_not_deleted(self._table.snapshot())
            self._committed_s = monotonic_s()
            plain = self._seal_rounds(lease) if self._rounds is not None else self._todo
            self._seal_files([file for own in plain for file in own], lease)
            if self._pending:
                self._commit(lease)
        return replace(self._report, problems=tuple(sorted(self._problems.items())))

    def _propose(self, folders: Sequence[Path]) -> list[list[RolledFile]]:
        todo: list[list[RolledFile]] = []
        for partition, folder in enumerate(folders[: len(self._snapshot.positions)]):
            todo.append([])
            saved = checkpoints.load_writer(folder)
            if saved is not None:
                self._epochs[partition] = saved.epochs
                files = checkpoints.left_files(folder, saved)
                try:
                    todo[-1] = propose(partition, folder, files, self._snapshot.positions[partition])
                except CorruptError as error:
                    self._halt(partition, str(error))
        return todo

    def _halt(self, partition: int, why: str) -> None:
        logger.error("sealing of %s partition %d stopped: %s", self._topic, partition, why)
        metrics.SEAL_ERRORS.labels(self._topic).inc()
        self._problems[partition] = why

    # -------------------------------------------------------------------------------------------- rounds

    def _seal_rounds(self, lease: HeldLease) -> list[list[RolledFile]]:
        """Seal in rounds what can be. Return the files of each partition that are left to be sealed as they are."""
        assert self._rounds is not None and self._settings is not None
        waiting: list[deque[tuple[RolledFile, ...]]] = []
        plain: list[list[RolledFile]] = []
        for own in self._todo:
            rounds, rest = self._put_together(own)
            waiting.append(deque(rounds))
            plain.append(rest)
        while any(waiting):
            front = [self._round(own.popleft(), lease.id) for own in waiting if own]
            for results in self._rounds.run(front):
                for unit, result in results:
                    self._take(unit, result, waiting[unit.partition], plain[unit.partition], lease)
                if self._stop():
                    return []
        return plain

    def _put_together(self, own: list[RolledFile]) -> tuple[list[tuple[RolledFile, ...]], list[RolledFile]]:
        assert self._rounds is not None and self._settings is not None
        if own and self._settings.min_compaction_lag_ms:
            segments = self._table.plan(self._snapshot, own[0].partition)
            if len(compactable(segments, self._settings, self._rounds.now_ms)) < len(segments):
                # Something before them is held back.
                return [], own
        return rounds_of(own, self._settings, self._rounds.now_ms)

    def _take(
        self,
        unit: Round,
        result: object,
        waiting: deque[tuple[RolledFile, ...]],
        plain: list[RolledFile],
        lease: HeldLease,
    ) -> None:
        """Take the result of a round. `waiting` are the later rounds of its partition, `plain` the files after these."""
        partition = unit.partition
        if isinstance(result, RoundDone):
            self._add(_Sealed(files=unit.files, segments=result.segments, round=result), lease)
            return
        # Sealing a file as it is says whether it is damaged. All that follows is committed after it.
        first_damaged = result.seq if isinstance(result, RoundDamaged) else 0
        whole = tuple(file for file in unit.files if file.file.seq < first_damaged)
        plain[:0] = [*unit.files[len(whole) :], *itertools.chain(*waiting)]
        waiting.clear()
        if whole:
            waiting.append(whole)
        if isinstance(result, RoundSkipped):
            logger.debug("%s partition %d: hardly any record would be left out", self._topic, partition)
        else:
            why = getattr(result, "message", "its keys don't fit into compaction.task.memory.bytes")
            logger.warning(
                "%s partition %d can't be compacted while it is sealed: %s", self._topic, partition, why
            )

    def _round(self, files: tuple[RolledFile, ...], job_id: str) -> Round:
        assert self._rounds is not None and self._settings is not None
        return round_of(
            files,
            self._settings,
            self._table.files,
            codec=self._codec,
            job_id=job_id,
            memory_bytes=self._rounds.memory_bytes,
        )

    # --------------------------------------------------------------------------------------- single files

    def _seal_files(self, todo: Sequence[RolledFile], lease: HeldLease) -> None:
        """Seal files as they are."""
        for each, written in _in_order(
            todo, lambda file: _write_segment(self._table, file, lease.id, self._codec)
        ):
            try:
                segment = written()
            except CorruptError as error:
                if each.partition not in self._damaged:
                    self._damaged[each.partition] = each.file.seq
                    self._halt(each.partition, str(error))
                continue
            if each.file.seq > self._damaged.get(each.partition, each.file.seq):
                # It was written ahead of time and follows a damaged file.
                if segment is not None:
                    self._table.files.discard(segment)
                continue
            segments = () if segment is None else (segment,)
            self._add(_Sealed(files=(each,), segments=segments), lease)
            if self._stop():
                break

    # ------------------------------------------------------------------------------------------- commits

    def _add(self, sealed: _Sealed, lease: HeldLease) -> None:
        self._pending.append(sealed)
        pending_bytes = sum(each.size_bytes for each in self._pending)
        if self._progress is not None:
            self._progress(self._report.wal_bytes + pending_bytes, self._total_bytes)
        if pending_bytes >= COMMIT_BYTES or monotonic_s() - self._committed_s >= COMMIT_S:
            self._commit(lease)

    def _commit(self, lease: HeldLease) -> None:
        self._committed_s = monotonic_s()
        lease.check()
        snapshot, done = self._committed()
        self._report = replace(
            self._report,
            segments=(*self._report.segments, *(segment for each in done for segment in each.segments)),
            files=self._report.files + sum(len(each.files) for each in done),
            wal_bytes=self._report.wal_bytes + sum(each.size_bytes for each in done),
            beaten=self._report.beaten + sum(each.round.beaten for each in done if each.round is not None),
            snapshot_id=snapshot.id,
        )
        self._pending.clear()

    def _committed(self) -> tuple[Snapshot, list[_Sealed]]:
        def attempt() -> tuple[Snapshot, list[_Sealed]]:
            base = self._table.snapshot()
            check_not_deleted(base)
            positions: dict[int, Positions] = {}
            fitting: list[_Sealed] = []
            for each in self._pending:
                now = positions.get(each.partition, base.positions[each.partition])
                if each.files[0].from_offset == now.sealed_end and not self._fits(each, base):
                    self.is_overtaken = True
                elif each.files[0].from_offset == now.sealed_end:
                    positions[each.partition] = self._moved(now, each)
                    fitting.append(each)
                # Else another job has sealed these offsets meanwhile: its segment stays, the collector removes ours.
            if not fitting:
                return base, []
            segments = [segment for each in fitting for segment in each.segments]
            details = {
                "segments": str(len(segments)),
                "records": str(sum(segment.records for segment in segments)),
            }
            if rounds := _rounds_detail(fitting):
                details["rounds"] = rounds
            return self._table.append(base, segments, positions, operation="seal", details=details), fitting

        result = retry_on_conflict(attempt)
        reached("seal.committed")
        return result

    def _fits(self, sealed: _Sealed, base: Snapshot) -> bool:
        """Return whether the records of a round still compete as they did when it was planned."""
        if sealed.round is None or self._rounds is None or self._settings is None:
            return True
        # Deleted records must not have beaten others. If the newest wins, those that they have beaten are deleted, too.
        is_same_start = base.positions[sealed.partition].log_start == sealed.files[0].log_start
        return (is_same_start or strategy_of(self._settings).order == "newest") and has_same_rules(
            self._settings, self._rounds.settings_of(base.topic)
        )

    def _moved(self, now: Positions, sealed: _Sealed) -> Positions:
        first, last, done = sealed.files[0], sealed.files[-1], sealed.round
        moved = replace(now, sealed_end=last.end_offset, epochs=self._epochs[sealed.partition])
        if done is None or not done.beaten:
            return moved
        assert self._settings is not None
        new = CompactedRange(
            start=first.from_offset,
            end=last.end_offset,
            min_timestamp_ms=done.min_timestamp_ms,
            max_timestamp_ms=done.max_timestamp_ms,
            log_start=first.log_start,
            strategy=strategy_of(self._settings).tag,
        )
        return moved.with_round(new, partitions=len(self._snapshot.positions))


def _rounds_detail(sealed: Sequence[_Sealed]) -> str:
    """Return for each partition, as JSON, how many records the WAL had and how many were left out by which rule."""
    found: dict[int, dict[str, int]] = {}
    for each in sealed:
        if each.round is not None:
            own = found.setdefault(each.partition, {"wal": 0, "below the log start": 0, "beaten": 0})
            below = sum(
                max(0, min(file.log_start, file.end_offset) - file.from_offset) for file in each.files
            )
            own["wal"] += each.round.records + below
            own["below the log start"] += below
            own["beaten"] += each.round.beaten
    return json.dumps(found, separators=(",", ":")) if found else ""


def _in_order(
    todo: Sequence[RolledFile], write: Callable[[RolledFile], Segment | None]
) -> Iterator[tuple[RolledFile, Callable[[], Segment | None]]]:
    """Yield each file with a function that waits for its segment. Other threads write the next files, if any."""
    if min(THREADS, len(todo)) < 2:
        yield from ((each, partial(write, each)) for each in todo)
        return
    with ThreadPoolExecutor(THREADS, "lastword-seal") as pool:
        ahead: deque[tuple[RolledFile, Future[Segment | None]]] = deque()
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


def _write_segment(table: SegmentTable, file: RolledFile, job_id: str, codec: Codec) -> Segment | None:
    with table.writer(file.partition, file.first_wanted, job_id, codec) as writer:
        for records in file.records():
            writer.write(records)
        segment = writer.close()
    reached("seal.written")
    return segment


def with_problems(report: SealReport, problems: Sequence[tuple[int, str]]) -> SealReport:
    """Return the report with additional partitions that stopped."""
    return replace(report, problems=tuple(sorted((*report.problems, *problems))))
