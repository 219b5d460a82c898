"""A round of sealing: rolled files of one partition that are compacted while they are sealed, and the outcome.

Both travel between the driver and executors.
"""

from __future__ import annotations

from dataclasses import dataclass

from lastword.compaction.strategy import Strategy
from lastword.segments.model import Codec, Segment
from lastword.segments.parquet import SegmentFiles
from lastword.wal.rolled import RolledFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Rolled files of a partition, one after another, and all that decides which of their records are written.

    They compete only with each other: a record that none of them beats is written, whatever its age.
    """

    partition: int
    files: tuple[RolledFile, ...]
    target: SegmentFiles
    """The files that are written."""
    strategy: Strategy
    merge_bytes: int
    merge_span_ms: int | None
    codec: Codec
    job_id: str
    seed: int
    memory_bytes: int
    """The memory that the keys and the surviving records may use, each half of it."""
    threads: int = 1
    progress_path: str | None = None

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def start(self) -> int:
        return self.files[0].from_offset

    @property
    def end(self) -> int:
        return self.files[-1].end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDone:
    """The outcome of a round. `beaten` of the records that the WAL had were not written."""

    segments: tuple[Segment, ...]
    records: int
    beaten: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    """Bounds of the timestamps of all records, also of those that were not written. The first is -1 if a record came
    without one, both if there are no records."""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSkipped:
    """Hardly any record of a round would be left out, so that the files are better sealed as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDamaged:
    """A file of a round is damaged. The files before it can be sealed; nothing was written."""

    seq: int
    message: str
