"""What the log asks of the place where sealed segments live.

Words: a *catalog* holds one *table* a topic; a table has *snapshots*; a snapshot names *segments* (immutable
files of records of one partition, in offset order) and carries the *positions* of every partition.

Every change is one commit that makes one new snapshot and is fenced by the snapshot that it was planned on:
if another commit came first, `ConflictError` is raised, nothing has changed, and the caller plans again
(`retry_on_conflict`). So positions and the files they speak of can't part, and no stale writer can move a
position back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeVar
from uuid import UUID

import pyarrow as pa

from lastword.errors import ConflictError, StorageError, UnavailableError, UnknownTopicError
from lastword.wal.reader import OffsetGoneError

if TYPE_CHECKING:
    from lastword.segments.older import OlderState
    from lastword.segments.parquet import SegmentFiles

T = TypeVar("T")

Codec = Literal["zstd", "lz4"]
"""How the columns of a segment are packed: small, or fast to write and read."""


LOOKS: Final = 5
"""How often what is read in one go is begun again when the records moved meanwhile."""


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
    """Tombstones with offsets in [start, end) may go from `deadline_ms` on; there may be none.

    With `by_record` it comes of the timestamp of the oldest of them, and the others may have to wait longer.
    """

    start: int
    end: int
    deadline_ms: int
    by_record: bool = False


class LastRun(NamedTuple):
    """What the last compaction of a partition did."""

    time_ms: int
    duration_ms: int
    reclaimed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """How far a partition has come. None of the offsets ever moves down.

    `epochs` are pairs of leader epoch and the first offset written under it, oldest first. The rest is what
    compaction must remember from one run to the next: when tombstones may go, when the last runs began and how
    far the log had come by then (pairs, oldest first), and whether one of them has spared superseded records.

    `clean_max_timestamp_ms` is at least the timestamp of every record that was ever below the first dirty offset,
    those that are gone too but for those below the log start. None: not known, or there is no such record.
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

    `incarnation` tells apart the openings of one folder, where its catalog or warehouse could be shared with a clone
    of it; elsewhere it is empty. Host and path are for people.
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
    """A data folder that has lost a topic, and how far each partition was sealed then: the rest is in its WAL alone."""

    folder_id: str
    epoch: int
    sealed_ends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """What a topic is. `config` has only the settings given to the topic itself, as text."""

    name: str
    id: UUID
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    deleted: bool = False
    owner: Owner | None = None
    """The data folder that may change it; None for a table of the first version, until one claims it."""
    past_owners: tuple[PastOwner, ...] = ()
    """Those that lost it to another folder, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLook:
    """What a look at a table has found. `topic` is None if there is no such table, or if nothing has changed."""

    pointer: str | None = None
    topic: TopicInfo | None = None
    is_unchanged: bool = False


class Guard(Protocol):
    """Says who may change a table. Asked with the state of the table that a commit is fenced by."""

    def new_owner(self, topic: TopicInfo) -> Owner:
        """The owner that a new table gets."""
        ...

    def check(self, topic: TopicInfo) -> Owner | None:
        """NotOwnerError unless we may; the owner to be noted with the commit, if it is not yet."""
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
    """What a collection removed, or would remove."""

    files: tuple[str, ...] = ()
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """Which topic a table is of, and where its files are. Known also of a table that can't be read."""

    topic_id: UUID
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCommit:
    """A commit that is about to take records away.

    `floors` has, for each partition that it touches, the offset below which only the snapshot after it may be
    read.
    """

    topic_id: UUID
    floors: Mapping[int, int]


Announce = Callable[[PendingCommit], AbstractContextManager[object]]
"""Tells those who serve the table's records of a commit: entered before it is made, left when it is made or not."""


