"""Seeded changelogs: the records of each round, and the settings under which they are compacted."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SENTINEL = b"\x00sentinel"
"""Begins the keys of records that only roll a segment. Kafka never cleans the active segment, and rolls by the
timestamps of records alone, so the last record of each round is later than the others by more than segment.ms."""

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS

YOUNG = 200 * DAY_MS
OLD = 1000 * DAY_MS
LAG = 500 * DAY_MS
"""Ages of records at the start, and the min.compaction.lag.ms between them: no run is long enough to change sides."""
ROLLS_AFTER = 8 * DAY_MS

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Change:
    partition: int
    key: bytes
    value: bytes | None
    headers: Headers
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Changes that are sent before both sides compact, and how."""

    changes: tuple[Change, ...]
    sentinels: tuple[Change, ...]
    """One in each partition."""
    compression: str
    batch_records: int
    idempotent: bool
    deleted: Mapping[int, int]
    """Partitions whose records before an offset are deleted before the compaction."""
    config: Mapping[str, str]
    """Settings that are changed before it."""
    held: bool
    """Whether min.compaction.lag.ms holds back these changes, and those of earlier rounds that were held."""

    @property
    def expires_at_once(self) -> bool:
        """Whether the next compaction after this one removes the tombstones that this one passes."""
        return self.config.get("delete.retention.ms") in ("0", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    seed: int
    partitions: int
    policy: str
    config: Mapping[str, str]
    """The topic's other settings."""
    fetch_bytes: int
    rounds: tuple[Round, ...]

    @property
    def topic(self) -> str:
        return f"seed-{self.seed}"

    @property
    def at_seal(self) -> bool:
        """Whether Lastword compacts while it seals."""
        return self.seed % 2 == 1


def workload(seed: int, rounds: int, now_ms: int) -> Workload:
    rng = random.Random(seed)
    kind = rng.choice(["plain", "plain", "tombstones expire", "tombstones expire", "lag"])
    policy, config = _settings(rng, kind)
    partitions = rng.choice([1, 1, 2, 3])
    return Workload(
        seed=seed,
        partitions=partitions,
        policy=policy,
        config=config,
        fetch_bytes=rng.choice([1, 1000, 50_000, 1 << 20]),
        rounds=tuple(_Rounds(rng, kind, partitions, now_ms, deletes="delete" in policy).make(rounds)),
    )


def _settings(rng: random.Random, kind: str) -> tuple[str, dict[str, str]]:
    config = {}
    policy = rng.choice(["compact", "compact", "compact,delete"])
    if policy != "compact":
        config["retention.ms"] = rng.choice(["-1", str(100 * YEAR_MS)])
    if kind == "lag":
        config["min.compaction.lag.ms"] = str(LAG)
    elif rng.random() < 0.2:
        config["max.compaction.lag.ms"] = str(HOUR_MS)
    if rng.random() < 0.3:
        config["segment.bytes"] = str(1 << 20)
    if rng.random() < 0.3:
        config["segment.ms"] = str(HOUR_MS)
    if rng.random() < 0.3:
        config["compression.type"] = rng.choice(["producer", "uncompressed", "gzip", "zstd"])
    return policy, config


class _Rounds:
    """Makes the rounds of a workload, one after the other."""

    def __init__(self, rng: random.Random, kind: str, partitions: int, now_ms: int, *, deletes: bool) -> None:
        self._rng = rng
        self._kind = kind
        self._deletes = deletes
        self._ends = [0] * partitions
        self._log_starts = [0] * partitions
        self._young_ms = now_ms - YOUNG
        self._first_ms = now_ms - OLD if kind == "lag" else rng.choice([1, now_ms - OLD, now_ms - YOUNG])
        self._time_ms = self._newest_ms = self._first_ms
        self._disorder_ms = rng.choice([0, 0, 5_000, HOUR_MS, 20 * DAY_MS])
        self._keys = _keys(rng)
        self._scattered = rng.random() < 0.5
        self._drifts = rng.random() < 0.5
        self._tombstones = rng.choice([0.1, 0.2, 0.6])
        self._held = False

    def make(self, count: int) -> list[Round]:
        return [self._round(last=number == count - 1) for number in range(count)]

    def _round(self, *, last: bool) -> Round:
        rng = self._rng
        config: dict[str, str] = {}
        if self._kind == "tombstones expire":
            config["delete.retention.ms"] = rng.choice(["0", "0", "1", "1", str(DAY_MS)])
        elif self._kind == "lag":
            if not self._held and rng.random() < 0.5:
                self._held = True
                self._time_ms = self._newest_ms = self._young_ms
            if last and rng.random() < 0.5:
                self._held = False
                config["min.compaction.lag.ms"] = "0"
        elif self._disorder_ms and rng.random() < 0.5:
            self._time_ms = self._first_ms
        keys = self._keys
        if self._drifts:
            # Most keys are at rest for a round.
            keys = rng.sample(keys, (len(keys) + 2) // 3)
        changes = tuple(self._change(keys) for _ in range(rng.randrange(1, rng.choice([3, 50, 500, 1000]))))
        for each in changes:
            self._ends[each.partition] += 1
        deleted = self._deleted() if self._deletes and rng.random() < 0.3 else {}
        self._ends = [end + 1 for end in self._ends]
        self._time_ms = self._newest_ms = self._newest_ms + ROLLS_AFTER
        return Round(
            changes=changes,
            sentinels=tuple(
                Change(each, SENTINEL + b"%d" % self._time_ms, b"", (), self._time_ms)
                for each in range(len(self._ends))
            ),
            compression=rng.choice(COMPRESSIONS),
            batch_records=rng.choice([1, 10, 1000]),
            idempotent=rng.random() < 0.5,
            deleted=deleted,
            config=config,
            held=self._held,
        )

    def _deleted(self) -> dict[int, int]:
        """Any records but the last one, so that there is always something to compact."""
        found = {}
        for partition, end in enumerate(self._ends):
            if self._log_starts[partition] < end - 1:
                found[partition] = self._log_starts[partition] = self._rng.randrange(
                    self._log_starts[partition], end
                )
        return found

    def _change(self, keys: Sequence[bytes]) -> Change:
        rng = self._rng
        self._time_ms += rng.choice([0, 0, 1, 7])
        at_ms = self._time_ms + (rng.randrange(self._disorder_ms) if self._disorder_ms else 0)
        self._newest_ms = max(self._newest_ms, at_ms)
        key = rng.choice(keys)
        place = rng.randrange(len(self._ends)) if self._scattered else sum(key)
        headers = tuple(
            (rng.choice(["a", "trace-id", "größe"]), rng.choice([None, b"", rng.randbytes(8)]))
            for _ in range(rng.choice([0, 0, 0, 1, 3]))
        )
        return Change(place % len(self._ends), key, self._value(), headers, at_ms)

    def _value(self) -> bytes | None:
        rng = self._rng
        if rng.random() < self._tombstones:
            return None
        match rng.randrange(10):
            case 0:
                return b""
            case 1:
                return rng.randbytes(rng.randrange(20_000))
            case _:
                return b'{"n":%d}' % rng.randrange(10**9)


def _keys(rng: random.Random) -> Sequence[bytes]:
    count = rng.choice([1, 5, 40, 300])
    if rng.random() < 0.3:
        # Much alike; the first one is empty, which is not the same as none.
        return [b"0" * number for number in range(count)]
    return [rng.randbytes(rng.choice([1, 4, 20, 200])) for _ in range(count)]
