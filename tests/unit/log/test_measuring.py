"""The gauges that the worker sets from what it finds."""

from __future__ import annotations

from tests.support.clock import ManualClock

from lastword import metrics
from lastword.log import Log


def value(gauge: object, **labels: str) -> float | None:
    (family,) = gauge.collect()  # type: ignore[attr-defined]
    return next((each.value for each in family.samples if each.labels == labels), None)


def test_sizes_lags_and_ratios(log: Log, clock: ManualClock) -> None:
    settings = {"cleanup.policy": "compact", "max.compaction.lag.ms": "60000"}
    users = log.create_topic("measured", config=settings)
    users.append("a", "1")
    log.measure()
    place = {"topic": "measured", "partition": "0"}
    assert value(metrics.UNSEALED_RECORDS, **place) == 1
    assert value(metrics.TOPIC_BYTES, topic="measured", cleanup="compact") == 0
    assert (value(metrics.WAL_BYTES, topic="measured") or 0) > 0
    # Rolled and not sealed: that is what waits.
    users.roll(due_only=False)
    clock.move(90_000)
    log.measure()
    assert value(metrics.TIERING_LAG, topic="measured") == 90
    users.seal()
    log.measure()
    assert value(metrics.TIERING_LAG, topic="measured") == 0
    assert value(metrics.UNSEALED_RECORDS, **place) == 0
    assert (value(metrics.TOPIC_BYTES, topic="measured", cleanup="compact") or 0) > 0
    assert value(metrics.DIRTY_RATIO, **place) == 1
    assert value(metrics.COMPACTION_OVERDUE, **place) == 30
    assert value(metrics.COMPACTION_LAST_RUN, **place) is None
    log.compact()
    log.measure()
    assert value(metrics.COMPACTION_OVERDUE, **place) == 0
    assert value(metrics.COMPACTION_LAST_RUN, **place) == clock.now_ms() / 1000


def test_what_is_gone_is_no_longer_exported(log: Log) -> None:
    log.create_topic("gone", config={"cleanup.policy": "compact"})
    log.measure()
    assert value(metrics.TIERING_LAG, topic="gone") == 0
    log.alter_topic("gone", set_config={"cleanup.policy": "compact,delete"})
    log.measure()
    assert value(metrics.TOPIC_BYTES, topic="gone", cleanup="compact") is None
    assert value(metrics.TOPIC_BYTES, topic="gone", cleanup="compact,delete") == 0
    log.delete_topic("gone")
    log.measure()
    assert value(metrics.TIERING_LAG, topic="gone") is None
    assert value(metrics.TOPIC_BYTES, topic="gone", cleanup="compact,delete") is None


def test_nothing_is_left_of_a_topic_that_is_gone(log: Log) -> None:
    log.create_topic("deleted", config={"cleanup.policy": "compact"})
    log.topic("deleted").append("a", "1")
    log.topic("deleted").seal()
    log.compact()
    log.run_retention()
    log.measure()
    assert 'topic="deleted"' in metrics.exposition()
    log.delete_topic("deleted")
    log.measure()
    assert 'topic="deleted"' not in metrics.exposition()
