"""The jobs over the topics of a log: retention, compaction, erasure, verification, measuring."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lastword.clock import Clock
from lastword.compaction.plan import PartitionPlan, urgency
from lastword.config import BrokerConfig
from lastword.errors import LastwordError, UnknownTopicError
from lastword.folder import intents, leases
from lastword.folder.intents import Intent
from lastword.folder.leases import LeaseKeeper
from lastword.log.measuring import Measures, measure_topic
from lastword.log.topics import Topics, warned
from lastword.maintenance import retention
from lastword.maintenance.lanes import Lane
from lastword.maintenance.retention import RetentionPlan
from lastword.segments.model import Collected, look_again
from lastword.wal import deleter, staged

if TYPE_CHECKING:
    from lastword.compaction.compacting import Compaction
    from lastword.compaction.reports import CompactionReport
    from lastword.compaction.service import CompactionRequest
    from lastword.log.worker import RetentionStep
    from lastword.maintenance.erase import EraseReport
    from lastword.maintenance.verify import VerifyReport
    from lastword.maintenance.worker_state import TopicOrder

logger = logging.getLogger(__name__)

STAGE_JOB = "stage"
"""The job of leases that tasks hold while they stage records."""
STAGED_GRACE_MS = 86_400_000
"""Staged records are kept at least this long for their append, which happens after all tasks of a write have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport:
    """The result of one round of retention over all topics, or with a dry run the result that it would have."""

    removed: tuple[RetentionPlan, ...] = ()
    wal: deleter.Deleted = field(default_factory=deleter.Deleted)
    expired_snapshots: Mapping[str, int] = field(default_factory=dict)
    collected: Mapping[str, Collected] = field(default_factory=dict)
    problems: tuple[tuple[str, str], ...] = ()
    """Topics that failed, and why. The others were not affected."""


