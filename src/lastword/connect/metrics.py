"""The metrics of connectors, in the registry of the process."""

from __future__ import annotations

from lastword.metrics import counter, gauge

RECORDS = counter("lastword_connect_records_total", "Records that a source has appended.", ["source"])
BYTES = counter(
    "lastword_connect_bytes_total", "Bytes of the record batches that a source has appended.", ["source"]
)
ERRORS = counter("lastword_connect_errors_total", "Errors after which a source was restarted.", ["source"])
RUNNING = gauge(
    "lastword_connect_running",
    "1 while a source is running, 0 while it is paused or waits after an error.",
    ["source"],
)
LAST_APPEND = gauge(
    "lastword_connect_last_append_timestamp",
    "When a source last appended records, in seconds since the epoch.",
    ["source"],
)
SLOT_LAG = gauge(
    "lastword_connect_slot_lag_bytes",
    "Bytes of WAL that PostgreSQL keeps for the slot of a source.",
    ["source"],
)
