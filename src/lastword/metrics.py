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
    "Partitions whose compaction failed and waits to be tried again.",
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


def exposition() -> str:
    """All metrics as Prometheus reads them."""
    return generate_latest(REGISTRY).decode()
