"""A compaction run over topics: plan, carry out, commit, report.

The steps, for partitions of any number of topics:
1. look at each table and plan (plan.py): which partitions, which segments, by which rules;
2. take a lease for each topic, whose id is in the names of the files to be written;
3. hand the units to the engine, some at a time, the most urgent first;
4. commit the finished units, one snapshot per topic: files out, files in, positions. A partition with a segment that
   is no longer there, whether that was noticed here or by reading it, or with another policy or strategy, is planned
   again from a fresh look at the log; the others are committed. A failure is reported and leaves no trace.

If the process is killed before a commit, nothing has changed, and the collector removes the files. After it,
everything has.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from lastword import metrics
from lastword.clock import Clock, monotonic_s
from lastword.compaction import plan as planning
from lastword.compaction.committing import Done, commit, fits
from lastword.compaction.engine import Engine, Failure, Job, TooLarge, next_way
from lastword.compaction.plan import PartitionPlan, Way
from lastword.compaction.planned import Planned, unit_of
from lastword.compaction.reports import CompactionReport, PartitionReport
from lastword.compaction.request import WHAT_IS_DUE, CompactionRequest, Scope
from lastword.compaction.target import Target, plan_target
from lastword.compaction.unit import Outcome
from lastword.compaction.watching import Watch
from lastword.config import BrokerConfig
from lastword.errors import LastwordError, UnavailableError
from lastword.folder.leases import HeldLease, LeaseKeeper
from lastword.segments.model import retry_on_conflict
from lastword.segments.sketch import Sketches

logger = logging.getLogger(__name__)

PLAN_AGAIN_TIMES = 5
WAVE_BYTES = 256 << 20
"""The number of bytes that each task of an engine gets before the finished units are committed."""
TOGETHER_BYTES = 16 << 20
MOST_TOGETHER = 64
"""Partitions with no more dirty bytes than that are committed together, up to this number: each commit makes a snapshot."""


def topic_failed(topic: str, error: Exception) -> tuple[str, str]:
    """Log and count a topic of which nothing could be compacted. Return its entry of `failed_topics`."""
    why = str(error) or type(error).__name__
    logger.error("compaction of %s failed: %s", topic, why)
    metrics.COMPACTION_ERRORS.labels(topic).inc()
    return topic, why


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
        request: CompactionRequest = WHAT_IS_DUE,
    ) -> CompactionReport:
        """Compact the partitions that are due, the most urgent first, but those in `last` after all others.

        `stop` is called between commits. If it returns True, partitions that have not begun are left for later.
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
                    planned += self._plan(target, lease, request, request.exclude)
                except LastwordError as error:
                    failed.append(topic_failed(target.topic, error))
            planned.sort(key=lambda each: planning.urgency(each.plan))
            watch = Watch(planned, request.progress)
            # Don't start an engine if there is nothing to do.
            for wave in self._waves(planned, request.last) if planned else ():
                if request.stop():
                    break
                if request.begin is not None:
                    request.begin([(each.plan.topic, each.plan.partition) for each in wave])
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

        With an engine that does one thing at a time, each partition is committed as it is done, unless little is dirty.
        Each partition in `last` goes alone: it may be one that a process did not survive.
        """
        parallel = self._parallel
        most = parallel * 4 if parallel > 1 else 1
        wave: list[Planned] = []
        by_place = {(each.plan.topic, each.plan.partition): each for each in planned}
        for each in planned:
            if (each.plan.topic, each.plan.partition) in last:
                continue
            together = [*wave, each]
            size_bytes = sum(other.plan.size_bytes for other in together)
            dirty_bytes = sum(other.plan.dirty_bytes for other in together)
            is_full = len(wave) >= (MOST_TOGETHER if dirty_bytes <= TOGETHER_BYTES else most)
            if wave and (is_full or size_bytes > WAVE_BYTES * parallel):
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
        scope: Scope,
        exclude: Collection[tuple[str, int | None]] = (),
    ) -> list[Planned]:

        def attempt() -> list[Planned]:
            return [
                self._planned(plan, target, lease)
                for plan in plan_target(target, scope, clock=self._clock)
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
        inserted = plan.dirty if only_dirty else plan.segments
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
                    reports += [_failed(planned, str(error)) for planned in stale]
                    continue
                watch.begin_again(stale, replanned)
                again += replanned
            waiting = again
        reports += [_failed(each, "its segments changed each time that it was planned") for each in waiting]
        return reports

    def _carry_out(self, waiting: Sequence[Planned], watch: Watch) -> list[tuple[Planned, Outcome | Failure]]:
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
        self, target: Target, results: Sequence[tuple[Planned, Outcome | Failure]]
    ) -> tuple[list[PartitionReport], list[Planned]]:
        """Commit what was carried out. Return the reports, and what has to be planned again."""
        done = [Done(planned=each, outcome=result) for each, result in results if isinstance(result, Outcome)]
        reports: list[PartitionReport] = []
        stale: list[Planned] = []
        if done:
            try:
                committed, stale = commit(target, done, self._clock.now_ms())
                for report in committed:
                    _note(report)
                reports += committed
            except LastwordError as error:
                reports += [_failed(each.planned, str(error)) for each in done]
        for planned, result in results:
            if isinstance(result, Outcome):
                continue
            if self._is_overtaken(planned):
                stale.append(planned)
            else:
                reports.append(_failed(planned, result.message))
        return reports, stale

    def _is_overtaken(self, planned: Planned) -> bool:
        """Return whether the plan is out of date, so that a failure says nothing: a file may be gone."""
        table = planned.target.table
        try:
            base = table.snapshot()
            live = set(table.plan(base))
            return not base.topic.deleted and not fits(planned, base, live)
        except LastwordError:
            return False

    def _plan_again(self, target: Target, stale: Sequence[Planned]) -> list[Planned]:
        if not stale:
            return []
        logger.info(
            "%s partitions %s changed in the meantime and are planned again",
            stale[0].plan.topic,
            ", ".join(str(each.plan.partition) for each in stale),
        )
        if target.refresh is not None:
            # Readers have come and gone, and the log has grown.
            looked_ms = self._clock.now_ms()
            target = replace(target.refresh(), looked_ms=looked_ms)
        scope = Scope(partitions=tuple(each.plan.partition for each in stale), asked_for=True)
        return self._plan(target, stale[0].lease, scope)


def _failed(planned: Planned, message: str) -> PartitionReport:
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
