"""The creation and deletion of topics, with notes in the data folder so that a crash leaves nothing half done.

Steps of a creation: (1) note it in creating/; (2) create the table; (3) remove the note. If the process is killed, the
next open finds the note and, if the catalog does not have the table, removes the files written for it.

Steps of a deletion:
1. note it in deleting/: the topic's name, its id, and the location of its files;
2. mark the table as deleted. This decides: the topic is gone now. A table that can't be read can't be marked:
   step 3 decides its deletion;
3. drop the table from the catalog, if it is still the one with this id. The name is free again;
4. remove the WAL, the positions of readers, the staged records, and the table's files;
5. remove the note, unless a job that may still write files of the topic holds a lease: then 4 is repeated later.

If a deletion is killed or fails before it is decided, the topic is intact: the note alone decides nothing and is
withdrawn. If the outcome of 2 is unknown, the writer looks at the table. A table that is not marked gets another commit
before the note is withdrawn, so that a mark still in flight is refused. After the decision, all steps can be repeated.

Only the writer of the data folder does any of this: it knows which topics are being created, deleted or appended to.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from lastword.clock import Clock
from lastword.errors import (
    CorruptError,
    LastwordError,
    NotOwnerError,
    StorageError,
    UnavailableError,
    UnknownTopicError,
)
from lastword.folder import disk, state_file
from lastword.folder.leases import live_leases
from lastword.folder.paths import CREATING_FOLDER, DELETING_FOLDER, READERS_FOLDER, notes, wal_folder
from lastword.folder.steps import reached
from lastword.segments.model import TopicInfo, retry_on_conflict
from lastword.wal import staged

if TYPE_CHECKING:
    from lastword.segments.catalog import SegmentCatalog
    from lastword.segments.table import SegmentTable

logger = logging.getLogger(__name__)


class UndecidedError(UnavailableError):
    """It is not known yet whether a topic was deleted, because the catalog does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """The deletion of a topic, as noted in the data folder."""

    name: str
    topic_id: UUID
    location: str | None = None
    """The location of its table's files, if that is not where the catalog would put them now."""


