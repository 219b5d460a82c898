"""The metrics of all processes of the server as one text.

Each process has the same registry. One process owns each series, and in the others the series is absent or 0, so that
the sum is the owner's value.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from lastword import metrics
from lastword.admin import scene
from lastword.errors import UnavailableError
from lastword.folder.running import RunningServer

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


Lags = Callable[[], list[tuple[str, str, int, int]]]
"""Returns tuples of group, topic, partition, and how far the group is behind in the partition."""


def exposition(worker: Callable[[], str], server: RunningServer | None, lags: Lags = list) -> str:
    """Return the metrics of this process and its groups, of the worker if it answers, and of the supervisor."""
    families = list(metrics.REGISTRY.collect())
    is_up = True
    try:
        families += text_string_to_metric_families(worker())
    except UnavailableError as error:
        logger.debug("the worker's metrics are left out: %s", error)
        is_up = False
    families += _supervised(server, worker_is_up=is_up)
    families += _behind(lags)
    registry = CollectorRegistry()
    registry.register(_Merged(families))
    return generate_latest(registry).decode()


class _Merged(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for family in self._families:
            # The creation time of a counter: noise beside the counter, and meaningless as a sum.
            if family.name.endswith("_created"):
                continue
            into = merged.setdefault(
                family.name, Metric(family.name, family.documentation, family.type, family.unit)
            )
            into.samples.extend(
                each
                for each in family.samples
                if not each.name.endswith("_created") and each.labels.get("topic") != scene.STORY_TOPIC
            )
        for family in merged.values():
            family.samples = _summed(family.samples)
            yield family


def _summed(samples: Iterable[Sample]) -> list[Sample]:
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], Sample] = {}
    for sample in samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        known = sums.get(key)
        sums[key] = sample if known is None else sample._replace(value=known.value + sample.value)
    return list(sums.values())


def _supervised(server: RunningServer | None, *, worker_is_up: bool) -> Iterator[Metric]:
    restarts = CounterMetricFamily(
        "lastword_process_restarts",
        "How often a process of the server ended by itself and was restarted.",
        labels=["process"],
    )
    up = GaugeMetricFamily(
        "lastword_process_up", "Whether a process of the server answers.", labels=["process"]
    )
    up.add_metric(["broker"], 1)
    up.add_metric(["worker"], int(worker_is_up))
    for name, child in (server.children if server is not None else {}).items():
        restarts.add_metric([name], child.restarts)
    yield restarts
    yield up


def _behind(lags: Lags) -> Iterator[Metric]:
    """Yield the lag of groups. It is read at each scrape, so that groups that are gone are not shown any more."""
    family = GaugeMetricFamily(
        "lastword_group_lag",
        "Offsets between a consumer group's committed offset and the log end.",
        labels=["group", "topic", "partition"],
    )
    try:
        for group, topic, partition, behind in lags():
            family.add_metric([group, topic, str(partition)], behind)
    except UnavailableError as error:
        logger.debug("the lag of groups is left out: %s", error)
    yield family
