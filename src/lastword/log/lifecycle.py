"""The beginning and the end of topics: notes in the data folder, so that a crash leaves nothing half done.

Creation of a topic, by its steps: (1) note it in creating/; (2) create the table; (3) remove the note. Killed at any
point: the next open finds the note, and if the catalog does not have the table, removes what was written for it.

Deletion of a topic, by its steps:
1. note it in deleting/: its name, its id, where its files are;
2. mark the table as deleted. This decides: the topic is gone now. A table that can't be read can't be marked;
   its deletion is decided by 3;
3. have the catalog forget the table, if it is still the one with this id. The name is free again;
4. remove the WAL, the positions of readers, what was staged, and the table's files;
5. remove the note, unless a job that may still write files of the topic holds a lease: then 4 is repeated later.

Killed or failed before the decision, the topic is whole: the note alone decides nothing and is withdrawn. Where the
outcome of 2 is not known, the table is looked at; a table that is not marked gets another commit before the note is
withdrawn, so that a mark which is still on its way is refused. After the decision, all steps can be repeated.

Only the writer of the data folder does any of this: it knows which topics are being created, deleted or appended to.
"""

from __future__ import annotations

import json
import logging
import shutil
from contextlib import suppress
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
    """Whether a topic was deleted is not known yet: the catalog does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """The deletion of a topic, as it is noted."""

    name: str
    topic_id: UUID
    location: str | None = None
    """Where the files of its table are, if that is not where the catalog would put them now."""


class Lifecycle:
    """Creates and deletes the tables of a data folder's topics, and everything else that carries a topic's id.

    One thread at a time calls `create`, `delete` and `drop`; another one may call `clean` meanwhile.
    """

    def __init__(self, data_folder: Path, catalog: SegmentCatalog, clock: Clock) -> None:
        self._data_folder = data_folder
        self._catalog = catalog
        self._clock = clock

    # -------------------------------------------------------------------------------------------- creation

    def create(self, info: TopicInfo) -> SegmentTable:
        note = self._data_folder / CREATING_FOLDER / info.id.hex
        _write_note(note, info.name.encode(), info.name)
        reached("topic.creation.noted")
        # After a failure the note stays: only the next open knows for sure whether the table was made.
        table = self._catalog.create(info)
        reached("topic.created")
        note.unlink(missing_ok=True)
        return table

    def finish_creations(self) -> None:
        """Remove what creations that were cut short have left. Only at the start: no creation is under way."""
        _remove_unfinished(self._data_folder / CREATING_FOLDER)
        for note in notes(self._data_folder / CREATING_FOLDER):
            try:
                name, topic_id = note.read_text(), UUID(note.name)
                if not self._has(name, topic_id):
                    self._catalog.remove_files(self._catalog.location(name, topic_id), topic_id)
                note.unlink(missing_ok=True)
            except (LastwordError, OSError) as error:
                logger.warning("what is left of the creation of a topic is removed later: %s", error)

    def _has(self, name: str, topic_id: UUID) -> bool:
        try:
            return self._catalog.place(name).topic_id == topic_id
        except UnknownTopicError:
            return False

    # -------------------------------------------------------------------------------------------- deletion

    def delete(self, name: str, topic_id: UUID | None = None) -> Deletion:
        """Decide the deletion of a topic; with `topic_id` only if it is still that one.

        After an error the topic is whole; UndecidedError: that is not known.
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
            logger.warning("the topic %s is deleted, though its table can't be read: %s", name, error)
            return None

    def _is_decided_after(self, deletion: Deletion, error: LastwordError) -> bool:
        try:
            return self.is_decided(deletion)
        except LastwordError as second:
            raise UndecidedError(
                f"Whether the topic {deletion.name!r} has been deleted is not known: {error} ({second}). "
                f"It takes no appends until the catalog can be asked again."
            ) from error

    def has_deletions(self) -> bool:
        """Whether any is noted. Nothing is changed: whoever is not the writer may ask."""
        return bool(notes(self._data_folder / DELETING_FOLDER))

    def forget_unfinished_deletions(self) -> None:
        """Remove the notes that a killed process was still writing. Only at the start: none is being written."""
        _remove_unfinished(self._data_folder / DELETING_FOLDER)

    def deletions(self) -> list[Deletion]:
        """Those that are noted."""
        found = []
        for note in notes(self._data_folder / DELETING_FOLDER):
            saved = state_file.load_if_whole(note, lambda saved: (saved["name"], saved["location"]))
            if saved is not None:
                found.append(Deletion(name=saved[0], topic_id=UUID(note.name), location=saved[1]))
        return found

    def is_decided(self, deletion: Deletion) -> bool:
        """Whether a topic that was to be deleted is gone. If it is not, the deletion is withdrawn."""
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
            # Not marked, and another data folder's: no mark of ours can come after that.
            pass
        self._withdraw(deletion)
        return False

    def drop(self, deletion: Deletion) -> None:
        """Have the catalog forget a topic whose deletion is decided."""
        self._catalog.drop(deletion.name, deletion.topic_id)
        reached("topic.deletion.dropped")

    def clean(self, deletion: Deletion) -> None:
        """Remove everything that carries the id of a topic that the catalog has forgotten."""
        topic_id = deletion.topic_id
        # First: a job that begins later finds no topic.
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
        content = json.dumps({"name": deletion.name, "location": deletion.location})
        _write_note(self._note(deletion), content.encode(), deletion.name)

    def _withdraw(self, deletion: Deletion) -> None:
        self._note(deletion).unlink(missing_ok=True)

    def _note(self, deletion: Deletion) -> Path:
        return self._data_folder / DELETING_FOLDER / deletion.topic_id.hex


def _write_note(note: Path, content: bytes, name: str) -> None:
    try:
        disk.make_folder(note.parent)
        disk.replace_file(note, content)
    except OSError as error:
        raise StorageError(
            f"Can't write {note}: {error.strerror or error}. Nothing has been done to the topic {name!r}."
        ) from error


def _remove_unfinished(folder: Path) -> None:
    for unfinished in [note for note in folder.iterdir() if note.suffix] if folder.exists() else ():
        unfinished.unlink(missing_ok=True)


def _remove_tree(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
        parent = folder.parent
        with suppress(OSError):
            # Unless something is in it, perhaps since a moment ago: a topic of the same name.
            parent.rmdir()
            parent = parent.parent
        # The note that leads here goes next: a power cut must not bring back the folder without it.
        disk.sync_folder(parent)
