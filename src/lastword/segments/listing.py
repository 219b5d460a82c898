"""Looks at many topics, while others are being created and deleted, and while some can't be read.

`visit` is the one answer to two questions that every job over all topics has: a topic that has been deleted since the
names were listed is skipped, and one that fails is noted while the others go on.
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
    """What was found of each topic, and which of them failed. Those that are gone are in neither."""

    found: Mapping[str, T]
    problems: Mapping[str, LastwordError]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableTopic:
    """A topic that the catalog has and whose table can't be read, and why."""

    name: str
    id: UUID | None
    """None if that is not known either."""
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicListing:
    """Every topic that there is."""

    infos: tuple[TopicInfo, ...]
    unreadable: tuple[UnreadableTopic, ...]

    @property
    def names(self) -> list[str]:
        return sorted([*(info.name for info in self.infos), *(each.name for each in self.unreadable)])

    @property
    def ids(self) -> set[UUID]:
        """Those that are known."""
        return {info.id for info in self.infos} | {each.id for each in self.unreadable if each.id is not None}


def visit(names: Iterable[str], act: Callable[[str], T], is_gone: Callable[[str], bool]) -> Visited[T]:
    """Do something to each topic. `is_gone` is asked of one that failed: with it, anything may fail."""
    found: dict[str, T] = {}
    problems: dict[str, LastwordError] = {}
    for name in names:
        try:
            found[name] = act(name)
        except UnknownTopicError:
            logger.debug("topic %s has been deleted meanwhile", name)
        except (LastwordError, OSError) as error:
            if is_gone(name):
                logger.debug("topic %s has been deleted meanwhile: %s", name, error)
            elif isinstance(error, LastwordError):
                problems[name] = error
            else:
                problems[name] = StorageError(f"{error.filename or name}: {error.strerror or error}")
    return Visited(found=found, problems=problems)
