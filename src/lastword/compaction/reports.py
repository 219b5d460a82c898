"""What a compaction did, partition by partition."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.compaction.plan import Reason, Way


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """The result of a run for a partition. If it failed, `problem` is set and nothing was changed."""

    topic: str
    partition: int
    reason: Reason
    way: Way
    segments_before: int = 0
    segments_compacted: int = 0
    """The segments that were rewritten."""
    segments_marked: int = 0
    segments_after: int = 0
    records_before: int = 0
    records_after: int = 0
    records_marked: int = 0
    """The records that are gone while their bytes are still there."""
    bytes_before: int = 0
    bytes_after: int = 0
    garbage_bytes: int = 0
    """The bytes in `bytes_after` that no live record has."""
    tombstones_removed: int = 0
    tombstones_kept: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    peak_set_bytes: int = 0
    """The memory of the largest set of keys that a task had; 0 if Spark compared them."""
    duration_s: float = 0.0
    problem: str | None = None

    @property
    def reclaimed_bytes(self) -> int:
        return self.bytes_before - self.bytes_after


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFailure:
    """A partition that could not be compacted, or a whole topic if `partition` is None, and why."""

    topic: str
    partition: int | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """The result of a run, partition by partition."""

    engine: str
    partitions: tuple[PartitionReport, ...] = ()
    failed_topics: tuple[tuple[str, str], ...] = ()
    """Topics of which nothing could be compacted, and why. The other topics were not affected."""
    not_sealed: tuple[CompactionFailure, ...] = ()
    """Partitions whose WAL was to be sealed first, and could not be, or only in part."""
    duration_s: float = 0.0

    @property
    def problems(self) -> tuple[PartitionReport, ...]:
        """The partitions that failed. See `failures`, which has the topics too."""
        return tuple(each for each in self.partitions if each.problem is not None)

    @property
    def failures(self) -> tuple[CompactionFailure, ...]:
        """Everything that failed: whole topics first, then partitions. If empty, the run did all that it had to."""
        return (
            *(
                CompactionFailure(topic=topic, partition=None, message=why)
                for topic, why in self.failed_topics
            ),
            *self.not_sealed,
            *(
                CompactionFailure(topic=each.topic, partition=each.partition, message=each.problem or "")
                for each in self.problems
            ),
        )
