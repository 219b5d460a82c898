"""The topics of a log, as they are in the catalog. Nothing here opens a WAL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lastword.config import is_internal
from lastword.errors import ClosedError, CorruptError, LastwordError, NotOwnerError, UnknownTopicError
from lastword.maintenance.ownership import Ownership, foreign_error
from lastword.segments.listing import TopicListing, UnreadableTopic, Visited, visit

if TYPE_CHECKING:
    from lastword.segments.catalog import SegmentCatalog
    from lastword.segments.table import SegmentTable

T = TypeVar("T")


class Directory:
    """The topics of the catalog: their names, owners and tables."""

    def __init__(self, catalog: SegmentCatalog, ownership: Ownership, data_folder: Path) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._data_folder = data_folder
        self.is_closed = False

    def check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(f"The log in {self._data_folder} has been closed.")

    def load(self, name: str) -> SegmentTable:
        """Return the table of a topic. Raise UnknownTopicError if there is none, or if it is being deleted."""
        table = self._catalog.load(name)
        if table.snapshot().topic.deleted:
            raise UnknownTopicError(f"topic {name!r} has been deleted")
        return table

    def own_names(self) -> list[str]:
        """Return the names of all topics that this folder may change, including unreadable and internal ones."""
        listing = self.listing(include_internal=True)
        foreign = {info.name for info in listing.infos if self._ownership.is_foreign(info)}
        foreign |= {
            each.name
            for each in listing.unreadable
            if each.id is not None and not self._ownership.has_noted(each.name, each.id)
        }
        return [name for name in listing.names if name not in foreign]

    def listing(self, *, include_internal: bool = False) -> TopicListing:
        """Return all topics, including unreadable ones, without opening their WALs."""
        self.check_open()
        names = [name for name in self._catalog.list() if include_internal or not is_internal(name)]
        visited = self.visit(self._catalog.info, names)
        return TopicListing(
            infos=tuple(info for info in visited.found.values() if not info.deleted),
            unreadable=tuple(self._unreadable(name, error) for name, error in visited.problems.items()),
        )

    def visit(self, act: Callable[[str], T], names: Iterable[str] | None = None) -> Visited[T]:
        """Call `act` with the name of each topic of this folder, or with each of `names`.

        A topic that is deleted in the meantime is skipped, even if that makes `act` fail. A failure of one topic is noted
        and does not stop the others.
        """
        return visit(self.own_names() if names is None else names, act, self.is_gone)

    def is_gone(self, name: str) -> bool:
        """Return whether the topic of that name has been deleted, as far as the catalog shows."""
        self.check_open()
        try:
            return self._catalog.info(name).deleted
        except UnknownTopicError:
            return True
        except LastwordError:
            return False

    def has(self, name: str, topic_id: str) -> bool:
        """Return whether there is a topic of that name with that id. It may be unreadable."""
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

    def check_own_if_unreadable(self, name: str) -> None:
        """Raise NotOwnerError if a topic is unreadable and may be another folder's.

        Nothing else checks this before the topic is deleted.
        """
        if not self._ownership.is_shared:
            return
        try:
            self._catalog.load(name)
        except CorruptError as error:
            if not self._ownership.has_noted(name, self._catalog.place(name).topic_id):
                raise NotOwnerError(
                    f"The topic {name!r} can't be read, and nothing in {self._data_folder} shows that this folder "
                    f"owns it. Delete it through the data folder that owns it. {error}"
                ) from error
            for state in self._catalog.older_states(name):
                if state.snapshot is not None:
                    if self._ownership.is_foreign(state.snapshot.topic):
                        raise foreign_error(state.snapshot.topic) from error
                    return
