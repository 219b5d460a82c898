"""The embedded log: open a data folder, and create, change, read and delete its topics.

lastword.folder.paths says what is in a data folder. Only the writer creates and deletes topics. Maintenance asks it to
finish deletions, as it asks it to roll.
"""

from __future__ import annotations

import logging
import resource
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import UUID

from lastword.clock import Clock, SystemClock, new_uuid
from lastword.compaction import SHIPPED_FACTORIES
from lastword.compaction.plan import PartitionPlan, urgency
from lastword.config import (
    BrokerConfig,
    EffectiveSetting,
    check_new_topic_name,
    check_not_internal,
    check_topic_config,
    check_topic_name,
    is_internal,
)
from lastword.errors import (
    ClosedError,
    CorruptError,
    InvalidConfigError,
    InvalidError,
    InvalidTopicError,
    LastwordError,
    NotOwnerError,
    StorageError,
    UnknownTopicError,
)
from lastword.folder import identity, intents, leases
from lastword.folder.channel import ChannelServer, ask
from lastword.folder.leases import HeldLease, LeaseKeeper
from lastword.folder.locks import Role, RoleLock, writer_channel
from lastword.folder.paths import CONFIG_FILE, wal_folder
from lastword.log.announcements import Announcements
from lastword.log.lifecycle import Deletion, Lifecycle, UndecidedError
from lastword.log.measuring import Measures, look
from lastword.log.topic import Topic
from lastword.maintenance import relocating, repairing, retention, takeover
from lastword.maintenance.lanes import Lane, Lanes
from lastword.maintenance.ownership import Confirmer, Ownership, foreign_error, now_s
from lastword.maintenance.repairing import RepairPlan
from lastword.maintenance.retention import RetentionPlan
from lastword.maintenance.takeover import TakenOver
from lastword.segments.fileio import io_properties, warehouse_uri
from lastword.segments.listing import TopicListing, UnreadableTopic, Visited, visit
from lastword.segments.storage import Storage, check_folder, load_config
from lastword.segments.table import (
    Collected,
    SegmentCatalog,
    SegmentTable,
    TablePlace,
    TopicInfo,
    look_again,
    retry_on_conflict,
)
from lastword.wal import deleter, staged
from lastword.wal.flusher import Flusher
from lastword.wal.writer import PartitionWriter

