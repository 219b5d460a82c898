"""A compaction run over topics: plan, carry out, commit, report.

The steps, for partitions of any number of topics:
1. look at each table and plan (plan.py): which partitions, which segments, by which rules;
2. take a lease for each topic, whose id is in the names of the files to be written;
3. hand the units to the engine, some at a time, the most urgent first;
4. commit the finished units, one snapshot per topic: files out, files in, positions. A partition with a segment that
   is no longer there, whether that was noticed here or by reading it, is planned again from a fresh look at the
   log; the others are committed. A failure is reported and leaves no trace.

If the process is killed before a commit, nothing has changed, and the collector removes the files. After it,
everything has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from lastword import metrics
from lastword.clock import Clock, monotonic_s, new_uuid
from lastword.compaction import plan as planning
from lastword.compaction import rules as rule
from lastword.compaction.engine import Engine, Failure, Job, Result, TooLarge, next_way
from lastword.compaction.plan import PartitionPlan, Way
from lastword.compaction.reports import CompactionReport, PartitionReport
from lastword.compaction.rules import OldestTombstones
from lastword.compaction.target import Target, plan_target
from lastword.compaction.unit import Outcome, Unit
from lastword.compaction.watching import OnRecordsAndBytes, Watch
from lastword.config import BrokerConfig, TopicSettings
from lastword.errors import ConflictError, LastwordError, UnavailableError
from lastword.folder.leases import HeldLease, LeaseKeeper
from lastword.folder.steps import reached
from lastword.segments.model import (
    LastRun,
    Positions,
    Segment,
    SegmentGoneError,
    Snapshot,
    check_not_deleted,
    retry_on_conflict,
)
from lastword.segments.parquet import SegmentFiles
from lastword.segments.sketch import Sketches

logger = logging.getLogger(__name__)

PLAN_AGAIN_TIMES = 5
WAVE_BYTES = 256 << 20
"""The number of bytes that each task of an engine gets before the finished units are committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run of a partition that is about to be carried out."""

    plan: PartitionPlan
    target: Target
    job: Job
    lease: HeldLease


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    planned: Planned
    outcome: Outcome


def topic_failed(topic: str, error: Exception) -> tuple[str, str]:
    """Log and count a topic of which nothing could be compacted. Return its entry of `failed_topics`."""
    why = str(error) or type(error).__name__
    logger.error("compaction of %s failed: %s", topic, why)
    metrics.COMPACTION_ERRORS.labels(topic).inc()
    return topic, why


def unit_of(
    plan: PartitionPlan,
    settings: TopicSettings,
    files: SegmentFiles,
    *,
    job_id: str,
    max_set_bytes: int | None = None,
) -> Unit:
    """Return the unit of work for a plan."""
    return Unit(
        topic=plan.topic,
        partition=plan.partition,
        files=files,
        segments=plan.segments,
        first_dirty=plan.positions.first_dirty,
        clean_is_unique=not plan.positions.spared,
        keyed=plan.keyed,
        rules=plan.rules,
        merge_bytes=settings.segment_bytes,
        merge_span_ms=settings.segment_ms if settings.deletes else None,
        min_rewrite_ratio=settings.min_rewrite_ratio,
        job_id=job_id,
        seed=new_uuid().int & (2**64 - 1),
        max_set_bytes=max_set_bytes,
    )


JOB_DETAIL = "job"
"""The snapshot detail that all commits of one run over a topic have in common."""


class _EngineDownError(UnavailableError):
    """The engine can't be started. No partition is the cause."""


