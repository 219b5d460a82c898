"""The metrics of this process, in Prometheus' form. Names are part of the public interface."""

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
    "The dirty ratio of a partition when it was last looked at.",
    ["topic", "partition"],
    registry=REGISTRY,
)
COMPACTION_DURATION = Histogram(
    "lastword_log_cleaner_duration_seconds",
    "How long the compaction of a partition took.",
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
    "Partitions, or whole topics, whose compaction failed and waits to be tried again.",
    registry=REGISTRY,
)
WORKER_LAST_RUN = Gauge(
    "lastword_worker_last_run_timestamp",
    "When a job of the worker last ended, in seconds since the epoch.",
    ["job"],
    registry=REGISTRY,
)
WORKER_FAILURES = Counter(
    "lastword_worker_failures_total", "Runs of a job of the worker that failed.", ["job"], registry=REGISTRY
)
TOPIC_BYTES = Gauge(
    "lastword_topic_bytes",
    "Bytes of a topic's sealed segments, with its cleanup.policy.",
    ["topic", "cleanup"],
    registry=REGISTRY,
)
WAL_BYTES = Gauge(
    "lastword_wal_bytes",
    "Bytes of a topic's WAL files when they were last looked at.",
    ["topic"],
    registry=REGISTRY,
)
UNSEALED_RECORDS = Gauge(
    "lastword_tiering_unsealed_records",
    "Records of a partition that are in the WAL only.",
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
    "By how much a partition's oldest dirty record is older than max.compaction.lag.ms; 0 if it is not.",
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
    "Offsets of the topic of consumer groups that could not be read when the broker started.",
    registry=REGISTRY,
)
KAFKA_CONNECTIONS = Gauge(
    "lastword_kafka_connections", "Connections of Kafka clients that are open.", registry=REGISTRY
)
KAFKA_CONNECTIONS_CLOSED = Counter(
    "lastword_kafka_connections_closed_total",
    "Connections of Kafka clients that were closed, by the reason.",
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
    "From the arrival of a request to its answer; a fetch may wait for records.",
    ["api"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
KAFKA_ERRORS = Counter(
    "lastword_kafka_errors_total",
    "Answers with an error code, by API and the code's name.",
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
    "Requests of the admin API, by their answer.",
    ["code"],
    registry=REGISTRY,
)

_OF_TOPICS = tuple(
    each
    for each in tuple(globals().values())
    if isinstance(each, Counter | Gauge | Histogram) and "topic" in each._labelnames  # noqa: SLF001
)


def forget_topic(name: str) -> None:
    """Take back what was exported of a topic that is gone: else everything of each that ever was would stay."""
    for metric in _OF_TOPICS:
        metric.remove_by_labels({"topic": name})


def exposition() -> str:
    """All metrics as Prometheus reads them."""
    return generate_latest(REGISTRY).decode()