class Lifecycle:
    """Creates and deletes the tables of a data folder's topics, and everything else that carries a topic's id.

    One thread at a time calls `create`, `delete` and `drop`. Another one may call `clean` meanwhile.
    """

    def __init__(self, data_folder: Path, catalog: SegmentCatalog, clock: Clock) -> None:
        self._data_folder = data_folder
        self._catalog = catalog
        self._clock = clock

    # -------------------------------------------------------------------------------------------- creation

    def create(self, info: TopicInfo) -> SegmentTable:
        note = self._data_folder / CREATING_FOLDER / info.id.hex
        with _noting(note, info.name):
            disk.replace_file(note, info.name.encode())
        reached("topic.creation.noted")
        # After a failure the note stays: only the next open knows for sure whether the table was created.
        table = self._catalog.create(info)
        reached("topic.created")
        note.unlink(missing_ok=True)
        return table

    def finish_creations(self) -> None:
        """Remove the remains of interrupted creations. Call it only at the start, when no creation is under way."""
        _remove_unfinished(self._data_folder / CREATING_FOLDER)
        for note in notes(self._data_folder / CREATING_FOLDER):
            try:
                name, topic_id = note.read_text(), UUID(note.name)
                if not self._has(name, topic_id):
                    self._catalog.remove_files(self._catalog.location(name, topic_id), topic_id)
                note.unlink(missing_ok=True)
            except (LastwordError, OSError) as error:
                logger.warning(
                    "the remains of an interrupted topic creation will be removed later: %s", error
                )

    def _has(self, name: str, topic_id: UUID) -> bool:
        try:
            return self._catalog.place(name).topic_id == topic_id
        except UnknownTopicError:
            return False

    # -------------------------------------------------------------------------------------------- deletion

    def delete(self, name: str, topic_id: UUID | None = None) -> Deletion:
        """Decide the deletion of a topic; with `topic_id` only if it still has that id.

        After an error the topic is intact. After UndecidedError it is not known whether it is.
        """
        table = self._readable(name)
        if table is not None and table.snapshot().topic.deleted:
            raise UnknownTopicError(f"topic {name!r} has been deleted")
        place = self._catalog.place(name)
        if topic_id not in (None, place.topic_id):
            raise UnknownTopicError(f"topic {name!r} with the id {topic_id} has been deleted")
        usual = self._catalog.location(name, place.topic_id)
        location = None if place.location == usual else place.location
        deletion = Deletion(name=name, topic_id=place.topic_id, location=location)
        self._write(deletion)
        reached("topic.deletion.noted")
        try:
            if table is None:
                self._catalog.drop(name, place.topic_id)
            else:
                retry_on_conflict(lambda: table.alter(table.snapshot(), deleted=True))
        except LastwordError as error:
            if not self._is_decided_after(deletion, error):
                raise
        reached("topic.deletion.marked")
        return deletion

    def _readable(self, name: str) -> SegmentTable | None:
        try:
            return self._catalog.load(name)
        except CorruptError as error:
            logger.warning("deleting the topic %s although its table can't be read: %s", name, error)
            return None

    def _is_decided_after(self, deletion: Deletion, error: LastwordError) -> bool:
        try:
            return self.is_decided(deletion)
        except LastwordError as second:
            raise UndecidedError(
                f"It is not known whether the topic {deletion.name!r} has been deleted: {error} ({second}). "
                f"It takes no appends until the catalog answers again."
            ) from error

    def has_deletions(self) -> bool:
        """Return whether any deletion is noted. Nothing is changed, so every process may ask."""
        return bool(notes(self._data_folder / DELETING_FOLDER))

    def forget_unfinished_deletions(self) -> None:
        """Remove half-written notes of a killed process. Call it only at the start, when none is being written."""
        _remove_unfinished(self._data_folder / DELETING_FOLDER)

    def deletions(self) -> list[Deletion]:
        """Return the noted deletions."""
        found = []
        for note in notes(self._data_folder / DELETING_FOLDER):
            saved = state_file.load_if_whole(note, lambda saved: (saved["name"], saved["location"]))
            if saved is not None:
                found.append(Deletion(name=saved[0], topic_id=UUID(note.name), location=saved[1]))
        return found

    def is_decided(self, deletion: Deletion) -> bool:
        """Return whether a topic that was to be deleted is gone. If it is not, withdraw the deletion."""
        try:
            table = self._catalog.load(deletion.name)
        except UnknownTopicError:
            return True
        except CorruptError:
            if self._catalog.place(deletion.name).topic_id != deletion.topic_id:
                return True
            self._withdraw(deletion)
            return False

        def fence() -> bool:
            base = table.snapshot()
            if base.topic.id != deletion.topic_id or base.topic.deleted:
                return True
            table.alter(base)
            return False

        try:
            if retry_on_conflict(fence):
                return True
        except UnknownTopicError:
            return True
        except NotOwnerError:
            # It is not marked and belongs to another data folder: no mark of ours can come after that.
            pass
        self._withdraw(deletion)
        return False

    def drop(self, deletion: Deletion) -> None:
        """Drop a topic whose deletion is decided from the catalog."""
        self._catalog.drop(deletion.name, deletion.topic_id)
        reached("topic.deletion.dropped")

    def clean(self, deletion: Deletion) -> None:
        """Remove everything that carries the id of a topic that the catalog has dropped."""
        topic_id = deletion.topic_id
        # Checked first: a job that begins later finds no topic.
        may_be_written = any(
            lease.topic_id == topic_id.hex and lease.snapshot_id is None
            for lease in live_leases(self._data_folder, self._clock.now_ms())
        )
        _remove_tree(wal_folder(self._data_folder, deletion.name, topic_id))
        reached("topic.deletion.wal_removed")
        _remove_tree(self._data_folder / READERS_FOLDER / topic_id.hex)
        staged.forget(self._data_folder, topic_id)
        location = deletion.location or self._catalog.location(deletion.name, topic_id)
        self._catalog.remove_files(location, topic_id)
        reached("topic.deletion.files_removed")
        if not may_be_written:
            self._withdraw(deletion)

    def _write(self, deletion: Deletion) -> None:
        note = self._note(deletion)
        with _noting(note, deletion.name):
            state_file.save(note, {"name": deletion.name, "location": deletion.location})

    def _withdraw(self, deletion: Deletion) -> None:
        self._note(deletion).unlink(missing_ok=True)

    def _note(self, deletion: Deletion) -> Path:
        return self._data_folder / DELETING_FOLDER / deletion.topic_id.hex


@contextmanager
def _noting(note: Path, name: str) -> Iterator[None]:
    """Make the folder of a note, and report that the note can't be written."""
    try:
        disk.make_folder(note.parent)
        yield
    except OSError as error:
        raise StorageError(
            f"Can't write {note}: {error.strerror or error}. The topic {name!r} is unchanged."
        ) from error


def _remove_unfinished(folder: Path) -> None:
    for unfinished in [note for note in folder.iterdir() if note.suffix] if folder.exists() else ():
        unfinished.unlink(missing_ok=True)


def _remove_tree(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
        parent = folder.parent
        with suppress(OSError):
            # Fails if something is in it, such as a new topic of the same name.
            parent.rmdir()
            parent = parent.parent
        # The note is removed next: a power failure must not bring back the folder without it.
        disk.sync_folder(parent)