if TYPE_CHECKING:
    from lastword.compaction.compacting import Compaction
    from lastword.compaction.job import CompactionReport
    from lastword.compaction.target import Target
    from lastword.folder.intents import Intent
    from lastword.maintenance.backup.make import BackupReport
    from lastword.maintenance.erase import EraseReport
    from lastword.maintenance.verify import VerifyReport
    from lastword.maintenance.worker import RetentionStep, Worker
    from lastword.maintenance.worker_state import Place, Turns

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_PARTITIONS = 10_000
STAGE_JOB = "stage"
"""The job of leases that tasks hold while they stage records."""
STAGED_GRACE_MS = 86_400_000
"""Records that were staged for an append wait at least this long for it: all tasks of a write end before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport:
    """What one round of retention did to all topics, or with a dry run would do."""

    removed: tuple[RetentionPlan, ...] = ()
    wal: deleter.Deleted = field(default_factory=deleter.Deleted)
    expired_snapshots: Mapping[str, int] = field(default_factory=dict)
    collected: Mapping[str, Collected] = field(default_factory=dict)
    problems: tuple[tuple[str, str], ...] = ()
    """Topics for which something could not be done, and why. The others went on."""


def open(  # noqa: A001
    path: str | Path,
    *,
    config: BrokerConfig | Mapping[str, object] | str | Path | None = None,
    read_only: bool = False,
    maintain_only: bool = False,
    create: bool = True,
    clock: Clock | None = None,
) -> Log:
    """Open the log in a data folder.

    `config` is a settings file, its content as a mapping, or None for `lastword.yaml` in the folder if there is
    one. There is one writer at a time: LockedError names it. With `read_only` nothing is locked or changed, and
    the log can be read while another process writes it. With `maintain_only` the log can be sealed, compacted and
    so on beside its writer, which is asked to roll. Without `create` the folder must be there already.
    """
    return Log(
        Path(path),
        config=config,
        read_only=read_only,
        maintain_only=maintain_only,
        create=create,
        clock=clock or SystemClock(),
    )


class Log:
    """An open log. Close it, or use it in a `with` statement."""

    def __init__(
        self,
        path: Path,
        *,
        config: BrokerConfig | Mapping[str, object] | str | Path | None,
        read_only: bool,
        maintain_only: bool,
        create: bool,
        clock: Clock,
    ) -> None:
        self.path = path.absolute()
        self.config = load_config(self.path, config)
        self._settings_file = Path(config) if isinstance(config, str | Path) else self.path / CONFIG_FILE
        self._clock = clock
        self._writes = not (read_only or maintain_only)
        self._maintains = not read_only
        check_folder(self.path, create=create and self._writes)
        storage = Storage.of(self.path, self.config)
        relocating.check(storage, writes=self._writes)
        self._warehouse = warehouse_uri(storage.warehouse)
        self._topics: dict[str, Topic] = {}
        self._topics_lock = threading.RLock()
        """Held while a topic is opened, created, or marked as deleted. Nothing that appends or rolls needs it."""
        self._cleaning_lock = threading.Lock()
        """Held while what deleted topics have left is removed, which may take long."""
        self._undecided: set[str] = set()
        self.altering = threading.RLock()
        """Held while settings are changed, and by whoever changes them by what they are."""
        self._lanes = Lanes(lambda: RoleLock.acquire(self.path, Role.MAINTENANCE, clock))
        self._closed = False
        self._channel = ChannelServer(self._answer) if self._writes else None
        self._writer_role: RoleLock | None = None
        self._flusher: Flusher | None = None
        self._confirmer: Confirmer | None = None
        self._compaction: Compaction | None = None
        self._measures = Measures()
        self.announcements = Announcements(self.path, is_writer=self._writes)
        """Where whoever serves this log's records hears of commits."""
        try:
            if self._channel is not None:
                self._writer_role = RoleLock.acquire(
                    self.path, Role.WRITER, clock, channel=self._channel.path
                )
                self._ownership = Ownership.of_writer(storage, clock)
            elif self._maintains:
                self._ownership = Ownership.of_maintainer(storage, clock)
            else:
                self._ownership = Ownership.of_reader(storage, clock)
            self._leases = LeaseKeeper(self.path, clock, self.config.lease_ttl_ms)
            self._catalog: SegmentCatalog = storage.open_catalog(
                clock, self.announcements.announce, create=self._writes, guard=self._ownership
            )
            self._lifecycle = Lifecycle(self.path, self._catalog, clock)
            if self._writes:
                _allow_many_files()
                if self.config.compaction_service_factory not in SHIPPED_FACTORIES:
                    self.compaction.check_factory()
                self._lifecycle.finish_creations()
                self._lifecycle.forget_unfinished_deletions()
                self._finish_deletions()
                if self.config.wal_sync.mode == "interval":
                    assert self.config.wal_sync.interval_ms is not None
                    self._flusher = Flusher(self._writers, self.config.wal_sync.interval_ms)
                if storage.is_shared:
                    self._confirmer = Confirmer(self._ownership, self._catalog, self._lost)
            if self._channel is not None:
                # Its answers need everything above; who asks before waits.
                self._channel.start()
        except BaseException:
            if self._channel is not None:
                self._channel.close()
            if self._writer_role is not None:
                self._writer_role.release()
            raise

    @property
    def clock(self) -> Clock:
        return self._clock

    # ------------------------------------------------------------------------------------------- topics

    def create_topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> Topic:
        """Create a topic; `config` are the settings that it has of its own."""
        self._check_writer()
        check_not_internal(name, "created")
        own = check_topic_config(config or {}, where=f"topic {name!r}")
        return self._create_topic(name, partitions, own)

    def internal_topic(self, name: str) -> Topic:
        """A topic of Lastword's own, which is created if it is not there. It has one partition."""
        assert is_internal(name), name
        with self._topics_lock:
            try:
                topic = self.topic(name)
            except UnknownTopicError:
                return self._create_topic(name, 1, {})
            if topic.foreign is not None:
                raise topic.foreign
            return topic

    def _create_topic(self, name: str, partitions: int, own: dict[str, str]) -> Topic:
        self._check_writer()
        _check_partition_count(name, partitions)
        with self._topics_lock:
            self._settle_deletions()
            check_new_topic_name(name, self._catalog.list())
            self.config.resolve(name, own)
            self._lifecycle.create(TopicInfo(name=name, id=new_uuid(), partitions=partitions, config=own))
            return self.topic(name)

    def topic(self, name: str) -> Topic:
        """An existing topic; UnknownTopicError if there is none of that name."""
        self._check_open()
        opened = self._topics.get(name)
        if opened is not None and self._writes and opened.foreign is None:
            # Without the lock: appends and rolls go on while another topic is created or deleted.
            return opened
        with self._topics_lock:
            topic = self._topics.get(name)
            if topic is not None and not (self._writes and topic.foreign is None):
                topic = self._looked_at_again(topic)
            if topic is None:
                if self._writes:
                    self._settle_deletions(name)
                topic = self._open_topic(name)
                self._topics[name] = topic
                self._undecided.discard(name)
            return topic

    def opened_topics(self) -> Mapping[str, Topic]:
        """The topics that have been opened, by name, without waiting for anybody who changes them."""
        return self._topics

    def topics(self, *, include_internal: bool = False) -> list[str]:
        """The names of all topics, also of those that can't be read; those of Lastword's own only if asked for."""
        return self.listing(include_internal=include_internal).names

    def own_topics(self) -> list[str]:
        """The names of all topics that this folder may change, also of those that can't be read or are Lastword's own."""
        listing = self.listing(include_internal=True)
        foreign = {info.name for info in listing.infos if self._ownership.is_foreign(info)}
        foreign |= {
            each.name
            for each in listing.unreadable
            if each.id is not None and not self._ownership.has_noted(each.name, each.id)
        }
        return [name for name in listing.names if name not in foreign]

    def is_foreign(self, topic: TopicInfo) -> bool:
        """Whether a topic of the catalog belongs to another data folder, which alone changes it."""
        return self._ownership.is_foreign(topic)

    def catalog_names(self) -> list[str]:
        """The names of all topics, also of those that can't be read just now or are being deleted."""
        self._check_open()
        return self._catalog.list()

    def place(self, name: str) -> TablePlace:
        """Which topic has a name, and where its sealed files are; also of one that can't be read."""
        self._check_open()
        return self._catalog.place(name)

    def topic_infos(self, *, include_internal: bool = False) -> list[TopicInfo]:
        """All topics that can be read, without opening their WALs; those of Lastword's own only if asked for."""
        return list(self.listing(include_internal=include_internal).infos)

    def listing(self, *, include_internal: bool = False) -> TopicListing:
        """All topics, those that can't be read too, without opening their WALs."""
        self._check_open()
        names = [name for name in self._catalog.list() if include_internal or not is_internal(name)]
        visited = self.visit(lambda name: self._catalog.load(name).snapshot().topic, names)
        return TopicListing(
            infos=tuple(info for info in visited.found.values() if not info.deleted),
            unreadable=tuple(self._unreadable(name, error) for name, error in visited.problems.items()),
        )

    def lease_for_staging(self, topic_id: UUID) -> HeldLease:
        """Keep what is being staged for a topic from being swept. Release it, or use it in a `with` statement."""
        self._check_open()
        return self._leases.hold(topic_id=topic_id.hex, job=STAGE_JOB)

    def visit(self, act: Callable[[str], T], names: Iterable[str] | None = None) -> Visited[T]:
        """Do something to each topic of this folder, or to some, by its name.

        One that is deleted meanwhile is skipped, also where that makes the act fail. What fails for one is noted, and
        the others go on.
        """
        return visit(self.own_topics() if names is None else names, act, self._is_gone)

    def alter_topic(
        self,
        name: str,
        *,
        set_config: Mapping[str, object] | None = None,
        unset: Iterable[str] = (),
        partitions: int | None = None,
    ) -> Topic:
        """Change settings of a topic, take them back, or add partitions. Everything is applied, or nothing."""
        with self.altering:
            return self._alter_topic(name, set_config=set_config, unset=unset, partitions=partitions)

    def _alter_topic(
        self,
        name: str,
        *,
        set_config: Mapping[str, object] | None,
        unset: Iterable[str],
        partitions: int | None,
    ) -> Topic:
        self._check_writer()
        check_not_internal(name, "altered")
        topic = self.topic(name)
        changed = check_topic_config(set_config or {}, where=f"topic {name!r}")
        removed = set(unset)
        unknown = sorted(removed - set(topic.config) - set(changed))
        if unknown:
            raise InvalidConfigError(
                f"topic {name!r} has no setting {unknown[0]!r} of its own to take back; "
                f"it has {', '.join(sorted(topic.config)) or 'none'}"
            )
        if partitions is not None:
            _check_partition_count(name, partitions)
            if partitions < topic.partitions:
                raise InvalidTopicError(
                    f"topic {name!r} has {topic.partitions} partitions; {partitions} are fewer, "
                    f"and partitions can't be taken away"
                )
        table = self._catalog.load(name)

        def attempt() -> TopicInfo:
            base = table.snapshot()
            own = {key: value for key, value in base.topic.config.items() if key not in removed} | changed
            self.config.resolve(name, own)
            return table.alter(base, config=own, partitions=partitions).topic

        before = topic.partitions
        topic.changed(retry_on_conflict(attempt))
        if topic.partitions > before and topic.settings.compacts:
            logger.warning("%s", warning_of_more_partitions(name, topic.partitions))
        return topic

    def take_over(self, name: str) -> TakenOver | None:
        """Make this folder the owner of a topic that belongs to another one; None if it is already.

        What the other one has acknowledged and not sealed stays in its folder. See lastword.maintenance.takeover.
        """
        self._check_writer()
        with self._topics_lock:
            table = self._load(name)
            done = takeover.take_over(table, self._ownership, self.path, warehouse=self._warehouse)
            if done is not None:
                self._let_go(name)
            return done

    def delete_topic(self, name: str, *, topic_id: UUID | None = None) -> None:
        """Delete a topic with everything that belongs to it; with `topic_id` only if it is still that one."""
        self._check_writer()
        check_topic_name(name)
        check_not_internal(name, "deleted")
        with self._topics_lock:
            self._settle_deletions(name)
            self._check_own_if_unreadable(name)
            try:
                deletion = self._lifecycle.delete(name, topic_id)
            except UndecidedError:
                self._undecided.add(name)
                self._let_go(name)
                raise
            self._let_go(name)
        # It is gone. What can't be removed now is removed later.
        with _warned("the deletion of a topic is not done yet and is tried again"):
            self._finish_deletion(deletion)

    def plan_repair(self, name: str) -> RepairPlan:
        """What is wrong with the table of a topic that can't be read, and what can be done. Nothing is changed."""
        self._check_open()
        check_topic_name(name)
        try:
            table = self._catalog.load(name)
            table.plan(table.snapshot())
        except CorruptError as error:
            folder = wal_folder(self.path, name, self._catalog.place(name).topic_id)
            states = repairing.with_objections(self._catalog.older_states(name), self._ownership.objection)
            return repairing.propose(name, str(error), states, folder)
        raise InvalidError(f"The table of {name!r} can be read: there is nothing to repair.")

    def repair_topic(self, name: str) -> RepairPlan:
        """Have a topic whose table can't be read go back to the newest older state of it that can be used.

        What the WAL still has is sealed again. InvalidError if records that were acknowledged would be lost.
        """
        self._check_writer()
        with self.maintenance(*Lane), self._topics_lock:
            plan = self.plan_repair(name)
            state = plan.usable()
            self._let_go(name)
            self._catalog.go_back(name, state)
            logger.warning("%s has gone back to the state in %s", name, state.metadata_location)
            self.topic(name)
            return plan

    def undecided(self) -> set[str]:
        """Topics that were closed because they may have been deleted, or not: the catalog did not tell.

        They take no appends until they are opened again.
        """
        return set(self._undecided)

    def explain_config(self, topic: str | None = None) -> list[EffectiveSetting]:
        """Each effective setting and where it comes from: the broker's, or with a topic that topic's."""
        self._check_open()
        if topic is None:
            return self.config.explain()
        return self.config.explain(topic, self._load(topic).snapshot().topic.config)

    # --------------------------------------------------------------------------------------- maintenance

    def run_retention(
        self,
        *,
        dry_run: bool = False,
        topics: Iterable[str] | None = None,
        steps: Iterable[RetentionStep] = ("retention", "delete", "expire", "collect"),
        turns: Turns | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> MaintenanceReport:
        """One round for all topics, or some: retention, WAL retention, expiry of snapshots, collection of files.

        It works on what is sealed and touches nothing else. What fails for one topic is reported, and the
        others go on. A dry run changes nothing, and needs no role: it can be asked of a log that is read only.
        `turns` says which topic is first; `stop` is asked between two topics.
        """
        self._check_open()
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
                chosen = self.own_topics()
            else:
                chosen = [name for name in self.topics(include_internal=True) if name in wanted]
                if unknown := sorted(wanted - set(chosen)):
                    raise UnknownTopicError(f"there is no topic {unknown[0]!r}")

            def retain(name: str) -> None:
                if stop():
                    return
                if turns is not None:
                    turns.take(name)
                table = self._load(name)
                topic = self.topic(name)
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
                        retention.expire(table, self.path, self.config, now_ms, dry_run=dry_run)
                    )
                if "collect" in wanted_steps:
                    collected[name] = retention.collect(
                        table, self.path, self.config, now_ms, dry_run=dry_run
                    )

            visited = self.visit(retain, chosen if turns is None else turns.in_order(chosen))
            for name, error in visited.problems.items():
                logger.error("retention of %s: %s", name, error)
                problems.append((name, str(error)))
            deletions = deleter.propose(wals, self.config, now_ms) if self.config.deleter_enabled else []
            if dry_run:
                wal = deleter.Deleted(deletions=tuple(deletions))
            else:
                wal = deleter.execute(wals, deletions, now_ms)
                if "collect" in wanted_steps:
                    leases.sweep(self.path, now_ms - self.config.collect_grace_ms)
                    self._sweep_staged(now_ms)
                    with _warned("deletions of topics are finished later"):
                        self._have_deletions_finished()
            return MaintenanceReport(
                removed=tuple(removed),
                wal=wal,
                expired_snapshots=expired,
                collected=collected,
                problems=tuple(problems),
            )

    def compact(
        self,
        topics: Iterable[str] | None = None,
        *,
        partitions: Sequence[int] | None = None,
        seal: bool = False,
        asked_for: bool = False,
        force: bool = False,
        exclude: Collection[Place] = (),
        last: Sequence[Place] = (),
        begin: Callable[[Sequence[Place]], None] | None = None,
        progress: Callable[[int, int, int, int], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> CompactionReport:
        """Compact what is due in all topics, or in some, as one job.

        With `asked_for` whatever is dirty is compacted, also below the dirty ratio; with `force` everything that
        may be; but nothing of the partitions in `exclude`, which has topics whole where the partition is None. `seal`
        first rolls and seals what is in the WAL. The most urgent goes first, but those in `last` after all others.
        `begin` gets what is compacted next; `progress` gets records done, records in all, bytes done, bytes in all;
        `stop` is asked between commits. What could not be compacted is in the report: look at its `failures`.
        """
        from lastword.compaction.service import CompactionRequest

        self._check_open()
        with self.maintenance(Lane.CLEAN):
            names = self._compacted_names(topics)
            unsealed: Mapping[str, LastwordError] = {}
            if seal:
                unsealed = self.visit(lambda name: self.topic(name).seal(), names).problems
                names = [name for name in names if name not in unsealed]
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
            ids = self.visit(lambda name: self.topic(name).id.hex, names).found
            report = self.compaction.run(names, request)
            failed = [(name, str(error)) for name, error in unsealed.items()]
            failing = {topic for topic, _ in report.failed_topics} | {each.topic for each in report.problems}
            # Deleted meanwhile, perhaps created again: nothing is left of it that could fail.
            gone = {name for name in failing & set(ids) if not self._has(name, ids[name])}
            return replace(
                report,
                partitions=tuple(each for each in report.partitions if each.topic not in gone),
                failed_topics=(*failed, *(each for each in report.failed_topics if each[0] not in gone)),
            )

    def measure(self) -> None:
        """Export how much there is of every topic, how dirty it is and how far behind, as metrics."""
        self._check_open()
        now_ms = self._clock.now_ms()
        visited = self.visit(
            lambda name: look_again(
                lambda: look(self.topic(name), self._load(name), now_ms), f"Topic {name!r}"
            )
        )
        self._measures.take(visited.found.values(), names=[*visited.found, *visited.problems])
        for name, error in visited.problems.items():
            logger.warning("%s can't be measured: %s", name, error)

    def verify(self, topic: str, *, before: int | None = None, after: int | None = None) -> VerifyReport:
        """Prove on Spark, from two snapshots, that compaction lost nothing; by default from those around the last.

        Spark is used whatever the compaction service is.
        """
        from lastword.compaction.spark import SparkEngine
        from lastword.maintenance.verify import choose_snapshots, verify

        self._check_open()
        table = self._load(topic)
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
                return verify(table, first, last, self.topic(topic).settings, engine)
        finally:
            if not is_shared:
                engine.close()

    def erase(
        self, topic: str, keys: Iterable[bytes], *, progress: Callable[[int, int], None] | None = None
    ) -> EraseReport:
        """Remove every record of these keys from all files and snapshots of a topic, for good.

        `progress` gets the segments looked at and those there are. The next erasure, the worker,
        or `finish_erasures` resumes one that was killed.
        """
        from lastword.maintenance import erase

        self._check_open()
        check_not_internal(topic, "erased from")
        wanted_keys = tuple(dict.fromkeys(keys))
        erase.check_keys(wanted_keys)
        found = self.topic(topic)
        if found.foreign is not None:
            raise found.foreign
        with self.maintenance(*Lane):
            # From now on: what is appended later is new, and stays.
            ends = tuple(extent.log_end for _, extent in sorted(found.extents().items()))
            wanted = intents.Wanted(keys=wanted_keys, ends=ends)
            asked = intents.Intent(topic=topic, topic_id=found.id.hex, wanted=(wanted,))
            return self._erase(intents.add_intent(self.path, asked), progress)

    def finish_erasures(self) -> list[str]:
        """Go on with erasures that were killed or could not be completed; what is still left of them, and why."""
        for path in intents.unfinished_intents(self.path):
            with self.maintenance(*Lane):
                path.unlink(missing_ok=True)
        left: list[str] = []
        for path in intents.list_intents(self.path):
            with self.maintenance(*Lane):
                try:
                    left += self._finish_erasure(path)
                except LastwordError as error:
                    # It waits until what is wrong has been repaired. Others don't.
                    logger.error("the erasure in %s can't go on: %s", path, error)
                    left.append(str(error))
        return left

    def _finish_erasure(self, path: Path) -> list[str]:
        intent = intents.load_intent(path)
        if intent is None:
            return []
        if not self._has(intent.topic, intent.topic_id):
            intents.forget_intent(self.path, intent.topic_id)
            return []
        report = self._erase(intent, None)
        if report.left:
            logger.warning("erasure of keys from %s: what is left: %s", report.topic, "; ".join(report.left))
        else:
            logger.info("finished an erasure of %d keys from %s", report.keys, report.topic)
        return [f"{report.topic}: {each}" for each in report.left]

    def _erase(self, intent: Intent, progress: Callable[[int, int], None] | None) -> EraseReport:
        from lastword.maintenance import erase

        topic = self.topic(intent.topic)
        self._sweep_staged(self._clock.now_ms())
        eraser = erase.Eraser(
            intent,
            self._load(intent.topic),
            topic.removable_wals,
            data_folder=self.path,
            leases=self._leases,
            clock=self._clock,
        )
        return eraser.run(topic.seal, progress)

    def backup(
        self,
        to: str | Path,
        *,
        keep: int | None = None,
        properties: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> BackupReport:
        """Make a backup of the whole log in a folder or at an address of an object store, while it is in use.

        Files that the place has from earlier backups are not copied again. With `keep` only that many of the newest
        backups stay there. `properties` say how to reach the object store, beside those of the catalog. `progress` gets
        the bytes done and those there are; `stop` is asked between files.
        """
        from lastword.maintenance.backup.make import Origin, make
        from lastword.maintenance.backup.place import open_place

        self._check_open()
        known = identity.load(self.path)
        origin = Origin(
            path=self.path,
            folder_id=known.id if known is not None else "",
            settings=self._settings_file.read_text() if self._settings_file.exists() else None,
            names=self.own_topics,
            load=self._load,
            leases=self._leases,
            clock=self._clock,
        )
        place = open_place(to, {**io_properties(self.config.catalog), **(properties or {})})
        return make(origin, place, keep=keep, progress=progress, stop=stop)

    def worker(self) -> Worker:
        """The background loop for this log, as a context manager: it runs in a thread while it is entered."""
        from lastword.maintenance.worker import Worker

        self._check_open()
        return Worker(self, self._clock)

    def plan_compaction(
        self,
        topics: Iterable[str] | None = None,
        *,
        partitions: Sequence[int] | None = None,
        asked_for: bool = False,
        force: bool = False,
    ) -> list[PartitionPlan]:
        """What `compact` would do now, the most urgent first. Nothing is changed."""
        self._check_open()

        def plan(name: str) -> list[PartitionPlan]:
            return self.compaction.plan(name, partitions=partitions, asked_for=asked_for, force=force)

        if topics is not None:
            plans = [plan(name) for name in self._compacted_names(topics)]
        else:
            visited = self.visit(plan)
            plans = list(visited.found.values())
            for name, error in visited.problems.items():
                logger.error("compaction of %s can't be planned: %s", name, error)
        return sorted((each for own in plans for each in own), key=urgency)

    @property
    def compaction(self) -> Compaction:
        """The compaction of this log's topics."""
        if self._compaction is not None:
            return self._compaction
        with self._topics_lock:
            if self._compaction is None:
                # Loads compiled code, which logs that are only read or written do without.
                from lastword.compaction.compacting import Compaction

                self._compaction = Compaction(
                    self._compaction_target,
                    self._load,
                    config=self.config,
                    data_folder=self.path,
                    clock=self._clock,
                    leases=self._leases,
                )
            return self._compaction

    @contextmanager
    def maintenance(self, *lanes: Lane) -> Iterator[None]:
        """Hold the maintenance role, which is one process's at a time, and in this process some lanes. See lanes.py."""
        self._check_open()
        if not self._maintains:
            raise InvalidError("The log was opened for reading only; open it without read_only to change it.")
        with self._lanes.hold(*lanes):
            yield

    def close(self) -> None:
        """Close every topic's WAL in order and give the folder back."""
        if self._closed:
            return
        self._closed = True
        if self._channel is not None:
            self._channel.close()
        if self._flusher is not None:
            self._flusher.close()
        if self._confirmer is not None:
            self._confirmer.close()
        errors: list[LastwordError] = []
        for topic in list(self._topics.values()):
            try:
                topic.close()
            except LastwordError as error:
                errors.append(error)
        try:
            if self._compaction is not None:
                self._compaction.close()
            self._leases.close()
            self._catalog.close()
        finally:
            if self._writer_role is not None:
                self._writer_role.release()
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ internal

    def _open_topic(self, name: str, *, writes: bool | None = None) -> Topic:
        table = self._load(name)
        wanted = self._writes if writes is None else writes
        looked_s = now_s()
        info = table.snapshot().topic
        is_foreign = self._ownership.is_foreign(info)
        claim = None
        if wanted and not is_foreign:
            try:
                if self._ownership.is_shared:
                    claim = table.claim
                    claim()
                    claim = None
                repairing.restore_partitions(table, self.path)
            except StorageError as error:
                # A full disk, most likely: what there is can be read.
                logger.warning("%s takes no appends: its table can't be written: %s", name, error)
            info = table.snapshot().topic
        return Topic(
            info,
            table,
            data_folder=self.path,
            config=self.config,
            clock=self._clock,
            leases=self._leases,
            writes=wanted and not is_foreign,
            foreign=foreign_error(info) if is_foreign else None,
            may_append=self._ownership.hold(info, looked_s, claim=claim)
            if wanted and not is_foreign
            else None,
            maintenance=self.maintenance if self._maintains else None,
            ask_to_roll=lambda due_only: self._ask_to_roll(name, due_only),
            compaction_service=lambda: self.compaction.service(name),
        )

    def _answer(self, request: dict[str, Any]) -> dict[str, Any] | AbstractContextManager[dict[str, Any]]:
        """What another process asks of this writer."""
        if request.get("do") == "commit":
            return self.announcements.held(request)
        if request.get("do") == "roll":
            return {"failed": self.topic(request["topic"]).roll(due_only=request["due_only"])}
        if request.get("do") == "append":
            return {
                "appended": self.topic(request["topic"]).append_staged(request["sink"], request["number"])
            }
        if request.get("do") == "finish-deletions":
            self._finish_deletions()
            return {}
        raise InvalidError(
            f"the writer can't do {request.get('do')!r}; it can roll, append, hear of commits and finish deletions"
        )

    def _ask_to_roll(self, name: str, due_only: bool) -> list[tuple[int, str]]:
        """Ask the writer to roll a topic; where there is none, be the writer for a moment."""
        if path := writer_channel(self.path):
            answer = ask(path, {"do": "roll", "topic": name, "due_only": due_only})
            if answer is not None:
                return [(partition, what) for partition, what in answer["failed"]]
        with RoleLock.acquire(self.path, Role.WRITER, self._clock, brief=True):
            topic = self._open_topic(name, writes=True)
            try:
                return topic.roll(due_only=due_only)
            finally:
                topic.close()

    def _sweep_staged(self, now_ms: int) -> None:
        busy = {each.topic_id for each in leases.live_leases(self.path, now_ms) if each.job == STAGE_JOB}
        grace_ms = max(self.config.collect_grace_ms, STAGED_GRACE_MS)
        with _warned("what was staged is swept later"):
            staged.sweep(self.path, before_ms=now_ms - grace_ms, busy=busy)

    def _have_deletions_finished(self) -> None:
        """Finish deletions as the writer, or ask it to; where there is none, be the writer for a moment."""
        if self._writes:
            self._finish_deletions()
            return
        if not self._lifecycle.has_deletions():
            return
        if (path := writer_channel(self.path)) and ask(path, {"do": "finish-deletions"}) is not None:
            return
        with RoleLock.acquire(self.path, Role.WRITER, self._clock, brief=True):
            self._finish_deletions()

    def _compacted_names(self, topics: Iterable[str] | None) -> list[str]:
        if topics is None:
            return self.own_topics()
        return [self.topic(name).name for name in topics]

    def _compaction_target(self, name: str) -> Target:
        topic = self.topic(name)
        return replace(topic.target(self._load(name)), look_again=lambda: self._compaction_target(name))

    def _looked_at_again(self, topic: Topic) -> Topic | None:
        """The topic as another process may have changed it; None if it is gone, or another one now."""
        try:
            # By its own table, which reads the metadata only if there is another file of it.
            info = topic.table.snapshot().topic
        except UnknownTopicError:
            self._let_go(topic.name)
            return None
        if info.deleted or self._ownership.is_foreign(info) != (topic.foreign is not None):
            self._let_go(topic.name)
            return None
        topic.changed(info)
        return topic

    def _load(self, name: str) -> SegmentTable:
        table = self._catalog.load(name)
        if table.snapshot().topic.deleted:
            raise UnknownTopicError(f"topic {name!r} has been deleted")
        return table

    def _is_gone(self, name: str) -> bool:
        """Whether there is no topic of that name any more, as far as the catalog can tell."""
        self._check_open()
        try:
            return self._catalog.load(name).snapshot().topic.deleted
        except UnknownTopicError:
            return True
        except LastwordError:
            return False

    def _has(self, name: str, topic_id: str) -> bool:
        """Whether there is a topic of that name with that id, perhaps one that can't be read."""
        try:
            return self._catalog.place(name).topic_id.hex == topic_id and not self._is_gone(name)
        except UnknownTopicError:
            return False

    def _unreadable(self, name: str, error: LastwordError) -> UnreadableTopic:
        try:
            topic_id = self._catalog.place(name).topic_id
        except LastwordError:
            topic_id = None
        return UnreadableTopic(name=name, id=topic_id, problem=str(error))

    def _writers(self) -> list[PartitionWriter]:
        # Without the lock: a sync must not wait for a topic that is being created or deleted.
        return [
            partition.writer
            for topic in list(self._topics.values())
            for partition in topic.all_partitions()
            if partition.is_open
        ]

    def _lost(self, topic: TopicInfo) -> None:
        """Another folder has a topic now: whoever asks for it from now on finds the other's."""
        name = topic.name
        with self._topics_lock:
            lost = self._topics.get(name)
            if lost is None or lost.id != topic.id:
                # It was deleted here, and perhaps created again: two writers of one WAL would overwrite each other.
                return
            try:
                found = self._open_topic(name)
            except UnknownTopicError:
                self._let_go(name)
                return
            except LastwordError as error:
                # What there is stays, and says to everybody why it takes no appends.
                logger.warning("%s, which was lost, can't be looked at: %s", name, error)
                return
            # In one step: to the broker, a topic that is not there has been deleted.
            self._topics[name] = found
            if self._compaction is not None:
                self._compaction.forget(name)
        with _warned(f"closing {name}, which was lost"):
            lost.close()

    def _let_go(self, name: str) -> None:
        """Close a topic that is gone, or may be: it takes no more appends."""
        if (opened := self._topics.pop(name, None)) is not None:
            self._ownership.let_go(opened.id)
            with _warned(f"closing {name}, which is being deleted"):
                opened.close()
        if self._compaction is not None:
            self._compaction.forget(name)

    def _check_own_if_unreadable(self, name: str) -> None:
        """NotOwnerError if a topic can't be read and may be another folder's: nobody else asks that before it goes."""
        if not self._ownership.is_shared:
            return
        try:
            self._catalog.load(name)
        except CorruptError as error:
            if not self._ownership.has_noted(name, self._catalog.place(name).topic_id):
                raise NotOwnerError(
                    f"The topic {name!r} can't be read, and nothing in {self.path} says that it is this folder's. Delete "
                    f"it with the folder that it belongs to. {error}"
                ) from error
            for state in self._catalog.older_states(name):
                if state.snapshot is not None:
                    if self._ownership.is_foreign(state.snapshot.topic):
                        raise foreign_error(state.snapshot.topic) from error
                    return

    def _settle_deletions(self, name: str | None = None) -> None:
        """Find out which deletions are decided, and make their names free. An error of `name` is raised."""
        for deletion in self._lifecycle.deletions():
            if deletion.name == name:
                self._settle(deletion)
            else:
                with _warned("the deletion of a topic is not done yet and is tried again"):
                    self._settle(deletion)

    def _settle(self, deletion: Deletion) -> bool:
        """Whether the topic of a deletion is gone. What was withdrawn is a topic like any other."""
        with self._topics_lock:
            if not self._lifecycle.is_decided(deletion):
                # It stays among those that somebody must open again: who asks here may not be the one that does.
                return False
            self._undecided.discard(deletion.name)
            opened = self._topics.get(deletion.name)
            if opened is not None and opened.id == deletion.topic_id:
                self._let_go(deletion.name)
            self._lifecycle.drop(deletion)
            return True

    def _finish_deletions(self) -> None:
        for deletion in self._lifecycle.deletions():
            with _warned("the deletion of a topic is not done yet and is tried again"):
                self._finish_deletion(deletion)

    def _finish_deletion(self, deletion: Deletion) -> None:
        if self._settle(deletion):
            with self._cleaning_lock:
                self._lifecycle.clean(deletion)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"The log in {self.path} has been closed.")

    def _check_writer(self) -> None:
        self._check_open()
        if not self._writes:
            raise InvalidError(
                "The log was opened for reading or maintenance only; open it as its writer to change topics."
            )


def warning_of_more_partitions(name: str, partitions: int) -> str:
    """What whoever adds partitions to a compacted topic must know."""
    return (
        f"{name} is compacted and has {partitions} partitions now: keys that belong to another one from now on are "
        f"in two of them, until compaction and retention have taken the older records"
    )


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_partition_count(name: str, partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidTopicError(
            f"topic {name!r} can't have {partitions} partitions; 1 to {MAX_PARTITIONS} are allowed"
        )


def _unsealed_bytes(wals: Iterable[deleter.LocalWal]) -> dict[int, int]:
    return {
        wal.partition: sum(
            file.size_bytes or 0
            for file in wal.files
            if file.end_offset is None or file.end_offset > wal.sealed_end
        )
        for wal in wals
    }


@contextmanager
def _warned(what: str) -> Iterator[None]:
    """Run the block; an error of storage or disk is logged, and the work is left for later."""
    try:
        yield
    except (LastwordError, OSError) as error:
        logger.warning("%s: %s", what, error)
