"""The request of a compaction: the partitions that it takes, in which order, and its callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

OnRecordsAndBytes = Callable[[int, int, int, int], None]
"""Called with the records done, the total records, the bytes done and the total bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The partitions that a compaction takes. By default it takes those that are due."""

    partitions: tuple[int, ...] | None = None
    asked_for: bool = False
    """Compact everything dirty, even below the dirty ratio."""
    force: bool = False
    """Go through everything that may be compacted, even if nothing is dirty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest(Scope):
    """The options of a compaction. By default it compacts what is due."""

    exclude: frozenset[tuple[str, int | None]] = frozenset()
    """Topics and partitions that are left out. If the partition is None, the log itself leaves the topic out."""
    last: tuple[tuple[str, int | None], ...] = ()
    """Topics and partitions that are compacted after all others, each by itself, in this order."""
    begin: Callable[[Sequence[tuple[str, int | None]]], None] | None = None
    """Called with the topics and partitions that are compacted next."""
    progress: OnRecordsAndBytes | None = None
    stop: Callable[[], bool] = lambda: False


WHAT_IS_DUE = CompactionRequest()
