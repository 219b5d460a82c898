"""Which record of a key wins, by the topic's `compaction.strategy`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lastword import batch
from lastword.config import TopicSettings

_COLUMNS = {"offset": [], "first": [], "timestamp": ["timestamp"], "header": ["headers"]}
_LOWEST = np.iinfo(np.int64).min


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
    last = ranked.group_by("key").aggregate([("rank", "max")]).column("rank_max").to_numpy()
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
            # A record without a timestamp has the lowest version, as its -1 says.
            microseconds = pc.fill_null(records.column("timestamp").cast(pa.int64()), _LOWEST)
            return np.lexsort((rows, microseconds.to_numpy()))
        case "header":
            known, versions = _header_versions(records.column("headers"), settings)
            return np.lexsort((rows, versions, known))


def _header_versions(
    headers: pa.ChunkedArray, settings: TopicSettings
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    name, version_format = settings.compaction_strategy_header, settings.compaction_strategy_header_format
    assert version_format is not None
    known, versions = np.zeros(len(headers), np.bool_), np.zeros(len(headers), np.int64)
    for row, entries in enumerate(headers.to_pylist()):
        # The last header of that name counts.
        value = next((each["value"] for each in reversed(entries or ()) if each["key"] == name), None)
        version = batch.parse_version(value, version_format)
        if version is not None:
            known[row], versions[row] = True, version
    return known, versions
