"""The metrics of several processes as one text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lastword import metrics
from lastword.admin.exposition import exposition
from lastword.errors import UnavailableError
from lastword.folder.running import ChildProcess, this_process


def text_of_worker() -> str:
    registry = CollectorRegistry()
    sealed = Counter("lastword_tiering_segments_sealed_total", "…", ["topic"], registry=registry)
    sealed.labels("of-the-worker-only").inc(3)
    Gauge("lastword_kafka_connections", "…", registry=registry)
    Gauge("lastword_log_cleaner_uncleanable_partitions", "…", registry=registry).set(2)
    took = Histogram("lastword_log_cleaner_duration_seconds", "…", ["topic"], registry=registry)
    took.labels("of-the-worker-only").observe(0.2)
    return generate_latest(registry).decode()


@pytest.fixture(autouse=True)
def here() -> Iterator[None]:
    metrics.KAFKA_CONNECTIONS.set(7)
    metrics.UNCLEANABLE_PARTITIONS.set(0)
    yield
    metrics.KAFKA_CONNECTIONS.set(0)


def test_each_series_has_the_value_of_its_owner_and_comes_once() -> None:
    text = exposition(text_of_worker, None)
    assert "lastword_kafka_connections 7.0\n" in text
    assert "lastword_log_cleaner_uncleanable_partitions 2.0\n" in text
    assert 'lastword_tiering_segments_sealed_total{topic="of-the-worker-only"} 3.0\n' in text
    assert 'lastword_log_cleaner_duration_seconds_count{topic="of-the-worker-only"} 1.0\n' in text
    assert 'lastword_process_up{process="worker"} 1.0\n' in text
    helps = [line for line in text.splitlines() if line.startswith("# HELP")]
    assert len(helps) == len(set(helps))
    assert "_created" not in text


def test_a_worker_that_is_away_leaves_the_rest() -> None:
    def away() -> str:
        raise UnavailableError("away")

    text = exposition(away, None)
    assert "lastword_kafka_connections 7.0\n" in text
    assert 'lastword_process_up{process="worker"} 0.0\n' in text


def test_restarts_are_those_that_the_supervisor_counted() -> None:
    server = this_process(since_ms=0, kafka="127.0.0.1:1", admin="127.0.0.1:2", token_file=None)
    server.children["worker"] = ChildProcess(restarts=4)
    assert 'lastword_process_restarts_total{process="worker"} 4.0\n' in exposition(text_of_worker, server)
