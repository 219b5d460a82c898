"""The embedded log: open a data folder, and create, change, read and delete its topics.

lastword.folder.paths says what is in a data folder. Only the writer creates and deletes topics. Maintenance asks it to
finish deletions, as it asks it to roll.
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
    from lastword.compaction.job import CompactionReport
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
        self.altering = threading.RLock()
        """Held while settings are changed, and by whoever changes them by what they are."""
        self._lanes = Lanes(lambda: RoleLock.acquire(self.path, Role.MAINTENANCE, clock))
        self._channel = ChannelServer(self._answer) if self._writes else None
        self._writer_role: RoleLock | None = None
        self._flusher: Flusher | None = None
        self._confirmer: Confirmer | None = None
        self._compaction: Compaction | None = None
        self._compaction_lock = threading.Lock()
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
        return self._topics.create(name, partitions, own)

    def internal_topic(self, name: str) -> Topic:
        """A topic of Lastword's own, which is created if it is not there. It has one partition."""
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
        """An existing topic; UnknownTopicError if there is none of that name."""
        return self._topics.get(name)

    def opened_topics(self) -> Mapping[str, Topic]:
        """The topics that have been opened, by name, without waiting for anybody who changes them."""
        return self._topics.opened

    def topics(self, *, include_internal: bool = False) -> list[str]:
        """The names of all topics, also of those that can't be read; those of Lastword's own only if asked for."""
        return self.listing(include_internal=include_internal).names

    def own_topics(self) -> list[str]:
        """The names of all topics that this folder may change, also of those that can't be read or are Lastword's own."""
        return self._topics.own_names()

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
        return self._topics.listing(include_internal=include_internal)

    def visit(self, act: Callable[[str], T], names: Iterable[str] | None = None) -> Visited[T]:
        """Do something to each topic of this folder, or to some, by its name.

        One that is deleted meanwhile is skipped, also where that makes the act fail. What fails for one is noted, and
        the others go on.
        """
        return self._topics.visit(act, names)

    def lease_for_staging(self, topic_id: UUID) -> HeldLease:
        """Keep what is being staged for a topic from being swept. Release it, or use it in a `with` statement."""
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
        """Change settings of a topic, take them back, or add partitions. Everything is applied, or nothing."""
        with self.altering:
            self._check_writer()
            check_not_internal(name, "altered")
            return self._topics.alter(name, set_config=set_config, unset=unset, partitions=partitions)

    def take_over(self, name: str) -> TakenOver | None:
        """Make this folder the owner of a topic that belongs to another one; None if it is already.

        What the other one has acknowledged and not sealed stays in its folder. See lastword.maintenance.takeover.
        """
        self._check_writer()
        return self._topics.take_over(name, self._warehouse)

    def delete_topic(self, name: str, *, topic_id: UUID | None = None) -> None:
        """Delete a topic with everything that belongs to it; with `topic_id` only if it is still that one."""
        self._check_writer()
        check_topic_name(name)
        check_not_internal(name, "deleted")
        self._topics.delete(name, topic_id)

    def plan_repair(self, name: str) -> RepairPlan:
        """What is wrong with the table of a topic that can't be read, and what can be done. Nothing is changed."""
        self._check_open()
        check_topic_name(name)
        return self._topics.plan_repair(name)

    def repair_topic(self, name: str) -> RepairPlan:
        """Have a topic whose table can't be read go back to the newest older state of it that can be used.

        What the WAL still has is sealed again. InvalidError if records that were acknowledged would be lost.
        """
        self._check_writer()
        check_topic_name(name)
        with self.maintenance(*Lane):
            return self._topics.repair(name)

    def undecided(self) -> set[str]:
        """Topics that were closed because they may have been deleted, or not: the catalog did not tell.

        They take no appends until they are opened again.
        """
        return self._topics.undecided()

    def explain_config(self, topic: str | None = None) -> list[EffectiveSetting]:
        """Each effective setting and where it comes from: the broker's, or with a topic that topic's."""
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
        """One round for all topics, or some: retention, WAL retention, expiry of snapshots, collection of files.

        It works on what is sealed and touches nothing else. What fails for one topic is reported, and the
        others go on. A dry run changes nothing, and needs no role: it can be asked of a log that is read only.
        `turns` says which topic is first; `stop` is asked between two topics.
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
        """Export how much there is of every topic, how dirty it is and how far behind, as metrics."""
        self._check_open()
        self._jobs.measure()

    def verify(self, topic: str, *, before: int | None = None, after: int | None = None) -> VerifyReport:
        """Prove on Spark, from two snapshots, that compaction lost nothing; by default from those around the last.

        Spark is used whatever the compaction service is.
        """
        self._check_open()
        return self._jobs.verify(topic, before, after)

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
        wanted = tuple(dict.fromkeys(keys))
        erase.check_keys(wanted)
        return self._jobs.erase(topic, wanted, progress)

    def finish_erasures(self) -> list[str]:
        """Go on with erasures that were killed or could not be completed; what is still left of them, and why."""
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
        """Make a backup of the whole log in a folder or at an address of an object store, while it is in use.

        Files that the place has from earlier backups are not copied again. With `keep` only that many of the newest
        backups stay there. `properties` say how to reach the object store, beside those of the catalog. `progress` gets
        the bytes done and those there are; `stop` is asked between files.
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
        """The background loop for this log, as a context manager: it runs in a thread while it is entered."""
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
        """What `compact` would do now, the most urgent first. Nothing is changed."""
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
                # Loads compiled code, which logs that are only read or written do without.
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
        """Hold the maintenance role, which is one process's at a time, and in this process some lanes. See lanes.py."""
        self._check_open()
        if not self._maintains:
            raise InvalidError("The log was opened for reading only; open it without read_only to change it.")
        with self._lanes.hold(*lanes):
            yield

    def close(self) -> None:
        """Close every topic's WAL in order and give the folder back."""
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
            self._topics.finish_deletions()
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
            topic = self._topics.open(name, writes=True)
            try:
                return topic.roll(due_only=due_only)
            finally:
                topic.close()

    def _have_deletions_finished(self) -> None:
        """Finish deletions as the writer, or ask it to; where there is none, be the writer for a moment."""
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
