"""What compaction must do to a partition, by lists and dicts, straight from the rules and nothing of the package.

The model is told how the records lie in segments (that is storage, not a rule) and says for each record whether
it goes. It remembers what the rules remember: which records a run has passed, when, and who reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

NO_TIMESTAMP = -1


@dataclass(frozen=True)
class Row:
    """A record. `age_ms` is what counts in rules about age: that of the roll where it came without a timestamp."""

    offset: int
    timestamp_ms: int
    age_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def is_tombstone(self) -> bool:
        return self.key is not None and self.value is None


@dataclass(frozen=True)
class Policy:
    """The settings of a topic that the rules look at."""

    deletes: bool = False
    compacts: bool = True
    strategy: str = "offset"
    header: str = "v"
    header_format: str = "long"
    min_ratio: float = 0.5
    ratio_basis: str = "bytes"
    min_lag_ms: int = 0
    max_lag_ms: int | None = None
    delete_retention_ms: int = 86_400_000
    tombstone_clock: str = "compaction"
    min_rewrite_ratio: float = 0.0
    at_seal: bool = False
    retention_ms: int | None = 604_800_000
    hold_ms: int = 604_800_000
    hold_max_ms: int = 2_592_000_000


@dataclass(frozen=True)
class Extent:
    """Where a segment lies, as the table says."""

    first_offset: int
    last_offset: int
    size_bytes: int


@dataclass
class Verdict:
    """What a run does to a partition."""

    compactable_end: int = 0
    gone: dict[int, str] = field(default_factory=dict)
    """Offsets that go, and why."""
    may_wait: set[int] = field(default_factory=set)
    """Of those, tombstones that may stay for longer. By the rules they go; Lastword does not look into segments that
    it may not compact, and keeps every tombstone that might beat a record there."""
    passed: list[Row] = field(default_factory=list)

    def reasons(self, reason: str) -> list[int]:
        return [offset for offset, why in self.gone.items() if why == reason]


class Partition:
    """One partition of a topic: its records, positions, and the memory of its runs."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.rows: list[Row] = []
        """What is sealed, physically."""
        self.tail: list[Row] = []
        self.log_start = self.first_dirty = self.sealed_end = self.log_end = 0
        self.first_passed_ms: dict[int, int] = {}
        self.deadlines: dict[int, int] = {}
        self.runs: list[tuple[int, int]] = []
        self.readers: dict[str, tuple[int, int]] = {}
        """Position and time of last activity, of readers with a committed position."""

    # ------------------------------------------------------------------------------- what happens to it

    def append(self, row: Row) -> None:
        assert row.offset == self.log_end
        self.tail.append(row)
        self.log_end += 1

    def seal(self, sealed: Iterable[int], now_ms: int) -> None:
        """The tail was sealed; `sealed` are the offsets that are in the table now.

        Without compaction at sealing nothing may be missing. With it, all that another record of the tail beats must be,
        but for what min.compaction.lag.ms holds back: how much that is depends on where the files were cut.
        """
        there = set(sealed)
        live = [row for row in self.tail if row.offset >= self.log_start]
        gone = {row.offset for row in live} - there
        rivals = live if self.policy.at_seal and self.policy.compacts else []
        if self.policy.min_lag_ms:
            young = (i for i, row in enumerate(rivals) if now_ms - row.age_ms < self.policy.min_lag_ms)
            rivals = rivals[: next(young, len(rivals))]
        beaten = {row.offset for row in rivals if any(self.beats(other, row) for other in rivals)}
        assert gone <= beaten if self.policy.min_lag_ms else gone == beaten, (gone, beaten)
        self.rows += [row for row in live if row.offset in there]
        self.tail = []
        self.sealed_end = self.log_end

    def delete_before(self, offset: int, extents: Sequence[Extent]) -> None:
        if offset <= self.log_start:
            return
        self.log_start = offset
        self.first_dirty = max(self.first_dirty, min(offset, self.sealed_end))
        self._drop_below([extent for extent in extents if extent.last_offset < offset])
        self.tail = [row for row in self.tail if row.offset >= offset]

    def retain(self, extents: Sequence[Extent], now_ms: int) -> None:
        """Retention by retention.ms: whole segments from the oldest on whose newest record is too old."""
        gone: list[Extent] = []
        aged = False
        for extent in extents:
            below = extent.last_offset < self.log_start
            old = (
                self.policy.deletes
                and self.policy.retention_ms is not None
                and now_ms - max(row.age_ms for row in self._of(extent)) > self.policy.retention_ms
            )
            if not below and not old:
                break
            aged = aged or not below
            gone.append(extent)
        self._drop_below(gone)
        if aged:
            left = extents[len(gone) :]
            self.log_start = max(self.log_start, left[0].first_offset if left else self.sealed_end)
            self.first_dirty = max(self.first_dirty, self.log_start)

    def _drop_below(self, extents: Sequence[Extent]) -> None:
        gone = {row.offset for extent in extents for row in self._of(extent)}
        self.rows = [row for row in self.rows if row.offset not in gone]

    def commit(self, reader: str, position: int, now_ms: int) -> None:
        self.readers[reader] = (position, now_ms)

    def ran(self, verdict: Verdict, left: Iterable[int], now_ms: int, *, log_end: int | None = None) -> None:
        """A run was committed, after which these offsets are left."""
        kept = set(left)
        self.rows = [row for row in self.rows if row.offset in kept]
        for row in verdict.passed:
            if row.offset not in self.first_passed_ms:
                self.first_passed_ms[row.offset] = now_ms
                self.deadlines[row.offset] = now_ms + self.policy.delete_retention_ms
        self.first_dirty = max(self.first_dirty, verdict.compactable_end)
        self.runs.append((now_ms, self.log_end if log_end is None else log_end))

    # ---------------------------------------------------------------------------------------- the rules

    def version(self, row: Row) -> tuple[int, int]:
        """What `timestamp` and `header` compare first: having a version at all, and then which."""
        if self.policy.strategy == "timestamp":
            return (0, 0) if row.timestamp_ms == NO_TIMESTAMP else (1, row.timestamp_ms)
        found = [value for name, value in row.headers if name == self.policy.header]
        value = found[-1] if found else None
        if value is None:
            return (0, 0)
        if self.policy.header_format == "long":
            return (1, int.from_bytes(value, "big", signed=True)) if len(value) == 8 else (0, 0)
        try:
            return (1, int(value.decode()))
        except ValueError:
            return (0, 0)

    def beats(self, one: Row, other: Row) -> bool:
        if one.key is None or one.key != other.key or one.offset == other.offset:
            return False
        if self.policy.strategy == "offset":
            return one.offset > other.offset
        if self.policy.strategy == "first":
            return one.offset < other.offset
        return (self.version(one), one.offset) > (self.version(other), other.offset)

    def compactable(self, extents: Sequence[Extent], now_ms: int) -> list[Extent]:
        found: list[Extent] = []
        for extent in extents:
            newest = max(row.age_ms for row in self._of(extent))
            if self.policy.min_lag_ms and now_ms - newest < self.policy.min_lag_ms:
                break
            found.append(extent)
        return found

    def judge(self, extents: Sequence[Extent], now_ms: int) -> Verdict:
        """What a run that begins now does."""
        ready = self.compactable(extents, now_ms)
        verdict = Verdict(
            compactable_end=(
                extents[len(ready)].first_offset if len(ready) < len(extents) else self.sealed_end
            )
        )
        inside = [row for extent in ready for row in self._of(extent)]
        live = [row for row in inside if row.offset >= self.log_start]
        outside = [row for extent in extents[len(ready) :] for row in self._of(extent)]
        verdict.passed = live
        by_key: dict[bytes, list[Row]] = {}
        for row in live:
            if row.key is not None:
                by_key.setdefault(row.key, []).append(row)
        for row in inside:
            if row.offset < self.log_start:
                verdict.gone[row.offset] = "below the log start"
            elif row.key is not None and any(self.beats(other, row) for other in by_key[row.key]):
                verdict.gone[row.offset] = "beaten"
            elif row.is_tombstone and self._may_go(row, verdict.compactable_end, outside, now_ms):
                verdict.gone[row.offset] = "tombstone"
                if outside and self.policy.strategy != "offset":
                    verdict.may_wait.add(row.offset)
            elif self._is_old(row, now_ms):
                verdict.gone[row.offset] = "old"
        return verdict

    def _is_old(self, row: Row, now_ms: int) -> bool:
        return (
            self.policy.deletes
            and self.policy.retention_ms is not None
            and now_ms - row.age_ms > self.policy.retention_ms
        )

    def _may_go(self, row: Row, compactable_end: int, outside: Sequence[Row], now_ms: int) -> bool:
        if row.offset not in self.first_passed_ms:
            return False
        expiry_ms = self.expiry_ms(row)
        if now_ms < expiry_ms:
            return False
        held = any(
            position <= row.offset and now_ms - active_ms <= self.policy.hold_ms
            for position, active_ms in self.readers.values()
        )
        if held and now_ms - expiry_ms <= self.policy.hold_max_ms:
            return False
        if any(self.beats(row, other) for other in outside):
            return False
        if self.policy.strategy in ("timestamp", "header"):
            return any(
                time_ms >= expiry_ms and end <= compactable_end
                for time_ms, end in [*self.runs, (now_ms, self.log_end)]
            )
        return True

    def expiry_ms(self, row: Row) -> int:
        if self.policy.tombstone_clock == "record":
            return row.age_ms + self.policy.delete_retention_ms
        return self.deadlines[row.offset]

    def due(self, extents: Sequence[Extent], now_ms: int) -> set[str]:
        """Every reason for which the partition is due."""
        if not self.policy.compacts:
            return set()
        ready = self.compactable(extents, now_ms)
        dirty = [extent for extent in ready if extent.last_offset >= self.first_dirty]
        reasons: set[str] = set()
        if dirty:
            oldest = min(row.age_ms for extent in dirty for row in self._of(extent))
            if self.policy.max_lag_ms is not None and now_ms - oldest > self.policy.max_lag_ms:
                reasons.add("max.compaction.lag.ms")
            if self.dirty_ratio(extents, now_ms) >= self.policy.min_ratio:
                reasons.add("min.cleanable.dirty.ratio")
        verdict = self.judge(extents, now_ms)
        if set(verdict.reasons("tombstone")) - verdict.may_wait:
            reasons.add("tombstones")
        return reasons

    def dirty_ratio(self, extents: Sequence[Extent], now_ms: int) -> float:
        ready = self.compactable(extents, now_ms)
        dirty = [extent for extent in ready if extent.last_offset >= self.first_dirty]
        if not dirty:
            return 0.0
        if self.policy.ratio_basis == "bytes":
            return sum(each.size_bytes for each in dirty) / sum(each.size_bytes for each in ready)
        rows = [row for extent in ready for row in self._of(extent)]
        keys = [row.key for row in rows if row.key is not None]
        return (len(keys) - len(set(keys))) / len(rows)

    def state(self) -> dict[bytes, Row]:
        """The winner of each key, sealed and tail together, tombstones too."""
        best: dict[bytes, Row] = {}
        for row in [*self.rows, *self.tail]:
            if row.key is None or row.offset < self.log_start:
                continue
            if row.key not in best or self.beats(row, best[row.key]):
                best[row.key] = row
        return best

    def visible(self) -> list[Row]:
        return [row for row in [*self.rows, *self.tail] if row.offset >= self.log_start]

    def _of(self, extent: Extent) -> list[Row]:
        return [row for row in self.rows if extent.first_offset <= row.offset <= extent.last_offset]


def state_of(partitions: Sequence[Partition]) -> dict[bytes, tuple[int, Row]]:
    """The state of a topic: a key that is in several partitions counts once, and deleted keys don't."""
    best: dict[bytes, tuple[int, int, Row]] = {}
    for number, partition in enumerate(partitions):
        for key, row in partition.state().items():
            if key not in best or (row.timestamp_ms, number) > best[key][:2]:
                best[key] = (row.timestamp_ms, number, row)
    return {key: (number, row) for key, (_, number, row) in best.items() if row.value is not None}


def with_policy(partitions: Mapping[int, Partition], **changes: object) -> None:
    """The settings of a topic were altered."""
    for partition in partitions.values():
        partition.policy = replace(partition.policy, **changes)  # type: ignore[arg-type]
