"""Visits many topics, while others are created and deleted, even if some can't be read.

`visit` solves two problems of every job over all topics: it skips a topic that was deleted after the names were
listed, and if one fails, it notes that and continues with the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

from lastword.errors import LastwordError, StorageError, UnknownTopicError
from lastword.segments.model import TopicInfo

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visited(Generic[T]):
    """The result for each topic, and the topics that failed. Deleted topics are in neither."""

    found: Mapping[str, T]
    problems: Mapping[str, LastwordError]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableTopic:
    """A topic of the catalog whose table can't be read, and why."""

    name: str
    id: UUID | None
    """None if it is not known either."""
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicListing:
    """All topics that exist."""

    infos: tuple[TopicInfo, ...]
    unreadable: tuple[UnreadableTopic, ...]

    @property
    def names(self) -> list[str]:
        return sorted([*(info.name for info in self.infos), *(each.name for each in self.unreadable)])

    @property
    def ids(self) -> set[UUID]:
        """The ids that are known."""
        return {info.id for info in self.infos} | {each.id for each in self.unreadable if each.id is not None}


def visit(names: Iterable[str], act: Callable[[str], T], is_gone: Callable[[str], bool]) -> Visited[T]:
    """Call `act` for each topic. `is_gone` is called if that failed: anything may fail on a deleted topic."""
    found: dict[str, T] = {}
    problems: dict[str, LastwordError] = {}
    for name in names:
        try:
            found[name] = act(name)
        except UnknownTopicError:
            logger.debug("topic %s has been deleted in the meantime", name)
        except (LastwordError, OSError) as error:
            if is_gone(name):
                logger.debug("topic %s has been deleted in the meantime: %s", name, error)
            elif isinstance(error, LastwordError):
                problems[name] = error
            else:
                problems[name] = StorageError(f"{error.filename or name}: {error.strerror or error}")
    return Visited(found=found, problems=problems)
