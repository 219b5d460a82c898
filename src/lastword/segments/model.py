"""The model of a catalog of sealed segments, and how it changes.

Terms: a *catalog* holds one *table* per topic; a table has *snapshots*; a snapshot names *segments* (immutable
files of records of one partition, in offset order) and carries the *positions* of every partition.

Every change is one commit that makes one new snapshot and is fenced by the snapshot that it was planned on. If another
commit came first, `ConflictError` is raised, or `SegmentGoneError` if the files of that snapshot are gone already. Then
nothing has changed, and the caller plans again (`retry_on_conflict`). So positions always match the files they refer
to, and no stale writer can move a position back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, Protocol, TypeVar
from uuid import UUID

from lastword.errors import ConflictError, CorruptError, StorageError, UnavailableError, UnknownTopicError
from lastword.wal.reader import OffsetGoneError

T = TypeVar("T")

Codec = Literal["zstd", "lz4"]
"""The compression of a segment's columns: small, or fast to write and read."""


READS: Final = 5
"""The number of attempts at a read when records move in the meantime."""


COMMITS: Final = 10
"""The number of attempts at a commit when other commits come in between."""


class SegmentGoneError(StorageError):
    """A segment's file, or a snapshot, is no longer there. Look at the table again and plan from that.

    `path` is the file, if it is known, and `offset` the first one in it.
    """

    def __init__(self, message: str, *, path: str = "", offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class TableFile(NamedTuple):
    """A file of a table."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A sealed file of records. Everything here is known without opening it.

    If rows of the file are marked, they are gone: all counts and bounds are those of the live rows, and `size_bytes` is
    their share of the file.
    """

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
    marks: Marks | None = None

    @property
    def whole(self) -> Segment:
        """The segment with all rows of its file, also the marked ones."""
        return self if self.marks is None else self.marks.whole

    @property
    def rows(self) -> int:
        """The number of rows of its file, with the marked ones."""
        return self.whole.records

    @property
    def file_bytes(self) -> int:
        """The bytes that its file takes, and the delete files that name rows of it alone."""
        if self.marks is None:
            return self.size_bytes
        own = (each.size_bytes for each in self.marks.files if not each.is_shared)
        return self.marks.whole.size_bytes + sum(own)

    @property
    def garbage_bytes(self) -> int:
        """The bytes of its files that don't belong to live rows."""
        return self.file_bytes - self.size_bytes

    @property
    def files(self) -> tuple[TableFile, ...]:
        """Its file, and its delete files."""
        if self.marks is None:
            return (TableFile(self.path, self.size_bytes),)
        deletes = (TableFile(each.path, each.size_bytes) for each in self.marks.files)
        return (TableFile(self.path, self.marks.whole.size_bytes), *deletes)

    def moved(self, new_path: Callable[[str], str]) -> Segment:
        """Return the segment with other paths of its files."""
        marks = self.marks
        if marks is not None:
            marks = replace(
                marks,
                files=tuple(replace(each, path=new_path(each.path)) for each in marks.files),
                whole=marks.whole.moved(new_path),
            )
        return replace(self, path=new_path(self.path), marks=marks)

    def is_dirty(self, first_dirty: int) -> bool:
        """Return whether it reaches the first dirty offset of its partition or beyond: not all of it is compacted."""
        return self.last_offset >= first_dirty


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """A position-delete file of Iceberg: it lists rows of data files that are gone."""

    path: str
    size_bytes: int
    records: int
    is_shared: bool = False
    """It may list rows of several data files: another engine wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The rows of a segment's file that are gone while the file still has them."""

    files: tuple[DeleteFile, ...]
    whole: Segment
    """The segment without marks."""
    since_ms: int = 0
    """When the first of them was marked; 0 if another engine did it."""


class SegmentTotals:
    """The totals of something that has `segments`."""

    __slots__ = ()
    segments: tuple[Segment, ...]

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def file_bytes(self) -> int:
        return sum(segment.file_bytes for segment in self.segments)


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


class CompactedRange(NamedTuple):
    """Offsets [start, end) that were compacted while they were sealed, and bounds of the timestamps that they had.

    `min_timestamp_ms` is -1 if a record came without a timestamp. `log_start` is the one at that time, and `strategy`
    says which record of a key stayed; -1 and an empty text if neighbours that differ were joined.
    """

    start: int
    end: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    log_start: int = -1
    strategy: str = ""

    def joined(self, following: CompactedRange) -> CompactedRange:
        """Return the range of this one and the next one."""
        is_same = (self.log_start, self.strategy) == (following.log_start, following.strategy)
        return CompactedRange(
            start=self.start,
            end=following.end,
            min_timestamp_ms=min(self.min_timestamp_ms, following.min_timestamp_ms),
            max_timestamp_ms=max(self.max_timestamp_ms, following.max_timestamp_ms),
            log_start=self.log_start if is_same else -1,
            strategy=self.strategy if is_same else "",
        )


MAX_ROUNDS = 64
"""The most ranges that are kept of a partition, and of a topic unless it has more partitions than that."""


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
    rounds: tuple[CompactedRange, ...] = ()
    """The ranges that were compacted while they were sealed and that no run has passed, oldest first."""

    def next_exact(self, end: int) -> int:
        """Return the first offset from `end` on before which no record was removed because of one at or after it."""
        first = max(end, self.first_dirty)
        return next((each.end for each in self.rounds if each.start < first < each.end), first)

    def with_round(self, new: CompactedRange, *, partitions: int = 1) -> Positions:
        """Return the positions with one more range. If there are too many for one of so many partitions, join neighbours.

        Each snapshot names all of them.
        """
        rounds = [*self.rounds, new]
        while len(rounds) > max(1, MAX_ROUNDS // partitions):
            rounds[:2] = [rounds[0].joined(rounds[1])]
        return replace(self, rounds=tuple(rounds))

    def without_passed_rounds(self) -> Positions:
        """Return the positions without ranges that a run, or the log start, has passed."""
        passed = max(self.first_dirty, self.log_start)
        return replace(self, rounds=tuple(each for each in self.rounds if each.end > passed))


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
class OwnerState:
    """The result of a look at a table. `topic` is None if there is no such table, or if nothing has changed."""

    pointer: str | None = None
    topic: TopicInfo | None = None
    is_unchanged: bool = False


class Guard(Protocol):
    """Decides who may change a table, given the state of the table that fences the commit."""

    def new_owner(self, topic: TopicInfo) -> Owner:
        """Return the owner that a new table gets."""
        ...

    def check(self, topic: TopicInfo) -> Owner | None:
        """Raise NotOwnerError unless we may. Return the owner to be noted with the commit, if it is not noted yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One state of a table. `topic` is as of now; the positions are those committed with the snapshot.

    `operation` and `details` describe the job that made it, and its changes.
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
"""Announces a commit to the processes that serve the records: entered before it is made, left when it is made or not."""


def to_nobody(_commit: PendingCommit) -> AbstractContextManager[object]:
    """Announce nothing: no process serves the table's records."""
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


def retry_if_moved(attempt: Callable[[], T], what: str) -> T:
    """Call `attempt`, which reads a table or a WAL and the files that it names, until nothing moved in the meantime.

    Sealing, compaction, retention, expiry and collection all move records. Raise UnavailableError, which names
    `what` was read, if they did so each time, and CorruptError if a file is missing that the table still names.
    """
    moves = _Moves(what)
    while True:
        try:
            return attempt()
        except (SegmentGoneError, OffsetGoneError) as error:
            moves.note(error)


def resume_if_moved(read: Callable[[], Generator[T, None, None]], what: str) -> Generator[T, None, None]:
    """Yield from `read`, which looks and reads from where it stopped before, again whenever something moved meanwhile.

    The errors are those of `retry_if_moved`. Only moves without anything read in between count as one after another.
    """
    moves = _Moves(what)
    while True:
        try:
            with closing(read()) as found:
                for each in found:
                    yield each
                    moves = _Moves(what)
            return
        except (SegmentGoneError, OffsetGoneError) as error:
            moves.note(error)


class _Moves:
    """Counts the looks at something that moved before it was read."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0
        self._missing = ""

    def note(self, error: SegmentGoneError | OffsetGoneError) -> None:
        """Return if another look may help; otherwise raise the reason."""
        if isinstance(error, SegmentGoneError):
            if error.path and error.path == self._missing:
                # The second look named it although it was missing before. Only a file that no snapshot names is removed.
                raise CorruptError(
                    f"{error} The table still names it: its records are lost.",
                    path=error.path,
                    offset=error.offset,
                ) from error
            self._missing = error.path
        self._count += 1
        if self._count == READS:
            raise UnavailableError(
                f"{self._what} changed {READS} times while it was read. {error}".rstrip()
            ) from error


def retry_on_conflict(attempt: Callable[[], T]) -> T:
    """Call `attempt`, which looks at the table, plans and commits, until no other commit comes in between.

    A missing file shows another commit too: the snapshot that names it was replaced, and has expired since.
    """
    for _ in range(COMMITS - 1):
        try:
            return attempt()
        except (ConflictError, SegmentGoneError):
            continue
    return attempt()
