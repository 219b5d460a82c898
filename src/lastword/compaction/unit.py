"""The input and the outcome of one compaction of one partition. Both travel between the driver and executors."""

from __future__ import annotations

from dataclasses import dataclass, field

from lastword.compaction.rules import NO_TOMBSTONES, OldestTombstones, Rules
from lastword.segments.model import Segment
from lastword.segments.parquet import SegmentFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The work for one partition: its compactable segments in offset order, and all that decides about them."""

    topic: str
    partition: int
    files: SegmentFiles
    segments: tuple[Segment, ...]
    first_dirty: int
    clean_is_unique: bool
    """No key occurs twice in the clean segments, so that their keys need only be looked up."""
    keyed: bool
    """False if the policy has no `compact`: nothing competes, and small segments are only joined."""
    rules: Rules
    merge_bytes: int
    merge_span_ms: int | None
    min_rewrite_ratio: float
    job_id: str
    seed: int
    max_set_bytes: int | None = None
    """The memory that a set of keys may use; None means no limit."""
    threads: int = 1
    progress_path: str | None = None

    def is_clean(self, segment: Segment) -> bool:
        return segment.last_offset < self.first_dirty

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Segments that were read, and the one that holds their survivors, if there are any."""

    removed: tuple[Segment, ...]
    added: Segment | None
    tombstones_removed: int = 0
    oldest: OldestTombstones = NO_TOMBSTONES
    """The oldest tombstones in the new segment."""
    read_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a unit. Segments that no `rewritten` names stay as they are."""

    topic: str
    partition: int
    segments: tuple[Segment, ...]
    rewritten: tuple[Rewritten, ...] = ()
    spared: bool = False
    """A segment with superseded records was left as it is, because it has few of them."""
    read_bytes: int = 0
    duration_s: float = 0.0
    peak_set_bytes: int = 0
    tombstones_kept: int = 0
    examined: tuple[str, ...] = field(default=())
    """Paths of the segments whose tombstones were looked at and that stay as they are."""
    oldest_examined: OldestTombstones = NO_TOMBSTONES

    @property
    def removed(self) -> tuple[Segment, ...]:
        return tuple(segment for each in self.rewritten for segment in each.removed)

    @property
    def added(self) -> tuple[Segment, ...]:
        return tuple(each.added for each in self.rewritten if each.added is not None)

    @property
    def left(self) -> tuple[Segment, ...]:
        """The segments after the run, in offset order."""
        gone = {segment.path for segment in self.removed}
        stays = [segment for segment in self.segments if segment.path not in gone]
        return tuple(sorted((*stays, *self.added), key=lambda segment: segment.first_offset))
