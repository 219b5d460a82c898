"""One change of a table, all or nothing, and only on the snapshot that it was planned on.

1. Manifests and the manifest list are written (and synced, by the FileIO).
2. The catalog checks that the snapshot planned on is still the current one, writes the metadata file (synced)
   and moves its pointer. That is the commit.
3. Metadata files that the new one no longer lists are removed.

If killed before the pointer moves, nothing has changed, and the files of 1 and 2 are orphans. If killed after, the
change is made. If an error leaves open which of the two it is, the table is read again: a commit carries a unique
id in its snapshot's summary. No file is removed after a failure; that is the collector's work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from pyiceberg.io import FileIO
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID
from pyiceberg.table.update.snapshot import ExpireSnapshots

from lastword.clock import new_uuid
from lastword.errors import LastwordError, StorageError
from lastword.folder import steps
from lastword.segments.foreign import FAILURES, mapped
from lastword.segments.mapping import (
    COMMIT_ID,
    COMMITTED_MS,
    DETAIL_PREFIX,
    OPERATION,
    POSITIONS,
    commit_id_of,
    data_file_from,
    delete_file_from,
    positions_to_json,
)
from lastword.segments.model import Positions, Segment
from lastword.segments.producer import SnapshotProducer
from lastword.segments.sql_catalog import Staged


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change that a commit makes. `positions` are those of all partitions."""

    operation: str
    positions: tuple[Positions, ...]
    details: Mapping[str, str] = field(default_factory=dict)
    removed: Sequence[Segment] = ()
    added: Sequence[Segment] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    removed_properties: Collection[str] = ()


class FencedTransaction(Transaction):
    """pyiceberg's transaction, without its retries and clean-ups, that names the snapshot it must follow."""

    def __init__(self, table: Table, base_id: int | None) -> None:
        super().__init__(table, autocommit=False)
        self._base_id = base_id
        self._staged = Staged(table.metadata)

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with the staged changes, which pyiceberg would compute a dozen times in each commit."""
        return self._staged.apply(self._updates)

    def commit_transaction(self) -> Table:
        table = self._table
        requirements = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": self._base_id}),
        )
        response = table.catalog.commit_table(table, requirements, self._updates)
        return Table(
            identifier=table.name(),
            metadata=response.metadata,
            metadata_location=response.metadata_location,
            io=table.io,
            catalog=table.catalog,
            config=table.config,
        )


def summary_of(change: Change, *, commit_id: str, now_ms: int) -> dict[str, str]:
    return {
        OPERATION: change.operation,
        COMMIT_ID: commit_id,
        COMMITTED_MS: str(now_ms),
        POSITIONS: positions_to_json(change.positions),
        **{DETAIL_PREFIX + key: value for key, value in change.details.items()},
    }


def commit(
    table: Table, base_id: int | None, change: Change, *, now_ms: int, reload: Callable[[], Table]
) -> tuple[Table, int]:
    """Make the change. Return the table as it is now, and the id of the snapshot that was made."""
    commit_id = new_uuid().hex
    doing = f"The commit '{change.operation}' of {'.'.join(table.name())}"
    transaction = FencedTransaction(table, base_id)
    with mapped(doing):
        transaction.set_properties({**change.properties, POSITIONS: positions_to_json(change.positions)})
        if change.removed_properties:
            transaction.remove_properties(*change.removed_properties)
        summary = summary_of(change, commit_id=commit_id, now_ms=now_ms)
        stage_snapshot(transaction, table.io, removed=change.removed, added=change.added, summary=summary)
    steps.reached("commit.before")
    try:
        committed = transaction.commit_transaction()
    except Exception as error:
        found = _find_made(doing, commit_id, reload, error)
        if found is None:
            with mapped(doing):
                raise
        committed = found
    steps.reached("commit.done")
    remove_old_metadata(table, committed)
    return committed, _snapshot_of(committed, commit_id)


def expire(table: Table, snapshot_ids: Sequence[int]) -> Table:
    """Expire snapshots. Remove no file and make no snapshot: readers and writers are not affected."""
    with mapped(f"The expiry of snapshots of {'.'.join(table.name())}"):
        transaction = FencedTransaction(table, table.metadata.current_snapshot_id)
        ExpireSnapshots(transaction).by_ids(list(snapshot_ids)).commit()
        committed = transaction.commit_transaction()
    steps.reached("expire.done")
    remove_old_metadata(table, committed)
    return committed


def remove_old_metadata(before: Table, after: Table) -> None:
    """Remove metadata files that fell out of the log. Files that can't be removed now are left to the collector."""
    listed = {entry.metadata_file for entry in after.metadata.metadata_log} | {after.metadata_location}
    for entry in before.metadata.metadata_log:
        if entry.metadata_file not in listed:
            with suppress(*FAILURES):
                before.io.delete(entry.metadata_file)


def stage_snapshot(
    transaction: Transaction,
    file_io: FileIO,
    *,
    removed: Sequence[Segment] = (),
    added: Sequence[Segment] = (),
    summary: dict[str, str],
) -> None:
    """Stage a snapshot. A segment that is both removed and added keeps its file: it has other marks."""
    spec_id = transaction.table_metadata.default_spec_id
    before, after = _files(removed), _files(added)
    new = [
        entry
        for segment in added
        for path, entry in (
            (segment.path, partial(data_file_from, segment.whole, spec_id)),
            *((each.path, partial(delete_file_from, segment, spec_id)) for each in segment.files[1:]),
        )
        if path not in before
    ]
    SnapshotProducer(
        transaction,
        file_io,
        added=[make() for make in new],
        removed=before - after,
        summary=summary,
    ).commit()


def _files(segments: Sequence[Segment]) -> set[str]:
    """Return the data files and delete files of segments."""
    return {file.path for segment in segments for file in segment.files}


def _find_made(doing: str, commit_id: str, reload: Callable[[], Table], error: Exception) -> Table | None:
    try:
        table = reload()
    except LastwordError as second:
        raise StorageError(
            f"{doing} failed ({error}), and the table can't be read ({second}): it is not known whether it was made. "
            "Look at the table again before the next attempt."
        ) from error
    made = any(commit_id_of(snapshot) == commit_id for snapshot in table.metadata.snapshots)
    return table if made else None


def _snapshot_of(table: Table, commit_id: str) -> int:
    for snapshot in reversed(table.metadata.snapshots):
        if commit_id_of(snapshot) == commit_id:
            return snapshot.snapshot_id
    raise StorageError(f"The snapshot of commit {commit_id} is missing from {table.metadata_location}.")
