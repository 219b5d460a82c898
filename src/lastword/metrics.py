"""The metrics of this process, for Prometheus. Names are part of the public interface."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REGISTRY = CollectorRegistry()

WAL_FILES_DELETED = Counter(
    "lastword_wal_retention_files_deleted_total",
    "WAL files that the deleter removed.",
    ["topic"],
    registry=REGISTRY,
)
WAL_BYTES_RECLAIMED = Counter(
    "lastword_wal_retention_bytes_reclaimed_total",
    "Bytes of the WAL files that the deleter removed.",
    ["topic"],
    registry=REGISTRY,
)
WAL_RETENTION_ERRORS = Counter(
    "lastword_wal_retention_errors_total",
    "WAL files that the deleter could not remove.",
    ["topic"],
    registry=REGISTRY,
)
WAL_RETENTION_LAST_RUN = Gauge(
    "lastword_wal_retention_last_run_timestamp",
    "When the deleter last looked at the topic, in seconds since the epoch.",
    ["topic"],
    registry=REGISTRY,
)
WAL_DISK_USAGE = Gauge(
    "lastword_wal_disk_usage_bytes",
    "Bytes of the topic's WAL files after the deleter's last run.",
    ["topic"],
    registry=REGISTRY,
)
RECORDS_APPENDED = Counter(
    "lastword_append_records_total",
    "Records that were appended and acknowledged.",
    ["topic"],
    registry=REGISTRY,
)
BYTES_APPENDED = Counter(
    "lastword_append_bytes_total", "Bytes of the batches that were appended.", ["topic"], registry=REGISTRY
)
SEGMENTS_SEALED = Counter(
    "lastword_tiering_segments_sealed_total",
    "Segments that were committed to the table.",
    ["topic"],
    registry=REGISTRY,
)
BYTES_SEALED = Counter(
    "lastword_tiering_bytes_sealed_total",
    "Bytes of the segments that were committed.",
    ["topic"],
    registry=REGISTRY,
)
SEAL_ERRORS = Counter(
    "lastword_tiering_errors_total",
    "Partitions whose sealing stopped at an error.",
    ["topic"],
    registry=REGISTRY,
)
COMPACTIONS = Counter(
    "lastword_log_cleaner_compactions_total",
    "Compactions of a partition that were committed.",
    ["topic", "partition"],
    registry=REGISTRY,
)
CLEANED_BYTES = Counter(
    "lastword_log_cleaner_cleaned_bytes_total",
    "Bytes that compactions reclaimed.",
    ["topic", "partition"],
    registry=REGISTRY,
)
DIRTY_RATIO = Gauge(
    "lastword_log_cleaner_dirty_ratio",
    "The dirty ratio of a partition, as last measured.",
    ["topic", "partition"],
    registry=REGISTRY,
)
COMPACTION_DURATION = Histogram(
    "lastword_log_cleaner_duration_seconds",
    "Duration of a partition's compaction.",
    ["topic"],
    registry=REGISTRY,
)
COMPACTION_ERRORS = Counter(
    "lastword_log_cleaner_errors_total",
    "Compactions of a partition that failed.",
    ["topic"],
    registry=REGISTRY,
)
UNCLEANABLE_PARTITIONS = Gauge(
    "lastword_log_cleaner_uncleanable_partitions",
    "Partitions, or whole topics, whose compaction failed and waits for a retry.",
    registry=REGISTRY,
)
WORKER_LAST_RUN = Gauge(
    "lastword_worker_last_run_timestamp",
    "When a job of the worker last ended, in seconds since the epoch.",
    ["job"],
    registry=REGISTRY,
)
WORKER_FAILURES = Counter(
    "lastword_worker_failures_total", "Failed runs of a job of the worker.", ["job"], registry=REGISTRY
)
TOPIC_BYTES = Gauge(
    "lastword_topic_bytes",
    "Bytes of a topic's sealed segments, with its cleanup.policy.",
    ["topic", "cleanup"],
    registry=REGISTRY,
)
WAL_BYTES = Gauge(
    "lastword_wal_bytes",
    "Bytes of a topic's WAL files, as last measured.",
    ["topic"],
    registry=REGISTRY,
)
UNSEALED_RECORDS = Gauge(
    "lastword_tiering_unsealed_records",
    "Records of a partition that are only in the WAL.",
    ["topic", "partition"],
    registry=REGISTRY,
)
TIERING_LAG = Gauge(
    "lastword_tiering_lag_seconds",
    "How long the oldest rolled WAL file of a topic has been waiting to be sealed.",
    ["topic"],
    registry=REGISTRY,
)
COMPACTION_OVERDUE = Gauge(
    "lastword_log_cleaner_overdue_seconds",
    "How much older than max.compaction.lag.ms a partition's oldest dirty record is; 0 if it is not older.",
    ["topic", "partition"],
    registry=REGISTRY,
)
COMPACTION_LAST_RUN = Gauge(
    "lastword_log_cleaner_last_run_timestamp",
    "When a partition was last compacted, in seconds since the epoch.",
    ["topic", "partition"],
    registry=REGISTRY,
)
GROUPS_UNREADABLE_OFFSETS = Gauge(
    "lastword_groups_unreadable_offsets",
    "Offsets in the consumer groups' topic that could not be read when the broker started.",
    registry=REGISTRY,
)
KAFKA_CONNECTIONS = Gauge(
    "lastword_kafka_connections", "Open connections of Kafka clients.", registry=REGISTRY
)
KAFKA_CONNECTIONS_CLOSED = Counter(
    "lastword_kafka_connections_closed_total",
    "Closed connections of Kafka clients, by reason.",
    ["reason"],
    registry=REGISTRY,
)
KAFKA_REQUESTS = Counter(
    "lastword_kafka_requests_total",
    "Requests of Kafka clients that were answered.",
    ["api"],
    registry=REGISTRY,
)
KAFKA_REQUEST_DURATION = Histogram(
    "lastword_kafka_request_duration_seconds",
    "Time from the arrival of a request to its answer; a fetch may wait for records.",
    ["api"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
KAFKA_ERRORS = Counter(
    "lastword_kafka_errors_total",
    "Answers with an error code, by API and name of the code.",
    ["api", "error"],
    registry=REGISTRY,
)
BYTES_FETCHED = Counter(
    "lastword_fetch_bytes_total",
    "Bytes of record batches that were sent to Kafka clients.",
    ["topic"],
    registry=REGISTRY,
)
ADMIN_REQUESTS = Counter(
    "lastword_admin_requests_total",
    "Requests to the admin API, by status code.",
    ["code"],
    registry=REGISTRY,
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
