"""The input and the outcome of one compaction of one partition. Both travel between the driver and executors."""

from __future__ import annotations

from dataclasses import dataclass, field

from lastword.compaction.rules import NO_TOMBSTONES, OldestTombstones, Rules
from lastword.segments.model import Segment, SegmentTotals
from lastword.segments.parquet import SegmentFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit(SegmentTotals):
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
    rewrite_marked_ms: int
    """Segments with marks from this time or before are rewritten; -1: none."""
    now_ms: int
    job_id: str
    seed: int
    max_set_bytes: int | None = None
    """The memory that a set of keys may use; None means no limit."""
    threads: int = 1
    progress_path: str | None = None

    def is_clean(self, segment: Segment) -> bool:
        return not segment.is_dirty(self.first_dirty)

    def rewrites(self, segment: Segment, kept: int) -> bool:
        """Return whether a segment that keeps this many records is rewritten, rather than marked or left alone."""
        garbage = segment.rows - kept
        if garbage == 0:
            return False
        is_old = segment.marks is not None and segment.marks.since_ms <= self.rewrite_marked_ms
        return kept == 0 or is_old or garbage / segment.rows >= self.min_rewrite_ratio


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
class Marked:
    """A segment of which rows were marked, before and after. Its file stays."""

    before: Segment
    after: Segment
    tombstones_removed: int = 0
    oldest: OldestTombstones | None = None
    """The oldest tombstones that it still has; None if they were not looked at."""
    read_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a unit. Segments that neither `rewritten` nor `marked` name stay as they are."""

    topic: str
    partition: int
    segments: tuple[Segment, ...]
    rewritten: tuple[Rewritten, ...] = ()
    marked: tuple[Marked, ...] = ()
    read_bytes: int = 0
    duration_s: float = 0.0
    peak_set_bytes: int = 0
    tombstones_kept: int = 0
    examined: tuple[str, ...] = field(default=())
    """Paths of the segments whose tombstones were looked at and that stay as they are."""
    oldest_examined: OldestTombstones = NO_TOMBSTONES

    @property
    def removed(self) -> tuple[Segment, ...]:
        rewritten = (segment for each in self.rewritten for segment in each.removed)
        return (*rewritten, *(each.before for each in self.marked))

    @property
    def added(self) -> tuple[Segment, ...]:
        rewritten = (each.added for each in self.rewritten if each.added is not None)
        return (*rewritten, *(each.after for each in self.marked))

    @property
    def written_bytes(self) -> int:
        """The bytes of the files that were written, both segments and marks."""
        segments = sum(each.added.size_bytes for each in self.rewritten if each.added is not None)
        return segments + sum(file.size_bytes for each in self.marked for file in each.after.files[1:])

    @property
    def records_marked(self) -> int:
        return sum(each.before.records - each.after.records for each in self.marked)

    @property
    def tombstones_removed(self) -> int:
        rewritten = sum(each.tombstones_removed for each in self.rewritten)
        return rewritten + sum(each.tombstones_removed for each in self.marked)

    @property
    def left(self) -> tuple[Segment, ...]:
        """The segments after the run, in offset order."""
        gone = {segment.path for segment in self.removed}
        stays = [segment for segment in self.segments if segment.path not in gone]
        return tuple(sorted((*stays, *self.added), key=lambda segment: segment.first_offset))
