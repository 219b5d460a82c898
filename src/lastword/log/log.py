"""The embedded log: open a data folder, and create, change, read and delete its topics.

lastword.folder.paths lists the contents of a data folder. Only the writer creates and deletes topics. Maintenance asks
the writer to roll and to finish deletions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar
from uuid import UUID

from lastword.clock import Clock, SystemClock
from lastword.config import (
    BrokerConfig,
    EffectiveSetting,
    check_not_internal,
    check_topic_config,
    check_topic_name,
    is_internal,
)
from lastword.errors import UnknownTopicError
from lastword.folder.leases import HeldLease, LeaseKeeper
from lastword.folder.paths import CONFIG_FILE
from lastword.log.announcements import Announcements
from lastword.log.context import LogContext
from lastword.log.jobs import MaintainedLog
from lastword.log.late_compaction import LateCompaction
from lastword.log.staging import STAGE_JOB
from lastword.log.topic import Topic
from lastword.log.topics import Topics
from lastword.log.writer_role import WriterRole
from lastword.maintenance import relocating
from lastword.maintenance.lanes import Lane
from lastword.maintenance.ownership import Ownership
from lastword.maintenance.repairing import RepairPlan
from lastword.maintenance.takeover import TakenOver
from lastword.segments.fileio import warehouse_uri
from lastword.segments.listing import TopicListing, Visited
from lastword.segments.model import TablePlace, TopicInfo
from lastword.segments.storage import Storage, check_folder, load_config

if TYPE_CHECKING:
    from lastword.log.worker import Worker
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


class Log(MaintainedLog):
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
        writes = not (read_only or maintain_only)
        check_folder(self.path, create=create and writes)
        storage = Storage.of(self.path, self.config)
        relocating.check(storage, writes=writes)
        self._warehouse = warehouse_uri(storage.warehouse)
        self.altering = threading.RLock()
        """Held while settings are changed, and around a change that depends on their current values."""
        self.announcements = Announcements(self.path, is_writer=writes)
        """Announces commits to the listeners that serve this log's records."""
        writer = WriterRole(self.path, clock, self.announcements, is_held=writes)
        try:
            if writes:
                self._ownership = Ownership.of_writer(storage, clock)
            elif maintain_only and not read_only:
                self._ownership = Ownership.of_maintainer(storage, clock)
            else:
                self._ownership = Ownership.of_reader(storage, clock)
            leases = LeaseKeeper(self.path, clock, self.config.lease_ttl_ms)
            context = LogContext(data_folder=self.path, config=self.config, clock=clock, leases=leases)
            self._catalog: SegmentCatalog = storage.open_catalog(
                clock, self.announcements.announce, create=writes, guard=self._ownership
            )
            compaction = LateCompaction(context, self.topic, lambda name: self._topics.load(name))
            topics = Topics(
                self._catalog,
                self._ownership,
                context,
                writes=writes,
                make=partial(
                    Topic,
                    context=context,
                    maintenance=self.maintenance,
                    ask_to_roll=writer.roll,
                    kept_elsewhere=compaction.kept_elsewhere,
                    run_rounds=compaction.run_rounds,
                ),
                forget=compaction.forget,
            )
            settings_file = Path(config) if isinstance(config, str | Path) else self.path / CONFIG_FILE
            super().__init__(
                topics, compaction, writer, context, settings_file=settings_file, maintains=not read_only
            )
            if writes:
                compaction.check_factory()
                topics.begin()
            writer.begin(topics, self.config.wal_sync, self._ownership, self._catalog)
        except BaseException:
            writer.stop()
            writer.release()
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
        """Return the names of all topics, including unreadable ones; internal topics only if requested."""
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
        """Return all readable topics, without opening their WALs; internal topics only if requested."""
        return list(self.listing(include_internal=include_internal).infos)

    def listing(self, *, include_internal: bool = False) -> TopicListing:
        """Return all topics, including unreadable ones, without opening their WALs."""
        return self._topics.listing(include_internal=include_internal)

    def visit(self, act: Callable[[str], T], names: Iterable[str] | None = None) -> Visited[T]:
        """Call `act` with the name of each topic of this folder, or with each of `names`.

        A topic that is deleted in the meantime is skipped, even if that makes `act` fail. A failure of one topic is noted
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
        """Return the problem with the table of an unreadable topic, and the way to repair it. Change nothing."""
        self._check_open()
        check_topic_name(name)
        return self._topics.plan_repair(name)

    def repair_topic(self, name: str) -> RepairPlan:
        """Restore a topic whose table can't be read to the newest older state of the table that can be used.

        Records that the WAL still has are sealed again. Raise InvalidError if acknowledged records would be lost.
        """
        self._check_writer()
        check_topic_name(name)
        with self.maintenance(*Lane, topic=name):
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

    def worker(self) -> Worker:
        """Return the background worker of this log, a context manager: it runs in a thread while it is entered."""
        from lastword.log.worker import Worker

        self._check_open()
        return Worker(self, self._clock)

    def close(self) -> None:
        """Close every topic's WAL cleanly and release the folder."""
        if self._topics.is_closed:
            return
        self._topics.is_closed = True
        self._writer.stop()
        errors = self._topics.close()
        try:
            self._compaction.close()
            self._leases.close()
            self._catalog.close()
        finally:
            self._writer.release()
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ internal

    def _check_open(self) -> None:
        self._topics.check_open()

    def _check_writer(self) -> None:
        self._check_open()
        self._writer.check()
