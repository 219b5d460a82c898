"""The parts of an explanation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lastword.compaction.holds import ReaderPosition
from lastword.compaction.plan import Reason
from lastword.compaction.rules import TombstoneWait

VALUE_BYTES = 256
"""The most bytes of a value that are in an explanation."""

Run = Literal["asked for", "forced", "worker"]
"""The run that is explained. `asked for`: as `topic compact` makes it, which seals first; `forced`: the same with
`--force`; `worker`: the worker's next round, which seals and compacts only what is due."""

PlaceKind = Literal["wal active", "wal rolled", "sealed clean", "sealed dirty"]

Rule = Literal[
    "below the log start",
    "beaten",
    "expired tombstone",
    "too old",
    "last word",
    "tombstone",
    "no key",
    "not compacted",
    "not in the run",
]
"""The rule that decides about a record, in the order of the rules. The first four remove it. `last word` and
`tombstone` are the winners of their keys; `not compacted`: the topic's policy has no `compact`; `not in the run`: it
is only in the WAL, or held back."""

Wait = Literal[
    TombstoneWait,
    "sealing",
    "min.compaction.lag.ms",
    "a run",
    "newer record",
    "retention.ms",
]
"""The event for which a record waits that stays only for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLocation:
    """The place of a record: the kind of file, its name or address, and the offsets that it spans."""

    kind: PlaceKind
    file: str
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The fate of a record in the next run, and the reason."""

    goes: bool
    rule: Rule
    beaten_by: int | None = None
    """The offset that beats it, now or as soon as that may be compacted."""
    waits_for: Wait | None = None
    """None: it goes, or no event is known that would end its stay."""
    until_ms: int | None = None
    """When the wait is over, if known."""
    readers: tuple[ReaderPosition, ...] = ()
    """The readers that have not read it, if it waits for readers."""
    at_seal: bool = False
    """It goes when it is sealed, whether or not there is a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRecord:
    """A record and its verdict. Key and value of a record below the log start are not shown: it has been deleted."""

    partition: int
    offset: int
    timestamp_ms: int
    """-1: it came without one."""
    key: bytes | None
    value: bytes | None
    """At most its first VALUE_BYTES."""
    value_bytes: int | None
    is_tombstone: bool
    is_hidden: bool
    place: RecordLocation
    verdict: Verdict
    reason: str
    """The verdict in words."""

    @property
    def goes(self) -> bool:
        return self.verdict.goes


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExplanation:
    """The records of a partition that were asked for, and the run for which they are explained."""

    partition: int
    log_start: int
    first_dirty: int
    sealed_end: int
    log_end: int
    due: Reason | None
    """The reason for a run; None: there is none, and `not_due` says why not."""
    not_due: str | None
    records: tuple[ExplainedRecord, ...]
    next_offset: int | None
    """The offset to continue at, if there are more records than were asked for."""
    problem: str | None = None
    """The reason why a part of the WAL could not be looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of some records of a topic."""

    topic: str
    run: Run
    seals: bool
    """Whether the run seals first."""
    now_ms: int
    partitions: tuple[PartitionExplanation, ...]
    next: tuple[int, int] | None = None
    """The partition and the offset to continue at, if there are more records than were asked for."""

    @property
    def records(self) -> tuple[ExplainedRecord, ...]:
        return tuple(record for each in self.partitions for record in each.records)
