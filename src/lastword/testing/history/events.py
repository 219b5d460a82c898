"""Operations: requests of clients, and the log's responses.

`invoked` and `completed` are numbers in one order that all processes share: a recorder takes the first before the
request is sent, and the second after the response has arrived. An operation that never returned has no `completed`.
`invoked_ms` and `completed_ms` are the server's clock at these moments. It may jump.

The outcome is `ok`, `refused` (certainly no effect) or `doubt`: after an error or a timeout, the operation may have
taken effect, or may still do so. Failed reads are in doubt or refused. They prove nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

Header = tuple[str, bytes | None]


class Outcome(StrEnum):
    OK = "ok"
    REFUSED = "refused"
    DOUBT = "doubt"


class RestartKind(StrEnum):
    CLEAN = "clean"
    KILL = "kill"
    POWER_LOSS = "power loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedRecord:
    """A record that a client sends. Within a topic, only tombstones may share both key and value.

    Without `timestamp_ms` the log sets the timestamp.
    """

    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRecord:
    """A record that a client read. Without `timestamp_ms` its timestamp is unknown."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point in a topic's past: the last offset of each partition that it includes, or a time."""

    offsets: Mapping[int, int] | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of one process. Each subclass is a kind of operation."""

    process: str
    invoked: int
    completed: int | None = None
    invoked_ms: int
    completed_ms: int | None = None
    outcome: Outcome = Outcome.DOUBT
    error: str | None = None
    """The error message, for stories only."""
    is_over: bool = False
    """Outcome unknown; any effect took place before it completed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated(Operation):
    """A topic is created with its initial settings. Topics that are created on demand are recorded as well."""

    topic: str
    partitions: int | None = None
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted(Operation):
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings(Operation):
    """Some settings of a topic change. None resets a setting to its default."""

    topic: str
    settings: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce(Operation):
    """Records are appended to a partition. If the outcome is ok, they have consecutive offsets from `base_offset`.

    An ok without `base_offset` is an acknowledgement without offsets.
    """

    topic: str
    partition: int
    records: tuple[ProducedRecord, ...]
    base_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch(Operation):
    """A consumer reads a partition from `from_offset` up to `next_offset`, where it would continue.

    The fetches of one `session` are one pass over the partition by one reader. `high_watermark` is the log end in the
    response. `first_dirty` is the first dirty offset of the snapshot that the response comes from.
    """

    topic: str
    partition: int
    session: str | None = None
    from_offset: int
    next_offset: int | None = None
    log_start: int | None = None
    high_watermark: int | None = None
    first_dirty: int | None = None
    records: tuple[SeenRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions(Operation):
    """The positions of a partition are read."""

    topic: str
    partition: int
    log_start: int | None = None
    first_dirty: int | None = None
    sealed_end: int | None = None
    log_end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit(Operation):
    group: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRead(Operation):
    """A group's committed offset is read. None means that there is none."""

    group: str
    topic: str
    partition: int
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRead(Operation):
    """The state of a topic is read: the newest value of each key, without deleted keys. None means all partitions."""

    topic: str
    partitions: tuple[int, ...] | None = None
    as_of: Point | None = None
    state: Mapping[bytes, bytes] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTravel(Operation):
    """A partition is read as of a point in its past."""

    topic: str
    partition: int
    as_of: Point
    records: tuple[SeenRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase(Operation):
    """All records of some keys are erased permanently, wherever they are stored."""

    topic: str
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecords(Operation):
    """The log start of a partition moves up."""

    topic: str
    partition: int
    before_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart(Operation):
    """The server stops after `invoked`, and runs again by `completed`."""

    kind: RestartKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Operation):
    """The log is restored from a backup that was made between two numbers of the order. Without `topics`, all are restored."""

    backup_invoked: int
    backup_completed: int
    topics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover(Operation):
    """Another server takes topics over, from their sealed segments. Without `topics`, it takes all of them."""

    topics: tuple[str, ...] | None = None


KINDS: dict[str, type[Operation]] = {
    "topic_created": TopicCreated,
    "topic_deleted": TopicDeleted,
    "topic_settings": TopicSettings,
    "produce": Produce,
    "fetch": Fetch,
    "positions": Positions,
    "offset_commit": OffsetCommit,
    "offset_read": OffsetRead,
    "state_read": StateRead,
    "time_travel": TimeTravel,
    "erase": Erase,
    "delete_records": DeleteRecords,
    "restart": Restart,
    "restore": Restore,
    "takeover": Takeover,
}
"""The kinds of operations, by their names in files."""
