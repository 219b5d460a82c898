"""Which data folder may change a topic, if several could: each table has one owner, which every commit asserts.

A table names its owner: the folder's id, an epoch that rises when another folder takes over, and, if the catalog or
the warehouse is shared, the owner's *incarnation*. The guarantees:

1. Every commit asserts the snapshot that it was planned on, and checks the owner in that very state of the table
   (segments/table.py). Taking over is a commit that makes a snapshot. So a folder that lost a topic can't commit.
2. Each time a shared folder is opened for writing, it takes a new incarnation, noted in the folder's identity first.
   Before the first append to a topic, or with the first commit, it is noted beside the topic's WAL and then in the table.
   A clone of the disk has the incarnation from the time of the cloning. As soon as one of the two has noted a newer
   one in the table, the other finds an incarnation there that it never had, and is refused.
3. A writer checks every second that it still owns the topics that it has open. Without a recent confirmation it
   acknowledges nothing.

If the catalog and the warehouse are inside the folder, no other folder can reach the tables. Then only 1 applies, and
opening costs no commit.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from lastword.clock import Clock, new_uuid
from lastword.errors import LastwordError, LockedError, NotOwnerError, StorageError
from lastword.folder import disk, identity, state_file
from lastword.folder.identity import Identity
from lastword.folder.locks import Role, RoleLock
from lastword.folder.paths import OWNED_FILE, wal_folder
from lastword.folder.steps import reached
from lastword.maintenance.relocating import confirm_identity, recognized
from lastword.segments.model import Owner, OwnerState, TopicInfo
from lastword.segments.storage import Storage

if TYPE_CHECKING:
    from lastword.segments.catalog import SegmentCatalog

logger = logging.getLogger(__name__)

CONFIRM_INTERVAL_S: Final = 1.0
CONFIRMED_FOR_S: Final = 4.0
"""The maximum age of the last confirmation when a record is acknowledged."""


_MAINTAINER_WAITS_MS: Final = 5_000


@dataclass(slots=True)
class _Held:
    topic: TopicInfo
    confirmed_s: float
    pointer: str | None = None
    lost: NotOwnerError | None = None
    claim: Callable[[], object] | None = None
    """Notes this opening in the table. None once that has been done."""


def now_s() -> float:
    """Return seconds that also count while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Ownership:
    """The rights of an open log's folder to the topics of its catalog. Thread-safe."""

    def __init__(self, storage: Storage, known: Identity | None) -> None:
        self._storage = storage
        self._identity = known
        self._held: dict[UUID, _Held] = {}

    @classmethod
    def of_writer(cls, storage: Storage, clock: Clock) -> Ownership:
        """Create it for a log that is being opened for writing. The caller holds the writer role."""
        known = confirm_identity(storage, clock)
        return cls(storage, _next_incarnation(storage.folder, known) if storage.is_shared else known)

    @classmethod
    def of_maintainer(cls, storage: Storage, clock: Clock) -> Ownership:
        """Create it for maintenance beside a writer. If there is no writer, give the folder an incarnation."""
        known = identity.load(storage.folder)
        if known is not None and not storage.is_shared:
            return cls(storage, known)
        waited_ms = 0
        while True:
            try:
                with RoleLock.acquire(storage.folder, Role.WRITER, clock, brief=True):
                    return cls.of_writer(storage, clock)
            except LockedError:
                # A writer that has just started notes it in a moment.
                known = identity.load(storage.folder)
                if known is not None and (known.token or not storage.is_shared):
                    return cls(storage, known)
                if waited_ms >= _MAINTAINER_WAITS_MS:
                    raise
                clock.sleep_ms(20)
                waited_ms += 20

    @classmethod
    def of_reader(cls, storage: Storage, clock: Clock) -> Ownership:
        return cls(storage, identity.load(storage.folder) or recognized(storage, clock))

    @property
    def is_shared(self) -> bool:
        """Whether other folders could reach the same tables."""
        return self._storage.is_shared

    # ------------------------------------------------------------------------------------------- commits

    def new_owner(self, topic: TopicInfo) -> Owner:
        """Return this folder as the owner of a topic that it is about to create or take over."""
        incarnation = ""
        if self._storage.is_shared:
            incarnation = self._incarnation
            self._note(topic, [incarnation])
        return self._me(epoch=1, incarnation=incarnation)

    def check(self, topic: TopicInfo) -> Owner | None:
        """Raise NotOwnerError unless this folder may commit to a topic. Return the owner to note in the commit, or None."""
        owner = topic.owner
        if owner is None:
            # A table of the first version, which no folder has claimed yet.
            return self.new_owner(topic)
        if owner.folder_id != self._id:
            raise foreign_error(topic)
        if not self._storage.is_shared or owner.incarnation == self._incarnation:
            return None
        # Another process of this folder may have raised it.
        self._identity = identity.load(self._storage.folder) or self._identity
        if owner.incarnation == self._incarnation:
            return None
        # A table without one was written when all of it was inside this folder and no other folder could reach it.
        if owner.incarnation and owner.incarnation not in self._noted(topic):
            raise NotOwnerError(
                f"{self._storage.folder} is a stale copy, for example from a cloned disk: another folder with its id "
                f"({self._id}) has written to topic {topic.name!r} since, last {owner}. Use that folder. "
                f"`lastword relocate --as-copy` makes this one a separate folder, and `lastword wal export "
                f"{topic.name}` shows the records that are only here."
            )
        self._note(topic, [owner.incarnation, self._incarnation])
        return self._me(epoch=owner.epoch, incarnation=self._incarnation)

    def is_foreign(self, topic: TopicInfo) -> bool:
        """Return whether another folder owns a topic."""
        return topic.owner is not None and topic.owner.folder_id != self._id

    def has_noted(self, name: str, topic_id: UUID) -> bool:
        """Return whether, as far as this folder knows, it owned a topic whose table can't be read."""
        if not self._storage.is_shared:
            return True
        return (wal_folder(self._storage.folder, name, topic_id) / OWNED_FILE).exists()

    def objection(self, topic: TopicInfo) -> str | None:
        """Return why this folder may not roll a table back to an older state, or None if it may. Notes nothing."""
        if self.is_foreign(topic):
            return f"it belongs to {topic.owner}"
        if topic.owner is None or not self._storage.is_shared:
            return None
        if topic.owner.incarnation in ("", self._incarnation, *self._noted(topic)):
            return None
        return "it was written by this folder or a clone of it, under an incarnation that this folder does not know"

    # ------------------------------------------------------------------------------------------- appends

    def hold(
        self, topic: TopicInfo, since_s: float, *, claim: Callable[[], object] | None = None
    ) -> Callable[[], None] | None:
        """Start to confirm a topic that this folder owns. Return a function that raises unless appends are allowed.

        With `claim`, this opening is not noted in the table yet. Nothing is appended until it is.
        """
        if not self._storage.is_shared:
            return None
        held = self._held[topic.id] = _Held(topic=topic, confirmed_s=since_s, claim=claim)
        return lambda: _check_held(held)

    def let_go(self, topic_id: UUID) -> None:
        self._held.pop(topic_id, None)

    def confirm(self, catalog: SegmentCatalog) -> list[TopicInfo]:
        """Check that this folder still owns the held topics. Return those that were lost."""
        held = {each.topic.name: each for each in list(self._held.values()) if each.lost is None}
        if not held:
            return []
        for each in held.values():
            _claim(each)
        started_s = now_s()
        found = catalog.owners({name: each.pointer for name, each in held.items()})
        lost: list[TopicInfo] = []
        for name, each in held.items():
            state = found.get(name)
            if state is None:
                # No answer about this topic, so its last confirmation ages.
                continue
            try:
                self._check_state(each.topic, state)
            except NotOwnerError as error:
                each.lost = error
                lost.append(each.topic)
                logger.error("%s", error)
                continue
            each.pointer, each.confirmed_s = state.pointer, started_s
        return lost

    def _check_state(self, topic: TopicInfo, state: OwnerState) -> None:
        if state.is_unchanged:
            return
        if state.topic is None or state.topic.id != topic.id:
            raise NotOwnerError(
                f"Topic {topic.name!r} is no longer in the catalog, or has been recreated. It takes no appends here."
            )
        self.check(state.topic)

    # ------------------------------------------------------------------------------------------ internal

    @property
    def _id(self) -> str:
        return self._identity.id if self._identity is not None else ""

    @property
    def _incarnation(self) -> str:
        assert self._identity is not None
        return f"{self._identity.incarnation}-{self._identity.token}"

    def _me(self, *, epoch: int, incarnation: str) -> Owner:
        assert self._identity is not None
        return Owner(
            folder_id=self._id,
            epoch=epoch,
            incarnation=incarnation,
            host=socket.gethostname(),
            path=self._identity.path,
        )

    def _note(self, topic: TopicInfo, incarnations: list[str]) -> None:
        path = self._note_path(topic)
        if self._noted(topic) == incarnations:
            return
        try:
            disk.make_folder(path.parent)
            state_file.save(path, incarnations)
        except OSError as error:
            raise StorageError(f"Can't write {path}: {error.strerror or error}.") from error
        reached("own.noted")

    def _noted(self, topic: TopicInfo) -> list[str]:
        path = self._note_path(topic)
        return state_file.load_if_whole(path, lambda saved: [str(each) for each in saved]) or []

    def _note_path(self, topic: TopicInfo) -> Path:
        return wal_folder(self._storage.folder, topic.name, topic.id) / OWNED_FILE


