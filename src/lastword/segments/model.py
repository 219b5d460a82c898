"""The model of a catalog of sealed segments, and how it changes.

Terms: a *catalog* holds one *table* per topic; a table has *snapshots*; a snapshot names *segments* (immutable
files of records of one partition, in offset order) and carries the *positions* of every partition.

Every change is one commit that makes one new snapshot and is fenced by the snapshot that it was planned on:
if another commit came first, `ConflictError` is raised, nothing has changed, and the caller plans again
(`retry_on_conflict`). So positions always match the files they refer to, and no stale writer can move a position
back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol, TypeVar
from uuid import UUID

from lastword.errors import ConflictError, StorageError, UnavailableError, UnknownTopicError
from lastword.wal.reader import OffsetGoneError

T = TypeVar("T")

Codec = Literal["zstd", "lz4"]
"""The compression of a segment's columns: small, or fast to write and read."""


LOOKS: Final = 5
"""The number of attempts at a read when records move in the meantime."""


class SegmentGoneError(StorageError):
    """A segment's file, or a snapshot, is no longer there. Look at the table again and plan from that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A sealed file of records. Everything here is known without opening it."""

    path: str
    partition: int
    first_offset: int
    last_offset: int
    records: int
    size_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    null_keys: int
    null_values: int


class Deadline(NamedTuple):
    """The time from which tombstones with offsets in [start, end) may be removed; there may be none.

    With `by_record` it follows from the timestamp of the oldest of them, and the others may have to wait longer.
    """

    start: int
    end: int
    deadline_ms: int
    by_record: bool = False


class LastRun(NamedTuple):
    """The last compaction of a partition."""

    time_ms: int
    duration_ms: int
    reclaimed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The positions of a partition. None of the offsets ever moves down.

    `epochs` are pairs of leader epoch and the first offset written under it, oldest first. The rest is what
    compaction must remember from one run to the next: when tombstones may be removed, when the last runs began and
    the log end at that time (pairs, oldest first), and whether one of them has spared superseded records.

    `clean_max_timestamp_ms` is at least the timestamp of every record that was ever below the first dirty offset,
    including removed ones, but not those below the log start. None: not known, or there is no such record.
    """

    log_start: int = 0
    first_dirty: int = 0
    sealed_end: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    deadlines: tuple[Deadline, ...] = ()
    runs: tuple[tuple[int, int], ...] = ()
    spared: bool = False
    last_run: LastRun | None = None
    clean_max_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The data folder that may change a table, as the table names it. The epoch rises when another takes over.

    `incarnation` tells apart the openings of one folder, if its catalog or warehouse could be shared with a clone
    of it; otherwise it is empty. Host and path are for people.
    """

    folder_id: str
    epoch: int = 1
    incarnation: str = ""
    host: str = ""
    path: str = ""

    def __str__(self) -> str:
        place = f"{self.path} on {self.host}" if self.path and self.host else "another place"
        return f"the data folder {self.folder_id[:8]} ({place}, epoch {self.epoch})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastOwner:
    """A data folder that has lost a topic, and the sealed end of each partition then: the rest is only in its WAL."""

    folder_id: str
    epoch: int
    sealed_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic. `config` has only the settings given to the topic itself, as text."""

    name: str
    id: UUID
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    deleted: bool = False
    owner: Owner | None = None
    """The data folder that may change it; None for a table of the first version, until one claims it."""
    past_owners: tuple[PastOwner, ...] = ()
    """The folders that lost it to another one, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLook:
    """The result of a look at a table. `topic` is None if there is no such table, or if nothing has changed."""

    pointer: str | None = None
    topic: TopicInfo | None = None
    is_unchanged: bool = False


class Guard(Protocol):
    """Says who may change a table. It is given the state of the table that a commit is fenced by."""

    def new_owner(self, topic: TopicInfo) -> Owner:
        """Return the owner that a new table gets."""
        ...

    def check(self, topic: TopicInfo) -> Owner | None:
        """Raise NotOwnerError unless we may. Return the owner to be noted with the commit, if it is not noted yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One state of a table. `topic` is as of now; the positions are those committed with the snapshot.

    `operation` and `details` say which job made it and what it did.
    """

    id: int | None
    parent_id: int | None
    committed_ms: int
    topic: TopicInfo
    positions: tuple[Positions, ...]
    operation: str
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The files that a collection removed, or would remove."""

    files: tuple[str, ...] = ()
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """The topic of a table, and the location of its files. Known even if the table can't be read."""

    topic_id: UUID
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """A commit that is about to remove records.

    `floors` has, for each partition that it touches, the offset below which only the snapshot after it may be
    read.
    """

    topic_id: UUID
    floors: Mapping[int, int]


Announce = Callable[[PendingCommit], AbstractContextManager[object]]
"""Tells the servers of the table's records about a commit: entered before it is made, left when it is made or not."""


def to_nobody(_commit: PendingCommit) -> AbstractContextManager[object]:
    """Announce a commit to nobody: no process serves the table's records."""
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A tag or a branch that another engine made. Its snapshot never expires."""

    name: str
    kind: Literal["tag", "branch"]
    snapshot: Snapshot


def check_not_deleted(base: Snapshot) -> None:
    """Raise UnknownTopicError if the topic has been deleted: the work of a job on it is void."""
    if base.topic.deleted:
        raise UnknownTopicError(f"topic {base.topic.name!r} has been deleted")


def look_again(attempt: Callable[[], T], what: str) -> T:
    """Call `attempt`, which looks at a table or a WAL and reads what it found, until nothing moved in the meantime.

    Sealing, compaction, retention, expiry and collection all move records. Raise UnavailableError, which names
    `what` was read, if they did so each time.
    """
    for _ in range(LOOKS):
        try:
            return attempt()
        except (SegmentGoneError, OffsetGoneError) as error:
            moved = error
    raise UnavailableError(f"{what} changed {LOOKS} times while it was read. {moved}".rstrip())


def retry_on_conflict(attempt: Callable[[], T], attempts: int = 10) -> T:
    """Call `attempt`, which looks at the table, plans and commits, until no other commit comes in between."""
    for _ in range(attempts - 1):
        try:
            return attempt()
        except ConflictError:
            continue
    return attempt()
