"""The size, dirty ratio and lag of every topic, as metrics that the worker sets periodically."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from lastword import metrics

if TYPE_CHECKING:
    from prometheus_client import Gauge

    from lastword.log.topic import Topic
    from lastword.segments.table import SegmentTable


Measurements: TypeAlias = "dict[Gauge, dict[tuple[str, ...], float]]"
"""The measurements of a topic: the values of gauges, by their labels."""


class Measures:
    """Sets the gauges of topics, and removes those of deleted topics."""

    def __init__(self) -> None:
        self._set: dict[Gauge, set[tuple[str, ...]]] = {}
        self._names: set[str] = set()

    def take(self, looks: Iterable[Measurements], *, names: Iterable[str]) -> None:
        """Export the measurements of topics. `names` are all existing topics, including unreadable ones."""
        found: dict[Gauge, dict[tuple[str, ...], float]] = defaultdict(dict)
        for each in looks:
            for gauge, values in each.items():
                found[gauge].update(values)
        for gauge, values in found.items():
            for labels, value in values.items():
                gauge.labels(*labels).set(value)
        for gauge, labels_before in self._set.items():
            for labels in labels_before - set(found.get(gauge, ())):
                gauge.remove(*labels)
        self._set = {gauge: set(values) for gauge, values in found.items()}
        there = set(names)
        for name in self._names - there:
            metrics.forget_topic(name)
        self._names = there


def measure_topic(topic: Topic, table: SegmentTable, now_ms: int) -> Measurements:
    """Return the measurements of a topic."""
    found: Measurements = defaultdict(dict)
    name = topic.name
    snapshot = table.snapshot()
    wals = topic.local_wals(snapshot)
    sealed_bytes = 0
    for each in topic.assess(table=table, snapshot=snapshot):
        at, segments = each.view.positions, each.view.segments
        labels = (name, str(each.view.partition))
        sealed_bytes += sum(segment.size_bytes for segment in segments)
        found[metrics.UNSEALED_RECORDS][labels] = each.view.unsealed_records
        if each.dirty_ratio is None:
            continue
        found[metrics.DIRTY_RATIO][labels] = each.dirty_ratio
        found[metrics.COMPACTION_OVERDUE][labels] = each.overdue_ms / 1000
        if at.last_run is not None:
            found[metrics.COMPACTION_LAST_RUN][labels] = at.last_run.time_ms / 1000
    cleanup = ",".join(sorted(topic.settings.cleanup_policy))
    found[metrics.TOPIC_BYTES][(name, cleanup)] = sealed_bytes
    found[metrics.WAL_BYTES][(name,)] = sum(wal.size_bytes for wal in wals)
    found[metrics.TIERING_LAG][(name,)] = max((wal.waiting_ms(now_ms) for wal in wals), default=0) / 1000
    return found
