"""The strategies that decide which record of a key wins. `strategy_of` returns the one that a topic's settings name.

To add one, write it here, add it to STRATEGIES, and allow its name in the settings (config/keys.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lastword.batch import VersionFormat, parse_version
from lastword.config import TopicSettings
from lastword.segments.rows import has_timestamp

MANY_ROWS = 1 << 18
"""Below this many rows, use one thread: more threads would cost more memory than the rows."""

Versions = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
"""Whether each row has a version, and which."""

Order = Literal["newest", "oldest", "version"]
"""The winner: the record with the highest offset, the one with the lowest, or the newest of those with the highest
version. A record without a version loses to one that has one."""


@dataclass(frozen=True)
class Strategy:
    """The rule by which the records of a key compete. It is sent to tasks in other processes."""

    order: ClassVar[Order]
    columns: ClassVar[tuple[str, ...]] = ()
    """The columns that `versions` reads."""
    wins: ClassVar[str]
    """The phrase that describes the winner."""
    beats: ClassVar[str]
    """The phrase that describes the winner in the explanation of a record that it beats."""

    @property
    def is_versioned(self) -> bool:
        """Whether a record may lose to one that was appended before it, and beat one appended after it."""
        return self.order == "version"

    @property
    def tag(self) -> str:
        """The rule in short. It is kept in tables, to know later how records have competed."""
        return type(self).__name__

    @property
    def required_header(self) -> tuple[str, VersionFormat] | None:
        """The header, and its format, without which no record is accepted."""
        return None

    def versions(self, rows: pa.Table) -> Versions:
        """Return the versions of some rows, which have the strategy's columns."""
        return np.zeros(len(rows), np.uint8), np.zeros(len(rows), np.int64)

    def winners(self, records: pa.Table) -> npt.NDArray[np.bool_]:
        """Return for each row whether no other row of its key beats it. Rows are of one partition, in offset order.

        A row with a null key has no competitors, and wins.
        """
        rows = np.arange(records.num_rows)
        if self.order == "oldest":
            rows = rows[::-1]
        elif self.order == "version":
            known, versions = self.versions(records)
            rows = np.lexsort((rows, versions, known))
        return best_of_each_key(records.column("key"), rows)


@dataclass(frozen=True)
class LastWord(Strategy):
    """The newest record wins."""

    order = "newest"
    wins = "the newest record of its key"
    beats = "a newer record of its key"


@dataclass(frozen=True)
class FirstWord(Strategy):
    """The oldest record wins."""

    order = "oldest"
    wins = "the first record of its key"
    beats = "an older record of its key, and the first one wins"


@dataclass(frozen=True)
class LatestTimestamp(Strategy):
    """The record with the latest timestamp wins."""

    order = "version"
    columns = ("timestamp", "timestamp_type")
    wins = "the record of its key with the latest timestamp"
    beats = "a record of its key with a later timestamp, or newer with the same"

    def versions(self, rows: pa.Table) -> Versions:
        """Return the timestamps. A record that came without one has no version."""
        known = has_timestamp(rows)
        versions = pc.fill_null(rows.column("timestamp").cast(pa.int64()), 0).to_numpy()
        return known.astype(np.uint8), np.where(known, versions, 0)


@dataclass(frozen=True)
class HighestHeader(Strategy):
    """The record with the highest version in a header wins."""

    header: str
    format: VersionFormat
    is_required: bool = False

    order = "version"
    columns = ("headers",)
    wins = "the record of its key with the highest version"
    beats = "a record of its key with a higher version, or newer with the same"

    @property
    def tag(self) -> str:
        return f"{super().tag} {self.format} {self.header}"

    @property
    def required_header(self) -> tuple[str, VersionFormat] | None:
        return (self.header, self.format) if self.is_required else None

    def versions(self, rows: pa.Table) -> Versions:
        """Return the values of the header. The last one of that name counts; one that can't be read is no version."""
        headers = rows.column("headers")
        known, versions = super().versions(rows)
        for row, entries in enumerate(headers.to_pylist()):
            value = next(
                (each["value"] for each in reversed(entries or ()) if each["key"] == self.header), None
            )
            version = parse_version(value, self.format)
            if version is not None:
                known[row], versions[row] = 1, version
        return known, versions


def _header(settings: TopicSettings) -> HighestHeader:
    name, version_format = settings.compaction_strategy_header, settings.compaction_strategy_header_format
    assert name is not None and version_format is not None, "settings are checked when they are created"
    return HighestHeader(
        header=name,
        format=version_format,
        is_required=settings.compaction_strategy_header_missing == "reject",
    )


STRATEGIES: dict[str, Callable[[TopicSettings], Strategy]] = {
    "offset": lambda _: LastWord(),
    "first": lambda _: FirstWord(),
    "timestamp": lambda _: LatestTimestamp(),
    "header": _header,
}
"""The strategies by their names in `compaction.strategy`."""


def strategy_of(settings: TopicSettings) -> Strategy:
    """Return the strategy of a topic."""
    return STRATEGIES[settings.compaction_strategy](settings)


def has_same_rules(settings: TopicSettings, others: TopicSettings) -> bool:
    """Return whether records compete in the same way under both settings."""
    return settings.cleanup_policy == others.cleanup_policy and strategy_of(settings) == strategy_of(others)


def best_of_each_key(keys: pa.ChunkedArray, order: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Mark the row of each key that is last in `order` (row numbers, worst first), and all rows without a key."""
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
