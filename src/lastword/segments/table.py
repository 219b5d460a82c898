"""The sealed segments of one topic as an Iceberg table: reads it, plans, commits, expires, collects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from threading import Lock
from typing import Literal

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType

from lastword.clock import Clock
from lastword.errors import ConflictError, InvalidTopicError, UnknownPartitionError, UnknownTopicError
from lastword.segments import mapping
from lastword.segments.collector import collect
from lastword.segments.commit import Change, commit, expire
from lastword.segments.fileio import SyncedFileIO, io_properties
from lastword.segments.foreign import decoding, mapped
from lastword.segments.index import IndexCache, SegmentIndex
from lastword.segments.lineage import main_line, superseded
from lastword.segments.loader import TableLoader
from lastword.segments.model import (
    Announce,
    Codec,
    Collected,
    DeleteFile,
    Guard,
    Owner,
    PastOwner,
    PendingCommit,
    Positions,
    Ref,
    Segment,
    SegmentGoneError,
    Snapshot,
    TopicInfo,
    retry_on_conflict,
    to_nobody,
)
from lastword.segments.parquet import SegmentFiles, job_of
from lastword.segments.writer import SegmentWriter


class SegmentTable:
    """The sealed segments of one topic. May be used by several threads."""

    def __init__(
        self,
        *,
        loader: TableLoader,
        table: Table,
        clock: Clock,
        announce: Announce = to_nobody,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard
        self._loader = loader
        self._announce = announce
        self._clock = clock
        self._identifier = table.name()
        mapping.check_format(table.metadata.properties)
        self._topic_id = mapping.topic_from(table.metadata.properties).id
        self._table = table
        self._table_lock = Lock()
        self._indexes = IndexCache(self.files)

    @property
    def location(self) -> str:
        """The location of the table's files, as a URI."""
        return self._table.metadata.location

    @property
    def files(self) -> SegmentFiles:
        """Reads and writes segment files without a catalog, for executors."""
        return SegmentFiles(location=self.location, properties=io_properties(self._table.io.properties))

    def snapshot(self, snapshot_id: int | None = None) -> Snapshot:
        """Take a fresh look at the current snapshot, or the one with this id if it is still there."""
        table = self._refresh()
        if snapshot_id is None:
            return self._snapshot_of(table, table.metadata.current_snapshot_id)
        return self._snapshot_of(table, snapshot_id)

    def check_owned(self, snapshot: Snapshot) -> None:
        """Raise NotOwnerError if we may not change the table as of a snapshot: its positions are another owner's."""
        if self._guard is not None:
            self._guard.check(snapshot.topic)

    def history(self) -> list[Snapshot]:
        """Return the snapshots that are or were current and are still kept, oldest first; the last is current.

        Those of branches that other engines made are not included.
        """
        metadata = self._refresh().metadata
        return [mapping.snapshot_from(metadata, each) for each in main_line(metadata)]

    def refs(self) -> list[Ref]:
        """Return the tags and branches of the table, except the branch that is the topic."""
        metadata = self._refresh().metadata
        found = []
        for name, ref in sorted(metadata.refs.items()):
            snapshot = metadata.snapshot_by_id(ref.snapshot_id)
            if name != MAIN_BRANCH and snapshot is not None:
                kind: Literal["tag", "branch"] = (
                    "tag" if ref.snapshot_ref_type is SnapshotRefType.TAG else "branch"
                )
                found.append(Ref(name=name, kind=kind, snapshot=mapping.snapshot_from(metadata, snapshot)))
        return found

    def plan(self, snapshot: Snapshot, partition: int | None = None, from_offset: int = 0) -> list[Segment]:
        """Return the snapshot's segments that reach `from_offset` or beyond, by partition and offset."""
        return self._index(snapshot.id).from_offset(partition, from_offset)

    def writer(self, partition: int, first_offset: int, job_id: str, codec: Codec = "zstd") -> SegmentWriter:
        return self.files.writer(partition, first_offset, job_id, codec)

    def read(
        self, segment: Segment, columns: Sequence[str] | None = None, from_offset: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Read records of a segment from an offset on, as record.PAYLOAD_SCHEMA (or its `columns`)."""
        return self.files.read(segment, columns, from_offset)

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
        return self.replace(base, (), segments, positions, operation=operation, details=details)

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
        """Commit removed and added segments. Raise ConflictError if one of `removed` is no longer there."""
        # Before the positions are compared: those of another owner's table don't fit what was planned here.
        self.check_owned(base)
        change = Change(
            operation=operation,
            details=details or {},
            removed=removed,
            added=added,
            positions=_moved(base, positions),
        )
        return self._commit(base, change)

    def alter(
        self,
        base: Snapshot,
        *,
        config: Mapping[str, str] | None = None,
        partitions: int | None = None,
        deleted: bool = False,
    ) -> Snapshot:
        """Commit the topic's settings (all of them), a larger number of partitions, or its deletion."""
        before = base.topic
        count = before.partitions if partitions is None else partitions
        if count < before.partitions:
            raise InvalidTopicError(
                f"The topic {before.name} has {before.partitions} partitions; it can't have fewer ({count})."
            )
        after = TopicInfo(
            name=before.name,
            id=before.id,
            partitions=count,
            config=before.config if config is None else config,
            deleted=before.deleted or deleted,
        )
        old, new = mapping.topic_properties(before), mapping.topic_properties(after)
        change = Change(
            operation="delete" if deleted else "alter",
            positions=base.positions + (Positions(),) * (count - before.partitions),
            properties=new,
            removed_properties=sorted(old.keys() - new.keys()),
        )
        return self._commit(base, change)

    def claim(self) -> TopicInfo:
        """Make the table name us as its owner, as the guard requires: by a commit, unless it already does."""

        def attempt() -> TopicInfo:
            base = self.snapshot()
            if self._guard is None or self._guard.check(base.topic) is None:
                return base.topic
            return self._commit(base, Change(operation="own", positions=base.positions)).topic

        return retry_on_conflict(attempt)

    def take_over(self, base: Snapshot, owner: Owner, positions: Mapping[int, Positions]) -> Snapshot:
        """Commit a new owner. The previous one can no longer commit."""
        before = base.topic.owner
        past = base.topic.past_owners
        if before is not None:
            ends = tuple(each.sealed_end for each in base.positions)
            past += (PastOwner(folder_id=before.folder_id, epoch=before.epoch, sealed_ends=ends),)
        change = Change(
            operation="takeover",
            positions=_moved(base, positions),
            details={"from": before.folder_id if before else "", "epoch": str(owner.epoch)},
            properties={mapping.PAST_OWNERS: mapping.past_owners_to_json(past)},
        )
        return self._commit(base, change, new_owner=owner)

    def expire(
        self,
        *,
        retention_ms: int | None,
        keep: Collection[int] = (),
        only: Collection[int] | None = None,
        dry_run: bool = False,
    ) -> list[int]:
        """Expire snapshots that were replaced at least `retention_ms` ago (None: all), and return their ids.

        With `only`, expire only those in it. Never expire the current one, those in `keep`, nor those that a tag or a
        branch names.
        """

        def attempt() -> list[int]:
            table = self._refresh()
            now_ms = self._clock.now_ms()
            protected = {ref.snapshot_id for ref in table.metadata.refs.values()} | set(keep)
            old = [
                snapshot_id
                for snapshot_id, superseded_ms in superseded(table.metadata, now_ms).items()
                if (retention_ms is None or now_ms - superseded_ms >= retention_ms)
                and snapshot_id not in protected
                and (only is None or snapshot_id in only)
            ]
            if not old or dry_run:
                return old
            topic = mapping.topic_from(table.metadata.properties)
            if self._guard is not None and self._guard.check(topic) is not None:
                # Expiry makes no snapshot, and only a snapshot keeps a clone of the folder from continuing.
                self.claim()
                return attempt()
            self._keep(expire(table, old))
            return old

        return retry_on_conflict(attempt)

    def collect(
        self,
        *,
        grace_ms: int | None,
        live_jobs: Collection[str] = (),
        dry_run: bool = False,
        data_only: bool = False,
    ) -> Collected:
        """Remove files that no live snapshot has named for `grace_ms` (None: no grace), of no job in `live_jobs`.

        That time is known from earlier calls: if a file is found unnamed for the first time, it starts now.

        With `data_only`, metadata files stay: a commit in progress elsewhere may be about to name them.
        """
        if self._guard is not None and not dry_run:
            self._guard.check(mapping.topic_from(self._refresh().metadata.properties))
        with mapped(f"Collecting files of {self.location}"):
            return collect(
                SyncedFileIO(self.files.properties),
                self.location,
                self._refresh,
                now_ms=self._clock.now_ms(),
                grace_ms=grace_ms,
                live_jobs=live_jobs,
                dry_run=dry_run,
                data_only=data_only,
            )

    def _commit(self, base: Snapshot, change: Change, *, new_owner: Owner | None = None) -> Snapshot:
        table = self._refresh()
        if new_owner is None and self._guard is not None:
            # Check the very state that the commit is fenced by: a takeover makes another snapshot.
            new_owner = self._guard.check(mapping.topic_from(table.metadata.properties))
        if table.metadata.current_snapshot_id != base.id:
            raise ConflictError(
                f"The table of {base.topic.name} changed: the plan is for snapshot {base.id}, but "
                f"{table.metadata.current_snapshot_id} is the current one."
            )
        if new_owner is not None:
            change = replace(change, properties={**change.properties, **mapping.owner_properties(new_owner)})
        if table.metadata.properties.get(mapping.TABLE_FORMAT) != str(mapping.FORMAT):
            # Versions that can't read what we may write refuse the table from now on.
            change = replace(
                change, properties={**change.properties, mapping.TABLE_FORMAT: str(mapping.FORMAT)}
            )
        change = self._with_own_marks(base, change)
        after = self._checked(base, change)
        pending = _pending(base, change)
        with nullcontext() if pending is None else self._announce(pending):
            committed, snapshot_id = commit(
                table, base.id, change, now_ms=self._clock.now_ms(), reload=self._refresh
            )
        self._indexes.put(snapshot_id, after)
        self._keep(committed)
        return self._snapshot_of(committed, snapshot_id)

    def _with_own_marks(self, base: Snapshot, change: Change) -> Change:
        """Give segments files of their own for their marks where a file that lists them, too, goes with the change."""
        shared = {each.path for segment in change.removed for each in _shared_deletes(segment)}
        if not shared:
            return change
        removed = {segment.path for segment in change.removed}
        others = [
            segment
            for segment in self._index(base.id).by_path.values()
            if segment.path not in removed and shared & {each.path for each in _shared_deletes(segment)}
        ]
        from lastword.segments.marking import copied

        job_id = next((job for each in change.added if (job := job_of(each.path)) is not None), "marks")
        return replace(
            change,
            removed=[*change.removed, *others],
            added=[*change.added, *(copied(self.files, each, job_id=job_id) for each in others)],
        )

    def _checked(self, base: Snapshot, change: Change) -> SegmentIndex:
        """Return the segments after the change, which must fit those that are there."""
        index = self._index(base.id)
        for segment in change.removed:
            if index.by_path.get(segment.path) != segment:
                raise ConflictError(f"The segment {segment.path} is no longer in snapshot {base.id}.")
        replaced = {segment.path for segment in change.removed}
        for segment in change.added:
            if not 0 <= segment.partition < len(change.positions):
                raise UnknownPartitionError(f"{base.topic.name} has no partition {segment.partition}.")
            if segment.path in index.by_path and segment.path not in replaced:
                raise ConflictError(f"The segment {segment.path} is in snapshot {base.id} already.")
        return index.changed(change.removed, change.added)

    def _refresh(self) -> Table:
        with mapped(f"Looking at the table {'.'.join(self._identifier)}"):
            table = self._loader.load(self._identifier, known=self._table)
        if table is not self._table:
            mapping.check_format(table.metadata.properties)
            if mapping.topic_from(table.metadata.properties).id != self._topic_id:
                raise UnknownTopicError(f"The topic {'.'.join(self._identifier)} was deleted and recreated.")
            self._keep(table)
        return table

    def _keep(self, table: Table) -> None:
        """Remember the newest state seen. Another thread may have seen a newer one in the meantime."""
        with self._table_lock:
            if _age(table) >= _age(self._table):
                self._table = table
                self._loader.remember(table)

    def _index(self, snapshot_id: int | None) -> SegmentIndex:
        if snapshot_id is None:
            return SegmentIndex(())
        if (index := self._indexes.get(snapshot_id)) is not None:
            return index
        table = self._table
        snapshot = table.metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            table = self._refresh()
            snapshot = table.metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise SegmentGoneError(f"Snapshot {snapshot_id} of {self.location} has expired.")
        with mapped(f"Reading the manifests of snapshot {snapshot_id}", snapshot.manifest_list):
            return self._indexes.load(snapshot, table.io)

    def _snapshot_of(self, table: Table, snapshot_id: int | None) -> Snapshot:
        snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
        if snapshot is None:
            raise SegmentGoneError(f"Snapshot {snapshot_id} of {self.location} is no longer there.")
        with decoding(table.metadata_location):
            return mapping.snapshot_from(table.metadata, snapshot)


def _shared_deletes(segment: Segment) -> list[DeleteFile]:
    return [] if segment.marks is None else [each for each in segment.marks.files if each.is_shared]


def _age(table: Table) -> int:
    snapshot = table.metadata.current_snapshot()
    return (snapshot.sequence_number or 0) if snapshot else 0


def _pending(base: Snapshot, change: Change) -> PendingCommit | None:
    """Return the announcement of a change; None if it takes no record away from any reader."""
    floors: dict[int, int] = {}
    for partition, (old, new) in enumerate(zip(base.positions, change.positions, strict=False)):
        if new.first_dirty > old.first_dirty or new.log_start > old.log_start:
            floors[partition] = max(new.first_dirty, new.log_start)
    for segment in change.removed:
        floors[segment.partition] = max(floors.get(segment.partition, 0), segment.last_offset + 1)
    return PendingCommit(topic_id=base.topic.id, floors=floors) if floors else None


def _moved(base: Snapshot, changed: Mapping[int, Positions]) -> tuple[Positions, ...]:
    """Return the positions of all partitions after a change. One that moves down is a bug of the caller."""
    positions = list(base.positions)
    for partition, new in changed.items():
        if not 0 <= partition < len(positions):
            raise UnknownPartitionError(f"{base.topic.name} has no partition {partition}.")
        old = positions[partition]
        down = (
            new.log_start < old.log_start
            or new.first_dirty < old.first_dirty
            or new.sealed_end < old.sealed_end
            or new.epochs[-1:] < old.epochs[-1:]
        )
        if down:
            raise ValueError(f"positions of partition {partition} would move down: {old} to {new}")
        positions[partition] = new.without_passed_rounds()
    return tuple(positions)
