"""The readers that still need tombstones: those that committed a position and were active recently.

A reader is active while it has committed or polled within `reader.hold.ms`. Time in which nothing maintained
the log does not count, because nobody could read then either. So each maintenance round notes that it ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.compaction.rules import ReaderHold
from lastword.errors import StorageError
from lastword.folder import state_file
from lastword.folder.paths import UPTIME_FILE

_DOWN_AFTER_MS = 15 * 60 * 1000
Downtimes = Sequence[tuple[int, int]]
"""The times in which nothing maintained the log: from, until."""

_KEPT_MS = 90 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPosition:
    """The position of a named reader in a partition, and when it was last active."""

    reader: str
    partition: int
    position: int
    active_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Readership:
    """The readers of a topic, as of now. They decide which tombstones are still needed."""

    readers: Sequence[ReaderPosition]
    downtimes: Downtimes
    hold_ms: int
    hold_max_ms: int
    now_ms: int

    def active(self, partition: int) -> list[ReaderPosition]:
        """Return the readers of a partition that were active recently."""
        return [
            each
            for each in self.readers
            if each.partition == partition and self._inactive_ms(each) <= self.hold_ms
        ]

    def hold(self, partition: int) -> ReaderHold:
        """Return the lowest position of an active reader of a partition."""
        positions = [each.position for each in self.active(partition)]
        if not positions:
            return ReaderHold(max_ms=self.hold_max_ms)
        return ReaderHold(position=min(positions), max_ms=self.hold_max_ms)

    def _inactive_ms(self, reader: ReaderPosition) -> int:
        down_ms = sum(
            max(0, min(end, self.now_ms) - max(start, reader.active_ms)) for start, end in self.downtimes
        )
        return self.now_ms - reader.active_ms - down_ms


class Uptime:
    """The times in which the log was maintained, and its downtimes. Owned by the process that does maintenance."""

    def __init__(self, data_folder: Path) -> None:
        self._path = data_folder / UPTIME_FILE

    def downtimes(self, now_ms: int) -> list[tuple[int, int]]:
        """Return the downtimes up to now, including the time since the last note if that is long ago."""
        saved = self._load()
        down = [(start, end) for start, end in saved.get("down", ())]
        last_ms = saved.get("here_ms", now_ms)
        if now_ms - last_ms > _DOWN_AFTER_MS:
            down.append((last_ms, now_ms))
        return down

    def here(self, now_ms: int) -> None:
        """Note that the log is being maintained now. Raise StorageError if that can't be written."""
        down = [(start, end) for start, end in self.downtimes(now_ms) if now_ms - end < _KEPT_MS]
        last_ms = self._load().get("here_ms", now_ms)
        try:
            state_file.save(self._path, {"here_ms": max(now_ms, last_ms), "down": down})
        except OSError as error:
            raise StorageError(f"Can't write {self._path}: {error.strerror or error}.") from error

    def _load(self) -> dict[str, Any]:
        return state_file.load_if_whole(self._path, dict) or {}
