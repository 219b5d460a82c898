"""The jobs of a log over its topics: retention, compaction, erasure, verification, backup, measuring."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lastword.compaction.plan import PartitionPlan, urgency
from lastword.compaction.reports import CompactionFailure, CompactionReport
from lastword.compaction.request import CompactionRequest, Scope
from lastword.compaction.strategy import strategy_of
from lastword.config import check_not_internal
from lastword.errors import InvalidError, LastwordError, UnknownTopicError
from lastword.folder import identity, intents, leases
from lastword.folder.locks import Role, RoleLock
from lastword.log import staging
from lastword.log.context import LogContext
from lastword.log.erasures import Erasures
from lastword.log.late_compaction import LateCompaction
from lastword.log.measuring import Measures, measure_topic
from lastword.log.topics import Topics, warned
from lastword.log.writer_role import WriterRole
from lastword.maintenance import retention
from lastword.maintenance.lanes import Lane, Lanes
from lastword.maintenance.retention import RetentionPlan
from lastword.segments.fileio import io_properties
from lastword.segments.model import Collected, retry_if_moved
from lastword.wal import deleter

if TYPE_CHECKING:
    from lastword.compaction.compacting import Compaction
    from lastword.log.worker import RetentionStep
    from lastword.maintenance.backup.make import BackupReport
    from lastword.maintenance.erase import EraseReport
    from lastword.maintenance.verify import VerifyReport
    from lastword.maintenance.worker_state import TopicOrder, TopicOrPartition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport:
    """The result of one round of retention over all topics, or with a dry run the result that it would have."""

    removed: tuple[RetentionPlan, ...] = ()
    wal: deleter.Deleted = field(default_factory=deleter.Deleted)
    expired_snapshots: Mapping[str, int] = field(default_factory=dict)
    collected: Mapping[str, Collected] = field(default_factory=dict)
    problems: tuple[tuple[str, str], ...] = ()
    """Topics that failed, and why. The others were not affected."""


class MaintainedLog:
    """A log that runs jobs. Each job holds the lanes that it needs, commits piece by piece, and can be repeated."""

    def __init__(
        self,
        topics: Topics,
        compaction: LateCompaction,
        writer: WriterRole,
        context: LogContext,
        *,
        settings_file: Path,
        maintains: bool,
    ) -> None:
        self._topics = topics
        self._compaction = compaction
        self._writer = writer
        self._data_folder = context.data_folder
        self._settings_file = settings_file
        self._config = context.config
        self._clock = context.clock
        self._leases = context.leases
        self._maintains = maintains
        self._lanes = Lanes(lambda: RoleLock.acquire(self._data_folder, Role.MAINTENANCE, self._clock))
        self._erasures = Erasures(topics, self.maintenance, context)
        self._measures = Measures()

    @property
    def compaction(self) -> Compaction:
        """The compaction of this log's topics."""
        return self._compaction.get()

    @contextmanager
    def maintenance(self, *lanes: Lane, topic: str = "") -> Iterator[None]:
        """Hold the maintenance role, which one process has at a time, and some lanes in this process. See lanes.py."""
        self._topics.check_open()
        if not self._maintains:
            raise InvalidError("The log was opened for reading only; open it without read_only to change it.")
        with self._lanes.hold(*lanes, topic=topic):
            yield

    def run_retention(
        self,
        *,
        dry_run: bool = False,
        topics: Iterable[str] | None = None,
        steps: Iterable[RetentionStep] = ("retention", "delete", "expire", "collect"),
        turns: TopicOrder | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> MaintenanceReport:
        """Run one round for all topics, or some: retention, WAL retention, snapshot expiry, file collection.

        It works on sealed data and touches nothing else. A failure of one topic is reported and does not stop
        the others. A dry run changes nothing and needs no role, so it works on a read-only log.
        `turns` decides the order of the topics. `stop` is checked between two topics.
        """
        self._topics.check_open()
        with nullcontext() if dry_run else self.maintenance(Lane.TIDY):
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
                    staging.sweep(self._data_folder, self._config, now_ms)
                    with warned("topic deletions are not finished and will be retried"):
                        self._writer.finish_deletions()
            return MaintenanceReport(
                removed=tuple(removed),
                wal=wal,
                expired_snapshots=expired,
                collected=collected,
                problems=tuple(problems),
            )

    def plan_compaction(
        self,
        topics: Iterable[str] | None = None,
        *,
        partitions: Sequence[int] | None = None,
        asked_for: bool = False,
        force: bool = False,
    ) -> list[PartitionPlan]:
        """Return the plans that `compact` would carry out now, the most urgent first. Nothing is changed."""
        self._topics.check_open()
        names = None if topics is None else [self._topics.get(name).name for name in topics]

        scope = Scope(
            partitions=None if partitions is None else tuple(partitions), asked_for=asked_for, force=force
        )

        def plan(name: str) -> list[PartitionPlan]:
            return self.compaction.plan(name, scope)

        if names is not None:
            plans = [plan(name) for name in names]
        else:
            visited = self._topics.visit(plan)
            plans = list(visited.found.values())
            for name, error in visited.problems.items():
                logger.error("compaction of %s can't be planned: %s", name, error)
        return sorted((each for own in plans for each in own), key=urgency)

    def compact(
        self,
        topics: Iterable[str] | None = None,
        *,
        partitions: Sequence[int] | None = None,
        seal: bool = False,
        asked_for: bool = False,
        force: bool = False,
        exclude: Collection[TopicOrPartition] = (),
        last: Sequence[TopicOrPartition] = (),
        begin: Callable[[Sequence[TopicOrPartition]], None] | None = None,
        progress: Callable[[int, int, int, int], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> CompactionReport:
        """Compact everything that is due in all topics, or in some, as one job.

        With `asked_for` every dirty partition is compacted, even below the dirty ratio. With `force` everything that
        may be compacted is. Partitions in `exclude` are left out, or whole topics where the partition is None. `seal`
        first rolls and seals the WAL. The most urgent partition goes first, those in `last` after all others.
        `begin` is called with the partitions that are compacted next, `progress` with records done, total records,
        bytes done, total bytes. `stop` is checked between commits. Failures are in the report's `failures`.
        """
        self._topics.check_open()
        names = (
            self._topics.own_names() if topics is None else [self._topics.get(name).name for name in topics]
        )
        if any(self._waits_for_erasure(name) for name in names):
            self._erasures.finish()
        with self.maintenance(Lane.CLEAN):
            request = CompactionRequest(
                partitions=None if partitions is None else tuple(partitions),
                asked_for=asked_for,
                force=force,
                exclude=frozenset(exclude),
                last=tuple(last),
                begin=begin,
                progress=progress,
                stop=stop,
            )
            return self._compact(names, request, seal=seal)

    def _compact(self, names: Sequence[str], request: CompactionRequest, *, seal: bool) -> CompactionReport:
        unsealed: Mapping[str, LastwordError] = {}
        not_sealed: list[CompactionFailure] = []
        if seal:
            visited = self._topics.visit(lambda name: self._topics.get(name).seal(), names)
            unsealed = visited.problems
            not_sealed = [
                CompactionFailure(topic=name, partition=partition, message=why)
                for name, sealed in visited.found.items()
                for partition, why in sealed.problems
            ]
            names = [name for name in names if name not in unsealed]
        waiting = [name for name in names if self._waits_for_erasure(name)]
        names = [name for name in names if name not in waiting]
        ids = self._topics.visit(lambda name: self._topics.get(name).id.hex, names).found
        report = self.compaction.run(names, request)
        failed = [
            *((name, str(error)) for name, error in unsealed.items()),
            *((name, "an erasure of keys could not be finished; the worker resumes it") for name in waiting),
        ]
        failing = {topic for topic, _ in report.failed_topics} | {each.topic for each in report.problems}
        # A topic that was deleted meanwhile, and perhaps recreated, has nothing left that could fail.
        gone = {name for name in failing & set(ids) if not self._topics.has(name, ids[name])}
        return replace(
            report,
            partitions=tuple(each for each in report.partitions if each.topic not in gone),
            failed_topics=(*failed, *(each for each in report.failed_topics if each[0] not in gone)),
            not_sealed=tuple(not_sealed),
        )

    def _waits_for_erasure(self, name: str) -> bool:
        """Return whether compacting a topic could let records that are to be erased beat records that stay."""
        found = self._topics.visit(
            lambda each: (self._topics.get(each).id.hex, self._topics.get(each).settings), [name]
        ).found
        return any(
            settings.compacts
            and strategy_of(settings).order != "newest"
            and intents.is_erasing(self._data_folder, topic_id)
            for topic_id, settings in found.values()
        )

    def measure(self) -> None:
        """Export the size, dirty ratio and lag of every topic as metrics."""
        self._topics.check_open()
        now_ms = self._clock.now_ms()
        visited = self._topics.visit(
            lambda name: retry_if_moved(
                lambda: measure_topic(self._topics.get(name), self._topics.load(name), now_ms),
                f"Topic {name!r}",
            )
        )
        self._measures.take(visited.found.values(), names=[*visited.found, *visited.problems])
        for name, error in visited.problems.items():
            logger.warning("%s can't be measured: %s", name, error)

    def verify(self, topic: str, *, before: int | None = None, after: int | None = None) -> VerifyReport:
        """Prove on Spark, from two snapshots, that compaction lost nothing, nor did sealing where the WAL is there.

        By default they are the snapshots before and after the last compaction. Spark is used whatever the
        compaction service is.
        """
        from lastword.compaction.spark import SparkEngine
        from lastword.maintenance.verify import choose_snapshots, find_rounds, verify

        self._topics.check_open()
        found, table = self._topics.get(topic), self._topics.load(topic)
        first, last = choose_snapshots(table, before, after)
        engine, is_shared = self.compaction.spark_engine()
        assert isinstance(engine, SparkEngine)
        try:
            with ExitStack() as pins:
                for snapshot in (first, last):
                    pins.enter_context(
                        self._leases.hold(
                            topic_id=snapshot.topic.id.hex, job="verify", snapshot_id=snapshot.id
                        )
                    )
                folders = [each.folder for each in found.all_partitions()]
                rounds = find_rounds(first, folders, found.settings)
                return verify(table, first, last, found.settings, engine, rounds)
        finally:
            if not is_shared:
                engine.close()

    def backup(
        self,
        to: str | Path,
        *,
        keep: int | None = None,
        properties: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> BackupReport:
        """Back up the whole log to a folder or an object store address while it is in use.

        Files that are there from earlier backups are not copied again. With `keep` only that many of the newest
        backups are kept. `properties` extend the catalog's properties for reaching the object store. `progress` is
        called with the bytes done and the total. `stop` is checked between files.
        """
        from lastword.maintenance.backup.make import Origin, make
        from lastword.maintenance.backup.store import open_store

        self._topics.check_open()
        known = identity.load(self._data_folder)
        origin = Origin(
            path=self._data_folder,
            folder_id=known.id if known is not None else "",
            settings=self._settings_file.read_text() if self._settings_file.exists() else None,
            names=self._topics.own_names,
            load=self._topics.load,
            leases=self._leases,
            clock=self._clock,
        )
        store = open_store(to, {**io_properties(self._config.catalog), **(properties or {})})
        return make(origin, store, keep=keep, progress=progress, stop=stop)

    def erase(
        self, topic: str, keys: Iterable[bytes], *, progress: Callable[[int, int], None] | None = None
    ) -> EraseReport:
        """Remove every record of these keys permanently, from all files and snapshots of a topic.

        `progress` is called with the segments done and the total. The next erasure, the worker,
        or `finish_erasures` resumes an interrupted one.
        """
        from lastword.maintenance import erase

        self._topics.check_open()
        check_not_internal(topic, "erased from")
        wanted_keys = tuple(dict.fromkeys(keys))
        erase.check_keys(wanted_keys)
        return self._erasures.begin(topic, wanted_keys, progress)

    def finish_erasures(self) -> list[str]:
        """Resume erasures that were interrupted or incomplete. Return the unfinished ones, with the reasons."""
        return self._erasures.finish()


def _unsealed_bytes(wals: Iterable[deleter.LocalWal]) -> dict[int, int]:
    return {
        wal.partition: sum(
            file.size_bytes or 0
            for file in wal.files
            if file.end_offset is None or file.end_offset > wal.sealed_end
        )
        for wal in wals
    }
