"""The metrics of connectors, in the registry of the process."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from lastword.metrics import REGISTRY

RECORDS = Counter(
    "lastword_connect_records_total", "Records that a source has appended.", ["source"], registry=REGISTRY
)
BYTES = Counter(
    "lastword_connect_bytes_total",
    "Bytes of the record batches that a source has appended.",
    ["source"],
    registry=REGISTRY,
)
ERRORS = Counter(
    "lastword_connect_errors_total",
    "Errors after which a source was restarted.",
    ["source"],
    registry=REGISTRY,
)
RUNNING = Gauge(
    "lastword_connect_running",
    "1 while a source is running, 0 while it is paused or waits after an error.",
    ["source"],
    registry=REGISTRY,
)
LAST_APPEND = Gauge(
    "lastword_connect_last_append_timestamp",
    "When a source last appended records, in seconds since the epoch.",
    ["source"],
    registry=REGISTRY,
)
SLOT_LAG = Gauge(
    "lastword_connect_slot_lag_bytes",
    "Bytes of WAL that PostgreSQL keeps for the slot of a source.",
    ["source"],
    registry=REGISTRY,
)
