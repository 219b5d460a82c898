"""The topics of an open log, open and in the catalog, and how they are created, altered and deleted.

The log has already checked that the caller may do this.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from lastword.clock import new_uuid
from lastword.config import check_new_topic_name, check_topic_config
from lastword.errors import (
    CorruptError,
    InvalidConfigError,
    InvalidError,
    InvalidTopicError,
    LastwordError,
    StorageError,
    UnknownTopicError,
)
from lastword.folder.paths import wal_folder
from lastword.log.context import LogContext
from lastword.log.directory import Directory
from lastword.log.lifecycle import Deletion, Lifecycle, UndecidedError
from lastword.log.topic import Topic
from lastword.maintenance import repairing, takeover
from lastword.maintenance.ownership import Ownership, foreign_error, now_s
from lastword.maintenance.repairing import RepairPlan
from lastword.maintenance.takeover import TakenOver
from lastword.segments.model import TopicInfo, retry_on_conflict
from lastword.wal.writer import PartitionWriter

if TYPE_CHECKING:
    from lastword.segments.catalog import SegmentCatalog

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_PARTITIONS = 10_000


class Topics(Directory):
    """The topics of a log. Safe from several threads."""

    def __init__(
        self,
        catalog: SegmentCatalog,
        ownership: Ownership,
        context: LogContext,
        *,
        writes: bool,
        make: Callable[..., Topic],
        forget: Callable[[str], None],
    ) -> None:
        super().__init__(catalog, ownership, context.data_folder)
        self._lifecycle = Lifecycle(context.data_folder, catalog, context.clock)
        self._config = context.config
        self._writes = writes
        self._make = make
        self._forget = forget
        """Called with each topic that was deleted or now belongs to another folder."""
        self._opened: dict[str, Topic] = {}
        self.lock = threading.RLock()
        """Held while a topic is opened, created, or marked as deleted. Appends and rolls don't need it."""
        self._cleaning_lock = threading.Lock()
        """Held while the remains of deleted topics are removed, which may take long."""
        self._undecided: set[str] = set()

    # -------------------------------------------------------------------------------------------- one

    def get(self, name: str) -> Topic:
        """Return an existing topic. Raise UnknownTopicError if there is none of that name."""
        self.check_open()
        opened = self._opened.get(name)
        if opened is not None and self._writes and opened.foreign is None:
            # Without the lock: appends and rolls continue while another topic is created or deleted.
            return opened
        with self.lock:
            topic = self._opened.get(name)
            if topic is not None and not (self._writes and topic.foreign is None):
                topic = self._looked_at_again(topic)
            if topic is None:
                if self._writes:
                    self._decide_deletions(name)
                topic = self.open(name)
                self._opened[name] = topic
                self._undecided.discard(name)
            return topic

    def create(self, name: str, partitions: int, own: dict[str, str]) -> Topic:
        """Create a topic, and open it."""
        _check_partition_count(name, partitions)
        with self.lock:
            self._decide_deletions()
            check_new_topic_name(name, self._catalog.list())
            self._config.resolve(name, own)
            self._lifecycle.create(TopicInfo(name=name, id=new_uuid(), partitions=partitions, config=own))
            return self.get(name)

    def open(self, name: str, *, writes: bool | None = None) -> Topic:
        """Open a topic that nothing else in this process uses yet."""
        table = self.load(name)
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
                repairing.restore_partitions(table, self._data_folder)
            except StorageError as error:
                # Most likely a full disk: the topic can still be read.
                logger.warning("%s takes no appends: its table can't be written: %s", name, error)
            info = table.snapshot().topic
        return self._make(
            info,
            table,
            writes=wanted and not is_foreign,
            foreign=foreign_error(info) if is_foreign else None,
            may_append=self._ownership.hold(info, looked_s, claim=claim)
            if wanted and not is_foreign
            else None,
        )

    def alter(
        self,
        name: str,
        *,
        set_config: Mapping[str, object] | None,
        unset: Iterable[str],
        partitions: int | None,
    ) -> Topic:
        """Set or unset settings of a topic, or add partitions. Either everything is applied or nothing."""
        topic = self.get(name)
        changed = check_topic_config(set_config or {}, where=f"topic {name!r}")
        removed = set(unset)
        unknown = sorted(removed - set(topic.config) - set(changed))
        if unknown:
            raise InvalidConfigError(
                f"topic {name!r} can't unset {unknown[0]!r}, which is not set for it; "
                f"its own settings: {', '.join(sorted(topic.config)) or 'none'}"
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
            self._config.resolve(name, own)
            return table.alter(base, config=own, partitions=partitions).topic

        before = topic.partitions
        topic.changed(retry_on_conflict(attempt))
        if topic.partitions > before and topic.settings.compacts:
            logger.warning("%s", warning_of_more_partitions(name, topic.partitions))
        return topic

    def take_over(self, name: str, warehouse: str) -> TakenOver | None:
        """Make this folder the owner of a topic of another folder. Return None if it is the owner already."""
        with self.lock:
            table = self.load(name)
            done = takeover.take_over(table, self._ownership, self._data_folder, warehouse=warehouse)
            if done is not None:
                self.let_go(name)
            return done

    def plan_repair(self, name: str) -> RepairPlan:
        """Return the problem with the table of an unreadable topic, and the way to repair it. Change nothing."""
        try:
            table = self._catalog.load(name)
            table.plan(table.snapshot())
        except CorruptError as error:
            folder = wal_folder(self._data_folder, name, self._catalog.place(name).topic_id)
            states = repairing.with_objections(self._catalog.older_states(name), self._ownership.objection)
            return repairing.propose(name, str(error), states, folder)
        raise InvalidError(f"The table of {name!r} can be read: there is nothing to repair.")

    def repair(self, name: str) -> RepairPlan:
        """Restore a topic whose table can't be read to the newest older state of the table that can be used."""
        with self.lock:
            plan = self.plan_repair(name)
            state = plan.usable()
            self.let_go(name)
            self._catalog.go_back(name, state)
            logger.warning("%s has gone back to the state in %s", name, state.metadata_location)
            self.get(name)
            return plan

    def _looked_at_again(self, topic: Topic) -> Topic | None:
        """Return the topic as another process may have changed it, or None if it was deleted, recreated or has a new owner."""
        try:
            # Through its own table, which reads the metadata only if there is a new metadata file.
            info = topic.table.snapshot().topic
        except UnknownTopicError:
            self.let_go(topic.name)
            return None
        if info.deleted or self._ownership.is_foreign(info) != (topic.foreign is not None):
            self.let_go(topic.name)
            return None
        topic.changed(info)
        return topic

    # -------------------------------------------------------------------------------------------- all

    @property
    def opened(self) -> Mapping[str, Topic]:
        """The topics that have been opened, by name, without waiting for a change that is under way."""
        return self._opened

    def writers(self) -> list[PartitionWriter]:
        """Return the writers of all partitions, without waiting for a topic that is being created or deleted."""
        return [
            partition.writer for topic in list(self._opened.values()) for partition in topic.open_partitions()
        ]

    # ----------------------------------------------------------------------------------------- ending

    def begin(self) -> None:
        """Finish creations and deletions that an earlier writer of the log was killed in."""
        self._lifecycle.finish_creations()
        self._lifecycle.forget_unfinished_deletions()
        self.finish_deletions()

    def has_deletions(self) -> bool:
        """Return whether there are deletions to finish."""
        return self._lifecycle.has_deletions()

    def delete(self, name: str, topic_id: UUID | None) -> None:
        """Delete a topic with everything that belongs to it; with `topic_id` only if it still has that id."""
        with self.lock:
            self._decide_deletions(name)
            self.check_own_if_unreadable(name)
            try:
                deletion = self._lifecycle.delete(name, topic_id)
            except UndecidedError:
                self._undecided.add(name)
                self.let_go(name)
                raise
            self.let_go(name)
        # The topic is gone. Files that can't be removed now are removed later.
        with warned("the deletion of a topic is not finished and will be retried"):
            self._finish_deletion(deletion)

    def undecided(self) -> set[str]:
        """Return the topics that were closed because the catalog did not say whether they have been deleted.

        They take no appends until they are reopened.
        """
        return set(self._undecided)

    def lost(self, topic: TopicInfo) -> None:
        """Replace a topic that another folder has taken: callers of `get` find the other folder's from now on."""
        name = topic.name
        with self.lock:
            lost = self._opened.get(name)
            if lost is None or lost.id != topic.id:
                # It was deleted here and perhaps recreated: two writers of one WAL would overwrite each other.
                return
            try:
                found = self.open(name)
            except UnknownTopicError:
                self.let_go(name)
                return
            except LastwordError as error:
                # The open topic stays, and tells every caller why it takes no appends.
                logger.warning("%s, which another folder has taken, can't be opened: %s", name, error)
                return
            # In one step: the broker takes a missing topic for a deleted one.
            self._opened[name] = found
            self._forget(name)
        with warned(f"closing {name}, which another folder has taken"):
            lost.close()

    def let_go(self, name: str) -> None:
        """Close a topic that was or may have been deleted: it takes no more appends."""
        if (opened := self._opened.pop(name, None)) is not None:
            self._ownership.let_go(opened.id)
            with warned(f"closing {name}, which is being deleted"):
                opened.close()
        self._forget(name)

    def _decide_deletions(self, name: str | None = None) -> None:
        """Determine the decided deletions, and free their names. Only an error of `name` is raised."""
        for deletion in self._lifecycle.deletions():
            if deletion.name == name:
                self._drop_if_decided(deletion)
            else:
                with warned("the deletion of a topic is not finished and will be retried"):
                    self._drop_if_decided(deletion)

    def _drop_if_decided(self, deletion: Deletion) -> bool:
        """Drop the topic of a decided deletion. Return whether it was removed.

        A topic whose deletion was withdrawn is a topic like any other.
        """
        with self.lock:
            if not self._lifecycle.is_decided(deletion):
                # It stays undecided, so that it is reopened: this caller may not be the one that reopens it.
                return False
            self._undecided.discard(deletion.name)
            opened = self._opened.get(deletion.name)
            if opened is not None and opened.id == deletion.topic_id:
                self.let_go(deletion.name)
            self._lifecycle.drop(deletion)
            return True

    def finish_deletions(self) -> None:
        """Remove the remains of deleted topics, as far as possible now."""
        for deletion in self._lifecycle.deletions():
            with warned("the deletion of a topic is not finished and will be retried"):
                self._finish_deletion(deletion)

    def _finish_deletion(self, deletion: Deletion) -> None:
        if self._drop_if_decided(deletion):
            with self._cleaning_lock:
                self._lifecycle.clean(deletion)

    def close(self) -> list[LastwordError]:
        """Close every open topic. Return the errors."""
        errors: list[LastwordError] = []
        for topic in list(self._opened.values()):
            try:
                topic.close()
            except LastwordError as error:
                errors.append(error)
        return errors


def warning_of_more_partitions(name: str, partitions: int) -> str:
    """Return the warning for adding partitions to a compacted topic."""
    return (
        f"{name} is compacted and has {partitions} partitions now: keys that move to another partition are "
        f"in two of them until compaction and retention have removed the older records"
    )


def _check_partition_count(name: str, partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidTopicError(
            f"topic {name!r} can't have {partitions} partitions; 1 to {MAX_PARTITIONS} are allowed"
        )


@contextmanager
def warned(what: str) -> Iterator[None]:
    """Run the block. An error of storage or disk is logged, and the work is left for later."""
    try:
        yield
    except (LastwordError, OSError) as error:
        logger.warning("%s: %s", what, error)
