"""The embedded log: open a data folder, and create, change, read and delete its topics.

lastword.folder.paths lists the contents of a data folder. Only the writer creates and deletes topics. Maintenance asks
the writer to roll and to finish deletions.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import UUID

from lastword.clock import Clock, SystemClock
from lastword.compaction import SHIPPED_FACTORIES
from lastword.compaction.plan import PartitionPlan
from lastword.config import (
    BrokerConfig,
    EffectiveSetting,
    check_not_internal,
    check_topic_config,
    check_topic_name,
    is_internal,
)
from lastword.errors import InvalidError, UnknownTopicError
from lastword.folder import identity
from lastword.folder.channel import ChannelServer, ask
from lastword.folder.leases import HeldLease, LeaseKeeper
from lastword.folder.locks import Role, RoleLock, writer_channel
from lastword.folder.paths import CONFIG_FILE
from lastword.log.announcements import Announcements
from lastword.log.jobs import STAGE_JOB, Jobs, MaintenanceReport
from lastword.log.lifecycle import Lifecycle
from lastword.log.topic import Topic
from lastword.log.topics import Topics
from lastword.maintenance import relocating
from lastword.maintenance.lanes import Lane, Lanes
from lastword.maintenance.ownership import Confirmer, Ownership
from lastword.maintenance.repairing import RepairPlan
from lastword.maintenance.takeover import TakenOver
from lastword.segments.fileio import io_properties, warehouse_uri
from lastword.segments.listing import TopicListing, Visited
from lastword.segments.model import TablePlace, TopicInfo
from lastword.segments.storage import Storage, check_folder, load_config
from lastword.wal.flusher import Flusher

if TYPE_CHECKING:
    from lastword.compaction.compacting import Compaction
    from lastword.compaction.reports import CompactionReport
    from lastword.compaction.service import TopicCompactionService
    from lastword.compaction.target import Target
    from lastword.log.worker import RetentionStep, Worker
    from lastword.maintenance.backup.make import BackupReport
    from lastword.maintenance.erase import EraseReport
    from lastword.maintenance.verify import VerifyReport
    from lastword.maintenance.worker_state import TopicOrder, TopicOrPartition
    from lastword.segments.catalog import SegmentCatalog

T = TypeVar("T")


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
    one. A log has one writer at a time: LockedError names it. With `read_only` nothing is locked or changed, and
    the log can be read while another process writes it. With `maintain_only` the log can be sealed, compacted and
    so on while another process writes it: that process is asked to roll. Without `create` the folder must exist.
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
        self.altering = threading.RLock()
        """Held while settings are changed, and around a change that depends on their current values."""
        self._lanes = Lanes(lambda: RoleLock.acquire(self.path, Role.MAINTENANCE, clock))
        self._channel = ChannelServer(self._answer) if self._writes else None
        self._writer_role: RoleLock | None = None
        self._flusher: Flusher | None = None
        self._confirmer: Confirmer | None = None
        self._compaction: Compaction | None = None
        self._compaction_lock = threading.Lock()
        self.announcements = Announcements(self.path, is_writer=self._writes)
        """Announces commits to the listeners that serve this log's records."""
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
            self._topics = Topics(
                self._catalog,
                Lifecycle(self.path, self._catalog, clock),
                self._ownership,
                data_folder=self.path,
                config=self.config,
                writes=self._writes,
                make=partial(
                    Topic,
                    data_folder=self.path,
                    config=self.config,
                    clock=clock,
                    leases=self._leases,
                    maintenance=self.maintenance if self._maintains else None,
                    ask_to_roll=self._ask_to_roll,
                    kept_elsewhere=self._kept_elsewhere,
                ),
                forget=self._forget_compaction,
            )
            self._jobs = Jobs(
                self._topics,
                lambda: self.compaction,
                self.maintenance,
                self._have_deletions_finished,
                data_folder=self.path,
                config=self.config,
                clock=clock,
                leases=self._leases,
            )
            if self._writes:
                _allow_many_files()
                if self.config.compaction_service_factory not in SHIPPED_FACTORIES:
                    self.compaction.check_factory()
                self._topics.begin()
                if self.config.wal_sync.mode == "interval":
                    assert self.config.wal_sync.interval_ms is not None
                    self._flusher = Flusher(self._topics.writers, self.config.wal_sync.interval_ms)
                if storage.is_shared:
                    self._confirmer = Confirmer(self._ownership, self._catalog, self._topics.lost)
            if self._channel is not None:
                # Its answers need everything above. Requests that arrive earlier wait.
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
        """Create a topic. `config` holds the topic's own settings."""
        self._check_writer()
        check_not_internal(name, "created")
        own = check_topic_config(config or {}, where=f"topic {name!r}")
        return self._topics.create(name, partitions, own)

    def internal_topic(self, name: str) -> Topic:
        """Return an internal topic, with one partition. Create it if it does not exist."""
        assert is_internal(name), name
        with self._topics.lock:
            try:
                topic = self.topic(name)
            except UnknownTopicError:
                self._check_writer()
                return self._topics.create(name, 1, {})
            if topic.foreign is not None:
                raise topic.foreign
            return topic

    def topic(self, name: str) -> Topic:
        """Return an existing topic. Raise UnknownTopicError if there is none of that name."""
        return self._topics.get(name)

    def opened_topics(self) -> Mapping[str, Topic]:
        """Return the topics that have been opened, by name, without waiting for a change that is under way."""
        return self._topics.opened

    def topics(self, *, include_internal: bool = False) -> list[str]:
        """Return the names of all topics, including unreadable ones; internal topics only if asked for."""
        return self.listing(include_internal=include_internal).names

    def own_topics(self) -> list[str]:
        """Return the names of all topics that this folder may change, including unreadable and internal ones."""
        return self._topics.own_names()

    def is_foreign(self, topic: TopicInfo) -> bool:
        """Return whether a topic of the catalog belongs to another data folder: only that folder changes it."""
        return self._ownership.is_foreign(topic)

    def catalog_names(self) -> list[str]:
        """Return the names of all topics, including those that can't be read now or are being deleted."""
        self._check_open()
        return self._catalog.list()

    def place(self, name: str) -> TablePlace:
        """Return the id of the topic with a name, and where its sealed files are. The topic may be unreadable."""
        self._check_open()
        return self._catalog.place(name)

    def topic_infos(self, *, include_internal: bool = False) -> list[TopicInfo]:
        """Return all readable topics, without opening their WALs; internal topics only if asked for."""
        return list(self.listing(include_internal=include_internal).infos)

    def listing(self, *, include_internal: bool = False) -> TopicListing:
        """Return all topics, including unreadable ones, without opening their WALs."""
        return self._topics.listing(include_internal=include_internal)

    def visit(self, act: Callable[[str], T], names: Iterable[str] | None = None) -> Visited[T]:
        """Call `act` with the name of each topic of this folder, or with each of `names`.

        A topic that is deleted meanwhile is skipped, even if that makes `act` fail. A failure of one topic is noted
        and does not stop the others.
        """
        return self._topics.visit(act, names)

    def lease_for_staging(self, topic_id: UUID) -> HeldLease:
        """Return a lease that keeps records staged for a topic from being swept.

        Release it, or use it in a `with` statement.
        """
        self._check_open()
        return self._leases.hold(topic_id=topic_id.hex, job=STAGE_JOB)

    def alter_topic(
        self,
        name: str,
        *,
        set_config: Mapping[str, object] | None = None,
        unset: Iterable[str] = (),
        partitions: int | None = None,
    ) -> Topic:
        """Set or unset settings of a topic, or add partitions. Either everything is applied or nothing."""
        with self.altering:
            self._check_writer()
            check_not_internal(name, "altered")
            return self._topics.alter(name, set_config=set_config, unset=unset, partitions=partitions)

    def take_over(self, name: str) -> TakenOver | None:
        """Make this folder the owner of a topic of another folder. Return None if it is the owner already.

        Records that the other folder has acknowledged and not sealed stay there. See lastword.maintenance.takeover.
        """
        self._check_writer()
        return self._topics.take_over(name, self._warehouse)

    def delete_topic(self, name: str, *, topic_id: UUID | None = None) -> None:
        """Delete a topic with everything that belongs to it; with `topic_id` only if it still has that id."""
        self._check_writer()
        check_topic_name(name)
        check_not_internal(name, "deleted")
        self._topics.delete(name, topic_id)

    def plan_repair(self, name: str) -> RepairPlan:
        """Return what is wrong with the table of an unreadable topic and how to repair it. Nothing is changed."""
        self._check_open()
        check_topic_name(name)
        return self._topics.plan_repair(name)

    def repair_topic(self, name: str) -> RepairPlan:
        """Restore a topic whose table can't be read to the newest older state of the table that can be used.

        Records that the WAL still has are sealed again. Raise InvalidError if acknowledged records would be lost.
        """
        self._check_writer()
        check_topic_name(name)
        with self.maintenance(*Lane):
            return self._topics.repair(name)

    def undecided(self) -> set[str]:
        """Return the topics that were closed because the catalog did not say whether they have been deleted.

        They take no appends until they are reopened.
        """
        return self._topics.undecided()

    def explain_config(self, topic: str | None = None) -> list[EffectiveSetting]:
        """Return the effective settings of the broker, or of a topic, each with its origin."""
        self._check_open()
        if topic is None:
            return self.config.explain()
        return self.config.explain(topic, self._topics.load(topic).snapshot().topic.config)

    # --------------------------------------------------------------------------------------- maintenance

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
        self._check_open()
        return self._jobs.retain(dry_run=dry_run, topics=topics, steps=steps, turns=turns, stop=stop)

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
        from lastword.compaction.service import CompactionRequest

        self._check_open()
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
            names = self.own_topics() if topics is None else [self.topic(name).name for name in topics]
            return self._jobs.compact(names, request, seal=seal)

    def measure(self) -> None:
        """Export the size, dirty ratio and lag of every topic as metrics."""
        self._check_open()
        self._jobs.measure()

    def verify(self, topic: str, *, before: int | None = None, after: int | None = None) -> VerifyReport:
        """Prove on Spark, from two snapshots, that compaction lost nothing.

        By default they are the snapshots before and after the last compaction. Spark is used whatever the
        compaction service is.
        """
        self._check_open()
        return self._jobs.verify(topic, before, after)

    def erase(
        self, topic: str, keys: Iterable[bytes], *, progress: Callable[[int, int], None] | None = None
    ) -> EraseReport:
        """Remove every record of these keys from all files and snapshots of a topic, for good.

        `progress` is called with the segments done and the total. The next erasure, the worker,
        or `finish_erasures` resumes an interrupted one.
        """
        from lastword.maintenance import erase

        self._check_open()
        check_not_internal(topic, "erased from")
        wanted = tuple(dict.fromkeys(keys))
        erase.check_keys(wanted)
        return self._jobs.erase(topic, wanted, progress)

    def finish_erasures(self) -> list[str]:
        """Resume erasures that were interrupted or incomplete. Return what is still left of them, and why."""
        return self._jobs.finish_erasures()

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

        self._check_open()
        known = identity.load(self.path)
        origin = Origin(
            path=self.path,
            folder_id=known.id if known is not None else "",
            settings=self._settings_file.read_text() if self._settings_file.exists() else None,
            names=self.own_topics,
            load=self._topics.load,
            leases=self._leases,
            clock=self._clock,
        )
        place = open_store(to, {**io_properties(self.config.catalog), **(properties or {})})
        return make(origin, place, keep=keep, progress=progress, stop=stop)

    def worker(self) -> Worker:
        """Return the background worker of this log, a context manager: it runs in a thread while it is entered."""
        from lastword.log.worker import Worker

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
        """Return the plans that `compact` would carry out now, the most urgent first. Nothing is changed."""
        self._check_open()

        return self._jobs.plan_compaction(
            None if topics is None else [self.topic(name).name for name in topics],
            partitions=partitions,
            asked_for=asked_for,
            force=force,
        )

    @property
    def compaction(self) -> Compaction:
        """The compaction of this log's topics."""
        if self._compaction is not None:
            return self._compaction
        with self._compaction_lock:
            if self._compaction is None:
                # Imported late: it loads compiled code that a log which is only read or written does not need.
                from lastword.compaction.compacting import Compaction

                self._compaction = Compaction(
                    self._compaction_target,
                    self._topics.load,
                    config=self.config,
                    data_folder=self.path,
                    clock=self._clock,
                    leases=self._leases,
                )
            return self._compaction

    @contextmanager
    def maintenance(self, *lanes: Lane) -> Iterator[None]:
        """Hold the maintenance role, which one process has at a time, and some lanes in this process. See lanes.py."""
        self._check_open()
        if not self._maintains:
            raise InvalidError("The log was opened for reading only; open it without read_only to change it.")
        with self._lanes.hold(*lanes):
            yield

    def close(self) -> None:
        """Close every topic's WAL cleanly and release the folder."""
        if self._topics.is_closed:
            return
        self._topics.is_closed = True
        if self._channel is not None:
            self._channel.close()
        if self._flusher is not None:
            self._flusher.close()
        if self._confirmer is not None:
            self._confirmer.close()
        errors = self._topics.close()
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

    def _answer(self, request: dict[str, Any]) -> dict[str, Any] | AbstractContextManager[dict[str, Any]]:
        """Answer a request that another process sends to this writer."""
        if request.get("do") == "commit":
            return self.announcements.held(request)
        if request.get("do") == "roll":
            return {"failed": self.topic(request["topic"]).roll(due_only=request["due_only"])}
        if request.get("do") == "append":
            return {
                "appended": self.topic(request["topic"]).append_staged(request["sink"], request["number"])
            }
        if request.get("do") == "finish-deletions":
            self._topics.finish_deletions()
            return {}
        raise InvalidError(
            f"the writer can't do {request.get('do')!r}; it can roll, append, hear of commits and finish deletions"
        )

    def _ask_to_roll(self, name: str, due_only: bool) -> list[tuple[int, str]]:
        """Ask the writer to roll a topic. Without a writer, take the writer role for a moment."""
        if path := writer_channel(self.path):
            answer = ask(path, {"do": "roll", "topic": name, "due_only": due_only})
            if answer is not None:
                return [(partition, what) for partition, what in answer["failed"]]
        with RoleLock.acquire(self.path, Role.WRITER, self._clock, brief=True):
            topic = self._topics.open(name, writes=True)
            try:
                return topic.roll(due_only=due_only)
            finally:
                topic.close()

    def _have_deletions_finished(self) -> None:
        """Finish deletions as the writer, or ask it to. Without a writer, take the writer role for a moment."""
        if self._writes:
            self._topics.finish_deletions()
            return
        if not self._topics.has_deletions():
            return
        if (path := writer_channel(self.path)) and ask(path, {"do": "finish-deletions"}) is not None:
            return
        with RoleLock.acquire(self.path, Role.WRITER, self._clock, brief=True):
            self._topics.finish_deletions()

    def _compaction_target(self, name: str) -> Target:
        topic = self.topic(name)
        return replace(
            topic.target(self._topics.load(name)), look_again=lambda: self._compaction_target(name)
        )

    def _kept_elsewhere(self, topic: str) -> TopicCompactionService | None:
        if self.config.compaction_service_factory in SHIPPED_FACTORIES:
            return None
        return self.compaction.service(topic)

    def _forget_compaction(self, topic: str) -> None:
        if self._compaction is not None:
            self._compaction.forget(topic)

    def _check_open(self) -> None:
        self._topics.check_open()

    def _check_writer(self) -> None:
        self._check_open()
        if not self._writes:
            raise InvalidError(
                "The log was opened for reading or maintenance only; open it as its writer to change topics."
            )


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
