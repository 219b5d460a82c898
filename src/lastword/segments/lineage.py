"""The snapshots of a table in the order in which they were the current one."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot


def main_line(metadata: TableMetadata) -> list[IcebergSnapshot]:
    """Return the snapshots that are or were the current one, oldest first; the current one is the last.

    Snapshots on branches of other engines, and those that another engine has rolled back, are not among them.
    """
    current = metadata.current_snapshot()
    if current is None:
        return []
    ids = {entry.snapshot_id for entry in metadata.snapshot_log} | {
        each.snapshot_id for each in _ancestors(metadata, current)
    }
    newest = _sequence(current)
    line = [each for each in metadata.snapshots if each.snapshot_id in ids and _sequence(each) <= newest]
    return sorted(line, key=_sequence)


def _ancestors(metadata: TableMetadata, snapshot: IcebergSnapshot | None) -> Iterator[IcebergSnapshot]:
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)


def _sequence(snapshot: IcebergSnapshot) -> int:
    return snapshot.sequence_number or 0
