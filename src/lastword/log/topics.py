"""The topics of an open log: those that are open, those in the catalog, and how they are created, altered and deleted.

The log has checked by now that whoever asks may do so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from lastword.clock import new_uuid
from lastword.config import BrokerConfig, check_new_topic_name, check_topic_config, is_internal
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
from lastword.folder.paths import wal_folder
from lastword.log.lifecycle import Deletion, Lifecycle, UndecidedError
from lastword.log.topic import Topic
from lastword.maintenance import repairing, takeover
from lastword.maintenance.ownership import Ownership, foreign_error, now_s
from lastword.maintenance.repairing import RepairPlan
from lastword.maintenance.takeover import TakenOver
from lastword.segments.listing import TopicListing, UnreadableTopic, Visited, visit
from lastword.segments.model import TopicInfo, retry_on_conflict
from lastword.wal.writer import PartitionWriter

if TYPE_CHECKING:
    from lastword.segments.catalog import SegmentCatalog
    from lastword.segments.table import SegmentTable

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_PARTITIONS = 10_000


class Topics:
    """The topics of a log. Safe from several threads."""

    def __init__(
        self,
        catalog: SegmentCatalog,
        lifecycle: Lifecycle,
        ownership: Ownership,
        *,
        data_folder: Path,
        config: BrokerConfig,
        writes: bool,
        make: Callable[..., Topic],
        forget: Callable[[str], None],
    ) -> None:
        self._catalog = catalog
        self._lifecycle = lifecycle
        self._ownership = ownership
        self._data_folder = data_folder
        self._config = config
        self._writes = writes
        self._make = make
        self._forget = forget
        """Told of each topic that is gone, or another folder's."""
        self._opened: dict[str, Topic] = {}
        self.lock = threading.RLock()
        """Held while a topic is opened, created, or marked as deleted. Nothing that appends or rolls needs it."""
        self._cleaning_lock = threading.Lock()
        """Held while what deleted topics have left is removed, which may take long."""
        self._undecided: set[str] = set()
        self.is_closed = False

    def check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(f"The log in {self._data_folder} has been closed.")

    # -------------------------------------------------------------------------------------------- one

    def get(self, name: str) -> Topic:
        """An existing topic; UnknownTopicError if there is none of that name."""
        self.check_open()
        opened = self._opened.get(name)
        if opened is not None and self._writes and opened.foreign is None:
            # Without the lock: appends and rolls go on while another topic is created or deleted.
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
        """Open a topic, which nobody else in this process knows of yet."""
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
                # A full disk, most likely: what there is can be read.
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

    def load(self, name: str) -> SegmentTable:
        """The table of a topic; UnknownTopicError also if it is being deleted."""
        table = self._catalog.load(name)
        if table.snapshot().topic.deleted:
            raise UnknownTopicError(f"topic {name!r} has been deleted")
        return table

    def alter(
        self,
        name: str,
        *,
        set_config: Mapping[str, object] | None,
        unset: Iterable[str],
        partitions: int | None,
    ) -> Topic:
        """Change settings of a topic, take them back, or add partitions. Everything is applied, or nothing."""
        topic = self.get(name)
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
            self._config.resolve(name, own)
            return table.alter(base, config=own, partitions=partitions).topic

        before = topic.partitions
        topic.changed(retry_on_conflict(attempt))
        if topic.partitions > before and topic.settings.compacts:
            logger.warning("%s", warning_of_more_partitions(name, topic.partitions))
        return topic

    def take_over(self, name: str, warehouse: str) -> TakenOver | None:
        """Make this folder the owner of a topic that belongs to another one; None if it is already."""
        with self.lock:
            table = self.load(name)
            done = takeover.take_over(table, self._ownership, self._data_folder, warehouse=warehouse)
            if done is not None:
                self.let_go(name)
            return done

    def plan_repair(self, name: str) -> RepairPlan:
        """What is wrong with the table of a topic that can't be read, and what can be done. Nothing is changed."""
        try:
            table = self._catalog.load(name)
            table.plan(table.snapshot())
        except CorruptError as error:
            folder = wal_folder(self._data_folder, name, self._catalog.place(name).topic_id)
            states = repairing.with_objections(self._catalog.older_states(name), self._ownership.objection)
            return repairing.propose(name, str(error), states, folder)
        raise InvalidError(f"The table of {name!r} can be read: there is nothing to repair.")

    def repair(self, name: str) -> RepairPlan:
        """Have a topic whose table can't be read go back to the newest older state of it that can be used."""
        with self.lock:
            plan = self.plan_repair(name)
            state = plan.usable()
            self.let_go(name)
            self._catalog.go_back(name, state)
            logger.warning("%s has gone back to the state in %s", name, state.metadata_location)
            self.get(name)
            return plan

    def _looked_at_again(self, topic: Topic) -> Topic | None:
        """The topic as another process may have changed it; None if it is gone, or another one now."""
        try:
            # By its own table, which reads the metadata only if there is another file of it.
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
        """The topics that have been opened, by name, without waiting for anybody who changes them."""
        return self._opened

    def writers(self) -> list[PartitionWriter]:
        """The writers of all partitions, without waiting for a topic that is being created or deleted."""
        return [
            partition.writer
            for topic in list(self._opened.values())
            for partition in topic.all_partitions()
            if partition.is_open
        ]

    def own_names(self) -> list[str]:
        """The names of all topics that this folder may change, also of those that can't be read or are Lastword's own."""
        listing = self.listing(include_internal=True)
        foreign = {info.name for info in listing.infos if self._ownership.is_foreign(info)}
        foreign |= {
            each.name
            for each in listing.unreadable
            if each.id is not None and not self._ownership.has_noted(each.name, each.id)
        }
        return [name for name in listing.names if name not in foreign]

    def listing(self, *, include_internal: bool = False) -> TopicListing:
        """All topics, those that can't be read too, without opening their WALs."""
        self.check_open()
        names = [name for name in self._catalog.list() if include_internal or not is_internal(name)]
        visited = self.visit(lambda name: self._catalog.load(name).snapshot().topic, names)
        return TopicListing(
            infos=tuple(info for info in visited.found.values() if not info.deleted),
            unreadable=tuple(self._unreadable(name, error) for name, error in visited.problems.items()),
        )

    def visit(self, act: Callable[[str], T], names: Iterable[str] | None = None) -> Visited[T]:
        """Do something to each topic of this folder, or to some, by its name.

        One that is deleted meanwhile is skipped, also where that makes the act fail. What fails for one is noted, and
        the others go on.
        """
        return visit(self.own_names() if names is None else names, act, self.is_gone)

    def is_gone(self, name: str) -> bool:
        """Whether there is no topic of that name any more, as far as the catalog can tell."""
        self.check_open()
        try:
            return self._catalog.load(name).snapshot().topic.deleted
        except UnknownTopicError:
            return True
        except LastwordError:
            return False

    def has(self, name: str, topic_id: str) -> bool:
        """Whether there is a topic of that name with that id, perhaps one that can't be read."""
        try:
            return self._catalog.place(name).topic_id.hex == topic_id and not self.is_gone(name)
        except UnknownTopicError:
            return False

    def _unreadable(self, name: str, error: LastwordError) -> UnreadableTopic:
        try:
            topic_id = self._catalog.place(name).topic_id
        except LastwordError:
            topic_id = None
        return UnreadableTopic(name=name, id=topic_id, problem=str(error))

    # ----------------------------------------------------------------------------------------- ending

    def begin(self) -> None:
        """Bring to an end what an earlier writer of the log was killed in."""
        self._lifecycle.finish_creations()
        self._lifecycle.forget_unfinished_deletions()
        self.finish_deletions()

    def has_deletions(self) -> bool:
        """Whether there are deletions to finish."""
        return self._lifecycle.has_deletions()

    def delete(self, name: str, topic_id: UUID | None) -> None:
        """Delete a topic with everything that belongs to it; with `topic_id` only if it is still that one."""
        with self.lock:
            self._decide_deletions(name)
            self._check_own_if_unreadable(name)
            try:
                deletion = self._lifecycle.delete(name, topic_id)
            except UndecidedError:
                self._undecided.add(name)
                self.let_go(name)
                raise
            self.let_go(name)
        # It is gone. What can't be removed now is removed later.
        with warned("the deletion of a topic is not done yet and is tried again"):
            self._finish_deletion(deletion)

    def undecided(self) -> set[str]:
        """Topics that were closed because they may have been deleted, or not: the catalog did not tell.

        They take no appends until they are opened again.
        """
        return set(self._undecided)

    def lost(self, topic: TopicInfo) -> None:
        """Another folder has a topic now: whoever asks for it from now on finds the other's."""
        name = topic.name
        with self.lock:
            lost = self._opened.get(name)
            if lost is None or lost.id != topic.id:
                # It was deleted here, and perhaps created again: two writers of one WAL would overwrite each other.
                return
            try:
                found = self.open(name)
            except UnknownTopicError:
                self.let_go(name)
                return
            except LastwordError as error:
                # What there is stays, and says to everybody why it takes no appends.
                logger.warning("%s, which was lost, can't be looked at: %s", name, error)
                return
            # In one step: to the broker, a topic that is not there has been deleted.
            self._opened[name] = found
            self._forget(name)
        with warned(f"closing {name}, which was lost"):
            lost.close()

    def let_go(self, name: str) -> None:
        """Close a topic that is gone, or may be: it takes no more appends."""
        if (opened := self._opened.pop(name, None)) is not None:
            self._ownership.let_go(opened.id)
            with warned(f"closing {name}, which is being deleted"):
                opened.close()
        self._forget(name)

    def _check_own_if_unreadable(self, name: str) -> None:
        """NotOwnerError if a topic can't be read and may be another folder's: nobody else asks that before it goes."""
        if not self._ownership.is_shared:
            return
        try:
            self._catalog.load(name)
        except CorruptError as error:
            if not self._ownership.has_noted(name, self._catalog.place(name).topic_id):
                raise NotOwnerError(
                    f"The topic {name!r} can't be read, and nothing in {self._data_folder} says that it is this folder's. Delete "
                    f"it with the folder that it belongs to. {error}"
                ) from error
            for state in self._catalog.older_states(name):
                if state.snapshot is not None:
                    if self._ownership.is_foreign(state.snapshot.topic):
                        raise foreign_error(state.snapshot.topic) from error
                    return

    def _decide_deletions(self, name: str | None = None) -> None:
        """Find out which deletions are decided, and make their names free. An error of `name` is raised."""
        for deletion in self._lifecycle.deletions():
            if deletion.name == name:
                self._drop_if_decided(deletion)
            else:
                with warned("the deletion of a topic is not done yet and is tried again"):
                    self._drop_if_decided(deletion)

    def _drop_if_decided(self, deletion: Deletion) -> bool:
        """Whether the topic of a deletion is gone. What was withdrawn is a topic like any other."""
        with self.lock:
            if not self._lifecycle.is_decided(deletion):
                # It stays among those that somebody must open again: who asks here may not be the one that does.
                return False
            self._undecided.discard(deletion.name)
            opened = self._opened.get(deletion.name)
            if opened is not None and opened.id == deletion.topic_id:
                self.let_go(deletion.name)
            self._lifecycle.drop(deletion)
            return True

    def finish_deletions(self) -> None:
        """Remove what deleted topics have left, as far as that can be done now."""
        for deletion in self._lifecycle.deletions():
            with warned("the deletion of a topic is not done yet and is tried again"):
                self._finish_deletion(deletion)

    def _finish_deletion(self, deletion: Deletion) -> None:
        if self._drop_if_decided(deletion):
            with self._cleaning_lock:
                self._lifecycle.clean(deletion)

    def close(self) -> list[LastwordError]:
        """Close every topic that is open; what went wrong."""
        errors: list[LastwordError] = []
        for topic in list(self._opened.values()):
            try:
                topic.close()
            except LastwordError as error:
                errors.append(error)
        return errors


def warning_of_more_partitions(name: str, partitions: int) -> str:
    """What whoever adds partitions to a compacted topic must know."""
    return (
        f"{name} is compacted and has {partitions} partitions now: keys that belong to another one from now on are "
        f"in two of them, until compaction and retention have taken the older records"
    )


def _check_partition_count(name: str, partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidTopicError(
            f"topic {name!r} can't have {partitions} partitions; 1 to {MAX_PARTITIONS} are allowed"
        )


@contextmanager
def warned(what: str) -> Iterator[None]:
    """Run the block; an error of storage or disk is logged, and the work is left for later."""
    try:
        yield
    except (LastwordError, OSError) as error:
        logger.warning("%s: %s", what, error)
