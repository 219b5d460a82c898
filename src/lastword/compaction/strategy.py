"""Which record of a key wins, by the topic's `compaction.strategy`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lastword import batch
from lastword.config import TopicSettings
from lastword.record import TimestampType

_COLUMNS: dict[str, list[str]] = {
    "offset": [],
    "first": [],
    "timestamp": ["timestamp"],
    "header": ["headers"],
}

MANY_ROWS = 1 << 18
"""Fewer rows compete on one thread: others would cost more memory than the rows."""


def version_columns(settings: TopicSettings) -> list[str]:
    """The columns beside key and offset that the strategy looks at."""
    return list(_COLUMNS[settings.compaction_strategy])


def winners(records: pa.Table, settings: TopicSettings) -> npt.NDArray[np.bool_]:
    """For each row, whether no other row of its key beats it. Rows are of one partition, in offset order.

    A row with a null key competes with nobody, and wins.
    """
    return best_of_each_key(records.column("key"), _order(records, settings))


def best_of_each_key(keys: pa.ChunkedArray, order: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """The row of each key that stands last in `order` (row numbers, worst first); all rows without a key."""
    best: npt.NDArray[np.bool_] = keys.is_null().to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    ranked = pa.table({"key": keys, "rank": rank})
    if best.any():
        ranked = ranked.filter(keys.is_valid())
    last = (
        ranked.group_by("key", use_threads=len(ranked) > MANY_ROWS)
        .aggregate([("rank", "max")])
        .column("rank_max")
        .to_numpy()
    )
    best[order[last]] = True
    return best


def _order(records: pa.Table, settings: TopicSettings) -> npt.NDArray[np.int64]:
    rows = np.arange(records.num_rows)
    match settings.compaction_strategy:
        case "offset":
            return rows
        case "first":
            return rows[::-1]
        case "timestamp":
            known, versions = timestamp_versions(records)
        case "header":
            name, version_format = (
                settings.compaction_strategy_header,
                settings.compaction_strategy_header_format,
            )
            assert name is not None and version_format is not None
            known, versions = header_versions(records.column("headers"), name, version_format)
    return np.lexsort((rows, versions, known))


def timestamp_versions(records: pa.Table) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Whether each row has a version, and which. A record that came without a timestamp has none."""
    timestamps = records.column("timestamp")
    known = timestamps.is_valid().to_numpy()
    if "timestamp_type" in records.column_names:
        known = known & (records.column("timestamp_type").to_numpy() != int(TimestampType.NONE))
    versions = pc.fill_null(timestamps.cast(pa.int64()), 0).to_numpy()
    return known.astype(np.uint8), np.where(known, versions, 0)


def header_versions(
    headers: pa.ChunkedArray, name: str, version_format: batch.VersionFormat
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Whether each row has a readable version in the last header of that name, and which."""
    known, versions = np.zeros(len(headers), np.uint8), np.zeros(len(headers), np.int64)
    for row, entries in enumerate(headers.to_pylist()):
        value = next((each["value"] for each in reversed(entries or ()) if each["key"] == name), None)
        version = batch.parse_version(value, version_format)
        if version is not None:
            known[row], versions[row] = 1, version
    return known, versions