class Compactor:
    """Runs compactions on an engine."""

    def __init__(self, engine: Engine, *, config: BrokerConfig, clock: Clock, leases: LeaseKeeper) -> None:
        self._engine = engine
        self._config = config
        self._clock = clock
        self._leases = leases
        self._engine_error: _EngineDownError | None = None

    def run(
        self,
        targets: Sequence[Target],
        *,
        partitions: Sequence[int] | None = None,
        asked_for: bool = False,
        force: bool = False,
        exclude: Collection[tuple[str, int | None]] = (),
        last: Sequence[tuple[str, int | None]] = (),
        begin: Callable[[Sequence[tuple[str, int | None]]], None] | None = None,
        progress: OnRecordsAndBytes | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> CompactionReport:
        """Compact the partitions that are due, the most urgent first, but those in `last` after all others.

        `begin` is called with the partitions that are compacted next. `stop` is called between commits. If it
        returns True, partitions that have not begun are left for later.
        """
        started_s = monotonic_s()
        reports: dict[tuple[str, int], PartitionReport] = {}
        leases: list[HeldLease] = []
        failed: list[tuple[str, str]] = []
        planned: list[Planned] = []
        try:
            for target in targets:
                try:
                    lease = self._leases.hold(topic_id=target.table.snapshot().topic.id.hex, job="compact")
                    leases.append(lease)
                    planned += self._plan(
                        target,
                        lease,
                        partitions=partitions,
                        asked_for=asked_for,
                        force=force,
                        exclude=exclude,
                    )
                except LastwordError as error:
                    failed.append(topic_failed(target.topic, error))
            planned.sort(key=lambda each: planning.urgency(each.plan))
            watch = Watch(planned, progress)
            # Don't start an engine if there is nothing to do.
            for wave in self._waves(planned, last) if planned else ():
                if stop():
                    break
                if begin is not None:
                    begin([(each.plan.topic, each.plan.partition) for each in wave])
                for report in self._run_wave(wave, watch):
                    reports[report.topic, report.partition] = report
            watch.finish()
        except _EngineDownError as error:
            topics = dict.fromkeys(each.plan.topic for each in planned)
            failed += [topic_failed(topic, error) for topic in topics]
        finally:
            for lease in leases:
                lease.release()
        return CompactionReport(
            engine=self._engine.name,
            partitions=tuple(reports[key] for key in sorted(reports)),
            failed_topics=tuple(failed),
            duration_s=monotonic_s() - started_s,
        )

    @property
    def _parallel(self) -> int:
        """The number of tasks that the engine runs at a time. Starting it is tried once per run, not per topic."""
        if self._engine_error is not None:
            raise self._engine_error
        try:
            return self._engine.parallel
        except LastwordError as error:
            self._engine_error = _EngineDownError(str(error))
            raise self._engine_error from error

    def _waves(
        self, planned: Sequence[Planned], last: Sequence[tuple[str, int | None]]
    ) -> Iterator[list[Planned]]:
        """Yield the partitions that go to the engine at a time: enough to keep it busy, few enough to commit often.

        With an engine that does one thing at a time, each partition is committed as it is done. Each partition in
        `last` goes alone: it may be one that a process did not survive.
        """
        parallel = self._parallel
        most = parallel * 4 if parallel > 1 else 1
        wave: list[Planned] = []
        by_place = {(each.plan.topic, each.plan.partition): each for each in planned}
        for each in planned:
            if (each.plan.topic, each.plan.partition) in last:
                continue
            size_bytes = sum(other.plan.size_bytes for other in wave) + each.plan.size_bytes
            if wave and (len(wave) >= most or size_bytes > WAVE_BYTES * parallel):
                yield wave
                wave = []
            wave.append(each)
        if wave:
            yield wave
        for topic, partition in last:
            if partition is not None and (topic, partition) in by_place:
                yield [by_place[topic, partition]]

    def _plan(
        self,
        target: Target,
        lease: HeldLease,
        *,
        partitions: Sequence[int] | None,
        asked_for: bool = False,
        force: bool = False,
        exclude: Collection[tuple[str, int | None]] = (),
    ) -> list[Planned]:

        def attempt() -> list[Planned]:
            with _gone_is_conflict():
                plans = plan_target(
                    target, clock=self._clock, partitions=partitions, asked_for=asked_for, force=force
                )
                return [
                    self._planned(plan, target, lease)
                    for plan in plans
                    if (plan.topic, plan.partition) not in exclude
                ]

        return retry_on_conflict(attempt)

    def _planned(self, plan: PartitionPlan, target: Target, lease: HeldLease) -> Planned:
        way, shares, set_bytes = self._choose_way(plan, target)
        unit = unit_of(plan, target.settings, target.table.files, job_id=lease.id, max_set_bytes=set_bytes)
        return Planned(plan=plan, target=target, lease=lease, job=Job(unit=unit, way=way, shares=shares))

    def _choose_way(self, plan: PartitionPlan, target: Target) -> tuple[Way, int, int]:
        """Return the way, the number of shares, and the memory that a set of keys may use."""
        memory_bytes = self._config.compaction_task_memory_bytes
        if not plan.keyed:
            # No set of keys is needed, and the result is one segment.
            return "one stage", 1, memory_bytes
        versioned = plan.rules.strategy.is_versioned
        only_dirty = plan.rules.strategy.order == "newest" and not plan.positions.spared
        inserted = [
            segment
            for segment in plan.segments
            if not only_dirty or segment.last_offset >= plan.positions.first_dirty
        ]
        keys = sum(segment.records for segment in inserted)
        key_bytes = 32
        room_bytes = planning.room_for_keys(memory_bytes, plan.records)
        if planning.key_memory(keys, key_bytes, versioned=versioned) > room_bytes:
            # The number of records is too coarse a bound; the sketches give a better one.
            sketches = Sketches(target.table.files)
            keys = min(keys, round(sketches.distinct_keys(inserted) * 1.1))
            key_bytes = sketches.mean_key_bytes(inserted)
        way, shares = planning.choose_way(
            needed_bytes=planning.key_memory(keys, key_bytes, versioned=versioned),
            room_bytes=room_bytes,
            size_bytes=plan.size_bytes,
            task_bytes=self._config.compaction_task_bytes,
            parallel=self._parallel,
        )
        return way, shares, planning.set_share(room_bytes, key_bytes, versioned=versioned)

    def _run_wave(self, wave: Sequence[Planned], watch: Watch) -> list[PartitionReport]:
        reports: list[PartitionReport] = []
        waiting = list(wave)
        for _ in range(PLAN_AGAIN_TIMES):
            if not waiting:
                return reports
            results = self._carry_out(waiting, watch)
            again: list[Planned] = []
            for target in {id(planned.target): planned.target for planned in waiting}.values():
                own = [(planned, result) for planned, result in results if planned.target is target]
                finished, stale = self._finish(target, own)
                reports += finished
                try:
                    replanned = self._plan_again(target, stale)
                except LastwordError as error:
                    reports += [_failed(planned, Failure(message=str(error))) for planned in stale]
                    continue
                watch.begin_again(stale, replanned)
                again += replanned
            waiting = again
        reports += [
            _failed(each, Failure(message="its segments changed each time that it was planned"))
            for each in waiting
        ]
        return reports

    def _carry_out(self, waiting: Sequence[Planned], watch: Watch) -> list[tuple[Planned, Result]]:
        with watch.watching(waiting) as jobs:
            results = self._engine.run(jobs)
        finished = list(zip(waiting, results, strict=True))
        too_large = [
            replace(planned, job=next_way(planned.job))
            for planned, result in finished
            if isinstance(result, TooLarge)
        ]
        rest = [(planned, result) for planned, result in finished if not isinstance(result, TooLarge)]
        watch.done([planned for planned, _ in rest])
        return rest + (self._carry_out(too_large, watch) if too_large else [])

    def _finish(
        self, target: Target, results: Sequence[tuple[Planned, Result]]
    ) -> tuple[list[PartitionReport], list[Planned]]:
        """Commit what was carried out. Return the reports, and what has to be planned again."""
        done = [
            _Done(planned=each, outcome=result) for each, result in results if isinstance(result, Outcome)
        ]
        reports: list[PartitionReport] = []
        stale: list[Planned] = []
        if done:
            try:
                committed, overtaken = self._commit(target, done)
                reports += committed
                stale += [each.planned for each in overtaken]
            except LastwordError as error:
                reports += [_failed(each.planned, Failure(message=str(error))) for each in done]
        for planned, result in results:
            if isinstance(result, Outcome):
                continue
            if self._is_overtaken(planned):
                stale.append(planned)
            else:
                reports.append(_failed(planned, result))
        return reports, stale

    def _is_overtaken(self, planned: Planned) -> bool:
        """Return whether the plan is out of date, so that a failure says nothing: a file may be gone."""
        table = planned.target.table
        try:
            base = table.snapshot()
            live = {segment.path for segment in table.plan(base)}
        except LastwordError:
            return False
        return not base.topic.deleted and not _fits(planned.plan, base, live)

    def _plan_again(self, target: Target, stale: Sequence[Planned]) -> list[Planned]:
        if not stale:
            return []
        logger.info(
            "%s partitions %s changed in the meantime and are planned again",
            stale[0].plan.topic,
            ", ".join(str(each.plan.partition) for each in stale),
        )
        if target.look_again is not None:
            # Readers have come and gone, and the log has grown.
            looked_ms = self._clock.now_ms()
            target = replace(target.look_again(), looked_ms=looked_ms)
        return self._plan(
            target, stale[0].lease, partitions=[each.plan.partition for each in stale], asked_for=True
        )

    def _commit(self, target: Target, done: Sequence[_Done]) -> tuple[list[PartitionReport], list[_Done]]:
        """Commit the outcomes whose segments are all still there. Return the reports, and the stale outcomes."""
        now_ms = self._clock.now_ms()

        def attempt() -> tuple[Snapshot, list[_Done], list[_Done]]:
            for each in done:
                each.planned.lease.check()
            base = target.table.snapshot()
            check_not_deleted(base)
            with _gone_is_conflict():
                live = {segment.path for segment in target.table.plan(base)}
            fitting = [each for each in done if _fits(each.planned.plan, base, live)]
            stale = [each for each in done if each not in fitting]
            positions = {
                each.planned.plan.partition: _moved(
                    base.positions[each.planned.plan.partition], each, target.settings, now_ms
                )
                for each in fitting
            }
            if not fitting:
                return base, [], stale
            removed = [segment for each in fitting for segment in each.outcome.removed]
            added = [segment for each in fitting for segment in each.outcome.added]
            reports = [_report(each) for each in fitting]
            details = {
                "partitions": str(len(fitting)),
                JOB_DETAIL: done[0].planned.lease.id,
                "segments": f"{len(removed)} -> {len(added)}",
                "records": f"{sum(r.records_before for r in reports)} -> {sum(r.records_after for r in reports)}",
                "bytes": f"{sum(r.bytes_before for r in reports)} -> {sum(r.bytes_after for r in reports)}",
            }
            reached("compact.before_commit")
            return (
                target.table.replace(base, removed, added, positions, operation="compact", details=details),
                fitting,
                stale,
            )

        _, fitting, stale = retry_on_conflict(attempt)
        reached("compact.committed")
        reports = [_report(each) for each in fitting]
        for report in reports:
            _note(report)
        return reports, stale


@contextmanager
def _gone_is_conflict() -> Iterator[None]:
    """Turn a missing file into a conflict: it means that there is a later snapshot, so the caller looks again."""
    try:
        yield
    except SegmentGoneError as error:
        raise ConflictError(str(error)) from error


def _fits(plan: PartitionPlan, base: Snapshot, live: set[str]) -> bool:
    """Return whether a partition is still as it was when it was planned."""
    at = base.positions[plan.partition]
    # Records that fell below the log start in the meantime may have beaten later records, which must stay then.
    competitors_are_there = (
        plan.rules.strategy.order == "newest" or not plan.keyed or at.log_start == plan.positions.log_start
    )
    return (
        competitors_are_there
        and at.first_dirty == plan.positions.first_dirty
        and all(segment.path in live for segment in plan.segments)
    )


def _moved(at: Positions, done: _Done, settings: TopicSettings, now_ms: int) -> Positions:
    """Return the positions after a commit: the compacted range is clean now, and its tombstones have deadlines."""
    plan, outcome = done.planned.plan, done.outcome
    report = _report(done)
    last_run = LastRun(now_ms, round(outcome.duration_s * 1000), report.reclaimed_bytes)
    if not plan.keyed:
        return replace(at, last_run=last_run)
    at = rule.on_clock(settings, at)
    dirty = [segment for segment in plan.segments if segment.last_offset >= plan.positions.first_dirty]
    runs = at.runs
    if plan.rules.strategy.is_versioned:
        runs = rule.next_runs(
            at.runs, plan.seen, compactable_end=plan.compactable_end, most=planning.MAX_RUNS_KEPT
        )
    return replace(
        at,
        first_dirty=max(at.first_dirty, plan.compactable_end),
        deadlines=rule.next_deadlines(
            settings,
            at,
            plan.rules,
            compactable_end=plan.compactable_end,
            dirty_tombstones=any(segment.null_values for segment in dirty),
            left_behind=_left_behind(plan, outcome, settings),
            now_ms=now_ms,
        ),
        runs=runs,
        spared=outcome.spared,
        last_run=last_run,
        clean_max_timestamp_ms=_clean_max_timestamp_ms(at, dirty),
    )


def _clean_max_timestamp_ms(at: Positions, dirty: Sequence[Segment]) -> int | None:
    if at.clean_max_timestamp_ms is None and at.first_dirty > at.log_start:
        # Earlier runs did not note it, and the records are gone.
        return None
    return max((at.clean_max_timestamp_ms or -1, *(each.max_timestamp_ms for each in dirty)))


def _left_behind(plan: PartitionPlan, outcome: Outcome, settings: TopicSettings) -> OldestTombstones:
    """Return lower bounds of the timestamps of the tombstones that are left."""
    known = {segment.path for segment in outcome.added} | set(outcome.examined)
    found = [outcome.oldest_examined, *(each.oldest for each in outcome.rewritten)]
    for segment in outcome.left:
        if segment.path not in known and segment.null_values:
            # It is clean: the bounds that earlier runs found still hold.
            found += [
                rule.oldest_within(
                    plan.rules,
                    max(deadline.start, segment.first_offset),
                    min(deadline.end, segment.last_offset + 1),
                    max(segment.min_timestamp_ms, deadline.deadline_ms - settings.delete_retention_ms),
                )
                for deadline in plan.positions.deadlines
            ]
    return rule.oldest_of_all(found)


def _report(done: _Done) -> PartitionReport:
    plan, outcome = done.planned.plan, done.outcome
    left = outcome.left
    return PartitionReport(
        topic=plan.topic,
        partition=plan.partition,
        reason=plan.reason,
        way=done.planned.job.way,
        segments_before=len(plan.segments),
        segments_compacted=len(outcome.removed),
        segments_after=len(left),
        records_before=plan.records,
        records_after=_sum(left, "records"),
        bytes_before=plan.size_bytes,
        bytes_after=_sum(left, "size_bytes"),
        tombstones_removed=sum(each.tombstones_removed for each in outcome.rewritten),
        tombstones_kept=outcome.tombstones_kept,
        read_bytes=outcome.read_bytes,
        written_bytes=_sum(outcome.added, "size_bytes"),
        peak_set_bytes=outcome.peak_set_bytes,
        duration_s=outcome.duration_s,
    )


def _sum(segments: Sequence[Segment], attribute: str) -> int:
    return sum(getattr(segment, attribute) for segment in segments)


def _failed(planned: Planned, result: Result) -> PartitionReport:
    message = (
        result.message if isinstance(result, Failure) else "its keys don't fit into the memory of a task"
    )
    logger.error(
        "compaction of %s partition %d failed: %s", planned.plan.topic, planned.plan.partition, message
    )
    metrics.COMPACTION_ERRORS.labels(planned.plan.topic).inc()
    return PartitionReport(
        topic=planned.plan.topic,
        partition=planned.plan.partition,
        reason=planned.plan.reason,
        way=planned.job.way,
        problem=message,
    )


def _note(report: PartitionReport) -> None:
    logger.info(
        "compacted %s partition %d (%s, %s): %d of %d segments, %d -> %d records, %d -> %d bytes, "
        "%d tombstones removed, %.2f s",
        report.topic,
        report.partition,
        report.reason,
        report.way,
        report.segments_compacted,
        report.segments_before,
        report.records_before,
        report.records_after,
        report.bytes_before,
        report.bytes_after,
        report.tombstones_removed,
        report.duration_s,
    )
    metrics.COMPACTIONS.labels(report.topic, report.partition).inc()
    metrics.CLEANED_BYTES.labels(report.topic, report.partition).inc(max(0, report.reclaimed_bytes))
    metrics.COMPACTION_DURATION.labels(report.topic).observe(report.duration_s)