def to_nobody(_commit: PendingCommit) -> AbstractContextManager[object]:
    """Announce a commit where nobody serves the table's records."""
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A tag or a branch that another engine made. Its snapshot never expires."""

    name: str
    kind: Literal["tag", "branch"]
    snapshot: Snapshot


class SegmentWriter(Protocol):
    """Writes one new segment file. Until a commit names it, the file is nobody's.

    Leaving the `with` block by an exception abandons the file and removes it where it can.
    """

    def write(self, records: pa.RecordBatch) -> None:
        """Add records (record.PAYLOAD_SCHEMA, every timestamp filled in), in offset order."""
        ...

    def close(self) -> Segment | None:
        """Finish and sync the file; None if nothing was written."""
        ...

    def __enter__(self) -> SegmentWriter: ...

    def __exit__(self, kind: type[BaseException] | None, /, *rest: object) -> None: ...


class SegmentTable(Protocol):
    """The sealed segments of one topic."""

    @property
    def location(self) -> str:
        """Where the table's files are, as a URI."""
        ...

    @property
    def files(self) -> SegmentFiles:
        """How to read and write its segment files without the table, on any machine."""
        ...

    def snapshot(self, snapshot_id: int | None = None) -> Snapshot:
        """A fresh look at the current snapshot, or the one with this id if it is still there."""
        ...

    def check_owned(self, snapshot: Snapshot) -> None:
        """NotOwnerError if we may not change the table as it was in a snapshot: its positions speak of another's records."""
        ...

    def history(self) -> list[Snapshot]:
        """The snapshots that are or were the current one and are still kept, oldest first; the last is current.

        Those of branches that other engines made are not among them.
        """
        ...

    def refs(self) -> list[Ref]:
        """The tags and branches of the table, but for the branch that is the topic."""
        ...

    def plan(self, snapshot: Snapshot, partition: int | None = None, from_offset: int = 0) -> list[Segment]:
        """The snapshot's segments that reach `from_offset` or beyond, by partition and offset."""
        ...

    def writer(
        self, partition: int, first_offset: int, job_id: str, codec: Codec = "zstd"
    ) -> SegmentWriter: ...

    def read(
        self, segment: Segment, columns: Sequence[str] | None = None, from_offset: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Records of a segment from an offset on, as record.PAYLOAD_SCHEMA (or its `columns`)."""
        ...

    def append(
        self,
        base: Snapshot,
        segments: Sequence[Segment],
        positions: Mapping[int, Positions],
        *,
        operation: str,
        details: Mapping[str, str] | None = None,
    ) -> Snapshot:
        """Commit new segments, if any, together with the positions of the partitions that changed."""
        ...

    def replace(
        self,
        base: Snapshot,
        removed: Sequence[Segment],
        added: Sequence[Segment],
        positions: Mapping[int, Positions],
        *,
        operation: str,
        details: Mapping[str, str] | None = None,
    ) -> Snapshot:
        """Commit segments out and segments in. ConflictError if one of `removed` is no longer there."""
        ...

    def alter(
        self,
        base: Snapshot,
        *,
        config: Mapping[str, str] | None = None,
        partitions: int | None = None,
        deleted: bool = False,
    ) -> Snapshot:
        """Commit the topic's settings (all of them), a larger number of partitions, or its end."""
        ...

    def claim(self) -> TopicInfo:
        """Have the table name us as its owner, as the guard wants it: by a commit, unless it does already."""
        ...

    def take_over(self, base: Snapshot, owner: Owner, positions: Mapping[int, Positions]) -> Snapshot:
        """Commit another owner. The one before can't commit any more."""
        ...

    def expire(
        self,
        *,
        retention_ms: int | None,
        keep: Collection[int] = (),
        only: Collection[int] | None = None,
        dry_run: bool = False,
    ) -> list[int]:
        """Forget snapshots that another one replaced so long ago (None: all), and return their ids.

        Where `only` is given, only those of it. Never the current one, those in `keep`, nor those that a tag or a branch names.
        """
        ...

    def collect(
        self,
        *,
        grace_ms: int | None,
        live_jobs: Collection[str] = (),
        dry_run: bool = False,
        data_only: bool = False,
    ) -> Collected:
        """Remove files that no live snapshot has named for so long (None: at all), of no job in `live_jobs`.

        Since when is known from earlier calls: a file that is found to be unnamed for the first time is so from now on.

        With `data_only` metadata files stay: a commit that is under way elsewhere may be about to name them.
        """
        ...


class SegmentCatalog(Protocol):
    """The tables of all topics."""

    def create(
        self,
        topic: TopicInfo,
        *,
        positions: tuple[Positions, ...] = (),
        segments: Sequence[Segment] = (),
        operation: str = "create",
        details: Mapping[str, str] | None = None,
    ) -> SegmentTable:
        """TopicExistsError if the name is taken, also by one that is being deleted.

        A topic that is restored begins with positions, and with segments that are below its `location` already.
        """
        ...

    def location(self, name: str, topic_id: UUID) -> str:
        """Where the files of a new topic go."""
        ...

    def load(self, name: str) -> SegmentTable:
        """UnknownTopicError if there is none; one that is being deleted is still found."""
        ...

    def owners(self, known: Mapping[str, str | None]) -> dict[str, OwnerLook]:
        """Look at the owners of topics. `known` is the pointer that the last look at each one has found, if any."""
        ...

    def list(self) -> list[str]:
        """The names of all topics, those being deleted included, sorted."""
        ...

    def place(self, name: str) -> TablePlace:
        """UnknownTopicError if there is none; one that can't be read is found too."""
        ...

    def drop(self, name: str, topic_id: UUID) -> None:
        """Forget a table, if it is still the one of this topic. Its files stay. Can be repeated."""
        ...

    def older_states(self, name: str) -> Sequence[OlderState]:
        """The states that a table had before the current one, newest first. It need not be readable."""
        ...

    def go_back(self, name: str, state: OlderState) -> None:
        """Make an older state the current one."""
        ...

    def remove_files(self, location: str, topic_id: UUID) -> None:
        """Remove every file of a topic that the catalog does not have. StorageError if others may be there too."""
        ...

    def close(self) -> None: ...


def check_not_deleted(base: Snapshot) -> None:
    """UnknownTopicError if the topic has been deleted: what a job has made of it is for nothing."""
    if base.topic.deleted:
        raise UnknownTopicError(f"topic {base.topic.name!r} has been deleted")


def look_again(attempt: Callable[[], T], what: str) -> T:
    """Call `attempt`, which looks at a table or a WAL and reads what it found, until nothing has moved meanwhile.

    Sealing, compaction, retention, expiry and collection all move records. UnavailableError, which names `what` was
    read, if they did so each time.
    """
    for _ in range(LOOKS):
        try:
            return attempt()
        except (SegmentGoneError, OffsetGoneError) as error:
            moved = error
    raise UnavailableError(f"{what} changed {LOOKS} times while it was read. {moved}".rstrip())


def retry_on_conflict(attempt: Callable[[], T], attempts: int = 10) -> T:
    """Call `attempt`, which looks at the table, plans and commits, until no other commit came between."""
    for _ in range(attempts - 1):
        try:
            return attempt()
        except ConflictError:
            continue
    return attempt()
