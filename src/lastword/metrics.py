"""The metrics of this process, for Prometheus. Names are part of the public interface."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REGISTRY = CollectorRegistry()

counter = partial(Counter, registry=REGISTRY)
gauge = partial(Gauge, registry=REGISTRY)
histogram = partial(Histogram, registry=REGISTRY)

WAL_FILES_DELETED = counter(
    "lastword_wal_retention_files_deleted_total", "WAL files that the deleter removed.", ["topic"]
)
WAL_BYTES_RECLAIMED = counter(
    "lastword_wal_retention_bytes_reclaimed_total",
    "Bytes of the WAL files that the deleter removed.",
    ["topic"],
)
WAL_RETENTION_ERRORS = counter(
    "lastword_wal_retention_errors_total", "WAL files that the deleter could not remove.", ["topic"]
)
WAL_RETENTION_LAST_RUN = gauge(
    "lastword_wal_retention_last_run_timestamp",
    "When the deleter last looked at the topic, in seconds since the epoch.",
    ["topic"],
)
WAL_DISK_USAGE = gauge(
    "lastword_wal_disk_usage_bytes", "Bytes of the topic's WAL files after the deleter's last run.", ["topic"]
)
RECORDS_APPENDED = counter(
    "lastword_append_records_total", "Records that were appended and acknowledged.", ["topic"]
)
BYTES_APPENDED = counter("lastword_append_bytes_total", "Bytes of the batches that were appended.", ["topic"])
SEGMENTS_SEALED = counter(
    "lastword_tiering_segments_sealed_total", "Segments that were committed to the table.", ["topic"]
)
BYTES_SEALED = counter(
    "lastword_tiering_bytes_sealed_total", "Bytes of the segments that were committed.", ["topic"]
)
SEAL_ERRORS = counter(
    "lastword_tiering_errors_total", "Partitions whose sealing stopped at an error.", ["topic"]
)
COMPACTIONS = counter(
    "lastword_log_cleaner_compactions_total",
    "Compactions of a partition that were committed.",
    ["topic", "partition"],
)
CLEANED_BYTES = counter(
    "lastword_log_cleaner_cleaned_bytes_total", "Bytes that compactions reclaimed.", ["topic", "partition"]
)
DIRTY_RATIO = gauge(
    "lastword_log_cleaner_dirty_ratio",
    "The dirty ratio of a partition, as last measured.",
    ["topic", "partition"],
)
COMPACTION_DURATION = histogram(
    "lastword_log_cleaner_duration_seconds", "Duration of a partition's compaction.", ["topic"]
)
COMPACTION_ERRORS = counter(
    "lastword_log_cleaner_errors_total", "Compactions of a partition that failed.", ["topic"]
)
UNCLEANABLE_PARTITIONS = gauge(
    "lastword_log_cleaner_uncleanable_partitions",
    "Partitions, or whole topics, whose compaction failed and waits for a retry.",
)
WORKER_LAST_RUN = gauge(
    "lastword_worker_last_run_timestamp",
    "When a job of the worker last ended, in seconds since the epoch.",
    ["job"],
)
WORKER_FAILURES = counter("lastword_worker_failures_total", "Failed runs of a job of the worker.", ["job"])
TOPIC_BYTES = gauge(
    "lastword_topic_bytes",
    "Bytes of a topic's sealed segments, with its cleanup.policy.",
    ["topic", "cleanup"],
)
WAL_BYTES = gauge("lastword_wal_bytes", "Bytes of a topic's WAL files, as last measured.", ["topic"])
UNSEALED_RECORDS = gauge(
    "lastword_tiering_unsealed_records",
    "Records of a partition that are only in the WAL.",
    ["topic", "partition"],
)
TIERING_LAG = gauge(
    "lastword_tiering_lag_seconds",
    "How long the oldest rolled WAL file of a topic has been waiting to be sealed.",
    ["topic"],
)
COMPACTION_OVERDUE = gauge(
    "lastword_log_cleaner_overdue_seconds",
    "How much older than max.compaction.lag.ms a partition's oldest dirty record is; 0 if it is not older.",
    ["topic", "partition"],
)
COMPACTION_LAST_RUN = gauge(
    "lastword_log_cleaner_last_run_timestamp",
    "When a partition was last compacted, in seconds since the epoch.",
    ["topic", "partition"],
)
GROUPS_UNREADABLE_OFFSETS = gauge(
    "lastword_groups_unreadable_offsets",
    "Offsets in the consumer groups' topic that could not be read when the broker started.",
)
KAFKA_CONNECTIONS = gauge("lastword_kafka_connections", "Open connections of Kafka clients.")
KAFKA_CONNECTIONS_CLOSED = counter(
    "lastword_kafka_connections_closed_total", "Closed connections of Kafka clients, by reason.", ["reason"]
)
KAFKA_REQUESTS = counter(
    "lastword_kafka_requests_total", "Requests of Kafka clients that were answered.", ["api"]
)
KAFKA_REQUEST_DURATION = histogram(
    "lastword_kafka_request_duration_seconds",
    "Time from the arrival of a request to its answer; a fetch may wait for records.",
    ["api"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
KAFKA_ERRORS = counter(
    "lastword_kafka_errors_total",
    "Answers with an error code, by API and name of the code.",
    ["api", "error"],
)
BYTES_FETCHED = counter(
    "lastword_fetch_bytes_total", "Bytes of record batches that were sent to Kafka clients.", ["topic"]
)
ADMIN_REQUESTS = counter(
    "lastword_admin_requests_total", "Requests to the admin API, by status code.", ["code"]
)

_OF_TOPICS = tuple(
    each
    for each in tuple(globals().values())
    if isinstance(each, Counter | Gauge | Histogram) and "topic" in each._labelnames  # noqa: SLF001
)


def forget_topic(name: str) -> None:
    """Remove the metrics of a topic that is gone. Otherwise those of every topic that ever existed would stay."""
    for metric in _OF_TOPICS:
        metric.remove_by_labels({"topic": name})


def exposition() -> str:
    """Return all metrics in Prometheus' text format."""
    return generate_latest(REGISTRY).decode()