class Confirmer:
    """A thread that confirms every second that this folder still owns the topics that are open for writing."""

    def __init__(
        self, ownership: Ownership, catalog: SegmentCatalog, lost: Callable[[TopicInfo], None]
    ) -> None:
        self._ownership = ownership
        self._catalog = catalog
        self._lost = lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lastword-ownership", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(CONFIRM_INTERVAL_S):
            try:
                lost = self._ownership.confirm(self._catalog)
            except LastwordError as error:
                logger.warning("can't confirm which topics this folder owns: %s", error)
                continue
            for topic in lost:
                self._lost(topic)


def foreign_error(topic: TopicInfo) -> NotOwnerError:
    return NotOwnerError(
        f"Topic {topic.name!r} belongs to {topic.owner}. Only that folder may change it. "
        f"`lastword takeover {topic.name}` shows the effects of taking it over."
    )


def _claim(held: _Held) -> None:
    if held.claim is not None:
        try:
            held.claim()
            held.claim = None
        except NotOwnerError:
            # The check that follows finds the new owner.
            logger.debug("this folder no longer owns %s", held.topic.name)
        except LastwordError as error:
            logger.warning(
                "%s takes no appends, because its table can't be written: %s", held.topic.name, error
            )


def _check_held(held: _Held) -> None:
    if held.lost is not None:
        raise NotOwnerError(str(held.lost))
    if held.claim is not None:
        raise NotOwnerError(
            f"Topic {held.topic.name!r} takes no appends yet: its table could not be updated to say that this folder "
            f"has opened it. This is retried every second."
        )
    age_s = now_s() - held.confirmed_s
    if age_s > CONFIRMED_FOR_S:
        raise NotOwnerError(
            f"This folder's ownership of topic {held.topic.name!r} could not be confirmed for {age_s:.0f} s, "
            f"because the catalog does not answer. The topic takes no appends until it does."
        )


def _next_incarnation(folder: Path, known: Identity) -> Identity:
    raised = replace(known, incarnation=known.incarnation + 1, token=new_uuid().hex[:8])
    identity.save(folder, raised)
    reached("own.incarnation.noted")
    return raised