class Jobs:
    """The jobs of a log. Each holds the lanes that it needs, commits piece by piece, and can be repeated."""

    def __init__(
        self,
        topics: Topics,
        compaction: Callable[[], Compaction],
        maintenance: Callable[..., AbstractContextManager[None]],
        finish_deletions: Callable[[], None],
        *,
        data_folder: Path,
        config: BrokerConfig,
        clock: Clock,
        leases: LeaseKeeper,
    ) -> None:
        self._topics = topics
        self._compaction = compaction
        self._maintenance = maintenance
        self._finish_deletions = finish_deletions
        self._data_folder = data_folder
        self._config = config
        self._clock = clock
        self._leases = leases
        self._measures = Measures()

    def retain(
        self,
        *,
        dry_run: bool,
        topics: Iterable[str] | None,
        steps: Iterable[RetentionStep],
        turns: TopicOrder | None,
        stop: Callable[[], bool],
    ) -> MaintenanceReport:
        """Run one round of retention for all topics, or some."""
        with nullcontext() if dry_run else self._maintenance(Lane.TIDY):
            now_ms = self._clock.now_ms()
            removed: list[RetentionPlan] = []
            wals: list[deleter.LocalWal] = []
            expired: dict[str, int] = {}
            collected: dict[str, Collected] = {}
            problems: list[tuple[str, str]] = []
            wanted = None if topics is None else set(topics)
            wanted_steps = set(steps)
            if wanted is None:
                chosen = self._topics.own_names()
            else:
                chosen = [
                    name for name in self._topics.listing(include_internal=True).names if name in wanted
                ]
                if unknown := sorted(wanted - set(chosen)):
                    raise UnknownTopicError(f"there is no topic {unknown[0]!r}")

            def retain(name: str) -> None:
                if stop():
                    return
                if turns is not None:
                    turns.take(name)
                table = self._topics.load(name)
                topic = self._topics.get(name)
                if topic.foreign is not None:
                    raise topic.foreign
                own_wals = topic.local_wals() if dry_run else topic.removable_wals()
                if "retention" in wanted_steps:
                    unsealed = _unsealed_bytes(own_wals)
                    removed.append(retention.apply(table, unsealed, topic.settings, now_ms, dry_run=dry_run))
                if "delete" in wanted_steps:
                    wals.extend(own_wals)
                if "expire" in wanted_steps:
                    expired[name] = len(
                        retention.expire(table, self._data_folder, self._config, now_ms, dry_run=dry_run)
                    )
                if "collect" in wanted_steps:
                    collected[name] = retention.collect(
                        table, self._data_folder, self._config, now_ms, dry_run=dry_run
                    )

            visited = self._topics.visit(retain, chosen if turns is None else turns.in_order(chosen))
            for name, error in visited.problems.items():
                logger.error("retention of %s failed: %s", name, error)
                problems.append((name, str(error)))
            deletions = deleter.propose(wals, self._config, now_ms) if self._config.deleter_enabled else []
            if dry_run:
                wal = deleter.Deleted(deletions=tuple(deletions))
            else:
                wal = deleter.execute(wals, deletions, now_ms)
                if "collect" in wanted_steps:
                    leases.sweep(self._data_folder, now_ms - self._config.collect_grace_ms)
                    self._sweep_staged(now_ms)
                    with warned("topic deletions are not finished and will be retried"):
                        self._finish_deletions()
            return MaintenanceReport(
                removed=tuple(removed),
                wal=wal,
                expired_snapshots=expired,
                collected=collected,
                problems=tuple(problems),
            )

    def plan_compaction(
        self,
        topics: Sequence[str] | None,
        *,
        partitions: Sequence[int] | None,
        asked_for: bool,
        force: bool,
    ) -> list[PartitionPlan]:
        """Return the plans that a compaction would carry out now, the most urgent first. Nothing is changed."""

        def plan(name: str) -> list[PartitionPlan]:
            return self._compaction().plan(name, partitions=partitions, asked_for=asked_for, force=force)

        if topics is not None:
            plans = [plan(name) for name in topics]
        else:
            visited = self._topics.visit(plan)
            plans = list(visited.found.values())
            for name, error in visited.problems.items():
                logger.error("compaction of %s can't be planned: %s", name, error)
        return sorted((each for own in plans for each in own), key=urgency)

    def compact(self, names: Sequence[str], request: CompactionRequest, *, seal: bool) -> CompactionReport:
        """Compact topics as one job. With `seal`, seal their WALs first."""
        unsealed: Mapping[str, LastwordError] = {}
        if seal:
            unsealed = self._topics.visit(lambda name: self._topics.get(name).seal(), names).problems
            names = [name for name in names if name not in unsealed]
        ids = self._topics.visit(lambda name: self._topics.get(name).id.hex, names).found
        report = self._compaction().run(names, request)
        failed = [(name, str(error)) for name, error in unsealed.items()]
        failing = {topic for topic, _ in report.failed_topics} | {each.topic for each in report.problems}
        # A topic that was deleted meanwhile, and perhaps recreated, has nothing left that could fail.
        gone = {name for name in failing & set(ids) if not self._topics.has(name, ids[name])}
        return replace(
            report,
            partitions=tuple(each for each in report.partitions if each.topic not in gone),
            failed_topics=(*failed, *(each for each in report.failed_topics if each[0] not in gone)),
        )

    def measure(self) -> None:
        """Export the size, dirty ratio and lag of every topic as metrics."""
        now_ms = self._clock.now_ms()
        visited = self._topics.visit(
            lambda name: look_again(
                lambda: measure_topic(self._topics.get(name), self._topics.load(name), now_ms),
                f"Topic {name!r}",
            )
        )
        self._measures.take(visited.found.values(), names=[*visited.found, *visited.problems])
        for name, error in visited.problems.items():
            logger.warning("%s can't be measured: %s", name, error)

    def verify(self, topic: str, before: int | None, after: int | None) -> VerifyReport:
        """Prove on Spark, from two snapshots, that compaction lost nothing."""
        from lastword.compaction.spark import SparkEngine
        from lastword.maintenance.verify import choose_snapshots, verify

        table = self._topics.load(topic)
        first, last = choose_snapshots(table, before, after)
        engine, is_shared = self._compaction().spark_engine()
        assert isinstance(engine, SparkEngine)
        try:
            with ExitStack() as pins:
                for snapshot in (first, last):
                    pins.enter_context(
                        self._leases.hold(
                            topic_id=snapshot.topic.id.hex, job="verify", snapshot_id=snapshot.id
                        )
                    )
                return verify(table, first, last, self._topics.get(topic).settings, engine)
        finally:
            if not is_shared:
                engine.close()

    def erase(
        self, topic: str, keys: tuple[bytes, ...], progress: Callable[[int, int], None] | None
    ) -> EraseReport:
        """Remove every record of these keys from all files and snapshots of a topic, for good."""
        found = self._topics.get(topic)
        if found.foreign is not None:
            raise found.foreign
        with self._maintenance(*Lane):
            # Records that are appended from now on are new and stay.
            ends = tuple(extent.log_end for _, extent in sorted(found.extents().items()))
            wanted = intents.Wanted(keys=keys, ends=ends)
            asked = intents.Intent(topic=topic, topic_id=found.id.hex, wanted=(wanted,))
            return self._erase(intents.add_intent(self._data_folder, asked), progress)

    def finish_erasures(self) -> list[str]:
        """Resume erasures that were interrupted or incomplete. Return what is still left of them, and why."""
        for path in intents.unfinished_intents(self._data_folder):
            with self._maintenance(*Lane):
                path.unlink(missing_ok=True)
        left: list[str] = []
        for path in intents.list_intents(self._data_folder):
            with self._maintenance(*Lane):
                try:
                    left += self._finish_erasure(path)
                except LastwordError as error:
                    # This erasure waits until the problem has been fixed. Others don't.
                    logger.error("the erasure in %s can't continue: %s", path, error)
                    left.append(str(error))
        return left

    def _finish_erasure(self, path: Path) -> list[str]:
        intent = intents.load_intent(path)
        if intent is None:
            return []
        if not self._topics.has(intent.topic, intent.topic_id):
            intents.forget_intent(self._data_folder, intent.topic_id)
            return []
        report = self._erase(intent, None)
        if report.left:
            logger.warning(
                "erasure of keys from %s is not finished: %s", report.topic, "; ".join(report.left)
            )
        else:
            logger.info("finished an erasure of %d keys from %s", report.keys, report.topic)
        return [f"{report.topic}: {each}" for each in report.left]

    def _erase(self, intent: Intent, progress: Callable[[int, int], None] | None) -> EraseReport:
        from lastword.maintenance import erase

        topic = self._topics.get(intent.topic)
        self._sweep_staged(self._clock.now_ms())
        eraser = erase.Eraser(
            intent,
            self._topics.load(intent.topic),
            topic.removable_wals,
            data_folder=self._data_folder,
            leases=self._leases,
            clock=self._clock,
        )
        return eraser.run(topic.seal, progress)

    def _sweep_staged(self, now_ms: int) -> None:
        busy = {
            each.topic_id for each in leases.live_leases(self._data_folder, now_ms) if each.job == STAGE_JOB
        }
        grace_ms = max(self._config.collect_grace_ms, STAGED_GRACE_MS)
        with warned("staged records could not be swept; this will be retried"):
            staged.sweep(self._data_folder, before_ms=now_ms - grace_ms, busy=busy)


def _unsealed_bytes(wals: Iterable[deleter.LocalWal]) -> dict[int, int]:
    return {
        wal.partition: sum(
            file.size_bytes or 0
            for file in wal.files
            if file.end_offset is None or file.end_offset > wal.sealed_end
        )
        for wal in wals
    }
