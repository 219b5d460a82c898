"""What compaction would find in a partition, from metadata alone."""

from __future__ import annotations

from collections.abc import Sequence

from lastword.config import TopicSettings
from lastword.segments.table import Positions, Segment


def compactable(segments: Sequence[Segment], settings: TopicSettings, now_ms: int) -> list[Segment]:
    """The segments of a partition, in offset order, before the first that min.compaction.lag.ms holds back."""
    ready: list[Segment] = []
    for segment in segments:
        if now_ms - segment.max_timestamp_ms < settings.min_compaction_lag_ms:
            break
        ready.append(segment)
    return ready


def dirty_ratio(segments: Sequence[Segment], at: Positions, settings: TopicSettings, now_ms: int) -> float:
    """Compactable dirty bytes by clean and compactable dirty bytes; 0 where there are none."""
    ready = compactable(segments, settings, now_ms)
    dirty = sum(segment.size_bytes for segment in ready if segment.last_offset >= at.first_dirty)
    total = sum(segment.size_bytes for segment in ready)
    return dirty / total if total else 0.0
